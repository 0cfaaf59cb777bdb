"""Making, opening and protecting the files of a store; see <relayfs/store.h>."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What a store calls the control file of traces, and a mount the directory that has it.
TRACES_NAME = ".traces"


def find_mount() -> str | None:
    """Find $RELAYFS, or the first mount that is root's or this user's; None: there is none."""
    with suppress(FileNotFoundError):
        return _path(lib.relay_find_mount)
    return None


def find_store(mount: str) -> str:
    """Find the store behind a mount; OSError: ENODATA, the mount does not name its store; or as getxattr(2)."""
    return _path(lib.relay_find_store, os.fsencode(mount), asked=control_in_mount(mount))


def default_store() -> str:
    """Return the store to use if nothing is mounted: $RELAYFS_STORE, or this user's default store."""
    return _path(lib.relay_default_store)


def _path(find: Callable[..., int], *arguments: bytes, asked: str | None = None) -> str:
    path = ffi.new("char[]", 4096)  # PATH_MAX
    library.check(find(*arguments, path), asked)
    return os.fsdecode(ffi.string(path))


def control_in_store(store: str) -> str:
    """Return the path of the control file of traces in a store."""
    return os.path.join(store, TRACES_NAME)


def control_in_mount(mount: str) -> str:
    """Return the path of the same file in a mount, for programs of other users and containers without the store."""
    return os.path.join(mount, TRACES_NAME, "control")


def n_possible_cpus() -> int:
    """Return the number of possible CPUs."""
    return int(lib.relay_n_possible_cpus())


def scheme_default(buffers: int) -> int:
    """Return the scheme that scheme=any selects for these buffers on this machine."""
    return int(lib.relay_scheme_default(buffers))


def fence_is_available() -> bool:
    """Return whether readers can sleep until a writer wakes them; otherwise they look again after 10 ms at most."""
    return bool(lib.relay_fence_is_available())


def buf_file_bytes(subbuf_size: int, n_subbufs: int) -> int:
    """Return the size of one buffer's file in the store; 0: the geometry is not allowed."""
    limit = 1 << 64
    if not (0 < subbuf_size < limit and 0 < n_subbufs < limit):
        return 0
    return int(lib.relay_buf_file_bytes(subbuf_size, n_subbufs))


def store_create(directory: str, spec: Mapping[str, int]) -> None:
    """Make a channel with all its memory in a new directory.

    spec: the fields of struct relay_spec that are not 0
    """
    c_spec = ffi.new("struct relay_spec *", {**spec, "size": ffi.sizeof("struct relay_spec")})
    library.check(lib.relay_store_create(os.fsencode(directory), c_spec), directory)


def store_adopt(directory: str, descriptors: Sequence[int]) -> None:
    """Make a channel, in a new directory, of unnamed files."""
    library.check(lib.relay_store_adopt(os.fsencode(directory), list(descriptors), len(descriptors)), directory)


def store_copy(directory: str, descriptors: Sequence[int], mode: int, uid: int, gid: int) -> None:
    """Make a channel, in a new directory, of copies of unnamed files."""
    library.check(
        lib.relay_store_copy(os.fsencode(directory), list(descriptors), len(descriptors), mode, uid, gid), directory
    )


def remove_channel(path: str) -> None:
    """Remove the channel at a path, in a mount, or in the default store while no server serves it; OSError."""
    result = int(lib.relay_store_remove_channel(os.fsencode(path)))
    if result < 0:
        raise OSError(-result, library.unchanged(-result, path), path)


def implicit_make(directory: str) -> None:
    """Make a directory because the path of a channel leads through it."""
    library.check(lib.relay_implicit_make(os.fsencode(directory)), directory)


def implicit_is(directory: str) -> bool:
    """Return whether implicit_make() made a directory, and its mode, owner and group are unchanged."""
    return bool(lib.relay_implicit_is(os.fsencode(directory)))


def guard_install() -> None:
    """Install a SIGBUS handler for mapped store files that are truncated."""
    library.check(lib.relay_guard_install())


def file_protect(descriptor: int) -> bool:
    """Prevent other users from freeing pages of a store file; return whether other users may write to it."""
    return bool(library.check(lib.relay_file_protect(descriptor)))


def file_unprotect(descriptor: int) -> bool:
    """End the protection of a store file; return whether it was protected."""
    return bool(library.check(lib.relay_file_unprotect(descriptor)))


def file_is_protected(descriptor: int) -> bool:
    """Return whether a store file is protected."""
    return bool(lib.relay_file_is_protected(descriptor))


def file_change_owner(descriptor: int, mode: int, uid: int, gid: int) -> None:
    """Change a store file's mode, owner and group; a protected file stays protected."""
    library.check(lib.relay_file_change_owner(descriptor, mode, uid, gid))


def file_open(path: str) -> int:
    """Open a store file for reading and writing, also a protected one."""
    return library.check(lib.relay_file_open(os.fsencode(path)), path)


def mount_file_open(path: str, flags: int) -> int:
    """Open a file of a mount, with O_NONBLOCK; OSError: EBADMSG, it is not regular, or in no FUSE file system."""
    return library.check(lib.relay_mount_file_open(os.fsencode(path), flags), path)


def file_unlink(path: str) -> None:
    """Unlink a store file, also a protected one."""
    library.check(lib.relay_file_unlink(os.fsencode(path)), path)
