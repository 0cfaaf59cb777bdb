"""Programs that are compiled with <relayfs/producer.h>, by each compiler, and with other versions of the library."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from build import MUSL, PROGRAMS, Prefix, kernel_headers, native_prefix

PROGRAM = PROGRAMS / "producer.c"
# Of 629 records or more, some are too long to be written inline, and the first one enters a sub-buffer. What else runs
# on this machine may interrupt a few more.
FEW = 60
WRAPPED = [
    f"-Wl,--wrap=relay_{name}_anyhow"
    for name in ("write", "perf_adjust", "rings_output", "ring_output", "reserve", "try_reserve", "commit",
                 "rings_reserve", "ring_reserve", "ring_commit", "ring_discard")
]  # fmt: skip
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
COMPILERS = [
    ["gcc", "-std=c99", "-O0", "-pedantic"], ["gcc", "-std=c11", "-O2", "-pedantic", "-DALL_LENGTHS"],
    ["gcc", "-O3", "-fPIC"], ["gcc", "-O2", "-mavx2"], ["gcc", "-O2", "-no-pie", "-fno-pie"],
    ["clang", "-std=c11", "-O0"], ["clang", "-O2", "-fPIC", "-pedantic"],
    ["g++", "-std=c++11", "-O0"], ["g++", "-std=c++20", "-O2", "-pedantic"], ["clang++", "-std=c++17", "-O2"],
]  # fmt: skip

# A record that is written by an inline function of C++, which both files have.
IN_BOTH = r"""
#include <relayfs/producer.h>

inline int write_twice(struct rchan *chan, const char *text)
{
	return relay_write(chan, text, 16) || relay_write(chan, text, 3);
}

int NAME(struct rchan *chan)
{
	return write_twice(chan, "0123456789abcdef");
}
"""
BOTH = r"""
#include <relayfs/relay.h>

int first(struct rchan *chan);
int second(struct rchan *chan);

int main()
{
	struct rchan *chan = relay_open(nullptr, nullptr, 4096, 2, nullptr, nullptr);
	int failed = first(chan) || second(chan);
	relay_close(chan);
	return failed;
}
"""

PLUGIN = r"""
#include <relayfs/producer.h>

