"""relay_app: every byte of a channel goes to one place once, in order, whatever starts, stops and dies."""

import os
import re
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import MEMORY, PLAIN, PROGRAMS, THREADS, builds, compile_c
from mounts import DEADLINE_S, Mount, wait_until
from running_app import CHANNEL, Start
from traffic import LINE_BYTES, Stream, lines, some_cpu

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

STUCK_WRITER = PROGRAMS / "stuck_writer.c"
LINES_IN_4K = 4096 // LINE_BYTES
PADDING_IN_4K = 4096 % LINE_BYTES
FOR_EVER_MS = int(DEADLINE_S * 1000)


@pytest.fixture
def producers() -> Iterator[list[Stream]]:
    streams: list[Stream] = []
    yield streams
    for stream in streams:
        stream.kill()


WAYS = pytest.mark.parametrize("way", [(), ("read",)], ids=["mmap", "read"])
SCHEMES = pytest.mark.parametrize("scheme", ["rseq", "lockless"])


def written_by(out: bytes, first: int) -> bytes:
    """The lines of a producer whose lines begin with this number, in the order in which they came."""
    own = [line for line in out.splitlines(keepends=True) if first <= int(line.split()[1]) < first + 1_000_000]
    return b"".join(own)


@WAYS
@SCHEMES
@pytest.mark.parametrize("sanitize", builds(PLAIN, MEMORY, THREADS))
def test_all_that_several_producers_write_is_in_the_output_once_in_order(
    mount: Mount, open_app: Start, producers: list[Stream], way, scheme, sanitize
):
    app = open_app(*way, f"create=scheme={scheme} subbuf_size=64K n_subbufs=32", sanitize=sanitize)
    cpus = sorted(os.sched_getaffinity(0))
    app.start()
    producers += [Stream(mount, CHANNEL, cpu=cpus[i % len(cpus)], written=i * 1_000_000) for i in range(4)]
    for stream in producers:
        stream.start(burst=200, pause_ms=1, at_most=10_000)
    wait_until(lambda: mount.shown(CHANNEL, "records") == "40000", "all is written")
    app.stop()
    for stream in producers:
        own = written_by(app.of(stream.cpu), stream.written)
        assert own == lines(10_000, stream.written)
    assert len(app.everything()) == 40_000 * LINE_BYTES
    assert mount.shown(CHANNEL, "lost") == "0"
    assert {name: app.stats()[name] for name in ("bytes", "lost_records")} == {
        "bytes": 40_000 * LINE_BYTES,
        "lost_records": 0,
    }
    app.finish()


def write_until_refused(path: Path, written: list[bytes], over: threading.Event) -> None:
    """Write records one by one, wherever this runs; remember those that were taken."""
    i = 0
    descriptor = os.open(path, os.O_WRONLY)
    while not over.is_set():
        record = b"%09d\n" % i
        try:
            os.write(descriptor, record)
            written.append(record)
            i += 1
        except OSError:
            pass
    os.close(descriptor)


@WAYS
def test_cycles_of_start_and_stop_put_just_what_was_taken_into_one_file(mount: Mount, open_app: Start, way):
    app = open_app(*way, "create=buffers=global subbuf_size=4K n_subbufs=16")
    written: list[bytes] = []
    over = threading.Event()
    writer = threading.Thread(target=write_until_refused, args=(mount.path / f"{CHANNEL}0", written, over))
    writer.start()
    try:
        for _ in range(20):
            app.start()
            n = len(written)
            wait_until(lambda n=n: len(written) > n + 20, "records are taken")
            app.stop()
            n_bytes = len(app.of(0))
            assert n_bytes == int(mount.shown(CHANNEL, "bytes")) == int(mount.shown(CHANNEL, "read_bytes"))
            assert mount.shown(CHANNEL, "disabled") == "1"
            refused = int(mount.shown(CHANNEL, "lost_disabled"))
            wait_until(lambda n=refused: int(mount.shown(CHANNEL, "lost_disabled")) > n, "records are refused")
    finally:
        over.set()
        writer.join()
    assert app.of(0) == b"".join(written)


