"""relayctl trigger: add, list and remove triggers, which the server's mount evaluates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import check_stdout, json_lines_option, mount_option, show_json, show_table, store_option
from relayfs_fuse.cli.control import commands, find_control
from relayfs_fuse.cli.traces import all_traces
from relayfs_fuse.fs.commands import trigger_control
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.native.triggers import TriggerState
from relayfs_fuse.reading.source import find_store
from relayfs_fuse.tracefiles.trigger_files import read_definitions, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_USAGE = "on TRACE WHEN do ACTION [KEY=VALUE]..."


@click.group()
def trigger() -> None:
    """Add, list and remove triggers, which act when something happens in a trace."""


@trigger.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
WHEN    GLOB [if CONDITION]                        lost
        'rate > N/s' [of GLOB [if CONDITION]]      death
        quiet TIME [of GLOB [if CONDITION]]        'fill > N%'
        counter NAME '> N'                         crash
ACTION  snapshot [DIR]   start [TRACE]   stop [TRACE]   mark   notify   run PROGRAM
KEY     limit=TIME     window=BEFORE[/AFTER]     keep=N, keep=BYTES""",
)
@click.argument("name")
@click.argument("words", metavar=_USAGE, nargs=-1, required=True, shell_complete=complete.trigger_words)
@mount_option
def add(name: str, words: tuple[str, ...], mount: str | None) -> None:
    """Add the trigger NAME, which does ACTION when WHEN happens in TRACE.

    CONDITION is one word for the shell: if 'ms > 500'. TIME is a number and ms, s, m or h. relayfs(5) describes all.
    """
    find_control(mount)
    commands(mount, "trigger add", [name], list(_as_line(words)))


@trigger.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete.triggers)
@mount_option
def remove(names: tuple[str, ...], mount: str | None) -> None:
    """Remove triggers."""
    find_control(mount)
    commands(mount, "trigger remove", names)


@trigger.command("list")
@mount_option
@store_option
@json_lines_option
def list_triggers(mount: str | None, store: str | None, json_wanted: bool) -> None:
    """List the triggers.

    A line is NAME, its trace, what it does, how often it has fired, how often limit= has kept it from firing since, how
    many events have met its condition, and what it waits for.
    """
    check_stdout()
    found = list(all_triggers(find_store(mount, store)))
    if json_wanted:
        show_json(found)
        return
    titles = ["TRIGGER", "TRACE", "DOES", "FIRED", "LIMITED", "EVENTS", "WHEN"]
    show_table(titles, [[str(one[title.lower()]) for title in titles] for one in found])


def all_triggers(store: str) -> Iterator[dict[str, Any]]:
    """Yield what there is to say of each trigger of a store, in the order of traces; OSError."""
    for trace in all_traces(control_in_store(store)):
        directory = os.path.join(store, trace.name)
        states = read_state(directory).get("triggers", {})
        for definition in read_definitions(directory):
            command = trigger_control.parse(definition.line)
            if command is None:
                continue
            state = TriggerState(*states.get(str(definition.since), ()))
            yield {
                "trigger": command.name,
                "trace": trace.name,
                "does": f"{command.does} {command.argument}".strip(),
                "fired": state.fired,
                "limited": state.limited,
                "events": state.matched,
                "when": _when(command),
                "command": definition.line,
                "added": definition.since,
            }


def _when(command: trigger_control.TriggerCommand) -> str:
    """Return the part of a command that says what the trigger waits for."""
    begin = command.columns["trace"] + len(command.trace)
    return command.line[begin : command.columns["do"]].strip(" \t").removesuffix("do").strip(" \t")


def _as_line(words: Sequence[str]) -> Iterator[str]:
    """Yield words of a command: CONDITION in quotes, as the shell has taken them away, and absolute paths.

    Behind `snapshot`, a word with = and without / is KEY=VALUE.
    """
    if any("\n" in word for word in words):
        raise click.UsageError("a command has no newlines")
    left = list(words)
    while left:
        word = left.pop(0)
        yield word
        if word == "if" and "do" in left:
            end = left.index("do")
            yield "'{}'".format(" ".join(left[:end]).strip("'"))
            del left[:end]
        elif word in ("snapshot", "run") and left and ("/" in left[0] or "=" not in left[0]):
            yield os.path.abspath(left.pop(0))
