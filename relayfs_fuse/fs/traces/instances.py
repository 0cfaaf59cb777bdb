"""The directory `.traces/NAME` of each trace, whose files are its settings, as in tracefs.

    .traces/NAME/               mkdir(2) makes the trace, rmdir(2) removes it
        tracing_on              1 or 0: writing starts and stops the trace
        set_event               a line for each rule, GLOB [if CONDITION], or !GLOB; writing adds rules
        snapshots/              copies of what the buffers held (snapshots.py)
        mode subbuf_size ...    the options of `trace create`; writing changes one, until a program has written events

What is written is carried out as commands of `control`, by the same code and for the same users.
"""

from __future__ import annotations

import errno
import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.fs.commands.control import Word
from relayfs_fuse.fs.nodes import Directory, TextFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.opener import Opener
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.native.trace import Trace


log = logging.getLogger(__name__)


class InstancesDirectory(Directory):
    """The directory `.traces`, in which the directories of traces are made and removed."""

    mode = 0o755

    def making(self, name: str) -> str:
        """Return the command for mkdir(2); CommandError: the name is not allowed."""
        trace_control.check_trace_name(Word(name, 0))
        return f"{trace_control.VERB} create {name}"

    def removing(self, name: str) -> str:
        """Return the command for rmdir(2)."""
        return f"{trace_control.VERB} remove {name}"


class InstanceDirectory(Directory):
    """The directory of a trace in `.traces`."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name)
        self.identity = number


class SettingFile(TextFile):
    """A setting of a trace.

    number: the trace's id
    text: returns the contents
    lines: returns the commands that a written text stands for; CommandError
    """

    mode = 0o644

    def __init__(self, name: str, number: int, text: Callable[[], bytes], lines: Callable[[str], list[str]]) -> None:
        super().__init__(name, text)
        self.identity = number
        self._lines = lines

    def truncate(self, size: int) -> None:
        """Do nothing: opening with O_TRUNC changes no setting."""

    async def write(self, acts: Acts, data: bytes, opener: Opener, unique: int) -> None:
        """Carry out the commands; CommandError."""
        text = os.fsdecode(data)
        try:
            lines = self._lines(text)
        except CommandError as error:
            log.info("%s", acts.errors.error(f"{self.path}: {text.strip()}", error))
            raise
        await acts.command(os.fsencode("\n".join(lines)), opener, unique)


def show_instance(
    name: str, number: int, find: Callable[[str], Trace | None], tree: Tree, above: Directory
) -> Directory:
    """Show the directory of a trace, and return it.

    number: its id
    find: returns a trace; None: it was removed
    """
    directory = InstanceDirectory(name, number)
    tree.attach(above, directory)

    def show(setting: str, of: Callable[[Trace], str], lines: Callable[[str], list[str]]) -> None:
        def text() -> bytes:
            trace = find(name)
            return of(trace).encode() if trace is not None else b""

        tree.attach(directory, SettingFile(setting, number, text, lines))

    show("tracing_on", lambda trace: f"{int(trace.is_started)}\n", partial(_switch, name))
    show("set_event", _rules, partial(_rule_commands, name))
    for key in trace_control.ALLOWED:
        show(key, partial(_value, key), partial(_option_command, name, key))
    return directory


def _switch(name: str, text: str) -> list[str]:
    actions = {"0": "stop", "1": "start"}
    if text.strip() not in actions:
        raise CommandError(errno.EINVAL, "tracing_on is 1 or 0")
    return [f"{trace_control.VERB} {actions[text.strip()]} {name}"]


def _rules(trace: Trace) -> str:
    rules = trace_control.rules_of(trace)
    return "".join(f"{'!' if action == 'disable' else ''}{rule}\n" for action, rule in rules)


def _rule_commands(name: str, text: str) -> list[str]:
    rules = [line.strip(" \t") for line in text.split("\n")]
    return [
        f"{trace_control.VERB} {'disable' if rule[0] == '!' else 'enable'} {name} {rule.removeprefix('!')}"
        for rule in rules
        if rule
    ]


def _value(key: str, trace: Trace) -> str:
    return f"{trace_control.words_of(trace)[key]}\n"


def _option_command(name: str, key: str, text: str) -> list[str]:
    value = text.strip()
    if "\n" in value:
        raise CommandError(errno.EINVAL, f"{key} has one line")
    return [f"{trace_control.VERB} set {name} {key}={value}"]
