"""Debian's Chromium without a window, told what to do through a pair of pipes, as its DevTools protocol has it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ANSWER_SECONDS = 60
_END_SECONDS = 10

# Chromium reads commands from descriptor 3 and writes to descriptor 4; the shell puts the pipes there.
_START = 'exec "$0" "$@" 3<&{commands} 4>&{answers}'
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe"),
)


def chromium() -> str:
    """The program; without it these tests fail, as they prove nothing then."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "these tests need Chromium: apt-get install chromium"
    return program


@dataclass
class Browser:
    """A Chromium with one page.

    Args:
        commands: the descriptor that takes commands.
        answers: the one that gives answers and events.
    """

    commands: int
    answers: int
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _sent: int = 0
    _read: bytes = b""

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile is kept in `events`."""
        self._sent += 1
        command = {"id": self._sent, "method": method, "params": parameters}
        os.write(
            self.commands, json.dumps(command | ({"sessionId": self.session} if self.session else {})).encode() + b"\0"
        )
        while True:
            message = self._next()
            if message.get("id") == self._sent:
                assert "error" not in message, message
                result = message["result"]
                assert isinstance(result, dict)
                return result
            self.events.append(message)

    def attach(self) -> None:
        """Open the page that all else is about."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = str(self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, page: Path | str, *, width: int, height: int, dark: bool = False) -> None:
        """Show a page, a file or an address, as a phone or a desktop of that size would, and wait until it is there."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=page.absolute().as_uri() if isinstance(page, Path) else page)
        while not self.happened("Page.loadEventFired"):
            self.events.append(self._next())

    def happened(self, method: str) -> list[dict[str, Any]]:
        """The events of a kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, expression: str) -> Any:
        """The JSON value of an expression of the page's."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, *, whole: bool = False) -> bytes:
        """What is on the screen, or the whole page, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while b"\0" not in self._read:
            ready, _, _ = select.select([self.answers], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            read = os.read(self.answers, 1 << 20)
            assert read, "Chromium has ended"
            self._read += read
        message, _, self._read = self._read.partition(b"\0")
        event = json.loads(message)
        assert isinstance(event, dict)
        return event


@contextmanager
def running(folder: Path) -> Iterator[Browser]:
    """A Chromium of its own, for the length of a block."""
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    start = _START.format(commands=commands_out, answers=answers_in)
    command = ["bash", "-c", start, chromium(), *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command, pass_fds=(commands_out, answers_in), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(commands_out)
    os.close(answers_in)
    try:
        browser = Browser(commands_in, answers_out)
        browser.attach()
        yield browser
        browser.session = ""
        browser.ask("Browser.close")
    finally:
        os.close(commands_in)
        os.close(answers_out)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
