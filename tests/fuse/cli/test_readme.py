"""The lines of the README, the tutorials and the how-tos run as they are printed, and print what the text says.

They are run in their order, as one script, or pasted at a prompt; those of the README in both ways in four shells. They
install relayfs for everybody and mount it at /mnt/relay. So they run in a mount namespace of their own, in which /usr,
/mnt, /var/log, /dev/shm and /etc are scratch: `arranged`. What they install is what is looked for where programs look,
and taken back in the end.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pexpect
import pytest
from build import ROOT
from mounts import NO_MOUNTS

from relayfs_fuse import native

INSTALL_S, SCRIPT_S = 1200, 300
VERSION = native.VERSION
# Without the user's own files.
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "dash": ["dash"],
    "zsh": ["zsh", "-f"],
    # Its threads that look for suggestions open the directories of a line, and umount(8) would find the mount busy.
    "fish": ["fish", "--no-config", "--init-command", "set -g fish_autosuggestion_enabled 0"],
}
ENVIRONMENT = {
    "HOME": "/mnt/home", "LC_ALL": "C.UTF-8", "TERM": "dumb",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    # What is built for all tests need not be built again.
    "RELAYFS_ENV": os.environ["RELAYFS_ENV"], "PIP_CACHE_DIR": f"{Path.home()}/.cache/pip",
}  # fmt: skip

# A program keeps the namespace, in which there is no relayfs yet. The clone is seen through a bind mount, as its own
# path may be covered; where it is seen, there is a space in the path.
ARRANGE = f"""
set -e
{NO_MOUNTS}
cp -a /etc "$1/etc"
mkdir -p "$1/a clone" "$1/usr"
mount --bind "$2" "$1/a clone"
mount --bind "$1/etc" /etc
mount -t tmpfs -o size=64M tmpfs "$1/usr"
mkdir "$1/usr/upper" "$1/usr/work"
(cd "$1/usr" && mount -t overlay -o lowerdir=/usr,upperdir=upper,workdir=work overlay /usr)
for covered in /usr/local /mnt /var/log; do mount -t tmpfs -o size=1G,mode=0755 tmpfs "$covered"; done
# Large enough that no channel gets less than the usual size.
mount -t tmpfs -o size=4G,mode=1777 tmpfs /dev/shm
mkdir /usr/local/bin /mnt/home
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
            yield ["nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt", f"--wdns={place}/a clone"]
        finally:
            keeper.kill()
            keeper.communicate()


def run_script(
    enter: list[str | Path], shell: str, text: str, deadline_s: float = SCRIPT_S, arguments: Iterable[str] = ()
) -> str:
    """Run lines as one script; return what they print, errors, too."""
    done = subprocess.run(
        [*enter, *SHELLS[shell], "-c", text, "sh", *arguments], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=deadline_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
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
    shown = str(terminal.before)
    # A thread of fish calls access(2) for the paths of a line, to colour them, while the line runs.
    if shell == "fish" and "umount: /mnt/relay: target is busy." in shown:
        run_script(enter, "dash", "umount /mnt/relay")
    return shown


class Page:
    """A text: its blocks ```sh are run, its blocks ```text are what they print, its blocks ```python are programs."""

    def __init__(self, path: str) -> None:
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)
        self.commands = [text for language, text in blocks if language == "sh"]
        self.programs = [text for language, text in blocks if language == "python"]
        self.lines = "".join(text for language, text in blocks if language == "text").splitlines()

    def check_all(self, shown: str, how: str) -> None:
        """Each line was printed, and no other; ... stands for any text."""
        assert re.fullmatch("".join(as_regex(line) + "\n" for line in self.lines), shown), (
            f"{how}: printed is\n{shown}\nand not\n" + "\n".join(self.lines)
        )

    def check_each(self, shown: str, how: str) -> None:
        """Each line is there, in this order. Before it a terminal may show a prompt, or an escape sequence."""
        seen = iter([line.split("# ")[-1].removeprefix("\x1b[K").rstrip() for line in shown.splitlines()])
        for line in self.lines:
            assert any(re.fullmatch(as_regex(line), one) for one in seen), f"{how}: {line!r} is missing\n{shown}"


def as_regex(line: str) -> str:
    return re.escape(line).replace(re.escape("..."), ".*")


