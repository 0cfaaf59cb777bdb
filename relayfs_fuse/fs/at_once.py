"""Python declarations of what the tap answers at once, without a turn of the server's loop (native/fuse/at_once.h)."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import struct
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.errors import failure
from relayfs_fuse.fs.tap import library as _lib
from relayfs_fuse.fs.tap import session_fd
from relayfs_fuse.native import WAIT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.tap import Source
    from relayfs_fuse.native import WaitSet, WakeWord

_S_NS = 1_000_000_000
# The longest that the tap waits.
_LONGEST_S = 3600


# native/fuse/lookups.h, lane.h, polls.h
class _Known(ctypes.Structure):
    _fields_ = (
        ("parent", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
        ("mem_inode", ctypes.c_uint64),
        ("written", ctypes.c_uint64),
        ("mtime_ns", ctypes.c_int64),
        ("show", ctypes.c_void_p),
        ("block_size", ctypes.c_uint32),
        ("counts_holes", ctypes.c_uint32),
    )


class _Lane(ctypes.Structure):
    _fields_ = (
        ("fh", ctypes.c_uint64),
        ("buf", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
        ("most", ctypes.c_uint64),
        ("is_told", ctypes.POINTER(ctypes.c_uint32)),
        ("noted", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("kept_room", ctypes.c_uint64),
        ("kept_most", ctypes.c_uint64),
        ("large", ctypes.c_uint64),
        ("kept_of_large", ctypes.c_uint64),
        ("taking", ctypes.c_void_p),
        ("area", ctypes.c_void_p),
        ("ring", ctypes.c_void_p),
        ("overwrite", ctypes.c_uint32),
        ("is_off", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
    )


class _Polled(ctypes.Structure):
    _fields_ = (
        ("fh", ctypes.c_uint64),
        ("kernel_handle", ctypes.c_uint64),
        ("buf", ctypes.c_void_p),
        ("progress", ctypes.c_uint64),
        ("reported", ctypes.c_uint32),
        ("is_notified", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("next_of_slot", ctypes.c_void_p),
    )


_Lookup = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint32)
# struct fuse_entry_out (linux/fuse.h): number, generation, seconds that the name and the attributes may be used, and
# nanoseconds; number, size, blocks, times; nanoseconds of times, mode, links, owner, group, device, block size, flags.
_ENTRY = struct.Struct("=4Q2I6Q10I")
_entry = ctypes.create_string_buffer(_ENTRY.size)

_lib.relay_tap_learn.restype = ctypes.c_void_p
_lib.relay_tap_learn.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
_lib.relay_tap_lookups.restype = ctypes.c_uint64
_lib.relay_tap_lookups.argtypes = (ctypes.c_void_p,)
_lib.relay_tap_lookups_taken.restype = None
_lib.relay_tap_lookups_taken.argtypes = (ctypes.c_void_p,)
_lib.relay_tap_forget.restype = None
_lib.relay_tap_forget.argtypes = (ctypes.c_void_p,)
_lib.relay_tap_answer_lookups.restype = None
_lib.relay_tap_answer_lookups.argtypes = (_Lookup, ctypes.c_void_p)
_lib.relay_tap_lane_open.restype = None
_lib.relay_tap_lane_open.argtypes = (ctypes.POINTER(_Lane),)
_lib.relay_tap_lane_close.restype = None
_lib.relay_tap_lane_close.argtypes = (ctypes.c_uint64,)
_Slot = ctypes.POINTER(ctypes.c_void_p)
_lib.relay_tap_polled_open.restype = None
_lib.relay_tap_polled_open.argtypes = (ctypes.POINTER(_Polled), _Slot)
_lib.relay_tap_polled_close.restype = None
_lib.relay_tap_polled_close.argtypes = (ctypes.POINTER(_Polled), _Slot)
_lib.relay_tap_polled_notify.restype = None
_lib.relay_tap_polled_notify.argtypes = (ctypes.POINTER(_Polled),)
_lib.relay_tap_sleep.argtypes = (ctypes.c_void_p, _Slot, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int)
_lib.relay_tap_answers.restype = ctypes.c_uint64
_lib.relay_tap_answers.argtypes = ()
_lib.relay_tap_wait_for.restype = None
_lib.relay_tap_wait_for.argtypes = (ctypes.c_int, ctypes.c_int)
_lib.relay_tap_wait.argtypes = (ctypes.c_int,)
_lib.relay_tap_turn.restype = None
_lib.relay_tap_turn.argtypes = ()

# Functions that the tap calls.
_kept: list[object] = []

# native/fuse/lookups.h
HANDLER, ANSWERED, LEARNT = range(3)


class Flag:
    """A word that other C code looks at, too."""

    def __init__(self) -> None:
        self.word = ctypes.c_uint32()

    def set(self, *, on: bool) -> None:
        """Set it to 1 or 0."""
        self.word.value = on


class Known(NamedTuple):
    """What the tap has to know of a relay file that nobody has open.

    parent, inode: the numbers of its directory and of itself
    mem_file, mem_inode: its mem file
    written: as long as this is what was written, its data was changed last at `mtime_ns`
    show: the address of the function that says what a listing shows of the mem file
    counts_holes: whether discarded records are part of st_size
    """

    parent: int
    name: str
    inode: int
    mem_file: str
    mem_inode: int
    written: int
    mtime_ns: int
    show: int
    block_size: int
    counts_holes: bool


class KnownFile:
    """A relay file of which the tap answers lookups until forget(); OSError: ENOMEM."""

    __slots__ = ("_file",)

    def __init__(self, known: Known) -> None:
        name, mem_file = os.fsencode(known.name), os.fsencode(known.mem_file)
        numbers = known.parent, known.inode, known.mem_inode, known.written, known.mtime_ns, known.show
        words = _Known(*numbers, known.block_size, known.counts_holes)
        self._file = _lib.relay_tap_learn(name, mem_file, ctypes.byref(words))
        if self._file is None:
            raise failure(errno.ENOMEM)

    @property
    def lookups(self) -> int:
        """How many lookups were answered since take_lookups()."""
        return int(_lib.relay_tap_lookups(self._file))

    def take_lookups(self) -> int:
        """Return `lookups`, and count from 0 again."""
        lookups = self.lookups
        _lib.relay_tap_lookups_taken(self._file)
        return lookups

    def forget(self) -> None:
        """Answer no more lookups; nothing else is called after this."""
        _lib.relay_tap_forget(self._file)


class Entry(NamedTuple):
    """What the kernel is to know of a name, which it looks up again each time.

    attributes_ns: how long it may use what follows the name without asking
    """

    inode: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    block_size: int
    mtime_ns: int
    ctime_ns: int
    attributes_ns: int


def wait_for(loop: int) -> None:
    """Have wait() wait from now on; loop: a descriptor that is readable when the server's loop has something to do."""
    _lib.relay_tap_wait_for(session_fd(), loop)


