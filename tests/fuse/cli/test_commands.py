"""relayctl create, remove and so on, trace, list and stat: beside the control file and the statistics of a mount."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from forking import RELAYCTL, start
from kernel_ring import KernelRing
from mounts import DEADLINE_S, Mount, User, wait_until
from traced import directory_of, relayctl, start_trace, traced

from relayfs_fuse import Counters, native
from relayfs_fuse.cli.figures import CAUSES

pytestmark = pytest.mark.one_mount

SMALL = ("buffers=single", "subbuf_size=4K", "n_subbufs=4")
KEYS = [
    "name", "kind", "state", "buffers", "size", "memory", "writers", "count", "bytes", "rate", "byte_rate",
    "unread_bytes", "fill", "lost", "lost_by_cause",
]  # fmt: skip


def run(mount: Mount, *words: str | Path) -> str:
    """Run a command that must succeed, without a message; return what it printed."""
    done = relayctl(mount, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def said(mount: Mount, status: int, *words: str | Path) -> str:
    """Run a command that must end with this status, and print nothing; return its message."""
    done = relayctl(mount, *words)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    return done.stderr


def objects(text: str) -> dict[str, dict]:
    """By name, what --json has printed."""
    found = list(map(json.loads, text.splitlines()))
    assert all(list(one) == KEYS for one in found)
    return {one["name"]: one for one in found}


# --- commands ---


def test_channels_are_made_changed_and_removed(mount):
    assert run(mount, "create", "dir/one", *SMALL) == ""
    run(mount, "create", mount.path / "dir/ring", "type=ring", "size=8K", "framing=line")
    assert [line.split()[:3] for line in mount.channels().splitlines()] == [
        ["create", "dir/one", "subbuf_size=4K"], ["create", "dir/ring", "type=ring"],
    ]  # fmt: skip
    (mount.path / "dir/one").write_bytes(b"record")
    run(mount, "disable", "dir/one", mount.path / "dir/ring")
    assert (mount.shown("dir/one", "disabled"), mount.shown("dir/ring", "disabled")) == ("1", "1")
    run(mount, "enable", "dir/one", "dir/ring")
    assert (mount.shown("dir/one", "disabled"), mount.shown("dir/ring", "disabled")) == ("0", "0")
    run(mount, "flush", "dir/one")
    assert mount.shown("dir/one", "produced") == "1"
    run(mount, "resume", "dir/one")
    run(mount, "reset", "dir/one")
    assert (mount.shown("dir/one", "produced"), mount.shown("dir/one", "records")) == ("0", "0")
    run(mount, "remove", "dir/one", "dir/ring")
    assert not (mount.path / "dir").exists()


def test_a_refusal_is_printed_as_the_error_log_has_it(mount):
    message = said(mount, 1, "create", "app", "n_subbufs=0")
    why = "n_subbufs=0: not allowed; allowed: a number, 1 to 4294967295"
    assert message == f"relayctl: create app n_subbufs=0: {why}\n"
    assert f"create: error: {why} [EINVAL]" in mount.error_log
    assert "did you mean" in said(mount, 1, "create", "app", "bufers=single")
    hint = "there is no option --mode; keys are written mode=VALUE, as in mode=overwrite\n"
    for words in (["--mode", "overwrite"], ["--mode=overwrite"]):
        assert said(mount, 2, "create", "app", *words).endswith(hint)
    assert "No such option" in said(mount, 2, "create", "app", "--moumt", "x")
    assert said(mount, 2, "stats").endswith("No such command 'stats'. Did you mean 'stat'?\n")
    assert "Did you mean" not in said(mount, 2, "xyz")
    assert mount.channels() == ""


def test_of_several_channels_all_are_tried(mount):
    for name in ("a", "b"):
        mount.create(name, "buffers=single")
    message = said(mount, 1, "remove", "a", "none", "b", "neither")
    assert [line.split(":")[1] for line in message.splitlines()] == [" remove none", " remove neither"]
    assert mount.channels() == ""


@pytest.mark.parametrize("path", ["a b", "a\nremove b", "a\tn_subbufs=2", ""])
def test_an_argument_is_one_word_of_one_command(mount, path):
    mount.create("b", "buffers=single")
    assert "has no blanks and no newlines" in said(mount, 2, "create", path)
    assert "has no blanks and no newlines" in said(mount, 2, "trace", "create", "t", f"filter={path} x")
    assert "a condition has no newlines" in said(mount, 2, "trace", "enable", "t", "a:*", "--if", "x > 1\nremove b")
    assert [line.split()[1] for line in mount.channels().splitlines()] == ["b"]


def test_what_only_looks_like_a_mount_gets_no_commands(mount, tmp_path):
    """Any user can make such a directory, and wait for root."""
    (tmp_path / ".channels").mkdir()
    (tmp_path / "error_log").touch()
    other = tmp_path / "other"
    other.write_text("text that is not to change\n")
    (tmp_path / "control").symlink_to(other)
    for words in (["create", tmp_path / "app"], ["trace", "create", "t", "--mount", tmp_path]):
        assert said(mount, 1, *words) == f"relayctl: {tmp_path}/control is not the control file of a mount\n"
    assert other.read_text() == "text that is not to change\n"


def test_what_another_user_shows_in_a_mount_is_neither_allocated_nor_sent_to_the_terminal(mount, tmp_path):
    stats = tmp_path / ".channels/app"
    stats.mkdir(parents=True)
    (tmp_path / "error_log").touch()
    (tmp_path / "control").write_text("create \x1b]0;title\x07 subbuf_size=4K\n")
    shown = {"type": "relay", "mode": "overwrite", "buffers": "percpu", "times": "none", "n_buffers": "1" + "0" * 15}
    for name, word in shown.items():
        (stats / name).write_text(f"{word}\n")
    (stats / "mem0").touch()
    (stats / "buffer0").mkdir()
    (stats / "buffer0/unread_bytes").write_text("1\n")
    within = ["prlimit", f"--as={2 << 30}", RELAYCTL, "cat", "--mount", tmp_path]
    for options, missing in ([], "app0"), (["--peek"], ".channels/app/peek0"):
        done = subprocess.run(
            [*within, *options, "app"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith(f"relayctl: {tmp_path}/{missing}: ")
    message = said(mount, 1, "cat", "none", "--mount", tmp_path)
    assert message.endswith("channels: \\x1b]0;title\\x07\n")
    for name, word in ("n_buffers", "x" * 9), ("n_buffers", "9" * 100), ("type", "none"):
        (stats / name).write_text(word)
        assert said(mount, 1, "cat", "app", "--mount", tmp_path) != ""


def test_traces_are_made_chosen_started_and_removed(mount):
    run(mount, "trace", "create", "t", "subbuf_size=8K", "filter=uid:7")
    run(mount, "trace", "disable", "t", "x:*", "y:*")
    notice = relayctl(mount, "trace", "enable", "t", "x:y", "--if", 'ms > 5 && path ~ "/api/*"')
    assert (notice.returncode, notice.stdout) == (0, "")
    run(mount, "trace", "start", "t")
    assert mount.channels().splitlines() == [
        "trace create t subbuf_size=8K n_subbufs=8 mode=no-overwrite buffers=perprocess clock=mono filter=uid:7",
        "trace disable t x:*",
        "trace disable t y:*",
        'trace enable t x:y if ms > 5 && path ~ "/api/*"',
        "trace start t",
    ]
    assert run(mount, "trace", "list").split()[:2] == ["t", "started"]
    run(mount, "trace", "stop", "t")
    assert run(mount, "trace", "list").split()[:2] == ["t", "stopped"]
    assert "no trace u" in said(mount, 1, "trace", "start", "u")
    run(mount, "trace", "remove", "t")
    assert mount.channels() == ""


def test_a_notice_about_a_command_is_printed(mount):
    trace = start_trace(mount, "t")
    with traced(mount) as program:
        program.ask("emit 1")
        directory_of(trace, program)
        done = relayctl(mount, "trace", "enable", "t", "nothing:*")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("relayctl: trace enable t nothing:*: ")
    assert done.stderr[len("relayctl: trace enable t nothing:*: ") :].strip() in mount.error_log
    run(mount, "trace", "remove", "t")


# --- figures ---


def test_all_kinds_have_one_form(mount):
    mount.create("a", " ".join(SMALL)).write_bytes(b"x" * 1000)
    mount.create("b", "type=ring size=8K buffers=global")
    (mount.path / "b0").write_bytes(b"record")
    start_trace(mount, "c", "subbuf_size=4K n_subbufs=8")
    with Counters(mount.path) as counters, traced(mount, cpus=[0]) as program:
        counters.add("d/up").adjust(7)
        counters.add("d/gauge", kind="gauge").adjust(-3)
        program.ask("emit 10")
        found = objects(run(mount, "stat", "--json"))
        listed = run(mount, "list").splitlines()
        counters.delete("d/up")
        counters.delete("d/gauge")
    assert {name: one["kind"] for name, one in found.items()} == {
        "a": "relay", "b": "ring", "c": "trace", "d/gauge": "gauge", "d/up": "counter",
    }  # fmt: skip
    assert [line.split()[0] for line in listed] == list(found)
    assert listed[0].split()[1:4] == ["relay", "1", "16K"]
    a, b, c = found["a"], found["b"], found["c"]
    for name, one in (("a", a), ("b", b)):
        shown = {key: int(mount.shown(name, key)) for key in ("records", "unread_bytes", "file_bytes", "lost")}
        assert (one["count"], one["unread_bytes"], one["memory"], one["lost"]) == tuple(shown.values())
        assert (one["state"], one["buffers"], one["writers"]) == ("ok", 1, None)
    assert (a["bytes"], a["size"], a["fill"]) == (1000, 16 << 10, pytest.approx(1000 / (16 << 10)))
    assert (b["size"], b["fill"]) == (8 << 10, b["unread_bytes"] / (8 << 10))
    assert (c["state"], c["count"], c["writers"], c["size"]) == ("started", 10, 1, 32 << 10)
    assert (found["d/up"]["count"], found["d/gauge"]["count"], found["d/up"]["lost"]) == (7, -3, None)
    run(mount, "trace", "remove", "c")


def test_losses_are_told_by_cause(mount):
    path = mount.create("full", " ".join(SMALL))
    for _ in range(4):
        path.write_bytes(b"x" * 4000)
    with pytest.raises(OSError, match="No space"):
        path.write_bytes(b"x" * 4000)
    with pytest.raises(OSError, match="too long"):
        path.write_bytes(b"x" * 5000)
    mount.command("disable full")
    *_, unread, fill, lost, causes, state = run(mount, "stat", "full").split()
    assert (unread, fill, lost, causes, state) == ("16000", "100%", "2", "full:1,too_large:1", "disabled")
    (one,) = objects(run(mount, "stat", "full", "--json")).values()
    assert one["lost_by_cause"] == {**dict.fromkeys(CAUSES, 0), "full": 1, "too_large": 1}


def test_what_cannot_be_known_is_not_told(mount, mapped_through):
    """A consumer of the kernel's format counts nothing; in mode overwrite, nobody knows what was overwritten."""
    path = mount.create("ring", "type=ring size=4K buffers=single mode=overwrite")
    path.write_bytes(b"record")
    assert list(KernelRing(mount.path / ".channels/ring/mem0", 4096).records()) == [b"record"]
    assert mount.shown("ring", "lost") == "unknown"
    *_, lost, causes, _ = run(mount, "stat", "ring").split()
    assert (lost, causes) == ("-", "overwritten:?")


