"""relayctl: make and remove channels and traces, show figures and events, record traces, and write to the log.

Exit status: 0 it was done; 1 it failed, for the reason in one line on stderr; 2 the command line is wrong; 3 nothing
matches. A signal that ends the command, also SIGPIPE, ends it as it would end any program: to a shell, 128 + N.
"""

from __future__ import annotations

import os
import signal
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, cast

import click

from relayfs_fuse import native
from relayfs_fuse.errors import RelayError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# In which module of relayfs_fuse.cli each command is, and the function's name.
COMMANDS = {
    "cat": ("cat", "cat"),
    "check": ("check", "check"),
    "counters": ("counters", "counters"),
    "crashed": ("crashed", "crashed"),
    "create": ("channels", "create"),
    "disable": ("channels", "disable"),
    "doctor": ("doctor", "doctor"),
    "enable": ("channels", "enable"),
    "events": ("events", "events"),
    "export": ("export", "export_command"),
    "fleet": ("fleet", "fleet"),
    "flush": ("channels", "flush"),
    "forward": ("forward", "forward"),
    "list": ("stat", "list_all"),
    "live": ("live", "live"),
    "log": ("log", "log"),
    "receive": ("receive", "receive"),
    "record": ("record", "record"),
    "remove": ("channels", "remove"),
    "reset": ("channels", "reset"),
    "resume": ("channels", "resume"),
    "run": ("run", "run"),
    "serve": ("serve", "serve"),
    "size": ("size", "size"),
    "snapshot": ("snapshot", "snapshot"),
    "stat": ("stat", "stat"),
    "top": ("top", "top"),
    "trace": ("traces", "trace"),
    "trigger": ("triggers", "trigger"),
    "upgrade": ("upgrade", "upgrade"),
    "version": ("version", "version"),
    "view": ("view", "view"),
    "write": ("write", "write"),
}

# What `relayctl --help` and completions say of each, in a line of 80 columns.
SUMMARIES = {
    "cat": "Write what is unread to the standard output, and consume it.",
    "check": "Check whether what a store holds is sound; nothing is changed.",
    "counters": "Show counters, and by how much they grow.",
    "crashed": "List, show or remove crash cards of traced processes.",
    "create": "Make the channel PATH, and the missing directories above it.",
    "disable": "Refuse writes to channels, and count them as lost.",
    "doctor": "Check the machine and the mounts, and say what to do.",
    "enable": "Accept writes to channels again after `disable`.",
    "events": "List the events of running programs, traced or not.",
    "export": "Write events as text or JSON, or for Perfetto or Chrome.",
    "fleet": "Show machines that forward recordings, and what is behind.",
    "flush": "Begin new sub-buffers: readers of whole ones see all there is.",
    "forward": "Send a recording to a NATS server, also while it is recorded.",
    "list": "List the channels, traces and counters.",
    "live": "Show traces to viewers of LTTng's live protocol.",
    "log": "Write TEXT, or each line that is read, to the channel `log`.",
    "receive": "Receive what `relayctl forward` sends, of all machines.",
    "record": "Record a trace or channel until it is removed, or until ^C.",
    "remove": "Remove channels, and directories that `create` has made.",
    "reset": "Discard the unread data of channels, and set their counts to 0.",
    "resume": "Accept writes again to channels that their program suspended.",
    "run": "Run a program, and write each line it prints to a channel.",
    "serve": "Serve a page for browsers, and metrics for Prometheus.",
    "size": "Suggest sizes for a channel that is to lose nothing.",
    "snapshot": "Write what the buffers of a trace hold now to a CTF trace.",
    "stat": "Show statistics of channels, traces and counters.",
    "top": "Show channels, traces and processes while they change.",
    "trace": "Make, start, stop, list and remove traces; choose events.",
    "trigger": "Add, list and remove triggers, which act on what happens.",
    "upgrade": "Have another version of the server take over a mount.",
    "version": "Show the versions of program, library, server and kernel.",
    "view": "Show events or records in the order of their times.",
    "write": "Write the standard input to a channel, a record for each line.",
}


class Commands(click.Group):
    """Commands whose modules are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: D102, ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: D102, ARG002
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name]
        command = cast("click.Command", getattr(import_module(f"relayfs_fuse.cli.{module}"), function))
        command.short_help = SUMMARIES[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands, for which none of them is imported."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Propose commands, for which none of them is imported, and options."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only a shell that completes needs it

        names = [CompletionItem(name, help=says) for name, says in SUMMARIES.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(  # noqa: D102
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], COMMANDS, 1)
            if not near:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", error.ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; if the reader of its output has gone, end quietly. click would exit with status 1."""
        try:
            result: object = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            _end_by(signal.SIGPIPE)
        return result


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(native.VERSION, "-V", "--version", message="%(prog)s %(version)s")
def relayctl() -> None:
    """Make and remove channels and traces, show figures and events, record traces, and write to the log.

    Exit status: 0 it was done; 1 it failed; 2 the command line is wrong; 3 nothing matches; 128+N signal N ended it.
    """


def main() -> None:
    """Run a command; an error is one line on stderr."""
    _open_standard_files()
    try:
        native.guard_install()
        # With standalone_mode, click would print "Aborted!" after SIGINT.
        status = relayctl.main(prog_name="relayctl", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end_by(signal.SIGINT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror}")
    except RelayError as error:
        _fail(str(error))
    sys.exit(status)


def _fail(why: str) -> NoReturn:
    from relayfs_fuse.cli.common import say  # noqa: PLC0415  # --version and --help need none of it

    say(why)
    sys.exit(1)


def _end_by(signum: int) -> None:
    """End as a program does that does not handle the signal: a shell that runs a script then ends it, too."""
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)


def _open_standard_files() -> None:
    """Open /dev/null for each of them that is closed; otherwise a file that is opened later would get the messages."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115  # it stays open


if __name__ == "__main__":
    main()
