"""Measure how long programs wait when the server dies, next to the start of one.

    ./dev bench handover [DEATHS]

Each death: the server gets SIGKILL while 100 files are open and a reader sleeps, a stat(2) that begins then is timed,
and the reader has to get a record that is written next. Ten in a row that live for no more than a second would be given
up, so each lives a little longer.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from support import TMPFS, Limit, Mount, Samples, asked, judge, mounted, server_of

DEATHS = 100
OPEN = 100
LIFE_S = 0.12
STARTS = 3


def measure_start(samples: Samples) -> None:
    """Time the command that mounts, which returns when the mount answers."""
    relayfs = Path(sys.executable).with_name("relayfs")
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory(dir=TMPFS) as store:
            begun = time.perf_counter()
            subprocess.run([relayfs, path, "-o", f"store={store}/store"], check=True)
            samples.add("start", 1000 * (time.perf_counter() - begun))
            subprocess.run(["fusermount3", "-u", "-z", path], check=True)


def pauses(mount: Mount, n: int) -> list[float]:
    """Return how long a stat(2) takes after each death, in ms, sorted."""
    file = mount.create("log", "buffers=single read=wait")
    took = []
    with ExitStack() as stack, subprocess.Popen(["cat", file], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        for number in range(OPEN):
            path = mount.create(f"load/{number}", "buffers=single subbuf_size=4096 n_subbufs=1")
            stack.callback(os.close, os.open(path, os.O_RDONLY))
        for number in range(n):
            time.sleep(LIFE_S)
            server = server_of(mount)
            os.kill(server, signal.SIGKILL)
            begun = time.perf_counter()
            os.stat(mount.path / "control")
            took.append(1000 * (time.perf_counter() - begun))
            record = b"%d\n" % number
            with file.open("wb", buffering=0) as out:
                out.write(record)
            if not select.select([cat.stdout], [], [], 10)[0] or os.read(cat.stdout.fileno(), 100) != record:
                raise TimeoutError("the reader has not got the record")
        cat.kill()
    return sorted(took)


def main() -> int:
    """Measure everything and return the status."""
    deaths = asked(DEATHS)

    def measure() -> Samples:
        samples = Samples()
        measure_start(samples)
        with mounted() as mount:
            took = pauses(mount, deaths)
        samples.add("pause, median", took[len(took) // 2], deaths=deaths)
        samples.add("pause, 99 of 100", took[len(took) * 99 // 100])
        return samples

    limits = [
        Limit("pause, 99 of 100, of a start", "pause, 99 of 100", "start", most=0.5),
        Limit("pause, 99 of 100, in ms", "pause, 99 of 100"),
    ]
    return judge(measure, limits, "ms")


if __name__ == "__main__":
    sys.exit(main())
