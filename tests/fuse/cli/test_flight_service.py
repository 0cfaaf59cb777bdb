"""The examples that record themselves: a slow request among many is found in the snapshot that a trigger took."""

import http.client
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from build import ROOT, compile_c
from mounts import DEADLINE_S, Mount
from stress import is_long
from trace_processor import trace_processor
from traced import environment_of, relayctl, start_trace
from traffic import some_cpu
from triggering import wait_lines

EXAMPLES = ROOT / "examples"
# Three events each.
N_REQUESTS = 3_400_000 if is_long() else 20_000
# The buffers hold all that is written.
ROOM = "mode=overwrite " + ("subbuf_size=1M n_subbufs=512" if is_long() else "subbuf_size=256K n_subbufs=32")
WINDOW_S = 10
# The slow request takes longer than that.
BRIEF = "200ms"
STATES = """
    select s.ts as ts, a.int_value as value from slice s join args a using (arg_set_id)
    where s.name = 'web:setting' and a.key like '%value'
"""
ANSWERED = """
    select count(*) as n, min(a.int_value) as first, max(a.int_value) as last, min(s.ts) as ts
    from slice s join args a using (arg_set_id) where s.name = 'web:answered' and a.key like '%number'
"""
SLOW = "select s.id, s.name, a.{value} as value from slice s join args a using (arg_set_id) where s.dur > 200000000"


def record(mount: Mount, place: Path, condition: str, work: Callable[[], None], *windows: str) -> list[Path]:
    """Have triggers take snapshots while a program works; return them as Perfetto has them.

    condition: says which request is meant: on a busy machine, others may be slow, too
    windows: of each trigger
    """
    trace = start_trace(mount, "flight", ROOM)
    names = [f"slow-{window}" for window in windows]
    for name, window in zip(names, windows, strict=True):
        done = relayctl(
            mount, "trigger", "add", name, "on", "flight", "web:answered", "if", f"ms > 200 && {condition}", "do",
            "snapshot", place, "limit=1m", f"window={window}",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    work()
    taken = [wait_lines(trace, name, 2)[1].text.removeprefix("snapshot ") for name in names]
    for path in taken:
        done = relayctl(mount, "export", path, "--perfetto", "-o", f"{path}.exported")
        assert done.returncode == 0, done.stderr
    return [Path(f"{path}.exported") for path in taken]


@pytest.mark.stress
def test_one_slow_request_of_many_is_found_with_all_before_it_and_the_state(mount, tmp_path):
    slow = N_REQUESTS * 3 // 4
    program = compile_c([EXAMPLES / "flight_service.c"], None, "")
    # On one CPU, whose sub-buffers are then in the order of their times.
    command = ["taskset", "-c", str(some_cpu()), program, str(N_REQUESTS), str(slow)]
    with ExitStack() as stack:

        def work() -> None:
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment_of(mount)))

        whole, brief = record(mount, tmp_path, f"number == {slow}", work, f"{WINDOW_S}s", BRIEF)
        with trace_processor(whole) as query:
            found = query(SLOW.format(value="int_value") + " and a.key like '%number'")
            (fired,) = query(f"{ANSWERED} and a.int_value = {slow}")
            begin = fired["ts"] - WINDOW_S * 10**9
            (answered,) = query(f"{ANSWERED} and s.ts between {begin} and {fired['ts']}")
            lost = query("select count(*) as n from slice where name = 'lost'")
        with trace_processor(brief) as query:
            states = query(STATES)
            (of_window,) = query(ANSWERED)
    assert ("web:request", slow) in [(one["name"], one["value"]) for one in found]
    # Nothing of the window is missing, and it begins with the first request if that was not longer ago.
    assert (answered["n"], answered["last"], lost) == (slow + 1 - answered["first"], slow, [{"n": 0}])
    assert answered["first"] == 0 or answered["ts"] < begin + WINDOW_S * 10**9 // 2
    # The state was set before the window, which begins with a whole sub-buffer.
    assert [one["value"] for one in states] == [slow]
    assert 0 < of_window["first"] <= slow
    assert states[0]["ts"] < of_window["ts"]


def test_one_slow_answer_of_an_http_service_is_found(mount, tmp_path):
    command = [sys.executable, EXAMPLES / "flight_service.py", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment_of(mount), text=True) as service:
        assert service.stdout is not None
        port = int(service.stdout.readline())

        def ask() -> None:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
            for number in range(300):
                client.request("GET", "/slow" if number == 200 else f"/page/{number}")
                assert client.getresponse().read() == b"ok\n"
            client.close()

        with trace_processor(*record(mount, tmp_path, 'path == "/slow"', ask, f"{WINDOW_S}s")) as query:
            found = query(SLOW.format(value="string_value") + " and a.key like '%path'")
            logged = query("select string_value as text from args where key like '%message'")
        service.kill()
    assert ("web:request", "/slow") in [(one["name"], one["value"]) for one in found]
    assert "the database is asked" in [one["text"] for one in logged]
