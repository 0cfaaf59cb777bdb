"""The README's lines run as they are printed, in their order, as one script and pasted at a prompt, in four shells.

They install relayfs for everybody and mount it at /mnt/relay. So they run in a mount namespace of their own, in which
/opt/relayfs, /usr/local, /mnt, /var/log, /dev/shm and /etc are scratch: `arranged`.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from build import ROOT

BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
INSTALL, *USE = BLOCKS
INSTALL_S, SCRIPT_S = 1200, 300
# Without the user's own files.
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "dash": ["dash"],
    "zsh": ["zsh", "-f"],
    "fish": ["fish", "--no-config"],
}
# Debug: without optimization the library is compiled in half the time, and none of this is about speed.
ENVIRONMENT = {
    "HOME": "/root", "LC_ALL": "C.UTF-8", "TERM": "dumb",
    "CMAKE_BUILD_TYPE": "Debug", "SKBUILD_CMAKE_BUILD_TYPE": "Debug",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}  # fmt: skip

# A program keeps the namespace, in which there is no relayfs yet. The clone is seen through a bind mount, as its own
# path may be covered.
ARRANGE = """
set -e
findmnt -rn -t fuse.relayfs -o TARGET | while read -r other; do umount -l "$other" || :; done
cp -a /etc "$1/etc"
mkdir -p "$1/clone" /opt/relayfs
mount --bind "$2" "$1/clone"
mount --bind "$1/etc" /etc
for covered in /opt/relayfs /usr/local /mnt /var/log; do mount -t tmpfs -o size=1G,mode=0755 tmpfs "$covered"; done
mount -t tmpfs -o size=256M,mode=1777 tmpfs /dev/shm
mkdir /usr/local/bin
echo arranged
exec sleep infinity
"""


@contextmanager
def arranged() -> Iterator[list[str | Path]]:
    """Give the command that enters a namespace of one's own."""
    with tempfile.TemporaryDirectory(prefix="relayfs-test-") as place:
        keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", ARRANGE, "sh", place, ROOT], stdout=subprocess.PIPE, text=True
        )
        try:
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == "arranged\n"
            yield ["nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt", f"--wdns={place}/clone"]
        finally:
            keeper.kill()
            keeper.communicate()


def run_script(enter: list[str | Path], shell: str, text: str, deadline_s: float = SCRIPT_S) -> str:
    """Run a block, or several, as one script; return its output."""
    done = subprocess.run(
        [*enter, *SHELLS[shell], "-c", text], env=ENVIRONMENT, capture_output=True, text=True, timeout=deadline_s,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def paste(enter: list[str | Path], shell: str, text: str) -> str:
    """Paste the lines at a shell's prompt, which takes one after the other; return what the terminal shows."""
    command, *arguments = map(str, [*enter, *SHELLS[shell], "-i"])
    terminal = pexpect.spawn(
        command, arguments, env=ENVIRONMENT, encoding="utf-8", timeout=SCRIPT_S, dimensions=(100, 500)
    )
    terminal.send(f"{text}exit\n")
    terminal.expect(pexpect.EOF)
    terminal.close()
    return str(terminal.before)


def check(shown: str, how: str) -> None:
    lines = shown.splitlines()
    for line in Path("/etc/passwd").read_text().splitlines():
        # A prompt may stand before it.
        assert sum(seen.endswith(line) for seen in lines) == 2, (
            f"{how}: {line} of /etc/passwd is not there twice\n{shown}"
        )
    for line in ("0", "from the shell", "one write, one record"):
        assert any(seen.split("# ")[-1] == line for seen in lines), f"{how}: {line!r} is missing\n{shown}"
    assert re.search(r"3 takes 7 steps", shown), f"{how}: the program's own line is missing\n{shown}"
    events = re.findall(r"collatz:(\w+): .*number = (\d+)", shown)
    # babeltrace2 shows them, and relayctl view.
    assert events == [("end", "1"), ("end", "2"), ("end", "3")] * 2, f"{how}\n{shown}"


# Nothing but the recording is left: no mount, no channel in the store. What is removed may go a bit later.
CLEAN_UP = """set -e
rm -r /var/log/web
for second in $(seq 250); do
	[ -n "$(ls /mnt/relay)" ] || [ -n "$(find /dev/shm/relayfs -name 'mem*')" ] || exit 0
	sleep 1
done
findmnt /mnt/relay >&2 || :
find /mnt/relay /dev/shm/relayfs >&2
exit 1
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install for everybody")
def test_lines_of_the_readme_run_as_printed():
    text = "".join(USE)
    with arranged() as enter:
        run_script(enter, "dash", f"set -e\n{INSTALL}", INSTALL_S)
        for shell in SHELLS:
            for run, how in ((run_script, "as one script"), (paste, "pasted at its prompt")):
                shown = run(enter, shell, text)
                check(shown, f"{shell}, {how}")
                print(f"{shell}, {how}", shown, sep="\n")  # pytest shows it if something is left
                run_script(enter, "dash", CLEAN_UP)
