"""The README's lines run as they are printed, in their order, as one script and pasted at a prompt, in four shells.

They install relayfs for everybody and mount it at /mnt/relay. So they run in a mount namespace of their own, in which
/usr, /mnt, /var/log, /dev/shm and /etc are scratch: `arranged`. What they install is what is looked for where programs
look, and taken back in the end.
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

from relayfs_fuse import native

BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
INSTALL, *USE = BLOCKS
INSTALL_S, SCRIPT_S = 1200, 300
VERSION = native.VERSION
# Without the user's own files.
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "dash": ["dash"],
    "zsh": ["zsh", "-f"],
    "fish": ["fish", "--no-config"],
}
ENVIRONMENT = {
    "HOME": "/root", "LC_ALL": "C.UTF-8", "TERM": "dumb",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    # What is built for all tests need not be built again.
    "RELAYFS_ENV": os.environ["RELAYFS_ENV"],
}  # fmt: skip

# A program keeps the namespace, in which there is no relayfs yet. The clone is seen through a bind mount, as its own
# path may be covered.
ARRANGE = """
set -e
findmnt -rn -t fuse.relayfs -o TARGET | while read -r other; do umount -l "$other" || :; done
cp -a /etc "$1/etc"
mkdir -p "$1/clone" "$1/usr"
mount --bind "$2" "$1/clone"
mount --bind "$1/etc" /etc
mount -t tmpfs -o size=64M tmpfs "$1/usr"
mkdir "$1/usr/upper" "$1/usr/work"
(cd "$1/usr" && mount -t overlay -o lowerdir=/usr,upperdir=upper,workdir=work overlay /usr)
for covered in /usr/local /mnt /var/log; do mount -t tmpfs -o size=1G,mode=0755 tmpfs "$covered"; done
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
rm -r /var/log/web /usr/local/bin/producer
for second in $(seq 250); do
	[ -n "$(ls /mnt/relay)" ] || [ -n "$(find /dev/shm/relayfs -name 'mem*')" ] || exit 0
	sleep 1
done
findmnt /mnt/relay >&2 || :
find /mnt/relay /dev/shm/relayfs >&2
exit 1
"""


# Who looks where for what is installed: the command, and what it prints.
FOUND = {
    "cron": ("env -i PATH=/usr/bin:/bin relayctl -V && env -i PATH=/usr/bin:/bin relayfs -V",
             f"relayctl {VERSION}\nrelayfs {VERSION}\n"),
    "sudo": ("env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin relayctl -V",
             f"relayctl {VERSION}\n"),
    "mount": ("/sbin/mount.relayfs -V", f"mount.relayfs {VERSION}\n"),
    "the loader": ("ldconfig -p | grep -o '/usr/local.*librelayfs.so.0'", "/usr/local/lib/librelayfs.so.0\n"),
    "the compiler": ("pkg-config --libs --modversion relayfs", f"{VERSION}\n"),
    "man": ("man -w 5 relayfs; man -w relayctl",
            "/usr/local/share/man/man5/relayfs.5\n/usr/local/share/man/man1/relayctl.1\n"),
    "bash": ("bash --norc -c 'for name in relayfs mount.relayfs relayctl; do"
             " . /usr/local/share/bash-completion/completions/$name; complete -p $name; done'",
             "complete -F _relayfs relayfs\ncomplete -F _relayfs mount.relayfs\n"
             "complete -o nosort -F _relayctl_completion relayctl\n"),
    "zsh": ("zsh -f -c 'autoload -U compinit; compinit -D -u; print $_comps[relayctl] $_comps[relayfs]'",
            "_relayctl _relayfs\n"),
    "fish": ("""HOME=/mnt fish -c 'complete -C "relayctl sn" | cut -f 1; complete -C "relayfs --fo" | cut -f 1'""",
             "snapshot\n--foreground\n"),
    "systemd": ("systemd-analyze verify --man=no relayfs@mnt.service && echo good", "good\n"),
}  # fmt: skip
# All that there is where something is installed.
LISTING = "find /usr/local /usr/bin /usr/sbin /etc -printf '%y %p %l\\n' | sort"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install for everybody")
def test_lines_of_the_readme_run_as_printed():
    text = "".join(USE)
    with arranged() as enter:
        before = run_script(enter, "dash", LISTING)
        run_script(enter, "dash", f"set -e\n{INSTALL}", INSTALL_S)
        found = {who: run_script(enter, "dash", command) for who, (command, _) in FOUND.items()}
        assert found == {who: shown for who, (_, shown) in FOUND.items()}
        for shell in SHELLS:
            for run, how in ((run_script, "as one script"), (paste, "pasted at its prompt")):
                shown = run(enter, shell, text)
                check(shown, f"{shell}, {how}")
                print(f"{shell}, {how}", shown, sep="\n")  # pytest shows it if something is left
                run_script(enter, "dash", CLEAN_UP)
        run_script(enter, "dash", "./dev uninstall")
        assert run_script(enter, "dash", LISTING) == before
