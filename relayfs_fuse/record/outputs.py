"""What the recorder writes to: a directory, see output.py, or an archive, see tar.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.reading.packet import Head, Packet
    from relayfs_fuse.tracefiles.ctf import Origin


class ProcessOutput(Protocol):
    """The recording of one process.

    OutputFullError: the output cannot be written now. Call the method again with the same data, except for packets up
    to the one that last() returns.
    """

    def metadata(self) -> bytes:
        """Return the metadata written so far."""

    def set_metadata(self, data: bytes) -> None:
        """Replace the metadata; call it before packets that need it."""

    def threads(self) -> bytes:
        """Return the names of threads written so far, as tracefiles/thread_names.py packs them."""

    def set_threads(self, data: bytes) -> None:
        """Replace the names of threads. While the output cannot be written, they wait."""

    def last(self, cpu: int) -> Head | None:
        """Return the header of the last packet of a stream, with corrected counts; None: there is none."""

    def has_events(self) -> bool:
        """Return whether the present directory of the process has streams besides that of states."""

    def n_with_room(self, cpu: int, packets: Sequence[Packet]) -> int:
        """Return how many packets, from the first on, can be appended now. DamagedError: the first one never can."""

    def append(
        self, cpu: int, packets: Sequence[Packet], is_valid: Callable[[], bool], *, is_urgent: bool = False
    ) -> bool:
        """Append packets to a stream; False: is_valid() returned False after they were copied, so none was appended.

        is_urgent: the buffer is filling up
        """

    def quarantine(self, name: str, data: bytes) -> None:
        """Append to a file of this process in .damaged."""

    def close(self, discarded: dict[int, int]) -> None:
        """End the streams.

        discarded: by CPU, the number of events that each has lost in total; empty: the recording may be continued
        """


class Output(Protocol):
    """The output of a whole recording."""

    def process(self, name: str, origin: Origin) -> ProcessOutput:
        """Begin or continue the recording of a process."""

    def quarantine(self, process: str, name: str, data: bytes) -> None:
        """Append to a file of a process in .damaged."""

    def note_clocks(self, lines: bytes) -> None:
        """Append to what the clocks have shown. OutputFullError: not all was appended; call it again."""

    def rotate(self) -> None:
        """Begin a new directory for further packets. OutputFullError: the present one goes on."""

    def write_rest(self) -> None:
        """Write data that was accepted while there was no room. OutputFullError: there is still no room."""

    def close(self) -> None:
        """End the recording."""
