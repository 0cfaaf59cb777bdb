"""Tracepoints of whole programs: what only shows in several files, in the environment, and to babeltrace2."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import PLAIN, compile_c, native_prefix
from mounts import DEADLINE_S, tmpfs_directory
from tracing import Store, relayctl

from relayfs_fuse.fs.early import take
from relayfs_fuse.native import trace as native_trace

SUBBUF_BYTES = 1 << 16
# Programs that are compiled here: what is declared, and what main() does.
PROGRAM = """
#include <dlfcn.h>
#include <relayfs/trace.h>
#include <stdio.h>
#include <stdlib.h>
%s
int main(int argc, char **argv)
{
	(void)argc, (void)argv;
	%s
	return 0;
}
"""
TYPES = (
    "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "x8", "x16", "x32", "x64", "f32", "f64", "string", "bytes",
)  # fmt: skip


@pytest.fixture
def store(store: Store) -> Store:
    store.create("t", subbuf_size=SUBBUF_BYTES)
    return store


def program(directory: Path, declared: str, main: str, *sources: Path, name: str = "prog") -> Path:
    source = directory / f"{name}.c"
    source.write_text(PROGRAM % (declared, main))
    return compile_c([source, *sources], directory / name)


def test_fields_of_all_types_arrive(store, tmp_path):
    declared = f"RELAY_TRACE_EVENT(all, types, {', '.join(f'({word}, f_{word})' for word in TYPES)})"
    main = """
	trace_all_types(UINT8_MAX, UINT16_MAX, UINT32_MAX, UINT64_MAX, INT8_MIN, INT16_MIN, INT32_MIN, INT64_MIN, 254,
		65534, 0xfedcba98, 0xfedcba9876543210, 0.5f, -1e300, "gr\\xc3\\xbc\\xc3\\x9f \\"e\\"", "\\x00\\xff", 2);
	trace_all_types(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0);
	trace_all_types(1, 2, 3, 4, -1, -2, -3, -4, 5, 6, 7, 8, -0.25f, 0.125, "", "x", 1);"""
    store.run(program(tmp_path, declared, main))
    most, none, few = store.events("t")
    assert most == (
        "all:types: { f_u8 = 255, f_u16 = 65535, f_u32 = 4294967295, f_u64 = 18446744073709551615, f_i8 = -128, "
        "f_i16 = -32768, f_i32 = -2147483648, f_i64 = -9223372036854775808, f_x8 = 0xFE, f_x16 = 0xFFFE, "
        "f_x32 = 0xFEDCBA98, f_x64 = 0xFEDCBA9876543210, f_f32 = 0.5, f_f64 = -1e+300, "
        'f_string = "grüß \\"e\\"", _f_bytes_length = 2, f_bytes = [ [0] = 0x0, [1] = 0xFF ] }'
    )
    assert 'f_f64 = 0, f_string = "", _f_bytes_length = 0, f_bytes = [ ] }' in none
    assert few == (
        "all:types: { f_u8 = 1, f_u16 = 2, f_u32 = 3, f_u64 = 4, f_i8 = -1, f_i16 = -2, f_i32 = -3, f_i64 = -4, "
        "f_x8 = 0x5, f_x16 = 0x6, f_x32 = 0x7, f_x64 = 0x8, f_f32 = -0.25, f_f64 = 0.125, "
        'f_string = "", _f_bytes_length = 1, f_bytes = [ [0] = 0x78 ] }'
    )


def test_events_have_any_number_of_fields(store, tmp_path):
    declared, main = "", ""
    for n in range(17):
        fields = "".join(f", (u{8 << i % 4}, int_{i})" for i in range(n))
        declared += f"RELAY_TRACE_EVENT(fields, of{n}{fields})\n"
        main += f"trace_fields_of{n}({', '.join(str(i) for i in range(n))});\n"
    store.run(program(tmp_path, declared, main))
    values = [", ".join(f"int_{i} = {i}" for i in range(n)) for n in range(17)]
    assert store.events("t") == [f"fields:of{n}: {{ {values[n]}{' ' if n else ''}}}" for n in range(17)]


def test_sources_and_libraries_that_declare_an_event_alike_have_one(store, tmp_path):
    (tmp_path / "event.h").write_text("#include <relayfs/trace.h>\nRELAY_TRACE_EVENT(app, step, (u32, who))\n")
    for name, who in (("second", 2), ("library", 3)):
        (tmp_path / f"{name}.c").write_text(f'#include "event.h"\nvoid {name}(void);\n'
                                            f"void {name}(void)\n{{\n\ttrace_app_step({who});\n}}\n")  # fmt: skip
    library = tmp_path / "library.so"
    compile_c([tmp_path / "library.c"], library, PLAIN, "-shared", "-fPIC")
    main = f"""
	trace_app_step(1);
	second();
	for (int i = 0; i < 3; i++) {{
		void *library = dlopen("{library}", RTLD_NOW);
		if (!library)
			return 1;
		void (*step)(void);
		*(void **)&step = dlsym(library, "library");
		step();
		if (dlclose(library))
			return 2;
	}}
	second();"""
    store.run(program(tmp_path, '#include "event.h"\nvoid second(void);', main, tmp_path / "second.c"))
    assert store.events("t") == [f"app:step: {{ who = {who} }}" for who in (1, 2, 3, 3, 3, 2)]
    assert (store.processes("t")[0] / ".events").read_text().count("event {") == 1


def test_a_library_is_not_told_of_traces_after_it_was_unloaded(store, tmp_path):
    (tmp_path / "library.c").write_text(
        "#include <relayfs/trace.h>\nRELAY_TRACE_EVENT(library, step)\nvoid step(void);\nvoid step(void)\n{\n"
        "\ttrace_library_step();\n}\n"
    )
    library = tmp_path / "library.so"
    compile_c([tmp_path / "library.c"], library, PLAIN, "-shared", "-fPIC")
    main = f"""
	for (int i = 0; i < 200; i++) {{
		void *library = dlopen("{library}", RTLD_NOW);
		void (*step)(void);
		*(void **)&step = dlsym(library, "step");
		step();
		dlclose(library);
		relay_trace_prepare();
		trace_app_tick();
	}}
	if (dlopen("{library}", RTLD_NOW | RTLD_NOLOAD))
		return 1;"""
    store.run(program(tmp_path, "RELAY_TRACE_EVENT(app, tick)", main))
    events = store.events("t")
    assert (events.count("app:tick: { }"), events.count("library:step: { }")) == (200, 200)


def test_tracing_can_be_forbidden(store, tmp_path):
    main = "trace_app_tick(); relay_trace_prepare(); trace_app_tick();"
    store.run(program(tmp_path, "RELAY_TRACE_EVENT(app, tick)", main), RELAYFS_TRACE="off")
    assert store.processes("t") == []


def test_a_program_runs_the_same_without_a_store(store, tmp_path):
    main = 'trace_app_tick(); relay_trace_prepare(); return relay_log("x");'
    built = program(tmp_path, "RELAY_TRACE_EVENT(app, tick)", main)
    store.run(built, RELAYFS_STORE=str(tmp_path / "nowhere"))
    assert store.processes("t") == []


def test_who_shares_buffers_says_who_it_is(store, tmp_path):
    shared = native_trace.BUFFERS_SHARED
    store.create("shared", buffers=shared)
    built = program(tmp_path, "RELAY_TRACE_EVENT(app, tick)", "trace_app_tick();")
    for _ in range(3):
        store.run(built)
    assert [path.name for path in store.processes("shared")] == ["shared"]
    assert len(store.processes("t")) == 3
    pids = [path.name.removeprefix("prog-") for path in store.processes("t")]
    assert sorted(store.events("shared")) == sorted(f"app:tick: {{ vpid = {pid} }}, {{ }}" for pid in pids)


def test_declarations_tell_levels_and_places(store, tmp_path):
    declared = """
