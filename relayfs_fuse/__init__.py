"""Relay channels (streams of records in shared memory, shown as files), counters, and tracing."""

from relayfs_fuse import native
from relayfs_fuse.channel import Channel
from relayfs_fuse.channel_reader import ChannelReader, Record, open  # noqa: A004  # it is relayfs_fuse.open
from relayfs_fuse.counters import Counter, Counters
from relayfs_fuse.errors import RelayError
from relayfs_fuse.handler import RelayHandler
from relayfs_fuse.native.ring import ring_hash
from relayfs_fuse.reader import Reader
from relayfs_fuse.ring import Ring
from relayfs_fuse.trace import Event, LogHandler, TraceHandler, log

__version__ = native.VERSION

__all__ = [
    "Channel",
    "ChannelReader",
    "Counter",
    "Counters",
    "Event",
    "LogHandler",
    "Reader",
    "Record",
    "RelayError",
    "RelayHandler",
    "Ring",
    "TraceHandler",
    "log",
    "open",
    "ring_hash",
]
