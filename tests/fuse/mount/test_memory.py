"""What open files keep in the server's memory is bounded, whoever opens how many."""

import errno
import os
from collections.abc import Callable

import pytest
from mounts import Mount, User

from relayfs_fuse import Counters
from relayfs_fuse.fs.requests.budget import ALL_USERS_BYTES, HANDLE_BYTES, USER_BYTES, Budget

MIB = 1 << 20

# Open a file again and again, read a byte each time, until it is refused.
READ_MANY = """
import errno, os, sys
path, n = sys.argv[1], int(sys.argv[2])
kept = []
for i in range(n):
    try:
        fd = os.open(path, os.O_RDONLY)
        kept.append(fd)
        os.read(fd, 1)
    except OSError as error:
        print(i, errno.errorcode[error.errno], flush=True)
        break
else:
    print(n, "0", flush=True)
sys.stdin.read()
for fd in kept:
    os.close(fd)
"""


def resident(mount: Mount) -> int:
    assert mount.process is not None
    with open(f"/proc/{mount.server}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) * 1024


def test_texts_that_a_users_open_files_keep_are_bounded(make_mount: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_mount(is_forked=False)
    with Counters(mount.path) as counters:
        for i in range(12000):
            counters.add(f"group/{i}", help="x" * 127)
    text = len((mount.path / "counters.names").read_bytes())
    assert text >= MIB
    before = resident(mount)
    done = unprivileged.python(READ_MANY, mount.path / "counters.names", "100")
    n, result = done.stdout.split()
    assert (result, int(n)) == ("ENOMEM", 64 * MIB // (text + 2048)), done.stderr
    assert resident(mount) < before + 150 * MIB
    # They are closed now.
    assert unprivileged.python(READ_MANY, mount.path / "counters.names", "2").stdout.split() == ["2", "0"]
    assert User(0, 0).python(READ_MANY, mount.path / "counters.names", "60").stdout.split() == ["60", "0"]


def test_a_users_open_files_are_bounded() -> None:
    budget = Budget()
    for handle in range(USER_BYTES // HANDLE_BYTES):
        budget.hold(handle, 0, 1000)
    with pytest.raises(OSError) as refused:
        budget.hold(-1, 0, 1000)
    assert refused.value.errno == errno.ENOMEM
    with pytest.raises(OSError):
        budget.hold(0, 1)
    budget.release(7)
    budget.hold(-1, 0, 1000)
    for handle in range(USER_BYTES // HANDLE_BYTES, ALL_USERS_BYTES // HANDLE_BYTES):
        budget.hold(handle, 0, handle)
    with pytest.raises(OSError):
        budget.hold(-2, 0, 1)
    budget.hold(-2, USER_BYTES * 10, 0)
    budget.hold(-2, USER_BYTES * 20)


def test_records_that_readers_have_begun_take_no_more_than_the_ring(mount: Mount) -> None:
    path = mount.create("ring", "type=ring buffers=single size=2M")
    readers = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for _ in range(20)]
    record = b"x" * (MIB - 4096)
    n, code = 0, 0
    for reader in readers:
        path.write_bytes(record)
        try:
            assert os.read(reader, 1) == b"x"
            n += 1
        except OSError as error:
            code = error.errno or 0
            break
    assert (n, code) == (3, errno.ENOBUFS)
    # Whoever has begun one reads it to its end, and then the next can be had.
    rest = b""
    while len(rest) < len(record) - 1:
        rest += os.read(readers[0], MIB)
    assert rest == record[1:]
    assert os.read(readers[-1], 1) == b"x"
    for reader in readers:
        os.close(reader)
