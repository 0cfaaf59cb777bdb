"""relayctl where no mount is seen, only a store; and where only a mount is seen, and not its store."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from forking import RELAYCTL
from mounts import DEADLINE_S, KEPT_IN_STORE, NO_MOUNTS, NOBODY, Mount
from tracing import relayctl

from relayfs_fuse import native
from relayfs_fuse.cli.cat import PeekSource
from relayfs_fuse.cli.channel import map_channel

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces")

CREATED = {
    "percpu": "times=mono mode=overwrite subbuf_size=8K n_subbufs=4",
    "single": "buffers=single times=mono perm=0604",
    "ring": "type=ring times=mono framing=line",
}


@pytest.fixture
def environment(scratch_store: Path) -> dict[str, str]:
    """That of programs which see no mount; those of other tests are not theirs."""
    return {**os.environ, "RELAYFS": "/nowhere/relay", "RELAYFS_STORE": str(scratch_store)}


@pytest.fixture
def ctl(environment: dict[str, str]) -> Callable[..., str]:
    """Run a command that succeeds; return what it prints."""

    def run(*words: object, **options: object) -> str:
        done = relayctl(*words, env=environment, **options)
        assert done.returncode == 0, done.stderr
        # create says that it is not in the mount that RELAYFS names.
        assert done.stderr == "" or (words[0] == "create" and "nothing is mounted at /nowhere/relay" in done.stderr)
        return done.stdout

    return run


@pytest.fixture
def refused(environment: dict[str, str]) -> Callable[..., str]:
    """Run a command that fails; return what it says."""

    def run(*words: object) -> str:
        done = relayctl(*words, env=environment)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        return done.stderr

    return run


# --- only a store ---


@pytest.mark.parametrize("options", CREATED.values(), ids=CREATED)
def test_a_channel_of_a_store_is_used_without_a_server(
    options: str, scratch_store: Path, ctl: Callable[..., str], environment: dict[str, str], tmp_path: Path
) -> None:
    ctl("create", "app/log", *options.split())
    # By its path in the store, and by that which it would have in the mount.
    ctl("write", scratch_store / "app/log", input="one\n")
    ctl("write", "/nowhere/relay/app/log", input="two\n")
    ctl("run", "app/log", "--", "echo", "three")
    lines = ["one\n", "two\n", "three\n"]
    assert ctl("cat", "app/log", "--merge") == "".join(lines)
    viewed = ctl("view", "/nowhere/relay/app/log", "--json")
    assert [json.loads(line)["record"] for line in viewed.splitlines()] == lines
    assert sorted(ctl("cat", "app/log", "--peek").splitlines(keepends=True)) == sorted(lines)
    (figures,) = (json.loads(line) for line in ctl("stat", "--json", scratch_store / "app/log").splitlines())
    assert (figures["count"], figures["unread_bytes"] > 0, figures["state"]) == (3, True, "ok")
    assert ctl("list").split()[0] == "app/log"
    if "ring" not in options:
        ctl("record", "app/log", "-o", tmp_path / "all", "--duration", "0.1", "--json")
        recorded = b"".join(file.read_bytes() for file in (tmp_path / "all").iterdir())
    else:
        recorded = ctl("cat", "app/log").encode()
    assert sorted(recorded.splitlines(keepends=True)) == sorted(line.encode() for line in lines)
    assert ctl("cat", "app/log") == ""
    ctl("disable", "app/log")
    assert relayctl("write", "app/log", env=environment, input="x\n").stderr.endswith("the channel is disabled\n")
    ctl("enable", scratch_store / "app/log")
    ctl("write", "app/log", input="four\n")
    assert ctl("cat", "app/log") == "four\n"
    ctl("remove", "app/log")
    assert ctl("list") == ""
    # Only the lock is left, and no directory that nobody has made.
    assert set(os.listdir(scratch_store)) <= set(KEPT_IN_STORE)


def test_what_is_followed_in_a_store_ends_with_the_channel(
    ctl: Callable[..., str], environment: dict[str, str]
) -> None:
    ctl("create", "app/log", "times=mono")
    ctl("write", "app/log", input="before\n")
    readers = [
        subprocess.Popen([RELAYCTL, "cat", "-f", *way, "app/log"], env=environment, stdout=subprocess.PIPE, text=True)
        for way in (("--merge",), ("--peek",))
    ]
    for text in ("before\n", "after\n"):
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == text
        if text == "before\n":
            ctl("write", "app/log", input="after\n")
    # Nothing of it is consumed.
    assert sorted(ctl("cat", "app/log").splitlines()) == ["after", "before"]
    ctl("remove", "app/log")
    assert [reader.communicate(timeout=DEADLINE_S)[0] for reader in readers] == ["", ""]
    assert [reader.returncode for reader in readers] == [0, 0]


def test_a_server_shows_what_was_made_without_it_as_what_it_makes(
    ctl: Callable[..., str], make_mount: Callable[..., Mount]
) -> None:
    options = ["", *CREATED.values(), "type=ring buffers=global mode=overwrite", "buffers=global uid=1 gid=2"]
    for number, words in enumerate(options):
        ctl("create", f"made/without{number}", *words.split())
    mount = make_mount()
    for number, words in enumerate(options):
        mount.command(f"create made/with{number} {words}\n")
    lines = sorted(mount.channels().replace("/without", "/with").splitlines())
    assert lines[::2] == lines[1::2]
    assert len(lines) == 2 * len(options)


def test_what_a_store_refuses_is_said(
    ctl: Callable[..., str], refused: Callable[..., str], scratch_store: Path
) -> None:
    there_is = f"there is no channel app/none in {scratch_store}; channels: app/ring\n"
    assert "RELAYFS=/nowhere/relay is no mount of relayfs, and there is no store" in refused("list")
    ctl("create", "app/ring", "type=ring")
    for words, said in (
        (("create", "app/ring"), "create app/ring: there is a channel, a relay file or a directory of this name"),
        (("create", "app/ring0/x"), "create app/ring0/x: a part of the path is a channel or a relay file"),
        (("create", "app/x", "mode=some"), "mode=some: not allowed; allowed: no-overwrite or overwrite"),
        (("create", "app/x", "n_subbufs=2097152", "subbuf_size=1M"), "at most 1099511627776 bytes together"),
        (("create", "app/x", "n_subbufs=1024", "subbuf_size=1G"), "are needed, and"),
        (("create", "/elsewhere/x"), "/elsewhere/x is in no mount of relayfs, nor in the store "),
        (("create", "-m", "/elsewhere", "x"), "/elsewhere is no mount of relayfs; there are: "),
        (("reset", "app/ring"), "a ring cannot be reset"),
        (("trace", "create", "t"), "trace create t: no relayfs is mounted, and a trace needs its server"),
        (("view", "-e", "a:b"), "no relayfs is mounted, and a trace needs its server"),
        (("view", "app/none"), f"there is no trace app/none in {scratch_store}, and no such channel; channels: "),
        *(
            ((verb, "/nowhere/x"), "/nowhere/x: there is no such directory, and it is in no mount of relayfs\n")
            for verb in ("view", "live", "export")
        ),
        (("snapshot", "t", "-o", "/nowhere"), f"there is no trace t in {scratch_store}"),
        (("upgrade",), "nothing is mounted, so there is no server to upgrade; mount one: relayfs DIR\n"),
        *((verb, there_is) for verb in (("remove", "app/none"), ("flush", "app/none"), ("cat", "app/none"))),
        (("remove", "app/ring0"), f"there is no channel app/ring0 in {scratch_store}"),
        (("remove", "app"), f"there is no channel app in {scratch_store}"),
    ):
        assert said in refused(*words), words
    assert ctl("list").split()[0] == "app/ring"
    assert ctl("trace", "list") == ""
    scratch_store.chmod(0o777)
    assert "only while nobody else may write to its directory" in refused("create", "app/other")
    assert not (scratch_store / "app/other").exists()


class Written(list[bytes]):
    """In place of the standard output."""

    def write(self, data: memoryview) -> None:
        self.append(bytes(data))


@pytest.mark.parametrize("options", [CREATED["single"], CREATED["ring"]])
def test_cat_peek_follows_up_to_the_last_record(options: str, scratch_store: Path, ctl: Callable[..., str]) -> None:
    ctl("create", "app/log", *options.split())
    ctl("write", "app/log", input="one\n")
    _, (memory,) = map_channel(str(scratch_store), "app/log")
    with closing(memory), PeekSource(memory, follows=True) as source:
        out = Written()
        source.pass_on(out)
        ctl("write", "app/log", input="two\n")
        ctl("remove", "app/log")
        while not source.is_over:
            source.pass_on(out)
    assert b"".join(out) == b"one\ntwo\n"


# --- namespaces in which something is missing ---


def elsewhere(prepare: str, script: str, **environment: str) -> list[str]:
    """Run a script in a mount namespace of its own; return the lines that it prints, with errors."""
    names = {"ctl": str(RELAYCTL), "python": sys.executable, "RELAYFS": "", "RELAYFS_STORE": "", **environment}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"set -e\n{prepare}\nset +e\n{script}\n:"], env={**os.environ, **names},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


NO_SHM = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"


@as_root
def test_without_a_mount_the_store_of_the_user_is_used() -> None:
    lines = elsewhere(
        f"{NO_MOUNTS}\n{NO_SHM}",
        """$ctl list; $ctl create app/log; echo line | $ctl write app/log
        $ctl cat /dev/shm/relayfs/app/log; ls -A /dev/shm""",
    )
    assert lines[0].startswith("relayctl: no relayfs is mounted, and there is no store /dev/shm/relayfs")
    assert lines[1:] == ["line", "relayfs"]


@as_root
def test_a_variable_that_names_no_mount_is_told_beside_the_mounts_that_there_are(mount: Mount) -> None:
    (said,) = elsewhere("", "$ctl list", RELAYFS="/nowhere")
    assert said.startswith("relayctl: RELAYFS=/nowhere is no mount of relayfs; there are: ")
    assert str(mount.path) in said


CREATE_IN_PYTHON = """
import sys
from relayfs_fuse import Channel
try:
    Channel.create(sys.argv[1])
