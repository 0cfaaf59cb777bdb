"""The recorder: finds the processes of a trace, takes packets out of their buffers, hands them to an output.

    loop:  take what there is, until there is nothing
           now and then: who has died?  has the trace ended?  rotate?
           sleep: inotify tells of new directories, sleepers (sleeper.py) of buffers

What a process has spoiled ends the recording of that process only.
"""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayfs_fuse import native_trace
from relayfs_fuse.record.process import Process
from relayfs_fuse.record.recording import Recording, SpoiledError, Summary, reason
from relayfs_fuse.record.sleeper import Sleepers

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.record.output import Output
    from relayfs_fuse.record.source import Source

# In this time a server removes what a dead process has left, once it is read.
SERVER_S = 5.0
# How often to look who lives.
TICK_S = 0.5


@dataclass
class Options:
    """How to record; None: never."""

    rotate_bytes: int | None = None
    rotate_s: float | None = None
    duration_s: float | None = None
    until_stopped: bool = False
    removes: bool = False  # what is drained, from a store that nobody serves


class Recorder:
    """Record a trace until it ends, or stop() is called.

    say: is given a line for people about what went wrong
    tick: is called now and then
    """

    def __init__(
        self, source: Source, output: Output, options: Options, say: Callable[[str], None], tick: Callable[[], None]
    ) -> None:
        self.summary = Summary()
        self._source = source
        self._output = output
        self._options = options
        self._say = say
        self._tick = tick
        self._recordings: dict[str, Recording] = {}
        self._done: dict[str, int] = {}
        self._sleepers = Sleepers()
        self._stops = False
        self._began = self._ticked = self._rotated = time.monotonic()
        self._rotated_bytes = 0

    @property
    def n_buffers(self) -> int:
        """Count the buffers that are being read."""
        return sum(len(recording.process.buffers) for recording in self._recordings.values())

    def stop(self) -> None:
        """End soon, in order; signal handlers may call it."""
        self._stops = True
        self._sleepers.wake()

    def run(self) -> None:
        """Record. OSError: what is to be written cannot be; what is not written stays in the buffers."""
        try:
            self._scan()
            while not self._has_ended():
                if not self._drain_all():
                    self._sleep()
            self._scan()
            for name in list(self._recordings):
                self._finish(name)
        finally:
            self._close()

    def _close(self) -> None:
        for recording in self._recordings.values():
            recording.process.close_after(self._sleepers)
        self._sleepers.close()
        self._output.close()

    # --- what there is to record ---

    def _scan(self) -> None:
        """Begin with directories that are new."""
        names = self._source.processes()
        for name in self._done.keys() - set(names):
            del self._done[name]
        for name in names:
            if name not in self._recordings:
                self._begin(name)

    def _begin(self, name: str) -> None:
        directory = os.path.join(self._source.directory, name)
        try:
            number = os.stat(directory).st_ino
            if self._done.get(name) == number:
                return
            self._done[name] = number
            process = Process(directory)
        except FileNotFoundError:
            self._done.pop(name, None)
            return
        except OSError as error:
            if error.errno in (errno.EBADMSG, errno.EPROTO):
                self._mark(name, reason(error))
            else:
                self.summary.skipped[name] = reason(error)
                self._say(f"{name}: {reason(error)}")
            return
        except ValueError as error:
            self._mark(name, str(error))
            return
        self._recordings[name] = Recording(process, self._output.process(name, process.origin), self._source)
        for consumer in process.buffers.values():
            self._sleepers.add(consumer.buffer)
        self.summary.processes += 1
        self.summary.buffers += len(process.buffers)

    def _see_off(self, name: str, now: float) -> None:
        """Record what a dead process has left, until its directory is gone: the server, if there is one, removes it."""
        recording = self._recordings[name]
        if recording.died is None and not recording.process.is_closed() and not self._options.removes:
            recording.died = now
            try:
                recording.flush()
            except SpoiledError as spoiled:
                self._give_up(name, str(spoiled))
        elif recording.died is None or recording.process.is_closed() or now - recording.died > SERVER_S:
            self._finish(name)

    def _finish(self, name: str) -> None:
        """Take the last of a process, and let go of it."""
        recording = self._recordings[name]
        try:
            recording.finish(self.summary)
        except SpoiledError as spoiled:
            self._give_up(name, str(spoiled))
            return
        del self._recordings[name]
        recording.process.close_after(self._sleepers)
        if self._options.removes and not recording.process.is_alive():
            with suppress(FileNotFoundError):
                native_trace.trace_remove(recording.process.directory)

    def _give_up(self, name: str, why: str) -> None:
        """Record no more of a process that has spoiled its memory."""
        recording = self._recordings.pop(name)
        recording.process.close_after(self._sleepers)
        recording.output.close({})
        self._mark(name, why)

    def _mark(self, name: str, why: str) -> None:
        self.summary.damaged[name] = why
        self._output.damaged(name, why)
        self._say(f"{name} is damaged: {why}; it is not recorded any further")

    # --- the loop ---

    def _drain_all(self) -> bool:
        busy = False
        for name in list(self._recordings):
            try:
                busy |= self._recordings[name].drain(self.summary)
            except SpoiledError as spoiled:
                self._give_up(name, str(spoiled))
        rotate_bytes = self._options.rotate_bytes
        if rotate_bytes and self.summary.bytes - self._rotated_bytes >= rotate_bytes:
            self._rotate()
        return busy and time.monotonic() - self._ticked < TICK_S

    def _sleep(self) -> None:
        armed = self._sleepers.arm()
        if self._drain_all():
            return
        self._sleepers.start(armed)
        poll = select.poll()
        poll.register(self._source.inotify, select.POLLIN)
        poll.register(self._sleepers.eventfd, select.POLLIN)
        wait_s = max(0.0, self._ticked + TICK_S - time.monotonic())
        for descriptor, _ in poll.poll(1000 * wait_s):
            if descriptor == self._sleepers.eventfd:
                self._sleepers.heard()
            else:
                self._scan()

    def _has_ended(self) -> bool:
        """Look, now and then, at what nobody tells."""
        now = time.monotonic()
        duration_s = self._options.duration_s
        if self._stops or (duration_s is not None and now - self._began >= duration_s):
            return True
        if now - self._ticked < TICK_S:
            return False
        self._ticked = now
        ended = not self._source.look() or (self._options.until_stopped and not self._source.trace.is_started)
        self._scan()
        for name, recording in list(self._recordings.items()):
            try:
                recording.check()
                recording.update()
            except SpoiledError as spoiled:
                self._give_up(name, str(spoiled))
                continue
            if recording.process.has_ended():
                self._see_off(name, now)
        if self._options.rotate_s and now - self._rotated >= self._options.rotate_s:
            self._flush_all()
            self._rotate()
        self._tick()
        return ended or (self._source.is_of_the_past and not self._recordings)

    def _flush_all(self) -> None:
        for name, recording in list(self._recordings.items()):
            try:
                recording.flush()
                recording.drain(self.summary)
            except SpoiledError as spoiled:
                self._give_up(name, str(spoiled))

    def _rotate(self) -> None:
        self._rotated = time.monotonic()
        self._rotated_bytes = self.summary.bytes
        self._output.rotate()
