"""Write the C source of `relayfs_fuse._native`: build_cffi.py CDEF OUTPUT HEADER..."""

import sys
from pathlib import Path

from cffi import FFI


def write_source(cdef: Path, output: Path, headers: list[Path]) -> None:
    """Emit the extension's source, against the stable ABI.

    The headers are included as programs include them, so that the compiler compares each
    declaration of the cdef with the real one.
    """
    ffi = FFI()
    ffi.cdef(cdef.read_text())
    # All headers at once: what two of them call by the same name has its long one.
    includes = "#define RELAYFS_CLASSIC_LONG_NAMES\n"
    includes += "".join(f"#include <{header.parent.name}/{header.name}>\n" for header in headers)
    ffi.set_source("relayfs_fuse._native", includes, py_limited_api=True)
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    write_source(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
