"""What relayctl prints for Prometheus, judged by promtool, node_exporter and the parsers of prometheus_client."""

import dataclasses
import os
import random
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import Mount
from prometheus import check_by_promtool, listening, types_in
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tracing import RELAYCTL, relayctl

from relayfs_fuse import Counters
from relayfs_fuse.cli import openmetrics
from relayfs_fuse.cli.counters import shown as shown_info
from relayfs_fuse.native import CounterInfo

pytestmark = pytest.mark.one_mount

ROUNDS = 200 if os.environ.get("RELAYFS_STRESS") == "long" else 8
N_FUZZED = 60
DEADLINE = 300
# What the text formats, or their parsers, add to names of metrics.
SUFFIXES = ("", "_total", "_created", "_bucket", "_sum", "_count", "_info", "_gsum", "_gcount", "_total_total")
HELP = 'A "quoted" \\ help, of ünicode'


def shown(mount: Mount, *arguments: object) -> str:
    done = relayctl("counters", "-m", mount.path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def samples_of(families: object) -> dict[str, float]:
    return {
        sample.labels["name"]: sample.value
        for family in families
        for sample in family.samples
        if not sample.labels.get("name", "relayfs/").startswith("relayfs/")
    }


@pytest.fixture
def furnished(mount: Mount) -> Iterator[Mount]:
    """Counters and gauges whose names end as those that formats and parsers know."""
    with Counters(mount.path) as counters:
        counters.add("disk/writes", help=HELP).adjust(7)
        counters.add("disk/read", unit="bytes", help="Read").adjust(1 << 40)
        counters.add("disk/queue", kind="gauge", help="Requests that wait").adjust(-3)
        for kind in ("counter", "gauge"):
            for suffix in SUFFIXES:
                counters.add(f"{kind}/x{suffix}", kind=kind, help=HELP).adjust(1)
                # Names that become the same, of different kinds.
                counters.add(f"mixed{'/' if kind == 'gauge' else '-'}x{suffix}", kind=kind).adjust(1)
                counters.add(f"unit/{kind}{suffix}", kind=kind, unit=suffix.strip("_")).adjust(1)
        counters.add("_total").adjust(2)
        counters.add("höhe/9", kind="gauge", unit="m").adjust(1)
        yield mount


def test_promtool_reads_the_text_format(furnished):
    text = shown(furnished, "--prometheus")
    check_by_promtool(text)
    types = types_in(text)
    assert (types["disk_writes_total"], types["disk_queue"]) == ("counter", "gauge")
    values = samples_of(parse_text(text))
    assert (values["disk/writes"], values["disk/read"], values["disk/queue"]) == (7, 1 << 40, -3)
    assert values["höhe/9"] == 1
    assert [family.documentation for family in parse_text(text) if family.name == "disk_writes"] == [HELP]


def test_openmetrics_has_the_same_samples_and_no_name_clashes(furnished):
    text = shown(furnished, "--openmetrics")
    assert samples_of(parse_openmetrics(text)) == samples_of(parse_text(shown(furnished, "--prometheus")))
    assert text.endswith("# EOF\n")
    assert [family.documentation for family in parse_openmetrics(text) if family.name == "disk_writes"] == [HELP]


@pytest.fixture
def textfiles(tmp_path) -> Iterator[tuple[Path, str]]:
    """A node_exporter that collects text files: their directory, and where it is scraped."""
    directory = tmp_path / "textfiles"
    directory.mkdir()
    options = ("--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={directory}")
    with listening("prometheus-node-exporter", *options, log=tmp_path / "exporter.log") as address:
        yield directory, f"http://{address}/metrics"


def test_node_exporter_passes_on_the_types_values_and_help_of_the_text_format(furnished, textfiles):
    directory, url = textfiles
    text = shown(furnished, "--prometheus")
    (directory / "relayfs.prom").write_text(text)
    with urllib.request.urlopen(url, timeout=DEADLINE) as scraped:  # of 127.0.0.1
        answer = scraped.read().decode()
    assert "\nnode_textfile_scrape_error 0\n" in answer
    ours = types_in(text)
    assert ours.items() <= types_in(answer).items()
    assert samples_of(parse_text(text)) == samples_of(parse_text(answer))
    assert f"# HELP disk_writes_total {HELP}\n".replace("\\", "\\\\") in answer


def test_formats_are_chosen_one_at_a_time(furnished):
    for options in (("--prometheus", "--openmetrics"), ("--prometheus", "--json"), ("--prometheus", "--watch")):
        done = relayctl("counters", "-m", furnished.path, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--prometheus" in done.stderr


# --- names that are not UTF-8 ---

NOT_UTF8 = (b"\xff", b"a\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80x")


@pytest.mark.parametrize("wrong", NOT_UTF8, ids=repr)
def test_what_is_not_utf8_is_refused(mount, wrong):
    text = os.fsdecode(wrong)
    with Counters(mount.path) as counters:
        for name, unit, help_text in ((f"app/{text}", "", ""), ("app/unit", text, ""), ("app/help", "", text)):
            with pytest.raises(OSError, match="multibyte"):
                counters.add(name, unit=unit, help=help_text)
        assert counters.add("app/höhe/€/𝄞", help="wörter €𝄞").number > 0
    with pytest.raises(OSError, match="multibyte"):
        (mount.path / "counters.names").write_bytes(b"add app/" + wrong + b"\n")
    assert "the name is not UTF-8" in (mount.path / "error_log").read_text()
    assert "app/h" in (mount.path / "counters.names").read_text()


def test_a_bad_name_of_an_older_store_is_shown_escaped(tmp_path):
    (tmp_path / ".lock").touch()
    with Counters(tmp_path) as counters:
        counters.add("app/old_name", help="old_help").adjust(5)
    names = tmp_path / ".counters/names"
    names.write_bytes(names.read_bytes().replace(b"old_name", b"old\xffname").replace(b"old_help", b"old\xe9help"))
    for option in ((), ("--json",), ("--openmetrics",), ("--prometheus",)):
        done = subprocess.run(
            [RELAYCTL, "counters", "-m", tmp_path, *option],
            capture_output=True, timeout=DEADLINE, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert rb"old\xffname" in done.stdout.replace(rb"\\", b"\\")
        text = done.stdout.decode()
        if option == ("--prometheus",):
            check_by_promtool(text)
        if option == ("--openmetrics",):
            assert samples_of(parse_openmetrics(text)) == {r"app/old\xffname": 5}


# --- fuzzing ---

PIECES = (
    b"x", b"X", b"_", b"/", b"-", b".", b"9", b"total", b"_total", b"_created", b"_bucket", b"_sum", b"_count",
    b"_info", b"counter_", b"gauge_", b"bytes", b" ", b"\\", b'"', b"\n", b"\r", b"\t", b"\x00", b"{", b"}", b"=", b",",
    b"#", b"\xff", b"\xc3", b"\xed\xa0\x80", "€".encode(), "𝄞".encode(), "\u2028".encode(), "\x85".encode(), b"\x7f",
)  # fmt: skip


def random_text(chance: random.Random, most: int) -> str:
    pieces = (
        chance.choice(PIECES) if chance.random() < 0.8 else chance.randbytes(1) for _ in range(chance.randint(0, most))
    )
    return os.fsdecode(b"".join(pieces))


def random_infos(chance: random.Random) -> list[CounterInfo]:
    names = {random_text(chance, chance.choice((2, 3, 12))) or "x" for _ in range(N_FUZZED)}
    return [
        CounterInfo(number, chance.randint(0, 1), 0, 0, 0o200, name, random_text(chance, 2), random_text(chance, 8))
        for number, name in enumerate(names, start=1)
    ]


@pytest.mark.stress
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_whatever_bytes_names_have_the_text_can_be_read(turn):
    seed = turn if ROUNDS == 8 else random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    found = [(shown_info(info), chance.randint(-1 << 63, (1 << 63) - 1)) for info in random_infos(chance)]
    # Two names can look the same when they are shown.
    found = list({info.name: (info, value) for info, value in found}.values())
    expected = {info.name: float(value % (1 << 64) if info.kind == 0 else value) for info, value in found}
    text = openmetrics.render_text(found)
    check_by_promtool(text)
    families = list(parse_openmetrics(openmetrics.render(found)))
    assert {sample.labels["name"]: float(sample.value) for family in families for sample in family.samples} == expected
    assert len({dataclasses.replace(info, instance=0) for info, _ in found}) == len(found)
