"""Who may do what: the table in docs/access.md, made by trying.

Each operation is tried on real mounts by programs of real users: root, the owner of a channel, a member of its group
and another; on a mount of root, on one that a user has mounted with allow_other, and on one without.

A user may mount with allow_other if /etc/fuse.conf says so, and only if everybody may open /dev/fuse. Both are arranged
in a mount namespace of this program's own, where nobody else sees it: `tabulate()`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import forking
from mounts import DEADLINE_S, NOBODY, Mount, serving, tmpfs_directory, wait_until

TESTS = Path(__file__).parent
PROBE = (TESTS / "access_probe.py").read_text()

FILE = (
    *("stat", "open to read", "open to write", "open to read and write", "read", "poll", "seek to the end"),
    *("map to read", "map to write", "truncate", "fallocate", "splice", "link", "rename", "remove"),
    *("change the mode", "change the owner", "change the group", "set an attribute", "ask for the backing file"),
)
# What splice says of a relay file depends on whether there is something to read.
NO_SPLICE = [operation for operation in FILE if operation != "splice"]
DIRECTORY = (
    *("list", "stat", "make a directory in it", "make a file in it", "rename", "remove the directory"),
    *("change the mode", "change the owner", "change the group", "set an attribute"),
)
# What changes nothing that later operations are about.
HARMLESS = {
    *("stat", "list", "open to read", "open to write", "open to read and write", "poll", "seek to the end"),
    *("map to read", "map to write", "set an attribute", "ask for the backing file", "ask for the space"),
}
# What takes nothing but the records of a relay file. Memory that was mapped is made anew all the same: it is immutable.
CONSUMING = ("read", "splice")
RELAY_FILES = {"c": "subbuf_size=4K n_subbufs=4", "r": "type=ring size=4K"}  # and what they are made with

# A per-CPU buffer takes memory when its CPU first writes: the rows are about the one CPU that this program runs on.
CPU = min(os.sched_getaffinity(0))
EMITTER = f"""
import os, signal
os.sched_setaffinity(0, {{{CPU}}})
from relayfs_fuse import Event
Event("probe", "event", {{"n": "u32"}})(n=1)
signal.pause()
"""


@dataclass(frozen=True)
class Who:
    """A kind of user."""

    name: str
    uid: int
    groups: tuple[int, ...] = ()


ROOT = Who("root", 0)
OWNER = Who("owner", NOBODY)
GROUP = Who("group", 60_003, (NOBODY,))
OTHER = Who("other", 60_002)
ALL = (ROOT, OWNER, GROUP, OTHER)


class Prober:
    """tests/support/access_probe.py, running as somebody."""

    def __init__(self, who: Who, mount: Mount) -> None:
        self.process = forking.start(
            [sys.executable, "-c", PROBE], user=who.uid, group=who.uid, extra_groups=who.groups, cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "RELAYFS": str(mount.path), "RELAYFS_STORE": str(mount.store)},
        )  # fmt: skip

    def __call__(self, operation: str, path: Path, **arguments: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"operation": operation, "path": str(path), **arguments}) + "\n")
        answer = self.process.stdout.readline().strip()
        assert answer, f"{operation} {path}: the program died"
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Row:
    """One line of the table: what is tried.

    path: in the mount; absolute: in the store; {process}: the directory of a traced process
    arguments: of the operation; {uid}: of who tries
    prepare: what the server's user does before: commands, or names of methods of Scene
    """

    says: str
    operation: str
    path: str
    arguments: dict[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """The rows about one kind of file."""

    title: str
    rows: Sequence[Row]


def rows(path: str, operations: Sequence[str], *more: Row) -> Sequence[Row]:
    return [*(Row(operation, operation, path) for operation in operations), *more]


def command(line: str, says: str | None = None, *prepare: str) -> Row:
    return Row(says or f"{line}", "command", "control", {"text": f"{line}\n"}, prepare)


def name_command(line: str, says: str) -> Row:
    return Row(says, "command", "counters.names", {"text": f"{line}\n"})


SECTIONS = (
    Section("the mount's directory", rows("", ("list", "stat", "make a directory in it", "make a file in it"),
        Row("ask for the space", "ask for the space", ""))),
    Section("a plain directory", rows("d", DIRECTORY)),
    Section("a relay file, `perm=0640`", rows("c", FILE,
        Row("write", "write", "c"), Row("write through the library", "library", "c"))),
    Section("a relay file of a ring, `perm=0640`", rows("r", FILE, Row("write", "write", "r"))),
    Section("the memory of a buffer, `.channels/PATH/mem0`", rows(".channels/c/mem0", FILE,
        Row("write", "write", ".channels/c/mem0"))),
    Section("the memory of a ring, `.channels/PATH/mem0`", rows(".channels/r/mem0", FILE,
        Row("write", "write", ".channels/r/mem0"))),
    Section("a statistic, `.channels/PATH/records`", rows(".channels/c/records", FILE,
        Row("write", "write", ".channels/c/records"))),
    Section("the statistics of a channel, `.channels/PATH/`", rows(".channels/c", DIRECTORY)),
    Section("`control`, mounted with `control_mode=0666`", rows("control", FILE)),
    Section("commands, `control_mode=0666`; the channel is the owner's", (
        command("create new buffers=single", "create for oneself"),
        command("create d/sub/new buffers=single", "create for oneself, below a plain directory"),
        command("create new buffers=single uid=60010", "create for somebody else"),
        command("create new buffers=single gid=60010", "create for another group"),
        *(command(f"{verb} c", f"{verb}") for verb in ("flush", "reset", "resume", "disable", "enable", "remove")),
        command("consumed c 0 0", "consumed"),
        command("trace create new", "trace create"),
        command("trace set u n_subbufs=2", "trace set"),
        command("trace start u", "trace start"),
        command("trace stop u", "trace stop"),
        command("trace enable u *:*", "trace enable"),
        command("trace disable u *:*", "trace disable"),
        command("trace remove u", "trace remove"),
    )),
    Section("`error_log`", rows("error_log", FILE, Row("write, which clears it", "write", "error_log"))),
    Section("`counters`", rows("counters", FILE)),
    Section("`counters.txt`", rows("counters.txt", FILE)),
    Section("`counters.names`, mounted with `control_mode=0666`", rows("counters.names", FILE,
        name_command("add group{uid}/new", "add a counter to a new group"),
        name_command("add own/new", "add a counter to the owner's group, mode=0220"),
        Row("adjust a counter of the owner's group", "adjust", "", {"counter": "own/x"}),
        name_command("del {number}", "delete a counter of the owner's group"),
    )),
    Section("`.counters/`", rows(".counters", DIRECTORY)),
    Section("the names of counters, `.counters/names`", rows(".counters/names", FILE)),
    Section("a group of the owner, `.counters/UID-GID-MODE`, made with `mode=0220`",
        rows(f".counters/{NOBODY}-{NOBODY}-0660", FILE)),
    Section("`.traces/`", rows(".traces", DIRECTORY)),
    Section("`.traces/control`", rows(".traces/control", FILE)),
    Section("`.traces/join`", rows(".traces/join", FILE, Row("join a trace", "write", ".traces/join",
        {"text": "t probe\n"}))),
    Section("`.traces/lost`", rows(".traces/lost", FILE)),
    Section("a trace, `TRACE/`", rows("t", DIRECTORY)),
    Section("its events in the order of their times, `TRACE/merged`", rows("t/merged", FILE)),
    Section("a process of the owner in a trace, `TRACE/PROCESS/`", rows("t/{process}", DIRECTORY)),
    Section("its `metadata`", rows("t/{process}/metadata", FILE)),
    Section("its events, `cpuN`", rows("t/{process}/cpu{cpu}", NO_SPLICE,
        Row("write", "write", "t/{process}/cpu{cpu}"))),
    Section("its memory, `.channels/TRACE/PROCESS/cpu/memN`", rows(".channels/t/{process}/cpu/mem{cpu}", FILE)),
    Section("the store's directory", rows("/", ("list", "stat", "make a directory in it", "make a file in it"))),
    Section("the memory of a buffer in the store", rows("/c/mem0", ("stat", "open to read", "open to read and write"))),
)  # fmt: skip


class Scene:
    """What the operations are tried on, in one mount; made by its server's user."""

    def __init__(self, mount: Mount, server: Who, stack: ExitStack) -> None:
        self.mount = mount
        self._stack = stack
        self._probers: dict[Who, Prober] = {}
        self._server = self.prober(server)
        self._owner = self.prober(OWNER)
        self.process = ""
        self._traces()
        self._counters()
        self.refresh()

    def prober(self, who: Who) -> Prober:
        if who not in self._probers:
            self._probers[who] = Prober(who, self.mount)
            self._stack.callback(self._probers[who].close)
        return self._probers[who]

    def attempt(self, row: Row, who: Who) -> str:
        prober = self.prober(who)
        for line in row.prepare:
            self._command(line)
        if row.path == "error_log":
            self._server("command", self.mount.control, text="nonsense\n")
        values = {"uid": str(who.uid), "number": self._number() if "{number}" in str(row.arguments) else ""}
        arguments = {key: text.format(**values) for key, text in row.arguments.items()}
        path = self._path(row.path)
        changes_attributes = row.operation.startswith("change the ")
        attributes = self._server("attributes", path) if changes_attributes else ""
        result = prober(row.operation, path, **arguments)
        if result == "yes" and changes_attributes:
            assert self._server("restore", path, attributes=attributes) == "yes"
        elif result == "yes" and row.operation in CONSUMING and not path.name.startswith("mem"):
            if row.path in RELAY_FILES:
                self._fill(row.path)
        elif result == "yes" and row.operation not in HARMLESS:
            self._make_again(row)
        return result

    def _make_again(self, row: Row) -> None:
        """Make as it was what a row has changed."""
        touched = [name for name in RELAY_FILES if name in row.path.split("/")]
        for name in touched:
            self._command(f"remove {name}")
            self._make(name)
        if not touched:
            self.refresh()

    def _make(self, relay_file: str) -> None:
        options = f"{RELAY_FILES[relay_file]} buffers=single perm=0640 uid={OWNER.uid} gid={OWNER.uid}"
        self._must(f"create {relay_file} {options}")
        self._fill(relay_file)

    def refresh(self) -> None:
        """Make all as it was."""
        for line in ("remove c", "remove r", "remove new", "remove d/sub/new", "trace remove new", "trace remove u"):
            self._command(line)
        for path in ("made", ".traces/made", "d/made", "d/sub", "d"):
            self._server("remove the directory", self.mount.path / path)
        for remove in ("remove the directory", "remove"):
            self._server(remove, self.mount.store / "made")
        self._server_makes("d")
        for name in RELAY_FILES:
            self._make(name)
        self._must("trace create u")
        self._owner("command", self.mount.path / "counters.names", text="add own/x mode=0220\n")

    def _fill(self, relay_file: str) -> None:
        assert self._owner("write", self.mount.path / relay_file) == "yes"

    def _traces(self) -> None:
        self._must("trace create t subbuf_size=4K n_subbufs=4")
        self._must("trace enable t probe:*")
        self._must("trace start t")
        emitter = forking.start(
            [sys.executable, "-c", EMITTER], user=OWNER.uid, group=OWNER.uid, extra_groups=[], cwd="/",
            env={**os.environ, "RELAYFS": str(self.mount.path), "RELAYFS_STORE": str(self.mount.store)},
        )  # fmt: skip
        self._stack.callback(emitter.communicate)
        self._stack.callback(emitter.kill)

        def is_shown() -> bool:
            if not (names := [name for name in self._names("t") if not name.startswith(("merged", "triggered"))]):
                return False
            self.process = names[0]
            return self._owner("stat", self._path("t/{process}/cpu{cpu}")) == "yes"

        wait_until(is_shown, "the owner's program is traced")

    def _counters(self) -> None:
        assert self._owner("command", self.mount.path / "counters.names", text="add own/x mode=0220\n") == "yes"

    def _names(self, path: str) -> list[str]:
        """List a directory as the server's user: on a private mount nobody else can, not even root."""
        return json.loads(self._server("names", self.mount.path / path))

    def _number(self) -> str:
        text = json.loads(self._server("text", self.mount.path / "counters.names"))
        return next(line.split()[0] for line in text.splitlines() if line.split()[1] == "own/x")

    def _server_makes(self, path: str) -> None:
        assert self._server("make the directory", self.mount.path / path) == "yes"

    def _command(self, line: str) -> str:
        return self._server("command", self.mount.control, text=f"{line}\n")

    def _must(self, line: str) -> None:
        assert self._command(line) == "yes", line

    def _path(self, path: str) -> Path:
        if path.startswith("/"):
            return self.mount.store / path[1:]
        return self.mount.path / path.format(process=self.process, cpu=CPU)


