"""What the importer forks is as if it were executed (tests/support/forking.py)."""

import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest
from mounts import NOBODY

# Says who it is, and leaves a file open that has yet to be written.
TELLS = """
import atexit, os, resource, sys, threading
left = open(sys.argv[2], "w")
left.write("left open")
print(sys.argv, __name__, os.getcwd(), os.environ["GIVEN"], sys.stdin.read())
print(os.getresuid(), os.getresgid(), os.getgroups(), os.stat("/proc/self/environ").st_uid)
atexit.register(print, "at exit", left.name)
threading.Thread(target=lambda: print("in a thread", left.name)).start()
sys.exit(int(sys.argv[1]))
"""
AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": [NOBODY - 1]}


@pytest.mark.parametrize("who", [{}, AS_NOBODY], ids=["own", "other"])
@pytest.mark.parametrize("status", [0, 3])
def test_code_runs_as_if_it_were_executed(tmp_path: Path, who: dict[str, object], status: int) -> None:
    if who and os.geteuid() != 0:
        pytest.skip("only root can run programs as another user")
    said = []
    for run in (subprocess.run, forking.run):
        file = Path("/tmp", f"{tmp_path.name}-{run.__module__}-{os.getpid()}")
        command = [sys.executable, "-c", TELLS, str(status), file]
        done = run(
            command, capture_output=True, text=True, input="input", cwd="/usr", env={**os.environ, "GIVEN": "given"},
            check=False, **who,
        )  # fmt: skip
        assert (done.returncode, done.stderr, file.read_text()) == (status, "", "left open")
        file.unlink()
        said.append(done.stdout.replace(file.name, "FILE"))
    assert said[0] == said[1]
    assert said[1].count("FILE") == 3


def test_a_script_is_run_with_its_name(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable}\nimport os, sys\nprint(sys.argv, __file__, __name__, os.getppid())\n")
    script.chmod(0o755)
    executed, forked = (run([script, "word"], capture_output=True, text=True) for run in (subprocess.run, forking.run))
    *said, parent = forked.stdout.split()
    assert said == executed.stdout.split()[:-1]
    assert int(parent) != os.getpid()  # but the importer
