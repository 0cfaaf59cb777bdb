"""Traces with rules, as commands make them, without a mount.

with_rules("enable t a:*", "disable t a:b").rules
"""

from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.native.trace import Trace


def with_rules(*lines: str) -> Trace:
    trace = Trace(1, "t", False, CLOCKS["mono"].number, 0, 0, 4096, 5, "boot")
    for line in lines:
        command = trace_control.parse(f"trace {line}")
        assert command is not None
        trace = trace_control.add_rule(trace, command)
    return trace
