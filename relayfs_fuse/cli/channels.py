"""relayctl create, remove, flush, reset, enable, disable and resume: commands about channels, for the control file.

The keys of `create`, and the values they may have, are those of the library's tables.
"""

from __future__ import annotations

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import mount_option
from relayfs_fuse.cli.control import check_word, commands
from relayfs_fuse.native.tables import OPTIONS


def describe_keys(allowed: dict[str, str]) -> str:
    """Return a line for each key of a command, with the allowed values in words."""
    # click does not join the lines of a paragraph that begins with a backspace.
    width = max(map(len, allowed)) + 1
    return "\b\n" + "\n".join(f"  {f'{key}=':{width}}  {values}" for key, values in allowed.items())


def _keys_of_types() -> str:
    texts = [
        f"Keys, and allowed values, of type={type_of}:\n\n"
        + describe_keys({key: option.allowed for key, option in options.items() if key != "type"})
        for type_of, options in OPTIONS.items()
    ]
    return "\n\n".join(texts)


class _Create(click.Command):
    """A command that says how keys are written if one is written as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = error.option_name.lstrip("-")
            if not any(key in options for options in OPTIONS.values()):
                raise
            words = f"{key}=VALUE, as in mode=overwrite"
            raise click.UsageError(f"there is no option {error.option_name}; keys are written {words}", ctx) from None


@click.command(cls=_Create, epilog=_keys_of_types())
@click.argument("path", shell_complete=complete.directories)
@click.argument("options", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete.channel_options)
@mount_option
def create(path: str, options: tuple[str, ...], mount: str | None) -> None:
    """Make the channel PATH, and the missing directories above it.

    PATH is relative to the mount, or MNT/PATH. Keys that are not given have defaults, which relayfs(5) describes.
    """
    commands(mount, "create", [path], [check_word(option) for option in options])


def _about_channels(verb: str, text: str) -> click.Command:
    @click.command(verb, help=f"{text}\n\nPATH is relative to the mount, or MNT/PATH.")
    @click.argument("paths", metavar="PATH...", nargs=-1, required=True, shell_complete=complete.channels)
    @mount_option
    def about_channels(paths: tuple[str, ...], mount: str | None) -> None:
        commands(mount, verb, paths)

    return about_channels


remove = _about_channels("remove", "Remove channels, and directories above that `create` made, once they are empty.")
flush = _about_channels("flush", "Begin new sub-buffers, so that readers of whole sub-buffers see all that is written.")
reset = _about_channels("reset", "Discard the unread data of channels, and set their counts to 0.")
enable = _about_channels("enable", "Accept writes to channels again after `disable`.")
disable = _about_channels("disable", "Refuse writes to channels, and count them as lost, until `enable`.")
resume = _about_channels("resume", "Accept writes again to channels that the program that made them has suspended.")
