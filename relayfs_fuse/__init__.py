"""Relay channels: streams of records in shared memory, seen as files."""

from relayfs_fuse.channel import Channel
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reader import Reader

__all__ = ["Channel", "Reader", "RelayError"]
