"""The installed headers and the pkg-config module, as a C or C++ program meets them."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from build import HEADERS, ROOT, native_prefix
from c_declarations import declarations

ATTACH = r"""
#include <errno.h>
#include <stdio.h>
#include <relayfs/relay.h>

int main(int argc, char **argv)
{
	struct rchan *chan = relay_attach(argv[argc - 1]);

	printf("%d\n", chan ? 0 : errno);
	relay_close(chan);
	return 0;
}
"""

# The example of classic.h, and each name of the document of 2003 as it is written there.
CLASSIC = r"""
#include <relayfs/classic.h>
#include <stddef.h>
#include <stdio.h>

struct header { uint32_t number; };
struct footer { uint32_t unused; };
struct event { uint32_t id; uint64_t time_delta; } __attribute__((packed));

static int buffer_start(int channel_id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
	uint64_t start_tsc, int using_tsc)
{
	struct header *header = (struct header *)current_write_pos;
	(void)channel_id, (void)start_time, (void)start_tsc, (void)using_tsc;
	header->number = buffer_id;
	return sizeof(*header);
}

static int buffer_end(int channel_id, char *current_write_pos, char *end_of_buffer, struct timeval end_time,
	uint64_t end_tsc, int using_tsc)
{
	(void)channel_id, (void)current_write_pos, (void)end_of_buffer, (void)end_time, (void)end_tsc, (void)using_tsc;
	return 0;
}

static void deliver(int channel_id, char *from, uint32_t len)
{
	(void)from;
	printf("%d: %u bytes\n", channel_id, (unsigned)len);
}

static int buffers_full(int channel_id)
{
	(void)channel_id;
	return 1;
}

int main(void)
{
	struct rchan_callbacks callbacks = {buffer_start, buffer_end, deliver, buffers_full};
	struct event event = {1, 0};
	struct rchan_info channel_info;
	struct timeval time_stamp;
	uint64_t time_delta;
	int err;
	uint32_t channel_flags = RELAY_SCHEME_ANY | RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK | RELAY_TIMESTAMP_TSC;
	int channel_id = relay_open("/xlog/9", 65536, 4, channel_flags, &callbacks, sizeof(struct header),
		sizeof(struct footer), 0);
	if (channel_id < 0)
		return 1;
	relay_write(channel_id, &event, sizeof(event), offsetof(struct event, time_delta));
	struct rchan *rchan = rchan_get(channel_id);
	if (!relay_lock_channel(rchan)) {
		char *reserved = relay_reserve(rchan, 8, &time_stamp, &time_delta, &err);
		if (reserved)
			relay_commit(rchan, reserved, 8);
		relay_unlock_channel(rchan);
	}
	rchan_put(rchan);
	relay_buffers_consumed(channel_id, 0);
	relay_resume(channel_id);
	return relay_info(channel_id, &channel_info) || channel_info.cur_idx != 24 || relay_close(channel_id);
}
"""

# Tracepoints without fields and with as many as there can be, of all types.
TRACED = r"""
#include <relayfs/trace.h>

RELAY_TRACE_EVENT(app, tick)
RELAY_TRACE_EVENT(app, one, (u32, n))
RELAY_TRACE_EVENT(app, many, (u8, a), (u16, b), (u32, c), (u64, d), (i8, e), (i16, f), (i32, g), (i64, h), (x8, i),
	(x16, j), (x32, k), (x64, l), (f32, m), (f64, n), (string, o), (bytes, p))
RELAY_TRACE_ENUM(states, i16, {"IDLE", 0}, {"BUSY", -1})
RELAY_TRACE_EVENT_LEVEL(ERR, app, forms, (enum, state, states), (array, pair, u16, 2), (sequence, all, f32))

struct point { int32_t x, y; };
typedef struct {
	struct point from, to;
	const char *path;
	char name[4];
	uint16_t pair[2];
	uint8_t *key;
	float *all;
	size_t all_length, body_length;
	void *body;
	int state;
} request_t;
RELAY_TRACE_STRUCT(point, struct point, (i32, x), (i32, y))
RELAY_TRACE_STRUCT(request, request_t, (struct, from, point), (string, path), (struct, to, point), (string, name),
	(array, pair, u16, 2), (array, key, u8, 3), (sequence, all, f32), (bytes, body), (enum, state, states))
RELAY_TRACE_STATE(app, kept, (string, key), (u8, value))
RELAY_TRACE_EVENT(app, structs, (struct, at, point), (struct, request, request), (u8, last))

