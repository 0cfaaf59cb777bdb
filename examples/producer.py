"""Each line of the standard input becomes a record of a channel: producer.py MNT/app/cpu <FILE."""

import errno
import sys
import time

from relayfs_fuse import Channel


def write(channel: Channel, record: bytes) -> None:
    """Write a record; wait for a reader while the buffer is full."""
    while True:
        try:
            return channel.write(record, will_retry=True)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        time.sleep(0.001)


with Channel(sys.argv[1]) as channel:
    for line in sys.stdin.buffer:
        write(channel, line)
    channel.flush()
