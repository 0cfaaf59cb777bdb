"""What this machine gives relayfs: the kernel, clocks, /dev/fuse, memory, and the namespaces of a container."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.cli.common import format_bytes
from relayfs_fuse.cli.mounting import import_server
from relayfs_fuse.errors import OptionError
from relayfs_fuse.fs import mounts
from relayfs_fuse.fs.cgroup import memory_limit
from relayfs_fuse.fs.commands.control import DEFAULT_SIZES, LEAST_N_SUBBUFS, LEAST_SUBBUF_SIZE
from relayfs_fuse.fs.ledger import USER_FILES, Limits, memory_available, memory_total
from relayfs_fuse.native.tables import CLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, NOTE, PROBLEM = "OK", "note", "problem"

# The first Linux with FUSE passthrough.
_PASSTHROUGH = (6, 9)
# Numbers of capabilities, as in <linux/capability.h>.
_CAPABILITIES = {"CAP_LINUX_IMMUTABLE": 9, "CAP_SYS_ADMIN": 21}
# The initial namespaces, whose inode numbers are fixed (PROC_PID_INIT_INO, PROC_USER_INIT_INO of the kernel).
_INITIAL = {"pid": "pid:[4026531836]", "user": "user:[4026531837]"}
_FUSE = "/dev/fuse"
_FUSE_CONF = "/etc/fuse.conf"
_CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    level: OK, NOTE (something works in a slower or more limited way) or PROBLEM (it does not work)
    subject: what was checked
    meaning: what was found, and what that means
    advice: what to do; empty: nothing
    """

    level: str
    subject: str
    meaning: str
    advice: str = ""


def machine(*, is_served: bool) -> Iterator[Finding]:
    """Check the machine.

    is_served: whether a mount answers, so that nobody has to mount here
    """
    yield _kernel()
    yield _rseq()
    yield _membarrier()
    yield from _clocks()
    # Without these, nothing can be mounted; programs use what is mounted all the same.
    for found in (_server(), _device(), _fusermount(), _allow_other(), _capabilities()):
        yield Finding(NOTE, *_rest(found)) if is_served and found.level == PROBLEM else found
    yield _protection()
    yield from _memory()
    yield _cgroup()
    yield _files()
    yield from _container()


def mounting_needs(place: str) -> str:
    """Return what prevents mounting at a place, and what to do about it; empty: nothing that is known."""
    for found in (_device(), _fusermount(), _capabilities()):
        if found.level == PROBLEM:
            return f"{found.subject}: {found.meaning}; {found.advice}"
    if os.geteuid() != 0 and not os.access(place, os.W_OK):
        return "fusermount3 mounts only on directories to which this user may write; make one of your own"
    return ""


def _rest(found: Finding) -> tuple[str, str, str]:
    return found.subject, f"{found.meaning}; what is mounted works without it", found.advice


# ---------------------------------------------------------------- the kernel


def _kernel() -> Finding:
    release = os.uname().release
    version = re.match(r"(\d+)\.(\d+)", release)
    if version and (int(version[1]), int(version[2])) >= _PASSTHROUGH:
        return Finding(OK, "kernel", f"Linux {release}: FUSE passthrough, by which a mount of root maps files")
    return Finding(
        NOTE, "kernel", f"Linux {release} has no FUSE passthrough: a mount maps no files, and programs of users other "
        "than the store's write and read through the server, which is slow", "use Linux 6.9 or later",
    )  # fmt: skip


def _rseq() -> Finding:
    if native.scheme_default(native.BUFFERS_PERCPU) == native.SCHEME_RSEQ:
        return Finding(OK, "rseq", "restartable sequences: writers need no lock and no atomic instruction")
    return Finding(
        NOTE, "rseq", "no restartable sequences: channels get scheme=lockless, and writing takes longer",
        "allow rseq(2) in the seccomp filter, and do not run under valgrind",
    )  # fmt: skip


def _membarrier() -> Finding:
    if native.fence_is_available():
        return Finding(OK, "membarrier", "membarrier(2): readers sleep until a writer wakes them")
    return Finding(
        NOTE, "membarrier", "no membarrier(2): readers that sleep look again every 10 ms",
        "allow membarrier(2) in the seccomp filter",
    )  # fmt: skip


