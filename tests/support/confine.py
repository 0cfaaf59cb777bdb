"""Run a server as relayfs@.service confines it, where systemd does not run: confine.py UNIT RELAYFS -f ARGUMENT...

It gets the mount that ExecStartPre= makes. And it gets the unit's capabilities, system calls, no new privileges, no
memory that is writable and executable, and a network of its own, all from the kernel. The sets of system calls are
those of `systemd-analyze syscall-filter`.
"""

import ctypes
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

HEADERS = Path("/usr/include")
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_MDWE = 24, 38, 22, 65
MDWE_REFUSE_EXEC_GAIN, SECCOMP_MODE_FILTER, CLONE_NEWNET = 1, 2, 0x40000000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7FFF0000, 0x00050001


def values(unit: str, key: str) -> list[str]:
    """Return what the unit says for a key, a string for each line."""
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


def numbers(header: Path, prefix: str) -> dict[str, int]:
    """Return the numbers that a header of the kernel defines."""
    found = re.findall(rf"^#define {prefix}(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


def system_calls(words: list[str]) -> set[str]:
    """Return the system calls of sets, and of sets in sets."""
    found = {word for word in words if word[0] != "@"}
    sets = [word for word in words if word[0] == "@"]
    if sets:
        shown = subprocess.run(["systemd-analyze", "syscall-filter", *sets], capture_output=True, text=True, check=True)
        found |= system_calls(re.findall(r"^    ([@\w-]+)$", shown.stdout, re.MULTILINE))
    return found


def allowed(unit: str) -> set[str]:
    """Return the system calls that the unit's lines leave; @default always is."""
    calls = system_calls(["@default"])
    for line in values(unit, "SystemCallFilter"):
        if line.startswith("~"):
            calls -= system_calls(line[1:].split())
        else:
            calls |= system_calls(line.split())
    return calls


def prctl(*arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*arguments, *[0] * (5 - len(arguments))):
        raise OSError(ctypes.get_errno(), f"prctl{arguments}")


def filter_system_calls(names: set[str]) -> None:
    known = numbers(HEADERS / f"{os.uname().machine}-linux-gnu/asm/unistd_64.h", "__NR_")
    program = struct.pack("HBBI", LOAD, 0, 0, 0)
    for name in sorted(names & known.keys()):
        program += struct.pack("HBBI", EQUAL, 0, 1, known[name]) + struct.pack("HBBI", RETURN, 0, 0, ALLOW)
    program += struct.pack("HBBI", RETURN, 0, 0, EPERM)
    text = ctypes.create_string_buffer(program)
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(text)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog)


def pass_mount(program: str, arguments: list[str]) -> None:
    """Mount, and arrange for this process to be given that as a service manager does (sd_listen_fds(3))."""
    address = f"relayfs-confine-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{address}")
        helper = subprocess.Popen(
            [program, "--service-mount", *arguments], env={**os.environ, "NOTIFY_SOCKET": f"@{address}"}
        )
        said, (device,), _, _ = socket.recv_fds(manager, 1000, 1)
        asked, (barrier,), _, _ = socket.recv_fds(manager, 1000, 1)
        os.close(barrier)
        assert (said, asked, helper.wait()) == (b"FDSTORE=1\nFDNAME=fuse", b"BARRIER=1", 0)
    os.dup2(device, 3)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="fuse")


def main() -> None:
    pass_mount(sys.argv[2], sys.argv[4:])
    unit = Path(sys.argv[1]).read_text()
    calls = allowed(unit)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    kept = {name for line in values(unit, "CapabilityBoundingSet") for name in line.split()}
    for name, number in numbers(HEADERS / "linux/capability.h", "(?=CAP_)").items():
        if name not in kept and number <= last:
            prctl(PR_CAPBSET_DROP, number)
    if values(unit, "PrivateNetwork") == ["yes"] and ctypes.CDLL(None).unshare(CLONE_NEWNET):
        raise OSError("unshare")
    if values(unit, "MemoryDenyWriteExecute") == ["yes"]:
        prctl(PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN)
    assert values(unit, "NoNewPrivileges") == ["yes"]
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    filter_system_calls(calls)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
