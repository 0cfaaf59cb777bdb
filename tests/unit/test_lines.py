"""Signals that end what is written to the standard output."""

import signal

import pytest

from relayfs_fuse.cli.lines import Lines, Stopped


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
