"""relayctl live: babeltrace2 shows traces while programs write them."""

import os
import random
import signal
import socket
import struct
import subprocess
from contextlib import ExitStack

import pytest
from babeltrace import packets_in
from mounts import DEADLINE_S, wait_until
from showing import Talk, serving
from traced import environment_of, program, start_trace, traced
from tracing import EVENT_BYTES, RELAYCTL, finish, recorded, recording, relayctl, spoil

from relayfs_fuse import native

LAST_CPU = native.n_possible_cpus() - 1
CONSUMES = "relayctl: nobody records t: what is shown is consumed, so that its programs have room for further events\n"
ROOM = {"subbuf_size": 1 << 14, "n_subbufs": 16}
CONNECT, LIST, ATTACH, NEXT_INDEX, GET_PACKET, GET_METADATA, NEW_STREAMS, CREATE, DETACH = range(1, 10)
BEGINNING, LAST = 1, 2
VIEWERS_MAX, CONNECTIONS_MAX = 8, 32


def test_programs_come_and_go_and_declare_events(store, run):
    trace = store.create("t")
    with serving("t", "--store", store.path) as server, server.showing("t") as shown:
        for n in range(4):
            one = run(trace, f"app{n}", cpu=n % native.n_possible_cpus())
            assert shown.write_patiently(one, 200) == 0
            one.declare("second")
            assert shown.write_patiently(one, 10) == 0
            one.end()
            shown.wait_for(lambda n=n: len(shown.lines) >= 210 * (n + 1))
        shown.finish()
        assert server.finish() == CONSUMES
    for n in range(4):
        assert shown.numbers(f"app{n}") == list(range(210))
    assert [event.name for event in shown.events()] == 4 * (200 * ["test:first"] + 10 * ["test:second"])
    assert [event.ns for event in shown.events()] == sorted(event.ns for event in shown.events())
    assert shown.lost() == 0


def test_two_viewers_and_the_recorder_get_all_of_it(store, run, tmp_path):
    trace = store.create("t", **ROOM)
    with (
        recording("t", "--store", store.path, "-o", tmp_path / "out") as recorder,
        serving("t", "--store", store.path) as server,
        server.showing("t") as one, server.showing("t") as two,
    ):  # fmt: skip
        programs = [run(trace, "app"), run(trace, "other", cpu=LAST_CPU)]
        for _ in range(10):
            for each in programs:
                assert each.write_patiently(100) == 0
        for shown in (one, two):
            shown.wait_for(lambda shown=shown: len(shown.lines) == 2000)
            assert shown.numbers("app") == shown.numbers("other") == list(range(1000))
            shown.finish()
        assert server.finish() == ""
        for each in programs:
            each.end()
            recorded(tmp_path / "out", 1000, each.name.partition("-")[0])
        assert "0 events lost" in finish(recorder)


def test_who_attaches_again_sees_what_is_written_from_then_on(store, run):
    app = run(store.create("t", **ROOM), "app")
    with serving("t", "--store", store.path) as server:
        app.write(100)
        for n in (1, 2):
            with server.showing("t") as shown:
                app.write(10)
                shown.wait_for(lambda shown=shown: len(shown.lines) == 10)
                shown.finish()
            assert shown.numbers() == list(range(110 * n - 10, 110 * n))
            app.write(100)
        server.finish()


def writes_when_listed(program, talks):
    """Have a program write once, as soon as the first of them sees that a viewer is attached."""
    has_written = False
    for talk in talks:
        talk.ask_for_sessions()
    for talk in talks:
        if talk.listed()[0].n_clients and not has_written:
            program.write(1)
            has_written = True
    return has_written


