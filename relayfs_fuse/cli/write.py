"""relayctl write: write the standard input to a channel, as records."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import closing, suppress

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import mount_option, say
from relayfs_fuse.cli.feed import Feed
from relayfs_fuse.cli.opened import open_first, open_to_write
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.split import FIXED, LINES, PREFIXED, Split

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _ToldToEnd(Exception):  # noqa: N818  # no error
    """A signal came while the channel was full."""


class _Told:
    """Notes the first signal that ends programs, between two records; a second one ends this program at once.

    descriptor: the file that is read
    signum: its number; None: none came
    """

    def __init__(self, descriptor: int) -> None:
        self.signum: int | None = None
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for each in (descriptor, self._event):
            self._poll.register(each, select.POLLIN)
        self._handled = [signum for signum in _SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]
        for signum in self._handled:
            signal.signal(signum, self._note)

    def is_there(self) -> bool:
        """Wait until the file can be read; False: a signal came."""
        self._poll.poll()
        return self.signum is None

    def pause(self, seconds: float) -> None:
        """Sleep while the channel is full."""
        if self.signum is not None:
            raise _ToldToEnd
        time.sleep(seconds)

    def _note(self, signum: int, _frame: object) -> None:
        self.signum = signum
        for each in self._handled:
            signal.signal(each, signal.SIG_DFL)
        os.eventfd_write(self._event, 1)


@click.command()
@click.argument("channel", shell_complete=complete.channels)
@mount_option
@click.option("--fixed", metavar="N", type=click.IntRange(min=1), help="Each record has N bytes.")
@click.option("--length-prefixed", is_flag=True, help="Each record follows its length: 4 bytes, little endian.")
@click.option(
    "--block/--drop", "blocks", default=True, help="While the channel is full: wait (the default), or lose records."
)
def write(channel: str, mount: str | None, fixed: int | None, length_prefixed: bool, blocks: bool) -> None:
    """Write the standard input to CHANNEL: each line, with its newline, becomes a record.

    CHANNEL is PATH or MNT/PATH. Exit status: 1 if a record was not written, because it is too long or was dropped.
    """
    if fixed is not None and length_prefixed:
        raise click.UsageError("--fixed and --length-prefixed exclude each other")
    by = FIXED if fixed is not None else PREFIXED if length_prefixed else LINES
    if sys.stdin is None:
        raise RelayError("the standard input is closed")
    with closing(open_first(channel, mount, open_to_write)) as opened:
        split = Split(opened, by, fixed or 1, waits=blocks)
        if fixed is not None and fixed > split.largest:
            raise click.UsageError(f"--fixed {fixed}: a record of {channel} has at most {split.largest} bytes")
        stdin = sys.stdin.fileno()
        told = _Told(stdin)
        feed = Feed(channel, split, pause=told.pause)
        try:
            with suppress(_ToldToEnd):
                while told.is_there() and feed.take(stdin):
                    pass
        except (OSError, RelayError):
            # Also now, readers of whole sub-buffers are to have what was written.
            with suppress(OSError):
                feed.finish()
            raise
        is_whole = feed.finish()
        if told.signum is not None:
            say(f"{channel}: interrupted after {split.records} records")
            signal.raise_signal(told.signum)
        if not is_whole:
            sys.exit(1)
