"""Compressing recordings beside the recorder."""

import errno
import os
import threading
from pathlib import Path

import pytest
import zstandard

from relayfs_fuse.errors import RelayError
from relayfs_fuse.record import compress
from relayfs_fuse.record.compress import Compressor


def niceness(thread: int) -> int:
    return int(Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[16])


def test_the_threads_that_compress_leave_the_cpu_to_others(tmp_path, monkeypatch):
    """The recorder itself stays as it is."""
    seen: dict[int, int] = {}
    copied = compress.shutil.copystat

    def look(*paths: str) -> None:
        seen.update({int(name): niceness(int(name)) for name in os.listdir("/proc/self/task")})
        copied(*paths)

    data = os.urandom(3 << 20) * 2
    (tmp_path / "cpu0").write_bytes(data)
    before = set(os.listdir("/proc/self/task"))
    monkeypatch.setattr(compress.shutil, "copystat", look)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    compressor = Compressor()
    compressor.add(str(tmp_path))
    compressor.close()
    started = [nice for thread, nice in seen.items() if str(thread) not in before]
    assert len(started) > 1
    assert all(nice == min(19, own + 10) for nice in started)
    assert niceness(threading.get_native_id()) == own
    assert os.listdir(tmp_path) == ["cpu0.zst"]
    assert zstandard.ZstdDecompressor().decompressobj().decompress((tmp_path / "cpu0.zst").read_bytes()) == data


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(errno.ENOSPC, "No space left on device"), OSError), (zstandard.ZstdError("no memory"), RelayError)],
)
def test_a_file_that_cannot_be_compressed_stays_and_others_are(tmp_path, monkeypatch, error, said):
    copied = compress.shutil.copystat

    def fail(path: str, hidden: str) -> None:
        if path.endswith("first/cpu0"):
            raise error
        copied(path, hidden)

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpu0").write_bytes(b"events")
    monkeypatch.setattr(compress.shutil, "copystat", fail)
    compressor = Compressor()
    compressor.add_all(str(tmp_path))
    with pytest.raises(said):
        compressor.close()
    assert os.listdir(tmp_path / "first") == ["cpu0"]
    assert (tmp_path / "first/cpu0").read_bytes() == b"events"
    assert os.listdir(tmp_path / "second") == ["cpu0.zst"]
