"""A shell is enough: channels are made, written, read and removed with its builtins and ordinary tools."""

import os
import subprocess
from pathlib import Path

import pytest
from mounts import DEADLINE_S, LISTED, Mount
from traffic import drain, lines

pytestmark = pytest.mark.one_mount

N = 200


def run(script: str, mount: Mount, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shell.split(), "-c", script], cwd=mount.path, env={**os.environ, "LC_ALL": "C"},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


SESSION = """
set -e
mkdir app
echo "create app/log buffers=single subbuf_size=4K n_subbufs=16" > control
echo line 1 > app/log
echo line 2 >> app/log
{ echo line 3; echo line 4; } > app/log
cat .channels/app/log/records
cat app/log
cat app/log
echo line 5 > app/log
echo flush app/log > control
cat .channels/app/log/produced
cat app/log
echo remove app/log > control
test ! -e app/log
rmdir app
ls
"""


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox sh"])
def test_a_whole_session_takes_nothing_but_a_shell(mount: Mount, shell: str) -> None:
    done = run(SESSION, mount, shell)
    assert done.stderr == ""
    assert done.stdout == f"4\nline 1\nline 2\nline 3\nline 4\n1\nline 5\n{LISTED}"


WRITERS = {
    "echo to": 'while read -r line; do echo "$line" > F; done < IN',
    "echo append": 'while read -r line; do echo "$line" >> F; done < IN',
    "one open": 'exec 4> F; while read -r line; do echo "$line" >&4; done < IN',
    "one open for both": 'exec 4<> F; while read -r line; do echo "$line" >&4; done < IN',
    "printf": 'while read -r line; do printf "%s\\n" "$line" > F; done < IN',
    "cat": "cat IN > F",
    "cat append": "cat IN >> F",
    "cp": "cp IN F",
    "tee": "tee F < IN > /dev/null",
    "tee append": "tee -a F < IN > /dev/null",
    "dd": "dd if=IN of=F bs=31 status=none",
    "dd notrunc": "dd if=IN of=F bs=31 conv=notrunc status=none",
    "dd append": "dd if=IN of=F bs=31 oflag=append conv=notrunc status=none",
    "sed w": "sed -n 'w F' IN",
    "awk": "mawk '{ print > \"F\" }' IN",
    "grep": "grep --line-buffered line IN > F",
    "busybox echo": 'while read -r line; do busybox echo "$line" > F; done < IN',
    "busybox cp": "busybox cp IN F",
    "busybox dd": "busybox dd if=IN of=F bs=31 2> /dev/null",
}


@pytest.mark.parametrize("script", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("scheme", ["rseq", "lockless"])
def test_what_a_tool_writes_is_added_and_read_in_order(mount: Mount, tmp_path: Path, script: str, scheme: str) -> None:
    mount.create("app/cpu", f"scheme={scheme}")
    (tmp_path / "in").write_bytes(lines(N))
    file = mount.path / "app/cpu0"
    file.write_bytes(b"before\n")
    done = run(script.replace("IN", str(tmp_path / "in")).replace("F", str(file)), mount)
    assert (done.returncode, done.stderr) == (0, "")
    assert drain(file) == b"before\n" + lines(N)
    assert mount.shown("app/cpu", "lost") == "0"


def test_tools_that_cut_lines_write_a_record_each(mount: Mount, tmp_path: Path) -> None:
    path = mount.create("log", "buffers=single")
    (tmp_path / "in").write_bytes(lines(N))
    assert run(f"dd if={tmp_path / 'in'} of=log bs=31 status=none", mount).returncode == 0
    assert mount.shown("log", "records") == str(N)
    assert run("echo one more > log", mount).returncode == 0
    assert mount.shown("log", "records") == str(N + 1)
    assert drain(path) == lines(N) + b"one more\n"


def test_a_full_buffer_and_a_long_record_are_told_to_the_shell(mount: Mount) -> None:
    path = mount.create("log", "buffers=single subbuf_size=16 n_subbufs=2")
    done = run("for i in 1 2 3; do printf '%015d\\n' $i > log; done; printf '%20d' 1 > log", mount)
    assert done.stderr.count("No space left on device") == 1
    assert done.stderr.count("Message too long") == 1
    assert drain(path) == b"%015d\n%015d\n" % (1, 2)
    assert (mount.shown("log", "lost_full"), mount.shown("log", "lost_too_large")) == ("1", "1")


def test_a_refused_command_fails_the_shells_redirection_and_is_explained(mount: Mount) -> None:
    done = run("echo create app/cpu n_subbufs=0 > control", mount)
    assert done.returncode == 1
    assert "Invalid argument" in done.stderr
    assert "n_subbufs=0: not allowed" in run("cat error_log", mount).stdout
    assert run("ls", mount).stdout == LISTED


def test_files_go_with_their_channel_and_not_by_rm(mount: Mount) -> None:
    path = mount.create("log", "buffers=single")
    assert "Operation not permitted" in run("rm -f log", mount).stderr
    assert "Operation not permitted" in run("mv log other", mount).stderr
    assert path.exists()
    assert run("echo remove log > control; ls", mount).stdout == LISTED


def test_a_here_document_makes_several_channels_at_once(mount: Mount) -> None:
    done = run(
        "cat > control << EOF\n# two channels\ncreate a buffers=single\n\ncreate b buffers=single\nEOF\nls", mount
    )
    assert (done.stdout, done.stderr) == (f"a\nb\n{LISTED}", "")


def test_what_control_shows_makes_the_same_channels_again(mount: Mount, tmp_path: Path) -> None:
    mount.create("app/cpu", "mode=overwrite subbuf_size=3000 n_subbufs=5 delivery=packet read=wait perm=0600")
    mount.create("log", "buffers=single flush_interval=250")
    done = run(f"cp control {tmp_path}/saved; echo remove app/cpu > control; echo remove log > control;"
               "grep -v ^# control;"
               f"cat {tmp_path}/saved > control; cmp control {tmp_path}/saved && echo same", mount)  # fmt: skip
    assert (done.stdout, done.stderr) == ("same\n", "")
