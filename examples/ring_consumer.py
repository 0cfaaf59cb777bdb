"""Print the records of a ring until it is removed: ring_consumer.py MNT/app/events."""

import sys

from relayfs_fuse import Ring

with Ring(sys.argv[1]) as ring:
    for record in ring:
        # A view of the shared memory itself, valid until the next step.
        sys.stdout.buffer.write(record)
        sys.stdout.buffer.flush()
