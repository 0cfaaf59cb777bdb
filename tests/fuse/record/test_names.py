"""A directory is removed, and another one gets its name, while a recorder knows the first by that name."""

import signal
import sys
from pathlib import Path

import forking
from babeltrace import read
from mounts import DEADLINE_S
from tracing import Program, Store, finish, recorded, recording

# Have another directory take a name once the recorder has opened the first file of the one that has it.
REPLACING = """
import os, sys
from relayfs_fuse.cli.relayctl import main

replaced, other, *words = sys.argv[1:]
directory, name = os.path.split(replaced)

def replace(event, arguments):
    if event == "os.listdir" and str(arguments[0]).endswith("/cpu") and os.path.exists(other):
        os.rename(replaced, os.path.join(directory, ".removed"))
        os.rename(other, replaced)

sys.addaudithook(replace)
sys.argv = ["relayctl", *words]
main()
"""


def test_a_directory_that_is_replaced_while_it_is_opened_is_another_ones(store: Store, run, out: Path) -> None:
    trace = store.create("t")
    one: Program = run(trace, "one")
    one.write(10)
    with recording("t", "--store", store.path, "-o", out) as recorder:
        finish(recorder)
    two: Program = run(trace, "two")
    two.write(5)
    store.change(trace, is_started=False)
    words = ["record", "t", "--store", store.path, "-o", out, "--until-stopped"]
    command = [sys.executable, "-c", REPLACING, one.directory, two.directory, *words]
    forking.run(command, check=True, timeout=DEADLINE_S)
    assert not two.directory.exists()
    assert read(out).events == {"one": list(range(10)), "two": list(range(5))}


def test_a_directory_that_has_an_old_name_at_the_end_is_recorded(store: Store, run, out: Path) -> None:
    trace = store.create("t")
    one: Program = run(trace, "one")
    one.write(10)
    one.flush()
    with recording("t", "--store", store.path, "-o", out, "--until-stopped") as recorder:
        recorded(out, 10, "one")
        recorder.send_signal(signal.SIGSTOP)
        two: Program = run(trace, "two")
        two.write(5)
        one.directory.rename(one.directory.with_name(".removed"))
        two.directory.rename(one.directory)
        store.change(trace, is_started=False)
        recorder.send_signal(signal.SIGCONT)
        said = recorder.communicate(timeout=DEADLINE_S)[1]
    assert recorder.returncode == 0, said
    assert read(out).events == {"one": list(range(10)), "two": list(range(5))}
