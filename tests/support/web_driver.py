"""Chromium that a test drives as a person would: Debian's chromium and chromium-driver, by the
protocol of WebDriver. Python's standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import pytest

PACKAGES = ("chromium", "chromium-driver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, SHIFT = "\ue007", "\ue008"


class Failed(Exception):
    """What the driver says about a step that did not work."""


def installed():
    """Return the paths of driver and browser. As root, install them first if they are missing."""
    if not shutil.which("chromedriver") and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (
            ["apt-get", "update", "-qq"],
            [
                "apt-get",
                "install",
                "-qq",
                "-y",
                "--no-install-recommends",
                "-o",
                "Dpkg::Use-Pty=0",
                *PACKAGES,
            ],
        ):
            subprocess.run(
                command,
                check=True,
                env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"),
                stdout=subprocess.DEVNULL,
            )
    found = [shutil.which("chromedriver"), shutil.which("chromium")]
    if None in found:
        pytest.fail(
            "The browser is driven by chromedriver, which is not on this machine. Install package chromium-driver, or run the tests as root once.",
            pytrace=False,
        )
    return found


class Driver:
    """chromedriver, which starts browsers."""

    def __init__(self):
        program, self.browser = installed()
        self.child = subprocess.Popen(
            [program, "--port=0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in self.child.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                self.url = "http://127.0.0.1:%s" % found.group(1)
                return
        raise Failed("chromedriver does not start")

    def ask(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=180) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            told = json.load(error)["value"]
            raise Failed("%s: %s" % (told["error"], told["message"].split("\n")[0])) from None

    @contextlib.contextmanager
    def open(self, rules="", width=1300, height=900):
        """A browser with a profile of its own.

        Its certificate authority is that of the hub, which it does not know. C(rules) say where
        names lead.
        """
        options = {
            "binary": self.browser,
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--window-size=%d,%d" % (width, height),
                "--no-proxy-server",
                "--host-resolver-rules=" + rules,
            ],
        }
        told = self.ask(
            "POST",
            "/session",
            {
                "capabilities": {
                    "alwaysMatch": {"acceptInsecureCerts": True, "goog:chromeOptions": options}
                }
            },
        )
        browser = Browser(self, "/session/" + told["sessionId"])
        try:
            yield browser
        finally:
            self.ask("DELETE", browser.path)

    def close(self):
        self.child.terminate()
        self.child.wait(20)


class Browser:
    def __init__(self, driver, path):
        self.driver, self.path = driver, path

    def ask(self, method, path, body=None):
        return self.driver.ask(method, self.path + path, body)

    def go(self, url):
        self.ask("POST", "/url", {"url": url})

    @property
    def url(self):
        return self.ask("GET", "/url")

    def run(self, script, *arguments):
        """Run the body of a function in the page, and return what it returns.

        A promise is waited for.
        """
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector="body"):
        """Return the visible text of all elements."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(node => node.innerText).join('\\n')",
            selector,
        )

    def wait(self, what, condition, seconds=60):
        """Wait until a condition is true, and return it. A page that changes meanwhile is
        no error.
        """
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Failed):
                found = condition()
                if found:
                    return found
            assert time.monotonic() < deadline, "not after %d s: %s\n%s\n%s" % (
                seconds,
                what,
                self.url,
                self.text()[:2000],
            )
            time.sleep(0.5)

    def find(self, selector, text="", seconds=60):
        """Return the first visible element of a selector that has a text in it."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].find(node => node.getClientRects().length && "
            "(node.innerText || node.getAttribute('aria-label') || node.title || '').includes(arguments[1])) || null"
        )
        return self.wait(
            "%s with '%s'" % (selector, text), lambda: self.run(script, selector, text), seconds
        )

    def click(self, selector, text="", seconds=60):
        found = self.find(selector, text, seconds)
        # The driver does not wait for the end of a smooth scroll.
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
        self.ask("POST", "/element/%s/click" % found[ELEMENT])

    def type(self, selector, text):
        """Replace the text of a field."""
        field = self.find(selector)[ELEMENT]
        self.ask("POST", "/element/%s/clear" % field)
        self.ask("POST", "/element/%s/value" % field, {"text": text})

    def press(self, *keys):
        """Press keys together."""
        actions = [{"type": "keyDown", "value": key} for key in keys] + [
            {"type": "keyUp", "value": key} for key in reversed(keys)
        ]
        self.ask(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        )

    @contextlib.contextmanager
    def phone(self, width=390, height=844):
        """A screen of this size in CSS pixels. A window of Chromium is at least 500 pixels wide."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        try:
            yield
        finally:
            self.command("Emulation.clearDeviceMetricsOverride")

    def command(self, name, **parameters):
        """Send a command of the protocol of Chromium's developer tools."""
        return self.ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))


@pytest.fixture(scope="session", name="driver")
def _driver():
    driver = Driver()
    yield driver
    driver.close()
