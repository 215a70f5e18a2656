# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Allowed lines inside and after the table of a log of nccl-tests, for a complete run.

A log has no exit code. Each program that can end a run reports it in its own words (slurmstepd, mpirun, hydra, the loader, the kernel, a shell), and new
ones are invented every year, so a list of bad words is never complete. The lines of a good run are few, so these are listed here, and the place decides:

- Before the table anything may stand: module systems, launchers, MPI, UCX and libfabric print banners and warnings there, and a run that was killed by
  then has no table. This module is not asked about these lines.
- Between the table's header and its footer one process prints rows. Beside it only libraries speak: NCCL's log, UCX and libfabric below the level of an
  error, the warnings of Open MPI that come late. Everything else interrupts the table.
- After the footer come what nccl-tests prints last, the same libraries closing down, and what a script or a scheduler says of a job that is done
  (C(_epilogues)).
- Behind a shell's prompt, or between two runs in one log, the next command begins, which may print what it likes. Only what sounds like a failure counts.
"""

from __future__ import annotations

import re

from ansible_collections.trainyard.gpu.plugins.module_utils._epilogues import (
    AILING,
    is_ending,
    lsf_report,
)

# Prefixes of launchers, containers and users. Never a bare word with a colon: "Killed:" is not a tag.
_TAG = re.compile(
    r"\s*(?:\[[\w./:,+@-]{1,120}\](?:\[[\w./:,+@-]{1,120}\])?(?:<std\w{2,4}>)?:?|<std\w{2,4}>:?|\(\d{1,6}\)|\d{1,6}:(?=\s|$)|"
    # UCX and UCC: host, PID and thread, padded to a width.
    r"\[ {0,9}[\w./+@-]{1,120} {0,9}: {0,9}\d{1,10} {0,9}(?:: {0,9}[\w-]{1,20} {0,9})?\]|\[ {0,9}\d{1,12}\.\d{1,9} {0,9}\]|"
    r"[\w./-]{1,80}\s{0,40}\|(?=\s|$)|[>|#]|"
    # The level in Python's logging, loguru, glog and logfmt, with its surroundings.
    r"-\s[\w.]{1,60}\s-\s(?=(?:INFO|DEBUG)\b)|(?:-\s)?(?:INFO|DEBUG|NOTICE|SUCCESS)(?::[\w.]{1,80}:|:|\s{1,8}[-|](?=\s)|(?=\s|$))|"
    r"[\w.<>]{1,60}:[\w.<>]{1,60}:\d{1,6}\s-(?=\s)|I\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,10} [\w./-]{1,80}:\d{1,6}\]|"
    r"(?:time|ts)=\"?[\dT:.,Z+-]{8,40}\"?\s+level=\"?(?:info|debug)\"?\s+msg=|std(?:out|err) [FP](?=\s)|"
    r"\d{4}-\d\d-\d\d[T ][\d:.,]{5,24}(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d[\d.,]{0,12}|"
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[|<))"
)
_NCCL = re.compile(
    r"[\w.-]{1,255} {0,9}: {0,9}\d{1,10} {0,9}: {0,9}\d{1,10} {1,9}\[ {0,4}-?\d{1,4} {0,4}\] {1,9}(?:\S{1,80} {1,9}){0,3}"
    r"NCCL (?:INFO|WARN|TRACE|CALL|version) |(?:^|\s)NCCL version \d"
)
_SEPARATOR = re.compile(r"[-=*_~#|+.`\s]*")
_UNITS = {
    "(B)",
    "(elements)",
    "(us)",
    "(ms)",
    "(GB/s)",
    "(%)",
    "%Y-%m-%d",
    "%H:%M:%S",
    "out-of-place",
    "in-place",
    "#",
}
_LIBRARIES = [
    re.compile(pattern)
    for pattern in (
        r"[\w.-]+: {0,9}\d+\s+(?:UCX|UCC|(?:CL|TL|MC|EC)[_ ]\w{1,20})\s+(?:WARN|INFO|DIAG|DEBUG|REQ|DATA|TRACE|FUNC|ASYNC|POLL|CONFIG)\b.*",
        r"libfabric: {0,9}\d+ {0,9}:\S*<(?:info|warn|trace|debug)>.*",
        # Switches that reduce (SHARP).
        r"\[[\w.-]+:\d+:\d+ - [\w.]+:\d+\]\s*\[[^\]]{1,40}\]\s+(?:INFO|WARN|DEBUG)\s.*",
        # Open MPI and PRRTE repeat warnings from before the table seconds later. MPI_ABORT is reported in the same form.
        r"\d+ more process(?:es)? (?:has|have) sent help message help-(?:mpi-(?:btl|mtl|common|pml|osc)[\w-]*(?:\.txt)? / .*|[\w-]+(?:\.txt)? / "
        r"(?!.*(?:abort|kill|fail|error|termin|signal|lost))[\w :.-]*)",
        r"Set (?:MCA|PRTE MCA|PRRTE MCA) parameter \"\w+\" to 0 to see all help / error messages",
        r"Warning: Permanently added \S+ \(\w+\) to the list of known hosts\.",
    )
]
# Shells, with the name of a conda environment before the prompt.
_PROMPT = re.compile(
    r"(?:\([\w.-]+\) ?)?(?:\[?[a-z_][\w.-]{0,31}@[\w.-]{1,64}[: ][^$#%\]]{0,200}\]?[$#%]|(?:ba|z|da)?sh-\d[\d.]{0,8}[$#]|\$)(?: .*)?"
)
# Beginning of another step of a CI job.
_NEXT_STEP = re.compile(r"Post job cleanup\.|##\[group\](?:Run|Post) .*|Running after[_ ]script.*")
_STOPPED_WELL = re.compile(r"[\w.-]{1,253} exited with code 0")
# From docker compose, which stops the other containers after one has ended with any result.
_STOPPING_ALL = "Aborting on container exit..."
_WARNING_BLOCK = re.compile(
    r"WARNING:|NOTE:|By default, for Open MPI|No OpenFabrics connection schemes|A process has executed an operation involving a call to"
)


def learned_tag(before_header):
    """Pattern of the prefix of the table's header, which all other lines have too, with other numbers. None without a prefix."""
    text = before_header.rstrip("# \t")
    if not text.strip() or len(text) > 300:
        return None
    return re.compile(
        r"\s*"
        + r"\s+".join(re.sub(r"\d+", r"\\d+", re.escape(word)) for word in text.split())
        + r"(?!\w)"
    )


