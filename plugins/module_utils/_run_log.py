# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Allowed lines inside and after the table of a log of nccl-tests, for a complete run.

A log has no exit code. Each program that can end a run reports it in its own words (slurmstepd,
mpirun, hydra, the loader, the kernel, a shell), and new ones are invented every year, so a list of
bad words is never complete. The lines of a good run are few, so these are listed here, and the
place decides:

- Before the table anything may stand: module systems, launchers, MPI, UCX and libfabric print banners and warnings there, and a run that was killed by
  then has no table. This module is not asked about these lines.
- Between the table's header and its footer one process prints rows. Beside it only libraries speak: NCCL's log, UCX and libfabric below the level of an
  error, the warnings of Open MPI that come late. Everything else interrupts the table.
- After the footer come what nccl-tests prints last, the same libraries closing down, and what a script or a scheduler says of a job that is done
  (C(_epilogues)).
- Behind a shell's prompt the next command begins, which may print what it likes. Only what sounds like a failure counts.
- Text between two runs in one log belongs to neither: a launcher's banner and warnings stand before the next run. Only the end of a process counts.

Lines that do not fail a run may still report a fault of a port or a detour of the data. P(remarks)
finds these.
"""

from __future__ import annotations

import re

from typing import TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._epilogues import (
    AILING,
    is_ending,
    lsf_report,
)

# Prefixes of launchers, containers and users. Never a bare word with a colon: "Killed:" is not a
# tag.
_TAG = re.compile(
    r"\s*(?:\[[\w./:,+@-]{1,120}\](?:\[[\w./:,+@-]{1,120}\])?(?:<std\w{2,4}>)?:?|<std\w{2,4}>:?|\(\d{1,6}\)|\d{1,6}:(?=\s|$)|"
    # UCX and UCC: host, PID and thread, padded to a width.
    r"\[ {0,9}[\w./+@-]{1,120} {0,9}: {0,9}\d{1,10} {0,9}(?:: {0,9}[\w-]{1,20} {0,9})?\]|\[ "
    r"{0,9}\d{1,12}\.\d{1,9} {0,9}\]|"
    r"[\w./-]{1,80}\s{0,40}\|(?=\s|$)|[>|#]|"
    # The level in Python's logging, loguru, glog and logfmt, with its surroundings.
    r"-\s[\w.]{1,60}\s-\s(?=(?:INFO|DEBUG)\b)|(?:-\s)?(?:INFO|DEBUG|NOTICE|SUCCESS)(?::[\w.]{1,80}:|:|\s{1,8}[-|](?=\s)|(?=\s|$))|"
    r"[\w.<>]{1,60}:[\w.<>]{1,60}:\d{1,6}\s-(?=\s)|I\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,10} "
    r"[\w./-]{1,80}:\d{1,6}\]|"
    r"(?:time|ts)=\"?[\dT:.,Z+-]{8,40}\"?\s+level=\"?(?:info|debug)\"?\s+msg=|std(?:out|err) "
    r"[FP](?=\s)|"
    r"\d{4}-\d\d-\d\d[T ][\d:.,]{5,24}(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d[\d.,]{0,12}|"
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[|<))"
)
_NCCL = re.compile(
    r"[\w.-]{1,255} {0,9}: {0,9}\d{1,10} {0,9}: {0,9}\d{1,10} {1,9}\[ {0,4}-?\d{1,4} {0,4}\] "
    r"{1,9}(?:\S{1,80} {1,9}){0,3}"
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
        (
            r"[\w.-]+: {0,9}\d+\s+(?:UCX|UCC|(?:CL|TL|MC|EC)[_ "
            r"]\w{1,20})\s+(?:WARN|INFO|DIAG|DEBUG|REQ|DATA|TRACE|FUNC|ASYNC|POLL|CONFIG)\b.*"
        ),
        r"libfabric: {0,9}\d+ {0,9}:\S*<(?:info|warn|trace|debug)>.*",
        # Switches that reduce (SHARP).
        r"\[[\w.-]+:\d+:\d+ - [\w.]+:\d+\]\s*\[[^\]]{1,40}\]\s+(?:INFO|WARN|DEBUG)\s.*",
        # Open MPI and PRRTE repeat warnings from before the table seconds later. MPI_ABORT is
        # reported in the same form.
        r"\d+ more process(?:es)? (?:has|have) sent help message "
        r"help-(?:mpi-(?:btl|mtl|common|pml|osc)[\w-]*(?:\.txt)? / .*|[\w-]+(?:\.txt)? / "
        r"(?!.*(?:abort|kill|fail|error|termin|signal|lost))[\w :.-]*)",
        r"Set (?:MCA|PRTE MCA|PRRTE MCA) parameter \"\w+\" to 0 to see all help / error messages",
        r"Warning: Permanently added \S+ \(\w+\) to the list of known hosts\.",
        # Written before the run, to stderr. Behind a buffer these lines come later.
        r"(?:srun|salloc|sbatch): (?:(?:job|Pending job allocation) \d+ (?:queued and waiting "
        r"for|has been allocated) resources|"
        r"(?:Granted|Pending) job allocation \d+|Waiting for resource configuration|Nodes \S+ "
        r"are ready for job|Submitted batch job \d+)",
    )
]
# The footer of nccl-tests, and that of RCCL, which marks wrong values with an asterisk.
_FOOTER = re.compile(
    r"Out of bounds values\s*: *\d+ (?:OK|FAILED)|Avg bus bandwidth\s*: "
    r"*\S+(?:\s+(?:OK|FAILED))?|Collective test concluded: *\S+|Using devices|"
    r"GPU memory usage\s*: *[\w.| -]+|Errors with asterisks indicate errors that have exceeded "
    r"the maximum threshold\.|"
    r"(?:size\s+count|bytes\s+N)\s+type\s[\w\s#%.-]*"
)
# The last warning of NCCL, which nccl-tests repeats below the summary of a complete run.
_LAST_ERROR = re.compile(r"# error: (\S.*)")
# Shells, with the name of a conda environment before the prompt.
_PROMPT = re.compile(
    (
        r"(?:\([\w.-]+\) ?)?(?:\[?[a-z_][\w.-]{0,31}@[\w.-]{1,64}[: "
        r"][^$#%\]]{0,200}\]?[$#%]|(?:ba|z|da)?sh-\d[\d.]{0,8}[$#]|\$)(?: .*)?"
    )
)
# The command itself, behind another prompt or by set -x.
_TEST_COMMAND = re.compile(r"(?:[\w.~-]*/)*[a-z_]+_perf(?: -{1,2}[\w-]+(?:[ =][\w./:-]+)?)*")
# Beginning of another step of a CI job.
_NEXT_STEP = re.compile(r"Post job cleanup\.|##\[group\](?:Run|Post) .*|Running after[_ ]script.*")
_STOPPED_WELL = re.compile(r"[\w.-]{1,253} exited with code 0")
# From docker compose, which stops the other containers after one has ended with any result.
_STOPPING_ALL = "Aborting on container exit..."
# Of a process, as shells, launchers and schedulers report it.
_ENDED = re.compile(
    r"\bkill(?:ed|ing)\b|\boom\b|oom[-_]kill|out of "
    r"memory|\babort(?:ed|ing)\b|mpi_abort|\bterminat(?:ed|ing|ion)\b|\bcancelled\b|signal \d|"
    r"\bsig(?:kill|segv|bus|abrt|term)\b|segmentation fault|bus error|core "
    r"dumped|\bdied\b|node failure|time limit|"
    r"\b(?:exit|exited|ended|rc|code|status|returned)(?: with)?(?: exit)?(?:[ _]?code|[ "
    r"_]?status)?s?\W{1,3}[1-9]",
    re.IGNORECASE,
)
# Prefix of a line by the name of a host or a container.
_NAME_TAG = re.compile(r"\s*[\w.-]{1,253}\s*[:|>]?\s*")
_WARNING_BLOCK = re.compile(
    (
        r"WARNING:|NOTE:|By default, for Open MPI|No OpenFabrics connection schemes|A process has "
        r"executed an operation involving a call to"
    )
)


class Remark(TypedDict):
    """A line of a log that does not fail a run.

    C(host) is the one whose NCCL wrote it, None if that is unknown.
    """

    id: str
    host: str | None
    cause: str
    fix: str
    line: str


def learned_tag(before_header: str) -> re.Pattern[str] | None:
    """Pattern of the prefix of the table's header, which all other lines have too, with other
    numbers. None without a prefix.
    """
    text = before_header.rstrip("# \t")
    if not text.strip() or len(text) > 300:
        return None
    words = r"\s+".join(re.sub(r"\d+", r"\\d+", re.escape(word)) for word in text.split())
    return re.compile(r"\s*" + words + (r"(?!\w)" if re.search(r"\w$", text) else ""))


def _levels(line: str, tags: list[re.Pattern[str]]) -> list[int]:
    """The start of the line, after removing its tags one by one. C(tags) are those of this log."""
    learned = next((found for found in (tag.match(line) for tag in tags) if found), None)
    places = [0] + ([learned.end()] if learned else [])
    while True:
        found = _TAG.match(line, places[-1])
        if not found or found.end() == places[-1]:
            return places
        places.append(found.end())


def _bare(line: str, tags: list[re.Pattern[str]]) -> str:
    """The line without its tags."""
    return line[_levels(line, tags)[-1] :].strip()


def _is_table(bare: str) -> bool:
    """Complete lines of nccl-tests itself."""
    return set(bare.split()) <= _UNITS or bool(_FOOTER.fullmatch(bare))


def _is_last_error(line: str, tags: list[re.Pattern[str]]) -> bool:
    found = _LAST_ERROR.search(line)
    return found is not None and not _bare(line[: found.start()], tags)


def _is_said_by_a_library(line: str, bare: str) -> bool:
    found = _NCCL.search(line)
    if found:
        # An aborted communicator reports that itself; a closed one reports "Destroy COMPLETE".
        return "Abort COMPLETE" not in line and not AILING.search(line, 0, found.start())
    return any(pattern.fullmatch(bare) for pattern in _LIBRARIES)


def _begins_command(text: str) -> bool:
    """Whether a line is a shell's prompt, the command of a test, or the next step of a CI job."""
    return bool(
        _PROMPT.fullmatch(text) or _TEST_COMMAND.fullmatch(text) or _NEXT_STEP.fullmatch(text)
    )


