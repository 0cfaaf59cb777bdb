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

from relayfs_fuse.cli import complete, openmetrics
from relayfs_fuse.cli.common import NOTHING_MATCHES, Seconds, printable, say
from relayfs_fuse.counters import Counters
from relayfs_fuse.native import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relayfs_fuse.native import CounterInfo

# How often --trace writes values that have not changed, for traces that were started meanwhile or overwrite events.
_REPEAT_S = 10.0

# The counters that match, with their values, in the order of their names.
Found = list[tuple["CounterInfo", int]]


@click.command()
@click.argument("globs", metavar="[GLOB]...", nargs=-1, shell_complete=complete.counters)
@click.option(
    "-m", "--mount", metavar="MNT", shell_complete=complete.directories,
    help="Use this mount or store. Default: $RELAYFS, or the first mount.",
)  # fmt: skip
@click.option("-w", "--watch", is_flag=True, help="Repeat, and show rates.")
@click.option("-i", "--interval", default=1.0, type=Seconds(0.01), help="Seconds between repetitions: 1.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Repeat this many times.")
@click.option("--trace", "traces", is_flag=True, help="With --watch: write values to traces, and print nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object each time.")
@click.option("--openmetrics", "as_openmetrics", is_flag=True, help="Print OpenMetrics text, for a Prometheus server.")
@click.option("--prometheus", "as_prometheus", is_flag=True, help="Print text for collectors of text files.")
def counters(  # noqa: PLR0913, PLR0917  # an option each
    globs: tuple[str, ...],
    mount: str | None,
    watch: bool,
    interval: float,
    count: int | None,
    traces: bool,
    as_json: bool,
    as_openmetrics: bool,
    as_prometheus: bool,
) -> None:
    """Show the counters whose names match one of the GLOBs, in which * matches slashes, too.

    A line is VALUE NAME UNIT; with --watch, RATE VALUE NAME UNIT, with the rate per second since the time before.
    --trace writes the events counters:value, each with the name and the value of a counter.
    """
    if as_json + as_openmetrics + as_prometheus > 1:
        raise click.UsageError("--json, --openmetrics and --prometheus are different formats: give one of them")
    if watch and (as_openmetrics or as_prometheus):
        raise click.UsageError("--openmetrics and --prometheus print what is there once: they do not --watch")
    if traces and not watch:
        raise click.UsageError("--trace writes values to traces repeatedly: give it with --watch")
    if traces and as_json:
        raise click.UsageError("--trace prints nothing: give it without --json")
    count = count or (None if watch else 1)
    globs = globs or ("*",)
    with Counters(mount or _named_mount()) as opened:
        if traces:
            _write_to_traces(opened, globs, count, interval, mount)
            return
        show: Callable[[Found, dict[str, float]], str] = (
            _openmetrics if as_openmetrics else _prometheus if as_prometheus else _json if as_json else _lines
        )
        try:
            for found, rates in _samples(opened, globs, count, interval):
                # UTF-8, whatever the locale is.
                click.echo(show(found, rates if watch else {}).encode(), nl=False)
                if not found and not watch:
                    sys.exit(NOTHING_MATCHES)
        except KeyboardInterrupt:
            return


def _named_mount() -> str | None:
    """Return $RELAYFS, unless $RELAYFS_STORE is set, which says where its store is."""
    return None if os.environ.get("RELAYFS_STORE") else os.environ.get("RELAYFS") or None


def _write_to_traces(
    opened: Counters, globs: Sequence[str], count: int | None, interval: float, mount: str | None
) -> None:
    """Write the values of counters to traces, `count` times, or until SIGINT, after which the last changes are written.

    mount: whose traces; None: as for any program
    """
    events = _Events(mount)
    try:
        for found, _ in _samples(opened, globs, count, interval):
            events.write(found)
    except KeyboardInterrupt:
        for found, _ in _samples(opened, globs, 1, interval):
            events.write(found)


class _Events:
    """Events with the values of counters, which viewers of tracks draw over time, each on a track with its name."""

    def __init__(self, mount: str | None) -> None:
        if mount is not None:
            # The library looks there when the first event is declared. `mount` may be a store that has no server.
            os.environ["RELAYFS"] = os.environ["RELAYFS_STORE"] = os.path.abspath(mount)
        from relayfs_fuse.trace import Event  # noqa: PLC0415  # the other forms trace nothing

        self._event = Event("counters", "value", {"counter_value": "i64", "track_name": "string"})
        self._written: dict[str, int] = {}
        self._repeated = time.monotonic()
        self._is_taken = True

    def write(self, found: Found) -> None:
        """Write the values that have changed; all of them when a trace begins to take them, and every _REPEAT_S."""
        now, was_taken, self._is_taken = time.monotonic(), self._is_taken, self._event.wanted
        if was_taken and not self._is_taken:
            say("no started trace takes the event counters:value; values are written when one does")
        if not self._is_taken or now - self._repeated >= _REPEAT_S:
            self._written.clear()
            self._repeated = now
        for info, value in found:
            if self._is_taken and self._written.get(info.name) != value:
                self._event(value, info.name)
                self._written[info.name] = value


def _samples(
    opened: Counters, globs: Sequence[str], n: int | None, interval: float
) -> Iterator[tuple[Found, dict[str, float]]]:
    """Read the counters repeatedly; yield their values, and the rates since the time before."""
    before: dict[str, int] = {}
    then = time.monotonic()
    while n is None or n > 0:
        now, found = time.monotonic(), matching(opened, globs)
        values = {info.name: value for info, value in found}
        rates = {name: (values[name] - before[name]) / (now - then) for name in values if name in before}
        yield [(shown(info), value) for info, value in found], {printable(name): rates[name] for name in rates}
        before, then = values, now
        n = None if n is None else n - 1
        if n != 0:
            time.sleep(interval)


def matching(opened: Counters, globs: Sequence[str]) -> Found:
    """Return the counters whose names match one of the globs, with their values, in the order of their names."""
    infos = opened.infos()
    names = sorted({name for glob in globs for name in fnmatch.filter(infos, glob)})
    return [(infos[name], opened.sum(infos[name].instance)) for name in names]


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
