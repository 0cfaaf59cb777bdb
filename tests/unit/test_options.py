"""Options of relayctl that several commands have."""

from collections.abc import Iterator

import click
import pytest

from relayfs_fuse.cli.common import Seconds
from relayfs_fuse.cli.relayctl import relayctl


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_each_number_that_need_not_be_whole_is_finite():
    options = [one for command in commands(relayctl) for one in command.params]
    options = [one for one in options if isinstance(one.type, click.types.FloatParamType)]
    assert len(options) >= 6
    assert [one.name for one in options if not isinstance(one.type, Seconds)] == []
    for option in options:
        assert option.type.convert("2.5", option, None) == 2.5
        for wrong in ("nan", "NaN", "-nan", "inf", "-inf", "1e300", "-1"):
            with pytest.raises(click.BadParameter, match=r"in the range .*x<="):
                option.type.convert(wrong, option, None)