class Around:
    """The lines below the header of one table, except its rows."""

    def __init__(self, before_header: str) -> None:
        tag = learned_tag(before_header)
        self.tags = [tag] if tag else []
        self.names: set[str] = set()
        self.within: list[str] = []
        self.after: list[str] = []

    def add(self, line: str, ended: bool, row: bool) -> None:
        """C(row): the line is the prefix of a row."""
        self._learn(line, row)
        bare = _bare(line, self.tags) if row else None
        # A tag may be unknown, but no row begins with words of failure.
        if not row or bare and AILING.search(bare):
            (self.after if ended else self.within).append(line)

    def _learn(self, line: str, row: bool) -> None:
        """Names of hosts before the table's own lines are tags of this log: several hosts may write
        to it.
        """
        footer = _FOOTER.search(line)
        prefix, mark, rest = line.partition("#")
        if row:
            prefix = line
        elif footer:
            prefix = line[: footer.start()].rstrip("# ")
        elif not mark or not set(rest.split()) <= _UNITS:
            return
        name = prefix.strip()
        is_new = name and name not in self.names and len(self.names) < 64
        tag = learned_tag(prefix)
        if is_new and tag and _NAME_TAG.fullmatch(prefix) and not AILING.search(name):
            self.names.add(name)
            self.tags.append(tag)

    def unexpected(self, followed: bool) -> str | None:
        """The first line that no good run prints there, or None.

        C(followed): another run follows in the same log.
        """
        return self._first(self.within, False, None) or self._first(
            self.after, True, _ENDED if followed else None
        )

    def unexpected_end(self) -> str | None:
        """Return the first line after the table that no good run prints there, or None."""
        return self._first(self.after, True, None)

    def _first(
        self, lines: list[str], ended: bool, objections: re.Pattern[str] | None
    ) -> str | None:
        """C(objections): words that an unknown line must not have; None if it must not be there at
        all.
        """
        reader = _Lines(self, lines, ended, objections)
        return next(
            (line for number, line in enumerate(lines) if reader.is_unexpected(number)), None
        )

    def end_of_warning(self, lines: list[str], number: int) -> int:
        """Open MPI prints a warning between two rulers: the number of the line below it.

        0 for other text, or if the warning reports an end.
        """
        if not lines[number].rstrip().endswith("-" * 40):
            return 0
        block: list[str] = []
        for end in range(number + 1, min(number + 40, len(lines))):
            bare = _bare(lines[end], self.tags)
            if bare.endswith("-" * 40):
                known = next((text for text in block if text), "")
                bad = re.search(
                    r"kill|abort|terminat|refused to die|signal|exited", " ".join(block)
                )
                return end + 1 if _WARNING_BLOCK.match(known) and not bad else 0
            block.append(bare)
        return 0


