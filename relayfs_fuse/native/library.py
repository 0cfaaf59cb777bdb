"""Converting the C library's errors to OSError, and base classes of the wrappers."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from relayfs_fuse import explain
from relayfs_fuse._native import ffi, lib
from relayfs_fuse.errors import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer as AnyBuffer

# Of these each is one buffer, though Python iterates over their numbers.
ONE_BUFFER = (bytes, bytearray, memoryview)

# In place of a pointer that is not there any more.
NULL = ffi.NULL


def check(result: int, path: str | None = None) -> int:
    """Return a library function's result, or raise it as OSError if it is a negative errno."""
    if result < 0:
        raise failure(-result, path)
    return result


def not_null(pointer: Any, path: str) -> Any:
    """Return a pointer that the library returned; NULL: raise errno as OSError."""
    if pointer == ffi.NULL:
        raise failure(ffi.errno, path)
    return pointer


def mapped(pointer: Any, path: str) -> Any:
    """As not_null(), for memN files; EMEDIUMTYPE (a ring where a buffer is expected) becomes EBADMSG, as for damage."""
    if pointer == ffi.NULL and ffi.errno == errno.EMEDIUMTYPE:
        raise failure(errno.EBADMSG, path)
    return not_null(pointer, path)


def made(pointer: Any, path: str) -> Any:
    """As not_null(), for a new channel; the OSError has the reason from the mount's error_log, if there is one."""
    if pointer == ffi.NULL:
        code = ffi.errno
        raise OSError(code, explain.refusal(path) or unchanged(code, path), path)
    return pointer


def unchanged(code: int, path: str) -> str:
    """Return the text of an error of making or removing a channel."""
    if code != errno.EBUSY or any(explain.mounts_of(path)):
        return os.strerror(code)
    store = ffi.new("char[]", 4096)  # PATH_MAX
    check(lib.relay_default_store(store))
    return explain.busy(os.fsdecode(ffi.string(store)))


# The errors of a path that does not exist, or at which there is a file of another type.
_WRONG_KIND = (errno.ENOENT, errno.EMEDIUMTYPE, errno.EBADMSG, errno.EINVAL, errno.EISDIR, errno.ENOTDIR)


def opened(pointer: Any, path: str) -> Any:
    """As not_null(), for an existing file; the OSError says what the path is instead, if that is known."""
    if pointer == ffi.NULL:
        code = ffi.errno
        what = explain.what_it_is(path) if code in _WRONG_KIND else None
        raise OSError(code, f"{os.strerror(code)}: it is {what}" if what else os.strerror(code), path)
    return pointer


def attached_or_made(path: str, options: str | None, attach: Callable[..., Any], make: Callable[..., Any]) -> Any:
    """Return a channel: attach to it, or make it with these options, unless they are None."""
    c_path = os.fsencode(path)
    return opened(attach(c_path), path) if options is None else made(make(c_path, os.fsencode(options)), path)


def record(data: AnyBuffer) -> Any:
    """Return a cffi buffer of the record's bytes; TypeError: it has none, as a str."""
    if isinstance(data, str):
        raise TypeError("a record is bytes, not str: text.encode() makes them")
    try:
        return ffi.from_buffer(data)
    except TypeError:
        raise TypeError(f"a record is bytes or another object with a buffer, not {type(data).__name__}") from None


def bytes_of(data: AnyBuffer) -> bytes:
    """Return the record's bytes; TypeError: as record()."""
    return bytes(ffi.buffer(record(data)))


class HasClose(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Release what it holds."""


class Closing(ABC):
    """A context manager that closes itself."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def closed_on_error(*parts: HasClose) -> Iterator[None]:
    """Close the parts, the last one first, if an exception leaves the context: for constructors."""
    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.close)
        yield
        stack.pop_all()


class Fields:
    """The numbers in a struct, by the names of its fields; each is converted when it is accessed."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> int:
        """Return a field."""
        return int(getattr(self._raw, name))

    def to_bytes(self) -> bytes:
        """Return the struct, to compare it with others."""
        return bytes(ffi.buffer(self._raw))


class Handle:
    """Owner of a pointer of the library, until close()."""

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    @property
    def _open(self) -> Any:
        if self._pointer is None:
            raise ValueError(f"{type(self).__name__} is closed")
        return self._pointer

    @property
    def pointer(self) -> Any:
        """The library's struct, for its other functions."""
        return self._open

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._pointer is None

    def refuse(self, result: int) -> NoReturn:
        """Raise the error that a function has returned for `pointer`, or for NULL; ValueError: this is closed."""
        assert self._open is not None
        raise failure(-result)

    def _disown(self) -> Any:
        pointer, self._pointer = self._pointer, None
        return ffi.NULL if pointer is None else pointer


class Memory(Handle, ABC):
    """Owner of a mapping of memory that other processes write to."""

    path: str

    @abstractmethod
    def damage(self) -> str:
        """Describe the inconsistency in the memory, after EBADMSG or IS_DAMAGED; "" if there is none."""

    def check(self, result: int) -> int:
        """Return a library function's result, or raise it as OSError; for EBADMSG with damage() as its text."""
        if result == -errno.EBADMSG:
            raise OSError(errno.EBADMSG, self.damage() or os.strerror(errno.EBADMSG), self.path)
        return check(result, self.path)
