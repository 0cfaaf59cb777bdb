"""What starts forwarders: the examples for containers. tests/fuse/cli/test_install.py has the unit."""

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from build import ROOT
from click.testing import CliRunner
from mounts import DEADLINE_S
from ruamel.yaml import YAML

from relayfs_fuse.cli.relayctl import relayctl

KUBERNETES = ROOT / "examples/kubernetes_forward.yaml"
COMPOSE = ROOT / "examples/compose_forward.yaml"


def judge(file: Path) -> subprocess.CompletedProcess[str]:
    """Compare a file with the schemas of Kubernetes."""
    command = [Path(sys.executable).with_name("kubernetes-validate"), "--strict", file]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_the_daemon_set_is_as_kubernetes_has_it(tmp_path):
    done = judge(KUBERNETES)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(KUBERNETES.read_text().replace("hostPID: true", "hostPid: true"))
    assert judge(wrong).returncode != 0


def parses(words: list[str]) -> bool:
    """Whether relayctl knows the options: it does nothing, as it is asked for help."""
    done = CliRunner().invoke(relayctl, [*words[1:], "--help"])
    return words[0] == "relayctl" and done.exit_code == 0


def test_the_commands_of_the_examples_are_commands(tmp_path):
    services = YAML(typ="safe").load(COMPOSE)["services"]
    commands = [shlex.split(one["command"]) for one in services.values() if one["image"] == "example/tools"]
    config, daemon_set = YAML(typ="safe").load_all(KUBERNETES)
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    options = tmp_path / "forward.toml"
    options.write_text(config["data"]["forward.toml"])
    assert tomllib.loads(options.read_text())["to"] == "nats://nats:4222"
    words = [str(options) if word == "/etc/relayfs/forward.toml" else word for word in container["args"]]
    assert str(options) in words
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in daemon_set["spec"]["template"]["spec"]["volumes"]}
    for command in (*commands, words):
        assert parses(command), command
        assert not parses([*command, "--rubbish"])
