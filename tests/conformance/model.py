"""One buffer, as the kernel's relay interface has it and as relayfs has it.

The model keeps the sub-buffers' bytes in a dictionary, by number:

     consumer                              produced
        v                                     v
    ... 7: AAAAABBBB    8: CCC    9: (empty)  10: DD

A channel's subbuf_start may reserve bytes at the head of each sub-buffer. If they are at least four, it stores there
the padding of the sub-buffer, once that is finished: as the relay document's examples do. Readers see a header as data;
until it is stored into, it holds what was there a lap before.

A record that is reserved holds up readers until it is committed; if it is discarded, they pass it:

    10: DD[reserved]EE(discarded)FF

All that the two do differently about counting, reading and consuming is in Rules, and nowhere else: the tests hold
Model(KERNEL) against what the kernel was observed to do, and Model(RELAYFS) against the ring. What differs only in how
readers see it stands in docs/conformance.md.
"""

from dataclasses import dataclass, field, replace

POLLIN = 1
POLLRDNORM = 64
READABLE = POLLIN | POLLRDNORM


@dataclass(frozen=True)
class Rules:
    """What the kernel does (True) and relayfs does not (False), or the other way round."""

    # A switch that finds the buffer full counts as a loss: each flush of a full buffer, each lap in overwrite mode.
    # relayfs counts records, and only those that are lost.
    count_full_switches: bool
    # `consumed` leaves the reader's offset within the sub-buffer as it was: bytes of the next one are skipped.
    # relayfs goes to the start of the next sub-buffer.
    consumed_keeps_offset: bool
    # `consumed` counts from where readers left, even if that has been overwritten; relayfs from the oldest that is
    # left.
    consumed_counts_overwritten: bool
    # In overwrite mode, or with callbacks, a read of many bytes gives no part of a sub-buffer besides whole ones: what
    # it leaves could be overwritten in the middle of a record. The kernel fills the reader's memory.
    read_whole_pieces: bool


KERNEL = Rules(
    count_full_switches=True,
    consumed_keeps_offset=True,
    consumed_counts_overwritten=True,
    read_whole_pieces=False,
)
RELAYFS = Rules(
    count_full_switches=False,
    consumed_keeps_offset=False,
    consumed_counts_overwritten=False,
    read_whole_pieces=True,
)

# A read of fewer bytes than this may end anywhere.
WHOLE_PIECES_BYTES = 4096
PADDING_BYTES = 4


@dataclass(frozen=True)
class Geometry:
    """How a buffer is made.

    subbuf_size, n_subbufs, overwrite: as the channel is made
    header: bytes that subbuf_start reserves at the head of each sub-buffer, which holds no more than there is
    callbacks: there is a subbuf_start, with or without a header
    visible: readers see a reserved record at once
    """

    subbuf_size: int
    n_subbufs: int
    overwrite: bool
    header: int = 0
    callbacks: bool = False
    visible: bool = False

    @property
    def mode(self) -> str:
        """The word for it."""
        if self.callbacks:
            return "callback"
        return "overwrite" if self.overwrite else "no-overwrite"


@dataclass(frozen=True)
class Counters:
    """What can be seen of a buffer besides its bytes."""

    produced: int
    consumed: int
    lost_full: int
    lost_too_large: int
    padding: int  # bytes, of all finished sub-buffers
    poll: int


@dataclass(frozen=True)
class Unseen:
    """What no reader will see: overwritten by now, or discarded and passed."""

    overwritten: int  # records
    overwritten_bytes: int
    discarded: int  # records
    discarded_bytes: int


@dataclass(eq=False)
class Slot:
    """A record that was reserved and is not committed."""

    offset: int
    data: bytes  # what it is to hold
    record: int  # how many were written before it
    discarded: bool = False


@dataclass
class Subbuf:
    """One sub-buffer, and what had been written before it began."""

    start_records: int
    start_bytes: int
    data: bytearray = field(default_factory=bytearray)
    slots: list[Slot] = field(default_factory=list)

    def next_slot(self, offset: int) -> Slot | None:
        """Return the first one there or behind."""
        return next((slot for slot in self.slots if slot.offset >= offset), None)

    @property
    def held(self) -> bool:
        """A writer is not done with its memory."""
        return any(not slot.discarded for slot in self.slots)


@dataclass
class Consumer:
    """Where readers are. A sub-buffer of which they have seen a part counts as records when they have seen all."""

    number: int = 0
    offset: int = 0
    records: int = 0
    n_bytes: int = 0
    overwritten: int = 0
    overwritten_bytes: int = 0
    discarded: int = 0
    discarded_bytes: int = 0


