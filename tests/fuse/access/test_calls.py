"""Three users make random system calls on one mount at once: nothing crashes, nothing hangs, and nothing says EIO."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forking
import pytest
from build import ROOT
from mounts import NOBODY, Mount
from stress import is_long

TEXT = (ROOT / "tests/support/call_machine.py").read_text()
USERS = (0, NOBODY, 60_002)
SECONDS = 600.0 if is_long() else 2.0
# Beyond its time a machine needs what its last calls take; a call that sleeps is interrupted at once.
HANGS_S = 300.0
SEED = int(os.environ.get("RELAYFS_CALLS_SEED", random.SystemRandom().randrange(1 << 32)))


def start(mount: Mount, user: int, states: Path) -> subprocess.Popen[str]:
    state = states / f"state{user}"
    state.touch()
    state.chmod(0o666)
    return forking.start(
        [sys.executable, "-c", TEXT, mount.path, f"{SEED}:{user}", str(SECONDS), state],
        user=user, group=user, extra_groups=[], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip


def ended(process: subprocess.Popen[str], state: Path, deadline: float) -> str:
    """Wait for a machine; return what it says. A process that hangs in the kernel cannot be waited for."""
    try:
        says, errors = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return f"hangs at call {state.read_text().strip()}"
    if process.returncode < 0:
        return f"died of signal {-process.returncode} at call {state.read_text().strip()}"
    return says.strip() + (f"\n{errors}" if process.returncode else "")


@pytest.mark.stress
def test_no_call_of_three_users_crashes_hangs_or_says_eio(
    make_mount: Callable[..., Mount], unprivileged: object
) -> None:
    mount = make_mount("control_mode=0666,size=64M,user_size=16M,user_files=64,counters=256")
    mount.expect("reduced to")
    mount.path.parent.chmod(0o755)
    mount.create("one", "buffers=single subbuf_size=4K n_subbufs=4 perm=0666")
    mount.create("wait", "buffers=single read=wait perm=0666")
    mount.create("ring", "type=ring size=64K perm=0666")
    mount.command("trace create t subbuf_size=4K n_subbufs=4\n")
    mount.command("trace start t\n")
    print(f"RELAYFS_CALLS_SEED={SEED}")
    states = mount.path.parent
    machines = {user: start(mount, user, states) for user in USERS}
    deadline = time.monotonic() + SECONDS + HANGS_S
    said = {user: ended(process, states / f"state{user}", deadline) for user, process in machines.items()}
    for user, process in machines.items():
        assert process.returncode == 0, f"RELAYFS_CALLS_SEED={SEED}: user {user}: {said[user]}"
        print(f"user {user}: {said[user]}")
    assert mount.process is not None
    assert mount.process.poll() is None
    assert "create " in mount.channels()
    mount.create("after", "buffers=single subbuf_size=4K n_subbufs=4")
    (mount.path / "after").write_bytes(b"works")
    assert (mount.path / "after").read_bytes() == b"works"
