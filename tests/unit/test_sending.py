"""What a forwarder sends of a file."""

import asyncio
from typing import Any, cast

from relayfs_fuse.forwarding.names import Place
from relayfs_fuse.forwarding.sending import File
from relayfs_fuse.reading.packet import Head


def test_of_a_file_that_is_cut_while_it_is_sent_nothing_is_sent_again_and_again():
    class Cut:
        def read(self, length: int, at: int) -> bytes:
            assert (length, at) == (4096, 0)
            return b""

    file = File(cast(Any, None), Place("host", "recording", "app-1/cpu0"))
    head = Head(0xC1FC1FC1, 0, 5, 8 * 4096, 0, 0, 2, 1, 8 * 4096, 5, 42)
    asyncio.run(file.send_packet(cast(Any, Cut()), 0, head, 0, is_last=False))
    assert (file.offset, file.unit, file.is_complete) == (0, 0, False)
