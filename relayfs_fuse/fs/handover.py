"""What the supervisor of a mount (cli/supervisor.py) hands to each of its servers, one after the other.

If a server dies, its successor gets the descriptor of /dev/fuse, the notes, and the lock of the store. So the mount and
the files that programs have open go on: the kernel sends all requests again that were not answered, and the notes say
what else the dead server knew that neither the store nor the kernel tells.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from relayfs_fuse.fs import tap
from relayfs_fuse.fs.heartbeat import Heartbeat
from relayfs_fuse.fs.notes import MEMORY_BYTES, Notes, make_memory
from relayfs_fuse.fs.store import lock_store
from relayfs_fuse.fs.store_lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relayfs_fuse.fs.settings import Settings

log = logging.getLogger(__name__)

# What a server tells its supervisor.
MOUNTED, ANSWERS, ENDS = b"mounted", b"answers ", b"ends"


class Handover:
    """What one server gets. StoreError: the store cannot be used, or has another server.

    settings: the options of the mount
    inherited: what state() returned, if another program has begun to serve this mount

    lock: the store's, which the supervisor holds
    place: the mountpoint, without symbolic links
    began_ns: when the first server began
    device: the descriptor of /dev/fuse; -1: nothing is mounted yet
    has_answered: whether the mount has answered before
    number: st_dev of the mount, once it has answered
    heartbeat: says that the server's loop turns
    died: the server before, which has died, and what ended it; 0, "": there was none
    replaced: the version of the server before, if it has ended because this one takes its place
    findings: what the supervisor has to say in this server's log
    generation: how many servers of the mount there were before
    supervisor: what this server sends messages to
    before_answer: is called in the first server before the supervisor is told that the mount answers
    """

    def __init__(self, settings: Settings, inherited: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.died: tuple[int, str] = 0, ""
        self.replaced = ""
        self.findings: list[str] = []
        self.supervisor: socket.socket | None = None
        self.before_answer: Callable[[], object] = bool
        self.has_answered = inherited is not None
        if inherited is None:
            self.lock = lock_store(settings.store, settings.mountpoint)
            # Once it is mounted, this would ask the server.
            self.place = settings.mountpoint if settings.device is not None else os.path.realpath(settings.mountpoint)
            self.began_ns, self.device, self.generation, self.number = time.time_ns(), -1, 0, 0
            self._descriptor, self.heartbeat = make_memory(), Heartbeat()
        else:
            self.lock = StoreLock(settings.store, settings.mountpoint, (inherited["lock"], inherited["supervisor"]))
            self.place, self.number = inherited["place"], inherited["number"]
            self.began_ns, self.device = inherited["began_ns"], inherited["device"]
            self.generation, self._descriptor = inherited["generation"], inherited["notes"]
            self.heartbeat = Heartbeat(inherited["heartbeat"])
            settings.device = self.device if inherited["is_given"] else None
        self._memory = mmap.mmap(self._descriptor, MEMORY_BYTES)
        tap.keep_in(self._memory)

    def state(self) -> dict[str, Any]:
        """Return what another program needs for a Handover of the same mount; `descriptors()` must stay open."""
        return {
            "lock": self.lock.fileno(), "device": self.device, "notes": self._descriptor, "supervisor": os.getpid(),
            "place": self.place, "number": self.number, "began_ns": self.began_ns, "generation": self.generation,
            "heartbeat": self.heartbeat.descriptor, "is_given": self.settings.device is not None,
        }  # fmt: skip

    def descriptors(self) -> list[int]:
        """Return the descriptors that state() names."""
        return [self.lock.fileno(), self.device, self._descriptor, self.heartbeat.descriptor]

    def open_notes(self) -> Notes:
        """Return the notes; a server does this once, before it mounts or takes over the mount."""
        if self.device >= 0:
            tap.take_over(self._memory, self.device)
        return Notes(self._memory)

    def tell_mounted(self, descriptor: int) -> None:
        """Give the supervisor the descriptor of /dev/fuse."""
        self.device = descriptor
        self._send(MOUNTED, [descriptor])

    def tell_answers(self, number: int) -> None:
        """Tell the supervisor that the mount answers; number: st_dev of the mount."""
        if not self.has_answered:
            log.info("%s is mounted", self.settings.mountpoint)
            self.before_answer()
        self.has_answered = True
        self._send(ANSWERS + str(number).encode())

    def tell_ends(self) -> None:
        """Tell the supervisor that this server ends in order: it gets no successor."""
        self._send(ENDS)

    def _send(self, message: bytes, descriptors: list[int] | None = None) -> None:
        if self.supervisor is not None:
            socket.send_fds(self.supervisor, [message], descriptors or [])

    def is_from_dead(self, process: int) -> bool:
        """Whether a process is the server before, a thread of which may still wait for an answer of its own mount."""
        return bool(process) and process == self.died[0]

    def close(self) -> None:
        """Release the store's lock."""
        self.lock.close()
        os.close(self._descriptor)
