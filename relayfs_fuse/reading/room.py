"""How many processes of a trace can be read at once."""

from __future__ import annotations

import errno
import resource

from relayfs_fuse import native

# Errors of opening a process that may pass when other processes have ended.
FILES_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# A user other than this one gets at most 1/USER_SHARE of the processes that can be read at once.
USER_SHARE = 4
# Descriptors for other things than processes; each process takes one.
_OTHER_FILES = 32
# Mappings of other things than buffers.
_OTHER_MAPPINGS = 1024


def most_processes(n_files: int = 0) -> int:
    """Return how many processes can be read at once.

    n_files: descriptors that the caller needs for other files
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(limit - _OTHER_FILES - n_files, _n_mappings() // native.n_possible_cpus())


def permit_many_files() -> None:
    """Raise the limit of open files, because each process takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _n_mappings() -> int:
    """Return how many buffers can be mapped at once."""
    with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
        return max(1, int(file.read()) - _OTHER_MAPPINGS)
