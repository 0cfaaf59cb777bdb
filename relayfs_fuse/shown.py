"""What a mount shows of a channel in .channels/PATH/. Any program can be behind a mount: nothing is trusted."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from relayfs_fuse import explain
from relayfs_fuse.errors import MountError
from relayfs_fuse.native.tables import OPTIONS, TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a file of a statistic has in place of a number that cannot be known.
UNKNOWN = "unknown"
_STATES = ("ok", "disabled", "closed")
_NUMBER_MOST = (1 << 64) - 1
# The longest text is why a channel is damaged.
_TEXT_BYTES = 4096
# How much of a wrong text a message has.
_QUOTED = 40


class Shown:
    """The files of a channel's directory in .channels.

    directory: its path

    Each method reads a file anew. OSError: it cannot be read. MountError: no server of relayfs writes such a text.
    """

    def __init__(self, mount: str, channel: str) -> None:
        self.directory = os.path.join(mount, ".channels", channel)

    def text(self, name: str) -> str:
        """Return a line of printable characters, without its newline."""
        found = explain.start_of(os.path.join(self.directory, name), _TEXT_BYTES + 1)
        if len(found) > _TEXT_BYTES:
            raise self._error(name, found[:_QUOTED], f"longer than {_TEXT_BYTES} bytes")
        # A path in it can have any bytes.
        line = os.fsdecode(found).removesuffix("\n")
        if not line or re.search(r"[\0-\x1f\x7f-\x9f]", line):
            raise self._error(name, found, "no line of text")
        return line

    def word(self, name: str, allowed: Sequence[str]) -> str:
        """Return one of the allowed words."""
        return self._word(name, self.text(name), allowed)

    def _word(self, name: str, word: str, allowed: Sequence[str]) -> str:
        if word not in allowed:
            raise self._error(name, os.fsencode(word), f"not one of {', '.join(allowed)}")
        return word

    def number(self, name: str, least: int = 0, most: int = _NUMBER_MOST) -> int:
        """Return a number."""
        return self._number(name, self.text(name), least, most)

    def _number(self, name: str, text: str, least: int, most: int) -> int:
        if not re.fullmatch("[0-9]{1,20}", text) or not least <= int(text) <= most:
            raise self._error(name, os.fsencode(text), f"no number from {least} to {most}")
        return int(text)

    def statistic(self, name: str) -> int | None:
        """Return a statistic; None: it cannot be known."""
        text = self.text(name)
        return None if text == UNKNOWN else self._number(name, text, 0, _NUMBER_MOST)

    def state(self) -> str:
        """Return the state: ok, disabled, closed, or `damaged: ` and what is wrong."""
        state = self.text("state")
        return state if state.startswith("damaged: ") else self._word("state", state, _STATES)

    def type(self) -> str:
        """Return the type of the channel, relay or ring."""
        return self.word("type", TYPES)

    def option(self, type_of: str, key: str) -> str:
        """Return the word with which the option of a key was given.

        type_of: the type of the channel
        """
        option = OPTIONS[type_of][key]
        return self.word(option.file, option.words)

    def n_buffers(self) -> int:
        """Return how many buffers there are. There need not be as many files."""
        return self.number("n_buffers", 1)

    def _error(self, name: str, found: bytes, what: str) -> MountError:
        quoted = ascii(found[:_QUOTED].decode("latin-1")) + "..." * (len(found) > _QUOTED)
        return MountError(f"{os.path.join(self.directory, name)}: {quoted} is {what}, as a server of relayfs writes it")
