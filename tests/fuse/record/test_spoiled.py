"""relayctl view --follow of a directory in which a user spoils a recording: the others are shown."""

import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from mounts import wait_until
from tracing import recording
from viewing import View, viewing

from relayfs_fuse.reading.packet import HEAD_BYTES, Head

ORIGIN = "trace=t id=1 process=bad-1 pid=1 uid=0 buffers=perprocess clock=mono tsc=1 mono=1 real=1 made_mono=1"
METADATA = (
    f"/* CTF 1.8 */\n/* relayfs {ORIGIN} boot={uuid.uuid4()} */\n"
    "clock {\n\tfreq = 1;\n\toffset_s = 9999999999;\n\toffset = 9999999999999999999;\n};\n"
)


def replaced(path: Path, make: Callable[[Path], object]) -> Path:
    """Replace a file by one that has another type."""
    path.unlink(missing_ok=True)
    make(path)
    return path


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def part_with(out: Path, text: str) -> Path:
    """Make a part, whose clock shows times that fit into no 64 bits."""
    path = out / "bad-1"
    path.mkdir()
    (path / "metadata").write_text(text)
    return path / "metadata"


def holes(part: Path) -> None:
    """Make a stream of packets that fill a terabyte, of which nothing but their heads is on the disk."""
    first = Head.of((part / "cpu0").read_bytes())
    n_bytes = HEAD_BYTES + (1 << 32) - 1  # a head, and the longest sub-buffer
    head = first._replace(packet_size=8 * n_bytes, content_size=8 * n_bytes, timestamp_begin=0, timestamp_end=1 << 60)
    with (part / "cpu900").open("wb") as file:
        for number in range(256):
            file.seek(number * n_bytes)
            file.write(head._replace(packet_seq_num=number).pack())
        file.truncate(256 * n_bytes)


# By what is done: it gets the recording and a part of it, and returns what cannot be read, if that is to be said.
HARMS: dict[str, Callable[[Path, Path], Path | None]] = {
    "a FIFO for the notes of clocks": lambda out, _: replaced(out / ".clocks", os.mkfifo),
    "a directory for the notes of clocks": lambda out, _: replaced(out / ".clocks", Path.mkdir),
    "endless notes of clocks": lambda out, _: os.truncate(out / ".clocks", 1 << 40),
    "a FIFO for metadata": lambda _, part: replaced(part / "metadata", os.mkfifo) and None,
    "a loop for metadata": lambda _, part: replaced(part / "metadata", loop) and None,
    "a FIFO for a stream": lambda _, part: replaced(part / "cpu900", os.mkfifo),
    "a socket for a stream": lambda _, part: replaced(part / "cpu900", listen),
    "a loop for a stream": lambda _, part: replaced(part / "cpu900", loop),
    "a link to nothing for a stream": lambda _, part: (part / "cpu900").symlink_to("nothing"),
    "no compressed stream": lambda _, part: replaced(part / "cpu900.zst", lambda path: path.write_bytes(bytes(100))),
    "an endless stream": lambda _, part: os.truncate(replaced(part / "cpu900", Path.touch), 1 << 40),
    "packets of holes": lambda _, part: holes(part),
    "garbage for a stream": lambda _, part: (part / "cpu900").write_bytes(os.urandom(999)) and None,
    "metadata of no clock": lambda out, _: part_with(out, METADATA),
    "a FIFO for metadata of a new part": lambda out, _: replaced(part_with(out, ""), os.mkfifo),
}


def shows_good(view: View) -> bool:
    """Whether an event of the other recording is shown. Packets of holes are a million lines, too many to parse."""
    return any(',"host":"b",' in line and ',"event":' in line for line in view.lines)


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_spoiled_while_it_is_followed_harms_no_other_recording(store, run, out, harm):
    spoiled, good = out / "a/t", out / "b/u"
    trace, other = store.create("t"), store.create("u")
    with (
        recording("t", "--store", store.path, "-o", spoiled) as first,
        recording("u", "--store", store.path, "-o", good),
    ):
        bad = run(trace, "bad")
        bad.write_patiently(500)
        bad.flush()
        wait_until(lambda: (spoiled / ".clocks").exists() and list(spoiled.rglob("cpu0")), "the first packet")
        # It would wait for FIFOs that replace its files, and make other files anew.
        first.kill()
        with viewing(out, "--follow", "--json", "--delay", 100) as view:
            view.wait_for(view.events)
            named = HARMS[harm](spoiled, next(spoiled.rglob("cpu0")).parent)
            # Its directory is new, so that the view finds it after what is spoiled.
            app = run(other, "app")
            app.write_patiently(500)
            app.flush()
            view.wait_for(lambda: shows_good(view))
            said = view.finish()
    assert named is None or f"relayctl: {named}" in said
    # Also without --follow.
    with viewing(out, "--json") as view:
        wait_until(lambda: shows_good(view), "what the other recording has")


def test_a_compressed_stream_that_is_spoiled_before_harms_no_other(store, run, out):
    app = run(store.create("t"), "app")
    app.write(100)
    with recording("t", "--store", store.path, "-o", out):
        app.flush()
        wait_until(lambda: list(out.rglob("cpu[0-9]")), "the first packet")  # of the CPU where the program runs
        bad = next(out.rglob("cpu[0-9]")).with_name("cpu900.zst")
        bad.write_bytes(bytes(100))
        with viewing(out, "--follow", "--json", "--delay", 100) as view:
            view.wait_for(lambda: len(view.events()) == 100)
            said = view.finish()
    assert f"relayctl: {bad}" in said
