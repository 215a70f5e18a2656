"""Chromium without a window: what a page measures when a person opens it, and how it looks."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")

# Told by the page itself. What may be wider than the window stands in a box that scrolls, and is
# looked at only up to that box.
MEASURE = r"""
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(node => node.open = true);
  const inBox = node => node.parentElement.closest(".scroll, pre");
  const all = [...document.body.querySelectorAll("*")].filter(node => node.getClientRects().length);
  const words = node => [...node.childNodes].filter(child => child.nodeType === 3).map(child => child.data.trim()).join("");
  const numbers = text => text.match(/[\d.]+/g).map(Number);
  const linear = value => value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\)$|transparent/.test(colour)) return numbers(colour);
    }
    return [255, 255, 255];
  };
  const contrast = node => {
    const style = getComputedStyle(node);
    const [one, other] = [luminance(numbers(node.ownerSVGElement ? style.fill : style.color)), luminance(behind(node))].sort((a, b) => b - a);
    return (one + 0.05) / (other + 0.05);
  };
  const name = node => node.tagName.toLowerCase() + "." + (node.getAttribute("class") || "") + ": " + node.textContent.trim().slice(0, 40);
  const box = node => [node.getBoundingClientRect().width, node.viewBox.baseVal.width];
  const scale = node => node.ownerSVGElement ? box(node.ownerSVGElement).reduce((drawn, meant) => drawn / meant) : 1;
  const texts = all.filter(node => words(node) && !node.matches(".said"));
  const scaled = node => parseFloat(getComputedStyle(node).fontSize) * scale(node);
  // Names of hosts, wherever they stand, and the lines that each occupies.
  const hosts = [...new Set([...document.querySelectorAll(".name")].map(node => node.textContent))];
  const range = document.createRange();
  const torn = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    for (const host of hosts) {
      for (let at = walker.currentNode.data.indexOf(host); at >= 0; at = walker.currentNode.data.indexOf(host, at + 1)) {
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, at + host.length);
        if (new Set([...range.getClientRects()].map(part => Math.round(part.top))).size > 1) torn.push(host);
      }
    }
  }
  const boxes = [...document.querySelectorAll(".scroll")].filter(node => node.getClientRects().length)
    .map(node => ({name: node.getAttribute("aria-label"), wide: node.scrollWidth - node.clientWidth > 2,
                   said: node.querySelector(".hint").getBoundingClientRect().height > 15}));
  const told = {
    title: document.title,
    width: innerWidth,
    scrollWidth: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    sticksOut: all.filter(node => !inBox(node) && node.getBoundingClientRect().right > innerWidth + 1).map(name),
    faint: texts.filter(node => contrast(node) < 4.5).map(node => name(node) + " " + contrast(node).toFixed(2)),
    small: texts.filter(node => scaled(node) < 8.5).map(node => name(node) + " " + scaled(node).toFixed(1)),
    torn: torn,
    wide: boxes.filter(box => box.wide).map(box => box.name),
    unsaid: boxes.filter(box => box.wide !== box.said).map(box => box.name),
    figures: [...document.querySelectorAll(".charts figure")].map(node => node.getBoundingClientRect().width),
    headings: [...document.querySelectorAll("h1, h2")].map(node => node.textContent.trim()),
    background: behind(document.body),
    verdict: {text: document.querySelector(".verdict strong").textContent, bottom: document.querySelector(".verdict").getBoundingClientRect().bottom},
    resources: performance.getEntriesByType("resource").map(entry => entry.name),
    curves: [...document.querySelectorAll("figure svg")].map(node => node.querySelectorAll("path").length),
    unnamed: [...document.querySelectorAll("svg, table")].filter(node => !node.closest("[aria-label], [aria-labelledby]")).map(name),
    headless: [...document.querySelectorAll("table")].filter(node => !node.querySelector("th[scope=col]")).map(name),
  };
  const carrier = document.createElement("script");
  carrier.type = "application/json";
  carrier.id = "measured-" + frameElement.name;
  carrier.textContent = JSON.stringify(told).replace(/</g, "\\u003c");
  top.document.body.append(carrier);
});
</script>
"""


# A window is 500 pixels wide at least, a frame in it as wide as a telephone. Frames are one below
# the other.
FRAMES = """<!doctype html><style>:root { color-scheme: light dark } body { margin: 0 } iframe { display: block; border: 0 }</style>
%s"""
FRAME = '<iframe name="%d" style="width: %dpx; height: %dpx" srcdoc="%s"></iframe>'


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
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
                "chromium",
            ],
        ):
            subprocess.run(
                command,
                check=True,
                env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"),
                stdout=subprocess.DEVNULL,
            )
        found = shutil.which("chromium")
    if not found:
        pytest.fail(
            "The page is looked at in Chromium, which is not on this machine. Install package chromium, or run the tests as root once.",
            pytrace=False,
        )
    home = tmp_path_factory.mktemp("browser")

    def start(document, width, height, dark, pages=1):
        """The picture, what the console says, and the document as the browser has it."""
        copy, picture = home / "page.html", home / "page.png"
        copy.write_text(document, encoding="utf-8")
        done = subprocess.run(
            [
                found,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--hide-scrollbars",
                "--force-device-scale-factor=1",
                "--user-data-dir=%s" % (home / "profile"),
                "--enable-logging=stderr",
                "--blink-settings=preferredColorScheme=%d" % (0 if dark else 1),
                "--window-size=%d,%d" % (max(width, 500), height),
                "--screenshot=%s" % picture,
                "--dump-dom",
                copy.as_uri(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120 * pages,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        with Image.open(picture) as opened:
            return (
                opened.convert("RGB"),
                [line for line in done.stderr.splitlines() if ":CONSOLE" in line],
                done.stdout,
            )

    def look_at(pages, dark=False, height=900):
        """What pages of HTML measure, and their pictures: in one browser, as its start takes longer
        than a page. pages: pairs of HTML and width.
        """
        frames = []
        for number, (page, width) in enumerate(pages):
            # The page lets no script run, the measuring one neither.
            page = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page).replace(
                "</body>", MEASURE + "</body>"
            )
            frames.append(FRAME % (number, width, height, html.escape(page)))
        pixels, console, dom = start(
            FRAMES % "\n".join(frames),
            max(width for page, width in pages),
            height * len(pages),
            dark,
            len(pages),
        )
        measured = dict(
            re.findall(
                r'<script type="application/json" id="measured-(\d+)">(.*?)</script>',
                dom,
                re.DOTALL,
            )
        )
        return [
            SimpleNamespace(
                measured=SimpleNamespace(**json.loads(measured[str(number)])),
                console=console,
                pixels=pixels.crop((0, height * number, width, height * (number + 1))),
            )
            for number, (page, width) in enumerate(pages)
        ]

    def look_as_it_is(page, width, height=900):
        """The console and the document of a page as users open it, which lets nothing
        measure it.
        """
        dummy, console, dom = start(page, width, height, False)
        return SimpleNamespace(console=console, dom=dom)

    return SimpleNamespace(look_at=look_at, look_as_it_is=look_as_it_is)
