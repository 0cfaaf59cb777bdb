"""What the shell proposes for the arguments and options of relayctl: names that exist now.

click calls these while a user types, so what cannot be found out is not proposed; nothing is said of it.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from relayfs_fuse.cli.names import (
    CHANNEL,
    CHANNEL_WITH_TIMES,
    FORWARDERS,
    SERVER_COUNTERS,
    TRIGGER,
    cards_of,
    channels_of_store,
    names_in,
    traces_of,
)
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs.commands import trace_control, trigger_control
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.native.tables import OPTIONS, TRACE_OPTIONS
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.source import find_mount, find_root, find_store

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    import click

    from relayfs_fuse.native.tables import Option


def directories(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Let the shell propose directories."""
    return [CompletionItem(typed, type="dir")]


def files(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Let the shell propose files."""
    return [CompletionItem(typed, type="file")]


def traces(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose traces."""
    return _items(_traces(context), typed)


def traces_or_channels(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose traces and channels."""
    return _items([*_traces(context), *_channels(context, CHANNEL)], typed)


def traces_or_recordings(
    context: click.Context,
    parameter: click.Parameter,
    typed: str,
) -> list[CompletionItem]:
    """Propose traces; directories if there is none that begins so."""
    return traces(context, parameter, typed) or directories(context, parameter, typed)


def what_to_view(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Propose traces, and channels whose records have times; directories if there is none that begins so."""
    return _items([*_traces(context), *_channels(context, CHANNEL_WITH_TIMES)], typed) or directories(
        context, parameter, typed
    )


def stored(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Propose channels and traces; directories if there is none that begins so."""
    names = _channels(context, CHANNEL) | set(_traces(context))
    return _items(names - _given(context), typed) or directories(context, parameter, typed)


def channels(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose channels, but for those that are given already."""
    return _items(_channels(context, CHANNEL) - _given(context), typed)


def other_traces(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose traces, but for those that are given already."""
    return _items(set(_traces(context)) - _given(context), typed)


def everything(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Propose channels, traces, and counters that are not statistics of the server or of a channel."""
    names = _channels(context, CHANNEL) | set(_traces(context))
    found = (item.value for item in counters(context, parameter, typed))
    others = {
        name.rpartition("/")[0] if name.startswith(FORWARDERS) else name
        for name in found if not name.startswith(SERVER_COUNTERS)
    }  # fmt: skip
    return _items((names | others) - _given(context), typed)


def channel_options(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose KEY= and KEY=VALUE of `create`, for the type of channel if it is given."""
    types = {word.removeprefix("type=") for word in _given(context)} & set(OPTIONS)
    known = {key: option for type_of in types or OPTIONS for key, option in OPTIONS[type_of].items()}
    return _options(context, known, typed)


def trace_options(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose KEY= and KEY=VALUE of `trace create`."""
    return _options(context, {key: TRACE_OPTIONS.get(key) for key in trace_control.ALLOWED}, typed)


def triggers(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose triggers, but for those that are given already."""
    with suppress(OSError, RelayError):
        root = find_root(context.params.get("mount"))
        if not root.is_store:
            return _items(set(names_in(root.place, TRIGGER)) - _given(context), typed)
    return []


def trigger_words(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Propose what can follow the words of `trigger add NAME` so far."""
    words: tuple[str, ...] = context.params.get("words") or ()
    before, last = ("", "", *words)[-2:]
    if last == "on" or (before == "do" and last in ("start", "stop")):
        return traces(context, parameter, typed)
    keys = [f"{key}=" for key in trigger_control.ALLOWED]
    if before == "do" and last == "run":
        return files(context, parameter, typed)
    if before == "do" and last == "snapshot":
        return (_items(keys, typed) if typed else []) or directories(context, parameter, typed)
    if not words:
        return _items(["on"], typed)
    if before == "on" or last == "do":
        return _items(trigger_control.CONDITIONS if before == "on" else trigger_control.DOES, typed)
    return _items(keys if "do" in words else ["do", "if", "of"], typed)


def counters(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose counters."""
    from relayfs_fuse.counters import Counters  # noqa: PLC0415  # not needed for traces

    with suppress(OSError, RelayError), Counters(find_mount(context.params.get("mount"))) as opened:
        return _items(opened.infos(), typed)
    return []


def crash_cards(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose crash cards, but for those that are given already."""
    with suppress(OSError, RelayError):
        return _items(set(cards_of(find_root(context.params.get("mount")).place)) - _given(context), typed)
    return []


def _items(names: Iterable[str], typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(typed)]


def _traces(context: click.Context) -> list[str]:
    with suppress(OSError, RelayError):
        store = find_store(context.params.get("mount"), context.params.get("store"))
        with closing(Traces(control_in_store(store))) as control:
            return [trace.name for trace in control.all().values()]
    return []


def _channels(context: click.Context, lines: re.Pattern[str]) -> set[str]:
    if context.params.get("store"):
        return set()
    with suppress(OSError, RelayError):
        root = find_root(context.params.get("mount"))
        if root.is_store:
            return set(channels_of_store(root.place, traces_of(root.place)))
        return set(names_in(root.place, lines))
    return set()


def _given(context: click.Context) -> set[str]:
    """Return the words of the arguments that may be given several times."""
    return {word for value in context.params.values() if isinstance(value, tuple) for word in value}


def _options(context: click.Context, known: Mapping[str, Option | None], typed: str) -> list[CompletionItem]:
    words: tuple[str, ...] = context.params.get("options") or ()
    key, equals, _ = typed.partition("=")
    if equals:
        option = known.get(key)
        return _items([f"{key}={word}" for word in option.words] if option else [], typed)
    given = {word.partition("=")[0] for word in words}
    return _items([f"{name}=" for name in known.keys() - given], typed)
