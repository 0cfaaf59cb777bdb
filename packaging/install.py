"""Install relayfs below a directory, and take it back exactly: ./dev install, ./dev uninstall.

    install.py install PREFIX ENVIRONMENT     ENVIRONMENT: the directory of ./dev, with what it has built
    install.py uninstall PREFIX

PREFIX/lib/relayfs is a Python environment that needs neither the clone nor the other one. All else lies where programs
look for it. PREFIX/lib/relayfs/manifest has a line for each file, link and directory that did not exist before; it is
written before the first of them, so an installation that was interrupted can be taken back, too.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Where ldconfig(8), man(1), pkg-config(1), systemd and the shells look for all users, without being told.
USUAL = Path("/usr/local")
# What does not look there: cron's PATH is /usr/bin:/bin, mount(8) wants its helpers in /sbin, and fish looks below
# /usr/share and /etc only, unless XDG_DATA_DIRS says otherwise.
OUTSIDE = {
    "/etc/fish/completions/relayctl.fish": "share/fish/vendor_completions.d/relayctl.fish",
    "/etc/fish/completions/relayfs.fish": "share/fish/vendor_completions.d/relayfs.fish",
    "/usr/bin/relayfs": "bin/relayfs",
    "/usr/bin/relayctl": "bin/relayctl",
    "/usr/sbin/mount.relayfs": "sbin/mount.relayfs",
}
LINKS = {
    "bin/relayfs": "../lib/relayfs/bin/relayfs",
    "bin/relayctl": "../lib/relayfs/bin/relayctl",
    "sbin/mount.relayfs": "../bin/relayfs",
    "share/bash-completion/completions/mount.relayfs": "relayfs",
    "share/man/man8/mount.relayfs.8": "relayfs.8",
}
FILES = {
    "share/bash-completion/completions/relayctl": "mount/completions/relayctl.bash",
    "share/zsh/site-functions/_relayctl": "mount/completions/relayctl.zsh",
    "share/fish/vendor_completions.d/relayctl.fish": "mount/completions/relayctl.fish",
    "share/bash-completion/completions/relayfs": "mount/completions/relayfs.bash",
    "share/zsh/site-functions/_relayfs": "mount/completions/relayfs.zsh",
    "share/fish/vendor_completions.d/relayfs.fish": "mount/completions/relayfs.fish",
}
UNIT = "lib/systemd/system/relayfs@.service"
UNITS = {
    UNIT: "mount/relayfs@.service",
    "lib/systemd/system/relayfs-forward@.service": "mount/relayfs-forward@.service",
}
PC = "lib/pkgconfig/relayfs.pc"
LIBS = "\nLibs: -L${libdir} -lrelayfs"


class InstallError(Exception):
    """Why it is not done; nothing has changed."""


class Entry(NamedTuple):
    """A line of the manifest: kind is dir, file or link; only links have a target."""

    kind: str
    path: Path
    target: str = ""


def install(prefix: Path, environment: Path) -> None:
    """Install, in place of an older installation if there is one."""
    home = prefix / "lib/relayfs"
    old = read_manifest(home)
    from_build = {
        str(path.relative_to(environment / "c")): path
        for path in sorted((environment / "c").rglob("*"))
        if not path.is_dir() or path.is_symlink()
    }
    planned = [Entry("link", prefix / path, target) for path, target in LINKS.items()]
    planned += [
        Entry("link", prefix / path, os.readlink(path_built))
        for path, path_built in from_build.items()
        if path_built.is_symlink()
    ]
    links = {entry.path for entry in planned}
    names = [*from_build, *FILES, *UNITS]
    planned += [Entry("file", prefix / name) for name in names if prefix / name not in links]
    if is_for_everybody(prefix):
        planned += [Entry("link", Path(path), str(prefix / target)) for path, target in OUTSIDE.items()]
    refuse_strangers(home, old, planned)
    remove(home, old)
    new = [*missing_directories([home / "x", *(entry.path for entry in planned)]), *planned]
    try:
        write_manifest(home, new)
        make_environment(home, environment)
        fill(prefix, from_build, new)
    except BaseException:
        remove(home, new)
        raise
    refresh_cache(prefix)


def uninstall(prefix: Path) -> None:
    """Remove what the manifest lists, and nothing else."""
    home = prefix / "lib/relayfs"
    entries = read_manifest(home)
    if not entries:
        raise InstallError(f"{home}/manifest does not exist: nothing is installed there by ./dev install")
    remove(home, entries)
    refresh_cache(prefix)


def refuse_others(prefix: Path) -> None:
    """Raise InstallError if root is to work where another user can change names: the manifest would be this user's."""
    home = prefix / "lib/relayfs"
    for directory in (home, *home.parents) if os.geteuid() == 0 else ():
        with suppress(FileNotFoundError):
            found = directory.stat()
            is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
            if found.st_uid != 0 or is_open:
                raise InstallError(f"{directory} can be changed by other users: root needs a directory of root's own")


def is_for_everybody(prefix: Path) -> bool:
    """Whether it is the system's own installation, which has links outside of PREFIX."""
    return prefix == USUAL and os.geteuid() == 0


def refresh_cache(prefix: Path) -> None:
    """Let the dynamic loader know of librelayfs, or forget it."""
    if is_for_everybody(prefix):
        subprocess.run(["ldconfig"], check=True)


# --- the manifest ---


