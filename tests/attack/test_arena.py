"""The judge of attacks: it finds nothing where nobody attacks, and it does find harm."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attack.arena import GROWTH_ONCE_KB, HIGHEST, STAT_P99_US, STAT_RATIO, Arena, Helper, Reader, Tool, Victim
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
    arena.fight(2.0)
    arena.judge()
    arena.restart()


def test_the_server_and_who_measures_it_run_before_all_others(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    server = arena.mount.process
    assert server is not None
    for pid in (server.pid, arena._watch().process.pid):
        assert os.getpriority(os.PRIO_PROCESS, pid) == HIGHEST
        group = Path(f"/proc/{pid}/autogroup")
        # Of a session with others in it, all would have that value.
        assert not group.exists() or (group.read_text().split()[-1], os.getsid(pid)) == (str(HIGHEST), pid)


@pytest.mark.parametrize("signum", [signal.SIGBUS, signal.SIGKILL])
def test_a_bystander_that_was_killed_is_found(begin: Begin, signum: int) -> None:
    arena = begin("size=512M", tools=False)
    arena.bystander("stat", arena.mount.control).process.send_signal(signum)
    arena.fight(0.5)
    with pytest.raises(AssertionError, match=f"status -{signum:d}"):
        arena.judge()


def test_a_lost_record_of_a_neighbour_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.fight(0.5)
    stolen = (arena.mount.path / "neighbour/ring").open("rb", buffering=0)
    while not stolen.read(100):
        pass
    stolen.close()
    with pytest.raises(AssertionError, match="the neighbour's ring is not what was written"):
        arena.judge()


def test_a_record_that_the_neighbour_has_not_written_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.fight(0.5)
    append(arena.neighbours.stream.file, b"a stranger's\n")
    with pytest.raises(AssertionError, match="the neighbour's stream is not what was written"):
        arena.judge()


def test_an_event_that_is_not_in_the_recording_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.fight(0.5)
    # As if the program had written more than it has.
    arena.neighbours.ledger = Ledger(arena.directory / "another ledger")
    arena.neighbours.ledger.path.write_bytes((1 << 20).to_bytes(8, "little"))
    with pytest.raises(AssertionError, match=r"recording lacks [1-9]\d* events"):
        arena.judge()


@pytest.mark.parametrize("signum", [signal.SIGBUS, signal.SIGKILL])
def test_a_traced_program_that_was_killed_is_found(begin: Begin, signum: int) -> None:
    arena = begin("size=512M", tools=False)
    arena.neighbours.traced.process.send_signal(signum)
    assert arena.neighbours.traced.process.wait(DEADLINE_S) == -signum
    arena.fight(0.5)
    with pytest.raises(AssertionError, match="the honest traced program has ended"):
        arena.judge()


def test_a_recorder_that_has_ended_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.fight(0.5)
    # In order, and without a complaint: it has ended all the same.
    finish(arena.neighbours.recorder)
    with pytest.raises(AssertionError, match="the recorder has ended"):
        arena.judge()


def test_a_server_that_answers_late_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    server = arena.mount.process
    assert server is not None
    usual_us = max(STAT_P99_US, STAT_RATIO * arena.calm.p99)
    done = threading.Event()

    def hold_up() -> None:
        while not done.wait(0.001):
            server.send_signal(signal.SIGSTOP)
            done.wait(4 * usual_us / 1e6)
            server.send_signal(signal.SIGCONT)

    holder = threading.Thread(target=hold_up)
    holder.start()
    try:
        arena.fight(20 * usual_us / 1e6)
    finally:
        done.set()
        holder.join()
    with pytest.raises(AssertionError, match=r"Times\(.*before"):
        arena.judge()


def test_memory_that_has_grown_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.fight(0.5)
    assert arena.memory[-1] <= arena.memory_max <= 1.1 * max(arena.memory) + GROWTH_ONCE_KB
    arena.memory.append(arena.memory_max + 1)
    with pytest.raises(AssertionError, match="the server's memory has grown"):
        arena.judge()


def test_what_the_server_logs_of_its_own_mistakes_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.fight(0.5)
    arena.mount.expect("Traceback")
    with arena.mount.log.open("a") as log:
        log.write("Traceback (most recent call last):\n")
    with pytest.raises(AssertionError, match="Traceback"):
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


def test_an_attacker_that_has_broken_something_is_found(begin: Begin) -> None:
    arena = begin("size=512M", tools=False)
    arena.attackers.append(Helper("attack", ["sh", "-c", "cat; echo broke 1"], None, arena.environment))
    arena.fight(0.5)
    with pytest.raises(AssertionError, match="broke 1"):
        arena.judge()
