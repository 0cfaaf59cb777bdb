"""Stores for `relayctl check`, made without a server, and what it says of them.

with checked_store() as store:
    mem = store.relay("app/log", mode=1)
    store.write("app/log", 100)
    put(mem, control(mem) + 8, "I", 99)
    assert store.findings()[0]["value"] == "relay_geometry.version"
"""

import ctypes
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner
from mounts import tmpfs_directory
from relayfs_fuse._native import ffi, lib

import relayfs_fuse
from relayfs_fuse import native
from relayfs_fuse.cli.relayctl import relayctl
from relayfs_fuse.native.ring import RingMemory, ring_create

PAGE = 4096
SUBBUF, N_SUBBUFS, RING = 4096, 4, 4096
# Sizes in the layout: an entry of a sub-buffer, a claim, and the claims of a file.
ENTRY, CLAIM, N_CLAIMS = 64, 64, 256

# Options of relay buffers and rings: the schemes are rseq, lockless and locking, the modes no-overwrite and overwrite.
RELAY = [
    {"scheme": scheme, "buffers": 0 if scheme == 1 else 1, "mode": mode, "times": times, "timestamp": times or stamped}
    for scheme in (1, 2, 3)
    for mode in (0, 1)
    for times, stamped in ((0, 0), (0, 1), (1, 0))
]
RINGS = [
    {"scheme": scheme, "buffers": 0 if scheme == 1 else 1, "mode": mode, "times": times}
    for scheme in (1, 2)
    for mode in (0, 1)
    for times in (0, 1)
]


@dataclass
class Checked:
    """What a check has said; no summary: there was nothing to check."""

    status: int
    findings: list[dict]
    summary: dict

    @property
    def damaged(self) -> list[dict]:
        return [one for one in self.findings if one["level"] == "damaged"]


def check(*arguments: str | Path, env: dict[str, str] | None = None) -> Checked:
    done = CliRunner().invoke(relayctl, ["check", "--json", *map(str, arguments)], catch_exceptions=False, env=env)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return Checked(done.exit_code, lines[:-1], lines[-1] if lines else {})


class CheckedStore:
    """A store in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(0o700)
        (path / ".root").touch(0o644)

    def _spec(self, options: dict[str, int], number: str) -> dict[str, int]:
        n = native.n_possible_cpus() if options.get("buffers", 1) == 0 else 1
        owner = {"uid": os.geteuid(), "gid": os.getegid(), "file_mode": 0o640}
        return {"buffers": 1, "scheme": 2, **owner, **options, number: n}

    def _above(self, name: str) -> Path:
        directory = self.path / name
        directory.parent.mkdir(0o755, exist_ok=True, parents=True)
        return directory

    def relay(self, name: str, **options: int) -> Path:
        sizes = {"subbuf_size": SUBBUF, "n_subbufs": N_SUBBUFS}
        native.store_create(str(self._above(name)), {**sizes, **self._spec(options, "n_buffers")})
        return self.path / name / "mem0"

    def ring(self, name: str, **options: int) -> Path:
        ring_create(str(self._above(name)), {"ring_size": RING, **self._spec(options, "n_rings")})
        return self.path / name / "mem0"

    def findings(self, *names: str) -> list[dict]:
        return check(*names, "--store", self.path).findings


@contextmanager
def checked_store() -> Iterator[CheckedStore]:
    with tmpfs_directory() as path:
        yield CheckedStore(path / "store")


# --- writing and reading without a channel ---


def write(mem: Path, lengths: list[int]) -> None:
    """Write records of these lengths, of which the last ones may be refused."""
    with closing(native.Buffer(str(mem))) as buffer:
        for length in lengths:
            try:
                buffer.write(b"x" * length)
            except OSError:
                return


def output(mem: Path, lengths: list[int]) -> None:
    """The same into a ring."""
    with closing(RingMemory(str(mem))) as ring:
        for length in lengths:
            lib.relay_ring_output(ring.pointer, b"x" * length, length, 0)


def consume(mem: Path, n_bytes: int) -> None:
    with closing(native.Buffer(str(mem))) as buffer:
        spans, total = ffi.new("struct relay_span[]", 64), ffi.new("size_t *")
        assert lib.relay_consume_begin(buffer.pointer, n_bytes, spans, 64, total) > 0
        lib.relay_consume_end(buffer.pointer)


def take(mem: Path, n: int) -> None:
    """Consume so many records of a ring."""
    with closing(RingMemory(str(mem))) as ring:
        data = ffi.new("char[]", RING)
        for _ in range(n):
            assert lib.relay_ring_read_framed(ring.pointer, data, RING, 1) >= 0


def reserve(mem: Path, kind: str) -> None:
    """Reserve 50 bytes, and never commit them; kind: relay_buf or relay_ring."""
    library = ctypes.CDLL(str(Path(relayfs_fuse.__file__).with_name("lib") / "librelayfs.so"))
    open_it = library[f"{kind}_open"]
    open_it.restype = library.relay_ring_reserve.restype = ctypes.c_void_p
    memory, to = ctypes.c_void_p(open_it(bytes(mem))), ctypes.c_void_p()
    if kind == "relay_ring":
        to = ctypes.c_void_p(library.relay_ring_reserve(memory, ctypes.c_size_t(50), ctypes.c_uint64(0)))
    else:
        assert library.relay_buf_reserve(memory, ctypes.c_size_t(50), ctypes.byref(to)) == 0
    assert to.value


def in_dead_process(act: Callable[[], object]) -> None:
    """Do something in a process that ends right afterwards, and undoes nothing."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


