"""What interactive shells insert for names that other users have chosen: the name, and no command.

Each shell runs in a terminal; what was completed is given to a function `relayctl`, which prints its arguments.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from build import ROOT
from forking import RELAYCTL
from mounts import DEADLINE_S, Mount

pytestmark = pytest.mark.one_mount

# All but blanks, control characters and slashes may be in the name of a channel.
NAME = "a$(>made);>made&`>made`()'\"\\!x*[y]?{a,b}~#|<,%^=:@."
# What a user has typed before TAB.
BEFORE = {
    "bash": ("od", "odd/", r"odd/a\$", "'odd/", '"odd/'),
    "zsh": ("od", "odd/", r"odd/a\$"),
    "fish": ("od", "odd/", r"odd/a\$"),
}
BEGIN = {
    "bash": "PS1='ready> '; . '{0}/relayctl.bash'; set +H; relayctl() {{ printf '<%s>\\n' \"$@\"; }}\n",
    "zsh": "PS1='ready> '; fpath=({1} $fpath); autoload -U compinit; compinit -D -u; unsetopt banghist;"
    " relayctl() {{ printf '<%s>\\n' \"$@\" }}\n",
    "fish": "function fish_prompt; echo 'ready> '; end; source '{0}/relayctl.fish';"
    " function relayctl; printf '<%s>\\n' $argv; end\n",
}
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}


# Names that bash cuts into pieces: what is typed, and the words that relayctl gets.
PIECES = {
    "stat pieces/a": ("stat", "pieces/a:b=c@d"),
    "stat pieces/a:": ("stat", "pieces/a:b=c@d"),
    "stat pieces/a:b=": ("stat", "pieces/a:b=c@d"),
    "stat 'pieces/a:b": ("stat", "pieces/a:b=c@d"),
    "create x type=ring mo": ("create", "x", "type=ring", "mode="),
    "create x type=ring mode=ov": ("create", "x", "type=ring", "mode=overwrite"),
    "create x mode=no-overwrite type=ring deli": ("create", "x", "mode=no-overwrite", "type=ring", "deli"),
}


@contextmanager
def typing(shell: str, mount: Mount, place: Path) -> Iterator[pexpect.spawn]:
    """A shell that completes, at its first prompt."""
    functions = place / "functions"
    functions.mkdir()
    completions = ROOT / "mount/completions"
    (functions / "_relayctl").write_text((completions / "relayctl.zsh").read_text())
    environment = {
        **os.environ, "RELAYFS": str(mount.path), "PATH": f"{RELAYCTL.parent}:{os.environ['PATH']}",
        "HOME": str(place), "TERM": "dumb", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    command, *arguments = SHELLS[shell]
    terminal = pexpect.spawn(
        command,
        arguments,
        env=environment,
        cwd=str(place),
        encoding="utf-8",
        timeout=DEADLINE_S,
        dimensions=(50, 500),
    )
    terminal.send(BEGIN[shell].format(completions, functions))
    terminal.expect_exact("ready> ")
    yield terminal
    # A line, because zsh reads an EOF character that comes before its prompt as NUL.
    terminal.send("exit\n")
    terminal.expect(pexpect.EOF)
    terminal.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_name_is_inserted_as_one_word_whatever_is_in_it(mount: Mount, shell: str, tmp_path: Path) -> None:
    mount.create(f"odd/{NAME}", "buffers=single subbuf_size=4K")
    with typing(shell, mount, tmp_path) as terminal:
        for before in BEFORE[shell]:
            terminal.send(f"relayctl stat {before}\t\n")
            terminal.expect_exact("<stat>\r\n")
            terminal.expect_exact(f"<odd/{NAME}>\r\n")
    assert not (tmp_path / "made").exists()


def test_bash_completes_what_it_cuts_into_pieces(mount: Mount, tmp_path: Path) -> None:
    mount.create("pieces/a:b=c@d", "buffers=single subbuf_size=4K")
    with typing("bash", mount, tmp_path) as terminal:
        for typed, words in PIECES.items():
            terminal.send(f"relayctl {typed}\t\n")
            for word in words:
                terminal.expect_exact(f"<{word}>\r\n")
            terminal.expect_exact("ready> ")
