"""relayctl counters --trace, with Perfetto's own trace processor as the judge."""

import signal
import subprocess
import sys

import forking
from forking import start
from mounts import DEADLINE_S
from trace_processor import trace_processor
from traced import environment_of, relayctl, start_trace
from tracing import RELAYCTL, finish, recording
from viewing import viewing

from relayfs_fuse import Counters

SLICE = "from relayfs_fuse.trace import span\nwith span('work'):\n    pass\n"


def watching(mount, *globs):
    command = [RELAYCTL, "counters", *globs, "--mount", mount.path, "--watch", "--interval", "0.02", "--trace"]
    return start(command, stderr=subprocess.PIPE, text=True)


def test_counters_are_drawn_beside_slices(mount, tmp_path):
    start_trace(mount)
    with Counters(mount.path) as counters:
        requests, queue, other = (
            counters.add(name, kind=kind)
            for name, kind in [("app/requests", "counter"), ("größe/queue", "gauge"), ("other/n", "counter")]
        )
        requests.adjust(7)
        queue.adjust(-5)
        other.adjust(1)
        out, exported = tmp_path / "out", tmp_path / "exported"
        with (
            recording("t", "--mount", mount.path, "-o", out) as recorder,
            viewing("t", "--follow", "--json", "--delay", "20", "--mount", mount.path) as view,
            watching(mount, "app/*", "größe/*") as process,
        ):
            forking.run([sys.executable, "-c", SLICE], env=environment_of(mount), check=True, timeout=DEADLINE_S)

            def values(name: str) -> list[int]:
                fields = [one["fields"] for one in view.events() if one["event"] == "counters:value"]
                return [one["counter_value"] for one in fields if one["track_name"] == name]

            view.wait_for(lambda: values("app/requests") == [7] and values("größe/queue") == [-5])
            requests.adjust(3)
            view.wait_for(lambda: 10 in values("app/requests"))
            process.send_signal(signal.SIGSTOP)
            queue.adjust(4)
            # What has changed is written at the end, too.
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=DEADLINE_S) == (None, "")
            assert process.returncode == 0
            view.wait_for(lambda: -1 in values("größe/queue"))
            finish(recorder)
    done = relayctl(mount, "export", out, "--perfetto", "-o", exported)
    assert done.returncode == 0, done.stderr
    with trace_processor(exported) as query:
        found = query(
            "select t.name, value from counter c join process_counter_track t on c.track_id = t.id order by t.name, ts"
        )
        assert query("select name from slice where dur >= 0 and name = 'work'") == [{"name": "work"}]
        assert query("select name from stats where severity in ('error', 'data_loss') and value > 0") == []
    # Values that have not changed may be repeated.
    changes = dict.fromkeys((one["name"], one["value"]) for one in found)
    assert list(changes) == [("app/requests", 7), ("app/requests", 10), ("größe/queue", -5), ("größe/queue", -1)]


def test_a_trace_that_is_started_later_gets_all_values(mount):
    with Counters(mount.path) as counters, watching(mount, "app/*") as process:
        counters.add("app/n").adjust(5)
        said = process.stderr.readline()
        assert said == "relayctl: no started trace takes the event counters:value; values are written when one does\n"
        start_trace(mount)
        with viewing("t", "--follow", "--json", "--mount", mount.path) as view:
            view.wait_for(view.events)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE_S) == (None, "")
        assert process.returncode == 0
    assert view.events()[0]["fields"] == {"counter_value": 5, "track_name": "app/n"}


def test_trace_is_for_watching(mount):
    for options, said in [(["--trace"], "with --watch"), (["--trace", "--watch", "--json"], "without --json")]:
        done = relayctl(mount, "counters", *options)
        assert (done.returncode, f"give it {said}\n" in done.stderr) == (2, True)
