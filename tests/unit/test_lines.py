"""Signals that end what is written to the standard output, and messages that the standard error does not take."""

import os
import signal

import pytest

from relayfs_fuse.cli.lines import Lines, Stopped
from relayfs_fuse.record.report import Progress


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_signal_ends_the_showing_and_no_cleanup(signum, capfd):
    before = signal.getsignal(signum)
    with Lines(None, handles_signals=True) as out:
        with out.showing():
            signal.raise_signal(signum)
            assert out.is_told_to_end
            with pytest.raises(Stopped):
                signal.raise_signal(signum)
        signal.raise_signal(signum)
    assert signal.getsignal(signum) == before


def test_a_message_that_stderr_has_not_taken_counts_as_missing(capfd):
    shown = Progress(shows_always=False)
    before, full = os.dup(2), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 2)
    shown.say("one")
    os.dup2(before, 2)
    shown.say("two")
    assert capfd.readouterr().err == "relayctl: 1 messages are missing here: stderr was full\nrelayctl: two\n"
    os.close(full)
    os.close(before)
