"""Files that take commands are flooded with garbage, and with commands: all others are served meanwhile."""

from collections.abc import Callable

from attack.arena import ROUND_S, Arena
from attack.test_buffers import ROUNDS, STRESS

Begin = Callable[..., Arena]
pytestmark = STRESS


@ROUNDS
def test_floods_of_commands(begin: Begin, number: int) -> None:
    arena = begin("size=256M", "control_mode=0666")
    files = [arena.mount.path / name for name in ("control", "counters.names", "error_log", ".traces/join")]
    arena.flood(*files)
    arena.flood(*files)
    arena.fight(ROUND_S)
    arena.judge()
    arena.restart()
