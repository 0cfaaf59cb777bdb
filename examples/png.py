"""Save the pictures that come from mandelbrot.c as DIR/0.png and so on: mandelbrot 6 3 | python3 png.py DIR."""

import logging
import struct
import sys
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from relayfs_fuse.trace import Span, TraceHandler, counter, span

picture = Span("png", "picture", {"number": "u32"})
bytes_written = counter("png", "bytes_written")
# Log messages become events, too: python:log.
logging.getLogger().addHandler(TraceHandler())
logging.getLogger().setLevel(logging.INFO)


def chunk(kind: bytes, data: bytes) -> bytes:
    """Make a part of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def save(path: Path, number: int, width: int, height: int, pixels: bytes) -> None:
    """Write a picture of 8-bit greys to a file."""
    with picture(number):
        with span("filter"):
            # In front of each row stands how it is filtered: 0, not at all.
            rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, len(pixels), width))
        with span("compress"):
            compressed = zlib.compress(rows, 9)
        with span("write"):
            header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
            path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", compressed) + chunk(b"IEND", b""))
        bytes_written(len(compressed))
        logging.info("%s: %d pixels in %d bytes", path.name, len(pixels), len(compressed))


def main() -> None:
    """Read pictures while two threads save others."""
    saved: list[Future[None]] = []
    with ThreadPoolExecutor(2) as threads:
        while header := sys.stdin.buffer.readline():
            number = len(saved)
            with span("read"):
                width, height = map(int, header.split()[1:3])
                pixels = sys.stdin.buffer.read(width * height)
            saved.append(threads.submit(save, Path(sys.argv[1], f"{number}.png"), number, width, height, pixels))
    for each in saved:
        each.result()


main()