except OSError as error:
    print(error.strerror)
"""


@as_root
def test_where_the_mount_of_a_served_store_is_not_seen_its_channels_are_used_but_not_made(mount: Mount) -> None:
    mount.create("app/log", "times=mono")
    lines = elsewhere(
        f"umount {mount.path}",
        """$ctl create app/other 2>&1 & $python -c "$create" "$RELAYFS_STORE/app/more" & wait
        echo a line | $ctl write app/log; $ctl cat --merge app/log""",
        RELAYFS="/nowhere", RELAYFS_STORE=str(mount.store), create=CREATE_IN_PYTHON,
    )  # fmt: skip
    reason = (
        f"a server, mounted at {mount.path}, has the store {mount.store}, and this process does not see that mount: "
        "make and remove channels where it is seen; what is there can be written and read here, too"
    )
    assert sorted(lines[:2]) == [reason, f"relayctl: create app/other: {reason}"]
    assert lines[2:] == ["a line"]
    assert [line.split()[1] for line in mount.channels().splitlines()] == ["app/log"]


# Each line of the standard input is a command, of which the output comes after its number. They share the imports.
COMMANDS = """
import os, shlex, sys
from relayfs_fuse.cli.relayctl import main
for number, line in enumerate(sys.stdin):
    reading, writing = os.pipe()
    if not os.fork():
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        sys.argv[1:] = shlex.split(line)
        main()
    os.close(writing)
    with open(reading, encoding="utf-8") as out:
        for one in out:
            print(number, one, end="")