#define ERR a macro of the program
RELAY_TRACE_EVENT_LEVEL(ERR, app, failed, (u32, level))
RELAY_TRACE_EVENT_LEVEL(DEBUG, app, detail)
RELAY_TRACE_EVENT(app, plain)
"""
    source = tmp_path / "prog.c"
    first = PROGRAM.partition("%s")[0].count("\n") + declared.count("\n", 0, declared.index("RELAY")) + 1
    store.run(program(tmp_path, declared, "trace_app_failed(3);\ntrace_app_detail();\ntrace_app_plain();"))
    assert relayctl("snapshot", "t", "--store", store.path, "-o", tmp_path / "out").returncode == 0
    done = subprocess.run(
        ["babeltrace2", "-f", "loglevel,emf", tmp_path / "out"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    found = re.findall(r"^\[.*?\] \S+ (?:(TRACE_\w+ \(\d+\)):)?(\S+) app:(\w+): ", done.stdout, re.MULTILINE)
    assert found == [
        ("TRACE_ERR (3)", f"{source}:{first}", "failed"),
        ("TRACE_DEBUG (14)", f"{source}:{first + 1}", "detail"),
        ("", f"{source}:{first + 2}", "plain"),
    ]


def test_any_path_of_a_source_can_be_declared(store, tmp_path):
    declared = f"""
