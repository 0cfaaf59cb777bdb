"""relayctl counters: show counters, once or again and again."""

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

# Those that match, with their values, in the order of their names.
Found = list[tuple["CounterInfo", int]]


@click.command()
@click.argument("glob", default="*")
@click.option("-m", "--mount", metavar="MNT", help="Of this mount or store; else of $RELAYFS or the first there is.")
@click.option("-w", "--watch", is_flag=True, help="Go on, and show rates.")
@click.option("-i", "--interval", default=1.0, type=click.FloatRange(min=0.01), help="Seconds between looks: 1.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many looks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look.")
@click.option("--openmetrics", "as_openmetrics", is_flag=True, help="As a Prometheus server reads it.")
@click.option("--prometheus", "as_prometheus", is_flag=True, help="As collectors of text files read it.")
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

    A line is VALUE NAME UNIT; with --watch, RATE VALUE NAME UNIT, the rate by second since the look before.
    """
    if as_json + as_openmetrics + as_prometheus > 1:
        raise click.UsageError("--json, --openmetrics and --prometheus are different formats: give one of them")
    if watch and (as_openmetrics or as_prometheus):
        raise click.UsageError("--openmetrics and --prometheus print what is there once: they do not --watch")
    looks = count or (None if watch else 1)
    with Counters(mount or _named_mount()) as opened:
        show: Callable[[Found, dict[str, float]], str] = (
            _openmetrics if as_openmetrics else _prometheus if as_prometheus else _json if as_json else _lines
        )
        try:
            for found, rates in _look(opened, glob, looks, interval):
                # UTF-8 in each locale.
                click.echo(show(found, rates if watch else {}).encode(), nl=False)
                if not found and not watch:
                    sys.exit(NOTHING_MATCHES)
        except KeyboardInterrupt:
            return


def _named_mount() -> str | None:
    """Return what $RELAYFS names, unless $RELAYFS_STORE says where its store is."""
    return None if os.environ.get("RELAYFS_STORE") else os.environ.get("RELAYFS") or None


def _look(opened: Counters, glob: str, looks: int | None, interval: float) -> Iterator[tuple[Found, dict[str, float]]]:
    """Look again and again; with the rates since the look before."""
    before: dict[str, int] = {}
    then = time.monotonic()
    while looks is None or looks > 0:
        infos, now = opened.infos(), time.monotonic()
        names = sorted(fnmatch.filter(infos, glob))
        values = {name: opened.sum(infos[name].instance) for name in names}
        rates = {name: (values[name] - before[name]) / (now - then) for name in names if name in before}
        yield [(shown(infos[name]), values[name]) for name in names], {printable(name): rates[name] for name in rates}
        before, then = values, now
        looks = None if looks is None else looks - 1
        if looks != 0:
            time.sleep(interval)


def printable(text: str) -> str:
    r"""Show bytes that are not UTF-8, which names could have before they had to be, as `\xff`."""
    return os.fsencode(text).decode(errors="backslashreplace")


def shown(info: CounterInfo) -> CounterInfo:
    """Return what is known of a counter with texts that can be printed."""
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

    look = {"time": time.time(), "counters": [describe(info, value) for info, value in found]}
    return json.dumps(look) + "\n"
