"""What shells propose for relayctl: commands, options, and names that exist."""

import os
import re

import pytest
from click.shell_completion import BashComplete
from forking import RELAYCTL, run
from mounts import Mount

from relayfs_fuse import Counters
from relayfs_fuse.cli.relayctl import relayctl

pytestmark = pytest.mark.one_mount


def proposed(*words: str) -> list[str]:
    """Complete the last of the words, as the shells' scripts do by way of relayctl; a type stands for paths of it."""
    asked = BashComplete(relayctl, {}, "relayctl", "_RELAYCTL_COMPLETE")
    items = asked.get_completions(list(words[:-1]), words[-1])
    return [item.value if item.type == "plain" else item.type for item in items]


@pytest.fixture
def furnished(mount: Mount, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RELAYFS", str(mount.path))
    for name in ("web", "worker", "other"):
        mount.command(f"trace create {name}\n")
    mount.create("walk/steps", "times=mono buffers=single")
    mount.create("walk/untimed", "buffers=single")
    return mount


def test_commands_and_options_are_proposed():
    assert proposed("sn") == ["snapshot"]
    assert proposed("record", "--rot") == ["--rotate-size", "--rotate-time"]
    assert proposed("export", "--time", "") == ["clock", "date", "relative", "seconds"]


@pytest.mark.parametrize("command", ["live", "snapshot", "export", "trace stop"])
def test_traces_are_proposed(furnished, command):
    assert proposed(*command.split(), "") == ["other", "web", "worker"]
    assert proposed(*command.split(), "w") == ["web", "worker"]


def test_traces_and_channels_are_proposed_to_be_recorded(furnished):
    assert proposed("record", "w") == ["walk/steps", "walk/untimed", "web", "worker"]


def test_channels_are_proposed_whose_records_have_times(furnished):
    assert proposed("view", "w") == ["walk/steps", "web", "worker"]


def test_words_of_triggers_are_proposed(furnished):
    furnished.command("trigger add slow on web lost do notify")
    assert proposed("trigger", "remove", "") == ["slow"]
    furnished.command("trigger remove slow")
    typed = ("trigger", "add", "x", "on", "web")
    assert proposed(*typed[:3], "") == ["on"]
    assert proposed(*typed[:4], "w") == ["web", "worker"]
    assert proposed(*typed, "l") == ["lost"]
    assert proposed(*typed, "lost", "d") == ["do"]
    assert proposed(*typed, "lost", "do", "s") == ["snapshot", "start", "stop"]
    assert proposed(*typed, "lost", "do", "snapshot", "") == ["dir"]
    assert proposed(*typed, "lost", "do", "snapshot", "k") == ["keep="]
    assert proposed(*typed, "lost", "do", "stop", "o") == ["other"]
    assert proposed(*typed, "lost", "do", "notify", "") == ["keep=", "limit=", "window="]


def test_what_is_given_already_is_not_proposed_again(furnished):
    assert proposed("trace", "remove", "web", "w") == ["worker"]
    assert proposed("remove", "walk/steps", "w") == ["walk/untimed"]


@pytest.mark.parametrize(
    ("typed", "replies"),
    [
        ("create x fra", ["framing="]),
        ("create x type=ring m", ["mode="]),
        ("create x type=relay mode= m", []),
        ("create x type=ring mode=", ["mode=no-overwrite", "mode=overwrite"]),
        ("create x type=ring delivery=", []),
        ("create x type=ring mode=ov", ["mode=overwrite"]),
        ("trace create t clock=", ["clock=mono", "clock=tsc"]),
        ("trace create t filter=1 f", ["flush_interval="]),
    ],
)
def test_keys_and_values_of_create_are_proposed(typed, replies):
    assert proposed(*typed.split(" ")) == replies


def test_counters_are_proposed(furnished):
    with Counters(furnished.path) as counters:
        counters.add("disk/writes")
        assert proposed("counters", "disk/w") == ["disk/writes"]
        assert proposed("stat", "w") == ["walk/steps", "walk/untimed", "web", "worker"]
        assert [name for name in proposed("stat", "") if "/" in name] == ["disk/writes", "walk/steps", "walk/untimed"]
        counters.delete("disk/writes")


@pytest.mark.parametrize("command", ["view", "export"])
def test_what_is_no_trace_may_be_a_recording(furnished, command):
    assert proposed(command, "/var/lo") == ["dir"]


@pytest.mark.parametrize("words", [("list", "-m"), ("view", "--store"), ("record", "-o"), ("snapshot", "--output")])
def test_directories_are_proposed(words):
    assert proposed(*words, "/") == ["dir"]


def test_the_mount_that_was_typed_counts(furnished, tmp_path):
    """Where nothing can be found out, nothing is proposed, and nothing is said."""
    assert proposed("stat", "-m", str(furnished.path), "we") == ["web"]
    assert proposed("stat", "-m", str(tmp_path), "we") == []
    assert proposed("counters", "-m", str(tmp_path), "") == []
    assert proposed("view", "-m", str(tmp_path), "w") == ["dir"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_program_answers_each_shell(furnished, shell):
    # COMP_CWORD: in fish the word itself.
    asked = {"_RELAYCTL_COMPLETE": f"{shell}_complete", "COMP_WORDS": "relayctl stat we",
             "COMP_CWORD": "we" if shell == "fish" else "2"}  # fmt: skip
    answer = run([RELAYCTL], env={**os.environ, **asked}, capture_output=True, text=True, check=True).stdout
    assert "web" in re.split(r"[,\s]", answer)
