"""Running the services of a Compose file without a container engine, in namespaces, with what the file says only.

A service gets a root of its own: a tmpfs with the host's /usr and /etc and this Python environment, read-only, in place
of its image; the devices that every container has, and those of the file; its volumes; and of the capabilities that
Docker gives to root by default those that the file leaves. It sees the processes of its own PID namespace, or of that
of the service which `pid` names. A file that has other keys is refused, so that nothing is left untried.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mounts import DEADLINE_S, NO_MOUNTS, wait_until
from ruamel.yaml import YAML

# What Docker leaves to root: docs.docker.com/engine/containers/run, "Runtime privilege and Linux capabilities".
CAPABILITIES = {
    "audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "net_raw",
    "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
}  # fmt: skip
KEYS = {
    "image", "command", "init", "environment", "volumes", "cap_drop", "cap_add", "healthcheck", "pid", "depends_on",
    "devices", "security_opt", "profiles",
}  # fmt: skip
PATH = f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The host: a namespace in which no relayfs is mounted, and all mounts are shared, as systemd has it.
HOST = f"""set -e
{NO_MOUNTS}
mount -t tmpfs -o mode=0755 tmpfs /mnt
mount -t tmpfs -o mode=1777,size=256m tmpfs /dev/shm
mount --make-rshared /
echo ready
exec sleep infinity
"""
# A container: ROOT, VOLUMES (lines "FROM TO PROPAGATION"), DEVICES and FILES are in the environment.
CONTAINER = r"""set -e
mount -t tmpfs -o nodev,mode=0755 tmpfs "$ROOT"
cd "$ROOT"
for name in bin sbin lib lib32 lib64; do [ ! -L "/$name" ] || ln -s "usr/$name" "$name"; done
for from in /usr /etc /sys "$PREFIX"; do
	mkdir -p "./$from"
	mount --bind "$from" "./$from"
	mount -o remount,bind,ro "./$from"
done
mkdir -p tmp && chmod 1777 tmp
mkdir -p app dev proc old
mount --bind "$FILES" app
mount -t proc proc proc
mount -t tmpfs -o nosuid,mode=0755 tmpfs dev
for device in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty $DEVICES; do
	touch "./$device"
	mount --bind "$device" "./$device"
done
mkdir dev/shm
mount -t tmpfs -o nodev,nosuid,mode=1777,size=64m tmpfs dev/shm
printf %s "$VOLUMES" | while read -r from to propagation; do
	mkdir -p "./$to"
	mount --rbind "$from" "./$to"
	mount --make-"$propagation" "./$to"
done
pivot_root . old
umount -l /old
rmdir /old
set +e
if [ -n "$INIT" ]; then
	env -i PATH="$IMAGE_PATH" setpriv --bounding-set="$BOUNDING" --inh-caps=-all env "$@" &
	wait
else
	exec env -i PATH="$IMAGE_PATH" setpriv --bounding-set="$BOUNDING" --inh-caps=-all env "$@"
