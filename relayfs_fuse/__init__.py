"""Relay channels: streams of records in shared memory, seen as files; and counters."""

from relayfs_fuse.channel import Channel
from relayfs_fuse.counters import Counter, Counters
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native_ring import ring_hash
from relayfs_fuse.reader import Reader
from relayfs_fuse.ring import Ring

__all__ = ["Channel", "Counter", "Counters", "Reader", "RelayError", "Ring", "ring_hash"]
