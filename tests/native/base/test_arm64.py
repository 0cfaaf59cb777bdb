"""The library assembles for arm64, and its sections end as that architecture needs."""

import re
import subprocess
from pathlib import Path

import pytest
from build import ROOT, native_prefix

SOURCES = sorted((ROOT / "native/src").rglob("*.c"))
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Wshadow", "-Werror"]


def assemble(source: Path, out: Path) -> str:
    include = [f"-I{native_prefix().include}", f"-I{ROOT / 'native/src'}"]
    subprocess.run(["aarch64-linux-gnu-gcc", *FLAGS, *include, "-c", source, "-o", out], check=True)
    return subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", out], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_source_assembles_for_arm64(source: Path, tmp_path: Path) -> None:
    assert "file format elf64-littleaarch64" in assemble(source, tmp_path / "out.o")


def test_the_last_store_of_each_arm64_section_is_a_store_release(tmp_path: Path) -> None:
    text = assemble(ROOT / "native/src/channel/produce.c", tmp_path / "out.o")
    # The record's count, then head: nothing between them, and head with release.
    assert re.search(r"\tstr\tx11, \[x10, #8\]\n.*\tstlr\tx\d+, \[x\d+\]", text)
