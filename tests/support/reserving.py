"""Programs that keep what buffers have for all: reservations, and the claims with which sub-buffers are finished."""

import mmap
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TextIO

from build import compile_c
from tracing import Program

from relayfs_fuse import native

HOLDER = Path(__file__).parent / "programs/holder.c"
# <relayfs/layout.h>
PAGE, N_CLAIMS, N_RESERVATIONS = 4096, 256, 248
CLAIM = struct.Struct("<8Q")
TAKEN = 2


@contextmanager
def reserving(app: Program, most: int = 1) -> Iterator[tuple[TextIO, int]]:
    """Have another process keep parts of its first buffer reserved until a stream ends; yields that, and how many."""
    command: Sequence[str | Path] = [compile_c([HOLDER]), app.directory / "cpu/mem0", "0", str(most)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            yield holder.stdin, int(holder.stdout.readline())
        finally:
            holder.kill()


def keep_all_claims(app: Program) -> None:
    """Let it look as if threads of who has reserved parts of its first buffer were about to use all other claims."""
    buffer = native.Buffer(str(app.directory / "cpu/mem0"))
    with closing(buffer), mmap.mmap(buffer.fileno(), 0) as memory:
        begin = len(memory) - PAGE - N_CLAIMS * CLAIM.size
        claims = [CLAIM.unpack_from(memory, begin + i * CLAIM.size) for i in range(N_CLAIMS)]
        owner = next(owner for word, _, _, _, owner, *_ in claims if word >> 62 == TAKEN)
        for i, (word, *_) in enumerate(claims):
            if word >> 62 != TAKEN:
                CLAIM.pack_into(memory, begin + i * CLAIM.size, 0, 0, 0, 0, owner, 0, 0, 1)
