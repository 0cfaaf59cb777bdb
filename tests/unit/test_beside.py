"""The thread of the FUSE loop moves to the CPU of who reads on (native/fuse/beside.c)."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from relayfs_fuse.fs.tap import library

cpu_now: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
# More calls than are skipped between two looks.
LOOKS = 1100


@contextmanager
def thread_on(cpu: int) -> Iterator[int]:
    """Give a thread that sleeps on a CPU."""
    there, end, number = threading.Event(), threading.Event(), [0]

    def run() -> None:
        os.sched_setaffinity(0, {cpu})
        number[0] = threading.get_native_id()
        there.set()
        end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    there.wait()
    try:
        yield number[0]
    finally:
        end.set()
        thread.join()


def look(thread: int) -> int:
    """Have this thread look where the other one is, once; return where this one is then."""
    for _ in range(LOOKS):
        library.relay_beside(ctypes.c_uint32(thread))
    return cpu_now()


def test_it_runs_where_the_reader_runs() -> None:
    """The kernel may move it on between two lines, which it does now and then."""
    cpus = os.sched_getaffinity(0)
    if len(cpus) < (os.cpu_count() or 1):
        return  # as in the next test
    places = [*cpus][:4] * 10
    n_there = 0
    for cpu in places:
        with thread_on(cpu) as thread:
            os.sched_setaffinity(0, {max(cpus - {cpu}, default=cpu)})
            os.sched_setaffinity(0, cpus)
            n_there += look(thread) == cpu
    assert n_there > len(places) / 2
    assert os.sched_getaffinity(0) == cpus


def test_it_stays_where_it_is_if_its_cpus_are_limited() -> None:
    cpus = os.sched_getaffinity(0)
    here, there = min(cpus), max(cpus)
    with thread_on(there) as thread:
        try:
            os.sched_setaffinity(0, {here})
            assert look(thread) == here
            assert os.sched_getaffinity(0) == ({here} if len(cpus) > 1 else cpus)
        finally:
            os.sched_setaffinity(0, cpus)


def test_a_thread_that_is_not_there_is_no_reason_to_move() -> None:
    cpus = os.sched_getaffinity(0)
    for thread in (0, 0xFFFFFFFF):
        look(thread)
        assert os.sched_getaffinity(0) == cpus
