"""The option --if, with which commands show only the events that meet a condition."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from relayfs_fuse.cli.common import NOTHING_MATCHES, say
from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands.condition import compile_conditions, unmet_by_all
from relayfs_fuse.tracefiles.merged import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relayfs_fuse.tracefiles.ctf import Declaration


class Selection(NamedTuple):
    """Which events to show.

    patterns: globs of PROVIDER:NAME, one of which must match; empty: all events
    condition: of --if; None: there is none
    """

    patterns: Sequence[str]
    condition: str | None

    @property
    def compiled(self) -> bytes:
        """The condition, as Merge needs it."""
        return compile_conditions([] if self.condition is None else [self.condition])

    def why_none(self, declarations: Iterable[Declaration]) -> str | None:
        """Return why none of these events is shown, whatever its fields contain; None: one may be."""
        named = [one for one in declarations if matches(one, self.patterns)]
        if not named:
            return "no event is declared so far whose name matches" if self.patterns else None
        reason = None if self.condition is None else unmet_by_all(self.condition, named)
        return reason and f"no event that is declared so far can meet the condition: {reason}"

    def check(self, what: str, declarations: Iterable[Declaration]) -> None:
        """Say it, and exit, if none of these events of a trace or recording is shown."""
        if why := self.why_none(declarations):
            say(f"{what}: {why}")
            sys.exit(NOTHING_MATCHES)


class _Condition(click.ParamType):  # type: ignore[type-arg]  # before click 8.2 it has no parameter
    """A condition, as in `trace enable`; an error points at the wrong word."""

    name = "condition"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the condition."""
        try:
            compile_conditions([value])
        except CommandError as error:
            shown = "".join(character if character.isprintable() else "?" for character in value)
            self.fail(f"{error.message}\n  {shown}\n  {' ' * error.column}^", param, ctx)
        return value


if_option = click.option(
    "--if", "condition", metavar="CONDITION", type=_Condition(),
    help="Only events that meet CONDITION, which `trace enable` explains.",
)  # fmt: skip
