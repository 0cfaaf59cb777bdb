"""Triggers, which are evaluated on the events that a merge gives out; see <relayfs/merge.h>."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.native.merge import Merge

TRIGGERS_MAX: int = lib.RELAY_TRIGGERS_MAX


class Kind(IntEnum):
    """What a trigger fires at; see enum relay_trigger_kind."""

    EVENT = lib.RELAY_TRIGGER_EVENT
    RATE = lib.RELAY_TRIGGER_RATE
    QUIET = lib.RELAY_TRIGGER_QUIET
    LOST = lib.RELAY_TRIGGER_LOST
    OTHER = lib.RELAY_TRIGGER_OTHER


class TriggerState(NamedTuple):
    """Where a trigger stands; see struct relay_trigger_state."""

    matched: int = 0
    fired: int = 0
    limited: int = 0
    due: int = 0
    last: int = 0
    second: int = 0
    in_second: int = 0
    is_told: int = 0


class Spec(NamedTuple):
    """A trigger; see struct relay_trigger. Times are ns.

    is_only_told: whether Triggers.take() returns its firings as lines only
    condition: as trace.pack_conditions() returns it; empty: there is none
    """

    name: str
    is_only_told: bool
    kind: Kind
    glob: str | None
    condition: bytes
    since: int
    most: int
    quiet: int
    limit: int
    state: TriggerState


class Firing(NamedTuple):
    """That a trigger has fired.

    trigger: its index
    number: counts its firings from 1 on
    time: ns since 1970
    """

    trigger: int
    number: int
    time: int


class Triggers(library.Handle):
    """Evaluate triggers; the caller closes the merge after this. OSError: EINVAL, there are too many."""

    def __init__(self, merge: Merge, specs: Sequence[Spec]) -> None:
        array = ffi.new("struct relay_trigger[]", len(specs))
        kept = []
        for c_trigger, spec in zip(array, specs, strict=True):
            c_trigger.kind = spec.kind
            c_trigger.is_only_told = spec.is_only_told
            kept.append(ffi.new("char[]", spec.name.encode()))
            c_trigger.name = kept[-1]
            for name in ("since", "most", "quiet", "limit"):
                setattr(c_trigger, name, getattr(spec, name))
            for name, value in spec.state._asdict().items():
                setattr(c_trigger.state, name, value)
            if spec.glob is not None:
                kept.append(ffi.new("char[]", os.fsencode(spec.glob)))
                c_trigger.glob = kept[-1]
            if spec.condition:
                kept.append(ffi.new("struct relay_conditions *"))
                ffi.memmove(kept[-1], spec.condition, ffi.sizeof(kept[-1][0]))
                c_trigger.conditions = kept[-1]
        super().__init__(library.not_null(lib.relay_triggers_new(merge.pointer, array, len(specs)), "triggers"))
        self._n = len(specs)
        self._merge = merge  # it is used until this is closed
        self._firing = ffi.new("struct relay_firing *")
        self._length = ffi.new("size_t *")

    def close(self) -> None:
        """Free the memory."""
        lib.relay_triggers_free(self._disown())

    def gather(self) -> bool:
        """Evaluate the triggers for the events that the merge gives out now; return whether these are all."""
        return bool(library.check(lib.relay_triggers_gather(self._open)))

    def reach(self, time: int) -> None:
        """Note up to which time all events were evaluated; then triggers can fire because there was none."""
        lib.relay_triggers_reach(self._open, time)

    def fire(self, trigger: int, time: int, text: str) -> None:
        """Fire a trigger, unless its limit forbids it; take() has to follow, so that there is room for the next one."""
        c_text = ffi.new("char[]", text.encode(errors="replace").replace(b"\0", b"?"))
        library.check(lib.relay_triggers_fire(self._open, trigger, time, c_text))

    def take(self) -> tuple[bytes, list[Firing]]:
        """Return the lines that say what has fired since the last call, and the firings that are not only told."""
        one, firings = self._firing, []
        while lib.relay_triggers_next(self._open, one):
            firings.append(Firing(int(one.trigger), int(one.number), int(one.time)))
        text = lib.relay_triggers_lines(self._open, self._length)
        lines = ffi.unpack(text, self._length[0]) if self._length[0] else b""
        lib.relay_triggers_forget(self._open)
        return lines, firings

    def states(self) -> list[TriggerState]:
        """Return the states of all triggers, in their order."""
        state = ffi.new("struct relay_trigger_state *")
        found = []
        for number in range(self._n):
            library.check(lib.relay_triggers_state(self._open, number, state))
            found.append(TriggerState(*ffi.unpack(ffi.cast("uint64_t *", state), len(TriggerState._fields))))
        return found