class _Lines:
    """Judges the lines around a table one after the other.

    A known block of lines is judged as a whole, by its first line.
    """

    def __init__(
        self, around: Around, lines: list[str], ended: bool, objections: re.Pattern[str] | None
    ) -> None:
        self.around, self.lines, self.ended, self.objections = around, lines, ended, objections
        self.skip, self.well = 0, False

    def is_unexpected(self, number: int) -> bool:
        """Return whether no good run prints a line there. Callers go through the lines in their order."""
        if number < self.skip:
            return False
        line = self.lines[number]
        places = _levels(line, self.around.tags)
        bare = line[places[-1] :].strip()
        if _SEPARATOR.fullmatch(bare):
            self.skip = max(self.skip, self.around.end_of_warning(self.lines, number))
            return AILING.search(line) is not None
        if _is_table(bare) or _is_said_by_a_library(line, bare):
            return False
        if self.ended and bare.startswith("Sender: LSF "):
            self.skip = lsf_report([_bare(each, self.around.tags) for each in self.lines], number)
            return not self.skip
        # A tag may be the beginning of an epilogue: [1]+ Done. A line has few tags.
        readings = [line[place:].strip() for place in places[:6] + places[-1:]]
        return not self._is_known(line, bare, readings)

    def _is_known(self, line: str, bare: str, readings: list[str]) -> bool:
        if self.ended and self._is_epilogue(line, readings):
            self.well = self.well or any(_STOPPED_WELL.fullmatch(reading) for reading in readings)
            return True
        begins = any(_begins_command(reading) for reading in readings)
        if begins and self.ended:
            self.objections = self.objections or AILING
            return True
        if begins and not AILING.search(bare):
            return True
        return self.objections is not None and not self.objections.search(bare)

    def _is_epilogue(self, line: str, readings: list[str]) -> bool:
        return (
            _is_last_error(line, self.around.tags)
            or any(is_ending(reading) for reading in readings)
            or (_STOPPING_ALL in readings and self.well)
        )


