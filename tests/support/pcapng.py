"""Read pcapng by its specification, draft-ietf-opsawg-pcapng, and refuse what it does not allow.

>>> found = parse((mount.path / "t/merged.raw").read_bytes())
>>> found.packets[0].data
"""

import json
import struct
from dataclasses import dataclass, field

SECTION_HEADER, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, ENHANCED_PACKET = 0x0A0D0D0A, 1, 5, 6
JOURNAL_EXPORT = 9
OPT_COMMENT, IF_NAME, IF_DESCRIPTION, IF_TSRESOL, EPB_QUEUE, ISB_OSDROP = 1, 2, 3, 9, 6, 7


@dataclass
class Interface:
    """description: of if_description; lost: its isb_osdrop so far, from all its statistics in this section"""

    name: str
    description: dict
    lost: int = 0


@dataclass(frozen=True)
class Packet:
    ns: int
    interface: Interface
    data: bytes
    queue: int | None
    comment: str | None


@dataclass(frozen=True)
class Loss:
    since: int
    ns: int
    interface: Interface
    n: int
    cause: str | None


@dataclass
class Capture:
    """notices: the MESSAGE of each entry of the journal; rest: bytes of a last block that is cut off"""

    sections: int = 0
    interfaces: list[Interface] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    rest: bytes = b""


def blocks(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return type and body of each whole block, and what is behind the last one."""
    found, at = [], 0
    while len(data) - at >= 12:
        kind, length = struct.unpack_from("<II", data, at)
        assert length >= 12
        assert length % 4 == 0
        if length > len(data) - at:
            break
        assert struct.unpack_from("<I", data, at + length - 4) == (length,)
        found.append((kind, data[at + 8 : at + length - 4]))
        at += length
    return found, data[at:]


def options(body: bytes, at: int) -> dict[int, bytes]:
    """A list of options, if there is one, ends with opt_endofopt; none of those here may be repeated."""
    found: dict[int, bytes] = {}
    if at == len(body):
        return found
    while True:
        code, length = struct.unpack_from("<HH", body, at)
        value, padded = body[at + 4 : at + 4 + length], -(-length // 4) * 4
        assert len(value) == length
        assert not any(body[at + 4 + length : at + 4 + padded])
        at += 4 + padded
        if code == 0:
            assert (length, at) == (0, len(body))
            return found
        assert code not in found
        found[code] = value


def parse(data: bytes) -> Capture:
    capture, interfaces, times = Capture(), [], {}
    whole, capture.rest = blocks(data)
    for kind, body in whole:
        assert capture.sections or kind == SECTION_HEADER
        if kind == SECTION_HEADER:
            assert struct.unpack_from("<IHHq", body) == (0x1A2B3C4D, 1, 0, -1)
            options(body, 16)
            capture.sections += 1
            interfaces, times = [], {}
        elif kind == INTERFACE_DESCRIPTION:
            assert struct.unpack_from("<HHI", body) == (147, 0, 0)  # LINKTYPE_USER0, reserved, no limit of length
            found = options(body, 8)
            assert found[IF_TSRESOL] == b"\x09"
            interfaces.append(Interface(found[IF_NAME].decode(), json.loads(found[IF_DESCRIPTION])))
            capture.interfaces.append(interfaces[-1])
        elif kind == INTERFACE_STATISTICS:
            number, high, low = struct.unpack_from("<III", body)
            found = options(body, 12)
            (lost,) = struct.unpack("<Q", found[ISB_OSDROP])
            cause = found[OPT_COMMENT].decode() if OPT_COMMENT in found else None
            interface = interfaces[number]
            assert lost >= interface.lost
            if lost > interface.lost:
                capture.losses.append(Loss(times[number], high << 32 | low, interface, lost - interface.lost, cause))
            interface.lost, times[number] = lost, high << 32 | low
        elif kind == ENHANCED_PACKET:
            number, high, low, captured, original = struct.unpack_from("<5I", body)
            assert captured == original
            padded = -(-captured // 4) * 4
            assert not any(body[20 + captured : 20 + padded])
            found = options(body, 20 + padded)
            queue = struct.unpack("<I", found[EPB_QUEUE])[0] if EPB_QUEUE in found else None
            comment = found[OPT_COMMENT].decode() if OPT_COMMENT in found else None
            packet = Packet(high << 32 | low, interfaces[number], body[20 : 20 + captured], queue, comment)
            capture.packets.append(packet)
        else:
            assert kind == JOURNAL_EXPORT, kind
            entry = dict(line.split("=", 1) for line in body.rstrip(b"\0").decode().splitlines())
            assert int(entry["__REALTIME_TIMESTAMP"])
            capture.notices.append(entry["MESSAGE"])
    return capture
