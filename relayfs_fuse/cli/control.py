"""Commands that relayctl writes to the control file of a mount; where none is, it carries them out in the store."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import TYPE_CHECKING

import click

from relayfs_fuse import explain, native
from relayfs_fuse.cli.common import say
from relayfs_fuse.cli.opened import absolute
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.source import MOUNT, find_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relayfs_fuse.reading.source import Root


def command(mount: str, line: str) -> None:
    """Have the server carry out a command; RelayError: it is refused, with the reason that error_log has."""
    try:
        write(mount, line)
    except OSError as error:
        if error.filename is not None:
            raise
        raise RelayError(f"{line}: {explain.refused_command(mount, line) or reason(error)}") from error


def write(mount: str, line: str) -> None:
    """Write a line to the control file.

    OSError: with a file name, there is none; otherwise the command is refused. RelayError: it is no file of a mount.
    """
    # Without O_CREAT: if the mount has gone, no file is made in the directory below it. Any user can make a directory
    # that looks like a mount, with a symbolic link in it.
    path = os.path.join(mount, "control")
    try:
        control = native.mount_file_open(path, os.O_WRONLY)
    except OSError as error:
        if error.errno != errno.EBADMSG:
            raise
        raise RelayError(f"{path} is not the control file of a mount") from error
    try:
        os.set_blocking(control, True)
        os.write(control, os.fsencode(f"{line}\n"))
    finally:
        os.close(control)


def commands(mount: str | None, verb: str, targets: Iterable[str], words: Sequence[str] = ()) -> None:
    """Have the server carry out `VERB TARGET WORD...` for each target; exit with status 1 in the end if one is refused.

    What error_log notes about a command is printed. Where nothing is mounted, commands about channels are carried out
    in the store.

    mount: as for find_root()
    targets: names of traces, PATHs of channels, or MNT/PATH
    """
    failed = False
    for target in targets:
        try:
            carry_out(mount, verb, target, words)
        except RelayError as error:
            say(str(error))
            failed = True
    if failed:
        sys.exit(1)


def carry_out(mount: str | None, verb: str, target: str, words: Sequence[str] = ()) -> None:
    """Have the server carry out `VERB TARGET WORD...`; as commands(), but RelayError: it is refused."""
    root, name = _split(mount, target, makes=verb == "create")
    line = " ".join([verb, check_word(name), *words])
    if root.is_store:
        from relayfs_fuse.cli import stored  # noqa: PLC0415  # a mount's server needs none of it

        stored.command(root.place, line)
        return
    known = explain.notices(root.place, line)
    command(root.place, line)
    for _, notice in explain.notices(root.place, line) - known:
        say(f"{line}: {notice}")


def check_word(word: str) -> str:
    """Return a word for a command's line; UsageError: it would be none or several there, or another line."""
    if not word or re.search(r"[ \t\n]", word):
        raise click.UsageError(f"{word!r}: a word of a command is not empty, and has no blanks and no newlines")
    return word


def find_control(mount: str | None) -> str:
    """Find the mount whose control file to use, as find_root() does; RelayError: there is none."""
    root = find_root(mount, makes=True)
    if root.is_store:
        raise RelayError(f"no relayfs is mounted, and a trace needs its server; mount one: {MOUNT}")
    return root.place


def _split(mount: str | None, target: str, *, makes: bool) -> tuple[Root, str]:
    """Return the mount or store of a target, and its name there."""
    if mount is None and os.path.isabs(target):
        return absolute(target)
    return find_root(mount, makes=makes), target
