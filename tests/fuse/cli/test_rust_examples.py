"""The examples in Rust: RELAYFS_STRESS=long compiles and runs them, for which ./dev stress installs rustc (275 MB).

In short, only what they say of the library's functions is compared with the header.
"""

import json
import os
import re
import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from build import ROOT
from mounts import DEADLINE_S, Mount, wait_until

WRITER, FILES = (ROOT / f"examples/rust_{name}.rs" for name in ("writer", "files"))
# Of each type in Rust, the one in C.
TYPES = {"*const c_char": "const char *", "*const c_void": "const void *", "usize": "size_t", "c_int": "int"}

pytestmark = pytest.mark.one_mount


def test_the_library_is_declared_as_in_its_header() -> None:
    header = " ".join((ROOT / "native/include/relayfs/relay.h").read_text().split())
    declared = re.findall(r"^    fn (relay_\w+)\((.*)\)(?: -> (.*))?;$", WRITER.read_text(), re.MULTILINE)
    assert len(declared) == 4
    for name, parameters, result in declared:
        names = {**TYPES, "*mut c_void": "struct rchan *", "": "void "}
        types = [names[one.partition(": ")[2]] for one in parameters.split(", ")]
        expected = ", ".join(rf"{re.escape(one)} ?\w+" for one in types)
        assert re.search(rf"{re.escape(names[result])} ?{name}\({expected}\);", header), name


def compiled(source: Path, place: Path) -> Path:
    """Compile an example as its first lines say, without a warning."""
    (line,) = (line for line in source.read_text().splitlines() if line.startswith("//     rustc"))
    libraries = subprocess.run(
        ["pkg-config", "--libs-only-L", "relayfs"], capture_output=True, text=True, check=True
    ).stdout.strip()
    words = shlex.split(line.removeprefix("//").replace("$(pkg-config --libs-only-L relayfs)", libraries))
    rpath = f"-Clink-arg=-Wl,-rpath,{libraries.removeprefix('-L')}"
    command = [str(source) if word == source.name else word for word in words]
    done = subprocess.run([*command, "-Dwarnings", rpath], cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return place / source.stem


if os.environ.get("RELAYFS_STRESS") == "long":

    @pytest.mark.stress
    def test_threads_write_json_lines_and_count_what_they_drop(mount: Mount, tmp_path: Path) -> None:
        program = compiled(WRITER, tmp_path)
        channel = mount.create("app/json", "times=mono")
        done = subprocess.run([program, channel, "500", "4"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        lines = [json.loads(line) for line in (mount.path / ".channels/app/json/merged").read_text().splitlines()]
        for thread in range(4):
            of_thread = [line for line in lines if line["thread"] == thread]
            assert [line["request"] for line in of_thread] == list(range(500))
            assert Counter(line["level"] for line in of_thread) == {"INFO": 450, "ERROR": 50}
        small = mount.create("app/small", "buffers=single subbuf_size=4K n_subbufs=2")
        done = subprocess.run([program, small, "1000"], capture_output=True, text=True, check=False)
        lost = int(mount.shown("app/small", "lost_full"))
        assert 0 < lost == 1000 - len(small.read_text().splitlines())
        assert done.stderr == f"{lost} lines were dropped, because the buffer was full\n"
        done = subprocess.run([program, mount.path / "none"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"rust_writer: {mount.path}/none: no such channel or file")

    @pytest.mark.stress
    @pytest.mark.parametrize("options", ["", "buffers=global", "buffers=single"])
    def test_lines_are_written_through_the_relay_files(mount: Mount, tmp_path: Path, options: str) -> None:
        program = compiled(FILES, tmp_path)
        channel = mount.create("app/lines", f"subbuf_size=4K n_subbufs=2 times=mono {options}")
        lines = b"".join(b"line %d\n" % number for number in range(5000)) + b"end"
        read = Counter[bytes]()
        with subprocess.Popen([program, channel], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            # It waits while a buffer is full.
            assert process.stdin is not None
            process.stdin.write(lines)
            process.stdin.close()

            def has_all() -> bool:
                for file in channel.parent.iterdir():
                    read.update(file.read_bytes().splitlines())
                return read.total() >= 5001

            wait_until(has_all, lambda: f"all lines: {read.total()}")
            assert process.stderr is not None
            assert (process.wait(DEADLINE_S), process.stderr.read()) == (0, b"")
        assert read == Counter(lines.splitlines())
        done = subprocess.run([program, mount.path / "none"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"rust_files: {mount.path}/none: No such file")
