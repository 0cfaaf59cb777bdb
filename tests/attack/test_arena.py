"""The judge of attacks: it finds nothing where nobody attacks, and it does find harm."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attack.arena import GROWTH_ONCE_KB, HIGHEST, STAT_P99_US, STAT_RATIO, Arena, Victim
from attack.programs import Helper, Reader, Tool
from mounts import DEADLINE_S, wait_until
from traced import Ledger
from tracing import finish
from traffic import append, short_lines

Begin = Callable[..., Arena]


def test_where_nobody_attacks_nothing_is_found(begin: Begin) -> None:
    arena = begin("size=512M")
    channel = Victim(arena.mount, "quiet", "buffers=single", [short_lines(300)], of_ring=False)
    channel.make()
    for role in ("poll", "epoll", "read", "reader"):
        arena.bystander(role, channel.file)
    arena.bystander("write", channel.path)
    arena.reader("tail", "-f", channel.file)
    arena.fight(1.0)
    arena.judge()
    arena.restart()


def test_the_server_and_who_measures_it_run_before_all_others(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    assert arena.mount.process is not None
    bystander = arena._watch(arena.mount).process.pid
    # The server's session is its supervisor's.
    for pid, leader in (arena.mount.server, arena.mount.process.pid), (bystander, bystander):
        assert os.getpriority(os.PRIO_PROCESS, pid) == HIGHEST
        group = Path(f"/proc/{pid}/autogroup")
        # Of a session with others in it, all would have that value.
        assert not group.exists() or (group.read_text().split()[-1], os.getsid(pid)) == (str(HIGHEST), leader)


def check_faults(arena: Arena, *patterns: str) -> None:
    """All of them are found, and nothing else is."""
    faults = arena.faults()
    for pattern in patterns:
        assert [fault for fault in faults if re.search(pattern, fault)], (pattern, faults)
    assert len(faults) == len(patterns), faults


def test_each_harm_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    neighbours = arena.neighbours
    for signum in (signal.SIGBUS, signal.SIGKILL):
        arena.bystander("stat", arena.mount.control).process.send_signal(signum)
    arena.attackers.append(Helper("attack", ["sh", "-c", "cat; echo broke 1"], None, arena.environment))
    arena.fight(0.5)
    neighbours.traced.process.send_signal(signal.SIGBUS)
    assert neighbours.traced.process.wait(DEADLINE_S) == -signal.SIGBUS
    with (arena.mount.path / "neighbour/ring").open("rb", buffering=0) as stolen:
        while not stolen.read(100):
            pass
    append(neighbours.stream.file, b"a stranger's\n")
    # As if the program had written more than it has.
    neighbours.ledger = Ledger(arena.directory / "another ledger")
    neighbours.ledger.path.write_bytes((1 << 20).to_bytes(8, "little"))
    assert arena.memory[-1] <= arena.memory_max <= 1.1 * max(arena.memory) + GROWTH_ONCE_KB
    arena.memory.append(arena.memory_max + 1)
    arena.mount.expect("Traceback")
    with arena.mount.log.open("a") as log:
        log.write("Traceback (most recent call last):\n")
    check_faults(
        arena,
        f"status -{signal.SIGBUS:d}",
        f"status -{signal.SIGKILL:d}",
        "broke 1",
        "the honest traced program has ended",
        "the neighbour's ring is not what was written",
        "the neighbour's stream is not what was written",
        r"recording lacks [1-9]\d* events",
        "the server's memory has grown",
        "Traceback",
    )


def test_a_recorder_that_has_ended_and_a_traced_program_that_was_killed_are_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.fight(0.5)
    # In order, and without a complaint: it has ended all the same.
    finish(arena.neighbours.recorder)
    arena.neighbours.traced.process.kill()
    arena.neighbours.traced.process.wait(DEADLINE_S)
    check_faults(arena, "the recorder has ended", "the honest traced program has ended")


def test_a_server_that_answers_late_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    server = arena.mount.server
    usual_us = max(STAT_P99_US, STAT_RATIO * arena.calm.p99)
    done = threading.Event()

    def hold_up() -> None:
        while not done.wait(0.001):
            os.kill(server, signal.SIGSTOP)
            done.wait(4 * usual_us / 1e6)
            os.kill(server, signal.SIGCONT)

    holder = threading.Thread(target=hold_up)
    holder.start()
    try:
        arena.fight(20 * usual_us / 1e6)
    finally:
        done.set()
        holder.join()
    with pytest.raises(AssertionError, match=r"Times\(.*before"):
        arena.judge()


def test_a_server_that_has_ended_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    server = arena.mount.process
    assert server is not None

    def kill_soon() -> None:
        wait_until(lambda: len(getattr(arena, "memory", ())) > 1, "the fight has begun")
        server.kill()

    killer = threading.Thread(target=kill_soon)
    killer.start()
    with pytest.raises(AssertionError, match="the server has ended"):
        arena.fight(DEADLINE_S)
    killer.join()


# --- programs that are run meanwhile, without a mount ---


@pytest.mark.parametrize(
    ("script", "says"),
    [("kill -BUS $$", "status -7"), ("kill -KILL $$", "status -9"), ("echo strange >&2", "strange")],
)
def test_a_tool_that_was_killed_or_complains_is_found(script: str, says: str) -> None:
    tool = Tool(["sh", "-c", script], dict(os.environ))
    wait_until(lambda: tool.runs > 0, "it has run")
    with pytest.raises(AssertionError, match=says):
        tool.finish()


@pytest.mark.parametrize(("script", "status"), [("kill -BUS $$", "-7"), ("exit 3", "3")])
def test_a_reader_that_was_killed_or_fails_is_found(script: str, status: str) -> None:
    reader = Reader(["sh", "-c", script])
    reader.process.wait(DEADLINE_S)
    with pytest.raises(AssertionError, match=rf": {status}$"):
        reader.start_again()
    with pytest.raises(AssertionError, match=rf": {status}$"):
        reader.finish()
