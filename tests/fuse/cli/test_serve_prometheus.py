"""Prometheus scrapes relayctl serve, configured as the how-to says, and answers what the dashboard for Grafana asks."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from build import ROOT
from http_site import site
from mounts import Mount, wait_until
from prometheus import Prometheus, check_by_promtool, scraping
from traced import start_trace, traced

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

HOW_TO = ROOT / "docs/howto/prometheus.md"
TOKEN = "0123456789abcdef"
SMALL = "buffers=single subbuf_size=4K n_subbufs=2"
EVERY_SECOND = "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n"
TOKEN_PLACE = "/etc/prometheus/relayfs.token"


def configurations(port: int, token: Path) -> Iterator[str]:
    """Yield those of the how-to, with another port, name of the machine, and place of the token's file."""
    for block in re.findall(r"^```yaml\n(.*?)^```$", HOW_TO.read_text(), re.MULTILINE | re.DOTALL):
        there = re.sub(r"'[\w.]+:5345'", f"'127.0.0.1:{port}'", block)
        yield EVERY_SECOND + there.replace(TOKEN_PLACE, str(token))


def up(prometheus: Prometheus) -> list[float]:
    return prometheus.query('up{job="relayfs"}')


def as_grafana_asks(expression: str, instance: str | None) -> str:
    """Replace variables as Grafana does; its $__rate_interval is at least four times the interval of scrapes.

    instance: what is selected; None: all, which the dashboard says how to write
    """
    selected = ".*" if instance is None else re.sub(r"[$^*{}\[\]+?.()|\\]", r"\\\\\g<0>", instance)
    replaced = expression.replace("$__rate_interval", "4s").replace("$instance", selected)
    assert "$" not in replaced
    return replaced


@pytest.fixture
def busy(mount: Mount) -> Iterator[Callable[[], None]]:
    """A channel and a trace that lose something each time that the function is called, and a disabled channel."""
    paths = [mount.create(f"app/{name}", SMALL) for name in ("lines", "off")]
    mount.command("disable app/off")
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=2")
    with Channel(paths[0]) as channel, traced(mount) as program:

        def act() -> None:
            channel.write(b"x" * 10)
            with pytest.raises(OSError, match="long"):
                channel.write(bytes(5000))
            with pytest.raises(FileNotFoundError):
                os.stat(mount.path / "none")
            program.ask("emit 1000")

        yield act
    mount.command("trace remove t")


def test_each_question_of_the_dashboard_is_answered_with_data(
    mount: Mount, tmp_path: Path, busy: Callable[[], None]
) -> None:
    with site("--mount", mount.path) as served:
        board = json.loads(served.get("grafana.json").body)
        queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        (values,) = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
        label = re.fullmatch(r"label_values\((\w+), (\w+)\)", values)
        assert len(queries) > 10
        assert label
        (configuration, _) = configurations(served.port, tmp_path)
        with scraping(configuration, tmp_path) as prometheus:
            wait_until(lambda: up(prometheus) == [1], "the target is up")
            (instance,) = prometheus.ask(f"label/{label[2]}/values", **{"match[]": label[1]})
            assert instance == f"127.0.0.1:{served.port}"
            missing = [as_grafana_asks(query, one) for query in queries for one in (None, instance)]

            def are_answered() -> bool:
                busy()
                while missing and prometheus.query(missing[-1]):
                    missing.pop()
                return not missing

            wait_until(are_answered, lambda: f"data for {missing[-1]}")
            # What is answered is what is known here, too.
            n = served.figures()['relayfs_channel_records_total{channel="app/lines"}']
            wait_until(
                lambda: prometheus.query('relayfs_channel_records_total{channel="app/lines"}') == [n], "it is told"
            )
        check_by_promtool(served.get("metrics").text, has_any_names=False)


def test_a_server_that_is_killed_is_down_and_up_again_and_counts_go_on(mount: Mount, tmp_path: Path) -> None:
    path, file = mount.create("app/lines", SMALL), tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    asked = 'relayfs_channel_records_total{channel="app/lines"}'
    with Channel(path) as channel:
        channel.write(b"first")
        with site("--mount", mount.path, "--token-file", file) as served:
            port = served.port
            (_, configuration) = configurations(port, file)
            with scraping(configuration, tmp_path) as prometheus:
                wait_until(lambda: prometheus.query(asked) == [1], "it is scraped with the token")
                served.kill()
                wait_until(lambda: up(prometheus) == [0], "the target is down")
                channel.write(b"second")
                with site("--mount", mount.path, "--token-file", file, "--listen", f"127.0.0.1:{port}"):
                    wait_until(lambda: prometheus.query(asked) == [2], "it is up again")
                    assert up(prometheus) == [1]
                    assert prometheus.query(f"resets({asked}[1h])") == [0]
