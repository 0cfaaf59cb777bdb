"""What a store holds has the permissions of enum relay_perm, and the owner said there, whatever the umask is."""

import os
import re
import stat
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from making import making
from mounts import Mount, User, wait_until
from traced import program, start_trace, traced

from relayfs_fuse import native
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.tracefiles.recorder_lock import RecorderLock

ROOM = "subbuf_size=4K n_subbufs=4"
# One process of a trace has room; the next makes it give up one that has ended.
ONE = native.buf_file_bytes(4096, 4) * native.n_possible_cpus()
ROOT, USER = (0, 0), (65534, 65534)

# Paths in the store that fill() makes, their permissions and owner; names that are not in the list are in the test.
HELD = {
    r"\.|\.counters": ("STORE", ROOT),
    r"\.counters/(counters|names)": ("COUNTERS", ROOT),
    r"\.counters/0-0-0666": ("GROUP", ROOT),
    r"dir": ("MKDIR", ROOT),
    r"\.root": ("PLAIN", ROOT),
    r"\.lock|\.supervisor|\.counters/lock|\.traces-lost": ("OWN", ROOT),
    r"(perprocess|peruser|shared)/[^/.]+/\.processes|perprocess/\.(recorder|given-up)": ("OWN", ROOT),
    r"\.traces-lost-65534": ("GIVEN", (65534, 0)),
    r"\.crashed": ("CARDS", ROOT),
    r"\.crashed/[^/.]+(/ctf)?": ("CARDS", (65534, 0)),
    r"\.crashed/[^/.]+/(ctf/)?\w+": ("CARD", (65534, 0)),
    r"\.snapshots(/\d+(/one(/[^/.]+)?)?)?": ("CARDS", ROOT),
    r"\.snapshots/\d+/one/[^/.]+/\.?\w+": ("CARD", ROOT),
    r"\.traces": ("TRACES", ROOT),
    r"dir/implicit": ("PLAIN", ROOT),
    r"dir/implicit/log": ("INNER", ROOT),
    r"dir/implicit/log/mem\d+": ("BUFFER", ROOT),
    r"\.early(/later)?|perprocess|peruser|shared": ("INNER", ROOT),
    r"(\.early/later|perprocess|peruser|shared)/[^/.]+(/cpu)?": ("INNER", ROOT),
    r"\.early/later/[^/.]+/(\.events|cpu/mem\d+)": ("PERPROCESS", ROOT),
    r"(\.early/later|perprocess)/[^/.]+/\.objects": ("OWN", ROOT),
    r"perprocess/[^/.]+/(\.events|cpu/mem\d+)": ("PERPROCESS", USER),
    r"peruser/[^/.]+/(\.events|cpu/mem\d+)": ("PERUSER", USER),
    r"shared/[^/.]+/(\.events|cpu/mem\d+)": ("SHARED", ROOT),
}


def fill(mount: Mount, stack: ExitStack, user: User) -> None:
    """Have everything made that a store can hold."""
    mount.expect("memory= is used up")
    (mount.path / "dir").mkdir(0o777)
    mount.create("dir/implicit/log")
    (mount.path / "counters.names").write_text("add all/a mode=0222\n")
    for buffers in ("perprocess", "peruser", "shared"):
        start_trace(mount, buffers, f"{ROOM} buffers={buffers} memory={ONE}")
    for _ in range(2):
        last = stack.enter_context(traced(mount, user=user.uid))
        last.ask("emit 10")
        last.kill()
    stack.enter_context(traced(mount, user=user.uid)).ask("emit 10")
    (mount.path / ".traces/perprocess/snapshots/one").mkdir()
    stack.enter_context(closing(RecorderLock(str(mount.store / "perprocess"))))
    early = {"RELAYFS": str(mount.path), "RELAYFS_STORE": str(mount.store), "RELAYFS_TRACE_EARLY": "later"}
    stack.enter_context(making(early, None, [program("traced")])).ask("emit 10")


def kinds_in(store: Path) -> dict[str, list[tuple[str, os.stat_result]]]:
    """Look at all that is there, by the pattern in HELD that it matches; "?": by none."""
    found: dict[str, list[tuple[str, os.stat_result]]] = {}
    for directory, _, files in os.walk(store):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            with suppress(FileNotFoundError):
                name, status = os.path.relpath(path, store), os.lstat(path)
                kinds = [pattern for pattern in HELD if re.fullmatch(pattern, name)]
                found.setdefault(kinds[0] if kinds else "?", []).append((name, status))
    return found


@pytest.mark.parametrize(("options", "umask"), [([], 0o077), (["trusted"], 0)], ids=["closed", "trusted"])
def test_the_list_says_the_permissions_of_all_a_store_holds(
    make_mount: Callable[..., Mount], unprivileged: User, options: list[str], umask: int
) -> None:
    program("traced")  # is compiled before the umask keeps other users from it
    before = os.umask(umask)
    try:
        with ExitStack() as stack:
            mount = make_mount(*options, is_forked=False)
            fill(mount, stack, unprivileged)
            # The server may be replacing a .processes, or removing a directory.
            wait_until(lambda: kinds_in(mount.store).keys() == HELD.keys(), lambda: str(kinds_in(mount.store)))
            found = kinds_in(mount.store)
    finally:
        os.umask(before)
    trusted = {"STORE": PERMS["STORE_TRUSTED"]} if options else {}
    made = {
        "GIVEN": PERMS["OWN"], "GROUP": 0o666, "MKDIR": PERMS["PLAIN_LEAST"] | PERMS["PLAIN"] & ~umask,
        "OWN": PERMS["OWN"] & ~umask,
    }  # fmt: skip
    for kind, (perm, owner) in HELD.items():
        for name, status in found[kind]:
            seen = (name, oct(stat.S_IMODE(status.st_mode) & 0o777), (status.st_uid, status.st_gid))
            assert seen == (name, oct({**PERMS, **trusted, **made}[perm]), owner)
