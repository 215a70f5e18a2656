"""Transcripts in the documentation: what a person types in a shell, and what it prints.

A test types the same and compares.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/shared-cluster.md"
FIRST_JOB = "Your first job in five minutes"


def section(heading, page=PAGE):
    """The text below a heading, up to the next one that is not below it."""
    text = page.read_text(encoding="utf-8")
    begin = re.search(r"^(#+) %s$" % re.escape(heading), text, re.MULTILINE)
    rest = text[begin.end() :]
    end = re.search(
        r"^#{1,%d} " % len(begin.group(1)),
        re.sub(
            r"^```.*?^```$",
            lambda block: "x" * len(block.group()),
            rest,
            flags=re.MULTILINE | re.DOTALL,
        ),
        re.MULTILINE,
    )
    return rest[: end.start()] if end else rest


def blocks(heading, language, page=PAGE):
    """The blocks of code of a language below a heading."""
    return re.findall(
        r"^```%s\n(.*?)^```$" % language, section(heading, page), re.MULTILINE | re.DOTALL
    )


def steps(heading, page=PAGE):
    """The commands of a section, each with what it prints. A here-document is part of its
    command.
    """
    found = []
    for block in blocks(heading, "console", page):
        end = ""
        for line in block.splitlines():
            if end:
                found[-1][0] += "\n" + line
                end = "" if line == end else end
            elif line.startswith("$ "):
                found.append([line[2:], ""])
                document = re.search(r"<< '(\w+)'$", line)
                end = document.group(1) if document else ""
            else:
                found[-1][1] += line + "\n"
    return [tuple(step) for step in found]


def here_document(heading=FIRST_JOB, page=PAGE):
    """The file that the first command of a section writes."""
    return steps(heading, page)[0][0].partition("\n")[2].rpartition("\n")[0] + "\n"


def alike(text):
    """The text without what differs from run to run: numbers, times, hosts, tags of images, widths
    of columns, and that a job waits for a moment.
    """
    lines = [
        line
        for line in text.replace("\r", "").splitlines()
        if not re.match(r"trainyard: job \d+ is waiting: ", line)
    ]
    text = re.sub(r"(?<=trainyard/training:)[0-9a-f]{12}", "TAG", "\n".join(lines))
    text = re.sub(r"\blab-[a-z]\b", "HOST", text)
    return [" ".join(re.sub(r"\d+", "0", line).split()) for line in text.splitlines()]


def play(found, run):
    """Type the commands, and compare.

    C(run) runs one and returns what it prints. The number of the job that is submitted is not that
    of the transcript.
    """
    numbers = {}
    for command, expected in found:
        typed = re.sub(r"\b\d+\b", lambda word: numbers.get(word.group(), word.group()), command)
        said = run(typed)
        assert alike(said) == alike(expected), "$ %s\n%sis expected, and this was printed:\n%s" % (
            typed,
            expected,
            said,
        )
        job = r"^job (\d+) submitted"
        numbers.update(
            zip(re.findall(job, expected, re.MULTILINE), re.findall(job, said, re.MULTILINE))
        )
