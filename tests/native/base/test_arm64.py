"""The library assembles for arm64, and its sections end as that architecture needs."""

import re
import subprocess
from pathlib import Path

import pytest
from build import ROOT, native_prefix

SOURCES = sorted((ROOT / "native/src").rglob("*.c"))
FLAGS = ["-std=gnu11", "-fPIC", "-Wall", "-Wextra", "-Wshadow", "-Werror"]


def compiled(source: Path, *options: str | Path) -> str:
    include = [f"-I{native_prefix().include}", f"-I{ROOT / 'native/src'}"]
    command = ["aarch64-linux-gnu-gcc", *FLAGS, *include, source, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_source_assembles_for_arm64(source: Path, tmp_path: Path) -> None:
    # What has assembly of ours, the compiler must find registers for where it is inlined, too.
    if "#APP" in compiled(source, "-O0", "-S", "-o", "-"):
        compiled(source, "-O2", "-c", "-o", tmp_path / "out.o")


def test_the_last_store_of_each_arm64_section_is_a_store_release() -> None:
    text = compiled(ROOT / "native/src/channel/produce.c", "-O2", "-S", "-o", "-")
    # The record's count, then head: nothing between them, and head with release.
    assert re.search(r"^str x11, \[x10, #8\]\nstlr x\d+, \[x\d+\]$", text, re.MULTILINE)