class Model:
    """One buffer.

    geometry: how it is made
    rules: whose buffer it is
    """

    def __init__(self, geometry: Geometry, rules: Rules = RELAYFS) -> None:
        self.geometry = geometry
        self.subbuf_size = geometry.subbuf_size
        self.n_subbufs = geometry.n_subbufs
        self.rules = rules
        self._header = min(geometry.header, geometry.subbuf_size)
        self._headers = [bytes(self._header)] * geometry.n_subbufs
        self.reset()

    def reset(self) -> None:
        """Bring it to its initial state."""
        self.produced = self.records = self.n_bytes = 0
        self.lost_full = self.lost_too_large = self.padding = 0
        self.subbufs = {0: Subbuf(0, 0)}
        self.consumer = Consumer()
        self._reserved: list[tuple[Subbuf, Slot]] = []
        self._begun = True
        self._reserve_header()

    @property
    def n_reserved(self) -> int:
        """How many records wait to be committed or discarded."""
        return len(self._reserved)

    @property
    def current(self) -> Subbuf:
        """The sub-buffer that is being written."""
        return self.subbufs[self.produced]

    def write(self, data: bytes) -> bool:
        """Take a record, or count it as lost."""
        if not data:
            return True
        if not self._make_room(len(data)):
            return False
        self.current.data += data
        self.records += 1
        self.n_bytes += len(data)
        return True

    def reserve(self, data: bytes) -> bool:
        """Take a record that is committed or discarded later: the last of those that wait for it."""
        if not self.write(data):
            return False
        if data:
            slot = Slot(len(self.current.data) - len(data), data, self.records - 1)
            self._reserved.append((self.current, slot))
            if not self.geometry.visible:
                self.current.slots.append(slot)
        return True

    def commit(self, number: int) -> None:
        """Let readers have a record."""
        subbuf, slot = self._reserved.pop(number)
        if slot in subbuf.slots:
            subbuf.slots.remove(slot)

    def discard(self, number: int) -> None:
        """Let readers pass a record."""
        _, slot = self._reserved.pop(number)
        slot.discarded = True

    def flush(self) -> None:
        """Finish the current sub-buffer; or begin it, if the buffer was full and has room again."""
        if not self._begun or self._enter_next():
            self._begin()

    def consumed(self, n: int) -> None:
        """Count the next n sub-buffers as consumed."""
        if not 1 <= n <= self.n_subbufs:
            return
        if not self.rules.consumed_counts_overwritten:
            self.consumer = self._caught_up()
        for _ in range(n):
            if self.consumer.number == self.produced or not self._pass_subbuf():
                return

    def _pass_subbuf(self) -> bool:
        """Leave a sub-buffer unread, unless a record in it is still to come."""
        consumer = self.consumer
        unread = [slot for slot in self.subbufs[consumer.number].slots if slot.offset >= consumer.offset]
        if not all(slot.discarded for slot in unread):
            return False
        for slot in unread:
            self._pass(slot)
        self._go_to(consumer, consumer.number + 1, self.rules.consumed_keeps_offset)
        return True

    def read(self, max_bytes: int) -> bytes:
        """Consume bytes."""
        consumer = self.consumer = self._caught_up()
        if consumer.offset > len(self.subbufs[consumer.number].data):
            # Kept from a sub-buffer that held more: nothing to read up to there, or, in a single sub-buffer, all again.
            if self.n_subbufs > 1:
                return b""
            consumer.offset = 0
        got = bytearray()
        while True:
            subbuf = self.subbufs[consumer.number]
            slot = subbuf.next_slot(consumer.offset)
            rest = subbuf.data[consumer.offset : slot.offset if slot else None]
            room = max_bytes - len(got)
            if rest:
                if room == 0 or (len(rest) > room and got and self._reads_whole_pieces(max_bytes)):
                    return bytes(got)
                got += rest[:room]
                self._go_on(len(rest[:room]))
                if len(rest) > room:
                    return bytes(got)
                consumer.records = slot.record if slot else self._records_behind(consumer.number)
            elif slot and slot.discarded:
                self._pass(slot)
            elif slot or consumer.number == self.produced:
                return bytes(got)
            else:
                self._go_to(consumer, consumer.number + 1)

    def counters(self) -> Counters:
        """Count."""
        return Counters(
            produced=self.produced,
            consumed=self.consumer.number,
            lost_full=self.lost_full,
            lost_too_large=self.lost_too_large,
            padding=self.padding,
            poll=READABLE if self.produced != self.consumer.number else 0,
        )

    def finished(self) -> range:
        """Return the numbers of the finished sub-buffers whose memory is not used again yet."""
        return range(max(0, self.produced - self.n_subbufs + self._begun), self.produced)

    def unseen(self) -> Unseen:
        """Count what readers have lost by now, whether or not they have been back since."""
        consumer = self._caught_up()
        return Unseen(
            consumer.overwritten, consumer.overwritten_bytes, self.consumer.discarded, self.consumer.discarded_bytes
        )

    def _make_room(self, length: int) -> bool:
        """Begin sub-buffers until there is room; or count a record as lost."""
        if length > self.subbuf_size:
            self.lost_too_large += 1
            return False
        entered = self._fits(length) or self._enter_next()
        if not entered or not self._begin():
            self.lost_full += not self.rules.count_full_switches
            return False
        if not self._fits(length):  # behind the header
            self.lost_too_large += 1
            return False
        return True

    def _fits(self, length: int) -> bool:
        return len(self.current.data) + length <= self.subbuf_size

    def _enter_next(self) -> bool:
        """Finish the current sub-buffer, unless a writer holds the memory of the next one."""
        if self.geometry.overwrite and not self.geometry.callbacks and self._held(self.produced + 1):
            return False
        self.padding += self.subbuf_size - len(self.current.data)
        self.produced += 1
        self.subbufs[self.produced] = Subbuf(self.records, self.n_bytes)
        overwritten = self.subbufs.get(self.produced - self.n_subbufs - 1)
        if overwritten is not None:
            overwritten.data = bytearray()
        self._begun = False
        return True

    def _held(self, number: int) -> bool:
        """Is a writer not done with the memory of a sub-buffer? No other has got past it, then."""
        before = self.subbufs.get(number - self.n_subbufs)
        return before is not None and before.held

    def _begin(self) -> bool:
        """Begin the sub-buffer that was entered, if readers have left its memory."""
        if not self._begun and not (self.geometry.callbacks and self._held(self.produced)):
            self._store_padding()
            full = self.produced - self.consumer.number >= self.n_subbufs
            self.lost_full += full and self.rules.count_full_switches
            self._begun = self.geometry.overwrite or not full
            if self._begun:
                self._reserve_header()
        return self._begun

    def _store_padding(self) -> None:
        """Do as subbuf_start does first: it knows the sub-buffer that was finished."""
        if self._header < PADDING_BYTES:
            return
        finished = self.subbufs[self.produced - 1].data
        finished[:PADDING_BYTES] = (self.subbuf_size - len(finished)).to_bytes(PADDING_BYTES, "little")
        self._headers[(self.produced - 1) % self.n_subbufs] = bytes(finished[: self._header])

    def _reserve_header(self) -> None:
        header = self._headers[self.produced % self.n_subbufs]
        self.current.data += header
        self.n_bytes += len(header)

    def _caught_up(self) -> Consumer:
        consumer = replace(self.consumer)
        # A sub-buffer that is not begun has overwritten nothing yet.
        oldest = self.produced - self.n_subbufs + self._begun
        if consumer.number < oldest:
            records, n_bytes = consumer.records, consumer.n_bytes
            self._go_to(consumer, oldest)
            consumer.overwritten += consumer.records - records
            consumer.overwritten_bytes += consumer.n_bytes - n_bytes
        return consumer

    def _records_behind(self, number: int) -> int:
        following = self.subbufs.get(number + 1)
        return following.start_records if following else self.records

    def _go_on(self, n_bytes: int) -> None:
        self.consumer.offset += n_bytes
        self.consumer.n_bytes += n_bytes

    def _pass(self, slot: Slot) -> None:
        self._go_on(len(slot.data))
        self.consumer.records = slot.record + 1
        self.consumer.discarded += 1
        self.consumer.discarded_bytes += len(slot.data)

    def _go_to(self, consumer: Consumer, number: int, keep_offset: bool = False) -> None:
        consumer.number = number
        if not keep_offset:
            consumer.offset = 0
        consumer.records = self.subbufs[number].start_records
        consumer.n_bytes = self.subbufs[number].start_bytes

    def _reads_whole_pieces(self, max_bytes: int) -> bool:
        may_overwrite = self.geometry.overwrite or self.geometry.callbacks
        return self.rules.read_whole_pieces and may_overwrite and max_bytes >= WHOLE_PIECES_BYTES
