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
from triggering import wait_lines

EXAMPLES = ROOT / "examples"
# Three events each.
N_REQUESTS = 3_400_000 if is_long() else 20_000
# The buffers hold what is written from the slow request to its snapshot.
ROOM = "mode=overwrite " + ("subbuf_size=1M n_subbufs=128" if is_long() else "subbuf_size=256K n_subbufs=32")
WINDOW = "1s" if is_long() else "10s"
SLOW = "select s.id, s.name, a.{value} as value from slice s join args a using (arg_set_id) where s.dur > 200000000"


def record(mount: Mount, place: Path, condition: str, work: Callable[[], None]) -> Path:
    """Have a trigger take a snapshot while a program works; return it as Perfetto has it.

    condition: says which request is meant: on a busy machine, others may be slow, too
    """
    trace = start_trace(mount, "flight", ROOM)
    done = relayctl(
        mount, "trigger", "add", "slow", "on", "flight", "web:answered", "if", f"ms > 200 && {condition}", "do",
        "snapshot", place, "limit=1m", f"window={WINDOW}",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    work()
    text = wait_lines(trace, "slow", 2)[1].text
    exported = place / "exported"
    done = relayctl(mount, "export", text.removeprefix("snapshot "), "--perfetto", "-o", exported)
    assert done.returncode == 0, done.stderr
    return exported


@pytest.mark.stress
def test_one_slow_request_of_many_is_found(mount, tmp_path):
    slow = N_REQUESTS * 3 // 4
    command = [compile_c([EXAMPLES / "flight_service.c"], None, ""), str(N_REQUESTS), str(slow)]
    with ExitStack() as stack:

        def work() -> None:
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment_of(mount)))

        query = stack.enter_context(trace_processor(record(mount, tmp_path, f"number == {slow}", work)))
        found = query(SLOW.format(value="int_value") + " and a.key like '%number'")
        (others,) = query("select count(*) as n from slice where name = 'web:request'")
    assert ("web:request", slow) in [(one["name"], one["value"]) for one in found]
    assert others["n"] > slow or is_long()  # so many it has answered before


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

        with trace_processor(record(mount, tmp_path, 'path == "/slow"', ask)) as query:
            found = query(SLOW.format(value="string_value") + " and a.key like '%path'")
            logged = query("select string_value as text from args where key like '%message'")
        service.kill()
    assert ("web:request", "/slow") in [(one["name"], one["value"]) for one in found]
    assert "the database is asked" in [one["text"] for one in logged]
