"""A system of its own: systemd is process 1 of new namespaces, in which / is an overlay of a directory.

    boot(Path("/"), shared, "systemctl start x.service")      the machine's own programs; what they change is lost

It starts what is needed for one service, which runs the script and ends the system. /etc/systemd/system has what
`shared`, a directory of the test, has, and mounts are shared as systemd has them on a machine.
"""

import os
import re
import subprocess
from pathlib import Path

UNITS = {
    "check.service": "[Unit]\nAfter=basic.target\n[Service]\nType=oneshot\nExecStart=/bin/sh /shared/check.sh\n",
    "check.target": "[Unit]\nRequires=check.service systemd-journald.service\n",
}
# $1 is the directory, $2 is shared, $3 has the programs that are tested.
BOOT = """
set -e
mount --make-rprivate /
mkdir -p "$2/place"
mount -t tmpfs tmpfs "$2/place"
mkdir "$2/place/upper" "$2/place/work" "$2/place/root"
root=$2/place/root
(cd "$2/place" && mount -t overlay -o "lowerdir=$1,upperdir=upper,workdir=work" overlay root)
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty fuse; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir -p "$root/dev/shm" "$root/old" "$root/shared" "$root/$3"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount --bind "$2" "$root/shared"
mount --bind "$3" "$root/$3"
rm -rf "$root/etc/systemd/system" "$root/lib/systemd/system/sysinit.target.wants"
mkdir "$root/etc/systemd/system"
cp "$2"/*.service "$2"/*.target "$root/etc/systemd/system"
cd "$root"
pivot_root . old
umount -l old
mount --make-rshared /
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    /lib/systemd/systemd --unit=check.target systemd.unified_cgroup_hierarchy=1
"""
# What such a system says of relayfs@.service: it mounts for all, is confined in a mount namespace of its own, is
# killed, is started again, and stops.
CHECK = """
unit=relayfs@mnt-relay.service
systemctl start $unit && grep -c ' /mnt/relay .* fuse.relayfs ' /proc/self/mountinfo
server=$(systemctl show -p MainPID --value $unit)
[ "$(readlink /proc/$server/ns/mnt)" = "$(readlink /proc/self/ns/mnt)" ] || echo apart
systemd-analyze security --threshold=29 $unit >/dev/null && echo confined
echo create a/log buffers=single uid=65534 >/mnt/relay/control
setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'echo unread >/mnt/relay/a/log'
kill -9 "$server"
until [ "$(systemctl show -p NRestarts --value $unit)" = 1 ] && systemctl -q is-active $unit; do
	systemctl -q is-failed $unit && break
	sleep 0.1
done
cat /mnt/relay/a/log
systemctl stop $unit && systemctl show -p Result -p NFileDescriptorStore --value $unit
grep -c ' /mnt/relay ' /proc/self/mountinfo
[ $? = 1 ] || journalctl -u $unit
"""
CHECKED = "1\napart\nconfined\nunread\n0\nsuccess\n0\n"
SCRIPT = "exec >/shared/result 2>&1\n{}\nsystemctl --no-block exit\n"
BOOT_S = 600


def cgroups() -> Path | None:
    """Return where the unified hierarchy of control groups is mounted, which systemd needs; None: nowhere."""
    found = re.search(r"^\S+ (\S+) cgroup2 ", Path("/proc/self/mounts").read_text(), re.MULTILINE)
    return Path(found[1]) if found else None


def boot(root: Path, shared: Path, script: str) -> str:
    """Boot, run the script, and return what it prints."""
    shared.mkdir(exist_ok=True)
    (shared / "check.sh").write_text(SCRIPT.format(script))
    for name, text in UNITS.items():
        (shared / name).write_text(text)
    hierarchy = cgroups()
    assert hierarchy
    group = hierarchy / f"relayfs-test-{os.getpid()}"
    group.mkdir()
    enter = (
        f"echo $$ >'{group}/cgroup.procs' && exec timeout -s KILL {BOOT_S} unshare --mount --uts --ipc --net --cgroup"
    )
    command = f'{enter} --pid --fork --kill-child sh -c "$0" sh "$@"'
    try:
        done = subprocess.run(
            ["sh", "-c", command, BOOT, root, shared, os.environ["RELAYFS_ENV"]],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for path in sorted(group.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        group.rmdir()
    return (shared / "result").read_text()
