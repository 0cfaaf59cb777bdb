"""Files of a store: making them, and who may do what with them; see <relayfs/store.h>."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def find_mount() -> str | None:
    """Find $RELAYFS, or the first mount that is root's or this user's; None: there is none."""
    with suppress(FileNotFoundError):
        return _path(lib.relay_find_mount)
    return None


def find_store(mount: str) -> str:
    """Find the store behind a mount; OSError: ENODATA, it does not tell; or as getxattr(2)."""
    return _path(lib.relay_find_store, os.fsencode(mount), asked=os.path.join(mount, ".traces", "control"))


def default_store() -> str:
    """Name the store that is meant where no mount is: $RELAYFS_STORE, or this user's."""
    return _path(lib.relay_default_store)


def _path(find: Callable[..., int], *arguments: bytes, asked: str | None = None) -> str:
    path = ffi.new("char[]", 4096)  # PATH_MAX
    library.check(find(*arguments, path), asked)
    return os.fsdecode(ffi.string(path))


def n_possible_cpus() -> int:
    """Count the CPUs that this machine may ever have."""
    return int(lib.relay_n_possible_cpus())


def scheme_default(buffers: int) -> int:
    """Tell what scheme=any becomes for these buffers on this machine."""
    return int(lib.relay_scheme_default(buffers))


def has_tsc() -> bool:
    """Tell whether this machine has a counter for timestamp=tsc."""
    return bool(lib.relay_has_tsc())


def buf_file_bytes(subbuf_size: int, n_subbufs: int) -> int:
    """Tell how much of the store one buffer takes; 0: the geometry is not allowed."""
    limit = 1 << 64
    if not (0 < subbuf_size < limit and 0 < n_subbufs < limit):
        return 0
    return int(lib.relay_buf_file_bytes(subbuf_size, n_subbufs))


def store_create(directory: str, spec: Mapping[str, int]) -> None:
    """Make a channel with all its memory in a new directory.

    spec: what the fields of struct relay_spec hold, if it is not 0
    """
    c_spec = ffi.new("struct relay_spec *", {**spec, "size": ffi.sizeof("struct relay_spec")})
    library.check(lib.relay_store_create(os.fsencode(directory), c_spec), directory)


def store_adopt(directory: str, descriptors: Sequence[int]) -> None:
    """Make a channel, in a new directory, of files that have no names yet."""
    library.check(lib.relay_store_adopt(os.fsencode(directory), list(descriptors), len(descriptors)), directory)


def store_copy(directory: str, descriptors: Sequence[int], mode: int, uid: int, gid: int) -> None:
    """Make a channel, in a new directory, of copies of such files."""
    library.check(
        lib.relay_store_copy(os.fsencode(directory), list(descriptors), len(descriptors), mode, uid, gid), directory
    )


def implicit_make(directory: str) -> None:
    """Make a directory because the path of a channel leads through it."""
    library.check(lib.relay_implicit_make(os.fsencode(directory)), directory)


def implicit_is(directory: str) -> bool:
    """Tell whether a directory was made so, and has its mode, owner and group since."""
    return bool(lib.relay_implicit_is(os.fsencode(directory)))


def guard_install() -> None:
    """Survive store files that somebody truncates under our mapping."""
    library.check(lib.relay_guard_install())


def file_protect(descriptor: int) -> bool:
    """Let nobody free pages of a store file, if others than our user may write to it; tell whether they may."""
    return bool(library.check(lib.relay_file_protect(descriptor)))


def file_unprotect(descriptor: int) -> bool:
    """Make a store file as others are; tell whether it was protected."""
    return bool(library.check(lib.relay_file_unprotect(descriptor)))


def file_is_protected(descriptor: int) -> bool:
    """Tell whether nobody can free a store file's pages."""
    return bool(lib.relay_file_is_protected(descriptor))


def file_change_owner(descriptor: int, mode: int, uid: int, gid: int) -> None:
    """Give a store file this mode, owner and group; one that is protected stays so."""
    library.check(lib.relay_file_change_owner(descriptor, mode, uid, gid))


def file_open(path: str) -> int:
    """Open a store file for reading and writing, also a protected one."""
    return library.check(lib.relay_file_open(os.fsencode(path)), path)


def file_unlink(path: str) -> None:
    """Unlink a store file, also a protected one."""
    library.check(lib.relay_file_unlink(os.fsencode(path)), path)