#line 5 "{"x" * 300}/a \\"source\\"\\\\\xff.c"
RELAY_TRACE_EVENT(app, tick)"""
    store.run(program(tmp_path, declared, "trace_app_tick();"))
    assert store.events("t") == ["app:tick: { }"]
    place = re.search(r'model\.emf\.uri = "(.*)";', (store.processes("t")[0] / ".events").read_text())
    assert place
    assert place[1].endswith("x/a _source____.c:5")
    assert len(place[1]) == 255 + len(":5")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="reads x86-64's assembly")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_tracepoint_that_is_off_is_a_load_and_a_branch(compiler, tmp_path):
    source, binary = tmp_path / "off.c", tmp_path / "off.o"
    source.write_text(
        "#include <relayfs/trace.h>\nRELAY_TRACE_EVENT(app, step, (u32, n), (string, text))\n"
        "void off(uint32_t n, const char *text);\n"
        "void off(uint32_t n, const char *text)\n{\n\ttrace_app_step(n, text);\n}\n"
    )
    command = [compiler, "-O2", f"-I{native_prefix().include}", "-c", source, "-o", binary]
    subprocess.run(list(map(str, command)), check=True)
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "--disassemble=off", binary], capture_output=True, text=True, check=True
    ).stdout
    taken = []
    for line in re.findall(r"^ +[0-9a-f]+:\t(.*)$", text, re.MULTILINE):
        taken.append(line)
        # Where the tracepoint is off the branch falls through, or leads to the return.
        if line.startswith(("ret", "j")):
            break
    loads = [line for line in taken if "(" in line and not line.startswith("lea")]
    assert len(loads) == 1, text
    assert taken[-1].startswith("j"), text
    assert len(taken) <= 4, text


def test_events_of_before_the_store_wait_for_a_trace_of_that_name(tmp_path):
    main = """
	for (int i = 0; i < 5; i++)
		trace_app_step((uint32_t)i);
	puts("ready");
	fflush(stdout);
	getchar();
	trace_app_step(5);"""
    built = program(tmp_path, "RELAY_TRACE_EVENT(app, step, (u32, n))", main)
    with tmpfs_directory() as path:
        places = {"RELAYFS_STORE": str(path), "RELAYFS": str(path / "nowhere"), "RELAYFS_TRACE_EARLY": "t,n_subbufs=2"}
        with subprocess.Popen(
            [built], env={**os.environ, **places}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            store = Store(path)
            store.create("other")
            store.create("t")
            # As a server does.
            take(str(path), store.traces.get(1))
            assert len(store.processes("t")) == 1
            process.communicate("\n", DEADLINE_S)
        assert store.events("t") == [f"app:step: {{ n = {n} }}" for n in range(6)]
        assert len(store.events("other")) <= 1


# Each test has a user of its own, whose default store no other test uses.
SIGNED = {61_231: "mounted at /nowhere/at/all", 61_232: "mounted at /elsewhere", 61_233: "unmounted", 61_234: None}


@pytest.fixture
def others_program() -> Iterator[Path]:
    """A traced program that every user may run."""
    with tempfile.TemporaryDirectory(prefix="relayfs-test-") as path:
        Path(path).chmod(0o755)
        yield program(Path(path), "RELAY_TRACE_EVENT(app, step, (u32, n))", "trace_app_step(7);")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as another user")
@pytest.mark.parametrize(("uid", "signed"), SIGNED.items())
def test_the_default_store_is_that_of_the_named_mount_or_of_no_concern(others_program, uid, signed):
    path = Path(f"/dev/shm/relayfs-{uid}")
    path.mkdir(mode=0o755)
    try:
        store = Store(path)
        store.create("t")
        if signed is not None:
            (path / ".lock").write_text(f"process 1, {signed}\n")
        for file in (path, *path.rglob("*")):
            os.chown(file, uid, uid)
        as_owner = ["setpriv", "--reuid", uid, "--clear-groups"]
        store.run(*as_owner, others_program, RELAYFS="/nowhere/at/all/", RELAYFS_STORE="")
        assert [store.written(process) for process in store.processes("t")] == [1] * (
            signed == "mounted at /nowhere/at/all"
        )
    finally:
        shutil.rmtree(path)
