"""Log statements: nothing while nobody listens, whole records while somebody does, and no thread left behind."""

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from build import MEMORY, PLAIN, THREADS, builds, compile_c, native_prefix, run_command, run_environment
from mounts import Mount
from traffic import drain

pytestmark = pytest.mark.one_mount

KLOGGER = Path(__file__).with_name("klogger.c")
DEADLINE_S = 900
N_REGISTRATIONS = 10
N_FORKS = 25
STATEMENT = """
#include <relayfs/klog.h>
void statement(int n) { klog("%d\\n", n); }
int main(void) { statement(1); return klog_raw("x", 1); }
"""


def run(*arguments: object, sanitize: str = PLAIN) -> str:
    command = run_command(compile_c([KLOGGER], None, sanitize), *arguments, sanitize=sanitize)
    done = subprocess.run(
        command, env=run_environment(sanitize), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout


@pytest.mark.parametrize("sanitize", builds())
def test_nothing_happens_while_nobody_listens(sanitize):
    run("quiet", sanitize=sanitize)


@pytest.mark.parametrize("sanitize", builds())
def test_each_statement_is_one_whole_record(mount: Mount, sanitize):
    path = mount.create("log", "buffers=single")
    run("text", path, sanitize=sanitize)
    error = os.strerror(errno.EDOM).encode()
    x = b"x" * 100_000
    records = [b"text 42 " + error + b"\n", b"\0raw\n", x[:510] + b"\n", x[:511] + b"\n", error + b" " + x + b"\n"]
    assert path.read_bytes() == b"".join(records) + b"last\n"
    assert mount.shown("log", "records") == str(len(records) + 1)
    assert mount.shown("log", "lost_too_large") == "1"


def check_lines(mount: Mount, channel: Path, counts: str) -> None:
    """As many lines as were written, each whole; as many lost as were refused."""
    n_written, n_refused = map(int, counts.split())
    assert (mount.shown("app/log", "lost"), mount.shown("app/log", "lost_full")) == (str(n_refused),) * 2
    n_buffers = int(mount.shown("app/log", "n_buffers"))
    got = b"".join(drain(Path(f"{channel}{cpu}")) for cpu in range(n_buffers)).splitlines()
    assert len(got) == n_written
    assert [line for line in got if not re.fullmatch(rb"thread \d line \d+|signal|child", line)] == []
    numbered = [line for line in got if line.startswith(b"thread")]
    assert len(set(numbered)) == len(numbered) > 0


@pytest.mark.parametrize("sanitize", builds(PLAIN, MEMORY, THREADS))
@pytest.mark.parametrize("scheme", ["rseq", "lockless"])
def test_statements_run_while_channels_come_and_go(mount: Mount, scheme, sanitize):
    path = mount.create("app/log", f"scheme={scheme} subbuf_size=1M n_subbufs=8")
    check_lines(mount, path, run("threads", path, N_REGISTRATIONS, sanitize=sanitize))


@pytest.mark.parametrize("sanitize", builds())
def test_a_child_waits_for_no_thread_of_its_parent(mount: Mount, sanitize):
    path = mount.create("app/log", "subbuf_size=1M n_subbufs=8")
    check_lines(mount, path, run("fork", path, N_FORKS, sanitize=sanitize))


def test_a_statement_is_a_load_and_a_branch(tmp_path):
    """Before the branch to where somebody listens."""
    source = tmp_path / "statement.c"
    source.write_text(STATEMENT)
    program = compile_c([source], tmp_path / "statement", PLAIN, "-O2")
    code = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "--disassemble=statement", program],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    instructions = re.findall(r"^ +[0-9a-f]+:\t(\S+)", code, re.MULTILINE)
    if os.uname().machine == "x86_64":
        # load, test, branch, return
        assert instructions[:4] == ["mov", "test", "jne", "ret"]


def test_switched_off_it_needs_no_library(tmp_path):
    source = tmp_path / "statement.c"
    source.write_text(STATEMENT)
    command = ["gcc", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{native_prefix().include}", source, "-o"]
    assert subprocess.run([*command, tmp_path / "on"], capture_output=True, check=False).returncode != 0
    subprocess.run([*command, tmp_path / "off", "-DKLOG_OFF"], check=True)
    subprocess.run([tmp_path / "off"], check=True)


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
@pytest.mark.parametrize("off", [[], ["-DKLOG_OFF"]], ids=["on", "off"])
def test_formats_are_checked_and_right_ones_raise_no_warning(tmp_path, compiler, off):
    assert shutil.which(compiler)
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{native_prefix().include}", "-fsyntax-only", *off, "-x"]
    flags.append("c" if compiler == "gcc" else "c++")
    right, wrong = tmp_path / "right.c", tmp_path / "wrong.c"
    right.write_text(STATEMENT)
    wrong.write_text(STATEMENT.replace("%d", "%s"))
    assert subprocess.run([compiler, *flags, right], check=False).returncode == 0
    done = subprocess.run([compiler, *flags, wrong], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "format" in done.stderr