@WAYS
def test_what_was_written_before_the_first_start_is_there(mount: Mount, open_app: Start, way):
    mount.create(CHANNEL, "buffers=global")
    (mount.path / f"{CHANNEL}0").write_bytes(b"early\n")
    app = open_app(*way)
    app.start()
    app.stop()
    assert app.of(0) == b"early\n"


@WAYS
def test_a_finished_sub_buffer_is_written_out_while_the_app_runs(mount: Mount, open_app: Start, way):
    app = open_app(*way, "create=buffers=global subbuf_size=4K")
    app.start()
    for _ in range(3):
        before = len(app.of(0))
        (mount.path / f"{CHANNEL}0").write_bytes(b"a\n")
        mount.command(f"flush {CHANNEL}\n")
        wait_until(lambda before=before: len(app.of(0)) == before + 2, "it is written out")


@WAYS
def test_with_packet_delivery_each_record_is_written_out_at_once(mount: Mount, open_app: Start, way):
    app = open_app(*way, "create=buffers=global delivery=packet")
    app.start()
    for n in range(1, 4):
        (mount.path / f"{CHANNEL}0").write_bytes(b"a\n")
        wait_until(lambda n=n: app.of(0) == b"a\n" * n, "it is written out")


@WAYS
@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
def test_readers_sleep_while_there_is_nothing(mount: Mount, open_app: Start, way, mode):
    """Finished sub-buffers that are empty, and one that is not finished, are nothing."""
    app = open_app(*way, f"create=buffers=global mode={mode} subbuf_size=4K n_subbufs=8")
    app.start()
    for _ in range(3):
        mount.command(f"flush {CHANNEL}\n")
    (mount.path / f"{CHANNEL}0").write_bytes(b"a\n")
    app.check_asleep()
    assert app.of(0) == b"" if not way else app.of(0) in (b"", b"a\n")
    app.stop()
    assert app.of(0) == b"a\n"


@WAYS
def test_what_stands_behind_a_record_in_the_making_comes_later(mount: Mount, open_app: Start, way):
    app = open_app(*way, "create=buffers=single scheme=lockless subbuf_size=4K")
    app.start()
    stuck = subprocess.Popen([compile_c([STUCK_WRITER]), mount.path / CHANNEL], stdout=subprocess.PIPE)
    try:
        assert stuck.stdout is not None
        assert stuck.stdout.readline() == b"stuck\n"
        (mount.path / CHANNEL).write_bytes(b"behind\n")
        mount.command(f"flush {CHANNEL}\n")
        # In the memory, it waits for the whole sub-buffer.
        wait_until(lambda: app.of(0) == (b"before\n" if way else b""), "it reads up to there")
        app.check_asleep()
        assert app.ask("stop") == "EBUSY"
        assert app.of(0) == b"before\n"
    finally:
        stuck.kill()
        stuck.communicate()
    app.start()
    app.stop()
    assert app.of(0) == b"before\nbehind\n"
    assert mount.shown(CHANNEL, "lost") == mount.shown(CHANNEL, "lost_torn") == "1"


def test_pieces_are_whole_sub_buffers_with_their_padding(mount: Mount, open_app: Start):
    mount.create(CHANNEL, "subbuf_size=4K n_subbufs=16 delivery=bulk")
    stream = Stream(mount, CHANNEL)
    app = open_app("pieces")
    app.start()
    stream.write(10 * LINES_IN_4K + 5)
    app.stop()
    whole = (LINES_IN_4K * LINE_BYTES, PADDING_IN_4K)
    assert app.pieces(stream.cpu) == [*[whole] * 10, (5 * LINE_BYTES, 4096 - 5 * LINE_BYTES)]
    app.start()
    stream.write(3)
    app.stop()
    assert app.pieces(stream.cpu)[-1] == (3 * LINE_BYTES, 4096 - 3 * LINE_BYTES)
    assert app.of(stream.cpu) == lines(stream.written)
    assert app.stats()["pieces"] == 1


