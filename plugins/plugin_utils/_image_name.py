# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Derives the content of an image from its name: versions in common notations of tags, for any
repository. Text in, data out.

Only what follows from the name is claimed. A word that is missing, that has no minor version (tf2,
py3, cu12), or that contradicts another one says nothing.
"""

from __future__ import annotations

import re
from typing import Any

# Python 3 of a distribution, the default of an image.
UBUNTU_PYTHON = {"16.04": "3.5", "18.04": "3.6", "20.04": "3.8", "22.04": "3.10", "24.04": "3.12"}
DEBIAN_PYTHON = {"10": "3.7", "11": "3.9", "12": "3.11", "13": "3.13"}
_UBUNTU_NAMES = {
    "xenial": "16.04",
    "bionic": "18.04",
    "focal": "20.04",
    "jammy": "22.04",
    "noble": "24.04",
}
_DEBIAN_NAMES = {"buster": "10", "bullseye": "11", "bookworm": "12", "trixie": "13"}
_VERSION = r"(\d+\.\d+(?:\.\d+)*)"
_WORDS = (
    ("python", re.compile(r"(?:python|py)" + _VERSION)),
    ("cuda", re.compile(r"cuda" + _VERSION)),
    ("torch", re.compile(r"(?:py)?torch" + _VERSION)),
    ("tensorflow", re.compile(r"(?:tensorflow|tf)" + _VERSION)),
    ("horovod", re.compile(r"(?:horovod|hvd)" + _VERSION)),
    ("nccl", re.compile(r"nccl" + _VERSION)),
    ("cudnn", re.compile(r"cudnn(\d+(?:\.\d+)*)")),
    ("ubuntu", re.compile(r"ubuntu(\d\d\.\d\d)")),
)
# Repositories whose tags begin with the version of the software in their name. NGC's tags begin
# with a month instead, such as 24.08.
_NAMED_AFTER = {
    "python": "python",
    "cuda": "cuda",
    "pytorch": "torch",
    "tensorflow": "tensorflow",
    "horovod": "horovod",
}
_HIGHEST_MAJOR = {"python": 3, "torch": 9, "tensorflow": 9, "horovod": 9, "cuda": 19}
# These have their own Python.
_OWN_PYTHON = re.compile(r"conda|mamba|jupyter|notebook|pyenv|(?:^|[/_-])ray(?:$|[/_-])")
#: What is known of an image whose name says nothing. Versions are texts, and C(nvcc) is a bool or
#: None.
NOTHING: dict[str, Any] = {
    "python": "",
    "cuda": "",
    "torch": "",
    "tensorflow": "",
    "horovod": "",
    "nccl": "",
    "cudnn": "",
    "ubuntu": "",
    "nvcc": None,
}


# Whole words that hold a version without a dot between its numbers.
_SHORT_WORDS = (
    # cu9 and cu12 have no minor version. cu92 is the only one of two digits that has.
    ("cuda", re.compile(r"cu(\d\d)(\d)|cu(9)(2)")),
    ("python", re.compile(r"(?:py|cp|python)(3)(\d{1,2})")),
    ("ubuntu", re.compile(r"ubuntu(\d\d)(\d\d)")),
)


def _versions_in_word(word: str) -> list[tuple[str, str]]:
    """Return the (name, version) pairs that one word of a tag says."""
    found = []
    for name, pattern in _WORDS:
        match = pattern.fullmatch(word)
        if match:
            found.append((name, match.group(1)))
    for name, pattern in _SHORT_WORDS:
        match = pattern.fullmatch(word)
        if match:
            found.append((name, ".".join(filter(None, match.groups()))))
    if word in _UBUNTU_NAMES:
        found.append(("ubuntu", _UBUNTU_NAMES[word]))
    return found


def _first_version(last: str, tag: str) -> tuple[str, str]:
    """Return (name, version) of a tag that begins with the version of what the repository is named
    after.
    """
    first = re.match(r"v?" + _VERSION + r"(?![A-Za-z0-9.])", tag)
    if not first:
        return "", ""
    version = first.group(1)
    if last == "ubuntu":
        return ("ubuntu", version) if version in UBUNTU_PYTHON else ("", "")
    name = _NAMED_AFTER.get(last, "")
    if name and int(version.partition(".")[0]) > _HIGHEST_MAJOR[name]:
        name = ""
    return name, version


def _debian(last: str, tag: str, words: list[str]) -> str:
    """Return the major version of Debian that a tag names, empty if it names none."""
    if last == "debian" and re.match(r"\d\d(?:$|[.-])", tag):
        return tag[:2]
    debian = ""
    for word in words:
        match = re.fullmatch(r"debian(\d\d)(?:\.\d+)*", word)
        debian = match.group(1) if match else _DEBIAN_NAMES.get(word, debian)
    return debian


def _default_python(versions: dict[str, Any], debian: str) -> str:
    """Return the Python 3 of an image's distribution, empty if it may have another one."""
    if versions["torch"] or versions["tensorflow"] or versions["horovod"]:
        # A framework may have its own Python.
        return ""
    if versions["ubuntu"]:
        return UBUNTU_PYTHON.get(versions["ubuntu"], "")
    return DEBIAN_PYTHON.get(debian, "")


def versions_in_name(repository: str, tag: str) -> dict[str, Any]:
    """Return versions by the keys of C(NOTHING), and C(nvcc): whether the image has the CUDA
    compiler; None if unknown.
    """
    found: dict[str, set[str]] = {}
    repository = repository.lower()
    words = [word for word in re.split(r"[-_+]", tag.lower()) if word]
    # cuda-11.3, ubuntu-20.04: a name and its version in two words.
    pairs = [
        one + other
        for one, other in zip(words, words[1:])
        if re.fullmatch(r"[a-z]+", one) and re.match(r"\d", other)
    ]
    last = repository.rpartition("/")[2]
    for word in words + pairs:
        for name, version in _versions_in_word(word):
            found.setdefault(name, set()).add(version)
    name, version = _first_version(last, tag)
    if name == "ubuntu" or name and name not in found:
        found[name] = {version}
    versions = dict(NOTHING, **{name: _one(values) for name, values in found.items()})
    if "python" not in found and not _OWN_PYTHON.search(repository + "/" + "/".join(words)):
        versions["python"] = _default_python(versions, _debian(last, tag, words + pairs))
    if versions["cuda"]:
        versions["nvcc"] = _nvcc(last, set(words))
    return versions


def _one(values: set[str]) -> str:
    """Return the longest of compatible versions (11.3, 11.3.1); empty if they differ."""
    longest = max(sorted(values), key=lambda value: value.count("."))
    return longest if all((longest + ".").startswith(value + ".") for value in values) else ""


def _nvcc(last: str, words: set[str]) -> bool | None:
    """Return whether an image has the CUDA compiler, None if unknown.

    NVIDIA's tags, which others use too: devel has the compiler, runtime has only the libraries, and
    NVIDIA's base has neither.
    """
    devel, without = "devel" in words, "runtime" in words or "base" in words and last == "cuda"
    return None if devel == without else devel
