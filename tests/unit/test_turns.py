"""What takes a share of the server's time takes no more."""

import trio
import trio.testing

from relayfs_fuse.fs.requests.turns import Share

SHARE, SAVED_S, COST_S = 0.25, 0.05, 0.001


def spend(n: int, every_s: float) -> float:
    """Spend so often, no sooner than after a pause, and return how long that took."""

    async def run() -> float:
        share = Share(SHARE, SAVED_S)
        begun = trio.current_time()
        for _ in range(n):
            await share.ready()
            share.spend(COST_S)
            await trio.sleep(every_s)
        return trio.current_time() - begun

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_who_wants_less_than_the_share_never_waits() -> None:
    assert round(spend(1000, 0.0045), 6) == 4.5


def test_what_is_saved_up_is_taken_at_once() -> None:
    assert spend(50, 0.0) == 0


def test_who_wants_more_gets_the_share() -> None:
    assert 3.75 <= spend(1000, 0.0) <= 4
