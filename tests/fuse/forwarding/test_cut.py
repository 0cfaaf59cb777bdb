"""A network that is cut: forwarder and server in two network namespaces, with a link between them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from babeltrace import read
from forking import RELAYCTL
from mounts import DEADLINE_S, wait_until
from nats_server import MAX_BYTES, NatsServer
from stress import is_long

from relayfs_fuse.record.full import size_of

SPOOL_MAX = 512 << 10
PLACE = "10.0.0.1"
CUT_S = 30.0

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")


def enter(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net"]


def run_in(pid: int, *words: object) -> str:
    done = subprocess.run(
        [*enter(pid), *map(str, words)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Processes in the namespaces of the server and of the forwarder."""
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in range(2)]
    own = os.readlink("/proc/self/ns/net")
    try:
        server, host = (holder.pid for holder in holders)
        for pid in (server, host):
            wait_until(lambda pid=pid: os.readlink(f"/proc/{pid}/ns/net") != own, "a namespace")
        run_in(server, "ip", "link", "add", "hub", "type", "veth", "peer", "name", "uplink", "netns", host)
        for pid, link, address in ((server, "hub", f"{PLACE}/24"), (host, "uplink", "10.0.0.2/24")):
            run_in(pid, "ip", "address", "add", address, "dev", link)
            run_in(pid, "ip", "link", "set", "lo", "up")
            run_in(pid, "ip", "link", "set", link, "up")
        yield server, host
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


@pytest.mark.stress
def test_a_cut_network_is_waited_for_and_nothing_is_lost(ends, store, run, tmp_path: Path):
    """Long: for half a minute."""
    server_end, host_end = ends
    spool, into = tmp_path / "spool", tmp_path / "into"
    trace = store.create("t", n_subbufs=64)
    app = run(trace, "app")
    with NatsServer(tmp_path, host=PLACE, enter=enter(server_end)) as server:
        run_in(server_end, RELAYCTL, "fleet", "init", "--to", server.url, "--max-bytes", MAX_BYTES)
        command = ["forward", "t", "--to", server.url, "--store", store.path, "--spool", spool, "--host", "a"]
        command += ["--spool-max", SPOOL_MAX]
        with subprocess.Popen([*enter(host_end), RELAYCTL, *map(str, command)]) as forwarder:
            # What is sent is removed.
            app.write_patiently(10_000)
            wait_until(lambda: list(spool.glob("*/0002")) and not list(spool.glob("*/0001")), "the first messages")
            run_in(host_end, "ip", "link", "set", "uplink", "down")
            app.write_patiently(5_000)
            wait_until(lambda: size_of(str(spool)) > SPOOL_MAX // 4, "what waits in the spool")
            time.sleep(CUT_S * is_long())
            run_in(host_end, "ip", "link", "set", "uplink", "up")
            wait_until(lambda: size_of(str(spool)) < SPOOL_MAX // 4, "an empty spool")
            app.flush()
            forwarder.send_signal(signal.SIGTERM)
            assert forwarder.wait(DEADLINE_S) == 0
        run_in(host_end, RELAYCTL, *command, "--once")
        run_in(server_end, RELAYCTL, "receive", "--from", server.url, "-o", into, "--once")
        shown, *_ = map(json.loads, run_in(server_end, RELAYCTL, "fleet", "--to", server.url, "--json").splitlines())
    assert shown["lost"] == store.lost(app.directory)
    numbers: list[int] = []
    for part in sorted(into.glob("a/*/*/")):
        numbers += read(part).events.get("app", [])
    assert numbers == list(range(15_000))
