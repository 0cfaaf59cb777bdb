"""Prometheus and its own tools as judges of what is printed for it."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from mounts import DEADLINE_S, wait_until


def judge(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing, which ./dev unpacks from Debian's packages")
    return found


def check_by_promtool(text: str, *, has_any_names: bool = True) -> None:
    """Let promtool read it. Status 3: it was read, and breaks a rule of style, as names that people chose may."""
    command = [judge("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in ({0, 3} if has_any_names else {0}), (done.stderr.decode(), text)


def types_in(text: str) -> dict[str, str]:
    return dict(line.split(" ")[2:] for line in text.splitlines() if line.startswith("# TYPE "))


@contextmanager
def listening(name: str, *arguments: object, log: Path) -> Iterator[str]:
    """Run one of the servers at a free port until this ends; give HOST:PORT."""
    command = [judge(name), "--web.listen-address=127.0.0.1:0", *map(str, arguments)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
    try:
        wait_until(lambda: process.poll() is not None or b"Listening on" in log.read_bytes(), log.read_text)
        address = re.search(r'Listening on" address=(127\.0\.0\.1:\d+)', log.read_text())
        assert address, log.read_text()
        yield address[1]
    finally:
        process.kill()
        process.wait(DEADLINE_S)


class Prometheus:
    """The API of a server at HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1"

    def ask(self, what: str, **parameters: str) -> list | dict:
        """Return the data of an answer; [] if the server has just begun to listen."""
        try:
            with urllib.request.urlopen(f"{self._url}/{what}?{urllib.parse.urlencode(parameters)}") as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            assert error.code == HTTPStatus.SERVICE_UNAVAILABLE, error.read()
            return []

    def query(self, expression: str) -> list[float]:
        """Return the values of an expression now; none: it has no data."""
        data = self.ask("query", query=expression)
        return [float(one["value"][1]) for one in data["result"]] if data else []


@contextmanager
def scraping(configuration: str, directory: Path) -> Iterator[Prometheus]:
    """Run Prometheus with this configuration, and with its data in a directory, until this ends."""
    file = directory / "prometheus.yml"
    file.write_text(configuration)
    options = (f"--config.file={file}", f"--storage.tsdb.path={directory}/data")
    with listening("prometheus", *options, log=directory / "prometheus.log") as address:
        yield Prometheus(address)
