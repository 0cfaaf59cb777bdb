"""What the buffers of a process tell about themselves."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from relayfs_fuse.record.process import Process
from relayfs_fuse.record.recording import reason


@dataclass
class Figures:
    """What one process has written to a trace; None: it cannot be read.

    state: "alive", "dead", "damaged", or why it cannot be read
    bytes, unread: of events and of the heads of packets
    """

    name: str
    state: str
    events: int | None = None
    bytes: int | None = None
    lost: int | None = None
    unread: int | None = None


def figures_of(directory: str) -> Figures | None:
    """Look at a process's directory; None: it is gone."""
    name = os.path.basename(directory)
    try:
        process = Process(directory)
    except FileNotFoundError:
        return None
    except ValueError:
        return Figures(name, "damaged")
    except OSError as error:
        damaged = error.errno in (errno.EBADMSG, errno.EPROTO)
        return Figures(name, "damaged" if damaged else reason(error))
    try:
        stats = [consumer.buffer.stats() for consumer in process.buffers.values()]
        return Figures(
            name,
            "alive" if process.is_alive() else "dead",
            sum(one.records for one in stats),
            sum(one.bytes for one in stats),
            sum(process.lost().values()),
            sum(one.unread_bytes for one in stats),
        )
    except (OSError, ValueError):
        return Figures(name, "damaged")
    finally:
        process.close()
