"""The server of one mount: it makes the parts of the file server, and runs its tasks until it is unmounted."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import trio

# Before pyfuse3: tap.py says why.
from relayfs_fuse.fs import tap  # isort: skip
import pyfuse3

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError, StoreError
from relayfs_fuse.fs import mounts
from relayfs_fuse.fs.backings import Backings
from relayfs_fuse.fs.clock import Clock
from relayfs_fuse.fs.commands.channel import LOG_CHANNEL, Commands
from relayfs_fuse.fs.control_text import ControlText
from relayfs_fuse.fs.counter_files import CounterDirectory
from relayfs_fuse.fs.counters import Counters
from relayfs_fuse.fs.errorlog import ErrorLog
from relayfs_fuse.fs.heartbeat import BEAT_S
from relayfs_fuse.fs.kinds.channel import StoredChannel
from relayfs_fuse.fs.kinds.damaged import DamagedChannel
from relayfs_fuse.fs.nodes import ControlFile, CounterNamesFile, CountersFile, Directory, ErrorLogFile, TextFile
from relayfs_fuse.fs.notes import AREA_BYTES
from relayfs_fuse.fs.requests.announcements import Announcements
from relayfs_fuse.fs.requests.files import Operations
from relayfs_fuse.fs.requests.merging import Merging
from relayfs_fuse.fs.requests.names import LOADED_AT_ONCE
from relayfs_fuse.fs.requests.streams import Streams
from relayfs_fuse.fs.requests.waiting import Waiting
from relayfs_fuse.fs.store import Loaded, Problem, Removed, Store, Unread
from relayfs_fuse.fs.supervise import keep, tick
from relayfs_fuse.fs.taking import Taking
from relayfs_fuse.fs.traces.cards import Cards
from relayfs_fuse.fs.traces.deaths import Deaths
from relayfs_fuse.fs.traces.registry import Traces
from relayfs_fuse.fs.traces.triggers import Triggers
from relayfs_fuse.fs.traces.watch import Tracing
from relayfs_fuse.fs.tree import Tree
from relayfs_fuse.fs.unloaded import Unloaded
from relayfs_fuse.fs.upkeep import Counting, Flushing, Throttled, forget_removed, survey, unmap_unused

if TYPE_CHECKING:
    from relayfs_fuse.fs.handover import Handover
    from relayfs_fuse.fs.settings import Settings

log = logging.getLogger(__name__)

# The number of requests that can be served at a time. Each sleeping read(2) takes one, so it must never be reached.
TASKS_MAX = 1_000_000

# A server that is replaced has finished its jobs if so many looks in a row, so long apart, find no thread at work.
IDLE_LOOKS, IDLE_LOOK_S = 3, 0.002

# Of how many channels the lines of `control` are measured before requests are served again.
MEASURED_AT_ONCE = 16

# How many channels are loaded before the mount answers.
LOADED_FIRST = 64

# On each of these signals a server unmounts and ends.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Server:
    """A server: call mount(), then run().

    handover: what the supervisor gives it; if a server of this mount has died, run() goes on where that one stopped
    """

    def __init__(self, handover: Handover) -> None:
        settings = handover.settings
        self._handover = handover
        self._settings = settings
        self._begun_s = time.monotonic()
        goes_on = bool(handover.died[0])
        self._store = Store(settings.store, handover.lock, settings.limits, settings.trusted, goes_on)
        self._store.began_ns = handover.began_ns
        self._notes = handover.open_notes()
        self._backings = Backings(self._notes, self._store.protection)
        self._errors = ErrorLog(self._notes)
        self._tree = Tree()
        self._tree.identify = self._store.identify
        self._tree.is_inherited = goes_on
        self._tree.unloaded = Unloaded(self._load, self._tree.numbers_at)
        self._store.channels = self._tree.channels
        self._waiting = Waiting()
        self._streams = Streams(self._waiting, Taking(self._notes))
        self._merging = Merging(self._notes)
        self._traces: Traces | None = None
        self._triggers: Triggers | None = None
        # st_dev of this mount, once it answers; and its mountpoint.
        self._device: int | None = handover.number if handover.has_answered else None
        self._place = handover.place
        self._has_signal = False
        self._is_replaced = False
        self._control = ControlText(self._tree, self._trace_lines)
        self._tree.attach(
            self._tree.root,
            ControlFile("control", self._control.text, settings.control_mode, self._control.length),
        )
        self._tree.attach(self._tree.root, ErrorLogFile("error_log", self._errors))

    def mount(self) -> None:
        """Load what is in the store, and mount, or take over the mount; StoreError, RuntimeError."""
        native.guard_install()
        self._handover.heartbeat.prepare()
        self._announcements = Announcements(self._settings.mountpoint)
        self._counters = self._open_counters()
        self._traces = self._open_traces()
        self._scan()
        self._tree.is_inherited = False
        self._flushing = Flushing(self._tree, self._traces)
        self._tracing = Tracing(self._traces, self._triggers, self._announcements)
        traces = (self._traces, self._triggers) if self._traces and self._triggers else None
        self._operations = Operations(
            self._store,
            self._tree,
            Commands(self._store, self._tree, self._errors, self._let_go, traces),
            self._errors,
            self._streams,
            self._merging,
            self._counters,
            self._tracing,
            self._flushing,
            self._backings,
            self._notes,
            self._handover,
        )
        for signum in SIGNALS:
            signal.signal(signum, self._note_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        place, device = self._settings.mountpoint, self._settings.device
        tap.allow_reads(AREA_BYTES)
        pyfuse3.init(self._operations, place if device is None else f"/dev/fd/{device}", self._settings.fuse_options)
        if tap.interrupt_fd() < 0:
            pyfuse3.close()
            raise StoreError("pyfuse3 does not call the shared libfuse3: relayfs cannot see its requests")
        self._handover.tell_mounted(tap.session_fd())

    def run(self) -> None:
        """Serve until the mount is unmounted or one of SIGNALS arrives; then unmount and close the store.

        If it fails although the mount has answered, or another version takes over, the mount stays, and is the next
        server's.
        """
        # What was imported lives as long as the process: no collection walks it, the one at the end included.
        gc.freeze()
        try:
            trio.run(self._main, clock=Clock())
        except Exception as error:
            if self._handover.has_answered and tap.can_hand_over():
                raise _cause(error) from error
            self._close()
            raise _cause(error) from error
        if not self._is_replaced:
            self._close()

    def _close(self) -> None:
        try:
            is_topmost = self._is_topmost()
            pyfuse3.close(unmount=False)
            if is_topmost and self._settings.device is None:
                mounts.unmount(self._place)
        finally:
            if self._counters is not None:
                self._counters.close()
            if self._traces is not None:
                self._traces.close()
            self._store.close()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_on_signals, nursery.cancel_scope)
            nursery.start_soon(self._end_when_replaced, nursery.cancel_scope)
            nursery.start_soon(self._beat)
            nursery.start_soon(self._work, nursery)
            if self._operations.begun.is_set():
                # Of a mount that was taken over there may be requests at once.
                await self._waiting.runs.wait()
                await self._merging.runs.wait()
                self._go_on()
            await pyfuse3.main(max_tasks=TASKS_MAX)
            self._end(nursery.cancel_scope)
        # trio closes the socket to which signals are written before it says that it is not theirs any more.
        signal.set_wakeup_fd(-1)

    def _go_on(self) -> None:
        """Have all go on that programs did with the mount when another server of it died."""
        try:
            polled = self._operations.restore()
            tap.resend()
        except OSError as error:
            log.info("%s was unmounted meanwhile: %s", self._place, error.strerror)
            return
        for poll_handle in polled:
            tap.notify_poll(poll_handle)

    async def _work(self, nursery: trio.Nursery) -> None:
        """Start all other tasks after FUSE_INIT is answered.

        A thread of this process that accesses the mount earlier waits for its own process, and SIGKILL does not end it.
        """
        await self._operations.begun.wait()
        nursery.start_soon(keep, self._waiting.run, "waiting")
        nursery.start_soon(keep, self._streams.serve_interrupts, "interrupting reads")
        nursery.start_soon(keep, self._merging.run, "merging")
        nursery.start_soon(keep, self._flushing.run, "flush_interval")
        nursery.start_soon(keep, unmap_unused, "unmapping buffers")
        nursery.start_soon(keep, self._tracing.run, "tracing")
        nursery.start_soon(self._work_on_channels, nursery)
        await self._announce()
        nursery.start_soon(keep, partial(forget_removed, self._tree, self._tracing.announcements), "forgetting names")
        nursery.start_soon(keep, self._watch_mount, "watching the mount")
        if self._traces is not None and self._traces.deaths is not None:
            nursery.start_soon(keep, self._traces.deaths.run, "crash cards")

    async def _work_on_channels(self, nursery: trio.Nursery) -> None:
        """Load the channels that are not loaded yet, and start the tasks that are about all of them."""
        await keep(self._load_rest, "loading channels")
        nursery.start_soon(keep, self._measure_control, "measuring control")
        if self._counters is not None:
            counting = Counting(self._counters, self._tree, self._report_counters)
            nursery.start_soon(keep, counting.run, "counters")
        nursery.start_soon(keep, partial(survey, self._store), "surveying the store")

    async def _announce(self) -> None:
        # Abandoned if the server ends meanwhile, as it does not answer requests of its own threads then.
        try:
            self._device = await trio.to_thread.run_sync(self._tracing.announcements.begin, abandon_on_cancel=True)
        except OSError:
            # It was detached, and programs have files of it open.
            if not self._handover.has_answered:
                raise
            self._device = self._handover.number
        for finding in self._handover.findings:
            log.warning("%s", finding)
        if self._handover.died[0]:
            self._tell_before(*self._handover.died, 1000 * (time.monotonic() - self._begun_s))
        else:
            self._tell_limits()
        self._handover.tell_answers(self._device)

    def _tell_before(self, process: int, how: str, took_ms: float) -> None:
        """Log what was before this server."""
        if self._handover.replaced:
            log.info(
                "version %s has taken over from version %s, process %d, in %.0f ms",
                native.VERSION, self._handover.replaced, process, took_ms,
            )  # fmt: skip
        else:
            log.warning(
                "the server before, process %d, has died: %s; this one has taken over in %.0f ms", process, how, took_ms
            )

    @staticmethod
    def _tell_limits() -> None:
        if not tap.has_passthrough():
            log.info(mounts.MAPS_NO_FILES)
        if not tap.can_hand_over():
            log.info("if this server dies, open files fail and the mount has to be made again: Linux 6.9 avoids that")

    async def _load_rest(self) -> None:
        """Load the channels that were there at the start and that nobody has asked for, between requests."""
        while self._tree.unloaded.load_some(LOADED_AT_ONCE):
            await trio.lowlevel.checkpoint()
        gc.freeze()  # what was made of them lives as long as they do: no collection walks it
        self._backings.forget_removed(self._store)
        await trio.to_thread.run_sync(self._store.survey, abandon_on_cancel=True)
        self._operations.note_loaded()

    async def _measure_control(self) -> None:
        """Measure the lines of the channels that were there at the start, so that no stat(2) has to do that."""
        while all(self._control.measure() for _ in range(MEASURED_AT_ONCE)):
            await trio.lowlevel.checkpoint()

    async def _end_on_signals(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            if self._has_signal:
                self._end(scope)
            async for _ in signals:
                self._end(scope)

    async def _beat(self) -> None:
        while True:
            self._handover.heartbeat.beat()
            await tick(BEAT_S)

    async def _end_when_replaced(self, scope: trio.CancelScope) -> None:
        """When the supervisor says so, finish what worker threads do, and end; the mount stays.

        Requests that wait for something else are not answered: the next server gets them again.
        """
        assert self._handover.supervisor is not None
        await trio.lowlevel.wait_readable(self._handover.supervisor)
        self._is_replaced = True
        pyfuse3.terminate()  # handlers get no further requests
        busy = trio.to_thread.current_default_thread_limiter()
        idle = 0
        while idle < IDLE_LOOKS:
            await trio.sleep(IDLE_LOOK_S)
            idle = 0 if busy.borrowed_tokens else idle + 1
        self._end(scope)

    def _note_signal(self, *_: object) -> None:
        """Handle a signal that arrives while no task waits for signals: before run(), or while it unmounts."""
        self._has_signal = True

    async def _watch_mount(self) -> None:
        """When the mount is detached, note in the store's lock that another server may take over the store."""
        wait = partial(mounts.wait_until_gone, self._device or 0)
        await trio.to_thread.run_sync(wait, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)
        self._store.lock.note_unmounted()
        log.info("%s is unmounted; what programs have open is served until the store is mounted again", self._place)

    def _is_topmost(self) -> bool:
        """Whether this is the topmost mount at the mountpoint; otherwise umount(2) would unmount another one."""
        if self._device is None:
            return True  # the start failed before the mount answered
        return mounts.is_on_top(self._place, self._device)

    def _end(self, scope: trio.CancelScope) -> None:
        if not self._is_replaced:
            self._handover.tell_ends()
        self._waiting.stop()
        scope.cancel()

    def _open_counters(self) -> Counters | None:
        try:
            settings, store = self._settings, self._store
            counters = Counters(store.directory, settings.counters_limit, settings.trusted, store.check_room)
        except OSError as error:
            self._report("counters", f"{self._store.directory}/.counters cannot be used: {error.strerror}")
            return None

        def show() -> None:
            counters.mirror()
            if not self._tree.unloaded:
                counters.show(self._tree.channels)

        refresh = Throttled(show)

        def values_text() -> bytes:
            refresh()
            return counters.values_text()

        self._tree.attach(self._tree.root, CountersFile("counters", counters, refresh))
        self._tree.attach(
            self._tree.root, CounterNamesFile("counters.names", counters.names_text, settings.control_mode)
        )
        self._tree.attach(self._tree.root, TextFile("counters.txt", values_text))
        above = os.path.dirname(counters.path)
        self._tree.attach(self._tree.root, CounterDirectory(".counters", self._tree, above, self._backings))
        return counters

    def _open_traces(self) -> Traces | None:
        try:
            traces = Traces(self._store, self._tree, self._errors, self._let_go)
        except OSError as error:
            self._report("traces", f"{self._store.directory}/.traces cannot be used: {error.strerror}")
            return None
        traces.load()
        cards = Cards(self._store, self._settings.cards, self._settings.cards_size)
        try:
            traces.deaths = Deaths(cards, traces, self._tree, self._announcements, self._errors, self._counters_text)
        except OSError as error:
            self._report("crashed", f"{cards.directory} cannot be used: {error.strerror}")
        settings = self._settings
        self._triggers = Triggers(
            self._store, self._tree, traces, settings.mountpoint, runs_programs=settings.trigger_run
        )
        self._triggers.load()
        return traces

    def _counters_text(self) -> bytes:
        node = self._tree.find("counters.txt")
        return node.text() if isinstance(node, TextFile) else b""

    def _trace_lines(self) -> list[str]:
        """Return the commands that would make all traces and triggers again."""
        return [line for part in (self._traces, self._triggers) if part is not None for line in part.lines()]

    def _scan(self) -> None:
        for found in self._store.scan(self._traces.names if self._traces is not None else ()):
            if isinstance(found, Unread):
                self._tree.add_unloaded(found.path, found.inode)
            elif isinstance(found, Problem):
                self._report(found.path, found.message)
            else:
                self._tree.add_directory(found)
        self._tree.unloaded.load_some(LOADED_FIRST)
        if self._traces is not None:
            self._traces.show_all()
            self._tree.find(LOG_CHANNEL)
            self._traces.note_log()

    def _load(self, path: str) -> None:
        """Show what is in a directory that the scan has not looked into: a channel."""
        tree = self._tree
        tree.stats_directory(path.rpartition("/")[0]).n_unloaded -= 1
        before = tree.is_inherited, tree.is_loading
        tree.is_inherited, tree.is_loading = bool(self._handover.died[0]), True
        try:
            are_shown = [self._show_loaded(found) for found in self._store.load(path)]
        finally:
            tree.is_inherited, tree.is_loading = before
        if not any(are_shown):
            self._prune(path.rpartition("/")[0])

    def _show_loaded(self, found: Loaded) -> bool:
        """Show what was found in the store, or say why it cannot be; return whether it is a channel that is shown."""
        if isinstance(found, Problem):
            self._report(found.path, found.message)
        elif isinstance(found, str):
            self._tree.add_directory(found)
        elif not isinstance(found, Removed):
            return self._show(found)
        return False

    def _prune(self, path: str) -> None:
        """Remove a directory that was made for channels, and those above it, if they are empty."""
        if self._tree.unloaded.has(path):
            return  # the last one that is loaded tells
        self._tree.prune_stats(path)
        node = self._tree.find(path) if path else None
        while isinstance(node, Directory) and self._tree.is_empty(node) and self._store.is_implicit(node.path):
            above = node.parent
            try:
                self._store.remove_directory(node.path)
            except OSError:
                return  # it has something in it that the mount does not show
            self._tree.detach(node)
            node = above

    def _show(self, channel: StoredChannel | DamagedChannel) -> bool:
        try:
            self._tree.check_free(channel.path, list(channel.relay_paths))
        except CommandError as error:
            self._report(channel.path, f"{channel.directory} cannot be shown: {error.message}")
            return False
        if isinstance(channel, StoredChannel):
            self._tree.add_channel(channel)
        else:
            self._tree.add_damaged(channel)
        return True

    def _let_go(self, channel: StoredChannel | DamagedChannel) -> None:
        """Release what the kernel and the ledger have of a channel that is removed, once none of its files is open."""
        self._store.unname(channel)
        for stored in channel.buffers:
            # Later, because an open(2) that was just answered with this backing id would fail with EIO.
            stored.closed += (self._backings.closing(stored.backing),)
            stored.let_go(self._notes)

    def _report_counters(self) -> None:
        self._report("counters", "somebody has damaged the counters: they are shown as they were")

    def _report(self, path: str, message: str) -> None:
        log.warning("%s", message)
        self._errors.notice(f"mount {path}", message, len("mount "))


def _cause(error: Exception) -> Exception:
    """Return the exception inside exception groups of one exception each."""
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        return _cause(error.exceptions[0])
    return error


def mount_only(settings: Settings) -> int:
    """Mount, for a server that is another process; return the descriptor of /dev/fuse. RuntimeError."""
    pyfuse3.init(pyfuse3.Operations(), settings.mountpoint, settings.fuse_options)
    return next(int(name) for name in os.listdir("/proc/self/fd") if _leads_to_fuse(f"/proc/self/fd/{name}"))


def _leads_to_fuse(link: str) -> bool:
    return os.path.lexists(link) and os.readlink(link) == "/dev/fuse"
