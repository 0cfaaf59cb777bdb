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

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayfs_fuse import native  # noqa: F401  # it is relayfs_fuse.native
    from relayfs_fuse.channel import Channel
    from relayfs_fuse.channel_reader import ChannelReader, Record, open  # noqa: A004  # it is relayfs_fuse.open
    from relayfs_fuse.counters import Counter, Counters
    from relayfs_fuse.errors import RelayError
    from relayfs_fuse.handler import RelayHandler
    from relayfs_fuse.native.ring import ring_hash
    from relayfs_fuse.reader import Reader
    from relayfs_fuse.ring import Ring
    from relayfs_fuse.trace import Event, LogHandler, TraceHandler, log

    __version__: str

# The modules in which names are, and the names there. They are imported when a name is first used: a program that only
# writes to a channel starts in two thirds of the time.
_MODULES = {
    "channel": ("Channel",),
    "channel_reader": ("ChannelReader", "Record", "open"),
    "counters": ("Counter", "Counters"),
    "errors": ("RelayError",),
    "handler": ("RelayHandler",),
    "native.ring": ("ring_hash",),
    "reader": ("Reader",),
    "ring": ("Ring",),
    "trace": ("Event", "LogHandler", "TraceHandler", "log"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    """Import what is used for the first time."""
    if name in _MODULE_OF:
        value = getattr(import_module(f"relayfs_fuse.{_MODULE_OF[name]}"), name)
    elif name == "__version__":
        value = import_module("relayfs_fuse.native").VERSION
    elif name == "native" or name in _MODULES:
        value = import_module(f"relayfs_fuse.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names, also of what is not imported yet."""
    return sorted({*globals(), *__all__, "__version__"})
