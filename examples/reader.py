"""Print the records of a channel until it is removed: reader.py MNT/app/cpu."""

import sys

import relayfs_fuse

with relayfs_fuse.open(sys.argv[1]) as reader:
    for record in reader:
        sys.stdout.buffer.write(record.data)
        sys.stdout.buffer.flush()
