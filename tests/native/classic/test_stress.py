"""Channels of 2003 with callbacks, headers and footers, under stress: each record is read once or counted as lost.

RELAYFS_STRESS=long makes it three million records for each combination, and kills after each instruction.
"""

import functools
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from build import MEMORY, PLAIN, THREADS, builds, compile_c, run_command, run_environment
from c_tests import names_in
from c_tests import run as run_c_test
from stress import DEADLINE, combined, is_long

if TYPE_CHECKING:
    from mounts import Mount

pytestmark = pytest.mark.stress

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / name for name in ("stress_classic.c", "stress_classic_reader.c", "../support/stress_account.c")]
SCHEMES = ["lockless", "locking", "any"]
USAGES = ["smp", "global"]
DELIVERIES = ["bulk", "packet"]
TIMESTAMPS = ["tsc", "clock"]
MODES = ["suspend", "overwrite", "null"]
COMBINATIONS = [
    (*buffers, *times, mode)
    for buffers, times, mode in combined(
        list(itertools.product(SCHEMES, USAGES)), list(itertools.product(DELIVERIES, TIMESTAMPS)), MODES
    )
]
# Of each of six threads.
RECORDS = 500_000 if is_long() else 3000
MOUNTED_RECORDS = 50_000 if is_long() else 1000
SANITIZED_RECORDS = 20_000 if is_long() else 1500


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="relayfs-stress-", dir="/dev/shm") as path:
        (Path(path) / "mnt").mkdir()
        yield Path(path)


@functools.cache
def program(sanitize: str) -> Path:
    # Optimized, as it runs for long.
    return compile_c(SOURCES, None, sanitize, "-O2")


def run(environment: dict[str, str], ledger: Path, *arguments: object, sanitize: str = PLAIN) -> dict[str, int]:
    """Run it; return its account, which is right, and in which it met what it is there for."""
    command = run_command(program(sanitize), ledger, *arguments, sanitize=sanitize)
    environment = {**run_environment(sanitize), **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr[-8000:] + done.stdout
    account: dict[str, int] = json.loads(done.stdout)
    assert account["read"] > 0
    assert account["headers"] > 0
    assert account["full" if "suspend" in arguments else "overwritten"] > 0
    return account


def reader_of(usage: str, mode: str) -> str:
    """One reader for each usage, which makes no difference to writers."""
    return "mapped" if (usage, mode) == ("smp", "suspend") else "read"


def in_store(scratch: Path) -> dict[str, str]:
    return {"RELAYFS": str(scratch / "mnt"), "RELAYFS_STORE": str(scratch / "store")}


@pytest.mark.parametrize("build", builds(PLAIN))
@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_in_the_store(scratch: Path, combination: tuple[str, str, str, str, str], build: str) -> None:
    _, usage, _, _, mode = combination
    run(in_store(scratch), scratch / "ledger", *combination, reader_of(usage, mode), RECORDS, sanitize=build)


# Clocks and usages are all the same to what sanitizers look for.
@pytest.mark.parametrize("sanitize", builds(MEMORY, THREADS))
@pytest.mark.parametrize(("mode", "reader"), [("suspend", "mapped"), ("suspend", "read"), ("overwrite", "read")])
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("scheme", ["lockless", "locking"])
def test_in_the_store_sanitized(
    scratch: Path, scheme: str, delivery: str, mode: str, reader: str, sanitize: str
) -> None:
    combination = (scheme, "global", delivery, "tsc", mode, reader)
    run(in_store(scratch), scratch / "ledger", *combination, SANITIZED_RECORDS, sanitize=sanitize)


@pytest.mark.parametrize(
    "combination",
    [
        ("bulk", "tsc", "suspend"),
        ("packet", "clock", "suspend"),
        ("bulk", "clock", "overwrite"),
        ("packet", "tsc", "null"),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("scheme", ["lockless", "locking"])
@pytest.mark.one_mount
def test_through_a_mount(mount: "Mount", scratch: Path, scheme: str, combination: tuple[str, str, str]) -> None:
    # The program looks for the file as soon as it has made the channel, and maps it through the mount.
    environment = {"RELAYFS": str(mount.path), "RELAYFS_STORE": str(mount.store)}
    file = mount.path / "stress/classic"
    run(environment, scratch / "ledger", scheme, "global", *combination, "read", MOUNTED_RECORDS, file)
    assert not file.exists()
    assert os.listdir(mount.path / ".channels") == []


# Otherwise with one death for each change of the memory.
if is_long():
    CHANGES = HERE / "test_changes.c"

    @pytest.mark.parametrize("scheme", ["lockless", "locking"])
    @pytest.mark.parametrize("name", [name for name in names_in(CHANGES) if name.endswith("_after_each_change")])
    def test_killed_after_each_instruction(name: str, scheme: str) -> None:
        run_c_test(CHANGES, name, scheme)
