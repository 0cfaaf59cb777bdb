"""Counters in Python: counting, reading, and looking at the memory without a copy."""

import errno
from contextlib import suppress

import numpy
import pytest
from mounts import Mount
from traffic import at_once

from relayfs_fuse import Counters


@pytest.fixture
def counters(mount):
    with Counters(mount.path) as opened:
        yield opened


def test_threads_count_exactly(counters):
    counter = counters.add("app/requests")
    at_once(lambda n: [counter.adjust() for _ in range(n)], [20_000] * 4)
    assert counters.value("app/requests") == counters.values()["app/requests"] == 80_000
    assert sum(counters.per_cpu(counter.number)) == 80_000
    assert len(counters.per_cpu(counter.number)) == counters.n_cpus + 1


def test_what_is_said_of_a_counter_is_listed(counters):
    counter = counters.add("mem/used", kind="gauge", unit="bytes", help="In use now", mode=0o220)
    info = counters.infos()["mem/used"]
    assert (info.instance, info.kind, info.unit, info.help, info.mode) == (
        counter.number,
        1,
        "bytes",
        "In use now",
        0o220,
    )
    counters.delete("mem/used")
    assert "mem/used" not in counters.infos()
    assert counters.add("mem/used").number == counter.number


def test_large_numbers_wrap_around(counters):
    counter = counters.add("a")
    counter.adjust((1 << 64) - 1)
    assert counters.value("a") == -1
    counter.adjust(-(1 << 63))
    assert counters.value("a") == (1 << 63) - 1


def test_a_view_is_the_memory_itself(counters):
    counter = counters.add("a")
    view = counters.view()
    assert view.readonly
    assert view.shape[1:] == (counters.n_cpus + 1, 512)
    array = numpy.asarray(view)
    assert numpy.shares_memory(array, numpy.asarray(view))
    for value in (1, 2, 3):
        counter.adjust()
        chunk, slot = divmod(counter.number, 512)
        assert sum(view[chunk, cpu, slot] for cpu in range(counters.n_cpus + 1)) == value
        assert array[chunk, :, slot].sum() == value
    with pytest.raises(ValueError):
        array[0, 0, 1] = 5


def test_a_view_outlives_its_counters(mount):
    with Counters(mount.path) as counters:
        number = counters.add("a").number
        counters.add("a").adjust(5)
        view = counters.view()
    assert sum(view[number // 512, cpu, number % 512] for cpu in range(view.shape[1])) == 5
    with pytest.raises(ValueError, match="closed"):
        counters.values()


def test_what_is_added_later_is_in_another_view(counters):
    before = counters.view()
    for i in range(600):
        counters.add(f"many/{i}")
    assert counters.refresh()
    assert counters.view().shape[0] > before.shape[0]


def test_refused_is_what_is_not_allowed(counters, tmp_path):
    for name, code in (("", errno.EINVAL), ("a b", errno.EINVAL), ("x" * 300, errno.ENAMETOOLONG)):
        with pytest.raises(OSError) as error:
            counters.add(name)
        assert error.value.errno == code
    with pytest.raises(ValueError, match="other"):
        counters.add("a", kind="other")
    with pytest.raises(FileNotFoundError):
        counters.value("a")
    with pytest.raises(FileNotFoundError):
        Counters(tmp_path)


def test_names_are_read_even_if_they_change_all_the_time(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    n_read = 0
    with Counters(mount.path) as counters, Counters(mount.path) as others:
        counters.add("app/here")
        infos = counters._handle.infos

        def read() -> object:
            """Read them, and have one more added before anybody can know that none was."""
            nonlocal n_read
            n_read += 1
            found = infos()
            with suppress(OSError):  # the lock is held
                others.add(f"app/{n_read}")
            assert n_read < 50
            return found

        monkeypatch.setattr(counters._handle, "infos", read)
        found = counters.infos()
        assert {"app/here", *(f"app/{i}" for i in range(1, n_read))} <= set(found)
        monkeypatch.undo()
        assert f"app/{n_read}" not in counters.infos()