# Lines of NCCL: id, pattern, sentence, fix.
_REMARKS = (
    (
        "port_event",
        # Events of a subnet that was configured anew are no fault.
        re.compile(
            r"NCCL WARN (?:NET/\w+ ?: ?)?(?P<what>\S+) Got async (?:fatal |error )?event[ :]*"
            r"(?![ :]|client reregistration|GID table|P_?Key|SM change|LID change|port "
            r"active)(?P<more>.+)",
            re.IGNORECASE,
        ),
        "port {what} reported '{more}' during the run",
        "check the cable and the error counters of this port",
    ),
    (
        "gpudirect_disabled",
        re.compile(r"NCCL INFO (?:NET/\w+ ?: ?)?GPU Direct RDMA Disabled for (?P<what>[^()]+)"),
        "NCCL does not use GPUDirect RDMA for {what}, so data passes the memory of the host",
        (
            "load nvidia-peermem, and check with 'nvidia-smi topo -m' that GPU and adapter share a "
            "PCIe switch"
        ),
    ),
    (
        "last_error",
        re.compile(r"# error: (?P<what>\S.*)"),
        "NCCL's last warning was '{what}'",
        "read NCCL's lines of the run with NCCL_DEBUG=WARN",
    ),
)
_SPEAKER = re.compile(r"([A-Za-z0-9][\w.-]{0,252}):\d+:\d+ \[")


def remarks(text: str) -> list[Remark]:
    """Lines of a log that do not fail a run, but which its reader should see.

    Each sentence of a host is told once.
    """
    found: dict[tuple[str, str | None, str], Remark] = {}
    for line in text.split("\n"):
        if (
            "Got async" not in line
            and "GPU Direct RDMA Disabled" not in line
            and "# error" not in line
        ):
            continue
        for name, pattern, sentence, fix in _REMARKS:
            match = pattern.search(line[:4096])
            if not match:
                continue
            words = {key: " ".join(value.split())[:200] for key, value in match.groupdict().items()}
            speaker = _SPEAKER.search(line[: match.start()])
            host = speaker.group(1) if speaker else None
            cause = sentence.format(**words)
            found.setdefault(
                (name, host, cause),
                {
                    "id": name,
                    "host": host,
                    "cause": cause,
                    "fix": fix,
                    # Without the tags of launchers.
                    "line": " ".join(line[(speaker or match).start() :].split())[:500],
                },
            )
    return list(found.values())