def test_who_is_listed_as_attached_sees_what_is_written_from_then_on(store, run):
    app = run(store.create("t", **ROOM), "app")
    with serving("t", "--store", store.path, "--delay", 1) as server, ExitStack() as stack:
        # Many that ask at once: what the server does for one waits for what it does for others.
        others = [stack.enter_context(Talk(server)) for _ in range(8)]
        for other in others:
            other.connect()
        for n in range(10):
            with Talk(server) as talk:
                (session,) = talk.begin()
                talk.ask_to_attach(session, LAST)
                wait_until(lambda: writes_when_listed(app, others), "it is listed as attached")
                assert talk.attached() == 1
                app.write(1)
                (number,) = [one.id for one in talk.streams(session) if not one.is_metadata]
                index = talk.index(number)
                ((_, events),) = packets_in(talk.packet(number, index.offset, index.bits // 8))
                assert events[EVENT_BYTES - 16 :].startswith(struct.pack("<Q", 2 * n))
            wait_until(lambda: others[0].sessions()[0].n_clients == 0, "it has gone")
        server.finish()


def test_what_is_lost_is_told(store, run):
    app = run(store.create("t"), "app")
    with serving("t", "--store", store.path) as server, server.showing("t") as shown:
        app.write(1)
        shown.wait_for(lambda: shown.lines)
        lost = app.write(5000)
        refused = shown.write_patiently(app, 1)
        shown.wait_for(lambda: shown.numbers()[-1] == 5001)
        shown.finish()
    assert lost > 0
    assert shown.lost() == lost + refused
    assert len(shown.lines) == 5002 - lost


def test_programs_that_are_killed_or_stopped_hold_up_nobody(store, run):
    trace = store.create("t", **ROOM)
    killed, stopped, other = run(trace, "killed"), run(trace, "stopped"), run(trace, "other", cpu=LAST_CPU)
    with serving("t", "--store", store.path, "--delay", 50) as server, server.showing("t") as shown:
        for each in (killed, stopped, other):
            each.write(10)
        stopped.process.send_signal(signal.SIGSTOP)
        killed.kill()
        other.write(10)
        shown.wait_for(lambda: shown.numbers("other") == list(range(20)))
        assert shown.numbers("killed") == shown.numbers("stopped") == list(range(10))
        stopped.process.send_signal(signal.SIGCONT)
        stopped.write(1)
        shown.wait_for(lambda: shown.numbers("stopped") == list(range(11)))
        shown.finish()


# --- traces that go, and several of them ---


def test_babeltrace2_ends_with_the_trace(mount):
    start_trace(mount, "t")
    with (
        serving("t", "--mount", mount.path) as server, server.showing("t") as shown, traced(mount) as app
    ):  # fmt: skip
        app.ask("emit 100")
        shown.wait_for(lambda: len(shown.lines) == 100)
        app.ask("emit 100")
        mount.command("trace remove t")
        shown.ends()
        assert server.wait() == CONSUMES
    assert [event["seq"] for event in shown.events()] == list(range(200))


def test_without_a_name_all_traces_are_sessions(store, run):
    programs = {name: run(store.create(name, **ROOM, filter=name), name) for name in ("one", "two")}
    with serving("--store", store.path) as server:
        host = os.uname().nodename
        n_cpus = native.n_possible_cpus()
        for name in programs:
            assert f"/host/{host}/{name} (timer = 100000, {n_cpus} stream(s), 0 client(s) connected)" in server.listed()
        with server.showing("one") as one, server.showing("two") as two:
            for n, (each, shown) in enumerate(zip(programs.values(), (one, two), strict=True), 1):
                each.write(n)
                shown.wait_for(lambda n=n, shown=shown: len(shown.lines) == n)
            one.finish()
            two.finish()
        with server.showing("nothing") as shown:
            shown.ends()
        server.finish()


def test_a_viewer_that_wants_the_beginning_sees_what_the_buffers_hold(store, run):
    app = run(store.create("t", **ROOM), "app")
    app.write(50)
    with serving("t", "--store", store.path) as server, Talk(server) as talk:
        (session,) = talk.begin()
        assert talk.attach(session, BEGINNING) == 1
        streams = talk.streams(session)
        (number,) = [one.id for one in streams if not one.is_metadata]
        index = talk.index(number)
        size = index.bits // 8
        # A part of it, what is not in it, and then all, which is given once.
        part = talk.packet(number, index.offset + 16, 32)
        for offset, length in ((0, size + 1), (size, 1), (1 << 63, 1), (0, 0)):
            assert talk.packet(number, offset, length) is None
        packet = talk.packet(number, index.offset, size)
        assert len(packet) == size
        assert packet[16:48] == part
        assert packet.endswith(struct.pack("<QQ", 49, 49))
        assert talk.packet(number, index.offset, size) is None
        server.finish()


# --- those who do harm ---


def test_damaged_programs_harm_no_other(store, run):
    trace = store.create("t", **ROOM)
    damaged, spoilt, sound = run(trace, "damaged"), run(trace, "spoilt"), run(trace, "sound", cpu=LAST_CPU)
    with serving("t", "--store", store.path) as server, server.showing("t") as shown:
        for each in (damaged, spoilt, sound):
            each.write(10)
        shown.wait_for(lambda: len(shown.lines) == 30)
        damaged.process.send_signal(signal.SIGSTOP)
        spoilt.write(100)
        memory = spoilt.directory / "cpu/mem0"
        data = memory.read_bytes()
        with memory.open("r+b") as file:
            file.seek(data.rindex(struct.pack("<QQ", 109, 109)) - (EVENT_BYTES - 16))
            file.write(b"\xff" * (EVENT_BYTES - 16))
        spoil(damaged.directory / "cpu/mem0", 1)
        for _ in range(10):
            sound.write(10)
        shown.wait_for(lambda: shown.numbers("sound") == list(range(110)))
        server.wait_said(f"{damaged.name} (uid 0) is damaged")
        shown.finish()
        server.finish()
    assert shown.numbers("damaged")[:10] == list(range(10))


@pytest.mark.parametrize("seed", range(2))
def test_a_hostile_program_harms_no_viewer(mount, unprivileged, seed):
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=4")
    with serving("t", "--mount", mount.path) as server, server.showing("t") as shown, traced(mount) as sound:
        command = [program("trace_hostile"), "spoil", str(seed), "200"]
        hostile = subprocess.Popen(
            command, env=environment_of(mount), user=unprivileged.uid, group=unprivileged.uid, extra_groups=[],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
        )  # fmt: skip
        try:
            for n in range(1, 6):
                sound.ask("emit 50")
                shown.wait_for(lambda n=n: len([one for one in shown.lines if "judge:step" in one]) == 50 * n)
        finally:
            hostile.kill()
            hostile.communicate()
        shown.finish()
        server.finish()
    steps = [event["seq"] for event in shown.events() if event.name == "judge:step"]
    assert steps == list(range(250))


def test_nonsense_of_clients_harms_nobody(store, run):
    app = run(store.create("t", **ROOM), "app")
    chance = random.Random(1)
    with serving("t", "--store", store.path) as server, server.showing("t") as shown:
        for n in range(8):
            with server.connect() as client:
                client.sendall(chance.randbytes(chance.randrange(1, 300)))
            with server.connect() as client:
                client.sendall(Talk.command(CONNECT, struct.pack(">QIII", 0, 2, 4, 1))[: chance.randrange(1, 36)])
            with Talk(server) as talk:
                talk.begin()
                talk.socket.sendall(Talk.command(chance.randrange(1, 10), chance.randbytes(chance.randrange(40))))
            app.write(1)
            shown.wait_for(lambda n=n: shown.numbers() == list(range(n + 1)))
        shown.finish()
        server.finish()


def test_a_command_out_of_place_is_refused(store, run):
    run(store.create("t", **ROOM), "app").write(1)
    with serving("t", "--store", store.path) as server:
        with Talk(server) as talk:
            (session,) = [one.id for one in talk.connect()]
            assert talk.attach(session, LAST) == 6
            assert talk.ask(CREATE, b"", 4) == struct.pack(">I", 1)
            assert talk.attach(session + 1, LAST) == 3
            assert talk.attach(session, 3) == 5
            assert talk.ask(77, b"some bytes", 4) == struct.pack(">I", 10)
            assert talk.ask(DETACH, struct.pack(">Q", session), 4) == struct.pack(">I", 2)
            assert talk.attach(session, LAST) == 1
            assert talk.attach(session, LAST) == 2
            assert talk.index(12345).status == 4
            assert talk.packet(12345, 0, 1) is None
            assert talk.ask(DETACH, struct.pack(">Q", session), 4) == struct.pack(">I", 1)
            assert talk.attach(session, BEGINNING) == 1
            assert len(talk.streams(session)) == 2
        for early in (LIST, CREATE, NEW_STREAMS, NEXT_INDEX, GET_PACKET, GET_METADATA, 0):
            with server.connect() as client:
                client.sendall(Talk.command(early) if early else struct.pack(">QII", 1 << 40, CONNECT, 0))
                assert client.recv(1) == b""
        server.finish()


def test_many_connections_keep_nobody_out(store, run):
    app = run(store.create("t", **ROOM), "app")
    with serving("t", "--store", store.path) as server, server.showing("t") as shown:
        idle = [server.connect() for _ in range(2 * CONNECTIONS_MAX)]
        app.write(10)
        shown.wait_for(lambda: shown.numbers() == list(range(10)))
        descriptors = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        assert descriptors < CONNECTIONS_MAX + 30
        for client in idle:
            client.close()
        wait_until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) < descriptors - 20, "they have gone")
        talks = [Talk(server) for _ in range(VIEWERS_MAX)]
        answers = [talk.attach(*talk.begin(), LAST) for talk in talks]
        assert answers == (VIEWERS_MAX - 1) * [1] + [2]
        for talk in talks:
            talk.close()
        app.write(10)
        shown.wait_for(lambda: shown.numbers() == list(range(20)))
        shown.finish()
        server.finish()


