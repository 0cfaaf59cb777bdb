"""What wakes the recorder."""

import os

from relayfs_fuse.record.sleeper import Sleepers


def test_a_signal_after_the_end_writes_to_no_other_file(tmp_path):
    sleepers = Sleepers()
    number = sleepers.eventfd
    sleepers.wake()
    sleepers.close()
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    os.dup2(other, number)
    sleepers.wake()
    assert os.fstat(other).st_size == 0
    for descriptor in {other, number}:
        os.close(descriptor)
