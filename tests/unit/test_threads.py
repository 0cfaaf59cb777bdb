"""Names of threads in /proc."""

import os
from threading import Event, Thread

from relayfs_fuse.reading.threads import note_names
from relayfs_fuse.tracefiles.thread_names import THREADS_MAX


def test_only_so_many_threads_are_looked_at():
    over = Event()
    threads = [Thread(target=over.wait) for _ in range(15)]
    for thread in threads:
        thread.start()
    with open(f"/proc/self/task/{threads[0].native_id}/comm", "wb", buffering=0) as comm:
        comm.write(b"\0")
    # One process stands for many.
    pids = iter([os.getpid()] * THREADS_MAX)
    names = {}
    note_names(names, pids)
    over.set()
    for thread in threads:
        thread.join()
    assert (os.getpid(), os.getpid()) in names
    assert (os.getpid(), threads[1].native_id) in names
    assert (os.getpid(), threads[0].native_id) not in names
    assert len(list(pids)) >= THREADS_MAX - THREADS_MAX // len(threads)
