"""The counters of a mount: the files counters, counters.names and counters.txt, and the server's own figures.

    counters         the memory, to be mapped (native/include/relayfs/counters.h)
    counters.names   read: `gen N`, then a line for each counter, `NUMBER NAME KEY=VALUE ...`; write: commands
    counters.txt     `NAME VALUE`, sums over all CPUs

What is written to counters.names, a command a line:

    add NAME [kind=counter|gauge] [mode=OCTAL] [unit=WORD] [help=REST OF THE LINE]
    del NUMBER
    adjust NUMBER DELTA

Figures of the server and of every channel are counters of the group `relayfs`, shown at most FIGURES_S late:

    relayfs/server/NAME             requests, errors
    relayfs/channels/PATH/NAME      by CPU: the statistics of the channel's buffers
"""

from __future__ import annotations

import errno
import logging
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.native.tables import LEVEL, STATISTICS, Statistic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from relayfs_fuse.fs.kinds.channel import StoredChannel

log = logging.getLogger(__name__)

# How often other owners' counters are copied, and figures set.
MIRROR_S = 0.1
FIGURES_S = 1.0

GROUP = "relayfs"


def _spec(statistic: Statistic) -> native.CounterSpec:
    kind = native.KINDS.index("gauge" if statistic.form == LEVEL else "counter")
    return native.CounterSpec(kind, statistic.unit, statistic.help)


# Of each buffer, by type of channel.
FIGURES = {
    type_of: {one.name: _spec(one) for one in statistics if one.unit} for type_of, statistics in STATISTICS.items()
}
OF_SERVER = {
    "requests": native.CounterSpec(0, "requests", "Requests of the kernel"),
    "errors": native.CounterSpec(0, "requests", "Requests that failed"),
}

_KEY = re.compile(r"(kind|mode|unit|help)=")


@dataclass
class Requests:
    """What the server counts of itself."""

    requests: int = 0
    errors: int = 0


@dataclass(frozen=True)
class Adding:
    """An `add` command."""

    name: str
    spec: native.CounterSpec


@dataclass(frozen=True)
class Adjusting:
    """An `adjust` command."""

    instance: int
    delta: int


def parse(line: str) -> Adding | Adjusting | int | None:
    """Understand a line written to counters.names: what to add, adjust, or the number to delete; None: it is empty."""
    verb, _, rest = line.strip().partition(" ")
    if not verb:
        return None
    if verb == "adjust":
        return _parse_adjusting(rest)
    if verb == "del":
        if not re.fullmatch(r"[0-9]{1,9}", rest):
            raise CommandError(errno.EINVAL, f"del {rest}: a number is needed", len("del "))
        return int(rest)
    if verb != "add":
        raise CommandError(errno.EINVAL, f"{verb}: unknown; there are add NAME, del NUMBER and adjust NUMBER DELTA")
    name, _, keys = rest.strip().partition(" ")
    return _parse_keys(line, name, keys)


def _parse_adjusting(rest: str) -> Adjusting:
    words = re.fullmatch(r"([0-9]{1,9}) +(-?[0-9]{1,19})", rest.strip())
    if words is None or not -(1 << 63) <= int(words[2]) < 1 << 63:
        message = f"adjust {rest}: the number of a counter and a difference of at most 63 bits are needed"
        raise CommandError(errno.EINVAL, message, len("adjust "))
    return Adjusting(int(words[1]), int(words[2]))


def _parse_keys(line: str, name: str, keys: str) -> Adding:
    found: dict[str, str] = {}
    while keys := keys.strip():
        key = _KEY.match(keys)
        if not key or key[1] in found:
            column = line.find(keys)
            raise CommandError(errno.EINVAL, f"{keys.split()[0]}: not one of kind=, mode=, unit=, help=", column)
        value, _, rest = keys[key.end() :].partition("\n" if key[1] == "help" else " ")
        found[key[1]], keys = value, rest
    kind, mode = found.get("kind", "counter"), found.get("mode", "0200")
    if kind not in native.KINDS:
        raise CommandError(errno.EINVAL, f"kind={kind}: not one of {', '.join(native.KINDS)}", line.find("kind="))
    if not re.fullmatch(r"0*[0-7]{1,3}", mode):
        raise CommandError(errno.EINVAL, f"mode={mode}: octal permissions are needed", line.find("mode="))
    spec = native.CounterSpec(native.KINDS.index(kind), found.get("unit", ""), found.get("help", ""), int(mode, 8))
    return Adding(name, spec)


