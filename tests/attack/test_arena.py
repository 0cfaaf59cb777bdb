"""The judge of attacks: it finds nothing where nobody attacks, and it does find harm."""

import signal
from collections.abc import Callable

import pytest
from attack.arena import Arena, Victim
from traffic import short_lines

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


@pytest.mark.parametrize("signum", [signal.SIGBUS, signal.SIGKILL])
def test_a_bystander_that_was_killed_is_found(begin: Begin, signum: int) -> None:
    arena = begin("size=512M")
    arena.bystander("stat", arena.mount.control).process.send_signal(signum)
    arena.fight(0.5)
    with pytest.raises(AssertionError, match=f"status -{signum:d}"):
        arena.judge()


def test_a_lost_record_of_a_neighbour_is_found(begin: Begin) -> None:
    arena = begin("size=512M")
    arena.fight(0.5)
    stolen = (arena.mount.path / "neighbour/ring").open("rb", buffering=0)
    while not stolen.read(100):
        pass
    stolen.close()
    with pytest.raises(AssertionError):
        arena.judge()
