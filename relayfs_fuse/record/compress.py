"""Compress complete files while the recording continues: each FILE becomes FILE.zst, as zstd(1) writes it.

`zstd -d --rm DIRECTORY/*.zst` restores the trace. The metadata is compressed first, because without it viewers find no
trace in the directory.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from contextlib import suppress

import zstandard

from relayfs_fuse.errors import RelayError
from relayfs_fuse.tracefiles.streams import COMPRESSED, METADATA

# Each file is compressed by as many threads as there are CPUs, but no more than this, as each takes some MiB.
_THREADS_MAX = 4
# Of zstd. Events take a half of the CPU time that they take with its default, 3, and become as small.
_LEVEL = 1
# How much nicer these threads are than the recorder, which must not lose events because it has no CPU.
_NICER = 10


class Compressor:
    """A thread that compresses the directories of processes, one after the other, and has others help with large files.

    They have the CPU time that the recorder and the programs leave.
    """

    def __init__(self) -> None:
        self._directories: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._error: OSError | RelayError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, directory: str) -> None:
        """Compress the files of a process's directory, in the thread."""
        self._directories.put(directory)

    def add_all(self, directory: str) -> None:
        """Compress the files of all processes' directories in a directory, in the thread."""
        if os.path.isdir(directory):
            for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
                if entry.is_dir():
                    self.add(entry.path)

    def close(self) -> None:
        """Wait until all is done. OSError, RelayError: a file could not be compressed, and is unchanged."""
        self._directories.put(None)
        self._thread.join()
        if self._error:
            raise self._error

    def _run(self) -> None:
        os.nice(_NICER)  # of this thread and those that it starts
        while (directory := self._directories.get()) is not None:
            try:
                compress(directory)
            except OSError as error:
                self._error = error
            except zstandard.ZstdError as error:  # it has no memory
                self._error = RelayError(f"{directory} cannot be compressed: {error}")


def compress(directory: str) -> None:
    """Compress those files of a directory that are not compressed yet."""
    threads = min(_THREADS_MAX, len(os.sched_getaffinity(0)))
    compressor = zstandard.ZstdCompressor(_LEVEL, write_checksum=True, threads=threads)
    names = [name for name in os.listdir(directory) if not name.startswith(".") and not name.endswith(COMPRESSED)]
    for name in sorted(names, key=lambda name: (name != METADATA, name)):
        path, hidden = os.path.join(directory, name), os.path.join(directory, f".{name}{COMPRESSED}")
        try:
            with open(path, "rb") as source, open(hidden, "wb") as target:
                compressor.copy_stream(source, target)
            shutil.copystat(path, hidden)  # `relayctl export` trusts the clock of the newest metadata
            os.rename(hidden, path + COMPRESSED)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(hidden)
            raise
        os.unlink(path)
