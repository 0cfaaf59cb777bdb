"""relayctl counters: show counters, once or repeatedly."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli import openmetrics
from relayfs_fuse.counters import Counters
from relayfs_fuse.native import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.native import CounterInfo

NOTHING_MATCHES = 3

# The counters that match, with their values, in the order of their names.
Found = list[tuple["CounterInfo", int]]


@click.command()
@click.argument("glob", default="*")
@click.option("-m", "--mount", metavar="MNT", help="Use this mount or store. Default: $RELAYFS, or the first mount.")
@click.option("-w", "--watch", is_flag=True, help="Repeat, and show rates.")
@click.option("-i", "--interval", default=1.0, type=click.FloatRange(min=0.01), help="Seconds between repetitions: 1.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Repeat this many times.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object each time.")
@click.option("--openmetrics", "as_openmetrics", is_flag=True, help="Print OpenMetrics text, for a Prometheus server.")
@click.option("--prometheus", "as_prometheus", is_flag=True, help="Print text for collectors of text files.")
def counters(  # noqa: PLR0913, PLR0917  # an option each
    glob: str,
    mount: str | None,
    watch: bool,
    interval: float,
    count: int | None,
    as_json: bool,
    as_openmetrics: bool,
    as_prometheus: bool,
) -> None:
    """Show the counters whose names match GLOB, in which * matches slashes, too.

    A line is VALUE NAME UNIT; with --watch, RATE VALUE NAME UNIT, with the rate per second since the time before.
    """
    if as_json + as_openmetrics + as_prometheus > 1:
        raise click.UsageError("--json, --openmetrics and --prometheus are different formats: give one of them")
    if watch and (as_openmetrics or as_prometheus):
        raise click.UsageError("--openmetrics and --prometheus print what is there once: they do not --watch")
    count = count or (None if watch else 1)
    with Counters(mount or _named_mount()) as opened:
        show: Callable[[Found, dict[str, float]], str] = (
            _openmetrics if as_openmetrics else _prometheus if as_prometheus else _json if as_json else _lines
        )
        try:
            for found, rates in _samples(opened, glob, count, interval):
                # UTF-8, whatever the locale is.
                click.echo(show(found, rates if watch else {}).encode(), nl=False)
                if not found and not watch:
                    sys.exit(NOTHING_MATCHES)
        except KeyboardInterrupt:
            return


def _named_mount() -> str | None:
    """Return $RELAYFS, unless $RELAYFS_STORE is set, which says where its store is."""
    return None if os.environ.get("RELAYFS_STORE") else os.environ.get("RELAYFS") or None


def _samples(opened: Counters, glob: str, n: int | None, interval: float) -> Iterator[tuple[Found, dict[str, float]]]:
    """Read the counters repeatedly; yield their values, and the rates since the time before."""
    before: dict[str, int] = {}
    then = time.monotonic()
    while n is None or n > 0:
        infos, now = opened.infos(), time.monotonic()
        names = sorted(fnmatch.filter(infos, glob))
        values = {name: opened.sum(infos[name].instance) for name in names}
        rates = {name: (values[name] - before[name]) / (now - then) for name in names if name in before}
        yield [(shown(infos[name]), values[name]) for name in names], {printable(name): rates[name] for name in rates}
        before, then = values, now
        n = None if n is None else n - 1
        if n != 0:
            time.sleep(interval)


def printable(text: str) -> str:
    r"""Replace bytes that are not UTF-8 by text such as `\xff`: early versions allowed them in names."""
    return os.fsencode(text).decode(errors="backslashreplace")


def shown(info: CounterInfo) -> CounterInfo:
    """Return a counter's properties with texts that can be printed."""
    return dataclasses.replace(info, name=printable(info.name), unit=printable(info.unit), help=printable(info.help))


def _lines(found: Found, rates: dict[str, float]) -> str:
    lines = []
    for info, value in found:
        rate = f"{rates[info.name]:>14.1f}/s " if info.name in rates else ""
        lines.append(f"{rate}{value:>20} {info.name}{' ' * bool(info.unit)}{info.unit}\n")
    return "".join(lines) + "\n" * bool(rates)


def _openmetrics(found: Found, _rates: dict[str, float]) -> str:
    return openmetrics.render(found)


def _prometheus(found: Found, _rates: dict[str, float]) -> str:
    return openmetrics.render_text(found)


def _json(found: Found, rates: dict[str, float]) -> str:
    def describe(info: CounterInfo, value: int) -> dict[str, Any]:
        rate = {"rate": rates[info.name]} if info.name in rates else {}
        return {
            "name": info.name,
            "number": info.instance,
            "value": value,
            **rate,
            "kind": KINDS[info.kind],
            "unit": info.unit,
            "help": info.help,
            "uid": info.uid,
            "gid": info.gid,
            "mode": f"{info.mode:04o}",
        }

    sample = {"time": time.time(), "counters": [describe(info, value) for info, value in found]}
    return json.dumps(sample) + "\n"
