# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which lines may stand inside and after the table of a log of nccl-tests, if the run came to its end.

A log has no exit code. Whoever ends a run says so in words of their own (slurmstepd, mpirun, hydra, the loader, the kernel, a shell), and new ones are
invented every year, so a list of bad words is never complete. The lines of a good run are few, so these are listed here, and the place decides:

- Before the table anything may stand: module systems, launchers, MPI, UCX and libfabric print banners and warnings there, and a run that was killed by
  then has no table. This module is not asked about these lines.
- Between the table's header and its footer one process prints rows. Beside it only libraries speak: NCCL's log, UCX and libfabric below the level of an
  error, the warnings of Open MPI that come late. Everything else interrupts the table.
- After the footer come what nccl-tests prints last, the same libraries closing down, and what a script or a scheduler says of a job that is done.
- Behind a shell's prompt, or between two runs in one log, the next command begins, which may print what it likes. Only what sounds like a failure counts.
"""

from __future__ import annotations

import re

# Where unknown lines are allowed, these speak against the run nevertheless.
_AILING = re.compile(
    r"kill|abort|terminat|fatal|\bfail|error|signal|\bfault|segv|segmentation|bus err|dumped|crash|cancel|\blost\b|\bdied?\b|\bdead\b|time ?out\b|timed out|"
    r"time limit|unreachable|\boom\b|oom[-_]|out of memory|no space|refused|panic|exception|traceback|assert|\bbad\b|non-?zero|broken|\bhung\b|preempt|"
    r"revoked|undefined|reset by peer|closed by|(?:exit|return|code|status|rc)\w*\W+(?:\w+\W+){0,3}[1-9]", re.IGNORECASE)
# What launchers, containers and people put before each line. Never a bare word with a colon: "Killed:" is no tag.
_TAG = re.compile(
    r"\s*(?:\[[\w./:,+@-]{1,120}\](?:\[[\w./:,+@-]{1,120}\])?(?:<std\w{2,4}>)?:?|<std\w{2,4}>:?|\(\d{1,6}\)|\d{1,6}:(?=\s|$)|"
    r"[\w./-]{1,80}\s{0,8}\|(?=\s|$)|[>|#]|"
    r"\d{4}-\d\d-\d\d[T ][\d:.,]{5,24}(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d[\d.,]{0,12}|"
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[|<))")
_NCCL = re.compile(r"[\w.-]{1,255}:\d{1,10}:\d{1,10} \[-?\d{1,4}\] (?:\S{1,80} ){0,3}NCCL (?:INFO|WARN|TRACE|CALL|version) |(?:^|\s)NCCL version \d")
_SEPARATOR = re.compile(r"[-=*_~#|+.`\s]*")
_UNITS = {"(B)", "(elements)", "(us)", "(ms)", "(GB/s)", "(%)", "%Y-%m-%d", "%H:%M:%S", "out-of-place", "in-place", "#"}
_LIBRARIES = [re.compile(pattern) for pattern in (
    r"[\w.-]+:\d+\s+UCX\s+(?:WARN|INFO|DIAG|DEBUG|REQ|DATA|TRACE|FUNC|ASYNC|POLL|CONFIG)\b.*",
    r"libfabric:\d+:\S*<(?:info|warn|trace|debug)>.*",
    # Switches that reduce (SHARP).
    r"\[[\w.-]+:\d+:\d+ - [\w.]+:\d+\]\s*\[[^\]]{1,40}\]\s+(?:INFO|WARN|DEBUG)\s.*",
    # Open MPI and PRRTE tell once more, seconds later, what they warned of before the table. MPI_ABORT is told in the same form.
    r"\d+ more process(?:es)? (?:has|have) sent help message help-(?:mpi-(?:btl|mtl|common|pml|osc)[\w-]*(?:\.txt)? / .*|[\w-]+(?:\.txt)? / "
    r"(?!.*(?:abort|kill|fail|error|termin|signal|lost))[\w :.-]*)",
    r"Set (?:MCA|PRTE MCA|PRRTE MCA) parameter \"\w+\" to 0 to see all help / error messages",
    r"Warning: Permanently added \S+ \(\w+\) to the list of known hosts\.",
)]
_ENDINGS = [re.compile(pattern) for pattern in (
    r"(?:Shared c|C)onnection to \S+ closed\.", r"logout", r"exit", r"Exit status: 0", r"(?:</\w+>)+", r"```\w*",
    # The shell's time, GNU time with and without -v.
    r"(?:real|user|sys)\s+(?:\d+m)?\d+[.,]\d+s?", r"[\d.]+user [\d.]+system [\d:.]+elapsed .*maxresident\)k",
    r"\d+inputs\+\d+outputs \(\d+major\+\d+minor\)pagefaults \d+swaps",
    r"(?:Command being timed|User time|System time|Percent of CPU|Elapsed|Average|Maximum resident|Major|Minor|Voluntary|Involuntary|Swaps|File system|Socket|"
    r"Signals delivered|Page size)\b[^\n]*: \S.*",
    r"salloc: Relinquishing job allocation \d+",
    r"srun: (?:launch/slurm: )?_task_finish: (?:\S+ )*?(?:task[s ]?[\d,\[\]-]*: Completed|\(status=0x0000\)\.?)",
    r"Application [\w-]+ resources: utime[ =~].*",
    r"\S+ exited with code 0",
    # set -x
    r"\++ (?:echo|date|exit 0|set|wait|cd|sleep|rm|module|popd|true|:)\b.*", r"\++ exit",
    # LSF, below what the job printed.
    r"PS:", r"Read file <[^>]*> for stderr output of this job\.",
)]
# Shells, with the name of a conda environment before the prompt.
_PROMPT = re.compile(
    r"(?:\([\w.-]+\) ?)?(?:\[?[a-z_][\w.-]{0,31}@[\w.-]{1,64}[: ][^$#%\]]{0,200}\]?[$#%]|(?:ba|z|da)?sh-\d[\d.]{0,8}[$#]|\$)(?: .*)?")
_WARNING_BLOCK = re.compile(
    r"WARNING:|NOTE:|By default, for Open MPI|No OpenFabrics connection schemes|A process has executed an operation involving a call to")
# A sentence about a job that is done has no other words, and no number but 0 behind an exit code.
_CLOSING_WORDS = set("""
a all allreduce all_reduce all_reduce_perf at benchmark clock code complete completed completion date done duration elapsed end ended ending end_time
epilogue exit exited exiting finish finished for in is job job_id jobid log lsf min minutes ms nccl nccl-tests of ok on output passed pbs rc result
results return returned run runtime s script sec seconds slurm srun status step success successful successfully summary test tests the time took total
walltime wall was with mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday jan feb mar apr may jun jul aug sep oct
nov dec am pm utc gmt cet cest est edt pst pdt jst
""".split())
_FIGURE = re.compile(r"[\d.:,/+-]+(?:ms|s|m|h|sec|min|Z)?|\d{4}-\d\d-\d\dT\S+|\d+h\d+m\d+s|\d+m\d+(?:\.\d+)?s", re.IGNORECASE)


def learned_tag(before_header):
    """What stands before the table's header stands before all other lines, too, with other numbers in it. None where nothing does."""
    text = before_header.rstrip("# \t")
    if not text.strip() or len(text) > 300:
        return None
    return re.compile(r"\s*" + r"\s+".join(re.sub(r"\d+", r"\\d+", re.escape(word)) for word in text.split()) + r"(?!\w)")


