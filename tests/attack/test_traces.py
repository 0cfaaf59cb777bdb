"""Traced programs scribble on buffers, attack the page they map, and declare nonsense: no other loses an event."""

import os
from collections.abc import Callable
from pathlib import Path

from attack.arena import ROUND_S, Arena
from attack.programs import Helper
from attack.test_buffers import ROUNDS, STRESS
from making import Maker
from mounts import NOBODY, Mount, wait_until
from traced import environment_of, program, start_trace
from traffic import some_cpu

Begin = Callable[..., Arena]
pytestmark = STRESS
TRACES = ("s", "u", "t")
# Short lives of a traced program that writes noise over all that it shares, each killed somewhere.
LIVES = 'seed=$2; until read -t 0; do timeout -s KILL 0.7 "$1" spoil $((seed++)) 200 >/dev/null; done; echo writes'


def start_lives(arena: Arena) -> None:
    helper = Helper("short lives", ["nice", "bash", "-c", f"echo attacking; {LIVES}", "lives", program("trace_hostile"),
                                    arena.next_seed()], NOBODY, arena.environment)  # fmt: skip
    arena.attackers.append(helper)
    helper.wait_ready("attacking")


def start_shared_traces(mount: Mount) -> None:
    """Start those of TRACES that do not belong to the neighbours."""
    start_trace(mount, "s", "buffers=shared mode=overwrite subbuf_size=16K n_subbufs=8")
    start_trace(mount, "u", "buffers=peruser subbuf_size=16K n_subbufs=8")


@ROUNDS
def test_traced_programs(begin: Begin, number: int) -> None:
    arena = begin("size=1G")
    mount = arena.mount
    start_shared_traces(mount)
    hostile = Maker(environment_of(mount), NOBODY, ["nice", program("traced")])
    arena.makers.append(hostile)
    hostile.start("flood 40 5000")
    files = []
    for trace, directory in (("t", f"traced-{hostile.process.pid}"), ("s", "shared"), ("u", f"user-{NOBODY}")):
        wait_until((mount.path / trace / directory).exists, f"{trace}/{directory} is shown")
        file = mount.path / trace / directory / f"cpu{some_cpu()}"
        arena.attack("relay", mount.path / ".channels" / trace / directory / f"cpu/mem{some_cpu()}", file)
        for role in ("poll", "read", "epoll"):
            arena.bystander(role, file)
        arena.reader("tail", "-f", file)
        arena.reader("cat", file)
        files.append(file)
    for trace in TRACES:
        arena.reader("tail", "-n", "+1", "-f", mount.path / trace / "merged")
        arena.reader("cat", mount.path / trace / "merged.json")
    arena.python_bystander("reader", *files)
    start_lives(arena)
    arena.flood(mount.path / ".traces/join")
    written = arena.neighbours.ledger.written
    arena.fight(ROUND_S)
    assert arena.neighbours.ledger.written > written, "the honest program stands still"
    arena.judge()
    end_traces(arena)


def end_traces(arena: Arena) -> None:
    """Stop and remove all traces, by two servers."""
    for trace in TRACES:
        arena.mount.command(f"trace stop {trace}")
    arena.restart()
    for trace in TRACES:
        arena.mount.command(f"trace remove {trace}")
        wait_until(lambda gone=Path(arena.mount.path / trace): not gone.exists(), f"{trace} goes")
    assert not set(TRACES) & set(os.listdir(arena.mount.path))


@ROUNDS
def test_the_page_of_traced_programs(begin: Begin, number: int) -> None:
    arena = begin("size=1G")
    mount = arena.mount
    start_shared_traces(mount)
    page = mount.path / ".traces/control"
    for _ in range(2):
        arena.attack_page(*TRACES)
    arena.reader("cat", page)
    # Honest programs come and go, and root changes what is wanted, for which each of them looks at the page.
    # The recorder keeps up with them: what it has not yet taken is shown, and takes memory of the server.
    emit = f"sleep 1; echo emit 10 | exec {program('traced')} | grep -qx '[0-9]*' || echo no answer >&2"
    arena.tool("sh", "-c", emit)
    arena.tool("sh", "-c", f"for what in disable enable; do echo trace $what t none:* >{mount.control}; done")
    written = arena.neighbours.ledger.written
    arena.fight(ROUND_S)
    assert arena.neighbours.ledger.written > written, "the honest program stands still"
    # The tools still change what is wanted.
    wait_until(lambda: page.read_bytes() == (mount.store / ".traces").read_bytes(), "the page is shown as it is")
    arena.judge()
    end_traces(arena)
