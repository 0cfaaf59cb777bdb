"""relayfs has one version, that of native/CMakeLists.txt, and each part tells it."""

import importlib.metadata
import os
import re
import subprocess

import pytest
from build import ROOT, compile_c, native_prefix

import relayfs_fuse

PROJECT = re.search(r"^project\(relayfs VERSION (\S+) ", (ROOT / "native/CMakeLists.txt").read_text(), re.MULTILINE)
VERSION = PROJECT[1] if PROJECT else ""

PROGRAM = r"""
#include <relayfs/version.h>
#include <stdio.h>

int main(void)
{
	int numbers[] = {RELAY_VERSION_MAJOR, RELAY_VERSION_MINOR, RELAY_VERSION_PATCH};

	printf("%s %s %d.%d.%d\n", relay_version(), RELAY_VERSION, numbers[0], numbers[1], numbers[2]);
	return 0;
}
"""


def output(*command: object, **environment: str) -> str:
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **environment}).stdout


def test_the_c_library_and_its_header_tell_the_version(tmp_path):
    source = tmp_path / "version.c"
    source.write_text(PROGRAM)
    program = compile_c([source], tmp_path / "version")
    assert output(program) == f"{VERSION} {VERSION} {VERSION}\n"


def test_pkg_config_tells_the_version():
    where = str(native_prefix().pkgconfig)
    assert output("pkg-config", "--modversion", "relayfs", PKG_CONFIG_PATH=where) == f"{VERSION}\n"


def test_the_python_package_tells_the_version():
    assert relayfs_fuse.__version__ == importlib.metadata.version("relayfs") == VERSION


def test_the_changelog_has_a_section_of_the_version():
    assert f"\n## [{VERSION}] - " in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "debian/changelog").read_text().startswith(f"relayfs ({VERSION}) ")


@pytest.mark.parametrize("program", ["relayfs", "relayctl"])
@pytest.mark.parametrize("option", ["--version", "-V"])
def test_programs_tell_the_version(program, option):
    assert output(program, option) == f"{program} {VERSION}\n"