@WAYS
def test_a_piece_that_is_refused_comes_again(mount: Mount, open_app: Start, way):
    app = open_app("pieces", *way, "create=buffers=global subbuf_size=4K")
    app.start()
    app.ask("refuse 1")
    (mount.path / f"{CHANNEL}0").write_bytes(b"first\n")
    mount.command(f"flush {CHANNEL}\n")
    assert app.ask(f"over {FOR_EVER_MS}") == "1"
    (mount.path / f"{CHANNEL}0").write_bytes(b"second\n")
    assert app.ask("stop") == "EDOM"
    app.ask("refuse 0")
    app.start()
    app.stop()
    assert app.of(0) == b"first\nsecond\n"


@WAYS
def test_what_does_not_fit_on_the_disk_stays_in_the_channel(mount: Mount, open_app: Start, tmp_path: Path, way):
    app = open_app(*way, "create=buffers=global subbuf_size=4K n_subbufs=16")
    resource.prlimit(app.process.pid, resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    app.start()
    expected = b"".join(b"%09d\n" % i for i in range(3000))
    for start in range(0, len(expected), 4090):
        (mount.path / f"{CHANNEL}0").write_bytes(expected[start : start + 4090])
    assert app.ask("stop") == "EFBIG"
    assert len(app.of(0)) <= 10_000
    assert expected.startswith(app.of(0))
    resource.prlimit(app.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    app.start()
    app.stop()
    assert app.of(0) == expected


@pytest.mark.parametrize("keep", [(), ("keep",)], ids=["disabled", "kept"])
@WAYS
def test_overwritten_records_are_counted_and_none_is_torn(
    mount: Mount, open_app: Start, producers: list[Stream], way, keep
):
    app = open_app(*way, *keep, "create=mode=overwrite subbuf_size=4K n_subbufs=4")
    stream = Stream(mount, CHANNEL)
    producers.append(stream)
    stream.write(50_000)
    app.start()
    stream.start(burst=2000, pause_ms=0, at_most=200_000)
    wait_until(lambda: stream.shown("records") == 250_000, "all is written")
    app.stop()
    stream.finish()
    out = app.of(stream.cpu).splitlines(keepends=True)
    numbers = [int(line.split()[1]) for line in out]
    assert out == [b"line %08d ................\n" % number for number in numbers]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 249_999
    assert len(numbers) + stream.shown("lost_overwritten") == 250_000
    assert app.stats()["max_backlog"] > 0
    assert mount.shown(CHANNEL, "disabled") == ("0" if keep else "1")


def test_a_piece_that_is_overwritten_while_it_is_taken_is_not_in_the_output(mount: Mount, open_app: Start):
    app = open_app("create=buffers=global mode=overwrite subbuf_size=1M n_subbufs=2")
    records = [b"%07d\n" % i * 512 for i in range(2048)]
    app.start()
    with Channel(mount.path / CHANNEL) as channel:
        for _ in range(50):
            channel.write_many(records)
    app.stop()
    out = app.of(0)
    torn = [at for at in range(0, len(out), 4096) if out[at : at + 8] * 512 != out[at : at + 4096]]
    assert torn == []
    assert len(out) > 0
    assert len(out) + int(mount.shown(CHANNEL, "lost_overwritten_bytes")) == 50 * 2048 * 4096


def test_losses_are_those_since_the_start(mount: Mount, open_app: Start):
    mount.create(CHANNEL, "buffers=global subbuf_size=10 n_subbufs=2")
    file = mount.path / f"{CHANNEL}0"
    with pytest.raises(OSError, match="too long"):
        file.write_bytes(b"x" * 11)
    app = open_app("pieces")
    app.start()
    assert app.stats()["lost_records"] == 0
    app.ask("refuse 1")
    for _ in range(2):
        file.write_bytes(b"x" * 10)
    with pytest.raises(OSError, match="space"):
        file.write_bytes(b"x" * 7)
    assert {name: app.stats()[name] for name in ("lost_records", "lost_bytes")} == {"lost_records": 1, "lost_bytes": 7}


@WAYS
def test_a_stop_that_keeps_the_channel_enabled_ends_though_producers_go_on(
    mount: Mount, open_app: Start, producers: list[Stream], way
):
    app = open_app(*way, "keep", "create=subbuf_size=64K n_subbufs=64")
    stream = Stream(mount, CHANNEL)
    producers.append(stream)
    stream.start(burst=100, pause_ms=1)
    for _ in range(5):
        app.start()
        n = stream.shown("records")
        wait_until(lambda n=n: stream.shown("records") > n + 500, "records are written")
        before = stream.shown("bytes")
        app.stop()
        assert len(app.of(stream.cpu)) >= before
    assert app.of(stream.cpu) + stream.rest() == lines(stream.written)


def test_a_killed_app_has_lost_nothing(mount: Mount, open_app: Start, producers: list[Stream]):
    stream = Stream(mount, CHANNEL)
    producers.append(stream)
    n_kills, lines_a_time = 10, 20_000
    # Room for all lines, however long a killed app's successor takes to come: a full buffer ends the producer.
    n_subbufs = 2048
    assert n_kills * lines_a_time < (n_subbufs - 1) * LINES_IN_4K
    mount.create(CHANNEL, f"subbuf_size=4K n_subbufs={n_subbufs}")
    app = open_app()
    for _ in range(n_kills):
        n = len(app.of(stream.cpu))
        stream.start(burst=100, pause_ms=1, at_most=lines_a_time)
        app.start()
        wait_until(lambda app=app, n=n: len(app.of(stream.cpu)) > n + 3 * 4096, "it is at work")
        app.kill()
        app = open_app("append")
        stream.finish()
    app.start()
    app.stop()
    assert app.of(stream.cpu) == lines(stream.written)
    assert mount.shown(CHANNEL, "lost") == "0"


@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
@pytest.mark.parametrize(
    ("left", "kept"),
    [(b"", b""), (b"next li", b""), (b"next line\n", b""), (b"next lime\n", b"next lime\n"), (b"next line\n" * 2,) * 2],
    ids=str,
)
def test_who_goes_on_cuts_off_what_is_written_and_not_consumed(mount: Mount, open_app: Start, mode, left, kept):
    """left: what the app that was killed has written of a piece; kept: something else."""
    app = open_app(f"create=buffers=global mode={mode}")
    file = mount.path / f"{CHANNEL}0"
    file.write_bytes(b"read by others\n")
    assert file.read_bytes() == b"read by others\n"
    app.start()
    file.write_bytes(b"first line\n")
    mount.command(f"flush {CHANNEL}\n")
    wait_until(lambda: mount.shown(CHANNEL, "unread_bytes") == "0", "it is written out and consumed")
    app.kill()
    file.write_bytes(b"next line\n")
    with Path(f"{app.output}0").open("ab") as output:
        output.write(left)
    app = open_app("append")
    app.start()
    app.stop()
    assert app.of(0) == b"first line\n" + kept + b"next line\n"
    # What was ended in order is left alone, though by the numbers its end could come again.
    app.finish()
    mount.command(f"enable {CHANNEL}\nreset {CHANNEL}\n")
    file.write_bytes(b"as many bytes, by others.\n")
    assert len(file.read_bytes()) == len(b"read by others\nfirst line\n")
    file.write_bytes(b"next line\n")
    app = open_app("append")
    assert app.of(0) == b"first line\n" + kept + b"next line\n"


@WAYS
def test_the_app_is_told_that_the_channel_is_removed_and_has_all_of_it(mount: Mount, open_app: Start, way):
    app = open_app(*way, "create=buffers=global")
    app.start()
    assert app.ask("over 0") == "0"
    (mount.path / f"{CHANNEL}0").write_bytes(b"last words\n")
    mount.command(f"remove {CHANNEL}\n")
    assert app.ask(f"over {FOR_EVER_MS}") == "1"
    assert app.of(0) == b"last words\n"
    app.stop()
    assert app.ask("stop") == "EALREADY"
    app.finish()


@WAYS
def test_an_app_may_be_closed_while_it_runs(mount: Mount, open_app: Start, way):
    app = open_app(*way, "create=buffers=global")
    app.start()
    (mount.path / f"{CHANNEL}0").write_bytes(b"last words\n")
    app.finish()
    assert app.of(0) == b"last words\n"
    assert mount.shown(CHANNEL, "disabled") == "1"


@pytest.mark.one_mount(False)
def test_reading_from_memory_needs_no_server(mount: Mount, open_app: Start, producers: list[Stream]):
    mount.expect("")
    mount.create(CHANNEL, "subbuf_size=4K n_subbufs=64")
    stream = Stream(mount, CHANNEL)
    producers.append(stream)
    app = open_app()
    app.start()
    stream.start(burst=50, pause_ms=5)
    wait_until(lambda: len(app.of(stream.cpu)) > 0, "it is at work")
    mount.kill()
    n = len(app.of(stream.cpu))
    wait_until(lambda: len(app.of(stream.cpu)) > n + 3 * 4096, "it goes on")
    written = stream.finish()
    app.stop()
    assert app.of(stream.cpu) == lines(written)


@pytest.mark.one_mount(False)
def test_a_reader_through_the_server_ends_with_it(mount: Mount, open_app: Start):
    mount.expect("")
    app = open_app("read", "create=buffers=global")
    app.start()
    mount.kill()
    assert app.ask(f"over {FOR_EVER_MS}") == "1"
    assert app.ask("stop") in {"ENOTCONN", "ECONNABORTED", "ENODEV"}


@pytest.mark.parametrize(
    ("options", "answer"),
    [((), "ENOENT"), (("create=subbuf_size=0",), "EINVAL"), (("create=", "pieces"), "0")],
    ids=str,
)
def test_opening_says_why_it_cannot(open_app: Start, options, answer):
    assert open_app(*options).opened == answer


def test_opening_says_that_there_can_be_no_output(mount: Mount, open_app: Start):
    assert open_app("create=", output="none/out").opened == "ENOENT"


def test_the_app_starts_once_at_a_time_and_takes_no_signals(mount: Mount, open_app: Start):
    app = open_app("create=buffers=single")
    assert app.ask("stop") == "EALREADY"
    app.start()
    assert app.ask("start") == "EALREADY"
    tasks = [path / "status" for path in Path(f"/proc/{app.process.pid}/task").iterdir()]
    blocked = [int(re.findall(r"SigBlk:\t(\w+)", path.read_text())[0], 16) >> signal.SIGTERM - 1 & 1 for path in tasks]
    assert sorted(blocked) == [0, 1]
    app.stop()
    assert app.of(0) == b""


def test_each_reader_runs_on_the_cpu_of_its_buffer(mount: Mount, open_app: Start):
    app = open_app("create=")
    app.start()
    cpus = sorted(os.sched_getaffinity(0))
    assert some_cpu() in cpus

    def masks() -> list[set[int]]:
        tasks = [int(path.name) for path in Path(f"/proc/{app.process.pid}/task").iterdir()]
        return sorted((os.sched_getaffinity(task) for task in tasks if task != app.process.pid), key=min)

    # Each goes there itself when it begins.
    wait_until(lambda: masks() == [{cpu} for cpu in cpus], lambda: f"the readers run on {masks()}")


@WAYS
def test_output_files_grow_by_no_more_than_the_limit(mount: Mount, open_app: Start, way: tuple[str, ...]) -> None:
    """What has no room stays in the channel."""
    channel = mount.create(CHANNEL, "buffers=single subbuf_size=4K n_subbufs=8")
    written = [(b"%d" % number).ljust(99) + b"\n" for number in range(250)]
    with Channel(channel) as opened:
        for line in written:
            opened.write(line)
    app = open_app("keep", "append", *way)
    sizes = []
    for limit, result in ((4095, "EDQUOT"), (10_000, "EDQUOT"), (1 << 20, "0")):
        assert app.ask(f"limit {limit}") == "0"
        app.start()
        assert app.ask(f"limit {limit}") == "EALREADY"
        assert app.ask("stop") == result
        sizes.append(len(app.of(0)))
    # Of what read(2) has returned, nothing is given back.
    assert sizes == [0, 0 if way else 8000, len(written) * 100]
    assert app.of(0) == b"".join(written)
    app.finish()
    app = open_app("pieces", "keep")
    assert app.ask("limit 4096") == "EINVAL"
    app.finish()
