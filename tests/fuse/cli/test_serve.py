"""relayctl serve: what clients get over HTTP of a real mount."""

import io
import json
import os
import re
import socket
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from babeltrace import babeltrace
from http_site import Events, Site, site
from mounts import DEADLINE_S, Mount, opened, wait_until
from prometheus import check_by_promtool
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from trace_processor import trace_processor
from traced import start_trace, traced
from tracing import spoil

from relayfs_fuse import Channel, Counters, Ring
from relayfs_fuse.cli.web import metrics
from relayfs_fuse.cli.web.metrics import OPENMETRICS_TYPE, TEXT_TYPE
from relayfs_fuse.cli.web.run import CONNECTIONS_MAX

pytestmark = pytest.mark.one_mount

# As Prometheus 2 and 3 ask.
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4," \
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"  # fmt: skip
PROMETHEUS_TEXT_ONLY = "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.fixture(scope="module")
def served(shared_mount: Mount) -> Iterator[Site]:
    with site("--mount", shared_mount.path) as one:
        yield one


@pytest.fixture
def trace(mount: Mount) -> Iterator[Path]:
    yield start_trace(mount)
    mount.command("trace remove t")


def samples(text: str) -> dict[tuple, float]:
    parse = parse_openmetrics if text.endswith("# EOF\n") else parse_text
    return {(one.name, *sorted(one.labels.items())): one.value for family in parse(text) for one in family.samples}


# --- metrics ---


def test_figures_of_channels_are_those_of_the_mount(mount: Mount, served: Site) -> None:
    relay = mount.create("app/lines", "subbuf_size=4K n_subbufs=2 buffers=single")
    mount.create("app/ring", "type=ring buffers=single size=4K")
    with Channel(relay) as channel, Ring(mount.path / "app/ring") as ring:
        for _ in range(5):
            channel.write(bytes(1000))
            ring.output(b"x")
        with pytest.raises(OSError, match="long"):
            channel.write(bytes(5000))
    mount.command("disable app/ring")
    found = served.figures()
    for path in ("app/lines", "app/ring"):
        label = f'{{channel="{path}"}}'
        assert found[f"relayfs_channel_records_total{label}"] == 5 == int(mount.shown(path, "records"))
        assert found[f"relayfs_channel_unread_bytes{label}"] == int(mount.shown(path, "unread_bytes"))
        for cause in ("full", "too_large", "disabled", "overwritten", "torn"):
            lost = found[f'relayfs_channel_lost_records_total{{channel="{path}",cause="{cause}"}}']
            assert lost == int(mount.shown(path, f"lost_{cause}")) == (path == "app/lines" and cause == "too_large")
    assert found['relayfs_channel_written_bytes_total{channel="app/lines"}'] == 5000
    assert found['relayfs_channel_size_bytes{channel="app/lines"}'] == 8192
    # Four records are in the first sub-buffer, and one in the second.
    assert found['relayfs_channel_fullest_buffer_ratio{channel="app/lines"}'] == (4096 + 1000) / 8192
    assert found['relayfs_channel_state{channel="app/lines",state="ok"}'] == 1
    assert found['relayfs_channel_state{channel="app/ring",state="disabled"}'] == 1
    assert found["relayfs_serve_skipped"] == 0
    assert not [name for name in found if "relayfs/channels/" in name]


def test_judges_read_both_formats_whatever_names_programs_choose(mount: Mount, served: Site) -> None:
    mount.create('app/quo"te', "buffers=single")
    # Counters whose families would have the names of those of channels.
    names = [
        "relayfs_channel/records",
        "relayfs_channel_records_total",
        "relayfs_serve_skipped",
        "relayfs/serve/streams",
    ]
    with Counters(mount.path) as counters:
        for name in names:
            for kind in ("counter", "gauge"):
                counters.add(f"{name}{'_total' * (kind == 'gauge')}", kind=kind).adjust(3)
        answers = {accept: served.get("metrics", Accept=accept) for accept in (PROMETHEUS, PROMETHEUS_TEXT_ONLY)}
        for name in names:
            for suffix in ("", "_total"):
                counters.delete(f"{name}{suffix}")
    assert [one.headers["Content-Type"] for one in answers.values()] == [OPENMETRICS_TYPE, TEXT_TYPE]
    check_by_promtool(answers[PROMETHEUS_TEXT_ONLY].text)
    found, same = (samples(answer.text) for answer in answers.values())
    assert found.keys() == same.keys()
    assert found["relayfs_channel_records_total", ("channel", 'app/quo"te')] == 0
    assert [value for name, value in found.items() if ("name", "relayfs_channel/records") in name] == [3]


