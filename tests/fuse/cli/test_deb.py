"""Debian's packages: RELAYFS_STRESS=long builds them, and installs, uses and purges them in a Debian of its own.

That takes minutes and 600 MB. In short only the lists are compared with what the other ways of installing install.
"""

import fnmatch
import os
import subprocess
from pathlib import Path

import pytest
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

    @pytest.mark.stress
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can install packages")
    def test_the_packages_install_run_and_purge(tmp_path):
        run(ROOT / "dev", "deb", tmp_path / "packages")
        run("apt-get", "-qq", "-y", "install", "--no-install-recommends", "debootstrap", "lintian")
        packages = [path for path in (tmp_path / "packages").iterdir() if "dbgsym" not in path.name]
        assert {path.name.partition("_")[0] for path in packages} == set(PACKAGES)
        found = subprocess.run(["lintian", *packages], capture_output=True, text=True, check=False).stdout.splitlines()
        assert [line for line in found if not any(known in line for known in KNOWN)] == []
        places = [tmp_path / "debian", tmp_path / "packages", ROOT]
        shown = run("unshare", "--mount", "sh", "-c", INSTALL_AND_PURGE, "sh", *places, MIRROR)
        assert f"mount.relayfs {native.VERSION}\n3\n" in shown
        assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
