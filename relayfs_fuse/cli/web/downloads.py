"""What can be downloaded of a trace: what its buffers hold now, made into a file without a name."""

from __future__ import annotations

import tarfile
import tempfile
from contextlib import closing
from typing import BinaryIO

from relayfs_fuse.cli.export import exported
from relayfs_fuse.cli.snapshot import held_now
from relayfs_fuse.native.library import closed_on_error
from relayfs_fuse.native.merge import Style
from relayfs_fuse.tracefiles.hosts import Hosts
from relayfs_fuse.tracefiles.merged import merge


def snapshot(store: str, name: str) -> BinaryIO:
    """Return a tar archive of a directory as relayctl snapshot writes it; RelayError, OSError."""
    with held_now(name, None, store) as directory:
        file = tempfile.TemporaryFile(prefix="relayctl-")  # noqa: SIM115  # the caller closes it
        with closed_on_error(file), tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            archive.add(directory, name, filter=_of_nobody)
    return file


def perfetto(store: str, name: str) -> BinaryIO:
    """Return a trace for ui.perfetto.dev, as relayctl export --perfetto writes it; RelayError, OSError."""
    with held_now(name, None, store) as directory, closing(Hosts([directory])) as recording:
        file = tempfile.TemporaryFile(prefix="relayctl-")  # noqa: SIM115  # the caller closes it
        with (
            closed_on_error(file),
            closing(merge(recording.parts)) as merged,
            closing(exported(name, recording, merged, Style("perfetto"))) as pieces,
        ):
            file.writelines(pieces)
    return file


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who has made a file; the temporary directory's mode would let nobody else enter."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member
