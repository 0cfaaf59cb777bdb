"""What can be known of the end of a process that is not the server's child.

    PIDFD_GET_INFO      Linux 6.15: the exit code, once the parent has waited for the process; for each user
    /proc/PID/stat      the exit code while the parent has not waited yet; for those who may trace the process
    /dev/kmsg           whether the kernel has killed it because memory ran out; where the log can be read, and only by
                        a server in the first PID namespace, whose numbers the log has

What none of these tells is unknown; nothing is concluded from other facts.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import signal
import struct
from contextlib import suppress
from typing import NamedTuple

from relayfs_fuse.fs.traces.sessions import start_of

log = logging.getLogger(__name__)

# ioctl(2) of a pidfd with a struct pidfd_info of 64 bytes, <linux/pidfd.h>: where its words are; a bit of the first.
_GET_INFO, _INFO_BYTES = 0xC040FF0B, 64
_EXIT_CODE_AT, _HAS_EXIT = 60, 1 << 3
# The namespace of the processes whose numbers the kernel's log has.
_FIRST_NAMESPACE = "pid:[4026531836]"
_KILLED = re.compile(rb"[0-7],\d+,\d+,[^;]*;(?:Memory cgroup out|Out) of memory: Killed process (\d+) ")
_RECORD_BYTES = 8192
# How many records of the kernel's log are read at a time, and how many killed processes are remembered.
_RECORDS_MAX, _REMEMBERED = 100_000, 4096


class End(NamedTuple):
    """How a process has ended.

    code: as of wait(2); None: unknown
    source: what has told it
    """

    code: int | None
    source: str = ""

    @property
    def signal(self) -> int:
        """The signal that has killed it; 0: none, or unknown."""
        return (self.code or 0) & 0x7F

    def lines(self, out_of_memory: bool | None) -> list[str]:
        """Return the lines KEY=VALUE of the file `cause`.

        out_of_memory: what KernelLog.has_killed() says
        """
        if self.code is None:
            return ["cause=unknown"]
        if not self.signal:
            return ["cause=exit", f"status={self.code >> 8 & 0xFF}", f"known_from={self.source}"]
        found = ["cause=signal", f"signal={_signal_name(self.signal)}", f"core_dumped={self.code >> 7 & 1}"]
        if self.signal == signal.SIGKILL:
            found.append("out_of_memory=" + ("unknown" if out_of_memory is None else str(int(out_of_memory))))
        return [*found, f"known_from={self.source}"]


UNKNOWN = End(None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # a real-time signal


def open_process(pid: int) -> int:
    """Return a descriptor of a process, which is readable when it has ended; -1: there is none, or no descriptor."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ESRCH:
            log.debug("pidfd_open(%d): %s", pid, error.strerror)
        return -1


def end_of(pid: int, descriptor: int) -> End:
    """Return how a process has ended, which open_process() has opened; UNKNOWN: that cannot be known, or not yet."""
    if descriptor < 0:
        return UNKNOWN
    # If the parent waits for the process after the first question, its files in /proc are gone, and the code is known.
    return _of_waited_for(descriptor) or _of_zombie(pid, descriptor) or _of_waited_for(descriptor) or UNKNOWN


def _of_waited_for(descriptor: int) -> End | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _HAS_EXIT)
    with suppress(OSError):
        fcntl.ioctl(descriptor, _GET_INFO, info)
        if struct.unpack_from("=Q", info, 0)[0] & _HAS_EXIT:
            return End(struct.unpack_from("=i", info, _EXIT_CODE_AT)[0], "pidfd")
    return None


def _of_zombie(pid: int, descriptor: int) -> End | None:
    with suppress(OSError):
        # For those who may not trace it the code is 0 there, and this link cannot be read.
        os.readlink(f"/proc/{pid}/ns/user")
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        # If nobody has waited for the process even now, no other one had its number when the file was read.
        if words[0] == b"Z" and not _was_waited_for(descriptor):
            return End(int(words[-1]), "stat")
    return None


def may_be_known_later(pid: int, descriptor: int) -> bool:
    """Whether the parent has not waited for a process that has ended, after which end_of() may know more."""
    return descriptor >= 0 and start_of(pid) is None and not _was_waited_for(descriptor)


def _was_waited_for(descriptor: int) -> bool:
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # EPERM: it is there
    return False


class KernelLog:
    """The kernel's log, as far as it tells which processes were killed because memory ran out."""

    def __init__(self) -> None:
        self._descriptor = -1
        # In the order in which they were killed; a dictionary, so that each can be found and the oldest be forgotten.
        self._killed: dict[int, None] = {}
        if os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE:
            return
        try:
            self._descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            log.debug("/dev/kmsg: %s", error.strerror)

    def close(self) -> None:
        """Close the log."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def forget(self, pid: int) -> None:
        """Forget a process that had a number before the one that has it now."""
        self._read()
        self._killed.pop(pid, None)

    def has_killed(self, pid: int) -> bool | None:
        """Whether the kernel has killed a process because memory ran out; None: the log cannot be read."""
        self._read()
        return None if self._descriptor < 0 else pid in self._killed

    def _read(self) -> None:
        for _ in range(_RECORDS_MAX if self._descriptor >= 0 else 0):
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten before they were read
                    continue
                log.debug("/dev/kmsg: %s", error.strerror)
                self.close()
                return
            if found := _KILLED.match(record):
                self._killed[int(found[1])] = None
                while len(self._killed) > _REMEMBERED:
                    del self._killed[next(iter(self._killed))]
