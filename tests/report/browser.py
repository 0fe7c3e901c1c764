"""Debian's chromium, headless, driven over its debugging pipe: no driver, no package beside the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader",
         "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--mute-audio",
         "--force-color-profile=srgb", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank")  # fmt: skip


class Browser:
    """One page of one browser. Everything that the page logs or throws, and every request, is kept."""

    def __init__(self, profile: Path, patience_s: float = 60.0) -> None:
        assert CHROMIUM
        self.patience_s = patience_s
        self._number = 0
        self._pending = b""
        self.events: list[dict[str, Any]] = []
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", CHROMIUM, *FLAGS[:-1], f"--user-data-dir={profile}", FLAGS[-1]],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session: str | None = None
        (target,) = [info for info in self.ask("Target.getTargets")["targetInfos"] if info["type"] == "page"]
        self._session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        give_up = time.monotonic() + self.patience_s
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(0.0, give_up - time.monotonic()))
            assert ready, "chromium does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "chromium ended"
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\0")
        return json.loads(line)

    def open(self, page: Path | str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a page, from the start, and wait until it has loaded."""
        self.size(width, height)
        self.scheme(scheme)
        self.ask("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        self.wait_for("Page.loadEventFired")

    def wait_for(self, method: str) -> dict[str, Any]:
        """The next event of a kind, or one that has come already."""
        while not (events := [event for event in self.events if event.get("method") == method]):
            self.events.append(self._receive())
        self.events.remove(events[0])
        return events[0]

    def size(self, width: int, height: int = 900) -> None:
        """Give the window a size in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **metrics)

    def scheme(self, scheme: str) -> None:
        """Prefer light or dark; and no motion, so that a click lands where the element is."""
        preferred = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def scripts(self, allowed: bool) -> None:
        """Allow or forbid scripts in pages opened from now on."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not allowed)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key: Tab, Enter, Space, ArrowDown, Home."""
        code = {
            "Tab": 9,
            "Enter": 13,
            "Space": 32,
            "ArrowDown": 40,
            "ArrowUp": 38,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowRight": 39,
            "Home": 36,
            "End": 35,
        }[key]
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        name = " " if key == "Space" else key
        common = {"key": name, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector: str) -> None:
        """Click the middle of the first element that matches, as a pointer would."""
        x, y = self.run(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: "center",
            behavior: "instant"}}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def complaints(self) -> list[str]:
        """What the page logged or threw, what the browser warned of, since it was opened."""
        self.run("0")
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"])[:400] for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened, data in the page itself left out."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith("data:")]

    def shot(self, target: Path, *, full: bool = True) -> None:
        """A picture of the page, or of what the window shows, as PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        target.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page printed on A4."""
        document = self.ask("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(document["data"])