FIRST_WIDTH = 50
WIDTH = 9
Column = tuple[str, str, Callable[[Row], str]]


@contextmanager
def columns() -> Iterator[list[Column]]:
    """Give the columns of the table: the mount, the user, and what tells a cell."""
    with ExitStack() as stack:

        def scene(server: Who, *options: str) -> Scene:
            make = stack.enter_context(serving(stack.enter_context(tmpfs_directory()) / "store"))
            mount = make("control_mode=0666", *options, user=server.uid or None)
            # Also if this fails half-way: a server that is left has a mount that nobody sees.
            stack.callback(mount.close)
            mount.path.parent.chmod(0o755)
            return Scene(mount, server, stack)

        of_root, of_user, private = scene(ROOT), scene(OWNER, "allow_other"), scene(OWNER)
        found: list[Column] = []
        for title, place in (("root's mount", of_root), ("a user's mount, allow_other", of_user)):
            found += [(title, who.name, lambda row, place=place, who=who: place.attempt(row, who)) for who in ALL]
        found += [("a user's mount", who.name, lambda row, who=who: private.attempt(row, who)) for who in ALL]
        yield found


HEAD = """\
# Who may do what

Each cell is what a system call really said on Linux {release}: `./dev test tests/fuse/access/test_access.py` tries all
of them and compares. `yes`: it succeeded; `ignored`: it succeeded and changed nothing; else the errno.

* **owner**: the owner of the channel, who is not root. On a user's mount he is also the one who mounted.
* **group**: a member of the channel's group. **other**: neither.
* A user's mount without `allow_other` is for that user alone; not even root can look into it. Only statfs(2)
  succeeds there for others.
* Modes of channels are `perm=0640`: the owner reads and writes, the group reads. With other modes the results differ.
* Opening to read is done with O_NONBLOCK. `map to read` and `map to write` are `mmap` with MAP_SHARED of one page;
  only a server that may register files with the kernel (root, Linux 6.9) has files that can be mapped.

"""


