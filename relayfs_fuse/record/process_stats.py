"""Statistics of one process's buffers in a trace, for relayctl stat."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.process import Process


@dataclass
class ProcessStats:
    """Statistics of one process; None: unreadable.

    state: "alive", "dead", "damaged", or why the directory cannot be read
    bytes, unread: bytes of events and packet headers
    """

    name: str
    state: str
    events: int | None = None
    bytes: int | None = None
    lost: int | None = None
    unread: int | None = None


def stats_of_process(directory: str) -> ProcessStats | None:
    """Return the statistics of a process's directory; None: it was removed."""
    name = os.path.basename(directory)
    try:
        process = Process(directory)
    except FileNotFoundError:
        return None
    except ValueError:
        return ProcessStats(name, "damaged")
    except OSError as error:
        damaged = error.errno in (errno.EBADMSG, errno.EPROTO)
        return ProcessStats(name, "damaged" if damaged else reason(error))
    try:
        stats = [consumer.buffer.stats() for consumer in process.buffers.values()]
        return ProcessStats(
            name,
            "alive" if process.is_alive() else "dead",
            sum(one.records for one in stats),
            sum(one.bytes for one in stats),
            sum(process.lost().values()),
            sum(one.unread_bytes for one in stats),
        )
    except (OSError, ValueError):
        return ProcessStats(name, "damaged")
    finally:
        process.close()