def _levels(line, tag):
    """The start of the line, after removing its tags one by one."""
    found = tag.match(line) if tag else None
    places = [0] + ([found.end()] if found else [])
    while True:
        found = _TAG.match(line, places[-1])
        if not found or found.end() == places[-1]:
            return places
        places.append(found.end())


def _bare(line, tag):
    """The line without its tags."""
    return line[_levels(line, tag)[-1] :].strip()


def _is_table(bare):
    """Complete lines of nccl-tests itself."""
    words = bare.split()
    return set(words) <= _UNITS or bool(
        re.fullmatch(
            r"Out of bounds values\s*: *\d+ (?:OK|FAILED)|Avg bus bandwidth\s*: *\S+(?:\s+(?:OK|FAILED))?|Collective test concluded: *\S+|Using devices|"
            r"(?:size\s+count|bytes\s+N)\s+type\s[\w\s#%.-]*",
            bare,
        )
    )


def _is_said_by_a_library(line, bare):
    found = _NCCL.search(line)
    if found:
        # An aborted communicator reports that itself; a closed one reports "Destroy COMPLETE".
        return "Abort COMPLETE" not in line and not AILING.search(line, 0, found.start())
    return any(pattern.fullmatch(bare) for pattern in _LIBRARIES)


class Around:
    """The lines below the header of one table, except its rows."""

    def __init__(self, before_header):
        self.tag = learned_tag(before_header)
        self.within, self.after = [], []

    def add(self, line, ended, row):
        """C(row): the line is the prefix of a row."""
        bare = _bare(line, self.tag) if row else None
        # A tag may be unknown, but no row begins with words of failure.
        if not row or bare and AILING.search(bare):
            (self.after if ended else self.within).append(line)

    def unexpected(self, followed):
        """The first line that no good run prints there, or None. C(followed): another run follows in the same log."""
        return self._first(self.within, False, False) or self._first(self.after, True, followed)

    def unexpected_end(self):
        return self._first(self.after, True, False)

    def _first(self, lines, ended, lenient):
        skip, well = 0, False
        for number, line in enumerate(lines):
            if number < skip:
                continue
            places = _levels(line, self.tag)
            bare = line[places[-1] :].strip()
            if _SEPARATOR.fullmatch(bare):
                skip = max(skip, self._end_of_warning(lines, number))
                if AILING.search(line):
                    return line
                continue
            if _is_table(bare) or _is_said_by_a_library(line, bare):
                continue
            # A tag may be the beginning of an epilogue: [1]+ Done. A line has few tags.
            readings = [line[place:].strip() for place in places[:6] + places[-1:]] if ended else []
            if any(is_ending(reading) for reading in readings):
                well = well or any(_STOPPED_WELL.fullmatch(reading) for reading in readings)
            elif _STOPPING_ALL in readings and well:
                continue
            elif ended and bare.startswith("Sender: LSF "):
                skip = lsf_report([_bare(each, self.tag) for each in lines], number)
                if not skip:
                    return line
            elif any(
                _PROMPT.fullmatch(reading) or _NEXT_STEP.fullmatch(reading) for reading in readings
            ):
                lenient = True
            elif not lenient or AILING.search(bare):
                return line
        return None

    def _end_of_warning(self, lines, number):
        """Open MPI prints a warning between two rulers: the number of the line below it. 0 for other text, or if the warning reports an end."""
        if not lines[number].rstrip().endswith("-" * 40):
            return 0
        block = []
        for end in range(number + 1, min(number + 40, len(lines))):
            bare = _bare(lines[end], self.tag)
            if bare.endswith("-" * 40):
                known = next((text for text in block if text), "")
                bad = re.search(
                    r"kill|abort|terminat|refused to die|signal|exited", " ".join(block)
                )
                return end + 1 if _WARNING_BLOCK.match(known) and not bad else 0
            block.append(bare)
        return 0
