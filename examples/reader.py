"""Print a relay file, piece by piece, until the channel is removed: reader.py MNT/app/cpu0."""

import sys

from relayfs_fuse import Reader

with Reader(sys.argv[1]) as reader:
    for piece in reader:
        # A view of the shared memory itself, valid until the next step.
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