# --- damage ---


def put(path: Path, at: int, form: str, *values: int) -> None:
    """Store values in a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(f"<{form}", *values))


def get(path: Path, at: int, form: str = "Q") -> int:
    with path.open("rb") as file:
        file.seek(at)
        return int(struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0])


def control(mem: Path) -> int:
    """Where the last page begins: of a buffer struct relay_control, of a ring struct relay_ring_state."""
    return mem.stat().st_size - PAGE


def entry(number: int) -> int:
    """Where struct relay_subbuf of a sub-buffer is."""
    return SUBBUF * N_SUBBUFS + number % (2 * N_SUBBUFS) * ENTRY


def claim(number: int) -> int:
    """Where struct relay_claim is."""
    return SUBBUF * N_SUBBUFS + PAGE + number * CLAIM


def ring_claim(mem: Path, number: int) -> int:
    """Where struct relay_ring_claim is: the rest of the page behind the claims is before the last one."""
    return 2 * PAGE + 2 * RING + 8 * 1024 + 1024 + number * CLAIM


def account_of(store: Path, name: str) -> dict[str, int]:
    arguments = ["check", "--account", "--json", "--store", str(store), name]
    done = CliRunner().invoke(relayctl, arguments, catch_exceptions=False)
    account, summary = map(json.loads, done.stdout.splitlines())
    assert (account.pop("level"), account.pop("name"), summary["damaged"]) == ("account", name, 0)
    assert account["reserved"] == account["committed"] + account["discarded"] + account["torn"]
    assert account["committed"] == account["consumed"] + account["overwritten"] + account["resident"]
    return account  # type: ignore[no-any-return]


def drain(kind: str, mem: Path) -> None:
    """Consume all there is."""
    if kind == "relay":
        with closing(native.Buffer(str(mem))) as buffer:
            spans, total = ffi.new("struct relay_span[]", 64), ffi.new("size_t *")
            while lib.relay_consume_begin(buffer.pointer, 1 << 20, spans, 64, total) > 0:
                lib.relay_consume_end(buffer.pointer)
        return
    with closing(RingMemory(str(mem))) as ring:
        data = ffi.new("char[]", RING)
        while lib.relay_ring_read_framed(ring.pointer, data, RING, 1) > 0:
            pass