def tabulate() -> str:
    """Try everything; return the text of docs/access.md."""
    parts = [HEAD.format(release=".".join(os.uname().release.split(".")[:2]))]
    with columns() as found:
        n_users = Counter(mount for mount, _, _ in found)
        mounts = "".join(mount.ljust(WIDTH * n) for mount, n in n_users.items())
        for section in SECTIONS:
            parts += [f"## {section.title[0].upper()}{section.title[1:]}", "```", _line("", [mounts])]
            parts.append(_line("", [who for _, who, _ in found]))
            parts += [_line(row.says, [tell(row) for _, _, tell in found]) for row in section.rows]
            parts.append("```\n")
    return "\n".join(parts)


def _line(says: str, cells: Sequence[str]) -> str:
    return (says.ljust(FIRST_WIDTH) + "".join(cell.ljust(WIDTH) for cell in cells)).rstrip()


# Run in a mount namespace of its own, as this changes files that all use.
ARRANGE = """
set -e
mount -t tmpfs -o size=1M,mode=0755 tmpfs "$1"
echo user_allow_other >"$1/fuse.conf"
mount --bind "$1/fuse.conf" /etc/fuse.conf
mknod -m 0666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
shift
exec "$@"
"""


def tabulate_apart() -> str:
    """Do so where everybody may mount for all."""
    with tempfile.TemporaryDirectory(prefix="relayfs-test-") as place:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", ARRANGE, "sh", place, sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False,
            timeout=10 * DEADLINE_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    print(tabulate(), end="")
