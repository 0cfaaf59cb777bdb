"""Names in recordings. Files of streams are cpu0, cpu0_1, which continues it, and `state` for the states."""

from __future__ import annotations

import re

from relayfs_fuse.native.trace import STATE_CPU

# Of a process in the store, and of the stream that snapshots, recordings and cards have of it.
STATE_FILE = ".state"
# Of a process in the store: the program and libraries that it has loaded, see reading/objects.py.
OBJECTS_FILE = ".objects"
_STATE = "state"
# What CTF calls the file that declares the events of the streams in its directory.
METADATA = "metadata"
# In a recording or a snapshot, the directory for packets that viewers cannot read. Viewers do not find a trace in it.
QUARANTINE = ".damaged"
# The file that tells a recording from other directories: it names the boot, or where it was received from.
MARK = ".relayfs"
# In a directory of received recordings, what the receiver knows of them.
RECEIVED = ".received"
# What a compressed file is called after the name that it had.
COMPRESSED = ".zst"
_STREAM = re.compile(rf"(?:cpu(\d{{1,6}})|{_STATE})(?:_(\d{{1,9}}))?", re.ASCII)


def stream_name(cpu: int, number: int = 0) -> str:
    """Return the name of a stream's file.

    cpu: the CPU, or STATE_CPU
    number: of the file in the stream
    """
    name = _STATE if cpu == STATE_CPU else f"cpu{cpu}"
    return f"{name}_{number}" if number else name


def stream_of(name: str) -> tuple[int, int] | None:
    """Return the CPU and the number that a file's name has, as for stream_name(); None: it is not of a stream."""
    found = _STREAM.fullmatch(name)
    return (int(found[1] or STATE_CPU), int(found[2] or 0)) if found else None
