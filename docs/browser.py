"""Chromium without a window, for docs/pictures.py and tests: told what to do by the DevTools protocol, through pipes.

with browsing(directory, 1100, 800) as browser:
    browser.call("Page.navigate", url="http://127.0.0.1:5345/")
    browser.wait_for("document.querySelectorAll('tr').length > 10")
    assert browser.errors == []
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = "chromium-headless-shell"
DEADLINE_S = 300


class Browser:
    """A page that nobody sees, width by height points.

    pixels: of each point
    errors: what went wrong in pages since the start, but for requests that got no answer
    """

    def __init__(self, directory: Path, width: int, height: int, pixels: int = 1) -> None:
        self._width = width
        self.errors: list[str] = []
        to_browser, self._out = os.pipe()
        answers, from_browser = os.pipe()
        command = [
            PROGRAM, "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
            f"--user-data-dir={directory}/profile",
        ]  # fmt: skip
        # It reads from descriptor 3 and writes to 4.
        connected = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command]
        self._process = subprocess.Popen(
            connected, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(directory)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._answers = os.fdopen(answers, "rb")
        self._n_calls = 0
        self._session: dict[str, object] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        size = {"width": width, "height": height, "deviceScaleFactor": pixels, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Runtime.enable")
        self.call("Log.enable")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._answers.close()
        os.close(self._out)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the DevTools protocol; return its result."""
        self._n_calls += 1
        message = {"id": self._n_calls, "method": method, "params": parameters, **self._session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := json.loads(self._message())).get("id") != self._n_calls:
            self._note(answer.get("method"), answer.get("params"))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _message(self) -> bytes:
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has ended")
            message += byte
        return bytes(message)

    def _note(self, event: str | None, told: Any) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.errors.append(str(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error" and told["entry"]["source"] != "network":
            self.errors.append(str(told["entry"]))

    def evaluate(self, script: str) -> Any:
        """Run JavaScript in the page; return its value."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, replMode=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until an expression is true; return its value."""
        end = time.monotonic() + DEADLINE_S
        while not (value := self.evaluate(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"{script}: the page shows\n{self.evaluate('document.body.innerText')[:4000]}")
            time.sleep(0.1)
        return value

    def picture(self, height: float) -> bytes:
        """Return a PNG file of the upper part of the page, when it does not change any more."""
        clip = {"x": 0, "y": 0, "width": self._width, "height": height, "scale": 1}
        before, now = "", "-"
        while before != now:
            time.sleep(1)
            before, now = now, self.call("Page.captureScreenshot", clip=clip)["data"]
        return base64.b64decode(now)


@contextmanager
def browsing(directory: Path, width: int, height: int, pixels: int = 1) -> Iterator[Browser]:
    """Run a browser, whose files are in a directory, until this ends."""
    browser = Browser(directory, width, height, pixels)
    try:
        yield browser
    finally:
        browser.close()
