"""Run C programs for libFuzzer."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from build import C_SUPPORT, ROOT, native_prefix

SECONDS_PER_INPUT = 60  # of one that hangs, on a machine where everything takes long


def fuzz(source: Path, runs: int, directory: Path, *limits: str, library: Iterable[str] = ("**/*.c",)) -> None:
    """Run a program on so many inputs, without a finding of its own or of a sanitizer.

    limits   further options of libFuzzer
    library  patterns of the library's sources that are compiled with it, so that every branch in them guides the fuzzer
    """
    program = directory / source.stem
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    native = ROOT / "native/src"
    include = [f"-I{path}" for path in (native_prefix().include, native, C_SUPPORT)]
    sources = [source, *(path for pattern in library for path in sorted(native.glob(pattern)))]
    subprocess.run(["clang", *flags, *include, "-o", program, *sources, "-pthread"], check=True)
    common = [f"-runs={runs}", f"-timeout={SECONDS_PER_INPUT}", "-seed=1", f"-artifact_prefix={directory}/"]
    done = subprocess.run([program, *common, *limits], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {runs} runs" in done.stderr
