"""Checking the files of a store without changing them; see <relayfs/check_store.h>."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.buffer import Buffer
from relayfs_fuse.native.ring import RingMemory
from relayfs_fuse.native.tables import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

DAMAGE: int = lib.RELAY_FAULT_DAMAGE
VERSION: int = lib.RELAY_FAULT_VERSION
DEAD: int = lib.RELAY_FAULT_DEAD


class Fault(NamedTuple):
    """A value in a file that is wrong; see struct relay_fault.

    kind: DAMAGE, VERSION or DEAD
    at: its offset in the file
    value: None: `text` alone says what is wrong
    """

    kind: int
    at: int
    value: int | None
    name: str
    text: str


class Faults(NamedTuple):
    """What a check has found.

    result: what the library's function has returned
    n_more: how many faults are not in `found`
    """

    result: int
    found: list[Fault]
    n_more: int = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether others have changed so much meanwhile that the check could not end."""
        return self.result == -errno.EAGAIN


def _checked(function: Callable[..., int], *arguments: Any) -> Faults:
    faults = ffi.new("struct relay_faults *")
    result = function(*arguments, faults)
    found = [
        Fault(
            one.kind, int(one.at), int(one.value) if one.has_value else None, os.fsdecode(ffi.string(one.name)),
            os.fsdecode(ffi.string(one.text)),
        )
        for one in faults.fault[0 : faults.n]
    ]  # fmt: skip
    if result < 0 and not found and result != -errno.EAGAIN:
        library.check(result)
    return Faults(int(result), found, int(faults.n_more))


class _BufferView(Buffer):
    """What a file of a relay buffer shows, open for reading only. What functions store stays in this process."""

    _from_descriptor = lib.relay_buf_view


class _RingView(RingMemory):
    """The same of a ring."""

    _from_descriptor = lib.relay_ring_view


# By type of channel.
_VIEWS: dict[str, tuple[type[_BufferView] | type[_RingView], Callable[..., int]]] = dict(
    zip(TYPES, ((_BufferView, lib.relay_buf_check), (_RingView, lib.relay_ring_check)), strict=True)
)


def geometry(descriptor: int) -> tuple[str | None, Faults]:
    """Check the geometry of a mem file; return the type of channel that it says it is of, None: of no type."""
    faults = _checked(lib.relay_geometry_check, descriptor)
    return (TYPES[faults.result] if faults.result >= 0 else None), faults


def view(kind: str, descriptor: int) -> Buffer | RingMemory:
    """Map what a mem file shows; OSError: EBADMSG, EPROTO, as geometry() says why."""
    return _VIEWS[kind][0].of_descriptor(descriptor)


def of_view(kind: str, memory: Buffer | RingMemory) -> Faults:
    """Check all that a view shows, except for what is in records."""
    return _checked(_VIEWS[kind][1], memory.pointer)


def of_counters(directory: str) -> Faults:
    """Check the counters in STORE/.counters; OSError."""
    return _checked(lib.relay_counters_check, os.fsencode(directory))


def of_traces(descriptor: int) -> Faults:
    """Check the control file of traces; OSError."""
    return _checked(lib.relay_traces_check, descriptor)
