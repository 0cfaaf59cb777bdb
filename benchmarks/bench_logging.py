"""Measure what a log message costs with RelayHandler, next to logging.FileHandler on tmpfs.

    ./dev bench logging [ROUNDS]

One pinned thread, in its own CPU time; nanoseconds a message, medians over the rounds, each of which takes all samples.
`call` is a whole call of logger.info(), most of which makes the LogRecord; `own` is what a handler adds to the call
with one that does nothing, which takes more than half of FileHandler's time already; `emit` is the handler's emit()
alone, with a record that exists; `emit-long` formats it with time, level and logger. The channels overwrite, and
nobody reads.
The status is 1 if a promise is missed twice.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import TMPFS, Limit, Samples, asked, judge, mounted, ns_each

from relayfs_fuse import RelayHandler

ROUNDS = 15
MESSAGES = 5_000
TEXT, ARGUMENTS = "request %d took %s", (17, "a while")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

LIMITS = [
    Limit("emit(): times FileHandler", "relay-emit", "file-emit", most=0.5),
    Limit("the whole call: times FileHandler", "relay-call", "file-call"),
    Limit("the whole call: of which a handler that does nothing", "none-call", "relay-call"),
    Limit("a call with a handler that does nothing: times FileHandler", "none-call", "file-call"),
    Limit("what the handler adds to a call: times FileHandler", "relay-own", "file-own", most=0.5),
    Limit("emit() with times, levels, names: times FileHandler", "relay-emit-long", "file-emit-long"),
    Limit("emit() into a ring: times FileHandler", "ring-emit", "file-emit", most=0.5),
    Limit("emit(): of which formatting and encoding are", "format", "relay-emit"),
]


def logger_of(name: str, handler: logging.Handler) -> logging.Logger:
    """Make a logger that has only this handler."""
    logger = logging.getLogger(name)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.handlers = [handler]
    return logger


def record_of(logger: logging.Logger) -> logging.LogRecord:
    """Make what a call of logger.info() makes."""
    return logger.makeRecord(logger.name, logging.INFO, __file__, 1, TEXT, ARGUMENTS, None)


@contextmanager
def handlers() -> Iterator[dict[str, logging.Handler]]:
    """Make the handlers, by name."""
    with mounted() as mount, tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        channel = mount.create("log", "mode=overwrite subbuf_size=256K n_subbufs=8")
        made = {
            "none": logging.NullHandler(),
            "file": logging.FileHandler(Path(directory) / "log"),
            "relay": RelayHandler(channel),
            "ring": RelayHandler(mount.create("ring", "type=ring mode=overwrite size=2M framing=line")),
        }
        try:
            yield made
            assert mount.statistic("log", "records") > 0
        finally:
            for handler in made.values():
                handler.close()


def add_round(samples: Samples, made: dict[str, logging.Handler]) -> None:
    """Take every sample once."""
    for name, handler in made.items():
        logger = logger_of(name, handler)
        record = record_of(logger)
        handler.setFormatter(None)
        samples.add(f"{name}-call", ns_each(lambda logger=logger: logger.info(TEXT, *ARGUMENTS), MESSAGES))
        samples.add(f"{name}-emit", ns_each(lambda handler=handler, record=record: handler.emit(record), MESSAGES))
        handler.setFormatter(logging.Formatter(FORMAT))
        samples.add(f"{name}-emit-long", ns_each(lambda handler=handler, record=record: handler.emit(record), MESSAGES))
        handler.setFormatter(None)
        if isinstance(handler, logging.FileHandler):
            os.truncate(handler.baseFilename, 0)
    none, *others = (samples.values[f"{name}-call"][-1] for name in made)
    for name, call in zip(list(made)[1:], others, strict=True):
        samples.add(f"{name}-own", call - none)
    samples.add("format", ns_each(lambda: (record.getMessage() + "\n").encode("utf-8", "backslashreplace"), MESSAGES))


def measure(rounds: int) -> Samples:
    """Take all samples."""
    samples = Samples()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with handlers() as made:
        for _ in range(rounds):
            add_round(samples, made)
    return samples


if __name__ == "__main__":
    n_rounds = asked(ROUNDS)
    sys.exit(judge(lambda: measure(n_rounds), LIMITS, "ns/message"))
