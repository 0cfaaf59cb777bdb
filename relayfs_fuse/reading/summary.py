"""What was recorded of a trace, or written of it to a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Summary:
    """What was recorded.

    lost: events that were refused or overwritten, as the packets say, or removed unread
    lost_without_buffers: events of programs that got no buffers, which no packet counts
    lost_without_buffers_by_user: the same by user, of programs of users other than the store's owner and root
    unwritten: events left in the buffers, because the output was full, or they could not be read
    damaged: processes whose memory is damaged, and the reason
    skipped: processes that may not be read, and the reason
    """

    bytes: int = 0
    packets: int = 0
    lost: int = 0
    lost_without_buffers: int = 0
    lost_without_buffers_by_user: dict[int, int] = field(default_factory=dict)
    unwritten: int = 0
    processes: int = 0
    buffers: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def is_incomplete(self) -> bool:
        """Whether events are missing that no packet counts as lost."""
        lost = self.lost_without_buffers or self.lost_without_buffers_by_user
        return bool(lost or self.unwritten or self.damaged or self.skipped)

    def note_lost_without_buffers(self, lost: int, by_user: dict[int, int]) -> None:
        """Store the results of Source.lost_without_buffers()."""
        self.lost_without_buffers, self.lost_without_buffers_by_user = lost, by_user