int write_some(struct rchan *chan, struct relay_counters *counters, int instance);
int write_some(struct rchan *chan, struct relay_counters *counters, int instance)
{
	int i, failed = 0;

	for (i = 0; i < 100; i++)
		failed |= relay_write(chan, "record", 6) || relay_perf_adjust(counters, instance, 1);
	return failed;
}
"""
# After the plugin has been unloaded, the thread is preempted: the kernel looks at its last section.
UNLOADING = r"""
#include <dlfcn.h>
#include <relayfs/counters.h>
#include <relayfs/relay.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	void *plugin = dlopen(argv[argc - 1], RTLD_NOW);
	struct rchan *chan = relay_open(NULL, NULL, 65536, 2, NULL, NULL);
	struct relay_counters *counters = relay_counters_open(NULL);
	int instance = relay_perf_add(counters, "plugin/adjusted");
	int (*write_some)(struct rchan *, struct relay_counters *, int);

	if (!plugin || !chan || !counters || instance < 0)
		return 2;
	*(void **)&write_some = dlsym(plugin, "write_some");
	if (write_some(chan, counters, instance) || dlclose(plugin))
		return 3;
	usleep(1000);
	return dlopen(argv[argc - 1], RTLD_NOW | RTLD_NOLOAD) != NULL;
}
"""


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def linked(prefix: Prefix) -> list[str]:
    return [f"-L{prefix.lib}", "-lrelayfs", "-Xlinker", "-rpath", "-Xlinker", str(prefix.lib), "-pthread"]


def compiled(program: Path, compiler: list[str], include: Path | None = None, prefix: Prefix | None = None) -> Path:
    prefix = prefix or native_prefix()
    language = ["-x", "c++" if "++" in compiler[0] else "c"]
    run(*compiler, *WARNINGS, *WRAPPED, f"-I{include or prefix.include}", "-o", program, *language, PROGRAM,
        "-x", "none", *linked(prefix))  # fmt: skip
    return program


def calls(program: Path, nowhere: Path) -> list[int]:
    """Run the program; return how many writes, adjustments, outputs and reservations called the library, and how many
    there were."""
    return [int(word) for word in run(program, **places(nowhere)).split()]


def assert_all_called(counts: list[int]) -> None:
    writes_called, writes, *others = counts
    # Some more are refused.
    assert all(called >= n for called, n in zip(others[0::2], others[1::2], strict=True))
    assert writes_called == writes


def places(nowhere: Path) -> dict[str, str]:
    return {"RELAYFS": str(nowhere), "RELAYFS_STORE": str(nowhere.parent / "store")}


@pytest.mark.parametrize("compiler", COMPILERS, ids=" ".join)
def test_a_program_writes_without_calling_the_library(compiler, tmp_path, nowhere):
    counts = calls(compiled(tmp_path / "producer", compiler), nowhere)
    assert len(counts) == 8
    assert all(called < FEW < n for called, n in zip(counts[0::2], counts[1::2], strict=True)), counts


def test_a_program_of_another_version_calls_the_library(tmp_path, nowhere):
    include = tmp_path / "include"
    shutil.copytree(native_prefix().include, include)
    version, buffer = include / "relayfs/inline/version.h", include / "relayfs/inline/buffer.h"
    text = version.read_text()
    version.write_text(re.sub("RELAY_INLINE_VERSION = .,", "RELAY_INLINE_VERSION = 7,", text))
    assert version.read_text() != text
    # What it knows of a buffer is wrong: it would write anywhere.
    text = buffer.read_text()
    buffer.write_text(text.replace("unsigned char *data;", "uint64_t was; unsigned char *data;"))
    assert buffer.read_text() != text
    assert_all_called(calls(compiled(tmp_path / "producer", ["gcc", "-O2"], include), nowhere))


def test_with_another_c_library_a_program_calls_the_library(tmp_path, nowhere):
    prefix = native_prefix(MUSL)
    headers = kernel_headers(prefix.path.parent)
    program = compiled(tmp_path / "producer", ["musl-gcc", "-O2", "-idirafter", str(headers)], prefix=prefix)
    # Not what is called in place of an inlined function, but the function itself.
    assert calls(program, nowhere)[0::2] == [0, 0, 0, 0]
    called = set(run("nm", "-u", "--without-symbol-versions", "--format=just-symbols", program).split())
    assert {"relay_write", "relay_perf_adjust", "relay_rings_output", "relay_reserve", "relay_ring_commit"} <= called


def test_it_assembles_for_arm64(tmp_path):
    for level in ("-O0", "-O2", "-O3"):
        run("aarch64-linux-gnu-gcc", level, *WARNINGS, f"-I{native_prefix().include}", "-c", PROGRAM, "-o",
            tmp_path / "out.o")  # fmt: skip


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_it_compiles_without_a_warning_however_it_is_optimized(compiler, tmp_path):
    for level in ("-Og", "-O1", "-Os", "-O3"):
        run(compiler, level, *WARNINGS, f"-I{native_prefix().include}", "-c", PROGRAM, "-o", tmp_path / "out.o")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_two_files_have_the_same_inline_function_that_writes(compiler, tmp_path, nowhere):
    (tmp_path / "both.cc").write_text(BOTH)
    sources = [tmp_path / "both.cc"]
    for name in ("first", "second"):
        sources.append(tmp_path / f"{name}.cc")
        sources[-1].write_text(IN_BOTH.replace("NAME", name))
    # Not optimized, the function is not inlined: the linker drops one of the copies, with its sections.
    run(compiler, "-O0", *WARNINGS, f"-I{native_prefix().include}", "-o", tmp_path / "both", *sources,
        *linked(native_prefix()))  # fmt: skip
    run(tmp_path / "both", **places(nowhere))


def test_a_plugin_that_has_written_may_be_unloaded(tmp_path, nowhere):
    (tmp_path / "plugin.c").write_text(PLUGIN)
    (tmp_path / "unloading.c").write_text(UNLOADING)
    include = f"-I{native_prefix().include}"
    run("gcc", "-O2", "-shared", "-fPIC", *WARNINGS, include, "-o", tmp_path / "plugin.so", tmp_path / "plugin.c",
        *linked(native_prefix()))  # fmt: skip
    run("gcc", "-O2", *WARNINGS, include, "-o", tmp_path / "unloading", tmp_path / "unloading.c",
        *linked(native_prefix()))  # fmt: skip
    run(tmp_path / "unloading", tmp_path / "plugin.so", **places(nowhere))


IMPLEMENTATION = "#define RELAYFS_IMPLEMENTATION\n#include <relayfs/producer.h>\n"


@pytest.mark.parametrize(
    "compiler",
    [
        "gcc -std=c11 -fsyntax-only -D_GNU_SOURCE -pedantic",
        # -O2 takes twice as long. With -Og the compiler knows the least of what is set when.
        "gcc -std=gnu17 -O1 -fPIC -D_GNU_SOURCE -Wundef",
        "gcc -std=gnu17 -Og -D_GNU_SOURCE",
        "clang -std=c11 -fsyntax-only -D_GNU_SOURCE -pedantic",
    ],
)
def test_the_implementation_is_compiled_with_any_options(compiler: str, tmp_path: Path) -> None:
    source = tmp_path / "implementation.c"
    source.write_text(IMPLEMENTATION)
    prefix = native_prefix()
    run(*compiler.split(), *WARNINGS, f"-I{prefix.include}", "-c", "-o", tmp_path / "implementation.o", source)


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        ("gcc -std=c11", "RELAYFS_IMPLEMENTATION needs -D_GNU_SOURCE, or #define _GNU_SOURCE before all headers"),
        ("gcc -std=c99 -D_GNU_SOURCE", "RELAYFS_IMPLEMENTATION needs C11 or later"),
        ("g++ -x c++", "RELAYFS_IMPLEMENTATION is for a C file; what calls its functions may be C++"),
    ],
)
def test_what_the_implementation_needs_is_said(compiler: str, says: str, tmp_path: Path) -> None:
    source = tmp_path / "implementation.c"
    source.write_text(IMPLEMENTATION)
    command = [*compiler.split(), f"-I{native_prefix().include}", "-fsyntax-only", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.count(f'error: #error "{says}"') == 1
    assert done.stderr.count("error: ") == 1, "there are others"
