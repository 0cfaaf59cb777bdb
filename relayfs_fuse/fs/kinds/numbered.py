"""The memory of a note KEPT.

Bytes have numbers, in the order in which they came. Each is at its number modulo the length of the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAST_BYTES = 4096


class Added(NamedTuple):
    """Bytes that are to be stored.

    copy: stores those of them that have so many behind them
    """

    length: int
    copy: Callable[[memoryview, int], None]


def all_of(data: bytes) -> Added:
    """Return all bytes of `data`."""

    def copy(memory: memoryview, behind: int) -> None:
        end = len(data) - behind
        memory[:] = data[end - len(memory) : end]

    return Added(len(data), copy)


def room_for(length: int) -> int:
    """Return the length of a memory in which so many bytes have room."""
    return max(_LEAST_BYTES, 1 << (length - 1).bit_length())


def store(memory: memoryview, begin: int, added: Added) -> None:
    """Store bytes that have the numbers from `begin` on."""
    behind = added.length
    for piece in _pieces(memory, begin, added.length):
        behind -= len(piece)
        added.copy(piece, behind)


def load(memory: memoryview, begin: int, length: int) -> bytes:
    """Return the bytes that have the numbers from `begin` on."""
    return b"".join(_pieces(memory, begin, length))


def _pieces(memory: memoryview, begin: int, length: int) -> list[memoryview]:
    at = begin % len(memory) if length else 0
    pieces = memory[at : at + length], memory[: max(0, at + length - len(memory))]
    return [piece for piece in pieces if piece]
