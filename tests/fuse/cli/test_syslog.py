"""The lines of the how-to on syslog: what rsyslog logs goes into a channel, and so does what is appended to a file."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from build import ROOT
from forking import RELAYCTL
from mounts import DEADLINE_S, Mount, wait_until

HOW_TO = (ROOT / "docs/howto/syslog.md").read_text()
INPUT = """
global(workDirectory="{place}")
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="{place}/log")
"""

pytestmark = pytest.mark.one_mount


def lines_of(begin: str) -> str:
    """The block of the how-to that begins so."""
    (block,) = (block for block in HOW_TO.split("```\n")[1::2] if block.startswith(begin))
    return block


@contextmanager
def rsyslog(mount: Mount, place: Path) -> Iterator[Path]:
    """Run rsyslogd with the lines of the how-to; give the socket that it reads."""
    program = shutil.which("rsyslogd")
    if program is None:
        pytest.skip("rsyslogd is missing, which ./dev unpacks from Debian's packages")
    action = lines_of("# /etc/rsyslog.d/relay.conf")
    assert action.count("/usr/bin/relayctl") == action.count(" system/log") == 1
    action = action.replace("/usr/bin/relayctl", str(RELAYCTL)).replace(" system/log", f" {mount.path}/system/log")
    (place / "rsyslog.conf").write_text(INPUT.format(place=place) + action)
    libraries = next(Path(program).parents[2].glob("usr/lib/*/rsyslog"))
    command = [program, "-n", "-f", place / "rsyslog.conf", "-i", place / "pid", "-M", libraries]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries.parent)}
    with (place / "said").open("wb") as said, subprocess.Popen(command, env=environment, stderr=said) as process:
        try:
            wait_until((place / "log").exists, (place / "said").read_text)
            yield place / "log"
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, (place / "said").read_text()


def log(socket: Path, *messages: str) -> None:
    """Send messages to rsyslogd, one a line."""
    command = ["logger", "--socket", socket, "--socket-errors=on", "--tag", "app"]
    text = "".join(f"{one}\n" for one in messages)
    subprocess.run(command, input=text, text=True, check=True, timeout=DEADLINE_S)


def test_rsyslog_writes_into_a_channel_and_does_not_wait_for_readers(mount: Mount, tmp_path: Path) -> None:
    """A full channel loses messages, which are counted; rsyslog goes on."""
    channel = mount.create("system/log", "buffers=single subbuf_size=4K n_subbufs=2 times=mono")
    with rsyslog(mount, tmp_path) as socket:
        log(socket, "one", "two")
        wait_until(lambda: mount.shown("system/log", "records") == "2", (tmp_path / "said").read_text)
        assert [line.split(" app: ")[1] for line in channel.read_text().splitlines()] == ["one", "two"]
        log(socket, *(f"more {number}" for number in range(1000)))

        def written() -> int:
            return int(mount.shown("system/log", "records"))

        def lost() -> int:
            return int(mount.shown("system/log", "lost_full"))

        wait_until(lambda: written() + lost() == 1002, lambda: f"{written()} written, {lost()} lost")
        assert lost() > 0
        kept = channel.read_text().splitlines()
        assert len(kept) == written() - 2
        log(socket, "afterwards")
        wait_until(lambda: "afterwards" in channel.read_text(), (tmp_path / "said").read_text)


def test_what_is_appended_to_a_log_goes_into_a_channel(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("system/log", "mode=overwrite times=mono buffers=single")
    (line,) = (one for one in lines_of("relayctl create system/log").splitlines() if one.startswith("tail -F"))
    (tmp_path / "syslog").write_text("before\n")
    script = line.replace("/var/log/syslog", str(tmp_path / "syslog")).replace("relayctl", str(RELAYCTL))
    script = script.replace("system/log", str(channel))
    with subprocess.Popen(["sh", "-c", script], start_new_session=True, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: mount.shown("system/log", "records") == "1", "the first line")
            # As logrotate(8) does it.
            (tmp_path / "syslog").rename(tmp_path / "syslog.1")
            (tmp_path / "syslog").write_text("after\n")
            wait_until(lambda: mount.shown("system/log", "records") == "2", "the line after the rotation")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
    assert channel.read_text() == "before\nafter\n"
