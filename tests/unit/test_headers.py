"""The installed headers and the pkg-config module, as a C or C++ program meets them."""

import importlib.metadata
import os
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
    source = tmp_path / ("alone.c" if compiler[0] == "gcc" else "alone.cc")
    source.write_text(f"#include <relayfs/{header.name}>\n#include <relayfs/{header.name}>\n")
    flags = ["-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{native_prefix().include}"]
    run(*compiler, *flags, "-fsyntax-only", source)


def test_program_built_with_pkg_config_runs(tmp_path):
    source, program = tmp_path / "attach.c", tmp_path / "attach"
    source.write_text(ATTACH)
    run("gcc", "-std=c11", "-Wall", "-Werror", *pkg_config("--cflags"), "-o", program, source, *pkg_config("--libs"))
    libraries = {"LD_LIBRARY_PATH": pkg_config("--variable=libdir")[0]}
    assert run(program, tmp_path / "no/such/channel", **libraries) == "2\n"  # ENOENT


def test_version_is_one():
    assert pkg_config("--modversion") == [importlib.metadata.version("relayfs")]


def test_library_exports_what_the_headers_declare():
    symbols = run("nm", "-D", "--defined-only", "--format=posix", native_prefix().lib / "librelayfs.so.0")
    exported = {line.split()[0].partition("@")[0] for line in symbols.splitlines()}
    # bench.h: the copy that benchmarks compare a write with must be called across the same boundary.
    declared = declared_functions([*HEADERS, ROOT / "native/src/bench.h"]) | declared_variables(HEADERS)
    assert {name for name in exported if not name.startswith("RELAYFS_")} == declared


def declared_functions(headers: list[Path]) -> set[str]:
    prototypes = [text for path in headers for text in declarations(path) if text.endswith(")")]
    return {text.partition("(")[0].replace("*", " ").split()[-1] for text in prototypes}


def declared_variables(headers: list[Path]) -> set[str]:
    found = [text for path in headers for text in declarations(path) if text.startswith("extern ")]
    return {text.replace("*", " ").split()[-1] for text in found}


def test_library_has_one_name():
    dynamic = run("readelf", "-d", native_prefix().lib / "librelayfs.so")
    assert "[librelayfs.so.0]" in dynamic
