"""Debian's nats-server on loopback, with JetStream, and what its stream holds.

with NatsServer(tmp_path) as server:
    server.make_stream()
    relayctl("forward", out, "--to", server.url, "--once")
    assert server.subjects() == {...}
"""

import asyncio
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import nats
import nats.errors
import nats.js.errors
import pytest
from mounts import DEADLINE_S, wait_until
from nats.aio.client import Client
from nats.js.client import JetStreamContext
from tracing import relayctl

STREAM = "RELAYFS"
MAX_BYTES = 1 << 30


def free_port() -> int:
    """A port that nobody listens at; a server that is killed is started again at the same one."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class NatsServer:
    """A server whose files are below `directory`.

    settings: more of its configuration
    access: the options by which relayctl gets access
    host: where it listens
    enter: a command that runs it in another namespace
    """

    def __init__(
        self, directory: Path, settings: str = "", access: tuple[object, ...] = (), host: str = "127.0.0.1",
        enter: Sequence[str] = (),
    ) -> None:  # fmt: skip
        program = shutil.which("nats-server")
        if program is None:
            pytest.skip("nats-server is missing, which ./dev unpacks from Debian's packages")
        self.port = free_port()
        self.url = f"nats://{host}:{self.port}"
        self.log = directory / "nats.log"
        configuration = directory / "nats.conf"
        configuration.write_text(
            f'listen: "{host}:{self.port}"\n'
            f'jetstream {{ store_dir: "{directory}/jetstream", max_mem: 16MB, max_file: 8GB }}\n{settings}\n'
        )
        self.access = access
        self._command = [*enter, program, "-c", str(configuration), "-l", str(self.log)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        n_ready = self._n_ready()
        self.process = subprocess.Popen(self._command)
        wait_until(lambda: self._n_ready() > n_ready or self.process.poll() is not None, self._log)  # type: ignore[union-attr]
        assert self.process.poll() is None, self._log()

    def _log(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def _n_ready(self) -> int:
        return len(re.findall("Server is ready", self._log()))

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def send_signal(self, signum: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(signum)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()

    # --- the stream ---

    def make_stream(self, *more: str) -> None:
        done = relayctl("fleet", "init", "--to", self.url, "--max-bytes", str(MAX_BYTES), *self.access, *more)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr

    def remove_stream(self) -> None:
        async def remove(stream: JetStreamContext) -> None:
            with suppress(nats.js.errors.NotFoundError):
                await stream.delete_stream(STREAM)

        self.ask(remove)

    def ask(self, act: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        """Ask the server; one that has just been started may need a moment."""

        async def run() -> Any:
            client: Client = await nats.connect(self.url, error_cb=_ignore, max_reconnect_attempts=-1)
            try:
                return await act(client.jetstream(timeout=30))
            finally:
                await client.close()

        return asyncio.run(run())

    def subjects(self) -> dict[str, int]:
        """Return how many messages each subject has."""
        return self.ask(_subjects)

    def messages(self) -> list[Any]:
        """Return all messages, which have .seq, .subject, .headers and .data."""

        async def all_of_them(stream: JetStreamContext) -> list[Any]:
            state = (await stream.stream_info(STREAM)).state
            found = []
            for sequence in range(max(1, state.first_seq), state.last_seq + 1):
                with suppress(nats.js.errors.NotFoundError):
                    found.append(await stream.get_msg(STREAM, sequence))
            return found

        return self.ask(all_of_them)

    def publish(self, *messages: tuple[str, bytes, dict[str, str]]) -> list[int]:
        """Publish messages with these subjects, data and headers, as anybody who may; return their numbers."""

        async def send(stream: JetStreamContext) -> list[int]:
            return [(await stream.publish(subject, data, headers=words)).seq for subject, data, words in messages]

        return list(self.ask(send))

    def delete(self, *sequences: int) -> None:
        async def delete(stream: JetStreamContext) -> None:
            for sequence in sequences:
                await stream.delete_msg(STREAM, sequence)

        self.ask(delete)


async def _subjects(stream: JetStreamContext) -> dict[str, int]:
    return (await stream.stream_info(STREAM, subjects_filter=">")).state.subjects or {}


async def _ignore(_: Exception) -> None:
    pass
