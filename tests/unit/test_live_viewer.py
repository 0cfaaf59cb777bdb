"""What waits for a viewer of LTTng's live protocol is counted until the viewer has got it."""

import struct
from types import SimpleNamespace

from relayfs_fuse.lttng_live.rounds import Round, ShownProcess
from relayfs_fuse.lttng_live.viewer import Viewer
from relayfs_fuse.native.merge import StreamPacket
from relayfs_fuse.tracefiles.recorded import Clock

UUID = "11111111-2222-3333-4444-555555555555"
METADATA, STREAM = 1, 2


def round_of(n: int, *packets: StreamPacket, metadata: bytes = b"") -> Round:
    origin = SimpleNamespace(uuid=UUID, pid=7, buffers="perprocess")
    process = ShownProcess("app-7", origin, Clock(10**9, 0, 0))
    return Round(n, list(packets), {1: process}, {1: metadata} if metadata else {})


def packet_of(events: bytes, lost: int = 0) -> StreamPacket:
    return StreamPacket(1, 0, 1000, 1000, lost, 1, events)


def test_all_that_waits_is_counted_until_it_is_taken():
    viewer = Viewer()
    viewer.add(round_of(2000, packet_of(b"x" * 5000), metadata=b"m" * 3000))
    assert viewer.queued > 5000 + 3000 + 2 * 4000
    viewer.new_streams()
    assert 8000 < viewer.queued < 9000
    viewer.metadata(METADATA)
    assert 5000 < viewer.queued < 6000
    offset, bits = struct.unpack_from(">QQ", viewer.next_index(STREAM))
    assert 5000 < viewer.queued < 6000
    viewer.packet(STREAM, offset, 100)
    assert 5000 < viewer.queued < 6000
    assert viewer.packet(STREAM, offset + 100, bits // 8 - 100).endswith(b"x" * 4900)
    assert viewer.queued == 0


def test_a_packet_that_is_not_taken_is_forgotten_with_the_next():
    viewer = Viewer()
    viewer.add(round_of(2000, packet_of(b"x" * 5000), packet_of(b"y"), metadata=b"m"))
    viewer.new_streams()
    viewer.metadata(METADATA)
    viewer.next_index(STREAM)
    viewer.next_index(STREAM)
    assert 0 < viewer.queued < 200


def test_metadata_that_is_never_taken_is_forgotten_with_the_process():
    viewer = Viewer()
    viewer.add(round_of(2000, packet_of(b"x"), metadata=b"m" * 3000))
    viewer.new_streams()
    viewer.end()
    while viewer.queued > 3000:
        viewer.next_index(STREAM)
    viewer.next_index(STREAM)
    assert (viewer.queued, viewer.is_over) == (0, True)


def test_a_program_may_lose_any_number_any_number_of_times():
    viewer = Viewer()
    viewer.add(round_of(2000, packet_of(b"x"), metadata=b"m"))
    for _ in range(3):
        viewer.add(round_of(2000, packet_of(b"x", lost=(1 << 63) - 1)))
    indexes = [struct.unpack(">QQQQQQQII", viewer.next_index(STREAM)) for _ in range(7)]
    assert [one[5] for one in indexes][-1] == (1 << 64) - 1
