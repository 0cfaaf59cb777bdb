"""Rounds of attacks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack.arena import Arena, choose_seed
from mounts import Mount

Begin = Callable[..., Arena]


@pytest.fixture
def begin(make_mount: Callable[..., Mount], unprivileged: object, tmp_path: Path) -> Iterator[Begin]:
    """Begin a round, with neighbours and tools: begin("size=256M"); tools=False: those are not what it is about."""
    arenas: list[Arena] = []

    def start(*options: str, tools: bool = True) -> Arena:
        directory = tmp_path / str(len(arenas))
        directory.mkdir()
        mount = make_mount(*options, start=False, is_forked=False)
        quiet = make_mount(store=mount.store.with_name("quiet"), start=False, is_forked=False)
        for one in (mount, quiet):
            one.own_session = True
            one.start()
        arena = Arena(mount, quiet, choose_seed(), directory)
        arenas.append(arena)
        arena.neighbours.start()
        if tools:
            arena.usual_tools()
        arena.watch_calm()
        return arena

    yield start
    for arena in arenas:
        arena.end()
