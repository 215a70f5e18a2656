# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Derives the content of an image from its name: versions in common notations of tags, for any repository. Text in, data out.

Only what follows from the name is claimed. A word that is missing, that has no minor version (tf2, py3, cu12), or that contradicts another one says nothing.
"""

from __future__ import annotations

import re

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
# Repositories whose tags begin with the version of the software in their name. NGC's tags begin with a month instead, such as 24.08.
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
NOTHING = {
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


def said_by_name(repository, tag):
    """Versions by the keys of C(NOTHING), and C(nvcc): whether it has the CUDA compiler; None if unknown."""
    said, repository = {}, repository.lower()
    words = [word for word in re.split(r"[-_+]", tag.lower()) if word]
    # cuda-11.3, ubuntu-20.04: a name and its version in two words.
    pairs = [
        one + other
        for one, other in zip(words, words[1:])
        if re.fullmatch(r"[a-z]+", one) and re.match(r"\d", other)
    ]
    last = repository.rpartition("/")[2]
    debian = ""
    for word in words + pairs:
        for name, pattern in _WORDS:
            found = pattern.fullmatch(word)
            if found:
                said.setdefault(name, set()).add(found.group(1))
        found = re.fullmatch(r"cu(\d{1,2})(\d)", word)
        if found and len(word) > 4 or word == "cu92":
            said.setdefault("cuda", set()).add("%s.%s" % found.groups())
        found = re.fullmatch(r"(?:py|cp|python)3(\d{1,2})", word)
        if found:
            said.setdefault("python", set()).add("3.%s" % found.group(1))
        found = re.fullmatch(r"ubuntu(\d\d)(\d\d)", word)
        if found:
            said.setdefault("ubuntu", set()).add("%s.%s" % found.groups())
        if word in _UBUNTU_NAMES:
            said.setdefault("ubuntu", set()).add(_UBUNTU_NAMES[word])
        found = re.fullmatch(r"debian(\d\d)(?:\.\d+)*", word)
        debian = found.group(1) if found else _DEBIAN_NAMES.get(word, debian)
    first = re.match(r"v?" + _VERSION + r"(?![A-Za-z0-9.])", tag)
    if first:
        key, major = _NAMED_AFTER.get(last), int(first.group(1).partition(".")[0])
        if key and key not in said and major <= _HIGHEST_MAJOR[key]:
            said[key] = {first.group(1)}
        if last == "ubuntu" and first.group(1) in UBUNTU_PYTHON:
            said["ubuntu"] = {first.group(1)}
    if last == "debian" and re.match(r"\d\d(?:$|[.-])", tag):
        debian = tag[:2]
    found = dict(NOTHING, **{name: _one(values) for name, values in said.items()})
    if (
        not found["python"]
        and "python" not in said
        and not _OWN_PYTHON.search(repository + "/" + "/".join(words))
    ):
        # A framework may have its own Python.
        if not found["torch"] and not found["tensorflow"] and not found["horovod"]:
            found["python"] = (
                UBUNTU_PYTHON.get(found["ubuntu"])
                or ("" if found["ubuntu"] else DEBIAN_PYTHON.get(debian))
                or ""
            )
    if found["cuda"]:
        found["nvcc"] = _nvcc(last, set(words))
    return found


def _one(values):
    """The longest of compatible versions (11.3, 11.3.1); empty if they differ."""
    longest = max(sorted(values), key=lambda value: value.count("."))
    return longest if all((longest + ".").startswith(value + ".") for value in values) else ""


def _nvcc(last, words):
    """NVIDIA's tags, which others use too: devel has the compiler, runtime has only the libraries, and NVIDIA's base has neither."""
    devel, without = "devel" in words, "runtime" in words or "base" in words and last == "cuda"
    return None if devel == without else devel