def read_manifest(home: Path) -> list[Entry]:
    """Return what is installed; nothing if nothing is."""
    try:
        lines = (home / "manifest").read_text().splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        kind, path, target = line.split("\t")
        entries.append(Entry(kind, Path(path), target))
    return entries


def write_manifest(home: Path, entries: Iterable[Entry]) -> None:
    """Note what will be installed."""
    home.mkdir(parents=True)
    text = "".join(f"{entry.kind}\t{entry.path}\t{entry.target}\n" for entry in entries)
    (home / "manifest").write_text(text)


def refuse_strangers(home: Path, old: list[Entry], planned: list[Entry]) -> None:
    """Raise InstallError if there is something in the way that an older installation has not made."""
    ours = {entry.path for entry in old if not is_replaced(entry)}
    strange = [str(entry.path) for entry in planned if os.path.lexists(entry.path) and entry.path not in ours]
    if not old and os.path.lexists(home):
        strange.append(str(home))
    if strange:
        there = "\n  ".join(sorted(strange))
        raise InstallError(f"these exist, and ./dev install has not made them; remove them first:\n  {there}")


def missing_directories(paths: Iterable[Path]) -> Iterator[Entry]:
    """Yield the directories that have to be made for these files, outer ones first."""
    needed = {above for path in paths for above in path.parents}
    yield from (Entry("dir", path) for path in sorted(needed) if not os.path.lexists(path))


def is_replaced(entry: Entry) -> bool:
    """Whether the link now is another's: a package's, say."""
    return entry.kind == "link" and not (entry.path.is_symlink() and os.readlink(entry.path) == entry.target)


def remove(home: Path, entries: list[Entry]) -> None:
    """Remove the files and links, the environment, and then the directories that are empty."""
    for entry in entries:
        if entry.kind != "dir" and not is_replaced(entry):
            entry.path.unlink(missing_ok=True)
    if entries and home.exists():
        # The manifest goes last, so that a removal that was interrupted can be repeated.
        for path in home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "manifest":
                path.unlink()
        (home / "manifest").unlink(missing_ok=True)
    for entry in reversed(entries):
        if entry.kind == "dir":
            with suppress(OSError):  # others have put something there
                entry.path.rmdir()


# --- making ---


def make_environment(home: Path, environment: Path) -> None:
    """Make a Python environment with relayfs and all that it needs, from the packages that ./dev has collected."""
    run(os.path.realpath(sys.executable), "-m", "venv", "--without-pip", home)
    found = [f"--find-links={environment / name}" for name in ("dist", "wheels")]
    run(
        sys.executable, "-m", "pip", "--python", home / "bin/python", "--disable-pip-version-check", "--quiet",
        "install", "--no-index", "--no-cache-dir", *found, "relayfs[server,serve,top]",
    )  # fmt: skip


def fill(prefix: Path, from_build: dict[str, Path], entries: list[Entry]) -> None:
    """Make the files and links."""
    for entry in entries:
        if entry.kind == "dir":
            entry.path.mkdir(exist_ok=True)
        elif entry.kind == "link":
            entry.path.symlink_to(entry.target)
    for name, path in from_build.items():
        if not path.is_symlink():
            shutil.copy(path, prefix / name)
    for name, source in FILES.items():
        shutil.copyfile(ROOT / source, prefix / name)
    for name in UNITS:
        (prefix / name).write_text(unit(name, prefix / "bin"))
    if not is_for_everybody(prefix):
        add_run_path(prefix / PC)


def add_run_path(pc: Path) -> None:
    """Let programs that link with the library find it when they run: the loader does not look in its directory."""
    text = pc.read_text()
    assert text.count(LIBS) == 1
    # -Xlinker and not -Wl: a comma in the path would end the option.
    pc.write_text(text.replace(LIBS, f"{LIBS} -Xlinker -rpath=${{libdir}}"))


def unit(name: str, directory: Path) -> str:
    """Return the systemd unit NAME of UNITS for programs in a directory; systemd reads a percent sign twice."""

    def program(match: re.Match[str]) -> str:
        path = str(directory / match[1]).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        return f'"{path}"' if set(path) & set(" '\"\\") else path

    return re.sub(r"(?<=[= ])/usr/local/bin/(relayfs|relayctl)(?= )", program, (ROOT / UNITS[name]).read_text())


def run(*command: str | Path) -> None:
    """Run a program, whose messages are seen; InstallError if it fails."""
    if subprocess.run(command, check=False).returncode:
        raise InstallError(f"{' '.join(map(str, command))} has failed")


def main(command: str, prefix: Path, *environment: str) -> None:
    """Do what the command line says."""
    try:
        if any(character in str(prefix) for character in "\n\t"):
            raise InstallError(f"{str(prefix)!r} has a tab or a line break in it; files of it could not be listed")
        refuse_others(prefix)
        if command == "install":
            install(prefix, Path(*environment))
            print(f"relayfs is installed in {prefix}; ./dev uninstall --prefix '{prefix}' takes it back")
            if not is_for_everybody(prefix):
                print(f"Put {prefix}/bin into PATH, and {prefix}/lib/pkgconfig into PKG_CONFIG_PATH.")
                print("Mount with `relayfs DIR`: `mount -t fuse` does not find programs there.")
            print(f"Python programs that import relayfs_fuse run with {prefix}/lib/relayfs/bin/python")
        else:
            uninstall(prefix)
            print(f"relayfs is no longer in {prefix}")
    except (InstallError, PermissionError) as error:
        sys.exit(f"dev: {error}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
