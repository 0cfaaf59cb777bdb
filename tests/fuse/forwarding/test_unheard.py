"""Connections that break when something has been done and nobody has heard of it: it is not done twice."""

import os
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from babeltrace import packets_in
from forwarding import files_in, forward, receive, running, same
from mounts import DEADLINE_S, wait_until
from nats_server import NatsServer
from stress import is_long
from tracing import finish, recording

HOST = os.uname().nodename
# What an acknowledgement looks like: the server's, of a message that it has stored, and a receiver's.
FIRST = {"answers": re.compile(rb'"stream":"RELAYFS", ?"seq":'), "commands": re.compile(rb"PUB \$JS\.ACK\.")}
N_CUTS = 40 if is_long() else 4


class Proxy:
    """A way to a server that can be cut.

    loses: the direction of which it drops everything, from the first acknowledgement on, while it is deaf
    lost: what that was
    """

    def __init__(self, server: NatsServer, loses: str) -> None:
        self._loses, self._first = loses, FIRST[loses]
        self.is_deaf, self.lost = False, b""
        self._to = ("127.0.0.1", server.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with suppress(OSError):
                    server = socket.create_connection(self._to)
                    self._open += [client, server]
                    for source, target, what in ((client, server, "commands"), (server, client, "answers")):
                        self._start(self._pass, source, target, what)

    def _pass(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.is_deaf and what == self._loses and (self.lost or self._first.search(data)):
                    self.lost += data
                else:
                    target.sendall(data)

    def cut(self) -> None:
        """Break all connections; new ones lose nothing."""
        broken, self._open = self._open, []
        for one in broken:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.is_deaf, self.lost = False, b""

    def close(self) -> None:
        """End the threads: one that went on sleeping would be taken for one that sleeps in a call of another test."""
        self._listener.shutdown(socket.SHUT_RDWR)  # close(2) wakes nobody
        self._threads[0].join(DEADLINE_S)
        self.cut()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        self._listener.close()


@contextmanager
def proxied(server: NatsServer, loses: str) -> Iterator[Proxy]:
    proxy = Proxy(server, loses)
    try:
        yield proxy
    finally:
        proxy.close()


def n_messages(nats: NatsServer) -> int:
    return sum(nats.subjects().values())


@pytest.mark.stress
def test_a_message_is_sent_once_whose_acknowledgement_got_lost(nats, store, run, out: Path, tmp_path):
    """The server has it, and the forwarder sends it again; or another forwarder goes on."""
    app = run(store.create("t", n_subbufs=64), "app")
    with recording("t", "--store", store.path, "-o", out) as recorder, proxied(nats, "answers") as proxy:
        wait_until((out / ".relayfs").exists, "the recorder")
        for number in range(N_CUTS):
            with running("forward", out, "--to", proxy.url) as forwarder:
                app.write_patiently(500)
                wait_until(lambda: n_messages(nats) > 0, "messages")
                proxy.is_deaf = True
                app.write_patiently(1000)
                wait_until(lambda: proxy.lost, "an acknowledgement that gets lost")
                if number % 2:
                    forwarder.kill()
                before = n_messages(nats)
                proxy.cut()
                if not number % 2:
                    wait_until(lambda before=before: n_messages(nats) > before, "further messages")
        app.end()
        finish(recorder)
    forward(out, nats)
    receive(tmp_path / "into", nats)
    assert same(out, tmp_path / "into" / HOST / "out")
    packets = [packets_in((out / path).read_bytes()) for path in files_in(out) if "/cpu" in path]
    sent = {subject: n for subject, n in nats.subjects().items() if ".cpu" in subject}
    assert sum(sent.values()) == sum(map(len, packets))


@pytest.mark.stress
def test_what_a_receiver_has_acknowledged_unheard_is_written_once(nats, store, run, out: Path, tmp_path):
    app = run(store.create("t", n_subbufs=64), "app")
    into = tmp_path / "into"
    chance = random.Random(0)
    with recording("t", "--store", store.path, "-o", out) as recorder, proxied(nats, "commands") as proxy:
        wait_until((out / ".relayfs").exists, "the recorder")
        with running("receive", "--from", proxy.url, "-o", into) as receiver:
            for _ in range(N_CUTS):
                app.write_patiently(chance.randrange(100, 1000))
                forward(out, nats)
                proxy.is_deaf = True
                app.write_patiently(1000)
                forward(out, nats)
                wait_until(lambda: proxy.lost, "an acknowledgement that gets lost")
                proxy.cut()
                assert receiver.poll() is None
        app.end()
        finish(recorder)
    forward(out, nats)
    said = receive(into, nats)
    assert "refused" not in said
    assert same(out, into / HOST / "out")
