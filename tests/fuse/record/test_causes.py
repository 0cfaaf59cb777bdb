"""Why events were lost, and when: in the metadata of recordings, snapshots and crash cards, and in what shows them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

from babeltrace import babeltrace
from making import Maker, making
from mounts import DEADLINE_S, Mount, wait_until
from trace_processor import trace_processor
from traced import program, relayctl, start_trace
from tracing import RELAYCTL, finish, recording

SIZES = "subbuf_size=4K n_subbufs=4"
# Writes so many events of so many bytes for each line that it reads.
WRITER = """
import os, sys
from relayfs_fuse import Event
os.sched_setaffinity(0, {0})
event = Event("test", "data", {"data": "bytes"})
for line in sys.stdin:
    n, size = map(int, line.split())
    for _ in range(n):
        event(bytes(size))
    print("ok", flush=True)
"""
LOSS = re.compile(r"\[\S+\] python[\w.]*-\d+ cpu0 lost (\d+) events? since \[\S+\]: (\w+)")


def writing(mount: Mount) -> AbstractContextManager[Maker]:
    return making({"RELAYFS": str(mount.path)}, None, [sys.executable, "-c", WRITER])


def told_to_babeltrace(directory: Path) -> list[list[str]]:
    """Return the words of each interval in the environment of the trace, as babeltrace2 reads it."""
    done = subprocess.run(
        ["babeltrace2", directory, "-c", "sink.text.details", "--params=with-metadata=true,color=\"never\""],
        capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    found = dict(re.findall(r"^\s+loss_(\d+): (.+)$", done.stdout, re.MULTILINE))
    return [found[str(number)].split() for number in range(len(found))]


def shown(directory: Path, *words: str) -> str:
    done = subprocess.run(
        [RELAYCTL, *words, directory], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )  # fmt: skip
    return done.stdout


def causes_in(directory: Path) -> list[tuple[str, int]]:
    """Return cause and number of each loss that view and export show, which are the same."""
    lines = shown(directory, "view").splitlines()
    found = [(match[2], int(match[1])) for line in lines if (match := LOSS.fullmatch(line))]
    assert [line for line in shown(directory, "export", "--text").splitlines() if " lost " in line] == [
        line for line in lines if " lost " in line
    ]
    for command in ("view", "export"):
        objects = map(json.loads, shown(directory, command, "--json").splitlines())
        assert [(one["cause"], one["lost"]) for one in objects if "lost" in one] == found
    return found


def check_causes(directory: Path, expected: list[tuple[str, int]]) -> None:
    """Compare what all outputs tell of losses with what the packets count."""
    assert causes_in(directory) == expected
    sums: Counter[str] = Counter()
    for since, until, buffer, cause, records, _ in told_to_babeltrace(directory):
        assert buffer == "0"
        assert (0 if since == "-" else int(since)) <= int(until)
        sums[cause] += int(records)
    assert sums == dict(expected)
    assert sums.total() == babeltrace(directory).lost


def has_noted(out: Path, told: str) -> bool:
    return any(f" {told} " in path.read_text() for path in out.glob("*/metadata"))


def n_lost(mount: Mount, cause: str) -> int:
    (process,) = (mount.path / "t").glob("python*")
    return int((mount.path / ".channels/t" / process.name / f"cpu/lost_{cause}").read_text())


def test_a_recording_tells_why_events_were_lost_at_their_place(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", SIZES)
    out = tmp_path / "out"
    with writing(mount) as writer, recording("t", "-m", mount.path, "-o", out) as recorder:
        writer("5 10")
        writer("3 5000")
        writer("5 10")
        wait_until(lambda: has_noted(out, "too_large 3"), "the recorder looks")
        recorder.send_signal(signal.SIGSTOP)
        writer("500 100")
        n_full = n_lost(mount, "full")
        recorder.send_signal(signal.SIGCONT)
        finish(recorder)
    assert n_full > 0
    check_causes(out, [("too_large", 3), ("full", n_full)])
    exported = tmp_path / "exported"
    shown(out, "export", "--perfetto", "-o", str(exported))
    with trace_processor(exported) as query:
        found = query(
            "select max(case when key = 'debug.cause' then string_value end) cause, "
            "max(case when key = 'debug.events' then int_value end) n from slice join args using (arg_set_id) "
            "join track on track.id = slice.track_id where track.name = 'lost' group by slice.id order by ts"
        )
    assert [(row["cause"], row["n"]) for row in found] == [("too_large", 3), ("full", n_full)]
    shown(out, "export", "--chrome", "-o", str(exported))
    arguments = [one["args"] for one in json.loads(exported.read_text())["traceEvents"] if one.get("name") == "lost"]
    assert [(one["cause"], one["events"]) for one in arguments] == [("too_large", 3), ("full", n_full)]


def test_a_recorder_that_goes_on_tells_of_losses_before_it(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", SIZES)
    out = tmp_path / "out"
    record = "t", "-m", mount.path, "-o", out
    with writing(mount) as writer:
        with recording(*record) as recorder:
            writer("5 10")
            writer("3 5000")
            wait_until(lambda: has_noted(out, "too_large 3"), "the recorder looks")
            recorder.kill()
        writer("500 100")
        n_full = n_lost(mount, "full")
        with recording(*record) as recorder:
            finish(recorder)
    check_causes(out, [("too_large", 3), ("full", n_full)])
    # What was lost while nobody looked is of a time between the two.
    (before, _, *_), (since, until, *_) = told_to_babeltrace(out)
    assert int(before) < int(since) < int(until)


def test_snapshots_and_crash_cards_have_the_intervals_that_the_server_has_seen(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", SIZES)
    out = tmp_path / "out"
    with writing(mount) as writer:
        writer("5 10")
        writer("3 5000")
        wait_until(lambda: list(mount.path.glob(".channels/t/*/cpu/losses")), "the server shows the process")
        (losses,) = mount.path.glob(".channels/t/*/cpu/losses")
        wait_until(losses.read_text, "the server has looked")
        writer("500 100")
        expected = [("too_large", 3), ("full", n_lost(mount, "full"))]
        assert relayctl(mount, "snapshot", "t", "-o", out).returncode == 0
        check_causes(out, expected)
        noted = [line.split() for line in losses.read_text().splitlines()]
        assert [words[3:] for words in told_to_babeltrace(out)] == [words[3:] for words in noted]
        assert relayctl(mount, "snapshot", "t", "--store", mount.store, "-o", tmp_path / "store").returncode == 0
        # Without a server the counts are known, and not when they have grown since the trace was made.
        (full, too_large) = sorted(told_to_babeltrace(tmp_path / "store"), key=lambda words: words[3])
        assert (full[0], full[3:5]) == (too_large[0], ["full", str(expected[1][1])])
        assert too_large[3:5] == ["too_large", "3"]
        sums: Counter[str] = Counter()
        for cause, n in causes_in(tmp_path / "store"):
            sums[cause] += n
        assert sums == dict(expected)
        writer.process.kill()
        cards = mount.path / ".crashed"
        wait_until(lambda: os.listdir(cards), "there is a card")
        (card,) = cards.iterdir()
        check_causes(card / "ctf", expected)
        lines = [line for line in (card / "events").read_text().splitlines() if " lost " in line]
        assert [line.rpartition(": ")[2] for line in lines] == ["too_large", "full"]


def test_events_without_buffers_are_lines_of_the_trace(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t")
    with writing(mount) as writer:
        writer("5 10")
        # Enough descriptors to find the mount, and too few for buffers.
        with making({"RELAYFS": str(mount.path)}, None, ["prlimit", "--nofile=6:6", program("traced")]) as maker:
            maker.ask("emit 200")
        assert relayctl(mount, "snapshot", "t", "-o", tmp_path / "out").returncode == 0
    lines = [line for line in shown(tmp_path / "out", "view").splitlines() if " lost " in line]
    assert len(lines) == 1
    assert re.fullmatch(r"\[\S+\] t lost 200 events since \[\S+\]: no_buffers", lines[0])
    found = map(json.loads, shown(tmp_path / "out", "export", "--json").splitlines())
    (one,) = [line for line in found if "lost" in line]
    assert (one["process"], one["lost"], one["cause"], "cpu" in one) == ("t", 200, "no_buffers", False)
    assert [words[2:5] for words in told_to_babeltrace(tmp_path / "out")] == [["-", "no_buffers", "200"]]
