"""Each event says which thread of which process wrote it, by the numbers that these have for themselves."""

import subprocess
from pathlib import Path

import pytest
from build import compile_c
from mounts import DEADLINE_S, Mount
from traced import environment_of, record_stopped, start_trace

pytestmark = pytest.mark.one_mount

PROGRAM = Path(__file__).with_name("trace_threads.c")
PLACES = [
    "main", "thread", "handler", "interrupted", "before fork", "at fork", "child", "thread of child", "after fork",
    "quiet", "strict",
]  # fmt: skip


@pytest.mark.parametrize("command", [[], ["unshare", "--pid", "--fork", "--kill-child"]], ids=["here", "pid-namespace"])
@pytest.mark.parametrize("buffers", ["perprocess", "peruser", "shared"])
def test_events_say_which_thread_wrote_them(mount: Mount, tmp_path: Path, buffers: str, command: list[str]) -> None:
    start_trace(mount, "t", f"subbuf_size=64K n_subbufs=4 buffers={buffers}")
    subprocess.run([*command, compile_c([PROGRAM])], env=environment_of(mount), check=True, cwd="/", timeout=DEADLINE_S)
    events = record_stopped(mount, "t", tmp_path / "out").named("threads:told")
    assert [event.fields["where"].strip('"') for event in events] == PLACES
    assert [event["vtid"] for event in events] == [event["thread"] for event in events]
    assert len({event["thread"] for event in events}) == 7
    if buffers == "perprocess":
        assert not any("vpid" in event.fields for event in events)
    else:
        assert [event["vpid"] for event in events] == [event["process"] for event in events]
    if command:
        assert events[0]["vtid"] == 1