fi
"""


@dataclass
class Running:
    """A service that runs, or a command beside it.

    out: the file with what it prints, with errors
    """

    process: subprocess.Popen[bytes]
    out: Path

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def kill(self) -> None:
        """Let all of its processes die at once, as `docker kill` does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Project:
    """The services of a Compose file on a host of their own.

    files: by name, programs in /app of all images
    """

    def __init__(self, path: Path, place: Path, host: int, files: dict[str, str]) -> None:
        self.services: dict[str, dict[str, Any]] = {}
        loaded = YAML(typ="safe").load(path)
        assert loaded.keys() <= {"services", "volumes"}
        self._place = place
        self._on_host: list[subprocess.Popen[bytes]] = []
        self._enter = ["nsenter", f"--mount=/proc/{host}/ns/mnt"]
        self._files = place / "app"
        self._files.mkdir()
        for name, text in files.items():
            (self._files / name).write_text(text)
            (self._files / name).chmod(0o755)
        for name, service in loaded["services"].items():
            assert service.keys() <= KEYS, f"{name}: {service.keys() - KEYS} is not tried"
            self.services[name] = service
        for name, volume in (loaded.get("volumes") or {}).items():
            self._make_volume(name, volume)
        self._running: dict[str, Running] = {}
        self._all: list[Running] = []

    def on_host(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a program on the host, which sees the mounts of others as they see its own."""
        with (self._place / "host.out").open("ab") as out:
            process = subprocess.Popen(
                [*self._enter, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                env={"PATH": PATH, "LC_ALL": "C.UTF-8"}, start_new_session=True,
            )  # fmt: skip
        self._on_host.append(process)
        return process

    def do_on_host(self, *command: str | Path) -> None:
        """Run a program on the host, which must succeed."""
        assert self.on_host(*command).wait(DEADLINE_S) == 0, (self._place / "host.out").read_text()

    def up(self, name: str) -> Running:
        """Start a service, after those that it depends on."""
        for other, how in self.services[name].get("depends_on", {}).items():
            if other not in self._running:
                self.up(other)
            if how["condition"] == "service_healthy":
                self._wait_until_healthy(other)
        self._running[name] = self.run(name)
        return self._running[name]

    def run(self, name: str, command: str | list[str] | None = None, **changed: object) -> Running:
        """Start a container of a service, with its command, or another one; changed: keys with other values."""
        service = {**self.services[name], **changed}
        command = command or service["command"]
        words = shlex.split(command) if isinstance(command, str) else command
        number = len(self._all)
        root, out = self._place / f"root{number}", self._place / f"{name}{number}.out"
        root.mkdir()
        namespaces = ["unshare", "--mount", "--propagation", "slave"]
        environment = {
            "PATH": PATH, "ROOT": str(root), "FILES": str(self._files), "PREFIX": sys.prefix, "IMAGE_PATH": PATH,
            "VOLUMES": self._volumes(service), "DEVICES": " ".join(map(_device, service.get("devices", ()))),
            "BOUNDING": ",".join(["-all", *(f"+{one}" for one in sorted(_capabilities(service)))]),
            "INIT": "1" if service.get("init") else "",
        }  # fmt: skip
        enter = list(self._enter)
        if "pid" in service:
            kind, _, other = service["pid"].partition(":")
            assert kind == "service"
            enter.append(f"--pid=/proc/{self._running[other].process.pid}/ns/pid_for_children")
        else:
            namespaces += ["--pid", "--fork", "--kill-child"]
        variables = [f"{key}={value}" for key, value in service.get("environment", {}).items()]
        with out.open("wb") as file:
            process = subprocess.Popen(
                [*enter, *namespaces, "sh", "-c", CONTAINER, "sh", *variables, *words], env=environment,
                stdin=subprocess.PIPE, stdout=file, stderr=file, cwd="/", start_new_session=True,
            )  # fmt: skip
        running = Running(process, out)
        self._all.append(running)
        return running

    def _wait_until_healthy(self, name: str) -> None:
        how, *command = self.services[name]["healthcheck"]["test"]
        assert how == "CMD"
        beside = {"pid": f"service:{name}", "init": False}
        wait_until(
            lambda: self.run(name, command, **beside).process.wait(DEADLINE_S) == 0,
            lambda: f"{name} is healthy: {self._running[name].lines()}",
        )

    def _volumes(self, service: dict[str, Any]) -> str:
        lines = []
        for volume in service.get("volumes", ()):
            if isinstance(volume, str):
                source, target = volume.split(":")
                lines.append(f"{self._place}/volume-{source} {target} private\n")
                continue
            assert volume["type"] == "bind"
            propagation = volume.get("bind", {}).get("propagation", "rprivate")
            lines.append(f"{volume['source']} {volume['target']} {propagation}\n")
        return "".join(lines)

    def _make_volume(self, name: str, volume: dict[str, Any]) -> None:
        options = volume["driver_opts"]
        assert (volume["driver"], options["type"]) == ("local", "tmpfs")
        place = self._place / f"volume-{name}"
        place.mkdir()
        self.do_on_host("mount", "-t", "tmpfs", "-o", options["o"], options["device"], place)

    def close(self) -> None:
        """End all that runs."""
        for running in reversed(self._all):
            if running.process.poll() is None:
                running.kill()
            assert running.process.stdin is not None
            running.process.stdin.close()
        for process in self._on_host:
            process.kill()
            process.wait()


def _capabilities(service: dict[str, Any]) -> set[str]:
    """The capabilities of a service, as they are called in capability.h after CAP_."""
    dropped, added = (set(map(str.lower, service.get(key, ()))) for key in ("cap_drop", "cap_add"))
    return (set() if "all" in dropped else CAPABILITIES - dropped) | added


def _device(device: str) -> str:
    source, target = device.split(":")
    assert source == target
    return source


@contextmanager
def project(path: Path, **files: str) -> Iterator[Project]:
    """Give the services of a file, of which none runs yet, and whose images have these programs in /app."""
    with tempfile.TemporaryDirectory(prefix="relayfs-test-") as place:
        host = subprocess.Popen(["unshare", "--mount", "sh", "-c", HOST], stdout=subprocess.PIPE)
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == b"ready\n"
            made = Project(path, Path(place), host.pid, files)
            try:
                yield made
            finally:
                made.close()
        finally:
            host.kill()
            host.communicate()
