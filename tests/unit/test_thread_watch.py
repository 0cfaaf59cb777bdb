"""When the recorder looks at names of threads."""

import time

from relayfs_fuse.record.thread_watch import ThreadWatch


class Seen:
    """In place of a recording; looking at it takes so long, in which the machine does other work."""

    def __init__(self, takes_s: float = 0) -> None:
        self._takes_s = takes_s
        self.n = 0

    def note_threads(self, _: object) -> None:
        self.n += 1
        time.sleep(self._takes_s)


def test_the_last_look_is_at_all_also_if_it_is_interrupted():
    recordings = {"a": Seen(takes_s=0.6), "b": Seen()}
    ThreadWatch(recordings).look(is_last=True)
    assert [one.n for one in recordings.values()] == [1, 1]
