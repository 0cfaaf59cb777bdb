"""Traces as directories: mkdir(2) and rmdir(2) in `.traces`, and the settings in them."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import Mount, User
from traced import record_stopped, relayctl, traced


def values(instance: Path) -> dict[str, str]:
    return {path.name: path.read_text().removesuffix("\n") for path in instance.iterdir() if path.is_file()}


def test_mkdir_makes_a_trace_whose_settings_are_files_and_rmdir_removes_it(mount: Mount, tmp_path: Path) -> None:
    instance = mount.path / ".traces/t"
    instance.mkdir()
    mount.command("trace create other")
    assert (mount.path / "t").is_dir()
    assert values(instance) == values(mount.path / ".traces/other")
    for name, value in (("mode", "overwrite"), ("subbuf_size", "16K"), ("n_subbufs", "8"), ("filter", "traced,x*")):
        (instance / name).write_text(f"{value}\n")
    (instance / "set_event").write_text("judge:*\n!judge:none\n")
    with (instance / "set_event").open("a") as file:
        file.write("judge:step if seq < 5\n")
    (instance / "tracing_on").write_text("1")
    found = values(instance)
    assert found["set_event"] == "judge:*\n!judge:none\njudge:step if seq < 5"
    assert {name: found[name] for name in ("tracing_on", "mode", "subbuf_size", "n_subbufs", "filter")} == {
        "tracing_on": "1", "mode": "overwrite", "subbuf_size": "16K", "n_subbufs": "8", "filter": "traced,x*"
    }  # fmt: skip
    said = mount.control.read_text()
    assert "trace create t subbuf_size=16K n_subbufs=8 mode=overwrite buffers=perprocess clock=mono filter=tr" in said
    assert "trace enable t judge:step if seq < 5\n" in said
    assert "trace start t\n" in said
    with traced(mount) as program:
        program.ask("emit 10")
        with pytest.raises(OSError, match="Device or resource busy"):
            (instance / "mode").write_text("no-overwrite")
        (instance / "tracing_on").write_text("0")
        assert (instance / "tracing_on").read_text() == "0\n"
        with pytest.raises(OSError, match="Device or resource busy"):  # it has events
            (instance / "mode").write_text("no-overwrite")
    assert record_stopped(mount, "t", tmp_path / "out").numbers() == list(range(5))
    instance.rmdir()
    assert not (mount.path / "t").exists()
    assert not instance.exists()
    assert "trace create t " not in mount.control.read_text()


def test_traces_stay_the_same_directories_when_the_server_dies(mount: Mount) -> None:
    (mount.path / ".traces/t").mkdir()
    mount.command("trace set t n_subbufs=2 flush_interval=500")
    before = {path.name: path.stat().st_ino for path in (mount.path / ".traces/t").iterdir()}
    number, found = (mount.path / ".traces/t").stat().st_ino, values(mount.path / ".traces/t")
    assert (found["n_subbufs"], found["flush_interval"]) == ("2", "500")
    mount.kill()
    mount.start()
    assert values(mount.path / ".traces/t") == found
    assert (mount.path / ".traces/t").stat().st_ino == number
    assert {path.name: path.stat().st_ino for path in (mount.path / ".traces/t").iterdir()} == before
    mount.command("trace remove t")
    assert sorted(os.listdir(mount.path / ".traces")) == ["control", "join", "losses", "lost"]


@pytest.fixture
def with_trace(mount: Mount) -> Iterator[Mount]:
    mount.command("trace create t")
    yield mount
    mount.command("trace remove t")


@pytest.mark.one_mount
@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda traces: (traces / "t").mkdir(), errno.EEXIST),
        (lambda traces: (traces / "a b").mkdir(), errno.EINVAL),
        (lambda traces: (traces / "x\ntrace remove t").mkdir(), errno.EINVAL),
        (lambda traces: (traces / "t/more").mkdir(), errno.EPERM),
        (lambda traces: (traces / "none").rmdir(), errno.ENOENT),
        (lambda traces: (traces / "control").rmdir(), errno.ENOTDIR),
        (lambda traces: (traces / "t/mode").write_text("sideways"), errno.EINVAL),
        (lambda traces: (traces / "t/mode").write_text("overwrite\ntrace remove t"), errno.EINVAL),
        (lambda traces: (traces / "t/memory").write_text("1"), errno.ENOSPC),
        (lambda traces: (traces / "t/tracing_on").write_text("yes"), errno.EINVAL),
        (lambda traces: (traces / "t/set_event").write_text("judge:step if seq <"), errno.EINVAL),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(with_trace: Mount, act, code: int) -> None:
    before = with_trace.control.read_text()
    with pytest.raises(OSError) as refused:
        act(with_trace.path / ".traces")
    assert refused.value.errno == code
    assert with_trace.control.read_text() == before
    if code in (errno.EINVAL, errno.ENOSPC):
        assert f"[{errno.errorcode[code]}]" in with_trace.error_log


def test_other_users_may_not(mount: Mount, unprivileged: User) -> None:
    mount.command("trace create t")
    for command in (["mkdir", "x"], ["rmdir", "t"], ["sh", "-c", "echo 1 >t/tracing_on"]):
        done = unprivileged.run("sh", "-c", f'cd {mount.path}/.traces && exec "$@"', "sh", *command)
        assert done.returncode != 0
        assert "ermission denied" in done.stderr
    assert (mount.path / ".traces/t/tracing_on").read_text() == "0\n"


def test_relayctl_changes_options_until_there_are_events(mount: Mount) -> None:
    mount.command("trace create t")
    done = relayctl(mount, "trace", "set", "t", "mode=overwrite", "memory=64M")
    assert done.returncode == 0, done.stderr
    assert (mount.path / ".traces/t/memory").read_text() == "64M\n"
    mount.command("trace start t")
    done = relayctl(mount, "trace", "set", "t", "mode=no-overwrite")
    assert done.returncode == 1
    assert "is started, or has events" in done.stderr