def wait(seconds: float) -> bool:
    """Answer requests for so long, or until the loop has something to do; False: the loop has to wait by itself."""
    return bool(_lib.relay_tap_wait(math.ceil(1000 * min(max(0.0, seconds), _LONGEST_S))))


def answer_lookups(answer: Callable[[int, bytes, int], Entry | int], has_tasks: Callable[[], bool]) -> None:
    """Have the tap answer lookups by itself.

    answer: returns the answer to the lookup of a name in the directory with a number, by a thread; HANDLER: the handler
        of the request is to answer it; LEARNT: the tap knows the file now
    has_tasks: whether a task of the server's loop is runnable, which `answer` may have made so
    """

    def lookup(parent: int, name: bytes, pid: int) -> int:
        entry = answer(parent, name, pid)
        if has_tasks():
            _lib.relay_tap_turn()
        if isinstance(entry, int):
            return entry
        modified_s, modified_ns = divmod(entry.mtime_ns, _S_NS)
        changed_s, changed_ns = divmod(entry.ctime_ns, _S_NS)
        _ENTRY.pack_into(
            _entry, 0, entry.inode, 0, 0, 0, 0, entry.attributes_ns, entry.inode, entry.size, (entry.size + 511) // 512,
            modified_s, modified_s, changed_s, modified_ns, modified_ns, changed_ns, entry.mode, entry.nlink, entry.uid,
            entry.gid, 0, entry.block_size, 0,
        )  # fmt: skip
        return ANSWERED

    function = _Lookup(lookup)
    _kept.append(function)
    _lib.relay_tap_answer_lookups(function, _entry)


def answers() -> int:
    """Return how many requests were answered without a handler."""
    return int(_lib.relay_tap_answers())


