"""relayctl view --follow and live of directories to which receivers and recorders write: each event once."""

import json
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from forwarding import forward, forwarding, make_recording, receiving
from mounts import DEADLINE_S, wait_until
from showing import serving
from tracing import Program, finish, recording, relayctl
from viewing import Clock, View, viewing

from relayfs_fuse.native.merge import Export, Style
from relayfs_fuse.reading import growing
from relayfs_fuse.reading.growing import Growing
from relayfs_fuse.reading.live import Wanted
from relayfs_fuse.tracefiles.streams import MARK, METADATA, RECEIVED

# How many events each program writes. There are two traces, which two machines forward: each has all programs.
WRITTEN = {"one": 4000, "two": 1000, "three": 1000}


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """Where recordings arrive: a receiver has made it, and has got nothing."""
    return tmp_path / "into"


@contextmanager
def recorded(store, out: Path, nats, *more: object, name: str = "t") -> Iterator[None]:
    """Record a trace and forward the recording, until the body ends; then all of it is sent."""
    with recording(name, "--store", store.path, "-o", out) as recorder:
        with forwarding(out, nats, *more, wait_for=out / ".relayfs"):
            yield
            finish(recorder)
        forward(out, nats, *more)


def numbers_of(view: View) -> dict[tuple[str, str], list[int]]:
    """The numbers of event_writer.c's events, by machine and program."""
    found = defaultdict(list)
    for one in view.events():
        found[one.get("host", ""), one["process"]].append(one["fields"]["n"])
    return found


def has(view: View, host: str, program: Program, n: int) -> None:
    view.wait_for(lambda: len(numbers_of(view)[host, program.name.partition("-")[0]]) >= n)


def test_view_follows_a_receiver_that_is_killed_and_new_programs_and_machines(nats, store, run, into, tmp_path):
    trace, other = (store.create(name, n_subbufs=64) for name in "tu")
    relayctl("receive", "--from", nats.url, "-o", into, "--once")
    with viewing(into, "--follow", "--json", "--delay", 500) as view:
        with receiving(into, nats) as receiver, recorded(store, tmp_path / "out", nats, "--host", "a"):
            one = run(trace, "one")
            one.write_patiently(2000)
            has(view, "a", one, 1)
            receiver.kill()
            receiver.wait(DEADLINE_S)
            one.write_patiently(2000)
            with receiving(into, nats):
                # A program that is new, and has events that are declared later than its first ones.
                two = run(trace, "two")
                two.write_patiently(1000)
                has(view, "a", two, 1)
                two.end()
                with recorded(store, tmp_path / "other", nats, "--host", "b", name="u"):
                    three = run(other, "three")
                    three.write_patiently(1000)
                    three.end()
                one.end()
                for host in "ab":
                    for program in (one, two, three):
                        has(view, host, program, WRITTEN[program.name.partition("-")[0]])
        said = view.finish()
    found = numbers_of(view)
    assert {names: sorted(numbers) for names, numbers in found.items()} == {
        (host, name): list(range(n)) for host in "ab" for name, n in WRITTEN.items()
    }
    assert view.lost() == 0
    assert "relayctl: a: " in said
    assert "relayctl: b: " in said


def test_viewers_of_lttngs_protocol_follow_a_receiver(nats, store, run, into, tmp_path):
    """Also what was there before, and what comes when the receiver was killed; until relayctl is interrupted."""
    trace, other = (store.create(name, n_subbufs=64) for name in "tu")
    with ExitStack() as stack:
        stack.enter_context(recorded(store, tmp_path / "out", nats, "--host", "a"))
        receiver = stack.enter_context(receiving(into, nats))
        one = run(trace, "one")
        one.write_patiently(2000)
        wait_until(lambda: list(into.glob("a/out/one-*/cpu0")), "the first packet")
        server = stack.enter_context(serving(into, "--delay", 500))
        shown = stack.enter_context(server.showing("into"))
        shown.wait_for(lambda: len(shown.numbers("one")) > 0)
        receiver.kill()
        receiver.wait(DEADLINE_S)
        one.write_patiently(2000)
        stack.enter_context(receiving(into, nats))
        two = run(trace, "two")
        two.write_patiently(1000)
        two.end()
        shown.wait_for(lambda: len(shown.numbers("two")) >= 1000)
        stack.enter_context(recorded(store, tmp_path / "other", nats, "--host", "b", name="u"))
        three = run(other, "three")
        three.write_patiently(1000)
        three.end()
        one.end()
        shown.wait_for(lambda: len(shown.numbers()) == 2 * sum(WRITTEN.values()))
        shown.check_runs()
    numbers = defaultdict(list)
    for one in shown.events():
        numbers[one.origin.split(":")[0], one.process].append(one["n"])
    assert {names: sorted(them) for names, them in numbers.items()} == {
        (host, name): list(range(n)) for host in "ab" for name, n in WRITTEN.items()
    }
    assert shown.lost() == 0


