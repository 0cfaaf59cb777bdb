"""The program of a version of relayfs that is to take over a mount: whether it may, and executing it.

    relayfs --handover          prints the versions that tell whether it can (fs/versions.py), as JSON
    relayfs --take-over N       goes on with a mount of another program, which has left what descriptor N holds

The user of the mount, or root, chooses the program, and it runs as the server's user. So nobody else may be able to
change or replace it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from relayfs_fuse import native
from relayfs_fuse.cli.child import die_with_parent
from relayfs_fuse.fs.own_path import stranger_writes
from relayfs_fuse.fs.versions import MESSAGE_MAX, READY, versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from relayfs_fuse.fs.handover import Handover

HANDOVER_OPTION, TAKE_OVER_OPTION = "--handover", "--take-over"
# How long it may take to tell its versions.
PROBE_S = 60.0
_SAID_MAX = 500


def refusal(program: str) -> str | None:
    """Return why a program cannot take over a mount of this process's; None: it can."""
    try:
        stranger = stranger_writes(program) if os.path.isabs(program) else f"{program}: an absolute path is needed"
        if stranger is not None:
            return stranger
        if not os.path.isfile(program) or not os.access(program, os.X_OK):
            return f"{program} is no program that user {os.geteuid()} may execute"
        done = subprocess.run(
            [program, HANDOVER_OPTION], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False,
            preexec_fn=die_with_parent,  # this process has one thread
        )  # fmt: skip
    except OSError as error:
        return f"{program}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{program} has not told its versions within {PROBE_S:g} s"
    try:
        return _difference(program, **json.loads(done.stdout))
    except (ValueError, TypeError, AttributeError):
        said = done.stderr.decode(errors="replace").strip()[-_SAID_MAX:]
        status = f" (status {done.returncode}: {said or 'no message'})"
        return f"{program} does not tell its versions: is it another program, or an earlier relayfs?{status}"


def _difference(program: str, version: str, handover: int, formats: Mapping[str, int]) -> str | None:
    ours = versions()
    if handover != ours["handover"]:
        wrong = [f"its hand-over has version {handover}, that of this server {ours['handover']}"]
    else:
        wrong = [
            f"its format of {name} has version {formats.get(name, 'none')}, that of this server {number}"
            for name, number in ours["formats"].items()
            if formats.get(name) != number
        ]
    return f"{program} is of version {version}: {'; '.join(wrong)}: umount, and mount with it" if wrong else None


def execute(program: str, state: Mapping[str, Any], descriptors: Iterable[int]) -> NoReturn:
    """Have this process go on as another program; OSError: it cannot be executed.

    state: what it gets in a memory file
    descriptors: those that it inherits
    """
    memory = os.memfd_create("relayfs-state", os.MFD_CLOEXEC)
    os.write(memory, json.dumps(dict(state)).encode())
    inherited = [memory, *descriptors]
    try:
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        os.execv(program, [program, TAKE_OVER_OPTION, str(memory)])  # noqa: S606
    finally:
        for descriptor in inherited:
            os.set_inheritable(descriptor, False)
        os.close(memory)


def inherited_state(memory: int) -> dict[str, Any]:
    """Return what execute() was given; the descriptors that it names are not inherited further."""
    with open(memory, "rb") as file:
        file.seek(0)
        state: dict[str, Any] = json.load(file)
    for descriptor in state["descriptors"]:
        os.set_inheritable(descriptor, False)
    return state


def print_versions() -> None:
    """Print what refusal() of another version reads; all that a server needs is imported by then."""
    print(json.dumps(versions()))


def take_over(handover: Handover, state: Mapping[str, Any]) -> None:
    """Wait until the supervisor says that the server before has ended, and note what it says of that one.

    SystemExit: it does not want this one any more
    """
    handover.supervisor = socket.socket(fileno=state["connection"])
    handover.supervisor.send(READY + json.dumps({"version": native.VERSION, "program": state["program"]}).encode())
    about = handover.supervisor.recv(MESSAGE_MAX)
    if not about:
        sys.exit(1)
    found = json.loads(about)
    handover.died, handover.generation, handover.replaced = tuple(found["died"]), found["generation"], found["replaced"]
