"""Programs of another C library, and programs that have the library in them, write what our tools read."""

import subprocess
from pathlib import Path

import pytest
from babeltrace import lost
from build import MUSL, PLAIN, compile_c, kernel_headers, native_prefix
from mounts import Mount
from traced import environment_of, record_stopped
from traffic import drain

from relayfs_fuse.counters import Counters

SOURCE = Path(__file__).with_name("all_parts.c")
IMPLEMENTATION = Path(__file__).with_name("implementation.c")
N_THREADS, N = 4, 500
LINES = sorted(f"{thread} {seq}" for thread in range(N_THREADS) for seq in range(N))
ROOM = "subbuf_size=64K n_subbufs=4"
DEADLINE_S = 900


def lines_of(files: list[Path]) -> list[str]:
    return sorted(line for file in files for line in drain(file).decode().splitlines())


# Nothing of the library is, if the program has IMPLEMENTATION.
WITHIN = "-Wl,--as-needed"
WAYS = [pytest.param("", id="shared"), pytest.param("-static", id="static"), pytest.param(WITHIN, id="in it")]


def implementation(libc: str) -> Path:
    """Compile IMPLEMENTATION, which takes longer than all other programs here, once for all that are linked with it."""
    # As the library itself is compiled.
    headers = ["-idirafter", str(kernel_headers(native_prefix(MUSL).path.parent))] if libc == MUSL else []
    return compile_c([IMPLEMENTATION], None, libc, "-c", "-fPIC", *headers)


def needed(path: Path) -> str:
    """Get the names of the shared libraries that a program or library is linked to, a line each."""
    lines = subprocess.check_output(["readelf", "--dynamic", path], text=True).splitlines()
    return "\n".join(line for line in lines if "(NEEDED)" in line)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("libc", [PLAIN, MUSL], ids=["glibc", "musl"])
def test_threads_write_into_all_parts_up_to_their_last_destructor(
    mount: Mount, tmp_path: Path, libc: str, way: str
) -> None:
    mount.create("all/channel", f"{ROOM} scheme=rseq")
    mount.create("all/ring", "type=ring size=64K buffers=percpu scheme=rseq")
    mount.command(f"trace create t {ROOM}")
    mount.command("trace start t")
    within = [implementation(libc)] if way == WITHIN else []
    program = compile_c([SOURCE, *within], None, libc, *filter(None, [way]))
    assert ("librelayfs" in needed(program)) == (way == "")
    command = [program, mount.path, str(N_THREADS), str(N)]
    done = subprocess.run(
        command, env=environment_of(mount), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    # Nothing was counted by a thread without a CPU: all had their restartable sequences.
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    for name in ("channel", "ring"):
        assert lines_of(sorted(mount.path.glob(f"all/{name}[0-9]*"))) == LINES
    with Counters(mount.path) as counters:
        assert counters.value("parts/lines") == len(LINES)
    events = record_stopped(mount, "t", tmp_path / "out").named("parts:line")
    found = sorted(f"{event['thread']} {event['seq']}" for event in events)
    # A tracepoint does not wait for a thread that is kept from running while it begins a sub-buffer: it counts a loss.
    assert found == sorted(set(found) & set(LINES))
    assert len(found) + lost(tmp_path / "out") == len(LINES)


@pytest.mark.parametrize("libc", [PLAIN, MUSL], ids=["glibc", "musl"])
def test_a_program_loads_the_library_while_it_runs(mount: Mount, libc: str) -> None:
    channel = mount.create("channel", "scheme=rseq")
    # Not linked with it, as nothing of it is called.
    loader = compile_c([SOURCE.with_name("loader.c")], None, libc, "-Wl,--as-needed")
    command = [loader, native_prefix(libc).lib / "librelayfs.so", channel]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert lines_of(sorted(mount.path.glob("channel[0-9]*"))) == ["loaded"]


def test_a_plugin_with_its_own_library_leaves_that_of_the_program_alone(mount: Mount, tmp_path: Path) -> None:
    channels = [mount.create(f"app/{name}", "buffers=single") for name in ("host", "plugin")]
    mount.command("trace create t")
    mount.command("trace start t")
    host = compile_c([SOURCE.with_name("host.c")])
    options = ("-shared", "-fPIC", WITHIN, "-Wl,-z,nodelete")
    plugin = compile_c([SOURCE.with_name("plugin.c"), implementation(PLAIN)], None, PLAIN, *options)
    assert "librelayfs" in needed(host)
    assert "librelayfs" not in needed(plugin)
    exported = subprocess.check_output(["nm", "--dynamic", "--defined-only", plugin], text=True).splitlines()
    names = {line.split()[-1] for line in exported}
    # The linker's own, which are bound within the plugin.
    assert names - {"__start_relay_trace_events", "__stop_relay_trace_events"} == {"plugin_write"}

    command = [host, plugin, *channels]
    done = subprocess.run(
        command, env=environment_of(mount), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [drain(channel) for channel in channels] == [b"one\ntwo\n", b"plugin\n"]
    with Counters(mount.path) as counters:
        assert counters.value("plugin/lines") == 1
    recorded = record_stopped(mount, "t", tmp_path / "out")
    assert [event["number"] for event in recorded.named("host:line")] == [1, 2]
    assert [event["number"] for event in recorded.named("plugin:line")] == [1]
