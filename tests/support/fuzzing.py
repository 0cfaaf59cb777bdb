"""Run C programs for libFuzzer."""

import subprocess
from pathlib import Path

from build import C_SUPPORT, MEMORY, ROOT, native_prefix

SECONDS_PER_INPUT = 60  # of one that hangs, on a machine where everything takes long
FLAGS = ["-std=gnu11", "-O1", "-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]


def fuzz(source: Path, runs: int, directory: Path, *limits: str) -> None:
    """Run a program on so many inputs, without a finding of its own or of a sanitizer.

    limits   further options of libFuzzer
    """
    program, prefix = directory / source.stem, native_prefix(MEMORY)
    include = [f"-I{path}" for path in (prefix.include, ROOT / "native/src", C_SUPPORT)]
    command = ["clang", *FLAGS, *include, "-o", program, source, prefix.lib / "librelayfs.a", "-pthread"]
    subprocess.run(command, check=True)
    common = [f"-runs={runs}", f"-timeout={SECONDS_PER_INPUT}", "-seed=1", f"-artifact_prefix={directory}/"]
    done = subprocess.run([program, *common, *limits], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {runs} runs" in done.stderr
