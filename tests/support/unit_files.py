"""What systemd reads in unit files: by systemd itself in its test mode where it is installed, else
by its documented syntax.
"""

from __future__ import annotations

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

SYSTEMD = "/usr/lib/systemd/systemd"
# As it prints them, by the name that they have in a file.
_PRINTED = {
    "Description": "Description",
    "RequiresMountsFor": "RequiresMountsFor",
    "What": "What",
    "Where": "Where",
    "Options": "Options",
    "Command Line": "ExecStart",
}


def read_unit(name, text):
    """Return {option: value} of a unit, quotes and specifiers resolved; a list of words of
    C(ExecStart).
    """
    found = by_syntax(text)
    if os.path.exists(SYSTEMD) and shutil.which("setpriv"):
        real = by_systemd(name, text)
        assert {key: found.get(key) for key in real} == real, (real, found)
    return found


def by_systemd(name, text):
    """systemd refuses its test mode to root, so it runs as another user, who must be able to read
    the folder.
    """
    others = {"sysinit.target", *re.findall(r"[\w-]+\.target", text)}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for unit, content in [
            (name, text),
            ("docker.service", "[Service]\nExecStart=/bin/true\n"),
            *((other, "[Unit]\n") for other in others),
        ]:
            pathlib.Path(folder, unit).write_text(content, encoding="utf-8")
        command = [SYSTEMD, "--test", "--system", "--unit=" + name]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] + command
        run = subprocess.run(
            command,
            env={
                "SYSTEMD_UNIT_PATH": folder,
                "HOME": "/",
                "PATH": os.environ["PATH"],
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            cwd=folder,
            text=True,
            check=False,
            timeout=60,
        )
    lines = (run.stdout + run.stderr).splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith("-> Unit %s:" % name)]
    assert starts, run.stdout + run.stderr
    assert "Unit Load State: loaded" in "\n".join(lines[starts[0] : starts[0] + 8]), (
        run.stdout + run.stderr
    )
    found = {}
    for line in lines[starts[0] + 1 :]:
        if "-> Unit " in line:
            break
        printed, colon, value = line.strip().partition(": ")
        if colon and printed in _PRINTED and not value.endswith("(origin-implicit)"):
            value = value.replace(" (origin-file)", "")
            # A command is printed with quotes of its own, and with variables as they are before its
            # start.
            value = (
                [word.replace("$$", "$") for word in words(value)]
                if printed == "Command Line"
                else value
            )
            found.setdefault(_PRINTED[printed], value)
    return found


def by_syntax(text):
    """systemd.syntax(7): sections and options as configparser has them, specifiers, and quotes
    where an option takes words.
    """
    parser = configparser.RawConfigParser(
        strict=False, comment_prefixes=("#", ";"), delimiters=("=",)
    )
    parser.optionxform = str
    parser.read_string(text)
    options = {key: value for section in parser.sections() for key, value in parser.items(section)}
    for key in ("Description", "What", "Where", "Options"):
        if key in options:
            options[key] = _specifiers(options[key])
    if "RequiresMountsFor" in options:
        options["RequiresMountsFor"] = " ".join(
            _specifiers(word) for word in words(options["RequiresMountsFor"])
        )
    if "ExecStart" in options:
        options["ExecStart"] = [
            _specifiers(word).replace("$$", "$") for word in words(options["ExecStart"])
        ]
    return options


def _specifiers(text):
    assert not re.search(r"(?<!%)(%%)*%(?!%)", text), "%r has a specifier" % text
    return text.replace("%%", "%")


def words(text):
    """Words with their quotes and backslashes resolved."""
    found, word, quote, escaped = [], None, "", False
    for letter in text:
        if escaped:
            word, escaped = (word or "") + letter, False
        elif letter == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "\"'" and word is None:
            word, quote = "", letter
        elif letter.isspace():
            found += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + letter
    assert not quote and not escaped
    return found + ([] if word is None else [word])