"""


MORE_CPUS = """
echo 0-149 >$1 && mount --bind $1 /sys/devices/system/cpu/possible
$2 create app/ring type=ring buffers=percpu size=4K framing=line 2>/dev/null
echo one | $2 write app/ring
exec $2 record app/ring -o $3 --duration 0.2
"""


@as_root
def test_rings_of_more_cpus_than_one_call_waits_for_are_recorded(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["unshare", "--mount", "sh", "-c", MORE_CPUS, "sh", tmp_path / "possible", RELAYCTL, out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stderr == f"app/ring: 4 B of 150 buffers to {out}, 0 records lost\n"
    assert b"".join(file.read_bytes() for file in out.iterdir()) == b"one\n"


@as_root
def test_where_only_the_mount_is_seen_it_is_enough(mount: Mount, mapped_through: None) -> None:
    mount.create("app/log", "times=mono")
    mount.command("trace create events\n")
    commands = (
        "run app/log -- echo a line", "stat app/log", "view app/log --json",
        "record app/log -o /dev/shm/all --duration 0.1", "size --rate 1K --delay 1", "trace list",
        "view events", "view none",
    )  # fmt: skip
    script = "\n".join(("""$python -c "$commands" <<END""", *commands, "END", "cat /dev/shm/all/*"))
    figures, record, recorded, *sizes, trace, of_trace, none, line = elsewhere(
        NO_SHM, script, RELAYFS=str(mount.path), commands=COMMANDS
    )
    assert figures.split()[:8] == ["1", "app/log", "relay", *mount_figures(mount)]
    assert json.loads(record[2:])["record"] == "a line\n"
    assert recorded == f"3 app/log: 7 B of {native.n_possible_cpus()} buffers to /dev/shm/all, 0 records lost"
    assert line == "a line"
    assert sizes[-1].startswith(f"4 {mount.path}: ")
    assert trace.split()[:3] == ["5", "events", "stopped"]
    assert trace.endswith("-")
    assert f"cat {mount.path}/events/merged shows them" in of_trace
    assert none.endswith("no such channel; traces: events; channels: app/log")
    mount.command("trace remove events\n")


def mount_figures(mount: Mount) -> list[str]:
    """BUFFERS, SIZE, MEMORY, COUNT, BYTES, as outside."""
    return relayctl("stat", "app/log", "-m", mount.path).stdout.split()[2:7]


@as_root
def test_where_neither_the_store_is_seen_nor_files_are_mapped_the_file_to_read_is_named(
    make_mount: Callable[..., Mount], open_fuse_device: None
) -> None:
    mount = make_mount(user=NOBODY)
    nobody = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups $ctl"
    made = f"{nobody} create -m {mount.path} app/log times=mono"
    view = f"{nobody} view -m {mount.path} app/log"
    (said,) = elsewhere(NO_SHM, f"{made}; {view}")
    assert "this mount maps no files" in said
    assert said.endswith(f"cat {mount.path}/.channels/app/log/merged shows them")