def test_channels_whose_names_are_printed_alike_have_different_labels(mount: Mount, served: Site) -> None:
    names = [b"x\\xff", b"x\xff", b"y\\\xff", b"y\\\\xff"]
    for name in names:
        with opened(mount.control, os.O_WRONLY) as descriptor:
            os.write(descriptor, b"create " + name + b" buffers=single\n")
    text = served.get("metrics", Accept=PROMETHEUS_TEXT_ONLY).text
    found = [one.labels["channel"] for family in parse_text(text) for one in family.samples
             if one.name == "relayfs_channel_records_total"]  # fmt: skip
    for name in names:
        with opened(mount.control, os.O_WRONLY) as descriptor:
            os.write(descriptor, b"remove " + name + b"\n")
    assert sorted(found) == [r"x\xff", r"x\xff (not UTF-8)", r"y\\\xff (not UTF-8)", r"y\\xff"]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", TEXT_TYPE),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT_TYPE),
        ("application/openmetrics-text", OPENMETRICS_TYPE),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.6", TEXT_TYPE),
        ("application/openmetrics-text;version=9.0.0,text/plain;q=0.1", TEXT_TYPE),
        ("application/openmetrics-text;q=0", TEXT_TYPE),
    ],
)
def test_the_format_is_the_one_that_is_wanted_more(served: Site, accept: str, expected: str) -> None:
    assert served.get("metrics", Accept=accept).headers["Content-Type"] == expected


def test_damaged_channels_are_said_to_be_so(make_mount) -> None:
    mount = make_mount()
    mount.create("app/bad", "buffers=single")
    mount.create("app/good", "buffers=single")
    mount.kill()  # the figures come from the store
    spoil(mount.store / "app/bad/mem0", 1)
    with site("--store", mount.store) as one:
        found = one.figures()
    assert found['relayfs_channel_state{channel="app/bad",state="damaged"}'] == 1
    assert 'relayfs_channel_records_total{channel="app/bad"}' not in found
    assert found['relayfs_channel_records_total{channel="app/good"}'] == 0
    mount.expect("app/bad/mem0 cannot be used: it is truncated, damaged or no relay buffer")
    mount.start()


def test_what_is_not_read_in_time_is_counted(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        mount.create(f"app/{name}", "buffers=single")
    assert "\nrelayfs_serve_skipped 0\n" in metrics.Scrape(str(mount.store), 0).text(TEXT_TYPE)
    monkeypatch.setattr(metrics, "READ_S", 0.0)
    text = metrics.Scrape(str(mount.store), 0).text(TEXT_TYPE)
    assert "\nrelayfs_serve_skipped 2\n" in text
    assert "channel=" not in text


def test_every_metric_of_the_dashboard_exists(mount: Mount, served: Site, trace: Path) -> None:
    mount.create("app/lines", "buffers=single")
    with traced(mount) as program:
        program.ask("emit 10")
        names = {re.match(r"\w+", name)[0] for name in served.figures()}
    board = json.loads(served.get("grafana.json").body)
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in board["templating"]["list"] if "query" in variable["query"]]
    asked = [name for query in queries for name in re.findall(r"\brelayfs_\w+", query)]
    assert len(asked) >= len(queries) > 10
    assert [name for name in asked if name not in names] == []


# --- live events ---


def test_records_are_sent_as_view_prints_them_until_the_channel_is_removed(mount: Mount, served: Site) -> None:
    path = mount.create("app/cpu", "times=mono")
    with Events(served, "channel=app/cpu") as events, Channel(path) as channel:
        assert events.message() == ("begin", {"channel": "app/cpu"})
        for i in range(100):
            channel.write(b"%d\n" % i)
        merged = [json.loads(line) for line in (mount.path / ".channels/app/cpu/merged.json").read_text().splitlines()]
        got = [events.message() for _ in range(100)]
        # Each reader compares CLOCK_MONOTONIC with the time of day by itself.
        assert [("message", {**one, "ns": 0}) for one in merged] == [(sort, {**one, "ns": 0}) for sort, one in got]
        mount.command("remove app/cpu")
        assert events.message() == ("end", {"why": "the channel app/cpu was removed"})
        with pytest.raises(EOFError):
            events.message()