# Nothing is left: no file, no mount, no channel in the store. What is removed may go a bit later.
CLEAN_UP = """set -e
[ -z "$(ls /var/log)" ]
for tenth in $(seq 2500); do
	[ -n "$(ls /mnt/relay)" ] || [ -n "$(find /dev/shm/relayfs -name 'mem*')" ] || exit 0
	sleep 0.1
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
    "the screen and the page": ("/usr/local/lib/relayfs/bin/python -c 'import textual, uvicorn'", ""),
    "systemd": ("systemd-analyze verify --man=no relayfs@mnt.service && echo good", "good\n"),
}  # fmt: skip
# All that there is where something is installed, but for what other tests put there for a moment.
LISTING = "find /usr/local /usr/bin /usr/sbin /etc ! -name 'mount.relayfs-test-*' -printf '%y %p %l\\n' | sort"


SCRIPT, PASTE = (run_script, Page.check_all, "as one script"), (paste, Page.check_each, "pasted at its prompt")
README = "README.md"
# How each is run. How-tos are not here: dash runs them as one script, as it is the strictest of the four.
RUNS = {
    README: [(shell, way) for shell in SHELLS for way in (SCRIPT, PASTE)],
    "docs/tutorials/1-first-channel.md": [("dash", SCRIPT), ("zsh", PASTE), ("fish", PASTE)],
    "docs/tutorials/2-producers.md": [("bash", SCRIPT), ("zsh", PASTE)],
    "docs/tutorials/3-trace.md": [("dash", SCRIPT), ("fish", PASTE)],
}
HOW_TOS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/howto").iterdir())

# The programs that the README shows, one after the other, and what they have written.
PROGRAMS = """set -e
cd /
mount -t fuse relayfs /mnt/relay
relayctl trace create all
relayctl trace start all
for program; do /usr/local/lib/relayfs/bin/python -c "$program"; done
relayctl view app/web
cat /mnt/relay/app/orders0 | xxd -p
relayctl view all
relayctl counters 'app/*'
relayctl trace remove all
relayctl remove app/web app/orders
umount /mnt/relay
"""
WRITTEN = r"""\[.*\] cpu\d+: slow request
110000007b14ae47e1fa2340
\[.*\] python-.* web:request: \{ path = "/index.html", ms = 0.7 \}
 *1 app/requests *
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install for everybody")
def test_lines_of_the_texts_run_as_printed():
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs/tutorials").iterdir()} == RUNS.keys() - {README}
    pages = {path: Page(path) for path in [*RUNS, *HOW_TOS]}
    install = pages[README].commands.pop(0)
    with arranged() as enter:
        before = run_script(enter, "dash", LISTING)
        began = time.monotonic()
        run_script(enter, "dash", f"set -e\n{install}", INSTALL_S)
        print(f"{install.strip()}: {time.monotonic() - began:.1f} s, with the environment set up")
        found = {who: run_script(enter, "dash", command) for who, (command, _) in FOUND.items()}
        assert found == {who: shown for who, (_, shown) in FOUND.items()}
        for path, page in pages.items():
            if not page.commands:
                assert path in HOW_TOS
                continue
            for shell, (run, check, how) in RUNS.get(path, [("dash", SCRIPT)]):
                began = time.monotonic()
                shown = run(enter, shell, "".join(page.commands))
                check(page, shown, f"{path}, {shell}, {how}")
                # pytest shows it if something is left.
                print(f"{path}, {shell}, {how}: {time.monotonic() - began:.1f} s", shown, sep="\n")
                run_script(enter, "dash", CLEAN_UP)
        written = run_script(enter, "dash", PROGRAMS, arguments=pages[README].programs)
        assert re.fullmatch(WRITTEN, written), written
        run_script(enter, "dash", CLEAN_UP)
        run_script(enter, "dash", "./dev uninstall")
        assert run_script(enter, "dash", LISTING) == before


# The first hour of somebody who has a bare Debian 12 with git's clone of this, in a directory with a space in its name.
# $1 is the place for that Debian, $2 the repository, $3 the mirror, $4 a file with certificates that pip may need.
BARE_DEBIAN = """
set -e
debootstrap --variant=minbase bookworm "$1" "$3" >&2
for name in dev proc; do mount --rbind "/$name" "$1/$name"; done
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
[ -z "$4" ] || cp "$4" "$1/certificates"
mkdir -p "$1/home/new user"
echo bare
read -r go_on
git clone -q "$2" "$1/home/new user/relayfs"
echo cloned
read -r go_on
exec chroot "$1" env -i HOME='/home/new user' PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \\
    ${4:+PIP_CERT=/certificates} sh -c "cd; cd relayfs; $5"
"""
FIRST_RECORD_S = 180
RECORD = "] cpu"  # as relayctl view prints one
STEPS = ("bare", "cloned", "installed", RECORD)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds: of the clock; of CPUs, by a process and its children that have ended, and by all programs."""

    clock: float
    own: float
    all: float

    @classmethod
    def until_now(cls, pid: int) -> "Spent":
        own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
        every = user, nice, system, irq, softirq, steal
        return cls(time.monotonic(), *(sum(map(int, ticks)) / TICKS_PER_S for ticks in (own, every)))

    def since(self, before: "Spent") -> "Spent":
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def alone(self) -> float:
        """The clock's seconds without each CPU's share of what other programs took; on a quiet machine, all of them."""
        return self.clock - max(0.0, self.all - self.own) / os.cpu_count()


if os.environ.get("RELAYFS_STRESS") == "long":

    @pytest.mark.stress
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can install for everybody")
    def test_the_first_record_is_seen_three_minutes_after_the_clone(tmp_path: Path) -> None:
        page = Page(README)
        install, ten_lines = page.commands[0], "".join(page.commands[1:])
        # One of the ten lines has the exit status of a program that is killed.
        lines = f"set -e\n{install}\necho installed\nset +e\n{ten_lines}"
        subprocess.run(["apt-get", "-qq", "-y", "install", "--no-install-recommends", "debootstrap", "git"], check=True)
        arguments = [tmp_path / "debian", ROOT, "http://deb.debian.org/debian", os.environ.get("PIP_CERT", ""), lines]
        command = ["unshare", "--mount", "sh", "-c", BARE_DEBIAN, "sh", *arguments]
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as user,
        ):
            assert user.stdin is not None
            assert user.stdout is not None
            spent, shown = [], ""
            for step in STEPS:
                if step in ("cloned", "installed"):
                    print(file=user.stdin, flush=True)
                for line in user.stdout:
                    shown += line if step == RECORD else ""
                    if line.strip() == step or (step == RECORD and RECORD in line):
                        break
                spent.append(Spent.until_now(user.pid))
            shown += user.stdout.read()
            user.stdin.close()
        for step, before, after in zip(STEPS[1:], spent, spent[1:], strict=False):
            print(f"{step}: {after.since(before)}")
        assert user.returncode == 0, (tmp_path / "log").read_text()[-4000:]
        page.check_all(shown, "in a bare Debian")
        total = spent[-1].since(spent[0])
        print(f"clone to first record: {total}, on a machine of its own {total.alone:.1f} s")
        assert total.alone < FIRST_RECORD_S
