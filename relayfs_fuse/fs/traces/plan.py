"""What `trace create` makes: the sizes and clock of a trace, by its options and the memory that is free."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.fs.commands.control import choose_geometry, format_size
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import TRACE_OPTIONS, missing_clock
from relayfs_fuse.native.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.commands.trace_control import TraceCommand
    from relayfs_fuse.fs.store import Store

# The option that has no effect on what programs write.
_ANY_TIME = "snapshot_memory"


def plan(command: TraceCommand, store: Store, new_id: Callable[[], int], boot: str) -> tuple[Trace, str | None]:
    """Return the trace to create, and the text for error_log if default sizes were reduced; CommandError.

    new_id: returns an id that no trace has had
    boot: the id of this boot
    """
    chosen = command.options.get("clock", 0)
    if missing := missing_clock(TRACE_OPTIONS["clock"], chosen):
        raise command.refuse(errno.EINVAL, missing, "clock")
    clock = native_trace.CLOCK_MONO + chosen
    free_bytes, n_buffers = store.free_bytes(), native.n_possible_cpus()
    subbuf_size, n_subbufs, notice = choose_geometry(command, n_buffers, free_bytes, trace_control.DEFAULT_SIZES)
    need = native.buf_file_bytes(subbuf_size, n_subbufs) * n_buffers
    if need > free_bytes:
        key = next((key for key in ("n_subbufs", "subbuf_size") if key in command.options), None)
        raise command.refuse(
            errno.ENOSPC,
            f"each process would take {need} bytes, {n_buffers} buffers of {n_subbufs} sub-buffers of "
            f"{format_size(subbuf_size)}; {free_bytes} are free in the store",
            key,
        )
    trace = Trace(
        id=new_id(),
        name=command.name,
        is_started=False,
        clock=clock,
        buffers=command.options.get("buffers", 0),
        mode=command.options.get("mode", 0),
        subbuf_size=subbuf_size,
        n_subbufs=n_subbufs,
        boot=boot,
        made=native_trace.read_clocks(clock),
        filter=command.filter,
        snapshot_memory=command.options.get(_ANY_TIME, 0),
        flush_interval_ms=command.options.get("flush_interval", TRACE_OPTIONS["flush_interval"].initial),
    )
    trace = replace(trace, memory=command.options.get("memory", default_memory(trace, store)))
    if trace.memory < need:
        raise command.refuse(
            errno.ENOSPC,
            f"memory={format_size(trace.memory)} is less than the {need} bytes that one process takes, {n_buffers} "
            f"buffers of {n_subbufs} sub-buffers of {format_size(subbuf_size)}",
            "memory",
        )
    return trace, notice


def changed(command: TraceCommand, trace: Trace, store: Store, boot: str, has_events: bool) -> tuple[Trace, str | None]:
    """Return what `trace set` makes of a trace, whose rules stay, and a text as plan() does; CommandError.

    has_events: whether programs have written to it
    """
    if command.columns.keys() == {_ANY_TIME}:
        return replace(trace, snapshot_memory=command.options[_ANY_TIME]), None
    if trace.is_started or has_events:
        why = f"is started, or has events of programs; but for {_ANY_TIME}, its options change only before"
        raise command.refuse(errno.EBUSY, f"trace {trace.name} {why}")
    options = trace_control.numbers_of(trace)
    if trace.memory == default_memory(trace, store):
        del options["memory"]
    whole = replace(command, options=options | command.options, filter=command.filter or trace.filter)
    new, notice = plan(whole, store, lambda: trace.id, boot)
    return replace(new, rules=trace.rules, conditions=trace.conditions), notice


def default_memory(trace: Trace, store: Store) -> int:
    """Return the default of memory=: half of the store's limit, but at least what one process needs, in bytes."""
    need = native.buf_file_bytes(trace.subbuf_size, trace.n_subbufs) * native.n_possible_cpus()
    return max(min(store.ledger.size, TRACE_OPTIONS["memory"].most) // 2, need)