def _clocks() -> Iterator[Finding]:
    source = _text(_CLOCKSOURCE) or "unknown"
    for word, clock in CLOCKS.items():
        if not clock.is_available:
            yield Finding(
                NOTE, f"clock {word}", f"{clock.missing}: times={word} and clock={word} are refused", "use mono"
            )
    if source in ("hpet", "acpi_pm", "jiffies"):
        yield Finding(
            NOTE, "clocksource", f"the kernel's clock source is {source}: each reading of a clock is a system call, so "
            "records with times and events take about a microsecond more",
            "dmesg tells why the kernel gave up the tsc; a firmware or a hypervisor can be the reason",
        )  # fmt: skip
    else:
        there_are = ", ".join(word for word, clock in CLOCKS.items() if clock.is_available)
        yield Finding(OK, "clocks", f"{there_are}; the kernel's clock source is {source}")


# ---------------------------------------------------------------- what a server needs


def _server() -> Finding:
    try:
        import_server()
    except OptionError as error:
        what, _, advice = str(error).partition("; ")
        return Finding(PROBLEM, "server", f"this installation cannot serve a mount: {what}", advice)
    return Finding(OK, "server", f"version {native.VERSION} is installed")


def _device() -> Finding:
    try:
        os.close(os.open(_FUSE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return Finding(
            PROBLEM, _FUSE, "it is not there: nothing can be mounted",
            "modprobe fuse; in a container, have the device given to it, as by docker run --device /dev/fuse",
        )  # fmt: skip
    except OSError as error:
        return Finding(
            PROBLEM, _FUSE, f"it cannot be opened ({error.strerror}): this user cannot mount",
            "chmod 666 /dev/fuse, as udev does; in a container, have the device allowed to it",
        )  # fmt: skip
    return Finding(OK, _FUSE, "it can be opened")


def _fusermount() -> Finding:
    path = shutil.which("fusermount3")
    has_root = os.geteuid() == 0
    if path is None:
        return Finding(
            NOTE if has_root else PROBLEM, "fusermount3", "it is not installed: users other than root cannot mount",
            "install the package fuse3",
        )  # fmt: skip
    status = os.stat(path)
    if status.st_uid == 0 and status.st_mode & stat.S_ISUID:
        return Finding(OK, "fusermount3", f"{path} mounts for users other than root")
    return Finding(
        NOTE if has_root else PROBLEM, "fusermount3",
        f"{path} does not run as root: users other than root cannot mount", f"chmod u+s {path}",
    )  # fmt: skip


def _allow_other() -> Finding:
    lines = (_text(_FUSE_CONF) or "").splitlines()
    if any(line.strip() == "user_allow_other" for line in lines):
        return Finding(OK, _FUSE_CONF, "user_allow_other: users may let others use their mounts")
    meaning = "no user_allow_other: a mount of a user other than root is for this user alone; root's are for all"
    return Finding(
        OK if os.geteuid() == 0 else NOTE, _FUSE_CONF, meaning, "add a line user_allow_other to let others use it"
    )


def _capabilities() -> Finding:
    if os.geteuid() != 0:
        return Finding(NOTE, "CAP_SYS_ADMIN", f"only root has it: {mounts.MAPS_NO_FILES}", "have root mount")
    if not _has("CAP_SYS_ADMIN"):
        return Finding(
            PROBLEM, "CAP_SYS_ADMIN", "root does not have it here: nothing can be mounted",
            "have it given to the container, as by docker run --cap-add SYS_ADMIN",
        )  # fmt: skip
    if not _is_initial("user"):
        return Finding(
            NOTE, "CAP_SYS_ADMIN", f"it is that of a user namespace, which does not suffice: {mounts.MAPS_NO_FILES}",
            "have root of the host mount",
        )  # fmt: skip
    return Finding(OK, "CAP_SYS_ADMIN", "root has it, as mounting and mapping files of the mount need")


def _protection() -> Finding:
    """Try to make a file immutable that has no name, and is gone when it is closed."""
    subject = "immutable files"
    if os.geteuid() != 0:
        return Finding(OK, subject, "of no concern: only root's server lets other users map files")
    try:
        descriptor = os.open(_above_store(), os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o666)
            native.file_protect(descriptor)
            native.file_unprotect(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        why = "" if _has("CAP_LINUX_IMMUTABLE") else ", because root has no CAP_LINUX_IMMUTABLE here"
        return Finding(
            NOTE, subject, f"the store's files cannot be made so ({error.strerror}){why}: users who may write to a "
            "channel can free its pages, which loses records of others",
            "use a store on tmpfs with Linux 6.6 or later, and give CAP_LINUX_IMMUTABLE to the container",
        )  # fmt: skip
    return Finding(OK, subject, "users who may write to a channel cannot free its pages")


# ---------------------------------------------------------------- memory


def _memory() -> Iterator[Finding]:
    place = _above_store()
    subject = f"memory of {place}"
    inside = [one for one in mounts.table() if os.path.join(place, "").startswith(os.path.join(one.place, ""))]
    kind = max(inside, key=lambda one: len(one.place)).kind if inside else "unknown"
    if kind != "tmpfs":
        yield Finding(
            NOTE, subject, f"its file system is {kind}, not tmpfs: the kernel writes the store to a disk, which takes "
            "time", "mount a tmpfs, or set RELAYFS_STORE to a directory on one",
        )  # fmt: skip
    status = os.statvfs(place)
    size, user_size = Limits().in_store(place)
    free = min(status.f_bavail * status.f_frsize, memory_available(), size)
    n_cpus = native.n_possible_cpus()
    wanted, least = (n_cpus * native.buf_file_bytes(*sizes) for sizes in (DEFAULT_SIZES, _LEAST_SIZES))
    advice = f"mount -o remount,size=BYTES {place}; in a container, docker run --shm-size; or mount with -o size="
    there_is = f"{format_bytes(free)} are free for channels, of {format_bytes(size)}"
    if free < least:
        yield Finding(PROBLEM, subject, f"{there_is}: the smallest channel, of {n_cpus} CPUs, takes "
                      f"{format_bytes(least)}", advice)  # fmt: skip
    elif wanted > free // 16:
        yield Finding(NOTE, subject, f"{there_is}: channels of the default size, {format_bytes(wanted)}, are made "
                      "smaller, because one takes at most a sixteenth", advice)  # fmt: skip
    else:
        yield Finding(OK, subject, f"{there_is}; each user other than root may have {format_bytes(user_size)}")


_LEAST_SIZES = (LEAST_SUBBUF_SIZE, LEAST_N_SUBBUFS)


def _cgroup() -> Finding:
    limit = memory_limit()
    if limit is None or memory_total() < limit:
        return Finding(OK, "memory control group", "no limit")
    return Finding(
        NOTE, "memory control group", f"this process and its group may take {format_bytes(limit)}. A channel's memory "
        "counts for the server's group; beyond the limit the kernel kills processes",
        "keep -o size= of the mount well below the limit of the server's group",
    )  # fmt: skip


def _files() -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= USER_FILES:
        return Finding(OK, "open files", f"a process may have {'any number' if most < 0 else most}")
    return Finding(
        NOTE, "open files", f"a process may have {most}: a server keeps a descriptor for each buffer, so it has room "
        f"for {most // native.n_possible_cpus()} channels at most", "ulimit -Hn, or LimitNOFILE= of the unit",
    )  # fmt: skip


# ---------------------------------------------------------------- containers


def _container() -> Iterator[Finding]:
    if _is_initial("pid"):
        yield Finding(OK, "PID namespace", "that of the machine")
        return
    yield Finding(
        NOTE, "PID namespace", "one of its own, as in a container. Channels work across containers. But a server or "
        "recorder sees only processes of its namespace and those inside it: programs elsewhere are traced without "
        "names of threads, are missing in relayctl events, and what they had reserved when they were killed is given "
        "back by the server, not by writers",
        "share the PID namespace, as by docker run --pid=host or --pid=container:NAME, if that matters",
    )  # fmt: skip


def _is_initial(namespace: str) -> bool:
    with suppress(OSError):
        return os.readlink(f"/proc/self/ns/{namespace}") == _INITIAL[namespace]
    return True


def _has(capability: str) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", _text("/proc/self/status") or "", re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _CAPABILITIES[capability] & 1)


def _above_store() -> str:
    """Return the default store or, while there is none, the directory that would hold it."""
    store = native.default_store()
    return store if os.path.isdir(store) else os.path.dirname(os.path.abspath(store))


def _text(path: str) -> str | None:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return None
