"""Ordinary programs that map files."""

import subprocess
from pathlib import Path

from build import compile_c


class Mapper:
    """A C program that has mapped a file."""

    def __init__(self, file: Path, access: str, length: int) -> None:
        program = compile_c([Path(__file__).parent / "fuse/mapper.c"])
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
