"""The credentials of open(2) decide what a write may do: a descriptor that is passed on gives nothing to who writes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import forking
import pytest
from build import compile_c
from mounts import DEADLINE_S, Mount, User

HERE = Path(__file__).parent
GROUP = 60_002
# Executes a program with a name of its own choice, with a file as its standard error.
AS_STANDARD_ERROR = """
import os, subprocess, sys
program, name, file = sys.argv[1:]
descriptor = os.open(file, os.O_RDWR)
sys.exit(subprocess.run([name], executable=program, stderr=descriptor).returncode)
"""
# Opens a file as one user with one list of groups, writes to it as another with another; says what came of it.
WRITE_AFTER = """
import errno, os, sys

def become(uid, groups):
    os.seteuid(0)
    os.setgroups(groups)
    os.setegid(uid)
    os.seteuid(uid)

file, text, opener, writer = sys.argv[1], sys.argv[2], eval(sys.argv[3]), eval(sys.argv[4])
become(*opener)
descriptor = os.open(file, os.O_WRONLY)
become(*writer)
try:
    os.write(descriptor, text.encode())
    print("done")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.fixture
def open_mount(make_mount: Callable[..., Mount], unprivileged: User) -> Mount:
    del unprivileged  # root alone can go on
    return make_mount("control_mode=0666")


@pytest.fixture
def setuid_program(scratch_store: Path) -> Iterator[Path]:
    """A program of root's that everybody may execute as root."""
    directory = scratch_store.parent / "bin"
    directory.mkdir(mode=0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M,mode=0755,suid,exec", "tmpfs", directory], check=True)
    try:
        program = Path(shutil.copy(compile_c([HERE / "shouting.c"]), directory))
        program.chmod(0o4755)
        yield program
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def shout(user: User, program: Path, name: str, file: Path) -> int:
    return user.python(AS_STANDARD_ERROR, program, name, file).returncode


def write_after(file: Path, text: str, opener: tuple[int, list[int]], writer: tuple[int, list[int]]) -> str:
    """Open as the user and with the groups of `opener`, write as `writer`; return "done" or the errno's name."""
    command = [sys.executable, "-c", WRITE_AFTER, str(file), text, repr(opener), repr(writer)]
    return forking.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.strip()


def test_a_setuid_programs_messages_are_no_commands_of_root(
    open_mount: Mount, unprivileged: User, setuid_program: Path
) -> None:
    open_mount.create("victim", "buffers=single")
    assert shout(unprivileged, setuid_program, "remove victim\n", open_mount.control) != 0
    assert "who owns victim, or root may do this" in open_mount.error_log
    assert (open_mount.path / "victim").exists()
    shout(unprivileged, setuid_program, "create made buffers=single uid=0\n", open_mount.control)
    assert not (open_mount.path / "made").exists()
    shout(unprivileged, setuid_program, "create made buffers=single\n#", open_mount.control)
    assert (open_mount.path / "made").stat().st_uid == unprivileged.uid


def test_nor_are_they_changes_of_counters(open_mount: Mount, unprivileged: User, setuid_program: Path) -> None:
    names = open_mount.path / "counters.names"
    names.write_text("add roots/own\n")
    number = next(line.split()[0] for line in names.read_text().splitlines() if " roots/own " in line)
    shout(unprivileged, setuid_program, f"del {number}\n", names)
    assert " roots/own " in names.read_text()
    shout(unprivileged, setuid_program, "add roots/more help=", names)
    shout(unprivileged, setuid_program, "add theirs/own help=", names)
    assert " roots/more " not in names.read_text()
    assert f" theirs/own kind=counter uid={unprivileged.uid} " in names.read_text()


def test_nor_do_they_join_a_trace_as_root(open_mount: Mount, unprivileged: User, setuid_program: Path) -> None:
    open_mount.command("trace create t\ntrace start t\n")
    assert shout(unprivileged, setuid_program, "t program", open_mount.path / ".traces/join") == 0
    (directory,) = (path for path in (open_mount.store / "t").iterdir() if path.name.startswith("program"))
    assert directory.stat().st_uid in (0, unprivileged.uid)  # the directory may be the server's, its files are not
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != ".processes"]
    assert {path.stat().st_uid for path in files} <= {unprivileged.uid}


def test_a_descriptor_that_root_passes_on_commands_as_root(open_mount: Mount, unprivileged: User) -> None:
    open_mount.create("log", "buffers=single")
    assert write_after(open_mount.control, "remove log\n", (0, []), (unprivileged.uid, [])) == "done"
    assert not (open_mount.path / "log").exists()


def test_groups_are_those_of_the_open(open_mount: Mount, unprivileged: User) -> None:
    member, outsider = (unprivileged.uid, [GROUP]), (unprivileged.uid, [])
    assert write_after(open_mount.control, f"create a buffers=single gid={GROUP}\n", member, outsider) == "done"
    assert (open_mount.path / "a").stat().st_gid == GROUP
    assert write_after(open_mount.control, f"create b buffers=single gid={GROUP}\n", outsider, member) == "EPERM"
    assert "you are not in this group" in open_mount.error_log


def test_the_error_log_is_cleared_by_who_may_open_it_for_writing(open_mount: Mount, unprivileged: User) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        open_mount.command("nonsense\n")
    for command in ("truncate -s 0", "tee"):
        assert unprivileged.run("sh", "-c", f"{command} {open_mount.path}/error_log </dev/null").returncode != 0
    assert "nonsense" in open_mount.error_log
    os.truncate(open_mount.path / "error_log", 0)
    assert open_mount.error_log == ""
