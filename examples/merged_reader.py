"""Print what a file merged.raw has, as JSON: merged_reader.py MNT/TRACE/merged.raw, or .channels/PATH/merged.raw.

The format is pcapng; relayfs(5) says which blocks of it there are. This program needs Python alone. With `-` it reads
its input: tail -c +1 -f MNT/TRACE/merged.raw | python3 merged_reader.py -
"""

import json
import struct
import sys

SECTION, INTERFACE, STATISTICS, PACKET, NOTICE = 0x0A0D0D0A, 1, 5, 6, 9
NUMBERS = {
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "x8": "B", "x16": "H", "x32": "I", "x64": "Q", "f32": "f", "f64": "d", "bytes": "B",
}  # fmt: skip


def blocks(file):
    """Yield the type of each block, and what is between its two lengths."""
    while head := file.read(8):
        kind, length = struct.unpack("<II", head)
        yield kind, file.read(length - 8)[:-4]


def options(data, at):
    """Return the options of a block, which begin at `at`."""
    found = {}
    while at < len(data):
        code, length = struct.unpack_from("<HH", data, at)
        found[code] = data[at + 4 : at + 4 + length]
        at += 4 + (length + 3) // 4 * 4
    return found


def fields_of(declared, data):
    """Return the fields of an event, by their names; they follow one another without padding."""
    at, fields = 0, {}
    for field in declared:
        word, bracket, count = field["type"].removesuffix("]").partition("[")
        if word == "string":
            end = data.index(b"\0", at)
            value, at = data[at:end].decode(errors="backslashreplace"), end + 1
        else:
            n = int(count or 1)
            if word == "bytes" or (bracket and not count):  # their number is before them
                (n,), at = struct.unpack_from("<I", data, at), at + 4
            numbers = struct.Struct(f"<{n}{NUMBERS[word]}")
            value, at = list(numbers.unpack_from(data, at)), at + numbers.size
            if word == "bytes":
                value = bytes(value).hex()
            elif not bracket:
                value = value[0]
        for label, number in field.get("labels", {}).items():
            value = label if number == value else value
        fields[field["name"]] = value
    return fields


def packet(data, interfaces):
    """Return an event or a record."""
    number, high, low, length = struct.unpack_from("<IIII", data)
    found = {"ns": high << 32 | low, **interfaces[number]}
    written, further = data[20 : 20 + length], options(data, 20 + (length + 3) // 4 * 4)
    if "event" in found:
        found["cpu"] = int.from_bytes(further[6], "little")
        found["fields"] = fields_of(found.get("fields", ()), written)
    else:
        found["record"] = written.decode(errors="backslashreplace")
    if further.get(1) == b"late":
        found["late"] = True
    return found


def objects(file):
    """Yield an object for each event, record, loss and notice."""
    interfaces, lost, since = [], {}, {}
    for kind, data in blocks(file):
        if kind == SECTION:
            interfaces, lost = [], {}
        elif kind == INTERFACE:
            interfaces.append(json.loads(options(data, 8)[3]))
        elif kind == PACKET:
            yield packet(data, interfaces)
        elif kind == STATISTICS:
            number, high, low = struct.unpack_from("<III", data)
            further = options(data, 12)
            now, before = int.from_bytes(further[7], "little"), lost.get(number, 0)
            if now > before:
                cause = {"cause": further[1].decode()} if 1 in further else {}
                found = {"ns": high << 32 | low, **interfaces[number], "lost": now - before, "since": since[number]}
                yield found | cause
            lost[number], since[number] = now, high << 32 | low
        elif kind == NOTICE:
            yield {"notice": data.partition(b"MESSAGE=")[2].decode().rstrip("\0\n")}


with sys.stdin.buffer if sys.argv[1] == "-" else open(sys.argv[1], "rb") as input_file:
    for one in objects(input_file):
        print(json.dumps(one), flush=True)
