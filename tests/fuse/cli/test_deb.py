"""Debian's packages: RELAYFS_STRESS=long builds them, and installs, uses and purges them in a Debian of its own.

That Debian's systemd then runs the unit. All takes minutes and 1 GB. In short only the lists are
compared with what the other ways of installing install.
"""

import fnmatch
import os
import subprocess
from pathlib import Path

import pytest
from booted import CHECK, CHECKED, boot
from build import ROOT, native_prefix

from relayfs_fuse import native

PACKAGES = ("librelayfs0", "librelayfs-dev", "python3-relayfs", "relayfs")
# What lintian finds as long as the project has no address.
KNOWN = ("bogus-mail-host",)
MIRROR = "http://deb.debian.org/debian"

# $1 is the other Debian, $2 has the packages, $3 is the clone. Mounts are in a namespace of their own.
INSTALL_AND_PURGE = """
set -e
[ -e "$1/etc/debian_version" ] || debootstrap --variant=minbase bookworm "$1" "$4" >&2
mount --bind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
mkdir -p "$1/packages" "$1/clone" "$1/mnt/relay"
mount --bind "$2" "$1/packages"
mount --bind "$3" "$1/clone"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt() { chroot "$1" apt-get -qq -y --no-install-recommends "$2" $3 >&2; }
listing() { chroot "$1" find / -xdev -not -path '/var/*' -not -path '/etc/ld.so.cache' -not -name __pycache__ \\
    -not -name '*.pyc' | sort; }
apt "$1" update
# All that the packages need, so that what is left afterwards is theirs alone.
apt "$1" install 'gcc libc6-dev pkg-config fuse3 man-db python3 python3-click python3-zstandard python3-cffi-backend'
listing "$1" >"$1/../before"
apt "$1" install "$(cd "$1" && echo ./packages/lib*.deb ./packages/python3*.deb ./packages/relayfs_*.deb)"
chroot "$1" sh -ec '
relayctl -V
/sbin/mount.relayfs -V
cd /clone
mount -t relayfs relayfs /mnt/relay
umount /mnt/relay
mount -t fuse relayfs /mnt/relay
echo trace create web >/mnt/relay/control
echo trace start web >/mnt/relay/control
python3 examples/traced.py 3 >/tmp/shown
relayctl view web >/tmp/events
grep -c collatz:end /tmp/events
relayctl record web -o /tmp/web --duration 0.1 --compress
echo trace remove web >/mnt/relay/control
cc -o /tmp/producer examples/producer.c $(pkg-config --cflags --libs relayfs)
cc -static -o /tmp/static examples/producer.c $(pkg-config --static --cflags --libs relayfs)
echo create app/lines >/mnt/relay/control
/tmp/producer /mnt/relay/app/lines </etc/hostname
/tmp/static /mnt/relay/app/lines </etc/hostname
cat /mnt/relay/app/lines* | uniq | cmp - /etc/hostname
echo remove app/lines >/mnt/relay/control
man -w 8 mount.relayfs
umount /mnt/relay
rm -r /tmp/*
' || { chroot "$1" umount -l /mnt/relay; exit 1; }
apt "$1" purge 'librelayfs0 librelayfs-dev python3-relayfs relayfs'
listing "$1" >"$1/../after"
"""


def test_each_file_that_is_installed_is_in_one_package():
    """What dh_install does not find, or nobody wants, fails the build, too; this is sooner known."""
    lists = {name: (ROOT / f"debian/{name}.install").read_text().split() for name in PACKAGES}
    top = native_prefix().path
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_dir() or not name.startswith(("lib/librelayfs.", "lib/pkgconfig", "include", "share")):
            continue
        there = (
            f"usr/{name}".replace("/lib/", "/lib/x86_64-linux-gnu/", 1) if name.startswith("lib/") else f"usr/{name}"
        )
        takers = [
            package
            for package, patterns in lists.items()
            if any(fnmatch.fnmatch(there, one) or there.startswith(f"{one}/") for one in patterns)
        ]
        assert len(takers) == 1, f"{there} is in {takers}"


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if os.environ.get("RELAYFS_STRESS") == "long":

    @pytest.fixture(scope="module")
    def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A directory with the packages, beside which the scripts make a Debian."""
        place = tmp_path_factory.mktemp("debian")
        run(ROOT / "dev", "deb", place / "packages")
        for path in (place / "packages").glob("*-dbgsym_*"):
            path.unlink()
        run("apt-get", "-qq", "-y", "install", "--no-install-recommends", "debootstrap", "lintian")
        return place / "packages"

    @pytest.mark.stress
    def test_lintian_finds_nothing(packages: Path) -> None:
        found = subprocess.run(["lintian", *packages.iterdir()], capture_output=True, text=True, check=False).stdout
        assert [line for line in found.splitlines() if not any(known in line for known in KNOWN)] == []

    @pytest.mark.stress
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can install packages")
    def test_the_packages_install_run_and_purge(packages: Path) -> None:
        assert {path.name.partition("_")[0] for path in packages.iterdir()} == set(PACKAGES)
        places = [packages.with_name("root"), packages, ROOT]
        shown = run("unshare", "--mount", "sh", "-c", INSTALL_AND_PURGE, "sh", *places, MIRROR)
        assert f"mount.relayfs {native.VERSION}\n3\n" in shown
        assert packages.with_name("before").read_text() == packages.with_name("after").read_text()

    @pytest.mark.stress
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can install packages")
    def test_the_unit_mounts_for_all_and_a_killed_server_is_started_again(packages: Path) -> None:
        """Runs after the one above, in the same Debian."""
        root = packages.with_name("root")
        script = """
            mount --bind "$2" "$1/packages" && mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" &&
            chroot "$1" sh -c 'apt-get -qqy --no-install-recommends install systemd systemd-sysv /packages/*.deb' >&2
        """
        run("unshare", "--mount", "sh", "-c", script, "sh", root, packages)
        assert boot(root, packages.with_name("shared"), CHECK) == CHECKED
