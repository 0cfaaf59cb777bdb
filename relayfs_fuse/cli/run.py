"""relayctl run: run a program, and write what it prints to a channel, line by line."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, NoReturn

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import mount_option, say
from relayfs_fuse.cli.control import carry_out, check_word
from relayfs_fuse.cli.feed import Feed
from relayfs_fuse.cli.opened import NoChannelError, open_first, open_to_write
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.split import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.native import ChannelHandle
    from relayfs_fuse.native.ring import RingsHandle

# As env(1), nohup(1) and timeout(1) have them.
_FAILED, _NOT_EXECUTABLE, _NOT_FOUND = 125, 126, 127
_OF_SIGNAL = 128
_PASSED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# Python ignores these, and programs would inherit that.
_DEFAULT = {signal.SIGPIPE, signal.SIGXFSZ}


class _ToldToEnd(Exception):  # noqa: N818  # no error
    """A signal came after the program's end, while a channel was full: what is left is not written."""


class Program:
    """A program, and the pipes to which it writes.

    command: the program and its arguments
    feeds: by the descriptors of the pipes, where their lines go
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self.feeds: dict[int, Feed] = {}
        self._command = command
        self._told_to_end = False
        self._mask: set[signal.Signals | int] = set()
        self._pid = self._end = -1

    def start(self, feeds: Sequence[Feed]) -> None:
        """Start it; OSError: it cannot be executed. RelayError: it runs, and nobody will read what it prints.

        feeds: of its standard output and its standard error; if there is one, both are the same pipe
        """
        # A signal that comes from now on waits for the thread that passes it on.
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)
        actions = []
        writing = []
        for number, feed in ((1, feeds[0]), (2, feeds[-1])):
            if feed not in self.feeds.values():
                reading, end = os.pipe()
                self.feeds[reading] = feed
                writing.append(end)
            actions.append((os.POSIX_SPAWN_DUP2, writing[-1], number))
        self._pid = os.posix_spawnp(
            self._command[0], self._command, os.environ, file_actions=actions, setsigmask=self._mask, setsigdef=_DEFAULT
        )
        for end in writing:
            os.close(end)
        try:
            self._end = os.pidfd_open(self._pid)
        except OSError as error:
            raise RelayError(f"{self._command[0]} runs, but cannot be waited for: {error.strerror}") from error
        threading.Thread(target=self._pass_signals, daemon=True).start()

    def run(self) -> int:
        """Read its lines until it ends, and what is in the pipes then; return its exit status."""
        poll = select.poll()
        for descriptor in (*self.feeds, self._end):
            poll.register(descriptor, select.POLLIN)
        try:
            self._read(poll)
        except _ToldToEnd:
            self.feeds.clear()
        return _status(os.waitpid(self._pid, 0)[1])

    def _read(self, poll: select.poll) -> None:
        has_ended = False
        while ready := [descriptor for descriptor, _ in poll.poll(0 if has_ended else None)]:
            for descriptor in ready:
                if descriptor == self._end:
                    has_ended = True
                    poll.unregister(descriptor)
                elif not self.feeds[descriptor].take(descriptor):
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    del self.feeds[descriptor]

    def hand_over(self) -> None:
        """If other programs still have the pipes open, leave a process that reads them until they are closed."""
        if not self.feeds:
            return
        reader = os.fork()
        if reader:
            say(f"processes that {self._command[0]} has started still write; process {reader} reads what they write")
            return
        with suppress(BaseException):
            self._read_on()
        os._exit(0)

    def _read_on(self) -> None:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        # Whoever waits for the end of these files is not to wait for this process.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        self._end = -1
        while self.feeds:
            for descriptor in select.select(list(self.feeds), (), ())[0]:
                if not self.feeds[descriptor].take(descriptor):
                    self.feeds.pop(descriptor).finish()

    def pause(self, seconds: float) -> None:
        """Sleep while a channel is full."""
        if self._told_to_end:
            raise _ToldToEnd
        time.sleep(seconds)

    def _pass_signals(self) -> NoReturn:
        while True:
            info = signal.sigwaitinfo(_PASSED)
            if select.select([self._end], (), (), 0)[0]:
                self._told_to_end = True
            # A terminal sends its signals to all processes of the group.
            elif not (info.si_code > 0 and os.getpgid(self._pid) == os.getpgrp()):
                with suppress(OSError):  # the program may run as another user by now
                    signal.pidfd_send_signal(self._end, info.si_signo)


def _fail(error: OSError | RelayError) -> NoReturn:
    where = "" if isinstance(error, RelayError) or error.filename is None else f"{error.filename}: "
    say(f"{where}{error if isinstance(error, RelayError) else error.strerror}")
    sys.exit(_FAILED)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _OF_SIGNAL - code


def _open(name: str, mount: str | None, create: str | None) -> ChannelHandle | RingsHandle:
    """Open a channel to write; OSError, RelayError.

    create: if there is none, make it with these words; None: do not
    """
    try:
        return open_first(name, mount, open_to_write)
    except RelayError as error:
        if create is None:
            if isinstance(error, NoChannelError):
                place = f"-m {mount} " if mount is not None else ""
                advice = f"make it: relayctl create {place}{name} mode=overwrite times=mono"
                raise NoChannelError(f"{error}; {advice}") from error
            raise
    try:
        carry_out(mount, "create", name, [check_word(word) for word in create.split()])
    except RelayError as refused:
        # Another process may have made it meanwhile.
        try:
            return open_first(name, mount, open_to_write)
        except RelayError:
            raise refused from None
    return open_first(name, mount, open_to_write)


@click.command()
@click.argument("channel", shell_complete=complete.channels)
@click.argument("program", nargs=-1, required=True, metavar="-- PROGRAM [ARGS]...")
@mount_option
@click.option("--stderr", "other", metavar="CHANNEL", help="Write the standard error to this channel instead.")
@click.option(
    "--create", metavar="OPTIONS",
    help="Make channels that do not exist, with these KEY=VALUE words, as in 'mode=overwrite times=mono'.",
)  # fmt: skip
@click.option(
    "--block/--drop", "blocks", default=False,
    help="While the channel is full: let the program wait, or lose lines (the default).",
)  # fmt: skip
def run(  # noqa: PLR0913, PLR0917  # an option each
    channel: str, program: tuple[str, ...], mount: str | None, other: str | None, create: str | None, blocks: bool
) -> None:
    """Run PROGRAM, and write each line of its standard output and its standard error to CHANNEL, as a record.

    CHANNEL is PATH or MNT/PATH. The exit status is that of PROGRAM, or 128 and the number of the signal that killed it;
    125: relayctl failed; 126: PROGRAM cannot be executed; 127: there is no PROGRAM.
    """
    started = Program(program)
    feeds: list[Feed] = []
    with ExitStack() as stack:
        try:
            for name in (channel, other):
                if name is not None:
                    opened = stack.enter_context(closing(_open(name, mount, create)))
                    feeds.append(Feed(name, Split(opened, waits=blocks), goes_on=True, pause=started.pause))
        except (OSError, RelayError) as error:
            _fail(error)
        try:
            started.start(feeds)
        except OSError as error:
            say(f"{program[0]}: {error.strerror}")
            sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)
        except RelayError as error:
            _fail(error)
        try:
            status = started.run()
        except (OSError, RelayError) as error:
            for feed in feeds:
                feed.finish()
            _fail(error)
        started.hand_over()
        for feed in feeds:
            feed.finish()
        sys.exit(status)
