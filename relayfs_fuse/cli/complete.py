"""What the shell proposes for the arguments and options of relayctl: names that exist now.

click calls these while a user types, so what cannot be found out is not proposed; nothing is said of it.
"""

from __future__ import annotations

import os
import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.source import find_mount, find_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

# The lines of control that make channels, and those whose records relayctl view can show.
_CHANNEL = re.compile(r"^create (\S+)", re.MULTILINE)
_TIMED = re.compile(r"^create (\S+) .*\btimes=(?:mono|tsc)\b", re.MULTILINE)


def directories(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Let the shell propose directories."""
    return [CompletionItem(typed, type="dir")]


def files(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Let the shell propose files."""
    return [CompletionItem(typed, type="file")]


def traces(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose traces."""
    return _items(_traces(context), typed)


def traces_or_recordings(
    context: click.Context,
    parameter: click.Parameter,
    typed: str,
) -> list[CompletionItem]:
    """Propose traces; directories if there is none that begins so."""
    return traces(context, parameter, typed) or directories(context, parameter, typed)


def what_to_view(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Propose traces, and channels whose records have times; directories if there is none that begins so."""
    return _items([*_traces(context), *_channels(context, _TIMED)], typed) or directories(context, parameter, typed)


def channels(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose channels."""
    return _items(_channels(context, _CHANNEL), typed)


def counters(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:  # noqa: ARG001
    """Propose counters."""
    from relayfs_fuse.counters import Counters  # noqa: PLC0415  # not needed for traces

    with suppress(OSError, RelayError), Counters(find_mount(context.params.get("mount"))) as opened:
        return _items(opened.infos(), typed)
    return []


def _items(names: Iterable[str], typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(typed)]


def _traces(context: click.Context) -> list[str]:
    with suppress(OSError, RelayError):
        store = find_store(context.params.get("mount"), context.params.get("store"))
        with closing(Traces(os.path.join(store, ".traces"))) as control:
            return [trace.name for trace in control.all().values()]
    return []


def _channels(context: click.Context, lines: re.Pattern[str]) -> list[str]:
    place = None if context.params.get("store") else find_mount(context.params.get("mount"))
    with suppress(OSError), open(os.path.join(place or "", "control"), encoding="utf-8", errors="replace") as file:
        return [match[1] for match in lines.finditer(file.read())] if place else []
    return []