PAGE_BYTES = 4096
# What figures may take of all names: programs need some, too.
FIGURES_SHARE = 2
# How many channels get figures, or lose them, at a time: each takes a millisecond or less.
CHANGES_MAX = 32
# As RELAY_PERF_USER_DOMAINS and relay_perf_user_limit() have it (native/src/counters/format.h).
USER_DOMAINS = 4
_REASONS = {
    errno.EINVAL: "the name, unit or help is not allowed",
    errno.EILSEQ: "the name, unit or help is not UTF-8",
    errno.ENAMETOOLONG: "the name is longer than 255 bytes",
    errno.EACCES: "its group belongs to another user",
    errno.EPERM: "only a server of root has counters of other users",
    errno.ENOSPC: "the limit of names or owners is reached (mount with -o counters=N), or the store has no memory",
    errno.EBUSY: "somebody else has been adding for a second",
    errno.ENOENT: "there is no such counter",
}


class Counters:
    """Serve the counters of a store.

    store: its directory
    limit: how many names new counters can have
    trusted: whether other users may open the files in the store
    check_room: refuses what the limits of the store's memory do not let a user have
    """

    def __init__(self, store: str, limit: int, trusted: bool, check_room: Callable[[int, int], None]) -> None:
        native.counters_create(store, limit)
        os.chmod(os.path.join(store, ".counters"), 0o755 if trusted else 0o700)
        self._check_room = check_room
        self._handle = native.CountersHandle(store)
        self._handle.repair()
        self.path = os.path.join(store, ".counters", "counters")
        # Only to read: mappings of it cannot be made writable.
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.requests = Requests()
        self._names: tuple[int, bytes] = (-1, b"")
        self._figures = self._known_figures()
        # Channels for whose figures there was no room, and whether there may be none yet.
        self._without: set[str] = set()
        self._is_full = False
        # Before anybody can ask for a name: the group is ours.
        self._add_figures("", OF_SERVER)

    def close(self) -> None:
        """Let go of them."""
        os.close(self.descriptor)
        self._handle.close()

    # ---------------------------------------------------------------- files

    def memory(self) -> bytes:
        """Show the memory, to who does not map it."""
        self._handle.refresh()
        return os.pread(self.descriptor, self._handle.mapped_bytes(), 0)

    def memory_bytes(self) -> int:
        """Tell how long it is."""
        self._handle.refresh()
        return self._handle.mapped_bytes()

    def names_text(self) -> bytes:
        """List the counters of one generation."""
        generation, text = self._names
        if generation == self._handle.generation():
            return text
        try:
            text = self._handle.names_text()
        except BlockingIOError:
            # Somebody does nothing but change them: nobody can while this is held.
            held = self._handle.hold()
            try:
                text = self._handle.names_text()
            finally:
                os.close(held)
        self._names = int(text.split(maxsplit=2)[1]), text
        return text

    def values_text(self) -> bytes:
        """Show the sums."""
        self._handle.refresh()
        return self._handle.values_text()

    # ---------------------------------------------------------------- commands

    def change(self, line: str, uid: int, gids: Iterable[int]) -> None:
        """Carry out a command, or raise CommandError; may block.

        uid, gids: of whom; the first of gids is that of new groups
        """
        command = parse(line)
        if command is None:
            return
        try:
            if isinstance(command, Adding):
                self._add(command, uid, gids)
            elif isinstance(command, Adjusting):
                self._check_owner(command.instance, uid, gids)
                self._handle.adjust_for(command.instance, command.delta)
            else:
                self._delete(command, uid, gids)
        except OSError as error:
            code = error.errno or errno.EIO
            raise CommandError(code, self._reason(code, uid), len("add ")) from error

    def _reason(self, code: int, uid: int) -> str:
        if code != errno.EDQUOT:
            return _REASONS.get(code, os.strerror(code))
        names = max(16, self._handle.limit // 16)
        return (
            f"the owner of the group has all that one user may have, {names} names (a sixteenth of -o counters=N, or "
            f"16) or groups of {USER_DOMAINS} different owners' groups and modes; you are user {uid}"
        )

    def _add(self, adding: Adding, uid: int, gids: Iterable[int]) -> None:
        if uid != os.geteuid():
            # There may be a chunk to allocate in the owner's file: a page on each CPU.
            self._check_room(self._handle.n_blocks * PAGE_BYTES, uid)
        refused = OSError(errno.EACCES, os.strerror(errno.EACCES))
        for gid in gids:
            try:
                self._handle.enter(adding.name, replace(adding.spec, uid=uid, gid=gid))
            except PermissionError as error:
                refused = error
            else:
                return
        raise refused

    def _delete(self, instance: int, uid: int, gids: Iterable[int]) -> None:
        self._check_owner(instance, uid, gids)
        self._handle.delete(instance)

    def _check_owner(self, instance: int, uid: int, gids: Iterable[int]) -> None:
        """Refuse who may not adjust a counter."""
        self._handle.refresh()
        info = self._handle.info(instance)
        if info is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not _may_adjust(info, uid, set(gids)):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    # ---------------------------------------------------------------- what others count

    def mirror(self) -> None:
        """Copy the counters of other owners."""
        self._handle.mirror()

    def repair(self) -> None:
        """Make up for one who died in the middle of a change; may block."""
        if self._handle.is_changing():
            self._handle.repair()

    # ---------------------------------------------------------------- figures

    def show(self, channels: Iterable[StoredChannel]) -> None:
        """Set the figures of the server, and those of the channels there are."""
        for _ in self.showing(channels):
            pass

    def showing(self, channels: Iterable[StoredChannel]) -> Iterator[None]:
        """Do so in pieces: there can be thousands of channels, and others want to be served meanwhile."""
        present = {channel.path: channel for channel in channels if not channel.removed}
        self._compare(present)
        for name, value in vars(self.requests).items():
            self._set("", name, self._handle.n_blocks - 1, value)
        for path in self._figures.keys() & present.keys():
            if path in self._figures and not present[path].removed:
                self._show_channel(present[path])
            yield

    def _compare(self, present: dict[str, StoredChannel]) -> None:
        """Let new channels have figures, and those that have gone none: so many now, the rest the next time."""
        for path in list(self._figures.keys() - present.keys() - {""})[:CHANGES_MAX]:
            self._forget(path)
            self._is_full = False
        self._without &= present.keys()
        wanted = present.keys() - self._figures.keys() - (self._without if self._is_full else set())
        for path in list(wanted)[:CHANGES_MAX]:
            self._add_figures(path, FIGURES[present[path].kind.name])

    def _show_channel(self, channel: StoredChannel) -> None:
        for stored in channel.buffers:
            try:
                now = stored.stats()
                for statistic in STATISTICS[channel.kind.name]:
                    if statistic.unit:
                        self._set(channel.path, statistic.name, stored.index, getattr(now, statistic.field))
            except OSError as error:
                stored.note(error)  # the figures stay as they were
            except OverflowError:
                channel.note_damage(f"mem{stored.index}: a figure has more than 63 bits")

    def _known_figures(self) -> dict[str, dict[str, int]]:
        """Find those of channels that another server has shown."""
        found: dict[str, dict[str, int]] = {}
        self._handle.refresh()
        for info in self._handle.infos():
            if info.name.startswith(f"{GROUP}/channels/"):
                path, _, name = info.name.split("/", 2)[2].rpartition("/")
                found.setdefault(path, {})[name] = info.instance
        return found

    def _set(self, path: str, name: str, block: int, value: int) -> None:
        instance = self._figures[path].get(name)
        if instance is not None and block < self._handle.n_blocks:
            self._handle.set(block, instance, value)

    def _add_figures(self, path: str, specs: dict[str, native.CounterSpec]) -> None:
        """Add those of a channel, or, path "", of the server. Without room for names there are none."""
        above = f"{GROUP}/channels/{path}" if path else f"{GROUP}/server"
        try:
            taken = sum(map(len, self._figures.values()))
            if taken + len(specs) > max(len(OF_SERVER), self._handle.limit // FIGURES_SHARE):
                raise OSError(errno.ENOSPC, "figures of channels have half of all names")
            self._figures[path] = {}
            for name, spec in specs.items():
                self._figures[path][name] = self._handle.enter(f"{above}/{name}", spec)
            self._handle.refresh()
        except OSError as error:
            if path not in self._without:
                log.info("%s has no counters: %s", above, error.strerror)
            self._forget(path)
            self._without.add(path)
            self._is_full = True

    def _forget(self, path: str) -> None:
        """Free the names of a channel that has gone."""
        for instance in self._figures.pop(path, {}).values():
            self._handle.free(instance)


def _may_adjust(info: native.CounterInfo, uid: int, gids: set[int]) -> bool:
    if uid == 0:
        return True
    if uid == info.uid:
        return bool(info.mode & 0o200)
    return bool(info.mode & (0o020 if info.gid in gids else 0o002))
