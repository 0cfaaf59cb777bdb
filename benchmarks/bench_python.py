"""Measure what a record and an event cost a program in Python, next to a call through cffi that does nothing.

    ./dev bench python [ROUNDS]

One pinned thread, in its own CPU time; nanoseconds a record of 64 bytes, medians over the rounds, each of which takes
all samples. `empty` is a function of the same arguments as relay_write(), called through an extension of cffi that is
compiled for this. `many` has a list of records, `cut` one buffer. What is written overwrites, and nobody reads. The
status is 1 if a promise is missed twice.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from cffi import FFI
from support import Limit, Mount, Samples, asked, judge, mounted, ns_each

from relayfs_fuse import Channel, Ring
from relayfs_fuse.trace import Event

ROUNDS = 25
CALLS = 20_000
RECORD = b"r" * 63 + b"\n"
BATCH = 1024
WORDS = tuple(range(8))

LIMITS = [
    Limit("write(): times an empty call", "write", "empty", most=2),
    Limit("write() of a bytearray: times an empty call", "write-bytearray", "empty"),
    Limit("Ring.output(): times an empty call", "output", "empty", most=2),
    Limit("write_many(), cut by length: times an empty call", "cut-length", "empty", most=0.15),
    Limit("write_many(), cut by length: ns a record", "cut-length"),
    Limit("write_many(), cut by a separator: times by length", "cut-separator", "cut-length", most=3),
    Limit("write_many(), a list: times write()", "many", "write", most=0.75),
    Limit("output_many(), cut by length: times output()", "ring-cut-length", "output", most=0.25),
    Limit("an event of 8 integers: times packed field by field", "event-words", "event-words-each", most=0.5),
    Limit("an event with a string: times packed field by field", "event-string", "event-string-each", most=0.8),
    Limit("an event of 8 integers: times an empty call", "event-words", "empty"),
    Limit("an event that no trace wants: times an empty call", "event-off", "empty", most=3),
]


@contextmanager
def empty_function() -> Iterator[ModuleType]:
    """Compile an extension as relayfs_fuse._native is, with a function that does nothing."""
    ffi = FFI()
    ffi.cdef("struct rchan; int empty(struct rchan *chan, const void *data, size_t length);")
    source = "struct rchan; static int empty(struct rchan *chan, const void *data, size_t length)"
    ffi.set_source("bench_empty", f"{source} {{ return !chan && !data && length == 1; }}", py_limited_api=True)
    with tempfile.TemporaryDirectory() as directory:
        spec = importlib.util.spec_from_file_location("bench_empty", ffi.compile(directory))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def add_records(samples: Samples, empty: ModuleType, channel: Channel, ring: Ring) -> None:
    """Take the samples of records once."""
    function, nothing, array, record = empty.lib.empty, empty.ffi.NULL, bytearray(RECORD), RECORD
    samples.add("empty", ns_each(lambda: function(nothing, record, 64), CALLS))
    samples.add("write", ns_each(lambda: channel.write(record), CALLS))
    samples.add("write-bytearray", ns_each(lambda: channel.write(array), CALLS))
    samples.add("output", ns_each(lambda: ring.output(record), CALLS))
    buffer, records, n = RECORD * BATCH, [RECORD] * BATCH, CALLS // BATCH
    samples.add("many", ns_each(lambda: channel.write_many(records), n, BATCH))
    samples.add("cut-length", ns_each(lambda: channel.write_many(buffer, length=64), n, BATCH))
    samples.add("cut-separator", ns_each(lambda: channel.write_many(buffer, separator=b"\n"), n, BATCH))
    samples.add("ring-cut-length", ns_each(lambda: ring.output_many(buffer, length=64), n, BATCH))


def add_events(samples: Samples, mount: Mount, events: dict[str, Event]) -> None:
    """Take the samples of events once."""
    values = {"words": WORDS, "string": (7, "/index.html", 1.25)}
    off = events["words"]
    samples.add("event-off", ns_each(lambda: off(*WORDS), CALLS))
    mount.command("trace start t")
    for name, event in events.items():
        of_it = values[name.partition("-")[0]]
        samples.add(f"event-{name}", ns_each(lambda event=event, of_it=of_it: event(*of_it), CALLS))
    mount.command("trace stop t")


def declared() -> dict[str, Event]:
    """Declare each event twice, once so that its fields are packed one by one."""
    fields = {"words": dict.fromkeys("abcdefgh", "u64"), "string": {"id": "u32", "path": "string", "ms": "f64"}}
    events: dict[str, Event] = {}
    for name, kinds in fields.items():
        events[name] = Event("bench", name, kinds)
        events[f"{name}-each"] = each = Event("bench", f"{name}_each", kinds)
        each._pack = each._pack_each
    return events


def measure(mount: Mount, empty: ModuleType, events: dict[str, Event], rounds: int) -> Samples:
    """Take all samples."""
    samples = Samples()
    with Channel(mount.path / "channel") as channel, Ring(mount.path / "ring") as ring:
        for _ in range(rounds):
            add_records(samples, empty, channel, ring)
            add_events(samples, mount, events)
    samples.counts["write"]["hits"] = mount.statistic("channel", "records")
    samples.counts["output"]["hits"] = mount.statistic("ring", "records")
    written = (mount.path / ".channels/t").glob("*/cpu/records")
    samples.counts["event-words"]["hits"] = sum(int(path.read_text()) for path in written)
    return samples


def main() -> int:
    """Make the channels, measure, judge."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with empty_function() as empty, mounted() as mount:
        os.environ["RELAYFS"] = str(mount.path)
        mount.command("trace create t mode=overwrite subbuf_size=64K n_subbufs=8 clock=tsc")
        mount.create("channel", "mode=overwrite subbuf_size=256K n_subbufs=8")
        mount.create("ring", "type=ring mode=overwrite size=2M buffers=percpu")
        events = declared()
        return judge(lambda: measure(mount, empty, events, asked(ROUNDS)), LIMITS, "ns/record, ns/event")


if __name__ == "__main__":
    sys.exit(main())
