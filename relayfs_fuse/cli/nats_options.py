"""What the commands that talk to a NATS server have in common."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from relayfs_fuse.errors import RelayError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

# As forwarding.names.STREAM, which other commands than these need not import.
STREAM = "RELAYFS"

stream_option = click.option(
    "--stream", metavar="NAME", default=STREAM, show_default=True, help="The stream of the server's JetStream."
)


@contextmanager
def importing(command: str) -> Iterator[None]:
    """Raise RelayError if a module of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in {"nats", "google_crc32c"}:
            raise
        raise RelayError(f"{command} needs {missing}; `pip install 'relayfs[nats]'` installs it") from error


def run_until_signal(run: Callable[[], Awaitable[None]]) -> bool:
    """Run until it ends, or is ended by SIGINT or SIGTERM; return whether it was."""

    async def main() -> bool:
        task = asyncio.ensure_future(run())
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    return asyncio.run(main())
