"""Recordings that are followed while they are renamed, or whose clocks are ahead: each event once, in order."""

import json
import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from mounts import wait_until
from showing import serving
from tracing import finish, recording
from viewing import Clock, viewing

from relayfs_fuse.native.merge import Export, Style
from relayfs_fuse.reading import growing
from relayfs_fuse.reading.live import Wanted

AHEAD_S = 86_400
DELAY_NS = 2 * 10**9


def record(store, run, trace, out: Path, n: int, name: str = "app") -> None:
    with recording(trace.name, "--store", store.path, "-o", out) as recorder:
        app = run(trace, name)
        app.write_patiently(n)
        app.end()
        finish(recorder)


def set_ahead(out: Path) -> None:
    """Make it a recording of a machine whose clock is ahead."""
    for path in out.rglob("metadata"):
        text = path.read_bytes()
        (seconds,) = re.findall(rb"\toffset_s = (\d+);", text)
        path.write_bytes(text.replace(seconds, b"%d" % (int(seconds) + AHEAD_S)))


@pytest.mark.parametrize("n", [1, 2])
def test_a_clock_that_is_ahead_shows_no_events_of_others_at_once(store, run, out, monkeypatch, n):
    """n: how many clocks are ahead."""
    for number in range(n):
        name = f"t{number}"
        record(store, run, store.create(name), out / name, 3)
        set_ahead(out / name)
    other = store.create("u")
    clock = Clock()
    monkeypatch.setattr(growing, "time", clock)
    said: list[str] = []
    with (
        recording("u", "--store", store.path, "-o", out / "u"),
        growing.Growing([str(out)], Wanted(), DELAY_NS, said.append) as grows,
        closing(Export(grows.merged, Style("text", marks_late=True))) as export,
    ):

        def shown() -> list[str]:
            grows.look()
            return b"".join(bytes(piece) for piece in export.pieces()).decode().splitlines()

        lines: list[str] = []

        def has(n_lines: int) -> bool:
            clock.passed_s += 1
            lines.extend(shown())
            return len(lines) >= n_lines

        wait_until(lambda: has(3 * n), "what was there is shown")
        app = run(other, "app")
        app.write_patiently(500)
        app.flush()
        wait_until(lambda: list((out / "u").rglob("cpu[0-9]")), "the first packet")
        clock.passed_s += 1  # so the directory is found
        assert shown() == []
        (followed,) = (one for path, one in grows.followed.items() if "/u/" in path)
        wait_until(lambda: not shown() and grows.merged.latest(followed.numbers[0]), "its events are there")
        assert shown() == []
        wait_until(lambda: has(3 * n + 500), "its events are shown")
    assert len(lines) == 3 * n + 500
    assert not any(line.endswith(" late") for line in lines)
    assert [line for line in said if "s ahead of this machine's" in line] == said
    assert len(said) == n


def test_a_clock_that_is_ahead_keeps_no_events_from_viewers_of_lttngs_protocol(store, run, out):
    """Viewers sort by time: the events have the times that this machine's clock showed when they arrived."""
    record(store, run, store.create("t"), out / "t", 3, "ahead")
    set_ahead(out / "t")
    other = store.create("u", n_subbufs=64)
    with (
        recording("u", "--store", store.path, "-o", out / "u"),
        serving(out, "--delay", 100) as server,
        server.showing("out") as shown,
    ):
        shown.wait_for(lambda: shown.numbers("ahead") == [0, 1, 2])
        app = run(other, "app")
        app.write_patiently(500)
        app.flush()
        shown.wait_for(lambda: shown.numbers("app") == list(range(500)))
        shown.finish()
        assert "s ahead of this machine's, so" in server.finish()
    assert shown.events()[-1].ns < time.time_ns()


def test_a_recording_that_is_renamed_is_followed_on(store, run, out):
    trace = store.create("t", n_subbufs=64)
    app = run(trace, "app")
    with recording("t", "--store", store.path, "-o", out / "a/one") as recorder:
        app.write_patiently(500)
        app.flush()
        wait_until(lambda: list(out.rglob("cpu0")), "the first packet")
        with viewing(out, "--follow", "--json", "--delay", 100) as view:
            view.wait_for(lambda: len(view.events()) == 500)
            recorder.kill()
            recorder.wait()
            (out / "a/one").rename(out / "a/two")
            # Another one has its name, and what is appended to it is shown in the place where it is now.
            record(store, run, store.create("u"), out / "a/one", 100, "other")
            with recording("t", "--store", store.path, "-o", out / "a/two") as second:
                app.write_patiently(500)
                app.end()
                view.wait_for(lambda: len(view.events()) >= 1200)
                finish(second)
            (out / "a/one").rename(out / "three")
            (out / "a/two").rename(out / "a/one")
            record(store, run, store.create("v"), out / "last", 10, "last")
            view.wait_for(lambda: len(view.events()) >= 1210)
            view.finish()
    found = [(one["process"], one["fields"]["n"]) for one in view.events()]
    # The other program has written to the first trace, too.
    wanted = [("app", 1000), ("other", 100), ("other", 100), ("last", 10)]
    assert sorted(found) == sorted((name, n) for name, times in wanted for n in range(times))


def test_a_file_was_not_removed_if_its_recording_is_renamed_while_it_is_looked_for(store, run, out, monkeypatch):
    trace = store.create("t", n_subbufs=64)
    app = run(trace, "app")
    listed = growing.part_places
    numbers: list[int] = []

    def renamed_behind(path, fail):
        places = list(listed(path, fail))
        (out / "one").rename(out / "two")
        monkeypatch.setattr(growing, "part_places", listed)
        yield from places

    with recording("t", "--store", store.path, "-o", out / "one", "--compress") as recorder:
        app.write_patiently(100)
        app.flush()
        wait_until(lambda: list(out.rglob("cpu0")), "the first packet")
        with (
            growing.Growing([str(out)], Wanted(), 1, print) as grows,
            closing(Export(grows.merged, Style("json"))) as export,
        ):

            def shown(look) -> list[int]:
                look()
                objects = [json.loads(line) for piece in export.pieces() for line in bytes(piece).splitlines()]
                numbers.extend(one["fields"]["n"] for one in objects if "event" in one)
                return numbers

            wait_until(lambda: len(shown(grows.look)) == 100, "what was there is shown")
            app.write_patiently(100)
            app.end()
            wait_until(lambda: list(out.rglob("cpu0.zst")) and not list(out.rglob("cpu0")), "the compressed file")
            finish(recorder)
            monkeypatch.setattr(growing, "part_places", renamed_behind)
            assert shown(grows.finish) == list(range(200))


def test_a_directory_that_is_named_twice_is_shown_once(store, run, out):
    record(store, run, store.create("t"), out / "a/one", 20)
    with viewing(out, out / "a", "--follow", "--json", "--delay", 100) as view:
        view.wait_for(lambda: len(view.events()) >= 20)
        view.finish()
    assert [one["fields"]["n"] for one in view.events()] == list(range(20))
