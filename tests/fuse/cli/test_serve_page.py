"""The page of relayctl serve: what it fetches exists, and its functions read what the server sends."""

import json
import re
import subprocess
from collections.abc import Iterator

import pytest
from build import ROOT
from http_site import Site, site
from mounts import Mount
from prometheus_client.parser import text_string_to_metric_families

from relayfs_fuse import Channel, Counters

pytestmark = pytest.mark.one_mount

SCRIPT = ROOT / "relayfs_fuse/cli/web/page/page.js"


@pytest.fixture(scope="module")
def served(shared_mount: Mount) -> Iterator[Site]:
    with site("--mount", shared_mount.path) as one:
        yield one


def run(expression: str, *arguments: object) -> object:
    """Have node evaluate an expression with the page's functions, in which `given` are the arguments."""
    code = f"const given = {json.dumps(arguments)};\nconsole.log(JSON.stringify({expression}))"
    done = subprocess.run(["node", "-"], input=SCRIPT.read_text() + code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_each_address_and_element_that_the_page_uses_exists(served: Site) -> None:
    page, script = served.get("").text, SCRIPT.read_text()
    linked = re.findall(r'(?:src|href)="([^"]+)"', page)
    asked = re.findall(r'\b(?:ask|at)\("([^"]+)"|\["([\w.]+)", "[\w ]+"\]', script)
    asked = ["".join(one) for one in asked]
    linked.remove("data:,")  # no icon, which browsers would ask for
    assert set(linked) == {"page.css", "page.js"}
    assert set(asked) == {"metrics", "grafana.json", "events", "snapshot", "trace.pftrace"}
    assert [path for path in [*linked, *asked] if served.get(path).status == 404] == []
    # Nothing comes from elsewhere; the name of SVG's elements is no address.
    assert re.findall(r"https?://\S+?(?=[\"'])", page + script + served.get("page.css").text) == [
        "http://www.w3.org/2000/svg"
    ]
    assert not re.search(r"\b(?:style|on\w+)=", page), "the policy forbids it"
    used = re.findall(r'getElementById\("(\w+)"\)', script) + re.findall(r'\b(?:fill|say)\("(\w+)"', script)
    assert set(used) <= set(re.findall(r'id="(\w+)"', page))
    assert "innerHTML" not in script


def test_it_reads_the_figures_as_prometheus_does(mount: Mount, served: Site) -> None:
    path = mount.create('app/a"b,c}', "buffers=single subbuf_size=4K")
    with Channel(path) as channel, Counters(mount.path) as counters:
        channel.write(b"x")
        with pytest.raises(OSError, match="long"):
            channel.write(bytes(5000))
        counters.add("app/läng", kind="gauge").adjust(-3)
        text = served.get("metrics").text
        counters.delete("app/läng")
    found = run("parse_metrics(given[0])", text)
    expected = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert found == [{"name": one.name, "labels": one.labels, "value": one.value} for one in expected]
    (shown,) = run('by_label(parse_metrics(given[0]), "relayfs_channel_", "channel")', text)
    assert (shown["name"], shown["state"], shown["records_total"]) == ('app/a"b,c}', "ok", 1)
    assert shown["lost"] == {"full": 0, "too_large": 1, "disabled": 0, "overwritten": 0, "torn": 0}


def test_it_reads_events_wherever_they_are_cut() -> None:
    text = 'event: begin\ndata: {"trace": "t"}\n\n:\n\ndata: {"a":1}\n\nevent: missed\ndata: {"lines": 7}\n\n'
    read = """given[0].map((cut) => {
        const first = parse_events(given[1].slice(0, cut));
        const then = parse_events(first.rest + given[1].slice(cut));
        return [...first.messages, ...then.messages].map(line_of);
    })"""
    expected = [None, '{"a":1}', "--- 7 lines are missing here: this page was too slow"]
    assert run(read, list(range(len(text))), text) == [expected] * len(text)


def test_rates_are_true_after_counts_began_anew() -> None:
    assert run("rates(given[0])", [[0, 5], [1000, 15], [2000, 2], [4000, 12], [4000, 13]]) == [10, 5]
    assert run("given[0].map(brief)", [0, 9999, 10_000, 2.5, 3_000_000_000_000]) == [
        "0",
        "9999",
        "10.0k",
        "2.5",
        "3000.0G",
    ]
