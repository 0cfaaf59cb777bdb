"""The counters of a mount: the files counters, counters.names and counters.txt, and the counters that the server sets.

    counters         the memory, which programs map (native/include/relayfs/counters.h)
    counters.names   read: `gen N`, then a line for each counter, `NUMBER NAME KEY=VALUE ...`; write: commands
    counters.txt     a line `NAME VALUE` for each counter, with the sum over all CPUs

The commands, one a line:

    add NAME [kind=counter|gauge] [mode=OCTAL] [unit=WORD] [help=REST OF THE LINE]
    del NUMBER
    adjust NUMBER DELTA

The counters of group `relayfs` are statistics, which the server sets every STATISTICS_S, and at each open(2) of
`counters`. Of channels that nobody has written or read since, it looks at IDLE_MAX each time:

    relayfs/server/NAME             requests, errors
    relayfs/channels/PATH/NAME      a statistic of the channel's buffers, each on its CPU
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError, failure
from relayfs_fuse.fs import at_once
from relayfs_fuse.native.tables import LEVEL, PERMS, STATISTICS, Statistic
from relayfs_fuse.tracefiles.losses import counts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from relayfs_fuse.fs.kinds.channel import StoredChannel

log = logging.getLogger(__name__)

# How often the counters of other owners are copied into the shared memory, and how often statistics are set.
MIRROR_S = 0.1
STATISTICS_S = 1.0

GROUP = "relayfs"


def _spec(statistic: Statistic) -> native.CounterSpec:
    kind = native.KINDS.index("gauge" if statistic.form == LEVEL else "counter")
    return native.CounterSpec(kind, statistic.unit, statistic.help)


# The counters that show a channel's statistics, by its type and by name.
SPECS = {
    type_of: {one.name: _spec(one) for one in statistics if one.unit} for type_of, statistics in STATISTICS.items()
}
SERVER_SPECS = {
    "requests": native.CounterSpec(0, "requests", "Requests of the kernel"),
    "errors": native.CounterSpec(0, "requests", "Requests that failed"),
}

_KEY = re.compile(r"(kind|mode|unit|help)=")
_NUMBER = "NUMBER, the first word of the counter's line in counters.names"


@dataclass
class Requests:
    """The numbers behind the statistics of the server, but for reads that the tap has answered."""

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
    """Parse a line written to counters.names; int: the number of the counter to delete; None: it is blank."""
    verb, _, rest = line.strip().partition(" ")
    if not verb:
        return None
    if verb == "adjust":
        return _parse_adjusting(line, rest)
    if verb == "del":
        if not re.fullmatch(r"[0-9]{1,9}", rest):
            raise CommandError(errno.EINVAL, f"del {rest}: del takes {_NUMBER}", _column(line))
        return int(rest)
    if verb != "add":
        raise CommandError(errno.EINVAL, f"{verb}: unknown; there are add NAME, del NUMBER and adjust NUMBER DELTA")
    name, _, keys = rest.strip().partition(" ")
    return _parse_keys(line, name, keys)


def _column(line: str) -> int:
    """Return where the word after the verb begins."""
    return len(line) - len(line.lstrip().partition(" ")[2].lstrip())


def _parse_adjusting(line: str, rest: str) -> Adjusting:
    words = re.fullmatch(r"([0-9]{1,9}) +(-?[0-9]{1,19})", rest.strip())
    if words is None or not -(1 << 63) <= int(words[2]) < 1 << 63:
        message = f"adjust {rest}: adjust takes {_NUMBER}, and DELTA, from -2^63 to 2^63-1"
        raise CommandError(errno.EINVAL, message, _column(line))
    return Adjusting(int(words[1]), int(words[2]))


def _parse_keys(line: str, name: str, keys: str) -> Adding:
    found: dict[str, str] = {}
    while keys := keys.strip():
        key = _KEY.match(keys)
        if not key or key[1] in found:
            word = keys.split()[0]
            what = f"{key[0]} is given twice" if key else f"{word}: not one of kind=, mode=, unit=, help="
            raise CommandError(errno.EINVAL, what, len(line.rstrip()) - len(keys))
        value, _, rest = keys[key.end() :].partition("\n" if key[1] == "help" else " ")
        found[key[1]], keys = value, rest
    kind, mode = found.get("kind", "counter"), found.get("mode", "0200")
    if kind not in native.KINDS:
        raise CommandError(errno.EINVAL, f"kind={kind}: not one of {', '.join(native.KINDS)}", line.find("kind="))
    if not re.fullmatch(r"0*[0-7]{1,3}", mode):
        raise CommandError(
            errno.EINVAL, f"mode={mode}: allowed are three octal digits, such as 0220", line.find("mode=")
        )
    spec = native.CounterSpec(native.KINDS.index(kind), found.get("unit", ""), found.get("help", ""), int(mode, 8))
    return Adding(name, spec)


PAGE_BYTES = 4096
# Statistics take at most 1/STATISTICS_SHARE of all names; the others are for programs.
STATISTICS_SHARE = 2
# The number of channels whose statistics are added, and removed, at a time. Each takes up to a millisecond.
CHANGES_MAX = 32
# The number of channels whose statistics had not changed last time that are looked at in each round.
IDLE_MAX = 32
# RELAY_PERF_USER_DOMAINS in native/src/counters/format.h.
USER_DOMAINS = 4
_REASONS = {
    errno.EACCES: "its group belongs to another user",
    errno.EPERM: "only a server of root has counters of other users",
    errno.ENOSPC: "the limit of names or owners is reached (mount with -o counters=N), or the store has no memory",
    errno.EBUSY: "another process has held the lock of the names for a second",
    errno.ENOENT: "there is no such counter",
}


class Counters:
    """The counters of a store; OSError if they cannot be used.

    store: the store's directory
    limit: the number of names, if the store has no counters yet
    trusted: whether other users may open the files in the store
    check_room: raises CommandError if a user may not take so many bytes; see Store.check_room()
    path: the path of the file `counters` in the store
    descriptor: of that file
    requests: what the server counts
    told: is called after a command has changed the list
    """

    def __init__(self, store: str, limit: int, trusted: bool, check_room: Callable[[int, int], None]) -> None:
        native.counters_create(store, limit)
        os.chmod(os.path.join(store, ".counters"), PERMS["STORE_TRUSTED" if trusted else "STORE"])
        self._check_room = check_room
        self._handle = native.CountersHandle(store)
        self._handle.repair()
        self.path = os.path.join(store, ".counters", "counters")
        # O_RDONLY, so that a mapping of the descriptor cannot be made writable.
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.requests = Requests()
        self.told: Callable[[], object] = bool
        self._names: tuple[int, bytes] = (-1, b"")
        self._instances = self._known_instances()
        # _without: channels whose statistics found no room. _is_full: none was removed since, so trying again would
        # fail.
        self._without: set[str] = set()
        # Channels that no statistics were added for yet.
        self._untried: set[str] = set()
        # By channel and buffer, the statistics that were set last; the channels whose statistics had changed then; and
        # where showing() goes on with the others.
        self._seen: dict[str, dict[int, bytes]] = {}
        self._busy: set[str] = set()
        self._idle_at = 0
        self._is_full = False
        # Before any program can add a name to group `relayfs`, which belongs to the owner of its first name.
        self._add_statistics("", SERVER_SPECS)

    def close(self) -> None:
        """Close the files."""
        os.close(self.descriptor)
        self._handle.close()

    # ---------------------------------------------------------------- files

    def memory(self) -> bytes:
        """Return the contents of the file `counters`, for programs that read(2) it."""
        self._handle.refresh()
        return os.pread(self.descriptor, self._handle.mapped_bytes(), 0)

    def memory_bytes(self) -> int:
        """Return the length of the file `counters`."""
        self._handle.refresh()
        return self._handle.mapped_bytes()

    def names_text(self) -> bytes:
        """Return the contents of counters.names, all of one generation."""
        generation, text = self._names
        if generation == self._handle.generation():
            return text
        try:
            text = self._handle.names_text()
        except BlockingIOError:
            # The counters change so often that they could not be read. While the lock is held, they do not change.
            held = self._handle.hold()
            try:
                text = self._handle.names_text()
            finally:
                os.close(held)
        self._names = int(text.split(maxsplit=2)[1]), text
        return text

    def values_text(self) -> bytes:
        """Return the contents of counters.txt."""
        self._handle.refresh()
        return self._handle.values_text()

    # ---------------------------------------------------------------- commands

    def change(self, line: str, uid: int, gids: Iterable[int]) -> None:
        """Carry out a command; may block. CommandError.

        uid, gids: the user and the groups of the process; a new group of counters gets the first of them
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
            why = self._reason(code, uid)
            if isinstance(command, Adding) and code in {errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG}:
                why = _wrong_text(command)
            raise CommandError(code, why, _column(line)) from error

    def _reason(self, code: int, uid: int) -> str:
        if code != errno.EDQUOT:
            return _REASONS.get(code, os.strerror(code))
        names = max(16, self._handle.limit // 16)
        return (
            f"the owner of the group has as much as one user may have: {names} names (a sixteenth of -o counters=N, "
            f"at least 16), or {USER_DOMAINS} different pairs of group and mode; you are user {uid}"
        )

    def _add(self, adding: Adding, uid: int, gids: Iterable[int]) -> None:
        if uid != os.geteuid():
            # The owner's file may have to grow by a page for each CPU.
            self._check_room(self._handle.n_blocks * PAGE_BYTES, uid)
        refused = failure(errno.EACCES)
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
        """Raise OSError if a user may not adjust a counter: ENOENT, there is no such counter; EACCES."""
        self._handle.refresh()
        info = self._handle.info(instance)
        if info is None:
            raise failure(errno.ENOENT)
        if not _may_adjust(info, uid, set(gids)):
            raise failure(errno.EACCES)

    # ---------------------------------------------------------------- upkeep

    def mirror(self) -> None:
        """Copy the counters of other owners' files into the shared memory; OSError: EBADMSG."""
        self._handle.mirror()

    @property
    def has_others(self) -> bool:
        """Whether there are counters of other owners, which mirror() copies."""
        return self._handle.has_others

    @property
    def is_changing(self) -> bool:
        """Whether a process is changing the list, or has died in the middle of that."""
        return self._handle.is_changing()

    def repair(self) -> None:
        """Complete a change whose process died in the middle of it; may block. OSError."""
        self._handle.repair()

    # ---------------------------------------------------------------- statistics

    def note(self, path: str, is_there: bool) -> None:
        """Note that a channel was added or changed or, if it is not there any more, removed."""
        if path not in self._instances:
            (self._untried.add if is_there else self._untried.discard)(path)
            if not is_there:
                self._without.discard(path)

    def show(self, channels: Mapping[str, StoredChannel]) -> None:
        """Set the statistics of the server and of all channels, by path; OSError."""
        for _ in self._showing(channels, self._instances):
            pass

    def showing(self, channels: Mapping[str, StoredChannel]) -> Iterator[None]:
        """Set the statistics of the server, of channels that are written or read, and of IDLE_MAX others.

        Yields after each channel, so that requests can be served in between. OSError.
        """
        paths = list(self._instances)
        begin = self._idle_at % max(1, len(paths))
        self._idle_at = begin + IDLE_MAX
        yield from self._showing(channels, self._busy.union((paths + paths)[begin : begin + IDLE_MAX]))

    def _showing(self, channels: Mapping[str, StoredChannel], paths: Iterable[str]) -> Iterator[None]:
        self._compare(channels)
        for name, value in vars(self.requests).items():
            answered = at_once.answers() if name == "requests" else 0
            self._set("", name, self._handle.n_blocks - 1, value + answered)
        for path in list(paths):
            channel = channels.get(path)
            if channel is not None and path in self._instances and not channel.removed:
                has_changed = self._show_channel(channel)
                (self._busy.add if has_changed else self._busy.discard)(path)
            yield

    def _compare(self, channels: Mapping[str, StoredChannel]) -> None:
        """Add statistics of new channels and remove those of removed channels, at most CHANGES_MAX each."""
        for path in [path for path in self._instances if path and path not in channels][:CHANGES_MAX]:
            self._forget(path)
            self._is_full = False
        if not self._is_full:
            self._untried |= self._without
        for path in list(islice(self._untried, CHANGES_MAX)):
            self._untried.discard(path)
            channel = channels.get(path)
            if channel is not None and path not in self._instances:
                self._add_statistics(path, SPECS[channel.kind.name])

    def _show_channel(self, channel: StoredChannel) -> bool:
        """Set the statistics of a channel's buffers, and return whether they have changed."""
        has_changed = False
        for stored in channel.buffers:
            stored.is_watched = True
            try:
                asked_ns = time.time_ns()
                now = stored.stats()
                before, seen = self._seen.setdefault(channel.path, {}), now.to_bytes()
                losses = channel.losses[stored.index]
                if before.get(stored.index) == seen:
                    losses.look_at_same(asked_ns)
                    continue
                has_changed = True
                losses.look(counts_of(channel.kind.name, now), asked_ns)
                for statistic in STATISTICS[channel.kind.name]:
                    if statistic.unit:
                        self._set(channel.path, statistic.name, stored.index, getattr(now, statistic.field))
                before[stored.index] = seen
            except OSError as error:
                stored.note(error)  # the counters keep their values
            except OverflowError:
                channel.note_damage(f"mem{stored.index}: a statistic has more than 63 bits")
        return has_changed

    def _known_instances(self) -> dict[str, dict[str, int]]:
        """Return the numbers of the statistics that the server before has added, by the channel's path and by name."""
        found: dict[str, dict[str, int]] = {}
        self._handle.refresh()
        for info in self._handle.infos():
            if info.name.startswith(f"{GROUP}/channels/"):
                path, _, name = info.name.split("/", 2)[2].rpartition("/")
                found.setdefault(path, {})[name] = info.instance
        return found

    def _set(self, path: str, name: str, block: int, value: int) -> None:
        instance = self._instances[path].get(name)
        if instance is not None and block < self._handle.n_blocks:
            self._handle.set(block, instance, value)

    def _add_statistics(self, path: str, specs: dict[str, native.CounterSpec]) -> None:
        """Add the statistics of a channel or, for path "", of the server; if there is no room for all, add none."""
        above = f"{GROUP}/channels/{path}" if path else f"{GROUP}/server"
        try:
            taken = sum(map(len, self._instances.values()))
            if taken + len(specs) > max(len(SERVER_SPECS), self._handle.limit // STATISTICS_SHARE):
                raise OSError(errno.ENOSPC, "statistics of other channels take half of all names")
            self._instances[path] = {}
            for name, spec in specs.items():
                self._instances[path][name] = self._handle.enter(f"{above}/{name}", spec)
            self._handle.refresh()
        except OSError as error:
            if path not in self._without:
                log.info("%s has no counters: %s", above, error.strerror)
            self._forget(path)
            self._without.add(path)
            self._is_full = True

    def _forget(self, path: str) -> None:
        """Remove the statistics of a channel."""
        self._busy.discard(path)
        self._seen.pop(path, None)
        for instance in self._instances.pop(path, {}).values():
            self._handle.free(instance)


def _wrong_text(adding: Adding) -> str:
    """Say which text of an `add` command the library refuses, and what is allowed."""
    texts = {
        "name": (adding.name, native.COUNTER_NAME_MAX),
        "unit": (adding.spec.unit, native.COUNTER_UNIT_MAX),
        "help": (adding.spec.help, native.COUNTER_HELP_MAX),
    }
    for what, (text, most) in texts.items():
        data = os.fsencode(text)
        if len(data) > most:
            return f"the {what} is longer than {most} bytes; it has {len(data)}"
        if text != data.decode("utf-8", "replace"):
            return f"the {what} is not UTF-8"
        if any(char < " " or char == "\x7f" for char in text):
            return f"the {what} has a control character, which is not allowed"
    return f'name {adding.name!r}: its parts, between single slashes, have no " or \\ and do not begin with a dot'


def _may_adjust(info: native.CounterInfo, uid: int, gids: set[int]) -> bool:
    if uid == 0:
        return True
    if uid == info.uid:
        return bool(info.mode & 0o200)
    return bool(info.mode & (0o020 if info.gid in gids else 0o002))
