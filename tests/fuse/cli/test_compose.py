"""The Compose files of the examples: they are as the specification says, and their services do what they are for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from build import ROOT
from compose import Project, Running, project
from forking import RELAYFS
from mounts import DEADLINE_S, wait_until

FILES = sorted((ROOT / "examples").glob("compose_*.yaml"))
STORE, MOUNT, FORWARD = (ROOT / f"examples/compose_{name}.yaml" for name in ("store", "mount", "forward"))
N = 200
# The service: it logs, and then it waits, until it is killed.
WEB = f"""#!/bin/sh
i=0
while [ $i -lt {N} ]; do i=$((i + 1)); echo "request $i"; done
exec sleep infinity
"""
LOGGED = [f"request {number}" for number in range(1, N + 1)]
MERGED = "/mnt/relay/fs/.channels/app/log/merged"
ITSELF = {"type": "bind", "source": "/mnt/relay/fs", "target": "/mnt/relay/fs", "bind": {"propagation": "rslave"}}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make these namespaces")


def judge(*files: Path) -> subprocess.CompletedProcess[str]:
    """Compare files with the schema of the Compose specification."""
    command = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", *files]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_compose_files_are_as_the_specification_says(tmp_path: Path) -> None:
    assert sorted([STORE, MOUNT, FORWARD]) == FILES
    done = judge(*FILES)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(STORE.read_text().replace("cap_drop: [ALL]", "cap_drops: [ALL]"))
    assert "'cap_drops' was unexpected" in judge(wrong).stdout


def texts(running: Running) -> list[str]:
    """What it has printed, without the times of `relayctl view`."""
    return [line.partition(": ")[2] if line.startswith("[") else line for line in running.lines()]


def wait_for(running: Running, expected: list[str]) -> None:
    wait_until(lambda: len(running.lines()) >= len(expected), lambda: f"{len(expected)} lines: {running.lines()[-5:]}")
    assert texts(running) == expected


def kill_and_read(services: Project, expected: list[str]) -> None:
    """Start both services, kill the one that logs, and start both again: nothing is missing."""
    web, sidecar = services.up("web"), services.up("sidecar")
    wait_for(sidecar, expected)
    web.kill()
    services.up("web")
    wait_for(sidecar, 2 * expected)
    sidecar.kill()
    wait_for(services.up("sidecar"), 2 * expected)


@as_root
def test_a_sidecar_reads_the_store_that_it_shares_with_a_service() -> None:
    with project(STORE, web=WEB) as services:
        kill_and_read(services, LOGGED)
        wait_for(services.up("files"), 2 * LOGGED)
        # Without what the file gives to this service alone, there is no mount.
        for key, command in (("cap_add", "relayfs -f /tmp -o store=/tmp/store"), ("devices", "test -c /dev/fuse")):
            assert services.run("files", command, **{key: []}).process.wait(DEADLINE_S) == 1


@as_root
def test_a_sidecar_reads_the_mount_of_the_host() -> None:
    (create,) = (line.split()[1:] for line in MOUNT.read_text().splitlines() if "relayctl create" in line)
    with project(MOUNT, web=WEB) as services:
        services.do_on_host("mkdir", "-p", "/mnt/relay/fs")
        server = serve(services)
        services.do_on_host(*create)
        # These go on while the server is started again; of them, one has the mount itself as its volume.
        late, stale = (
            services.run("sidecar", f"sh -c 'read line; cat {MERGED}'", volumes=volumes)
            for volumes in (services.services["sidecar"]["volumes"], [ITSELF])
        )
        kill_and_read(services, LOGGED)
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE_S) == 0
        server = serve(services)
        for container, status in ((late, 0), (stale, 1)):
            assert container.process.stdin is not None
            container.process.stdin.write(b"\n")
            container.process.stdin.close()
            assert container.process.wait(DEADLINE_S) == status
        assert late.lines() == 2 * LOGGED
        assert stale.lines() == [f"cat: {MERGED}: Transport endpoint is not connected"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE_S) == 0


def serve(services: Project) -> subprocess.Popen[bytes]:
    """Start the host's server, whose mount then answers."""
    server = services.on_host(RELAYFS, "-f", "/mnt/relay/fs")
    wait_until(lambda: services.on_host("test", "-e", "/mnt/relay/fs/control").wait() == 0, "the host's mount")
    return server