def test_events_go_to_all_who_follow_and_stay_for_the_recorder(mount: Mount, served: Site, trace: Path) -> None:
    with Events(served, "trace=t") as one, Events(served, "trace=t") as other, traced(mount) as program:
        assert {one.message()[0], other.message()[0]} == {"begin"}
        program.ask("emit 50")
        for events in (one, other):
            got = [events.message()[1] for _ in range(50)]
            assert [event["event"] for event in got] == ["judge:step"] * 50
            assert len({json.dumps(event) for event in got}) == 50
        assert served.figures()["relayfs_serve_streams"] == 2
        assert served.figures()['relayfs_trace_present_events{trace="t"}'] == 50


def test_a_slow_client_is_told_what_it_missed_and_holds_up_nobody(mount: Mount, served: Site) -> None:
    path, n_batches, n = mount.create("app/cpu", "times=mono buffers=single mode=overwrite"), 16, 100
    with (
        Events(served, "channel=app/cpu") as fast,
        Events(served, "channel=app/cpu", 4096) as slow,
        Channel(path) as channel,
    ):
        fast.message()
        for batch in range(n_batches):
            for i in range(n):
                channel.write(b"%6d" % (n * batch + i) + bytes(1000))
            # A zero byte is six in JSON. The queue of a client has room for a batch, but not for two.
            got = [fast.message() for _ in range(n)]
            assert [int(one["record"][:6]) for _, one in got] == list(range(n * batch, n * batch + n))
        channel.write(b"%6d" % -1)
        seen, n_missed, expected = 0, 0, 0
        assert slow.message()[0] == "begin"
        while True:
            sort, data = slow.message()
            if sort == "missed":
                n_missed += data["lines"]
                expected += data["lines"]
                continue
            assert sort == "message"
            number = int(data["record"][:6])
            if number < 0:
                break
            # What was missed was missed here, and nowhere else.
            assert number == expected
            seen, expected = seen + 1, expected + 1
    assert n_missed > 0
    assert seen + n_missed == n_batches * n


def test_a_client_that_takes_nothing_is_disconnected(mount: Mount) -> None:
    path = mount.create("app/cpu", "times=mono buffers=single mode=overwrite")
    with (
        site("--mount", mount.path, relayctl=having("STALLED_S", 0.1)) as impatient,
        Events(impatient, "channel=app/cpu", 4096),
        Channel(path) as channel,
    ):

        def has_gone() -> bool:
            channel.write(bytes(100_000))
            return impatient.figures()["relayfs_serve_streams"] == 0

        assert impatient.figures()["relayfs_serve_streams"] == 1
        wait_until(has_gone, "the client is disconnected")


def test_what_fails_while_one_is_followed_leaves_the_others(mount: Mount) -> None:
    """As a mistake in what reads the store would."""
    for name in ("bad", "good"):
        mount.create(f"app/{name}", "times=mono buffers=single")
    code = """
from relayfs_fuse.cli.web.tails import Tail
step = Tail._step
def failing(self):
    if self.followed.name == "app/bad":
        raise ValueError("no number")
    return step(self)
Tail._step = failing
from relayfs_fuse.cli.relayctl import main
main()
"""
    said = "app/bad: relayctl serve has failed: ValueError('no number')"
    with site("--mount", mount.path, relayctl=[sys.executable, "-c", code], said=r".*'app/bad'.*no number\n") as one:
        with Events(one, "channel=app/good") as good:
            assert good.message()[0] == "begin"
            with Events(one, "channel=app/bad") as bad:
                assert (bad.message()[0], bad.message()) == ("begin", ("end", {"why": said}))
            (mount.path / "app/good").write_bytes(b"record")
            assert good.message()[1]["record"] == "record"
        with Events(one, "channel=app/good") as good:
            assert good.message()[0] == "begin"


