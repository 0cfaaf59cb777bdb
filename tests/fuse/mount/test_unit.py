"""The unit relayfs@.service, run by systemd, in a system of its own (support/booted.py)."""

import os
from pathlib import Path

import pytest
from booted import CHECK, CHECKED, boot, cgroups
from build import ROOT
from forking import RELAYFS
from versions import OTHER, other_version

# Where another relayfs is mounted, the unit starts nothing, and that mount stays.
OCCUPIED = f"""
mkdir -p /mnt/other
{RELAYFS} /mnt/other -o store=/dev/shm/other
systemctl start relayfs@mnt-other.service 2>/dev/null || echo refused
systemctl stop relayfs@mnt-other.service
head -c 0 /mnt/other/control && umount /mnt/other && grep -c /mnt/other /proc/self/mountinfo
"""
# A server that dies has a successor in the same confinement, which goes on with the same mount and its open files.
SUCCEEDED = """
systemctl start $unit
supervisor=$(systemctl show -p MainPID --value $unit)
echo after it >/mnt/relay/a/log
exec 3</mnt/relay/a/log
kill -9 "$(pgrep -P "$supervisor")"
cat <&3
exec 3<&-
[ "$(systemctl show -p MainPID --value $unit)" = "$supervisor" ] && echo same
systemctl stop $unit
"""
# systemctl reload has the version take over that is installed now, and files that programs have open go on.
RELOADED = f"""
systemctl start $unit
supervisor=$(systemctl show -p MainPID --value $unit)
echo create a/waits buffers=single read=wait >/mnt/relay/control
dd if=/mnt/relay/a/waits of=/tmp/waits count=1 status=none &
exec 3</mnt/relay/a/log
mount --bind /shared/installed {RELAYFS}
systemctl reload $unit || journalctl -u $unit
{RELAYFS.parent}/python -c 'import os; print(os.getxattr("/mnt/relay", "user.relayfs.server").split()[0].decode())'
[ "$(systemctl show -p MainPID --value $unit)" = "$supervisor" ] && echo same
echo after it >/mnt/relay/a/log
echo waited for >/mnt/relay/a/waits
wait $!
cat - /tmp/waits <&3
exec 3<&-
systemctl stop $unit
umount {RELAYFS}
"""
# Places for which systemd has ways to hide them are not hidden from the server.
ELSEWHERE = """
for place in home tmp; do
	systemctl start relayfs@$place-relay.service
	echo create $place/log >/$place/relay/control && cat /$place/relay/.channels/$place/log/n_subbufs
	systemctl stop relayfs@$place-relay.service
done
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start systemd as process 1")
@pytest.mark.skipif(cgroups() is None, reason="no cgroup2 is mounted")
def test_the_unit_mounts_for_all_is_started_again_and_stops(tmp_path: Path) -> None:
    unit = (ROOT / "mount/relayfs@.service").read_text()
    (tmp_path / "relayfs@.service").write_text(unit.replace("/usr/local/bin", str(RELAYFS.parent)))
    other_version(tmp_path / "other")().rename(tmp_path / "installed")
    assert boot(Path("/"), tmp_path, CHECK + SUCCEEDED + RELOADED + ELSEWHERE + OCCUPIED) == (
        f"{CHECKED}after it\nsame\n{OTHER}\nsame\nafter it\nwaited for\n8\n8\nrefused\n0\n"
    )
