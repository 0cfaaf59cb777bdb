"""What a mount is to be like: the command line is parsed into it without what only a server needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from relayfs_fuse import native
from relayfs_fuse.fs.ledger import Limits

# The default of watchdog=.
WATCHDOG = 10
# The defaults of crashed= and crashed_size=.
CARDS = 16
CARDS_SIZE = 16 << 20
# Below this no events would fit into a card.
CARDS_SIZE_LEAST = 4 << 20


@dataclass
class Settings:
    """The options of a mount.

    mountpoint: a directory
    store: the path of the store
    control_mode: the permission bits of the control file
    fuse_options: mount options for the kernel and fusermount3
    limits: how much of the store users may take
    counters_limit: the number of names of counters, if the store has no counters yet
    trusted: whether other users may open the store's files
    watchdog: after how many seconds a server that is stuck is killed; 0: never
    cards, cards_size: how many crash cards each user may have, and how many bytes of them
    device: the descriptor of /dev/fuse, if it is mounted already; who has done that unmounts it
    trigger_run: whether triggers may run programs
    """

    mountpoint: str
    store: str
    control_mode: int = 0o644
    fuse_options: set[str] = field(default_factory=set)
    limits: Limits = field(default_factory=Limits)
    counters_limit: int = native.COUNTERS_LIMIT
    trusted: bool = False
    watchdog: int = WATCHDOG
    cards: int = CARDS
    cards_size: int = CARDS_SIZE
    device: int | None = None
    trigger_run: bool = False
