"""An honest Python program that works with the files under attack, over and over, until its input ends.

bystander.py reader|ring|write|output PATH...

reader: Reader, of relay files; ring: Ring, of rings' paths
write, output: Channel and Ring as producers, of channels' paths

It believes nothing and takes every OSError for an answer; any other exception is a fault, which ends it. It prints
"ready", and at the end how often it went round and how many errors it met.
"""

import itertools
import select
import sys
import time
from collections.abc import Callable

from relayfs_fuse import Channel, Reader, Ring

PIECES = 64
WAIT_S = 0.02
PAUSE_S = 0.005
NOISE = b"p" * 100


def told_to_end() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def read(path: str) -> None:
    with Reader(path, timeout=WAIT_S) as reader:
        for piece in itertools.islice(reader, PIECES):
            bytes(piece[::512])
        reader.done()
        bool(reader.finished)


def read_ring(path: str) -> None:
    with Ring(path) as ring:
        for record in itertools.islice(ring.records(timeout=WAIT_S), PIECES):
            bytes(record[::512])
        for what in ("avail_data", "ring_size", "cons_pos", "prod_pos"):
            ring.query(what)


def write(path: str) -> None:
    with Channel(path) as channel:
        # A lock that somebody holds costs each call two seconds: only the first of these may be waited for at the end.
        for _ in range(PIECES):
            if told_to_end():
                break
            channel.write(NOISE)
        channel.write_many([NOISE, NOISE])


def output(path: str) -> None:
    with Ring(path) as ring:
        for i in range(PIECES):
            if told_to_end():
                break
            ring.output(NOISE)
            with ring.reserve(50) as record:
                record[:] = NOISE[:50]
                if i % 2:
                    raise OSError


ROLES: dict[str, Callable[[str], None]] = {"reader": read, "ring": read_ring, "write": write, "output": output}


def main() -> None:
    role, paths = ROLES[sys.argv[1]], sys.argv[2:]
    rounds = errors = 0
    print("ready", flush=True)
    while not told_to_end():
        for path in paths:
            try:
                role(path)
            except OSError:
                errors += 1
            rounds += 1
        time.sleep(PAUSE_S)  # as a user's tools, which are no flood
    print(rounds, errors)


main()