def test_viewers_of_lttngs_protocol_are_shown_what_comes_late_and_last(store, run, into, tmp_path):
    """It gets later times than it has. No event follows that could have it shown."""
    early, late = tmp_path / "early", into / "late"
    assert make_recording(store, run, early, 100, "t") == 0
    assert make_recording(store, run, late, 100, "u") == 0
    with serving(into, "--delay", 1) as server, server.showing("into") as shown:
        shown.wait_for(lambda: len(shown.events()) == 200)
        early.rename(into / "early")
        shown.wait_for(lambda: len(shown.events()) == 400)
        shown.finish()
    assert [sorted(shown.numbers()[n : n + 200]) for n in (0, 200)] == 2 * [sorted([*range(100), *range(100)])]


def test_a_recording_is_followed_through_its_numbered_directories(store, run, out):
    """Its recorder begins new ones, ends, is started again, and is killed before it can end."""
    trace = store.create("t", n_subbufs=64)
    command = ["t", "--store", store.path, "-o", out, "--rotate-size", 40_000]
    app = run(trace, "app")
    n = 0

    def goes_on() -> bool:
        nonlocal n
        app.write_patiently(500)
        n += 500
        return (out / "0003").exists()

    with recording(*command) as recorder:
        app.write_patiently(500)
        n = 500
        wait_until(lambda: list(out.rglob("cpu0")), "the first packet")
        with viewing(out, "--follow", "--json", "--delay", 100) as view:
            wait_until(goes_on, "numbered directories")
            finish(recorder)
            with recording(*command) as second:
                app.write_patiently(500)
                app.flush()
                view.wait_for(lambda: len(view.events()) == n + 500)
                second.kill()
            with recording(*command) as third:
                app.write_patiently(100)
                app.flush()
                view.wait_for(lambda: len(view.events()) == n + 600)
                finish(third)
            assert "came late" not in view.finish()
    assert [one["fields"]["n"] for one in view.events()] == list(range(n + 600))
    # With the last 10 lines, what comes then is shown, too.
    with viewing(out, "--follow", "--json", "--delay", 100, "-n", 10) as view:
        view.wait_for(lambda: len(view.lines) == 10)
        view.finish()
    assert [one["fields"]["n"] for one in view.events()] == list(range(n + 590, n + 600))


@contextmanager
def recorded_app(store, run, out: Path, n: int, *more: object) -> Iterator[tuple[Program, subprocess.Popen[str]]]:
    """Record a program that has written n events, which are in its file cpu0."""
    app = run(store.create("t", n_subbufs=64), "app")
    with recording("t", "--store", store.path, "-o", out, *more) as recorder:
        app.write_patiently(n)
        app.flush()
        wait_until(lambda: list(out.rglob("cpu0")), "the first packet")
        yield app, recorder


@contextmanager
def stopped(view: View) -> Iterator[None]:
    """Stop relayctl view, as a terminal does that takes no more."""
    view.process.send_signal(signal.SIGSTOP)
    yield
    view.process.send_signal(signal.SIGCONT)


def begin_files(app: Program, out: Path) -> None:
    """Have it write 100 events of each of two further names, which the recorder writes to cpu0_1 and cpu0_2."""
    for number, name in enumerate(("second", "third"), 1):
        app.declare(name)
        app.write_patiently(100)
        app.flush()
        wait_until(lambda: list(out.rglob(f"cpu0_{number}")), "its file")  # noqa: B023


def shown_names(view: View) -> list[tuple[str, int]]:
    return [(one["event"], one["fields"]["n"]) for one in view.events()]


def test_what_a_recorder_compresses_before_it_was_read_is_shown(store, run, out):
    """Also files that follow the one which was read, and events that only the last metadata declare."""
    with recorded_app(store, run, out, 500, "--compress") as (app, recorder):
        with viewing(out, "--follow", "--json", "--delay", 1) as view:
            view.wait_for(lambda: len(view.events()) == 500)
            with stopped(view):
                app.write_patiently(100)
                app.flush()
                app.declare("later")
                app.write_patiently(100)
                app.end()
                wait_until(lambda: list(out.rglob("cpu0_1.zst")) and not list(out.rglob("cpu?")), "compressed files")
            view.wait_for(lambda: len(view.events()) >= 700)
            assert view.finish() == ""
        finish(recorder)
    assert shown_names(view) == [("test:later" if n >= 600 else "test:first", n) for n in range(700)]


