"""README's picture of a report: the page of the example slow_link in Chromium, without its tables
of checks, hosts and versions.

PYTHONPATH=.dev .venv/bin/python tests/support/report_picture.py
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import example_reports
from browser import NAMES
from PIL import Image, ImageChops

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _report_page

PICTURE = example_reports.ROOT / "docs/images/report.png"
WIDTH, SCALE, COLOURS, MARGIN = 1000, 2, 256, 24
# What a reader of README needs to see: the verdict, what to do, and the curves.
LEFT_OUT = "section:not([aria-labelledby=todo], [aria-labelledby=bandwidth]), section[aria-labelledby=bandwidth] > :not(h2, .charts, p), main > details, footer"


def page():
    *_, (report, earlier) = example_reports.weeks("slow_link")
    made = _report_page.render(
        report, example_reports.PUBLISHED, ".trainyard/reports/suspect.yml", earlier
    )
    return made.replace(
        "</style>", "%s { display: none; } body { padding-bottom: 0; }</style>" % LEFT_OUT
    )


def main():
    chromium = next(path for path in map(shutil.which, NAMES) if path)
    with tempfile.TemporaryDirectory() as folder:
        html, picture = Path(folder, "page.html"), Path(folder, "page.png")
        html.write_text(page(), encoding="utf-8")
        subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--hide-scrollbars",
                "--force-device-scale-factor=%d" % SCALE,
                "--user-data-dir=%s" % Path(folder, "profile"),
                "--blink-settings=preferredColorScheme=1",
                "--window-size=%d,2000" % WIDTH,
                "--screenshot=%s" % picture,
                html.as_uri(),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        with Image.open(picture) as opened:
            pixels = opened.convert("RGB")
    bottom = ImageChops.difference(
        pixels, Image.new("RGB", pixels.size, pixels.getpixel((2, 2)))
    ).getbbox()[3]
    PICTURE.parent.mkdir(exist_ok=True)
    pixels.crop((0, 0, WIDTH * SCALE, bottom + MARGIN * SCALE)).quantize(
        COLOURS, dither=Image.Dither.NONE
    ).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
