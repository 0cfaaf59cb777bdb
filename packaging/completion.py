"""Print the script with which a shell completes relayctl: completion.py bash|zsh|fish."""

import sys

import click
from click.shell_completion import get_completion_class

shell = get_completion_class(sys.argv[1])
assert shell is not None
# The script asks the program, relayctl, while a user types; nothing of the command goes into it.
print(shell(click.Command("relayctl"), {}, "relayctl", "_RELAYCTL_COMPLETE").source())