def test_when_the_last_client_has_gone_no_buffer_is_held(mount: Mount, served: Site) -> None:
    mount.create("app/cpu", "times=mono")
    maps = Path(f"/proc/{served.process.pid}/maps")
    with Events(served, "channel=app/cpu") as one:
        with Events(served, "channel=app/cpu") as other:
            other.message()
        wait_until(lambda: served.figures()["relayfs_serve_streams"] == 1, "one client has gone")
        one.message()
        assert "/app/cpu/mem0" in maps.read_text()
    wait_until(lambda: "/app/cpu/mem0" not in maps.read_text(), "the buffers are unmapped")
    assert served.figures()["relayfs_serve_streams"] == 0


def test_what_cannot_be_followed_is_refused_with_the_reason(mount: Mount, served: Site) -> None:
    mount.create("app/plain", "buffers=single")
    for query, status, text in (
        ("events", 400, "?trace=NAME or ?channel=PATH"),
        ("events?trace=t&channel=app/plain", 400, "one of them"),
        ("events?channel=app/plain", 404, "times=mono"),
        ("events?channel=../../etc", 404, "no such channel; channels: app/plain"),
        ("events?channel=%00%ff", 404, "no such channel"),
        ("events?trace=none", 404, "there is no trace none"),
        ("snapshot?trace=none", 404, "there is no trace none"),
        ("trace.pftrace", 400, "?trace=NAME"),
    ):
        answer = served.get(query)
        assert (answer.status, text in answer.text) == (status, True), answer.text
        assert served.get(query, "HEAD").status == (200 if "plain" in query and status == 404 else status)


# --- downloads ---


def test_a_snapshot_and_a_perfetto_trace_have_the_events_and_leave_them(
    mount: Mount, served: Site, trace: Path, tmp_path: Path
) -> None:
    assert served.get("snapshot?trace=t").text == "t: no program has written to it that can be read\n"
    with traced(mount) as program:
        program.ask("emit 100")
        answer = served.get("snapshot?trace=t")
        perfetto = served.get("trace.pftrace?trace=t")
    assert (answer.status, perfetto.status) == (200, 200)
    assert "t.tar" in answer.headers["Content-Disposition"]
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        archive.extractall(tmp_path)
    assert babeltrace(tmp_path / "t").numbers() == list(range(100))
    (tmp_path / "t.pftrace").write_bytes(perfetto.body)
    with trace_processor(tmp_path / "t.pftrace") as query:
        assert query("select count(*) as n from slice where name = 'judge:step'") == [{"n": 100}]
    assert served.figures()['relayfs_trace_present_events{trace="t"}'] == 100
    head = served.get("snapshot?trace=t", "HEAD")
    assert (head.status, head.body, head.headers["Content-Type"]) == (200, b"", "application/x-tar")


# --- many connections ---


def test_clients_that_take_no_answer_keep_nobody_out(mount: Mount, served: Site) -> None:
    """They are disconnected when others come, and what waits for them is bounded."""
    for i in range(64):
        mount.create(f"app/{i:03}{'x' * 190}", "buffers=single subbuf_size=4K n_subbufs=2")
    with ExitStack() as stack:
        for _ in range(300):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", served.port))
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        assert served.get("metrics").status == 200
        wait_until(lambda: n_sockets_of(served) <= CONNECTIONS_MAX + 16, lambda: f"sockets: {n_sockets_of(served)}")


def n_sockets_of(served: Site) -> int:
    n = 0
    for path in Path(f"/proc/{served.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            n += str(path.readlink()).startswith("socket:")
    return n


def test_connections_without_requests_keep_nobody_out(mount: Mount) -> None:
    with site("--mount", mount.path, relayctl=having("_REQUEST_S", 3600.0)) as one, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", one.port))) for _ in range(200)]
        assert one.get("metrics").status == 200
        # The server has closed those that waited longest.
        await_end(idle[0])
    with (
        site("--mount", mount.path, relayctl=having("_REQUEST_S", 0.1)) as one,
        socket.create_connection(("127.0.0.1", one.port)) as slow,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\n")
        await_end(slow)


def having(name: str, value: float) -> list[str]:
    """Return a relayctl with another value of a constant of the server."""
    code = f"from relayfs_fuse.cli.web import run; run.{name} = {value}"
    return [sys.executable, "-c", f"{code}\nfrom relayfs_fuse.cli.relayctl import main; main()"]


def await_end(connection: socket.socket) -> None:
    connection.settimeout(DEADLINE_S)
    with suppress(ConnectionResetError):
        assert connection.recv(1) == b""
