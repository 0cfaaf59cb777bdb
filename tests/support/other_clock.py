"""CLOCK_REALTIME of another machine, for the programs that get its environment.

>>> clock = OtherClock(tmp_path, ahead_ns=2_000_000, max_error_us=5_000)
>>> subprocess.run(command, env={**os.environ, **clock.environment})
>>> clock.set(ahead_ns=5_000_000_000)
"""

import struct
from pathlib import Path

from build import PLAIN, PROGRAMS, compile_c

_FILE = struct.Struct("=5q")
_STA_UNSYNC = 0x40


class OtherClock:
    """A clock that is ahead of this machine's, and what the kernel says of it.

    max_error_us, est_error_us: as of adjtimex(2); None: it is not synchronised
    """

    def __init__(
        self, directory: Path, ahead_ns: int = 0, max_error_us: int | None = 5000, est_error_us: int = 100
    ) -> None:
        library = compile_c([PROGRAMS / "other_clock.c"], None, PLAIN, "-shared", "-fPIC", "-Wl,--as-needed")
        self._path = directory / "clock"
        self._path.write_bytes(bytes(_FILE.size))
        self.environment = {"LD_PRELOAD": str(library), "OTHER_CLOCK": str(self._path)}
        self.set(ahead_ns, max_error_us, est_error_us)

    def set(
        self, ahead_ns: int, max_error_us: int | None = 5000, est_error_us: int = 100, *, stall_ns: int = 0
    ) -> None:
        """Set it, while programs run; stall_ns: now and then it takes as long to read it."""
        errors = (16_000_000, 16_000_000, _STA_UNSYNC) if max_error_us is None else (max_error_us, est_error_us, 0)
        with self._path.open("r+b") as file:
            file.write(_FILE.pack(ahead_ns, *errors, stall_ns))
