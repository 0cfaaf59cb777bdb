"""Write what debian/rules installs and does not compile: debian.py TREE VERSION.

TREE        the directory that stands for /, such as debian/tmp
VERSION     of the packages
"""

import sys
import tomllib
from pathlib import Path

import install

# /usr/lib/relayfs has those libraries of the server that Debian's own packages have in older versions only. -I: what
# users have installed for themselves does not stand in for them.
PROGRAM = """#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/usr/lib/relayfs")
from {module} import main

main()
"""


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file, and make the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def main(tree: Path, version: str) -> None:
    """Write everything."""
    usr = tree / "usr"
    project = tomllib.loads((install.ROOT / "pyproject.toml").read_text())["project"]
    for name, entry in project["scripts"].items():
        write(usr / "bin" / name, PROGRAM.format(module=entry.partition(":")[0]), 0o755)
    for name, source in install.FILES.items():
        write(usr / debian_name(name), (install.ROOT / source).read_text())
    for name, target in install.LINKS.items():
        if not name.startswith("bin/"):
            (usr / name).parent.mkdir(parents=True, exist_ok=True)
            (usr / name).symlink_to(target)
    for name in install.UNITS:
        write(tree / name, install.unit(name, Path("/usr/bin")))
    metadata = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    where = usr / f"lib/python3/dist-packages/relayfs-{version}.dist-info"
    write(where / "METADATA", "\n".join(metadata) + "\n")
    write(where / "INSTALLER", "debian\n")


def debian_name(name: str) -> str:
    """Return where Debian's packages have what an administrator has at `name` below /usr/local."""
    return name.replace("zsh/site-functions", "zsh/vendor-completions")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
