"""The control file and error_log, through a real mount."""

import errno
import os
import random
import re

import pytest
from mounts import COUNTERS

pytestmark = pytest.mark.one_mount


def refused(mount, line: str) -> OSError:
    before = mount.channels()
    with pytest.raises(OSError) as error:
        mount.command(line)
    assert mount.channels() == before
    return error.value


def marked_word(error_log: str) -> str:
    """The word above the caret of the last entry."""
    command, caret = error_log.splitlines()[-2:]
    return command[caret.index("^") :].split(" ")[0]


@pytest.mark.one_mount(False)
def test_reading_gives_commands_that_make_the_channels_again(mount):
    mount.create(
        "a/cpu",
        "subbuf_size=3000 n_subbufs=5 mode=overwrite delivery=packet reserve=visible perm=0600 uid=12 gid=34 "
        "start_reserve=8 end_reserve=1K channel_start_reserve=100 timestamp=mono",
    )
    mount.create("b", "buffers=single read=wait flush_interval=250 scheme=lockless")
    mount.create("c", "buffers=global subbuf_size=64K n_subbufs=2 mode=callback")
    text = mount.channels()
    assert text.startswith(
        "create a/cpu subbuf_size=3000 n_subbufs=5 mode=overwrite buffers=percpu scheme=rseq "
        "delivery=packet read=nowait reserve=visible start_reserve=8 end_reserve=1K channel_start_reserve=100 "
        "timestamp=mono times=none flush_interval=0 perm=0600 uid=12 gid=34\n"
    )
    for path in ("a/cpu", "b", "c"):
        mount.command(f"remove {path}")
    assert mount.channels() == ""
    mount.command(text)
    assert mount.channels() == text
    ours = [".channels", ".counters", ".crashed", ".traces"]
    assert sorted(os.listdir(mount.path)) == [*ours, "a", "b", "c0", "control", *COUNTERS, "error_log"]


def test_control_begins_with_where_refusals_are_explained(mount):
    head = mount.control.read_text()
    assert re.fullmatch(r"# .*\brelayfs\(5\).*\berror_log\b.*\n", head)
    mount.create("a")
    text = mount.control.read_text()
    assert text == head + mount.channels() != head
    assert mount.control.stat().st_size == len(text)
    mount.command(text.replace(" a ", " b "))
    assert [line.split()[:2] for line in mount.channels().splitlines()] == [["create", "a"], ["create", "b"]]


def test_one_write_may_hold_many_commands(mount):
    mount.command("# a comment\n\ncreate a\n  create\tb   buffers=single\nremove a")
    assert mount.channels().startswith("create b ")


def test_lines_before_a_refused_one_stand_and_those_behind_do_not_happen(mount):
    with pytest.raises(OSError) as error:
        mount.command("create first\ncreate second mode=none\ncreate third\n")
    assert error.value.errno == errno.EINVAL
    assert [line.split()[1] for line in mount.channels().splitlines()] == ["first"]
    assert "Command: create second mode=none\n" in mount.error_log
    assert marked_word(mount.error_log) == "mode=none"


@pytest.fixture(scope="module")
def furnished(shared_mount):
    """A mount in which some names are taken."""
    shared_mount.create("taken")
    (shared_mount.path / "dir").mkdir()
    shared_mount.create("above/it")
    return shared_mount


