"""Which buffers of channels the server has mapped: those in use, and a few that were in use a short while ago.

There can be many thousands of channels, and a mapped buffer takes a descriptor and a mapping, of which a process has a
limited number. So a buffer is mapped when it is first used (Stored.buffer) and unmapped when it was not used for a
while: by rest(), which a task calls again and again, or by trim(), before a request, if too many are mapped. Buffers
that programs have open stay mapped (Stored.n_users). So do immutable files: to open one for writing, its protection
would have to be lifted for a moment (fs/protection.py).

Buffers are unmapped by the server's thread, between two requests. Other threads must not use Stored.buffer, but make a
mapping of their own (Stored.map_again()).
"""

from __future__ import annotations

import resource
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayfs_fuse.fs.kinds.base import Stored

# How many buffers that nobody has open may be mapped: MAPPED_MAX, but at most 1/MAPPED_SHARE of the descriptors this
# process may have.
MAPPED_MAX = 2048
MAPPED_SHARE = 4
# The pause between two calls of rest(), in seconds: so long a buffer stays mapped after its last use, at least.
REST_S = 2.0


class _Mapped:
    """The buffers that are mapped and can be unmapped, the one mapped first in front.

    lock: is held while a buffer is mapped, unmapped, or mapped again
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._stored: dict[int, weakref.ref[Stored[Any]]] = {}
        self._trimmed_at = 0  # trim() does something if more are mapped

    def add(self, stored: Stored[Any]) -> None:
        """Note that a buffer is mapped."""
        self._stored[id(stored)] = weakref.ref(stored)

    @property
    def has_room(self) -> bool:
        """Whether fewer are mapped than may be."""
        return len(self._stored) < _most()

    def forget(self, stored: Stored[Any]) -> None:
        """Note that a buffer does not exist any more."""
        self._stored.pop(id(stored), None)

    def rest(self) -> int:
        """Unmap the buffers that nobody has used since the last call; return how many."""
        before = len(self._stored)
        for stored in self._all():
            if stored.was_used:
                stored.was_used = False
            else:
                self._unmap(stored)
        self._trimmed_at = min(self._trimmed_at, self._next_trim(_most()))
        return before - len(self._stored)

    def trim(self) -> None:
        """If too many buffers are mapped, unmap those that were mapped first, down to half as many."""
        if len(self._stored) <= self._trimmed_at:
            return
        most = _most()
        for stored in self._all()[: -most // 2]:
            self._unmap(stored)
        self._trimmed_at = self._next_trim(most)

    def _next_trim(self, most: int) -> int:
        # Open buffers and immutable files cannot be unmapped. The next try is after most/2 more, so that not each
        # request tries.
        return max(most, len(self._stored) + most // 2)

    def _all(self) -> list[Stored[Any]]:
        return [stored for reference in list(self._stored.values()) if (stored := reference()) is not None]

    def _unmap(self, stored: Stored[Any]) -> None:
        with self.lock:
            if not stored.n_users and stored.unmap():
                self.forget(stored)


def _most() -> int:
    """Return how many buffers that nobody has open may be mapped."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAPPED_MAX if descriptors == resource.RLIM_INFINITY else min(MAPPED_MAX, descriptors // MAPPED_SHARE)


mapped = _Mapped()
