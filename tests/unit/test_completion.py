"""What shells propose for relayfs; relayctl's completions are in tests/fuse/cli/test_completion.py."""

import re
import subprocess

import pytest
from build import ROOT

from relayfs_fuse.cli import mount, proposals

FILES = {shell: ROOT / f"mount/completions/relayfs.{shell}" for shell in ("bash", "zsh", "fish")}
# How each shell writes a list.
LIST = {"bash": r"\t(?:local )?{}='([^']*)'", "zsh": r"{}=\(([^)]*)\)", "fish": r"set -l {} (.*)"}


@pytest.mark.parametrize("shell", FILES)
def test_completion_has_every_mount_option(shell):
    text = FILES[shell].read_text()
    lists = {}
    for name in ("own", "fuse"):
        found = re.search(LIST[shell].format(name), text)
        assert found
        lists[name] = found[1].split()
    assert lists["own"] == [re.sub("=.*", "=", option) for option in mount.OWN_OPTIONS]
    assert lists["fuse"] == list(mount.FUSE_OPTIONS)


TYPED = [
    ("relayfs -o sto", ["store="]),
    ("relayfs -o ro,si", ["ro,size="]),
    ("relayfs --f", ["--foreground"]),
    ("relayfs --v", ["--version"]),
    ("relayfs /proc/sel", ["/proc/self"]),
]


@pytest.mark.parametrize(
    ("typed", "replies"),
    [*TYPED, ("relayfs -o log=/etc/hostna", ["/etc/hostname"]), ("relayfs -o size=1G,allow", ["1G,allow_other"])],
)
def test_bash_completes(typed, replies):
    # What bash gives a completion function: the words, cut at "=".
    word = re.split(r"[ =]", typed)[-1]
    script = f"""compopt() {{ :; }}; . '{FILES["bash"]}'; COMP_LINE='{typed}' COMP_POINT={len(typed)}
        _relayfs relayfs '{word}' ''; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == replies


def test_fish_completes():
    script = "source $argv[1]; for typed in $argv[2..-1]; complete -C $typed; end"
    words = ["fish", "--no-config", "-c", script, FILES["fish"], *(typed for typed, _ in TYPED)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    shown = [line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines()]
    assert shown == [reply for _, replies in TYPED for reply in replies]


def test_what_commands_have_shells_propose_is_there():
    names = {
        name
        for path in (ROOT / "relayfs_fuse/cli").glob("*.py")
        for name in re.findall(r"shell_complete=complete\.(\w+)", path.read_text())
    }
    assert names
    assert [name for name in names if not callable(getattr(proposals, name, None))] == []