def test_rates_are_per_second_and_of_what_was_written_meanwhile(mount):
    path = mount.create("one", "buffers=single")
    path.write_bytes(b"before")
    with subprocess.Popen(
        ["sh", "-c", f"while :; do echo line; sleep 0.01; done >{path}"], start_new_session=True
    ) as writer:
        found: list[dict] = []

        def is_written() -> bool:
            found.extend(objects(run(mount, "stat", "one", "--json", "-i", "0.2")).values())
            return bool(found[-1]["rate"])

        try:
            wait_until(is_written, "the writer runs")
        finally:
            os.killpg(writer.pid, signal.SIGKILL)
    one = found[-1]
    assert 0 < one["rate"] <= one["count"] / 0.2
    assert one["byte_rate"] == pytest.approx(5 * one["rate"])
    assert (objects(run(mount, "stat", "one", "--json"))["one"]["rate"]) is None


def test_parts_add_up(mount):
    mount.create("cpu", "subbuf_size=4K n_subbufs=4")
    (mount.path / "cpu0").write_bytes(b"record")
    whole, *parts = objects(run(mount, "stat", mount.path / "cpu", "--json", "--parts")).values()
    assert [part["name"] for part in parts] == [f"cpu{i}" for i in range(whole["buffers"])]
    assert [part["count"] for part in parts] == [1] + [0] * (whole["buffers"] - 1)
    assert (whole["count"], whole["memory"]) == (1, sum(part["memory"] for part in parts))
    assert whole["fill"] == parts[0]["fill"] > 0