class Lane:
    """The usual reads of an open relay file, which the tap answers without a handler (native/fuse/lane.h).

    close() must come before the buffer is unmapped.

    handle: the number of the open file
    source: the buffer
    most: the most bytes of one answer
    is_told: whether handlers are to be called for all reads of the buffer
    """

    def __init__(self, handle: int, source: Source, most: int, is_told: Flag) -> None:
        address, number, overwrite = source
        word = ctypes.pointer(is_told.word)
        self._lane = _Lane(fh=handle, buf=address, number=number, most=most, is_told=word, overwrite=overwrite)
        _lib.relay_tap_lane_open(ctypes.byref(self._lane))

    def close(self) -> None:
        """Have handlers called for all reads of the file."""
        _lib.relay_tap_lane_close(self._lane.fh)

    def stop(self) -> None:
        """Have a handler called for the next read, until go_on()."""
        self._lane.is_off = 1

    def go_on(self) -> None:
        """Take stop() back."""
        self._lane.is_off = 0

    def set_place(self, noted: memoryview, kept: memoryview, kept_most: int, large: int, kept_of_large: int) -> None:
        """Say where the reader of a file with offsets is, and what is kept of the bytes that it gets.

        noted: the words of a struct relay_lane_noted
        kept: the memory for what is kept
        kept_most: how many bytes are kept
        large, kept_of_large: of a read of at least `large` bytes only so many are kept, unless none were kept before
        """
        lane = self._lane
        lane.noted = _address_of(noted)
        lane.kept, lane.kept_room = _address_of(kept) if kept else None, len(kept)
        lane.kept_most, lane.large, lane.kept_of_large = kept_most, large, kept_of_large

    def set_records(self, noted: memoryview, taking: memoryview, area: memoryview, ring: int) -> None:
        """Have it give whole records.

        noted: the words of a struct relay_lane_noted, of which only `end` is used: how many bytes were given
        taking: the words of a struct relay_lane_taking
        area: the memory for the records that a read gets, of at least `most` bytes
        ring: the address of the ring; 0: the buffer has the records
        """
        lane = self._lane
        lane.noted, lane.taking, lane.area = _address_of(noted), _address_of(taking), _address_of(area)
        lane.ring = ring or None


def _address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class PolledSlots:
    """Lists of polled files, one for each slot of a native.WaitSet."""

    def __init__(self) -> None:
        self.words = (ctypes.c_void_p * WAIT_MAX)()

    def sleep(self, wait_set: WaitSet, word: WakeWord, value: int, timeout_ms: int) -> None:
        """Sleep until a buffer of a wait set wakes its readers, or as wait_any() for other reasons; OSError.

        Then the kernel is notified for the polled files of these buffers. Files may be opened and closed meanwhile.
        """
        result = int(_lib.relay_tap_sleep(wait_set.address, self.words, word.address, value, timeout_ms))
        if result < 0:
            raise failure(-result)


class Polled:
    """An open file that a program polls (native/fuse/polls.h); close() must come before the buffer is unmapped.

    handle: the number of the open file
    kernel_handle: by which the kernel is notified
    buffer: the address of a relay buffer whose readiness the tap tells the kernel by itself; None: a handler does
    slots, slot: where the file is notified of wake-ups by the thread that sleeps; None: it is not
    """

    def __init__(
        self, handle: int, kernel_handle: int, buffer: int | None, slots: PolledSlots | None, slot: int
    ) -> None:
        self._polled = _Polled(fh=handle, kernel_handle=kernel_handle, buf=buffer)
        self._slots = slots  # the memory that _slot points to
        self._slot = slots and ctypes.cast(ctypes.byref(slots.words, slot * ctypes.sizeof(ctypes.c_void_p)), _Slot)
        _lib.relay_tap_polled_open(ctypes.byref(self._polled), self._slot)

    def close(self) -> None:
        """Have the file not be polled any more."""
        _lib.relay_tap_polled_close(ctypes.byref(self._polled), self._slot)

    @property
    def reported(self) -> int:
        """The events that the kernel was told last."""
        return int(self._polled.reported)

    def begin(self) -> None:
        """Note that the kernel asks, before the buffer is looked at to answer it."""
        self._polled.is_notified = 0

    def answer(self, events: int, progress: int) -> None:
        """Note what the kernel is told."""
        self._polled.reported, self._polled.progress = events, progress

    def announce(self, events: int, progress: int) -> None:
        """Notify the kernel of new events or, by a changed `progress`, of more data, unless it is going to ask anyway.

        An edge-triggered epoll waits for new data even if the descriptor is readable already.
        """
        polled = self._polled
        if events & ~polled.reported or (progress != polled.progress and events & select.POLLIN):
            _lib.relay_tap_polled_notify(ctypes.byref(polled))