def test_a_view_goes_on_behind_files_that_were_removed_before_it_read_them(store, run, out):
    with (
        recorded_app(store, run, out, 100) as (app, recorder),
        viewing(out, "--follow", "--json", "--delay", 1) as view,
    ):
        view.wait_for(lambda: len(view.events()) == 100)
        with stopped(view):
            begin_files(app, out)
            app.end()
            finish(recorder)
            for path in (*out.rglob("cpu0"), *out.rglob("cpu0_1")):
                path.unlink()
        view.wait_for(lambda: len(view.events()) >= 200)
        view.finish()
    assert shown_names(view) == [
        *(("test:first", n) for n in range(100)),
        *(("test:third", n) for n in range(200, 300)),
    ]


def shown_after(change: Callable[[Growing], object], directory: Path) -> list[dict]:
    """The events that are shown of a directory which has changed since it was looked at first."""
    with (
        Growing([str(directory)], Wanted(), 1, print) as growing,
        closing(Export(growing.merged, Style("json"))) as exporter,
    ):
        change(growing)
        growing.finish()
        shown = [json.loads(line) for piece in exporter.pieces() for line in bytes(piece).splitlines()]
    return [one for one in shown if "event" in one]


def test_a_file_that_appears_before_the_one_that_it_continues_is_shown_in_the_end(store, run, out, tmp_path):
    with recorded_app(store, run, out, 100) as (app, recorder):
        begin_files(app, out)
        app.end()
        finish(recorder)
    (third,) = out.rglob("cpu0_2")
    aside = third.rename(tmp_path / "aside")
    (second,) = out.rglob("cpu0_1")
    second.unlink()
    shown = shown_after(lambda _: aside.rename(third), out)
    assert [one["fields"]["n"] for one in shown] == [*range(100), *range(200, 300)]


def test_what_continues_a_file_whose_last_packets_are_lost_is_shown(nats, store, run, out, into, monkeypatch):
    """They have expired before a receiver got them: only the messages of the next file say that there is more."""
    with recorded_app(store, run, out, 100) as (app, recorder):
        begin_files(app, out)
        app.end()
        finish(recorder)
    forward(out, nats)
    _, *rest = (message.seq for message in nats.messages() if message.subject.endswith("cpu0"))
    assert rest  # the first one is empty
    nats.delete(*rest)

    def has_next_files() -> bool:
        sizes = ({path.name: path.stat().st_size for path in where.rglob("cpu0_[12]")} for where in (out, into))
        return next(sizes) == next(sizes)

    with receiving(into, nats):
        wait_until(has_next_files, "the files that continue it")
    (path,) = into.rglob("cpu0")
    clock, said, numbers = Clock(), [], []
    monkeypatch.setattr(growing, "time", clock)
    with (
        Growing([str(into)], Wanted(), 1, said.append) as grows,
        closing(Export(grows.merged, Style("json"))) as export,
    ):

        def look_until(passed_s: float) -> None:
            while clock.passed_s < passed_s:
                clock.passed_s += 1
                grows.look()
                lines = [json.loads(line) for piece in export.pieces() for line in bytes(piece).splitlines()]
                numbers.extend(one["fields"]["n"] for one in lines if "event" in one)

        look_until(growing.REST_S)
        assert numbers == []
        assert said == []
        look_until(growing.REST_S + 10)
    assert numbers == list(range(100, 300))
    assert said == [f"{path}: its last packets have not arrived; it is shown without them"]


def test_events_have_the_name_of_their_machine_if_the_mark_of_the_recording_arrives_last(store, run, into, tmp_path):
    """Files of several directories are forwarded side by side."""
    (into / RECEIVED).mkdir(parents=True)
    mark = into / "a/out" / MARK
    assert make_recording(store, run, mark.parent, 100) == 0
    aside = mark.rename(tmp_path / "aside")
    shown = shown_after(lambda _: aside.rename(mark), into)
    assert [one["host"] for one in shown] == 200 * ["a"]


def test_earlier_metadata_are_no_later_ones(store, run, out):
    """A receiver that was killed when it had written the latest may get the earlier ones again, and then the latest."""
    with recorded_app(store, run, out, 100) as (app, recorder):
        (path,) = out.rglob(METADATA)
        earlier = path.read_bytes()
        begin_files(app, out)
        app.end()
        finish(recorder)
    latest = path.read_bytes()

    def change(growing: Growing) -> None:
        for text in (earlier, latest):
            path.write_bytes(text)
            growing.look()

    assert [one["fields"]["n"] for one in shown_after(change, out)] == list(range(300))