def test_everybody_sees_the_figures(mount, unprivileged: User):
    path = mount.create("one", " ".join(SMALL))
    path.write_bytes(b"record")
    mount.create("b", "type=ring size=8K buffers=global")
    start_trace(mount, "t")
    done = unprivileged.run(RELAYCTL, "stat", "--json", "-m", mount.path)
    assert (done.returncode, done.stderr) == (0, "")
    theirs, ours = objects(done.stdout), objects(run(mount, "stat", "--json"))
    for name in ("one", "b"):
        assert theirs[name] == {**ours[name], "fill": None}
    assert {key: value for key, value in theirs["t"].items() if value is not None and key != "lost_by_cause"} == {
        "name": "t", "kind": "trace", "state": "started", "size": 8 * 64 << 10,
    }  # fmt: skip
    refused = unprivileged.run(RELAYCTL, "remove", "one", "-m", mount.path)
    assert (refused.returncode, refused.stderr) == (1, f"relayctl: {mount.control}: Permission denied\n")
    mount.command("trace remove t")


def test_a_pattern_chooses_and_a_name_that_is_missing_is_told(mount):
    for name in ("a/one", "a/two", "b"):
        mount.create(name, "buffers=single")
    assert [line.split()[0] for line in run(mount, "stat", "a/*").splitlines()] == ["a/one", "a/two"]
    done = relayctl(mount, "stat", "b", "c")
    assert (done.returncode, done.stdout.split()[0]) == (3, "b")
    assert done.stderr == "relayctl: there is no channel, trace or counter c; there are: a/one, a/two, b\n"
    assert said(mount, 3, "stat", "a").endswith("counter a; it is a directory: 'a/*' matches what is in it\n")


