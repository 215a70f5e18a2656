"""axe-core, which judges whether a page can be used by everybody: the file of its package, from the
registry that npm is configured for.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache/axe"
VERSION = "4.10.3"
CHECKSUM = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
#: What people cannot use a page for. axe also knows moderate and minor.
SERIOUS = ("serious", "critical")


@functools.lru_cache(maxsize=None)
def source() -> str:
    """Return axe-core, fetched once. Its checksum is pinned."""
    archive = FOLDER / ("axe-core-%s.tgz" % VERSION)
    if not archive.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", "axe-core@" + VERSION]
        subprocess.run(command, cwd=FOLDER, check=True, stdout=subprocess.DEVNULL, timeout=300)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == CHECKSUM, "%s has the checksum %s, expected %s" % (archive, found, CHECKSUM)
    with tarfile.open(archive) as packed:
        return packed.extractfile("package/axe.min.js").read().decode()


def faults(browser: object) -> list:
    """Return what is serious on the page of a browser: rule, what is wrong, and the first
    elements.
    """
    browser.run(source())
    found = browser.run("return axe.run(document, {resultTypes: ['violations']})")
    return [
        "%s: %s: %s"
        % (each["id"], each["help"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in found["violations"]
        if each["impact"] in SERIOUS
    ]
