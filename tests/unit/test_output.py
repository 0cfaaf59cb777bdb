"""The directories of a recording, and what recorders that go on with it count in them."""

from contextlib import closing
from pathlib import Path

from relayfs_fuse.reading.packet import HEAD_BYTES, MAGIC, Head, Packet, walk
from relayfs_fuse.record.output import DirectoryOutput
from relayfs_fuse.tracefiles import ctf

NAME = "app-42"
EVENTS = b"""\
/* relayfs trace=t id=3 process=app pid=42 uid=0 buffers=perprocess clock=mono tsc=0 mono=1 real=1700000000000000000 \
boot=11111111-2222-3333-4444-555555555555 made_mono=1 */
"""


class AtStart:
    ticks, mono_ns = 0, 1


def packet(cpu: int, number: int, lost: int) -> Packet:
    time = 1000 + number
    return Packet(Head(MAGIC, 0, cpu, 8 * HEAD_BYTES, lost, number, time, time, 8 * HEAD_BYTES, cpu, 42), [])


def record(out: Path, *directories: list[Packet], lost: dict[int, int] | None = None) -> None:
    """Append packets to the latest directory and to those that follow it, as a recorder of its own.

    lost: by CPU, at the end of the process
    """
    with closing(DirectoryOutput(str(out), "this", rotates=True)) as output:
        process = output.process(NAME, ctf.Origin.of(EVENTS))
        process.set_metadata(ctf.metadata(EVENTS, AtStart()))
        for n, packets in enumerate(directories):
            if n:
                output.rotate()
            for one in packets:
                assert process.append(one.head.cpu_id, [one], lambda: True)
        process.close(lost or {})


def counted(path: Path) -> int:
    with path.open("rb") as file:
        return [head.events_discarded for _, head in walk(file.fileno(), path.stat().st_size)][-1]


def test_losses_count_once_of_a_cpu_that_had_no_packets_in_the_directory_before(tmp_path: Path) -> None:
    out = tmp_path / "out"
    record(out, [packet(0, 0, 5), packet(1, 0, 10)], [packet(0, 1, 6)])
    record(out, [], [packet(0, 2, 7), packet(1, 1, 12)])
    found = {str(path.relative_to(out)): counted(path) for path in out.rglob("cpu[01]")}
    assert found == {
        f"0001/{NAME}/cpu0": 5, f"0001/{NAME}/cpu1": 10, f"0002/{NAME}/cpu0": 1, f"0003/{NAME}/cpu0": 1,
        f"0003/{NAME}/cpu1": 2,
    }  # fmt: skip


def test_what_was_lost_after_the_last_packet_is_told_also_after_a_rotation(tmp_path: Path) -> None:
    out = tmp_path / "out"
    record(out, [packet(0, 0, 5), packet(1, 0, 10)], [packet(1, 1, 10)], [], lost={0: 8, 1: 10})
    record(out, [packet(0, 1, 9), packet(1, 2, 11)])
    found = {str(path.relative_to(out)): counted(path) for path in out.rglob("cpu*")}
    assert found == {
        f"0001/{NAME}/cpu0": 5, f"0001/{NAME}/cpu1": 10, f"0002/{NAME}/cpu1": 0, f"0003/{NAME}/cpu0": 3,
        f"0003/{NAME}/cpu0_1": 4, f"0003/{NAME}/cpu1": 1,
    }  # fmt: skip
