"""Names of threads, which are in no event: the recorder sees them, and exports show them to Perfetto's processor."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from build import compile_c
from mounts import DEADLINE_S, wait_until
from trace_processor import trace_processor
from tracing import RELAYCTL, Store, finish, recording, relayctl

from relayfs_fuse.tracefiles.thread_names import unpack

PROGRAM = Path(__file__).with_name("named_threads.c")
# The kernel's longest, white space, what is UTF-8 and what is not.
NAMES = [b"fifteen letters", b"two\nlines \t\\n", "grüße".encode(), b"\xff\x80\x01", b"0 0 of nobody"]
# The name of a slice's thread, and the one that the thread has written itself.
THREADS = """
select distinct thread.name as name, args.string_value as said
from slice join thread_track on track_id = thread_track.id join thread using (utid) join args using (arg_set_id)
where slice.name = 'named:said' and key glob '*.name'
"""


@contextmanager
def program(store: Store, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*before, compile_c([PROGRAM]), *NAMES]
    environment = {**os.environ, **store.environment}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        speak(process)
        yield process
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0


def speak(process: subprocess.Popen[bytes]) -> None:
    """Have each of its threads write an event."""
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"\n"


def wait_for_names(*directories: Path) -> None:
    def are_there() -> bool:
        found = [sorted(unpack(path.read_bytes()).values()) for one in directories for path in one.rglob(".threads")]
        return bool(found) and all(set(NAMES) <= set(names) for names in found)

    wait_until(are_there, "the recorder has seen the names of all threads")


def check(out: Path, *options: object, main: set[str]) -> None:
    for option in ("--perfetto", "--chrome"):
        target = out.with_name("exported")
        done = relayctl("export", out, option, "-o", target, *options)
        assert done.returncode == 0, done.stderr
        if option == "--chrome":
            json.loads(target.read_bytes())
        with trace_processor(target) as query:
            found = {(one["name"], one["said"]) for one in query(THREADS)}
            assert query("select name from stats where severity in ('error', 'data_loss') and value > 0") == []
        assert {name for name, said in found if said == "main"} == main
        others = {(name, said) for name, said in found if said != "main"}
        assert len(others) == len(NAMES)
        assert all(name == said for name, said in others)


@pytest.mark.parametrize("before", [(), ("unshare", "--pid", "--fork")], ids=["here", "in a PID namespace"])
def test_threads_keep_their_names_when_they_have_ended(store, tmp_path, before):
    store.create("t", flush_interval_ms=20)
    out = tmp_path / "out"
    with recording("t", "--store", store.path, "-o", out, "--rotate-time", "0.1") as process:
        with program(store, *before) as named:
            wait_for_names(out)
            while len(list(out.rglob("metadata"))) < 2:
                speak(named)
        finish(process)
    # Each part of a rotated recording tells them.
    wait_for_names(*out.iterdir())
    assert b"named:said" in subprocess.run(["babeltrace2", out], capture_output=True, check=True).stdout
    check(out, main={"named_threads"})
    *_, metadata = sorted(out.rglob("metadata"))
    (metadata.parent / ".threads").write_bytes(b"\xff9999999999 1 \0 1 1 \0\n")
    check(out, main={"named_threads"})


# Others' locks that come and go can hide any lock in /proc/locks.
HIDDEN_LOCKS = ("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /proc/locks && exec "$@"', "sh")


@pytest.mark.parametrize("before", [(), HIDDEN_LOCKS], ids=["locks", "no locks seen"])
def test_a_recording_to_a_pipe_has_the_names_at_its_end(store, tmp_path, before):
    store.create("t")
    archive = tmp_path / "archive"
    with program(store), archive.open("wb") as file:
        command = [*before, RELAYCTL, "record", "t", "--store", store.path, "-o", "-", "--duration", "0"]
        done = forking.run(command, stdout=file, stderr=subprocess.PIPE, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "xf", archive, "-C", tmp_path / "out"], check=True)
    check(tmp_path / "out", main={"named_threads"})


def test_what_buffers_hold_now_has_the_names_of_now(store, tmp_path):
    store.create("t", buffers=2, flush_interval_ms=20)
    with program(store), program(store):
        done = relayctl("snapshot", "t", "--store", store.path, "-o", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        check(tmp_path / "out", main={"named_threads"})
        assert len(unpack((tmp_path / "out/shared/.threads").read_bytes())) == 2 * (len(NAMES) + 1)
        done = relayctl("export", "t", "--store", store.path, "--chrome")
    names = [one["args"]["name"] for one in json.loads(done.stdout)["traceEvents"] if one["name"] == "thread_name"]
    assert names.count("fifteen letters") == names.count("named_threads") == 2