@pytest.mark.parametrize(
    ("line", "code", "word", "allowed"),
    [
        ("destroy x", errno.EINVAL, "destroy", "create, remove"),
        ("create", errno.EINVAL, "", "PATH"),
        ("create a/../b", errno.EINVAL, "../b", "dot"),
        ("create /a", errno.EINVAL, "/a", "slashes"),
        ("create a//b", errno.EINVAL, "/b", "slashes"),
        ("create .a", errno.EINVAL, ".a", "dot"),
        ("create " + "x" * 300, errno.ENAMETOOLONG, "x" * 245, "bytes"),
        ("create x n_subbufs=0", errno.EINVAL, "n_subbufs=0", "1 to"),
        ("create x subbuf_size=0", errno.EINVAL, "subbuf_size=0", "1 to"),
        ("create x subbuf_size=4G", errno.EINVAL, "subbuf_size=4G", "1 to"),
        ("create x subbuf_size=4T", errno.EINVAL, "subbuf_size=4T", "K, M or G"),
        ("create x subbuf_size=1G n_subbufs=1025", errno.EINVAL, "n_subbufs=1025", str(2**40)),
        ("create x subbuf_size=99999999999999999999G", errno.EINVAL, "subbuf_size=99999999999999999999G", "1 to"),
        ("create x subbuf_size=1G n_subbufs=1024", errno.ENOSPC, "n_subbufs=1024", "left of the limit size="),
        ("create x mode=maybe", errno.EINVAL, "mode=maybe", "no-overwrite or overwrite"),
        ("create x scheme=spinning", errno.EINVAL, "scheme=spinning", "any or rseq or lockless or locking"),
        ("create x buffers=single scheme=rseq", errno.EINVAL, "scheme=rseq", "lockless"),
        ("create x timestamp=utc", errno.EINVAL, "timestamp=utc", "none or mono or tsc"),
        ("create x start_reserve=-8", errno.EINVAL, "start_reserve=-8", "K, M or G"),
        ("create x end_reserve=256K", errno.EINVAL, "end_reserve=256K", "less than subbuf_size, which is 262144"),
        (
            "create x end_reserve=4 start_reserve=5 subbuf_size=10 channel_start_reserve=1",
            *(errno.EINVAL, "start_reserve=5", "less than subbuf_size, which is 10"),
        ),
        ("create x mode", errno.EINVAL, "mode", "mode=VALUE is needed; allowed: no-overwrite or"),
        ("create x subbuf_size", errno.EINVAL, "subbuf_size", "subbuf_size=VALUE is needed; allowed: bytes"),
        ('create "my app"', errno.EINVAL, '"my', "a PATH holds no blanks"),
        ("delete taken", errno.EINVAL, "delete", "did you mean remove?"),
        ("Create x", errno.EINVAL, "Create", "did you mean create?"),
        ("remove dir", errno.ENOENT, "dir", "dir is a directory, which rmdir(1) removes"),
        ("remove above", errno.ENOENT, "above", "above is a directory, of the channels above/it"),
        ("create x mode=overwrite mode=overwrite", errno.EINVAL, "mode=overwrite", "twice"),
        ("create x perm=0777", errno.EINVAL, "perm=0777", "0640"),
        ("create x perm=9", errno.EINVAL, "perm=9", "octal"),
        ("create x uid=-1", errno.EINVAL, "uid=-1", "number"),
        ("create x flush_interval=fast", errno.EINVAL, "flush_interval=fast", "milliseconds"),
        ("create taken", errno.EEXIST, "taken", "exists"),
        ("create taken0 buffers=single", errno.EEXIST, "taken0", "exists"),
        ("create taken buffers=global", errno.EEXIST, "taken", "exists"),
        ("create dir", errno.EEXIST, "dir", "directory"),
        ("create taken/x", errno.ENOTDIR, "taken/x", "not a directory"),
        ("create taken0/x", errno.ENOTDIR, "taken0/x", "not a directory"),
        ("create control buffers=single", errno.EEXIST, "control", "exists"),
        ("remove nothing", errno.ENOENT, "nothing", "there are: above/it, taken"),
        ("remove taken0", errno.ENOENT, "taken0", "relay file of channel taken"),
        ("resume nothing", errno.ENOENT, "nothing", "there are: above/it, taken"),
        ("remove taken now", errno.EINVAL, "now", "nothing else"),
        ("consumed taken", errno.EINVAL, "", "CPU"),
        ("consumed taken 9999 1", errno.EINVAL, "9999", "0 to"),
        ("consumed taken 0 many", errno.EINVAL, "many", "number"),
        ("create new\rname", errno.EINVAL, "new?name", "control characters"),
    ],
)
def test_a_bad_command_is_refused_and_explained(furnished, line, code, word, allowed):
    assert refused(furnished, line).errno == code
    entry = furnished.error_log.rpartition("\n[")[2]
    assert allowed in entry
    assert errno.errorcode[code] in entry
    assert marked_word(entry).startswith(word[:200])


def test_error_log_keeps_the_last_and_can_be_cleared(mount):
    for number in range(12):
        refused(mount, f"nonsense{number} x")
    text = mount.error_log
    assert re.findall(r"Command: (nonsense\d+)", text) == [f"nonsense{number}" for number in range(4, 12)]
    (mount.path / "error_log").write_text("")
    assert mount.error_log == ""


def test_bytes_that_are_no_text_are_refused(mount):
    rng = random.Random(1)
    for _ in range(50):
        junk = bytes(rng.randrange(256) for _ in range(40))
        descriptor = os.open(mount.control, os.O_WRONLY)
        try:
            os.write(descriptor, b"create x " + junk.replace(b"\n", b" ") + b"\n")
        except OSError as error:
            assert error.errno == errno.EINVAL
        finally:
            os.close(descriptor)
    assert mount.channels() == ""


def test_a_refused_create_leaves_no_directories(mount):
    refused(mount, "create some/where/x mode=none")
    refused(mount, "create some/where/x subbuf_size=1G n_subbufs=1000")
    assert not (mount.path / "some").exists()
    assert not (mount.store / "some").exists()


def test_defaults_are_reduced_where_memory_is_scarce(make_mount):
    mount = make_mount("size=16M")
    mount.expect("create: notice: reduced to")
    mount.create("x", "buffers=single")
    assert int(mount.shown("x", "file_bytes")) <= 1 << 20
    assert "a sixteenth" in mount.error_log
    mount.create("y", "buffers=single subbuf_size=256K n_subbufs=8")
    assert mount.shown("y", "subbuf_size") == str(256 * 1024)


def test_defaults_are_eight_sub_buffers_of_256_kib(mount):
    mount.create("x", "buffers=single")
    assert (mount.shown("x", "subbuf_size"), mount.shown("x", "n_subbufs")) == ("262144", "8")
    assert mount.error_log == ""


def test_reset_empties_a_channel(mount):
    path = mount.create("x", "buffers=single")
    path.write_bytes(b"gone")
    mount.command("reset x")
    assert mount.shown("x", "records") == "0"
    assert path.read_bytes() == b""


def test_consumed_counts_sub_buffers_as_read(mount):
    path = mount.create("x", "buffers=single subbuf_size=4 n_subbufs=4")
    for record in (b"aaaa", b"bbbb", b"cccc"):
        with path.open("wb", buffering=0) as file:
            file.write(record)
    mount.command("consumed x 0 1")
    assert mount.shown("x", "consumed") == "1"
    assert path.read_bytes() == b"bbbbcccc"