def test_a_viewer_that_stands_still_loses_only_its_own(store, run):
    app = run(store.create("t", **ROOM), "app")
    with serving("t", "--store", store.path) as server, server.showing("t") as still, server.showing("t") as shown:
        still.process.send_signal(signal.SIGSTOP)
        for n in range(1, 6):
            assert shown.write_patiently(app, 1000) == 0
            shown.wait_for(lambda n=n: len(shown.lines) == 1000 * n)
        still.process.send_signal(signal.SIGCONT)
        still.wait_for(lambda: still.numbers() == list(range(5000)))
        still.finish()
        shown.finish()
        server.finish()


# --- the command line ---


def test_a_port_in_use_is_an_error(store):
    store.create("t")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = relayctl("live", "t", "--store", store.path, "--listen", address)
    said = f"relayctl: {address}: Address already in use; --listen ADDRESS:PORT chooses another\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.parametrize("address", ["5344", ":5344", "localhost:", "localhost:70000", "::1:5344", "a:b"])
def test_what_is_no_address_is_refused(store, address):
    done = relayctl("live", "--store", store.path, "--listen", address)
    assert done.returncode == 2
    assert f"{address} is no ADDRESS:PORT" in done.stderr


def test_an_output_that_is_full_is_an_error(store):
    command = [RELAYCTL, "live", "--store", store.path, "--listen", "127.0.0.1:0"]
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (1, "relayctl: No space left on device\n")


def test_traces_that_cannot_be_read_are_an_error_or_none(store, tmp_path):
    done = relayctl("live", "--store", tmp_path, "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"relayctl: {tmp_path}/.traces: No such file or directory\n"
    store.create("t")
    control, hidden = store.path / ".traces", store.path / ".hidden"
    with serving("--store", store.path) as server, Talk(server) as talk:
        assert len(talk.connect()) == 1
        control.rename(hidden)
        assert talk.sessions() == []
        hidden.rename(control)
        assert len(talk.sessions()) == 1
        said = f"the traces of {store.path} cannot be read: No such file or directory"
        assert server.finish() == f"relayctl: {said}\n"


def test_a_trace_that_does_not_exist_is_an_error(store):
    done = relayctl("live", "nothing", "--store", store.path, "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no trace nothing" in done.stderr


def test_a_signal_ends_it_with_its_viewers(store):
    store.create("t")
    with serving("t", "--store", store.path) as server, Talk(server) as talk:
        assert talk.attach(*talk.begin(), LAST) == 1
        server.process.send_signal(signal.SIGTERM)
        server.wait()
        assert talk.socket.recv(1) == b""
