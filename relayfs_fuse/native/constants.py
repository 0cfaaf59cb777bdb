"""Constants of <relayfs/store.h>, <relayfs/check_store.h> and <relayfs/layout.h>, and the version."""

from relayfs_fuse._native import ffi, lib

VERSION: str = ffi.string(lib.relay_version()).decode()
# The versions of the formats in a store.
FORMATS: dict[str, int] = {
    "buffers": lib.RELAY_FORMAT_BUFFER,
    "rings": lib.RELAY_FORMAT_RING,
    "counters": lib.RELAY_FORMAT_COUNTERS,
    "names of counters": lib.RELAY_FORMAT_NAMES,
    "traces": lib.RELAY_FORMAT_TRACES,
}

CLOSED: int = lib.RELAY_CLOSED
DISABLED: int = lib.RELAY_DISABLED
ARM_SWITCH: int = lib.RELAY_ARM_SWITCH
ARM_RECORD: int = lib.RELAY_ARM_RECORD
IMPLICIT_MARK: int = lib.RELAY_IMPLICIT_MARK
HAS_DATA: int = lib.RELAY_HAS_DATA
HAS_FINISHED: int = lib.RELAY_HAS_FINISHED
IS_CLOSED: int = lib.RELAY_IS_CLOSED
IS_DAMAGED: int = lib.RELAY_IS_DAMAGED
LOOK_AGAIN: int = lib.RELAY_LOOK_AGAIN
IS_HELD: int = lib.RELAY_IS_HELD
HAS_DISCARDED: int = lib.RELAY_HAS_DISCARDED

MODE_NO_OVERWRITE: int = lib.RELAY_NO_OVERWRITE
MODE_OVERWRITE: int = lib.RELAY_OVERWRITE
SCHEME_RSEQ: int = lib.RELAY_RSEQ
BUFFERS_PERCPU: int = lib.RELAY_PERCPU
BUFFERS_SINGLE: int = lib.RELAY_SINGLE
DELIVERY_BULK: int = lib.RELAY_BULK
READ_WAIT: int = lib.RELAY_READ_WAIT
