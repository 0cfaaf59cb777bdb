"""forwarding/waiting.py: how long what is not sent yet has waited."""

from relayfs_fuse.forwarding.waiting import Waiting


def test_what_is_sent_does_not_wait_and_the_rest_waits_since_it_was_seen():
    waiting = Waiting()
    assert waiting.since(0) is None
    waiting.note(0, 100, 1.0)
    waiting.note(0, 100, 5.0)
    waiting.note(0, 200, 7.0)
    assert [waiting.since(offset) for offset in (0, 99, 100, 199, 200)] == [1.0, 1.0, 7.0, 7.0, None]
    waiting.note(150, 300, 9.0)
    assert [waiting.since(offset) for offset in (150, 200, 300)] == [7.0, 9.0, None]
    # Nothing was seen meanwhile.
    waiting.note(300, 300, 10.0)
    waiting.note(300, 400, 20.0)
    assert waiting.since(300) == 20.0


def test_of_what_waits_for_long_less_is_noted():
    waiting = Waiting()
    for second in range(100_000):
        waiting.note(0, second + 1, float(second))
    assert waiting.since(0) == 0.0
    assert len(waiting._seen) < 300
    for offset in (1000, 50_000):
        since = waiting.since(offset)
        assert since is not None
        assert offset - offset / 8 - 1 <= since <= offset
