"""Whoever may write a channel scribbles on its memory: nobody else notices."""

from collections.abc import Callable

import pytest
from attack.arena import N_ROUNDS, ROUND_S, Arena
from traffic import short_lines

Begin = Callable[..., Arena]
STRESS = pytest.mark.stress
ROUNDS = pytest.mark.parametrize("number", range(N_ROUNDS))
pytestmark = STRESS
# Restartable sequences need a buffer for each CPU. The large one has room for the longest list of discarded records.
BUFFERS = {
    "rseq": "scheme=rseq subbuf_size=16K n_subbufs=8",
    "lockless": "scheme=lockless buffers=single subbuf_size=16K n_subbufs=8",
    "locking": "scheme=locking buffers=single subbuf_size=16K n_subbufs=8 mode=overwrite",
    "large": "scheme=lockless buffers=single subbuf_size=4M n_subbufs=2 read=wait",
}
RINGS = {
    "global": "buffers=single size=64K",
    "percpu": "buffers=percpu size=64K",
    "overwrite": "buffers=single size=64K mode=overwrite",
    "large": "buffers=single size=8M read=wait",
}


def finish(arena: Arena) -> None:
    arena.fight(ROUND_S)
    arena.judge()
    arena.restart()


@ROUNDS
def test_relay_buffers(begin: Begin, number: int) -> None:
    arena = begin("size=512M")
    for name, options in BUFFERS.items():
        victim = arena.victim(name, options, [short_lines(300)])
        for role in ("poll", "reader", *(("read", "epoll") if name != "large" else ())):
            arena.bystander(role, victim.file)
        arena.bystander("write", victim.path)
        arena.reader("tail", "-f", victim.file)
        arena.reader("cat", victim.file)
    arena.python_bystander("reader", *(victim.file for victim in arena.victims.values()))
    arena.python_bystander("write", *(victim.path for victim in arena.victims.values()))
    finish(arena)


@ROUNDS
def test_rings(begin: Begin, number: int) -> None:
    arena = begin("size=512M")
    for name, options in RINGS.items():
        victim = arena.victim(name, options, short_lines(20).splitlines(), of_ring=True)
        for role in ("poll", *(("read", "epoll") if name != "large" else ())):
            arena.bystander(role, victim.file)
        for role in ("ring", "output"):
            arena.bystander(role, victim.path)
        arena.reader("tail", "-f", victim.file)
        arena.reader("cat", victim.file)
    for role in ("ring", "output"):
        arena.python_bystander(role, *(victim.path for victim in arena.victims.values()))
    finish(arena)
