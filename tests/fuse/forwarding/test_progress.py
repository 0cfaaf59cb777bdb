"""How far a forwarder is, what waits and since when, and what was lost: counters, relayctl stat, relayctl fleet."""

import json
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from forwarding import forward, running
from mounts import DEADLINE_S, Mount, wait_until
from tracing import relayctl

from relayfs_fuse import Counters
from relayfs_fuse.cli.forwarders import figures_of
from relayfs_fuse.record.full import size_of

pytestmark = pytest.mark.one_mount

HOST = "a"


def shown(mount: Mount, nats, name: str) -> dict[str, Any]:
    """What stat shows of a forwarder; nothing: there is none."""
    done = relayctl("stat", f"forward/{name}@{nats.url.removeprefix('nats://')}", "--mount", mount.path, "--json")
    return json.loads(done.stdout) if done.stdout else {}


def write(channel: Path, n: int) -> int:
    """Write n lines of 100 bytes; return how many had room."""
    taken = 0
    descriptor = os.open(channel, os.O_WRONLY)
    for _ in range(n):
        try:
            taken += os.write(descriptor, b"x" * 99 + b"\n") // 100
        except OSError as error:
            assert error.errno in {11, 28}, error
    os.close(descriptor)
    return taken


def test_stat_and_fleet_tell_how_far_it_is_also_while_the_server_takes_nothing(mount: Mount, nats, tmp_path):
    channel = mount.create("app/far", "buffers=single subbuf_size=4K n_subbufs=16")
    options = [channel, "--to", nats.url, "--spool", tmp_path / "spool", "--host", HOST]
    nats.make_stream("--max-bytes", "20K")
    taken, lost = write(channel, 400), 0
    with running("forward", *options) as process:
        wait_until(lambda: shown(mount, nats, "app-far").get("unread_bytes"), "something behind")
        first = shown(mount, nats, "app-far")
        assert (first["kind"], first["state"].startswith("behind by ")) == ("forwarder", True)
        # What comes while a message waits is seen, too; the buffer is flushed when its recorder ends only.
        taken += write(channel, 400)
        wait_until(lambda: shown(mount, nats, "app-far")["unread_bytes"] > first["unread_bytes"], "more behind")
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    found = write(channel, 2000)
    taken, lost = taken + found, 2000 - found
    assert lost > 0
    nats.make_stream()
    said = forward(channel, nats, *options[3:])
    done = shown(mount, nats, "app-far")
    assert (done["unread_bytes"], done["lost"], done["state"]) == (0, lost, "sends")
    # A message that the first one had sent, and did not know of, counts once.
    assert 0 < done["count"] <= sum(nats.subjects().values())
    assert taken * 100 <= done["bytes"] < taken * 100 + 1000, said
    with Counters(mount.path) as counters:
        names = [name.rpartition("/")[2] for name in counters.infos() if name.startswith("forward/app-far@")]
        assert sorted(names) == ["behind", "bytes", "lost", "messages", "updated", "waited"]
    done = relayctl("stat", "--mount", mount.path)
    assert "/waited" not in done.stdout
    assert f"any:{lost}" in done.stdout


def test_what_comes_is_seen_while_the_very_first_message_waits(mount: Mount, nats, tmp_path):
    channel = mount.create("app/first", "buffers=single subbuf_size=4K n_subbufs=16")
    options = [channel, "--to", nats.url, "--spool", tmp_path / "spool", "--host", HOST]
    nats.make_stream("--max-bytes", "1K")
    taken = write(channel, 300)
    with running("forward", *options):
        wait_until(lambda: size_of(str(tmp_path)) >= 6 * 4096, "records in the spool")
    with running("forward", *options):
        wait_until(lambda: shown(mount, nats, "app-first").get("unread_bytes", 0) >= 100 * taken, "all is behind")
        write(channel, 300)
        wait_until(lambda: shown(mount, nats, "app-first")["unread_bytes"] > 100 * taken + 4096, "more behind")


def test_fleet_shows_since_when_a_host_is_behind(mount: Mount, nats, tmp_path):
    channel = mount.create("app/since", "type=ring buffers=single framing=line size=1M")
    write(channel, 6000)
    began = datetime.now(UTC)
    # All is in the spool before the first message is sent, which thus says that more waits.
    options = [channel, "--to", nats.url, "--spool", tmp_path, "--host", HOST]
    nats.make_stream("--max-bytes", "1K")
    with running("forward", *options):
        wait_until(lambda: size_of(str(tmp_path)) >= 600_000, "all in the spool")
    nats.make_stream("--max-bytes", "300K")
    with running("forward", *options) as process:
        assert process.stderr is not None
        assert "the stream takes no message now" in process.stderr.readline()
    recording, *_ = map(json.loads, relayctl("fleet", "--to", nats.url, "--json").stdout.splitlines())
    assert recording["behind"] > 0
    assert -5 <= (datetime.fromisoformat(recording["waits_since"]) - began).total_seconds() <= DEADLINE_S
    line, *_ = relayctl("fleet", "--to", nats.url).stdout.splitlines()
    assert line.count(" ago") == 2


def test_who_cannot_tell_says_so_and_goes_on(mount: Mount, nats, tmp_path):
    channel = mount.create("app/long", "buffers=single")
    write(channel, 10)
    said = forward(channel, nats, "--spool", tmp_path, "--host", HOST, "--as", "n" * 230)
    assert f"relayctl: counters forward/{'n' * 230}@" in said
    assert "; they do not tell how far this is\n" in said
    assert nats.subjects()


def test_a_wrong_address_is_refused_before_anything_is_recorded(mount: Mount, tmp_path):
    channel = mount.create("app/wrong", "buffers=single")
    done = relayctl("forward", channel, "--to", "127.0.0.1", "--spool", tmp_path)
    assert (done.returncode, done.stderr) == (
        1, "relayctl: 127.0.0.1 is no address of a NATS server, as nats://HOST or nats://HOST:PORT\n"
    )  # fmt: skip
    assert not any(tmp_path.iterdir())
    assert "app-wrong@" not in relayctl("counters", "-m", mount.path).stdout


def test_a_forwarder_that_tells_nothing_more_is_silent():
    told = dict.fromkeys(("messages", "bytes", "lost", "behind", "waited"), 1)
    now = int(time.time())
    for updated, state in ((now, "behind by 1s"), (now - 120, "silent for 2m"), (0, "has told nothing yet")):
        (one,) = figures_of({"forward/x@y": told | {"updated": updated}}, {"forward/x@y/messages": 1})
        assert one.state == state
