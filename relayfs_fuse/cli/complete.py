"""The functions of proposals.py under their names, without what they import: only a shell that completes calls them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import click
    from click.shell_completion import CompletionItem

    Propose = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def __getattr__(name: str) -> Propose:
    """Return a function that imports and calls the one of this name."""

    def propose(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        function: Propose = getattr(import_module("relayfs_fuse.cli.proposals"), name)
        return function(context, parameter, typed)

    return propose