def _bare(line, tag):
    """The line without its tags."""
    found = tag.match(line) if tag else None
    at = found.end() if found else 0
    while True:
        found = _TAG.match(line, at)
        if not found or found.end() == at:
            return line[at:].strip()
        at = found.end()


def _is_table(bare):
    """Lines of nccl-tests itself, whole."""
    words = bare.split()
    return set(words) <= _UNITS or bool(re.fullmatch(
        r"Out of bounds values\s*: *\d+ (?:OK|FAILED)|Avg bus bandwidth\s*: *\S+(?:\s+(?:OK|FAILED))?|Collective test concluded: *\S+|Using devices|"
        r"(?:size\s+count|bytes\s+N)\s+type\s[\w\s#%.-]*", bare))


def _is_said_by_a_library(line, bare):
    found = _NCCL.search(line)
    if found:
        # A communicator that was given up says so itself; one that was closed says "Destroy COMPLETE".
        return "Abort COMPLETE" not in line and not _AILING.search(line, 0, found.start())
    return any(pattern.fullmatch(bare) for pattern in _LIBRARIES)


def _is_closing(bare):
    """A sentence of a script that the job is done."""
    words = [word for word in re.split(r"[\s=\"'!()*#-]*(?:\s|=|:(?=\s|$)|$)[\s=\"'!()*#]*", bare.lower().strip("-=*# ")) if word]
    words = [word.strip(".,;:!?[]") for word in words]
    figures = [word for word in words if _FIGURE.fullmatch(word)]
    if len(words) > 16 or any(word and word not in _CLOSING_WORDS for word in words if word not in figures):
        return False
    codes = set(words) & {"code", "status", "rc", "return", "returned", "exit", "exited", "exiting"}
    return not codes or all(word.strip(".") == "0" for word in figures)


def _is_ending(bare):
    return any(pattern.fullmatch(bare) for pattern in _ENDINGS) or _is_closing(bare)


class Around:
    """The lines below the header of one table, but for its rows."""

    def __init__(self, before_header):
        self.tag = learned_tag(before_header)
        self.within, self.after = [], []

    def add(self, line, ended, row):
        """C(row): the line is what stands before a row."""
        bare = _bare(line, self.tag) if row else None
        # Somebody may have a tag that is not known here, but no row begins with what sounds like a failure.
        if not row or bare and _AILING.search(bare):
            (self.after if ended else self.within).append(line)

    def unexpected(self, followed):
        """The first line that no good run prints there, or None. C(followed): by another run in the same log."""
        return self._first(self.within, False, False) or self._first(self.after, True, followed)

    def unexpected_end(self):
        return self._first(self.after, True, False)

    def _first(self, lines, ended, lenient):
        skip = 0
        for number, line in enumerate(lines):
            if number < skip:
                continue
            bare = _bare(line, self.tag)
            if _SEPARATOR.fullmatch(bare):
                skip = max(skip, self._end_of_warning(lines, number))
                if _AILING.search(line):
                    return line
            elif _is_table(bare) or _is_said_by_a_library(line, bare) or ended and _is_ending(bare):
                continue
            elif ended and (_PROMPT.fullmatch(bare) or _PROMPT.fullmatch(line.strip())):
                lenient = True
            elif not lenient or _AILING.search(bare):
                return line
        return None

    def _end_of_warning(self, lines, number):
        """Open MPI puts a warning between two rulers: the number of the line below it. 0 where it is none, or says that something was ended."""
        if not lines[number].rstrip().endswith("-" * 40):
            return 0
        block = []
        for end in range(number + 1, min(number + 40, len(lines))):
            bare = _bare(lines[end], self.tag)
            if bare.endswith("-" * 40):
                known = next((text for text in block if text), "")
                bad = re.search(r"kill|abort|terminat|refused to die|signal|exited", " ".join(block))
                return end + 1 if _WARNING_BLOCK.match(known) and not bad else 0
            block.append(bare)
        return 0
