"""Make random system calls on a mount, as whatever user this runs as, for so many seconds, and until ENOUGH were done.

    python -c TEXT MOUNT SEED SECONDS STATE

Every call may be refused, but only with errnos that say something about the call: EIO, ENOTCONN and the like are
faults of the server. The line that is about to be tried is kept in the file STATE, for who finds this hanging or dead.
A first fault is printed, and ends this. It is run by its text, as other users cannot enter the clone.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
LIBC.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

# What a call on a sound mount never says. EBADMSG: nothing here writes into mapped memory, so nothing can be damaged.
FAULTS = {
    *(errno.EIO, errno.ENOTCONN, errno.ECONNABORTED, errno.EBADMSG, errno.ENOSYS, errno.EPROTO, errno.EREMOTEIO),
    *(errno.EUCLEAN, errno.ENOTRECOVERABLE, errno.EDEADLK),
}
# A call may sleep: it is interrupted after this time.
PATIENCE_S = 0.05
# With less, nothing would be tried, as on a machine that others take meanwhile.
ENOUGH = 100
DESCRIPTORS_MAX, MAPPINGS_MAX, PATHS_MAX = 24, 8, 400
PAGE = 4096
OFFSETS = (0, 1, 2, 4095, 4096, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) + 1, (1 << 62), (1 << 63) - 1, -1)
LENGTHS = (0, 1, 7, 100, 4095, 4096, 4097, 65536, 131072, (1 << 20) - 4096, 1 << 20, (1 << 20) + 1)
# In the control file's language, right and wrong.
CHANNELS = ("a", "b", "one", "dir/x", "dir/sub/y", "ring", "wait", "a b", "..", "dir", "control", "n" * 300, "\udc80")
OPTIONS = (
    *("buffers=single", "buffers=percpu", "buffers=global", "subbuf_size=4K", "subbuf_size=100", "n_subbufs=2"),
    *(
        "n_subbufs=4",
        "mode=overwrite",
        "read=wait",
        "read=eof",
        "delivery=packet",
        "perm=0666",
        "perm=0600",
        "perm=0644",
    ),
    *("type=ring", "size=4K", "size=64K", "framing=line", "framing=length", "flush_interval=10", "reserve=visible"),
    *("start_reserve=8", "scheme=locking", "scheme=lockless", "n_subbufs=0", "subbuf_size=1G", "uid=0", "uid=65534"),
    *("nonsense", "perm=7777", "size=-1", "=", "timestamp=mono"),
)
VERBS = ("remove", "flush", "reset", "resume", "enable", "disable")
NAMES = (
    *("control", "counters", "counters.names", "counters.txt", "error_log", ".traces", ".traces/join", ".channels"),
    *(".traces/control", "t", "a", "a0", "a1", "b", "b0", "one", "dir", "dir/x", "dir/x0", "dir/sub/y", "ring", "wait"),
    *(".channels/one", ".channels/one/mem0", ".channels/wait/mem0", ".channels/ring/mem0", "new", "dir/new", "."),
    *(".hidden", "\udc80\udcff", "n" * 255, "n" * 256, "é", "tab\there", "", "x/../one"),
)


class SleptEnoughError(Exception):
    """A call has slept for long enough."""


class Machine:
    """Make calls.

    mount: where
    seed: of all that is chosen
    state: a descriptor of the file that holds what is tried
    """

    def __init__(self, mount: str, seed: str, state: int) -> None:
        self.mount = mount
        self.random = random.Random(seed)
        self.state = state
        self.trying = ""
        self.n_calls = self.n_done = 0
        self.is_armed = False
        self.descriptors: list[int] = []
        self.mappings: list[tuple[int, int]] = []
        self.looked: list[tuple[int, int]] = []
        self.paths = [self.below(name) for name in NAMES]
        self.calls: list[Callable[[], object]] = [
            getattr(self, name) for name in sorted(vars(Machine)) if name.startswith("do_")
        ]
        self.weights = [4 if call.__name__ in OFTEN else 1 for call in self.calls]

    # ---------------------------------------------------------------- choices

    def below(self, name: str) -> str:
        return f"{self.mount}/{name}" if name else self.mount

    def path(self) -> str:
        return self.random.choice(self.paths)

    def fresh(self) -> str:
        """A path whose last name may be anything."""
        return (
            f"{os.path.dirname(self.path()) if self.random.random() < 0.5 else self.mount}/{self.random.choice(NAMES)}"
        )

    def inside(self, path: str) -> str:
        """Nothing outside the mount may be changed, and no name says more than it seems to."""
        normal = os.path.normpath(path)
        return path if normal == self.mount or normal.startswith(f"{self.mount}/") else self.mount

    def descriptor(self) -> int:
        if not self.descriptors:
            self.do_open()
        return self.random.choice(self.descriptors) if self.descriptors else -1

    def offset(self) -> int:
        return self.random.choice(OFFSETS) if self.random.random() < 0.5 else self.random.randrange(1 << 17)

    def length(self) -> int:
        return self.random.choice(LENGTHS) if self.random.random() < 0.5 else self.random.randrange(1 << 13)

    def data(self) -> bytes:
        return self.random.choice((b"x", b"\0", b"line\n", b"create ")) * self.length()

    # ---------------------------------------------------------------- running

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.n_done < ENOUGH:
            call = self.random.choices(self.calls, self.weights)[0]
            self.try_it(call)

    def try_it(self, call: Callable[[], object]) -> None:
        self.say(call.__name__)
        self.n_calls += 1
        try:
            self.attempt(call)
            self.is_armed = False
        except SleptEnoughError:
            pass

    def attempt(self, call: Callable[[], object]) -> None:
        self.is_armed = True
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        try:
            call()
            self.n_done += 1
        except OSError as error:
            if error.errno in FAULTS:
                raise
        except (ValueError, OverflowError):
            pass  # Python itself refuses

    def rest(self) -> None:
        """Interrupt nothing any more: a signal while Python ends would kill this."""
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def interrupt(self, signum: int, frame: object) -> None:
        """End a call that has slept for long enough: once, and no other code."""
        if self.is_armed:
            self.is_armed = False
            raise SleptEnoughError

    def say(self, *words: object) -> None:
        self.trying = " ".join(map(str, words))[:300]
        os.pwrite(self.state, f"{self.n_calls} {self.trying!r}".ljust(2000).encode(errors="replace"), 0)

    # ---------------------------------------------------------------- calls on names

    def do_open(self) -> None:
        choices = (
            os.O_NONBLOCK,
            os.O_APPEND,
            os.O_TRUNC,
            os.O_DIRECT,
            os.O_CREAT,
            os.O_EXCL,
            os.O_DIRECTORY,
            os.O_SYNC,
        )
        flags = self.random.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
        for choice in choices:
            if self.random.random() < (0.7 if choice == os.O_NONBLOCK else 0.05):
                flags |= choice
        path = self.inside(self.path())
        self.say("open", path, oct(flags))
        fd = os.open(path, flags, 0o666)
        self.descriptors.append(fd)
        if len(self.descriptors) > DESCRIPTORS_MAX:
            os.close(self.descriptors.pop(self.random.randrange(len(self.descriptors))))

    def do_open_odd(self) -> None:
        flags = self.random.choice((os.O_PATH, os.O_TMPFILE | os.O_RDWR, 3, os.O_NOATIME, os.O_NOFOLLOW))
        path = self.inside(self.path())
        self.say("open", path, oct(flags))
        os.close(os.open(path, flags, 0o600))

    def do_close(self) -> None:
        if self.descriptors:
            os.close(self.descriptors.pop(self.random.randrange(len(self.descriptors))))

    def do_stat(self) -> None:
        path = self.path()
        self.say("stat", path)
        status = os.stat(path)
        assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        assert 0 <= status.st_size < 1 << 62

    def do_list(self) -> None:
        path = self.path()
        self.say("list", path)
        names = os.listdir(path)
        assert len(names) == len(set(names)), "a name is listed twice"
        found = [f"{path}/{name}" for name in names]
        self.random.shuffle(found)
        self.paths = (self.paths + found[:10])[-PATHS_MAX:]
        self.paths[: len(NAMES)] = [self.below(name) for name in NAMES]

    def do_list_in_steps(self) -> None:
        path = self.path()
        with os.scandir(path) as entries:
            for entry, _ in zip(entries, range(self.random.randrange(20)), strict=False):
                self.say("stat listed", path, entry.name)
                with contextlib.suppress(FileNotFoundError):
                    entry.stat()

    def do_rename(self) -> None:
        old, new = self.inside(self.path()).encode(errors="surrogateescape"), self.inside(self.fresh())
        flags = self.random.choice((0, 0, 1, 2, 4))
        self.say("rename", old, new, flags)
        self.check(LIBC.renameat2(-100, old, -100, new.encode(errors="surrogateescape"), flags))

    def do_link(self) -> None:
        os.link(self.inside(self.path()), self.inside(self.fresh()))

    def do_symlink(self) -> None:
        os.symlink("/", self.inside(self.fresh()))

    def do_mknod(self) -> None:
        kind = self.random.choice((stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK))
        os.mknod(self.inside(self.fresh()), kind | 0o666)

    def do_bind(self) -> None:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(self.inside(self.fresh())[:100])

    def do_unlink(self) -> None:
        os.unlink(self.inside(self.path()))

    def do_mkdir(self) -> None:
        os.mkdir(self.inside(self.fresh()), self.random.choice((0o755, 0, 0o7777)))

    def do_rmdir(self) -> None:
        path = self.inside(self.path())
        self.say("rmdir", path)
        os.rmdir(path)

    def do_readlink(self) -> None:
        os.readlink(self.path())

    def do_access(self) -> None:
        os.access(self.path(), self.random.randrange(8))

    def do_chmod(self) -> None:
        path, mode = self.inside(self.path()), self.random.choice((0o666, 0o600, 0o644, 0o4777, 0o755, 0))
        self.say("chmod", path, oct(mode))
        os.chmod(path, mode)

    def do_chown(self) -> None:
        path, ids = self.inside(self.path()), (-1, 0, 65534, 60002, os.getuid())
        os.chown(path, self.random.choice(ids), self.random.choice(ids))

    def do_utime(self) -> None:
        os.utime(self.inside(self.path()), ns=(self.random.randrange(1 << 62), 0))

    def do_truncate(self) -> None:
        path, size = self.inside(self.path()), self.offset()
        self.say("truncate", path, size)
        os.truncate(path, size)

    def do_xattr(self) -> None:
        path = self.inside(self.path())
        name = self.random.choice(("user.relayfs.backing", "user.x", "trusted.x", "security.capability", "nonsense",
                                   "system.posix_acl_access", "user." + "n" * 250))  # fmt: skip
        value = b"v" * self.random.randrange(5000)
        act = self.random.choice(
            (os.getxattr, os.removexattr, lambda *_: os.listxattr(path), lambda *_: os.setxattr(path, name, value))
        )
        self.say("xattr", path, name)
        act(path, name)

    def do_statfs(self) -> None:
        status = os.statvfs(self.path())
        assert status.f_bavail <= status.f_blocks

    def do_inotify(self) -> None:
        fd = LIBC.inotify_init1(os.O_NONBLOCK)
        LIBC.inotify_add_watch(fd, self.path().encode(errors="surrogateescape"), 0xFFF)
        os.close(fd)

    # ---------------------------------------------------------------- calls on descriptors

    def do_read(self) -> None:
        fd, length = self.descriptor(), self.length()
        self.say("read", self.name(fd), length)
        assert len(os.read(fd, length)) <= length

    def do_pread(self) -> None:
        fd, length, offset = self.descriptor(), self.length(), self.offset()
        self.say("pread", self.name(fd), length, offset)
        assert len(os.pread(fd, length, offset)) <= length

    def do_readv(self) -> None:
        os.readv(self.descriptor(), [bytearray(self.length()) for _ in range(self.random.randrange(4))])

    def do_write(self) -> None:
        fd, data = self.descriptor(), self.data()
        self.say("write", self.name(fd), len(data), data[:8])
        assert os.write(fd, data) <= len(data)

    def do_pwrite(self) -> None:
        fd, data, offset = self.descriptor(), self.data(), self.offset()
        self.say("pwrite", self.name(fd), len(data), offset)
        os.pwrite(fd, data, offset)

    def do_writev(self) -> None:
        os.writev(self.descriptor(), [self.data() for _ in range(self.random.randrange(5))])

    def do_seek(self) -> None:
        fd, offset, whence = self.descriptor(), self.offset(), self.random.randrange(6)
        self.say("lseek", self.name(fd), offset, whence)
        os.lseek(fd, offset, whence)

    def do_ftruncate(self) -> None:
        os.ftruncate(self.descriptor(), self.offset())

    def do_fallocate(self) -> None:
        fd, mode, offset, length = self.descriptor(), self.random.choice((0, 1, 2, 3, 16)), self.offset(), self.offset()
        self.say("fallocate", self.name(fd), mode, offset, length)
        self.check(LIBC.fallocate(fd, mode, offset, length))

    def do_fsync(self) -> None:
        self.random.choice((os.fsync, os.fdatasync))(self.descriptor())

    def do_fstat(self) -> None:
        fd = self.descriptor()
        self.say("fstat", self.name(fd))
        assert os.fstat(fd).st_size >= 0

    def do_fchmod(self) -> None:
        os.fchmod(self.descriptor(), self.random.choice((0o666, 0o640, 0o777)))

    def do_poll(self) -> None:
        poller = select.poll()
        for fd in self.descriptors:
            poller.register(fd, self.random.randrange(1 << 10))
        self.say("poll", *map(self.name, self.descriptors))
        assert all(not events & select.POLLNVAL for _, events in poller.poll(self.random.choice((0, 1, 20))))

    def do_epoll(self) -> None:
        with select.epoll() as waiting:
            for fd in self.descriptors:
                with contextlib.suppress(PermissionError):  # a directory
                    waiting.register(fd, self.random.choice((select.EPOLLIN, select.EPOLLOUT | select.EPOLLET)))
            waiting.poll(self.random.choice((0, 0.005)))

    def do_splice(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK)
        try:
            fd, length = self.descriptor(), self.length()
            self.say("splice", self.name(fd), length)
            if self.random.random() < 0.5:
                os.splice(fd, writer, length, flags=os.SPLICE_F_NONBLOCK)
            else:
                os.write(writer, b"spliced\n")
                os.splice(reader, fd, length, flags=os.SPLICE_F_NONBLOCK)
        finally:
            os.close(reader)
            os.close(writer)

    def do_sendfile(self) -> None:
        os.sendfile(self.descriptor(), self.descriptor(), None, self.length())

    def do_copy_range(self) -> None:
        os.copy_file_range(self.descriptor(), self.descriptor(), self.length())

    def do_lock(self) -> None:
        kind = self.random.choice((fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN))
        self.random.choice((fcntl.flock, fcntl.lockf))(self.descriptor(), kind | fcntl.LOCK_NB)

    def do_ioctl(self) -> None:
        fcntl.ioctl(self.descriptor(), self.random.choice((0x541B, 0x5401, 0x80086601, 0xC0045877)), bytes(64))

    def do_flags(self) -> None:
        fcntl.fcntl(self.descriptor(), fcntl.F_SETFL, self.random.choice((0, os.O_NONBLOCK, os.O_APPEND, os.O_DIRECT)))

    def do_advise(self) -> None:
        os.posix_fadvise(self.descriptor(), 0, self.length(), self.random.randrange(6))

    def do_open_again(self) -> None:
        fd = self.descriptor()
        self.say("open again", self.name(fd))
        self.descriptors.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK))

    # ---------------------------------------------------------------- memory

    def do_map(self) -> None:
        fd = self.descriptor()
        size = min(max(os.fstat(fd).st_size, PAGE), 1 << 20)
        protection = self.random.choice((mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE))
        flags = self.random.choice((mmap.MAP_SHARED, mmap.MAP_SHARED, mmap.MAP_PRIVATE))
        self.say("mmap", self.name(fd), size, protection, flags)
        address = LIBC.mmap(None, size, protection, flags, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        # Other files are as long as what they say, and pages beyond that are no memory.
        if "/mem" in self.name(fd):
            self.looked.append((address, size // PAGE))
        self.mappings.append((address, size))
        if len(self.mappings) > MAPPINGS_MAX:
            self.do_unmap()

    def do_look(self) -> None:
        """Read mapped memory: nobody may have taken it away."""
        for address, n_pages in self.looked:
            self.say("look at memory", n_pages)
            ctypes.string_at(address + self.random.randrange(n_pages) * PAGE, PAGE)

    def do_unmap(self) -> None:
        if self.mappings:
            address, size = self.mappings.pop(self.random.randrange(len(self.mappings)))
            self.looked = [looked for looked in self.looked if looked[0] != address]
            LIBC.munmap(address, size)

    def do_sync_memory(self) -> None:
        if self.mappings:
            self.check(LIBC.msync(*self.random.choice(self.mappings), self.random.choice((1, 2, 4))))

    # ---------------------------------------------------------------- commands

    def do_command(self) -> None:
        name = self.random.choice(CHANNELS)
        line = self.random.choice(
            (
                f"create {name} {' '.join(self.random.sample(OPTIONS, self.random.randrange(5)))}",
                f"create {name} buffers=single subbuf_size=4K n_subbufs=4 perm=0666",
                f"{self.random.choice(VERBS)} {name}",
                f"consumed {name} {self.random.randrange(3)} {self.random.choice((0, 1, 1 << 31, 1 << 63))}",
                f"trace {self.random.choice(('create', 'start', 'stop', 'remove'))} {self.random.choice('tuv')}",
                f"trace enable t {self.random.choice(('*:*', 'x', '?' * 99, ':'))}",
                f"trace disable t {self.random.choice(('*:*', 'x'))}",
                f"adopt {name} {self.descriptor()},{self.random.randrange(99)}",
                "\n" * self.length(),
            )
        )
        self.say("command", line)
        self.send("control", line)

    def do_counter(self) -> None:
        line = self.random.choice(
            (
                *("add g/n mode=0222", "add / kind=x", "add a/b kind=gauge", "del x", "add \udc80/\udcff"),
                f"add g{os.getuid()}/n{self.random.randrange(20)} mode=0666",
                f"del {self.random.randrange(200)}",
            )
        )
        self.say("counters.names", line)
        self.send("counters.names", line)

    def do_join(self) -> None:
        self.say("join")
        self.send(".traces/join", self.random.choice(("t program\n", "u x", "\0", "t " + "n" * 5000)))

    def do_clear_errors(self) -> None:
        self.send("error_log", "")

    def send(self, name: str, line: str) -> None:
        fd = os.open(self.below(name), os.O_WRONLY)
        try:
            os.write(fd, os.fsencode(line))
        finally:
            os.close(fd)

    # ---------------------------------------------------------------- helpers

    def check(self, result: int) -> None:
        if result == -1:
            raise OSError(ctypes.get_errno(), "refused")

    def name(self, fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}").removeprefix(self.mount) if fd >= 0 else "none"


OFTEN = ("do_open", "do_read", "do_write", "do_command", "do_map", "do_poll", "do_list", "do_stat", "do_seek")


def main() -> None:
    mount, seed, seconds, path = sys.argv[1:]
    machine = Machine(mount, seed, os.open(path, os.O_RDWR))
    signal.signal(signal.SIGALRM, machine.interrupt)
    try:
        machine.run(float(seconds))
    except BaseException as fault:
        machine.rest()
        print(f"call {machine.n_calls}: {machine.trying!r}: {fault!r}", flush=True)
        raise
    machine.rest()
    print(f"{machine.n_calls} calls, {machine.n_done} done", flush=True)


if __name__ == "__main__":
    main()
