"""Relay channels (streams of records in shared memory, shown as files), counters, and tracing."""

from relayfs_fuse import native
from relayfs_fuse.channel import Channel
from relayfs_fuse.counters import Counter, Counters
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.ring import ring_hash
from relayfs_fuse.reader import Reader
from relayfs_fuse.ring import Ring
from relayfs_fuse.trace import Event, LogHandler, TraceHandler, log

__version__ = native.VERSION

__all__ = [
    "Channel",
    "Counter",
    "Counters",
    "Event",
    "LogHandler",
    "Reader",
    "RelayError",
    "Ring",
    "TraceHandler",
    "log",
    "ring_hash",
]
