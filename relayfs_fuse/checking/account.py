"""The account of the records of a channel's buffers: where each one that was reserved is.

    reserved  = committed + discarded + torn
    committed = consumed + overwritten + resident

`resident` is what readers have not come to, also what is reserved and not committed yet, and what was discarded or torn
and no reader has passed yet.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from relayfs_fuse.native.tables import TYPES

if TYPE_CHECKING:
    from relayfs_fuse.native.library import Fields


@dataclass
class Account:
    """Numbers of records."""

    reserved: int = 0
    discarded: int = 0
    torn: int = 0
    consumed: int = 0
    overwritten: int = 0
    resident: int = 0

    @classmethod
    def of(cls, kind: str, stats: Fields) -> Account | None:
        """Return the account of one buffer at one moment.

        None: it cannot be known of a ring that a program has read which knows only the kernel's format
        """
        if kind == TYPES[0]:
            discarded, torn = stats.discarded_records, stats.lost_torn_records
        elif stats.foreign_bytes:
            return None
        else:  # readers of a ring count what they skip, without the reason
            torn = min(stats.torn_records, stats.skipped_records)
            discarded = stats.skipped_records - torn
        consumed, overwritten = stats.read_records, stats.lost_overwritten_records
        resident = stats.records - discarded - torn - consumed - overwritten
        return cls(stats.records, discarded, torn, consumed, overwritten, resident)

    @property
    def committed(self) -> int:
        """The records that are neither discarded nor torn."""
        return self.reserved - self.discarded - self.torn

    @property
    def fault(self) -> str:
        """Why it does not balance; empty: it does."""
        if self.resident >= 0:
            return ""
        passed = self.reserved - self.resident
        return f"{passed} records passed by readers, of {self.reserved} reserved"

    def add(self, other: Account) -> None:
        """Add the account of another buffer."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def as_json(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {**asdict(self), "committed": self.committed}

    def __str__(self) -> str:
        return (
            f"{self.reserved} reserved = {self.committed} committed + {self.discarded} discarded + {self.torn} torn; "
            f"{self.committed} committed = {self.consumed} consumed + {self.overwritten} overwritten + "
            f"{self.resident} resident"
        )
