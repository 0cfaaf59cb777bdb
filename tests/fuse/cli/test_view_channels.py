"""relayctl view: of channels and rings whose records have times."""

import json
import os
import re
import signal
import struct
import subprocess
import time
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, NOBODY, Mount, wait_until
from tracing import RELAYCTL, relayctl
from traffic import write_in_turn
from viewing import CONTROLS, on_terminal, viewing

from relayfs_fuse import native

pytestmark = pytest.mark.one_mount

LINE = re.compile(r"\[\d\d:\d\d:\d\d\.\d{9}\] cpu(\d+)( late)?: (.*)")
KINDS = {"relay": "times=mono", "single": "times=mono buffers=single", "ring": "type=ring buffers=percpu times=mono"}


def view(mount: Mount, *arguments: object) -> subprocess.CompletedProcess:
    return relayctl("view", *arguments, "--mount", mount.path)


def shown(mount: Mount, *arguments: object) -> str:
    done = view(mount, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_records_of_all_cpus_are_lines_and_stay(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    write_in_turn(channel, *(b"%d\n" % i for i in range(50)))
    time.sleep(0.01)  # --since is a time between
    write_in_turn(channel, *(b"%d\n" % i for i in range(50, 100)))
    lines = shown(mount, "app/cpu").splitlines()
    matches = [LINE.fullmatch(line) for line in lines]
    assert [one[3] for one in matches] == list(map(str, range(100)))
    assert lines == sorted(lines) or lines[0] > lines[-1]  # midnight
    found, merged = (
        [json.loads(line) for line in text.splitlines()]
        for text in (shown(mount, "app/cpu", "--json"), (mount.path / ".channels/app/cpu/merged.json").read_text())
    )
    # Each reader compares CLOCK_MONOTONIC with the time of day by itself, so times differ by what that takes.
    assert [one | {"ns": 0} for one in found] == [one | {"ns": 0} for one in merged]
    assert all(abs(one["ns"] - other["ns"]) < 10**9 for one, other in zip(found, merged, strict=True))
    assert [one["cpu"] for one in found] == [int(one[1]) for one in matches]
    since = (found[49]["ns"] + found[50]["ns"]) // 2
    moments = [time.strftime("[%H:%M:%S.", time.localtime(since // 10**9 + more)) for more in (-1, 0, 1)]
    assert lines[50].startswith(tuple(moments))

    def shown_without_times(*arguments: object) -> list[str]:
        return [line.partition(" ")[2] for line in shown(mount, *arguments).splitlines()]

    untimed = shown_without_times("app/cpu")
    assert untimed == [line.partition(" ")[2] for line in lines]
    assert shown_without_times("app/cpu", "-n", 3) == untimed[-3:]
    assert shown_without_times("app/cpu", "--since", f"{since // 10**9}.{since % 10**9:09}") == untimed[50:]
    for ago, n in (("-1h", 100), ("-60.5m", 100), ("-9999s", 100), ("-0ms", 0)):
        assert len(shown_without_times("app/cpu", "--since", ago)) == n
    # The same by its path, and with the store alone.
    for arguments in ([channel], ["app/cpu", "--store", mount.store], [os.path.relpath(channel)]):
        done = relayctl("view", *arguments)
        assert [line.partition(" ")[2] for line in done.stdout.splitlines()] == untimed
    assert sum(path.read_bytes().count(b"\n") for path in channel.parent.iterdir()) == 100
    # What was consumed is shown of relay buffers until it is overwritten.
    assert shown_without_times("app/cpu") == ([] if "ring" in options else untimed)


@pytest.mark.parametrize("options", ["times=tsc", "type=ring times=tsc"])
def test_it_follows_a_channel_to_its_end(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    write_in_turn(channel, *(b"%d" % i for i in range(10)))
    with viewing("app/cpu", "-f", "-n", 2, "--delay", 50, "--mount", mount.path) as follower:
        follower.wait_for(lambda: len(follower.lines) == 2)
        write_in_turn(channel, b"10", b"11")
        follower.wait_for(lambda: len(follower.lines) == 4)
        write_in_turn(channel, b"12")
        mount.command("remove app/cpu")
        assert follower.wait() == ""
    assert [LINE.fullmatch(line.rstrip())[3] for line in follower.lines] == ["8", "9", "10", "11", "12"]


def test_a_signal_or_a_reader_that_has_gone_ends_it(mount: Mount) -> None:
    channel = mount.create("app/cpu", "times=mono")
    write_in_turn(channel, b"one")
    follow = "app/cpu", "--follow", "--mount", mount.path
    with viewing(*follow, "--delay", 60_000, "--json") as follower:
        wait_until(lambda: "/app/cpu/mem0" in Path(f"/proc/{follower.process.pid}/maps").read_text(), "its buffers")
        assert follower.lines == []
        assert follower.finish() == ""  # it shows what is there
    assert [one["record"] for one in follower.objects()] == ["one"]
    script = '"$@" | head -1; echo "${PIPESTATUS[*]}"'
    command = ["bash", "-c", script, "-", RELAYCTL, "view", *map(str, follow)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.stdout.splitlines()[1:], done.stderr) == (["0 0"], "")


@pytest.mark.parametrize("options", ["subbuf_size=4K n_subbufs=2 buffers=single", "type=ring size=8K"])
def test_what_is_lost_is_a_line(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", f"{options} times=mono mode=overwrite")
    with viewing("app/cpu", "--follow", "--mount", mount.path) as follower:
        write_in_turn(channel, b"0")
        follower.wait_for(lambda: follower.lines)
        follower.process.send_signal(signal.SIGSTOP)
        write_in_turn(channel, *(b"%d" % i for i in range(1, 2000)))
        follower.process.send_signal(signal.SIGCONT)
        follower.wait_for(lambda: follower.lines[-1].endswith(": 1999\n"))
        assert follower.finish() == ""
    lines = [line.partition(" ")[2].rstrip() for line in follower.lines]
    losses = [line for line in lines if " lost " in line]
    counts = [int(re.fullmatch(r"cpu0 lost (\d+) records? since \[[\d:.]+\]: overwritten", line)[1]) for line in losses]
    records = [int(line.removeprefix("cpu0: ")) for line in lines if line not in losses]
    assert records == [0, *range(2001 - len(records), 2000)]
    assert sum(counts) == 2000 - len(records) > 0


def test_records_move_no_cursor_and_pass_for_nothing_else(mount: Mount) -> None:
    channel = mount.create("app/cpu", "times=mono buffers=single")
    write_in_turn(channel, 'say "grüße"\n'.encode(), b"\x1b[2J\xc2\x9b\xff\\\na\tb\n\n", b" lost 3 records")
    expected = ['say "grüße"', r"\x1b[2J\xc2\x9b\xff\\\na\tb\n", " lost 3 records"]
    plain = shown(mount, "app/cpu")
    assert [LINE.fullmatch(line)[3] for line in plain.splitlines()] == expected
    here = "app/cpu", "--mount", mount.path
    coloured = on_terminal(100, *here).decode()
    for text in (on_terminal(100, *here, NO_COLOR="1").decode(), re.sub(r"\x1b\[[\d;]*m", "", coloured)):
        assert [LINE.fullmatch(line)[3] for line in text.splitlines()] == expected
    assert re.match(r"\x1b\[2m\[[\d:.]+\]\x1b\[0m\x1b\[36m cpu0\x1b\[0m: say", coloured)
    narrow = on_terminal(59, *here, NO_COLOR="1")
    assert not CONTROLS.search(narrow)
    assert [re.fullmatch(r"[\d:]{8}\.\d{6}: (.*)", line)[1] for line in narrow.decode().splitlines()] == expected


def test_damage_is_said_and_other_cpus_are_shown(mount: Mount) -> None:
    if native.n_possible_cpus() == 1:
        pytest.skip("has one CPU")
    channel = mount.create("app/cpu", "times=mono scheme=lockless")
    write_in_turn(channel, b"first", b"second")
    with (mount.store / "app/cpu/mem0").open("r+b") as file:
        file.seek(file.read().index(b"first") - 4)
        file.write(struct.pack("<I", 1 << 30))  # its length
    done = view(mount, "app/cpu")
    assert done.returncode == 0
    assert "cpu 0: times or lengths of records were overwritten" in done.stderr
    assert [LINE.fullmatch(line)[3] for line in done.stdout.splitlines()] == ["second"]


def test_what_makes_no_sense_is_refused(mount: Mount) -> None:
    mount.create("app/cpu", "times=mono")
    mount.create("app/plain")
    mount.command("trace create t\n")
    done = view(mount, "app/plain")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the records of app/plain have no times" in done.stderr
    assert "`create app/plain ... times=mono`; `relayctl cat --peek app/plain` shows them" in done.stderr
    there_is = f"in {mount.store}, and no such channel; traces: t; channels: app/cpu, app/plain\n"
    for name in ("app/cp", "app", "t/x", "app/cpu/mem0", "../x", ""):
        done = view(mount, name)
        assert (done.returncode, done.stderr) == (1, f"relayctl: there is no trace {name} {there_is}")
    done = relayctl("view", mount.path / "app/cp")
    assert done.stderr == f"relayctl: there is no trace app/cp {there_is}"
    for option in (["--event", "a:b"], ["--if", "ms > 1"], ["--browser"]):
        done = view(mount, "app/cpu", *option)
        assert done.returncode == 2
        assert f"{option[0]} is for events; app/cpu is a channel, which has records" in done.stderr
    mount.command("trace remove t\n")


def test_who_may_not_open_the_store_is_told(mount: Mount) -> None:
    if os.geteuid() != 0:
        pytest.skip("becomes another user")
    mount.create("app/cpu", "times=mono perm=0644")
    mount.path.parent.chmod(0o755)
    command = [RELAYCTL, "view", mount.path / "app/cpu"]
    done = forking.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "Permission denied" in done.stderr
