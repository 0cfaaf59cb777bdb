"""relay_apps for tests."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from build import PLAIN
from mounts import Mount
from running_app import NOTHING, App, Start


@pytest.fixture
def open_app(mount: Mount, tmp_path: Path) -> Iterator[Start]:
    apps: list[App] = []

    def make(
        *options: str, output: str = "out", sanitize: str = PLAIN, environment: Mapping[str, str] = NOTHING
    ) -> App:
        apps.append(App(mount, tmp_path / output, *options, sanitize=sanitize, environment=environment))
        return apps[-1]

    yield make
    for app in apps:
        if app.process.poll() is None:
            app.kill()
        assert app.process.stdin is not None
        assert app.process.stdout is not None
        app.process.stdin.close()
        app.process.stdout.close()