def test_versions_are_those_of_the_parts(mount, tmp_path):
    versions = json.loads(run(mount, "version", "--json"))
    assert list(versions) == ["program", "library", "server", "kernel", "fuse"]
    assert versions["program"] == versions["library"] == versions["server"] == native.VERSION
    assert versions["kernel"] == os.uname().release
    # 7.31 is of Linux 5.4, and more than 7.99 there is not.
    assert 31 <= int(versions["fuse"].removeprefix("7.")) < 100
    assert dict(map(str.split, run(mount, "version").splitlines())) == versions
    assert run(mount, "version", "-m", tmp_path).splitlines()[2].split() == ["server", "-"]


# --- how commands end ---


@pytest.mark.parametrize("command", ["list", "stat"])
def test_columns_have_titles_on_a_terminal_only(mount, command):
    mount.create("one", "buffers=single")
    ours, its = os.openpty()
    with start([RELAYCTL, command, "-m", str(mount.path)], stdout=its) as process:
        os.close(its)
        shown = ""
        with suppress(OSError):  # EIO: at the end
            while piece := os.read(ours, 4096):
                shown += piece.decode()
        assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    titles = ["NAME", "KIND", "BUFFERS", "SIZE", "MEMORY", "STATE"]
    if command == "stat":
        titles[5:5] = ["COUNT", "BYTES", "UNREAD", "FILL", "LOST", "CAUSES"]
    n = len(titles)
    assert shown.split()[:n] == titles
    assert shown.split()[n:] == run(mount, command).split()


def test_a_reader_that_goes_away_ends_a_command_quietly(mount):
    mount.create("one", "buffers=single")
    reading, writing = os.pipe()
    os.close(reading)
    with start([RELAYCTL, "stat", "-m", str(mount.path)], stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        _, message = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, message) == (-signal.SIGPIPE, b"")


def test_an_interrupted_command_ends_by_the_signal(mount):
    mount.create("log", "buffers=single")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start([RELAYCTL, "log", "-m", str(mount.path), "-"], **pipes) as process:
        assert process.stdin is not None
        process.stdin.write(b"line\n")
        process.stdin.flush()
        wait_until(lambda: mount.shown("log", "records") == "1", "it reads its standard input")
        process.send_signal(signal.SIGINT)
        out, message = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, message.strip()) == (-signal.SIGINT, b"", b"")
