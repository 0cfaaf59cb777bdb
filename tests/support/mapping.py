"""Ordinary programs that map files; and mounts whose files cannot be mapped."""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from build import compile_c
from mounts import Mount, serving, tmpfs_directory

from relayfs_fuse import native

# relayfs as on a kernel or in a container where no file can be mapped through: without the capability by the time
# that the kernel asks what the server can do.
WITHOUT_PASSTHROUGH = f"""#!{sys.executable}
import ctypes, sys
from relayfs_fuse.cli import mount
mount.import_server()  # before pyfuse3
import pyfuse3

def set_sys_admin(on):
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    data[0] = data[0] | 1 << 21 if on else data[0] & ~(1 << 21)
    assert libc.capset(header, data) == 0

init, close = pyfuse3.init, pyfuse3.close
pyfuse3.init = lambda *arguments: (init(*arguments), set_sys_admin(False))
pyfuse3.close = lambda **arguments: (set_sys_admin(True), close(**arguments))
sys.exit(mount.main())
"""


def why_unprotected(directory: Path) -> str:
    """Say why files in a directory cannot be made immutable, as a server does it; "": they can."""
    with tempfile.NamedTemporaryFile(dir=directory, mode="w+b") as probe:
        # Nothing is done to a file that nobody else may write to.
        os.chmod(probe.fileno(), 0o666)
        try:
            native.file_protect(probe.fileno())
            native.file_unprotect(probe.fileno())
        except OSError as error:
            return str(error.strerror)
    return ""


# Runs a program that may not make files immutable, nor open those that are.
WITHOUT_IMMUTABLE = ["setpriv", "--bounding-set", "-linux_immutable"]


def unprotecting(program: Path, directory: Path) -> Path:
    """Make a script in a directory that runs a server which may not make files immutable."""
    script = directory / "relayfs-without-immutable"
    script.write_text(f'#!/bin/sh\nexec {" ".join(WITHOUT_IMMUTABLE)} {program} "$@"\n')
    script.chmod(0o755)
    return script


class Mapper:
    """A C program that has mapped a file."""

    def __init__(self, file: Path, access: str, length: int) -> None:
        program = compile_c([Path(__file__).parent / "programs/mapper.c"])
        self.process = subprocess.Popen(
            [program, file, access, str(length)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.answer = self._out.readline().decode().strip()

    def ask(self, command: str) -> str:
        self._in.write(command.encode() + b"\n")
        return self._out.readline().decode().strip()

    def show(self, offset: int, length: int) -> bytes:
        self._in.write(b"show %d %d\n" % (offset, length))
        got = b""
        while len(got) <= length and (piece := self._out.read(length + 1 - len(got))):
            got += piece
        return got[:-1]

    def close(self) -> None:
        self.process.communicate()


def start_unmapped(make: Callable[..., Mount], directory: Path, *options: str) -> Mount:
    """Start a server of root, for all users, whose files cannot be mapped; its program is put into a directory."""
    if os.geteuid() != 0:
        pytest.skip("only root's mounts have it to begin with")
    wrapper = directory / "relayfs"
    wrapper.write_text(WITHOUT_PASSTHROUGH)
    wrapper.chmod(0o755)
    mount: Mount = make(*options, start=False)
    mount.program = wrapper
    mount.start()
    assert "maps no files" in mount.log.read_text()
    return mount


@pytest.fixture
def make_unmapped(make_mount: Callable[..., Mount], tmp_path: Path) -> Callable[..., Mount]:
    """Give a function that does so: make_unmapped("control_mode=0666")."""
    return functools.partial(start_unmapped, make_mount, tmp_path)


@pytest.fixture(scope="module")
def shared_unmapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    with tmpfs_directory() as path, serving(path / "store") as make:
        yield start_unmapped(make, tmp_path_factory.mktemp("unmapped"))


@pytest.fixture
def unmapped(shared_unmapped: Mount) -> Iterator[Mount]:
    """One such mount for all tests of a file; their channels are removed after each."""
    yield shared_unmapped
    shared_unmapped.clear()