int main(void)
{
	trace_app_tick();
	const uint16_t pair[2] = {1, 2};
	trace_app_one(1);
	trace_app_forms(-1, pair, NULL, 0);
	const struct point at = {1, 2};
	trace_app_structs(&at, NULL, 3);
	trace_app_many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13.0f, 14.0, "15", "16", 2);
	trace_app_kept("key", 1);
	trace_app_kept_clear("key");
	relay_trace_prepare();
	relay_trace_end();
	return relay_log("%d", 1);
}
"""


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pkg_config(*options: str) -> list[str]:
    paths = {"PKG_CONFIG_PATH": str(native_prefix().pkgconfig)}
    return run("pkg-config", *options, "relayfs", **paths).split()


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
@pytest.mark.parametrize("compiler", [["gcc", "-std=c11"], ["g++", "-std=c++17"]], ids=["C11", "C++17"])
def test_header_compiles_alone(header, compiler, tmp_path):
    name = header.name.removesuffix(".in")
    source = tmp_path / ("alone.c" if compiler[0] == "gcc" else "alone.cc")
    source.write_text(f"#include <relayfs/{name}>\n#include <relayfs/{name}>\n")
    flags = ["-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{native_prefix().include}"]
    run(*compiler, *flags, "-fsyntax-only", source)


def test_program_built_with_pkg_config_runs(tmp_path):
    source, program = tmp_path / "attach.c", tmp_path / "attach"
    source.write_text(ATTACH)
    run("gcc", "-std=c11", "-Wall", "-Werror", *pkg_config("--cflags"), "-o", program, source, *pkg_config("--libs"))
    libraries = {"LD_LIBRARY_PATH": pkg_config("--variable=libdir")[0]}
    assert run(program, tmp_path / "no/such/channel", **libraries) == "2\n"  # ENOENT


@pytest.mark.parametrize("compiler", [["gcc", "-std=c11"], ["g++", "-std=c++17"]], ids=["C11", "C++17"])
def test_a_program_written_from_the_document_of_2003_compiles_and_links(compiler, tmp_path, nowhere):
    source, program = tmp_path / ("classic.c" if compiler[0] == "gcc" else "classic.cc"), tmp_path / "classic"
    source.write_text(CLASSIC)
    flags = ["-Wall", "-Wextra", "-Werror", *pkg_config("--cflags")]
    run(*compiler, *flags, "-o", program, source, *pkg_config("--libs"))
    places = {"RELAYFS": str(nowhere), "RELAYFS_STORE": str(nowhere.parent / "store")}
    delivered = run(program, LD_LIBRARY_PATH=pkg_config("--variable=libdir")[0], **places)
    assert re.fullmatch(r"\d+: 24 bytes\n", delivered)


@pytest.mark.parametrize(
    "compiler",
    [
        ["gcc", "-std=c99"], ["gcc", "-std=c11"], ["gcc", "-std=gnu17", "-O2"], ["clang", "-std=c99"],
        ["g++", "-std=c++11"], ["g++", "-std=c++20", "-O2"], ["clang++", "-std=c++17"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_tracepoints_compile_without_a_warning(compiler, tmp_path, nowhere):
    source, program = tmp_path / ("traced.cc" if "++" in compiler[0] else "traced.c"), tmp_path / "traced"
    source.write_text(TRACED)
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-pedantic", "-Werror"]
    run(*compiler, *warnings, *pkg_config("--cflags"), "-o", program, source, *pkg_config("--libs"))
    places = {"RELAYFS": str(nowhere), "RELAYFS_STORE": str(nowhere.parent / "store")}
    run(program, LD_LIBRARY_PATH=pkg_config("--variable=libdir")[0], **places)


def test_a_program_includes_one_of_the_two_headers(tmp_path):
    source = tmp_path / "both.c"
    for names in (["relay.h", "classic.h"], ["classic.h", "relay.h"]):
        source.write_text("".join(f"#include <relayfs/{name}>\n" for name in names))
        command = ["gcc", f"-I{native_prefix().include}", "-fsyntax-only", source]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "relayfs/relay.h" in done.stderr
        command.insert(1, "-DRELAYFS_CLASSIC_LONG_NAMES")
        run(*command)


def exported_versions() -> dict[str, str]:
    """Each symbol that programs may link to, with its version."""
    symbols = run("nm", "-D", "--defined-only", "--with-symbol-versions", "--format=posix",
                  native_prefix().lib / "librelayfs.so.0")  # fmt: skip
    return dict(re.findall(r"^(\w+)@@(\w+) ", symbols, re.MULTILINE))


def test_library_exports_what_the_headers_declare():
    inline = sorted((ROOT / "native/include/relayfs/inline").glob("*.h"))
    assert exported_versions().keys() == declared_functions(HEADERS) | declared_variables([*HEADERS, *inline])


def test_library_exports_nothing_of_the_benchmarks():
    yardsticks = declared_functions(sorted((ROOT / "native/bench").glob("*.h")))
    assert yardsticks
    assert yardsticks.isdisjoint(exported_versions())


def test_what_is_for_tools_has_a_version_of_its_own():
    of_tools = [path for path in HEADERS if path.name.endswith("store.h") or path.name == "merge.h"]
    versions = exported_versions()
    tools = declared_functions(of_tools) | declared_variables(of_tools)
    assert tools
    assert {name: versions[name] for name in tools} == dict.fromkeys(tools, "RELAYFS_PRIVATE")
    programs = (declared_functions(HEADERS) | declared_variables(HEADERS)) - tools
    assert {name: versions[name] for name in programs} == dict.fromkeys(programs, "RELAYFS_0")


def declared_functions(headers: list[Path]) -> set[str]:
    prototypes = [text for path in headers for text in declarations(path) if text.endswith(")")]
    return {text.partition("(")[0].replace("*", " ").split()[-1] for text in prototypes if "_BOUND_(" not in text}


def declared_variables(headers: list[Path]) -> set[str]:
    found = [text for path in headers for text in declarations(path) if text.startswith("extern ")]
    # trace.h's parts, whose names end in _, are each program's own.
    return {text.removesuffix(" RELAY_TLS").replace("*", " ").split()[-1] for text in found if "(" not in text}


def test_library_has_one_name():
    dynamic = run("readelf", "-d", native_prefix().lib / "librelayfs.so")
    assert "[librelayfs.so.0]" in dynamic
