"""A headless Chromium, driven over its own protocol through two pipes: no package is needed for that."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
_PATIENCE_SECONDS = 90.0


def find_chromium() -> str | None:
    """The path of a Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class Chromium:
    """One page in one browser; :attr:`events` holds all that the page did."""

    def __init__(self, binary: str, profile: Path) -> None:
        # The browser reads commands from its descriptor 3 and writes answers to 4.
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        wiring = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", wiring, binary, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._commands)
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return self._until(lambda answer: answer.get("id") == self._number)["result"]

    def open(self, path: Path, width: int = 1280, dark: bool = False, script: bool = True) -> None:
        """Load a file anew, in a window of this width, by day or by night, with its scripts or without."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda event: event.get("method") == "Page.loadEventFired")
        if script:
            # Two frames later what the load handler drew is on the screen.
            self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Path:
        """The whole page, below the fold too."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and exceptions that nobody caught."""
        found = []
        for event in self.events:
            content = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(content["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning"):
                found.append(str(content["args"]))
            elif event["method"] == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
                found.append(content["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The address of each request, those inside the file (data:, blob:) left out."""
        sent = [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            raw, separator, rest = self._buffer.partition(b"\0")
            if not separator:
                ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
                received = os.read(self._answers, 1 << 20) if ready else b""
                if not received:
                    raise TimeoutError(f"Chromium said nothing for {_PATIENCE_SECONDS:g} seconds, or ended")
                self._buffer += received
                continue
            self._buffer = rest
            message = json.loads(raw)
            if "error" in message:
                raise RuntimeError(f"Chromium: {message['error']}")
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message
