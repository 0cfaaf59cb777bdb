"""Another version of relayfs, and having it take over a mount.

program = other_version(tmp_path)()
assert upgrade(mount.path, program).returncode == 0
assert served_by(mount.path) == OTHER
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from forking import RELAYCTL, run
from mounts import DEADLINE_S

import relayfs_fuse
from relayfs_fuse.cli.version import SERVER_XATTR

OTHER = "0.0.1"
Build = Callable[..., Path]


def other_version(directory: Path) -> Build:
    """Give a function that makes the program relayfs of version OTHER: build("statements that it begins with")."""
    package = directory / "relayfs_fuse"
    shutil.copytree(Path(relayfs_fuse.__file__).parent, package)
    constants = package / "native/constants.py"
    text, n = re.subn(r"(?m)^VERSION: str = .*", f'VERSION: str = "{OTHER}"', constants.read_text())
    assert n == 1
    constants.write_text(text)
    made: list[Path] = []

    def make(statements: str = "pass") -> Path:
        program = directory / f"relayfs{len(made)}"
        made.append(program)
        program.write_text(
            f"#!{sys.executable}\nimport os, sys, time\nsys.path.insert(0, {str(directory)!r})\n{statements}\n"
            "from relayfs_fuse.cli.mount import main\nmain()\n"
        )
        program.chmod(0o755)
        return program

    return make


def upgrade(mount: Path, program: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Have a program take over a mount."""
    command = [RELAYCTL, "upgrade", mount, "--with", program, *more]
    return run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def served_by(mount: Path) -> str:
    """Return the version of a mount's server."""
    return os.getxattr(mount, SERVER_XATTR).decode().split()[0]
