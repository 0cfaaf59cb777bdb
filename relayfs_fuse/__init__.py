"""Relay channels (streams of records in shared memory, shown as files), counters, and tracing.

Channel         write records
open()          read all records of a channel, or of one of its buffers: a ChannelReader of Records
RelayHandler    write the messages of the standard module logging into a channel
Reader          read one relay file without a copy
Ring            write and read record rings, in place
Counters        count, and read the counters of all programs
Event           trace; spans and further declarations are in relayfs_fuse.trace
TraceHandler, LogHandler, log()     log messages as events; lines for the channel `log`

Errors of the system are OSError with an errno, those of relayfs RelayError. Seconds are float, other times int,
nanoseconds since 1970; sizes are bytes. docs/python.md shows how they are used.
"""

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
