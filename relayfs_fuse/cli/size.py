"""relayctl size: which sizes a channel needs, so that nothing is lost while its reader is away.

What is promised holds from any state in which the reader left the buffer:

* A relay buffer keeps n_subbufs - 1 sub-buffers of records. The sub-buffer that is being written may be consumed up to
  any byte, so nothing of it is promised. What is left at the end of a sub-buffer is shorter than a record.
* A ring of N bytes keeps at most N - 1 bytes of records, each of which takes a multiple of 8 bytes with its header.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from relayfs_fuse import native
from relayfs_fuse.cli.common import (
    Seconds,
    Size,
    check_stdout,
    format_bytes,
    json_option,
    place_options,
    show_table,
)
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs.commands.control import LEAST_SUBBUF_SIZE, format_size
from relayfs_fuse.fs.ledger import Limits, memory_available
from relayfs_fuse.native.ring import HEADER_BYTES, ring_file_bytes
from relayfs_fuse.native.tables import OPTIONS, TYPES
from relayfs_fuse.reading.source import Root, find_root, find_store

if TYPE_CHECKING:
    from collections.abc import Callable

# The length of a record with --rate alone.
_RECORD = 128
# A sub-buffer has room for so many records at least, so that little is left at its end.
_RECORDS_OF_SUBBUF = 4
# The number of sub-buffers is between this and about twice this.
_N_SUBBUFS = OPTIONS["relay"]["n_subbufs"].initial
_SUBBUF_MAX = 1 << OPTIONS["relay"]["subbuf_size"].most.bit_length() - 1
_RING_MIN = 4096


@dataclass(frozen=True)
class Load:
    """What is written.

    length: bytes of a record
    per_second: records a second, of all CPUs together
    delay: the seconds for which the reader is away
    cpus: the CPUs that write
    """

    length: int
    per_second: float
    delay: float
    cpus: int


@dataclass(frozen=True)
class Buffer:
    """The sizes of one buffer.

    options: of `create`
    file_bytes: of its file; 0: it would be too large
    records: how many it keeps
    """

    options: str
    file_bytes: int
    records: int


@dataclass(frozen=True)
class Suggestion:
    """Sizes for one way in which the CPUs write.

    writers: this way, in words
    create: the command for control
    memory: bytes of all buffers
    lasts: seconds until the first buffer is full
    fits: whether there is memory for it now
    """

    writers: str
    create: str
    memory: int
    lasts: float
    fits: bool


@dataclass(frozen=True)
class Room:
    """The memory that channels can have.

    where: the mount, or the store, or the directory in which the store would be made
    free: bytes that are free, by the size of the mount or of the file system, and by the machine's memory
    size: bytes of all channels
    user_size: bytes of each user other than root and the store's owner, unless the mount option user_size= says more
    most: the most that this user can have
    """

    where: str
    free: int
    size: int
    user_size: int
    most: int


@click.command()
@click.option("--rate", metavar="BYTES", type=Size(), help="Bytes of records a second, of all CPUs together.")
@click.option("--records", metavar="N", type=click.IntRange(min=1), help="Records a second, of all CPUs together.")
@click.option(
    "--record", metavar="BYTES", type=Size(), help=f"Length of a record. Default with --rate: {_RECORD} bytes."
)
@click.option(
    "--delay", metavar="SECONDS", type=Seconds(0, min_open=True), required=True,
    help="How long the reader may be away.",
)  # fmt: skip
@click.option("--cpus", metavar="N", type=click.IntRange(1, 1 << 16), help="CPUs that write. Default: all there are.")
@click.option(
    "--type", "type_of", type=click.Choice(TYPES), default=TYPES[0], show_default=True, help="Of the channel."
)
@place_options
@json_option
def size(  # noqa: PLR0913, PLR0917  # an option each
    rate: int | None, records: int | None, record: int | None, delay: float, cpus: int | None, type_of: str,
    mount: str | None, store: str | None, json_wanted: bool,
) -> None:  # fmt: skip
    """Suggest sizes for a channel that loses nothing while its reader is away.

    A line is: which CPUs write, how long the buffers last, the memory of all buffers, and the command that makes the
    channel. Exit status: 1 if there is no memory for any of them.
    """
    check_stdout()
    length, per_second = _records(rate, records, record)
    if math.isnan(delay):
        raise click.UsageError("--delay nan: a number of seconds is needed")
    room = _room(mount, store)
    found = _suggest(type_of, Load(length, per_second, delay, cpus or native.n_possible_cpus()), room)
    if json_wanted:
        click.echo(json.dumps({"suggestions": [asdict(one) for one in found], "limits": asdict(room)}))
    else:
        show_table(
            ["WRITERS", "LASTS", "MEMORY", "COMMAND"],
            [[one.writers, _seconds(one.lasts), format_bytes(one.memory), one.create] for one in found],
        )
        for one in found:
            if not one.fits:
                click.echo(
                    f"{one.writers}: {format_bytes(one.memory)} are more than the {format_bytes(room.most)} to be had"
                )
        free, most, of_user = (format_bytes(n) for n in (room.free, room.size, room.user_size))
        click.echo(
            f"{room.where}: {free} are free, of {most} for all channels; users other than root and the store's owner "
            f"have {of_user} each, unless user_size= of the mount says more"
        )
    if not any(one.fits for one in found):
        sys.exit(1)


def _records(rate: int | None, records: int | None, record: int | None) -> tuple[int, float]:
    """Return the length of a record, and how many are written in a second; UsageError."""
    if (rate is None) == (records is None):
        both = ", not both" if rate is not None else ""
        raise click.UsageError(f"give --rate BYTES, or --records N and --record BYTES{both}")
    if records is not None and record is None:
        raise click.UsageError("--records needs --record BYTES, the length of a record")
    for option, value in (("--rate", rate), ("--record", record)):
        if value == 0:
            raise click.UsageError(f"{option} 0: at least one byte is needed; K, M or G may follow, as in 64K")
    length = _RECORD if record is None else record
    return length, float(records) if records is not None else (rate or 0) / length


def _suggest(type_of: str, load: Load, room: Room) -> list[Suggestion]:
    """Return the suggestions; RelayError: no channel can hold so much."""
    choose: Callable[[int, int], Buffer] = {"relay": _relay, "ring": _ring}[type_of]
    n_buffers = max(load.cpus, native.n_possible_cpus())
    start = f"create PATH type={type_of}" if type_of != TYPES[0] else "create PATH"
    option = OPTIONS[type_of]["buffers"]
    default = option.format(option.initial)
    found = []
    for writers, word, n, rate in (
        (f"{load.cpus} CPUs alike", "percpu", n_buffers, load.per_second / load.cpus),
        ("one CPU all", "percpu", n_buffers, load.per_second),
        ("any, into one buffer", "global", 1, load.per_second),
    ):
        buffer = choose(load.length, math.ceil(rate * load.delay))
        if not buffer.file_bytes:
            continue
        memory = buffer.file_bytes * n
        create = f"{start} {buffer.options}" if word == default else f"{start} buffers={word} {buffer.options}"
        found.append(Suggestion(writers, create, memory, buffer.records / rate, memory <= room.most))
    if not found:
        raise RelayError(
            f"{load.length} bytes, {load.per_second:g} times a second for {load.delay:g} s: no channel holds so much; "
            f"a buffer has at most {2**40} bytes"
        )
    return found


def _relay(length: int, records: int) -> Buffer:
    """Choose sub-buffers that keep so many records.

    The largest power of two is taken that gives _N_SUBBUFS of them, so that little more memory than needed is taken.
    """
    least = max(LEAST_SUBBUF_SIZE, _power_of_two(_RECORDS_OF_SUBBUF * length))
    subbuf_size = least
    while subbuf_size * 2 <= _SUBBUF_MAX and (_N_SUBBUFS - 1) * (subbuf_size * 2 // length) <= records:
        subbuf_size *= 2
    of_each = subbuf_size // length
    n_subbufs = max(2, math.ceil(records / of_each) + 1)
    return Buffer(
        f"subbuf_size={format_size(subbuf_size)} n_subbufs={n_subbufs}",
        native.buf_file_bytes(subbuf_size, n_subbufs),
        (n_subbufs - 1) * of_each,
    )


def _ring(length: int, records: int) -> Buffer:
    """Choose the size of a ring that keeps so many records."""
    taken = -(-(HEADER_BYTES + length) // HEADER_BYTES) * HEADER_BYTES
    ring_size = max(_power_of_two(taken * records + 1), _RING_MIN)
    return Buffer(f"size={format_size(ring_size)}", ring_file_bytes(ring_size), (ring_size - 1) // taken)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _room(mount: str | None, store: str | None) -> Room:
    """Find out how much memory there is; of a server, its mount tells it."""
    root = Root(store, is_store=True) if store else find_root(mount, makes=True)
    if root.is_store:
        return _of_store(root.place, Limits(), None)
    status = os.statvfs(root.place)
    # The size of a mount is the limit that its server has.
    limit = status.f_blocks * status.f_frsize
    where = find_store(root.place)
    if os.path.isdir(where):
        return _of_store(where, Limits(size=limit), root.place)
    # This process does not see the store, as in a container that has only the mount.
    free = min(status.f_bavail * status.f_frsize, memory_available())
    return Room(root.place, free, limit, limit // 2, free if os.geteuid() == 0 else min(free, limit // 2))


def _of_store(where: str, limits: Limits, place: str | None) -> Room:
    """Return the memory of a store, which need not exist yet.

    place: the mount that shows it; None: there is none
    """
    is_there = os.path.isdir(where)
    if not is_there:
        where = os.path.dirname(os.path.abspath(where))
    status = os.statvfs(place or where)
    most_of_all, user_size = limits.in_store(where)
    free = min(status.f_bavail * status.f_frsize, memory_available(), most_of_all)
    is_owner = os.geteuid() == 0 or not is_there or os.stat(where).st_uid == os.geteuid()
    return Room(place or where, free, most_of_all, user_size, free if is_owner else min(free, user_size))


def room_in(store: str) -> int:
    """Return how many bytes this user can have for channels in a store that has no server."""
    return _of_store(store, Limits(), None).most


def _seconds(s: float) -> str:
    return f"{s:.3g} s" if s < 1000 else f"{s:.0f} s"
