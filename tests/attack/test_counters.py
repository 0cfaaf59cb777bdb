"""Counters and commands: others count on, and are served, whatever is done with both.

Groups of counters are scribbled on by who may adjust them, and added and deleted without end. Files that take commands
are flooded with garbage, and with commands.
"""

import sys
from collections.abc import Callable

from attack.arena import ROUND_S, Arena
from attack.neighbours import HONEST
from attack.programs import Helper
from attack.test_buffers import ROUNDS, STRESS
from mounts import NOBODY, wait_until

from relayfs_fuse import Counters

Begin = Callable[..., Arena]
pytestmark = STRESS

# Counts until its input ends; the last line is how often.
COUNT = """
import select, sys
from relayfs_fuse import Counters

with Counters(sys.argv[1]) as counters:
    mine = counters.add(sys.argv[2], mode=int(sys.argv[3], 8))
    print("ready", flush=True)
    n = 0
    while not select.select([0], [], [], 0.001)[0]:
        mine.adjust()
        n += 1
print(n)
"""
# Adds and deletes names, as many as it may have.
CHURN = """
import random, select, sys
from relayfs_fuse import Counters

chance = random.Random(int(sys.argv[2]))
print("attacking", flush=True)
n = 0
while not select.select([0], [], [], 0)[0]:
    with Counters(sys.argv[1]) as counters:
        for _ in range(50):
            name = f"churn{chance.randrange(9)}/{chance.randrange(3000)}"
            try:
                if chance.randrange(3):
                    counters.add(name, mode=chance.choice([0o200, 0o220, 0o222])).adjust(chance.randrange(1 << 63))
                else:
                    counters.delete(name)
                n += 1
            except OSError:
                continue
print("writes", n)
"""


@ROUNDS
def test_groups_of_counters_and_floods_of_commands(begin: Begin, number: int) -> None:
    arena = begin("size=256M", "control_mode=0666")
    path = arena.mount.path

    def counting(user: int | None, name: str, mode: str) -> Helper:
        helper = Helper(f"counting {name}", [sys.executable, "-c", COUNT, path, name, mode], user, arena.environment)
        helper.wait_ready("ready")
        return helper

    # The attacker's group, in which root counts, too; and one that the attacker cannot reach.
    owner = counting(NOBODY, "hostile/a", "0222")
    joined = counting(None, "hostile/a", "0222")
    honest = counting(HONEST, "honest/b", "0200")
    root = counting(None, "root/c", "0200")
    arena.bystanders += [owner, joined]
    groups = [file for file in (path / ".counters").iterdir() if file.name.startswith(f"{NOBODY}-")]
    assert groups
    for group in groups:
        arena.attack("words", group)
    churn = Helper("churn", ["nice", sys.executable, "-c", CHURN, path, arena.next_seed()], NOBODY, arena.environment)
    arena.attackers.append(churn)
    churn.wait_ready("attacking")
    # One that floods nothing but the names, and two that flood all files that take commands.
    arena.flood(path / "counters.names")
    for _ in range(2):
        arena.flood(*(path / name for name in ("control", "counters.names", "error_log", ".traces/join")))
    arena.reader("cat", path / "counters.txt")
    arena.reader("cat", path / "counters.names")
    try:
        arena.fight(ROUND_S)
        counted = {"honest/b": int(honest.finish()), "root/c": int(root.finish())}
        # What is counted outside of the file that all map is copied there a tenth of a second later.
        with Counters(path) as counters:
            wait_until(lambda: counted.items() <= counters.values().items(), f"they are shown: {counted}")
    finally:
        honest.kill()
        root.kill()
    arena.judge()
    arena.restart()
