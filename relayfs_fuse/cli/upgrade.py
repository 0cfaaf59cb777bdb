"""relayctl upgrade: another version of the server takes over a mount, and open files go on."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from relayfs_fuse import native
from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import check_stdout, escaped, json_option, show_json
from relayfs_fuse.cli.upgrade_socket import connect
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs.store_lock import SOCKET_NAME
from relayfs_fuse.fs.versions import MESSAGE_MAX
from relayfs_fuse.reading.source import MOUNT, find_root, find_store


@click.command()
@click.argument("mount", metavar="[MNT]", required=False, shell_complete=complete.directories)
@click.option(
    "--with", "program", metavar="PATH", shell_complete=complete.files,
    help="The program relayfs of the other version. Default: the one beside relayctl, or that of the server.",
)  # fmt: skip
@json_option
def upgrade(mount: str | None, program: str | None, json_wanted: bool) -> None:
    """Have another version of the server take over the mount MNT; programs that use files of it go on.

    The server finishes what it does, and the other one gets all further requests. If the versions cannot follow each
    other, it is refused, with the reason. If the new server dies or does not answer within seconds, one of the version
    before serves again. Only root and the user who mounted may do it. Default of MNT: $RELAYFS, or the first mount.
    """
    check_stdout()
    root = find_root(mount)
    if root.is_store:
        raise RelayError(f"nothing is mounted, so there is no server to upgrade; mount one: {MOUNT}")
    place = root.place
    answer = _ask(find_store(mount), os.path.abspath(program) if program is not None else _beside())
    if answer["outcome"] != "done":
        was = "the version before serves again" if answer["outcome"] == "back" else "refused"
        raise RelayError(f"{place}: {was}: {answer['reason']}")
    if json_wanted:
        show_json([{key: answer[key] for key in ("before", "after", "pause_ms")}])
    else:
        click.echo(
            escaped(
                f"{place}: version {answer['after']} has taken over from {answer['before']}; "
                f"programs waited {answer['pause_ms']:.0f} ms at most"
            )
        )


def _beside() -> str:
    """Return the relayfs beside this program; empty: there is none."""
    path = Path(sys.argv[0]).resolve().with_name("relayfs")
    return str(path) if path.exists() else ""


def _ask(store: str, program: str) -> dict[str, Any]:
    """Ask the supervisor of a store's server; return its answer. RelayError: nobody answers."""
    answer = b""
    try:
        with connect(store) as supervisor:
            # If the supervisor refuses at once, it does not read this: the socket fails once, and then has the answer.
            with suppress(BrokenPipeError, ConnectionResetError):
                supervisor.send(json.dumps({"program": program}).encode())
            with suppress(ConnectionResetError):
                answer = supervisor.recv(MESSAGE_MAX)
            answer = answer or supervisor.recv(MESSAGE_MAX)
    except PermissionError as error:
        raise RelayError(f"only root and the user who mounted {store} may upgrade its server") from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise RelayError(
            f"{store}/{SOCKET_NAME}: nobody listens: no server serves this store, or one that is older than "
            f"{native.VERSION}; umount and mount again"
        ) from error
    if not answer:
        raise RelayError("the server's supervisor has ended; the server's log may tell why")
    found: dict[str, Any] = json.loads(answer)
    return found
