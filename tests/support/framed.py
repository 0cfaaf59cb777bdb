"""Records in the files of rings, where they follow their lengths."""

import struct


def parsed(data: bytes, head: str) -> list[tuple]:
    """What is before each record, and the record, by a reader of nothing but the manual."""
    found = []
    while data:
        *before, length = struct.unpack_from(head, data)
        at = struct.calcsize(head)
        found.append((*before, data[at : at + length]))
        assert len(data) >= at + length
        data = data[at + length :]
    return found
