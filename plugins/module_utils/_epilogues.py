# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Allowed endings of the log of a good run: lines that shells, launchers, schedulers and CI systems
print after a successful command.

Every entry is a whole line. Where the line reports a result, the entry holds the good one alone:
exit code 0, C(COMPLETED), C(Done). The same line with another result is not known here, so it fails
the log.
"""

from __future__ import annotations

import re

from typing import Sequence

# If unknown words are allowed, these are still objections to the run.
AILING = re.compile(
    r"kill|abort|terminat|fatal|\bfail|error|signal|\bfault|segv|segmentation|bus "
    r"err|dumped|crash|cancel|\blost\b|\bdied?\b|\bdead\b|time ?out\b|timed out|"
    r"time limit|unreachable|\boom\b|oom[-_]|out of memory|no "
    r"space|refused|panic|exception|traceback|assert|\bbad\b|non-?zero|broken|\bhung\b|preempt|"
    r"revoked|undefined|reset by peer|closed "
    r"by|(?:exit|return|code|status|rc)\w*\W+(?:\w+\W+){0,3}[1-9]",
    re.IGNORECASE,
)

_DAYS = "mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday"
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_ZONES = "am pm utc gmt bst ist msk jst cet cest eet eest est edt cst cdt mst mdt pst pdt"
_DATE = r"(?:(?i:\b(?:%s)\b)|[\d:,.+/TZ -]){1,60}" % " ".join((_DAYS, _MONTHS, _ZONES)).replace(
    " ", "|"
)
_NAME = r"[\w.:/@-]{1,253}"

_ENDINGS = (
    # Connections and terminals.
    r"(?:Shared c|C)onnection to \S+ closed\.",
    r"logout",
    r"exit",
    r"(?:</\w+>)+",
    r"```\w*",
    r"\[exited\]",
    r"\[screen is terminating\]",
    r"\[detached(?: \(from session [\w.-]+\))?\]",
    # Jobs of bash, dash, ksh, zsh and csh. Done means exit code 0; other results are Done(1), Exit
    # 1, exit 137, Killed. The number may be missing, because it looks like a tag.
    r"(?:\[\d{1,4}\][ \t]*[+-]?|[+-])[ \t]+(?:\d{1,10}[ \t]+)?[Dd]one(?:[ \t]{2,}.*)?",
    r"\d{1,10}[ \t]+done[ \t]{2,}.*",
    r"Done[ \t]{6,}.*",
    # time of bash, zsh, csh, fish and macOS; GNU time with and without -v.
    r"(?:real|user|sys)\s+(?:\d+m)?\d+[.,]\d+s?",
    r"[\d.]+\s+real\s+[\d.]+\s+user\s+[\d.]+\s+sys",
    r"(?:.*\s)?[\d.]+s user [\d.]+s system \d+% cpu (?:[\d:]+:)?[\d.]+ total",
    r"[\d.]+u [\d.]+s [\d:.]+ [\d.]+%\s+\d+\+\d+k \d+\+\d+io \d+pf\+\d+w",
    r"Executed in\s+[\d.]+ \w+\s+fish\s+external",
    r"(?:usr|sys) time\s+[\d.]+ \w+(?:\s+[\d.]+ \w+){0,2}",
    r"[\d.]+user [\d.]+system [\d:.]+elapsed .*maxresident\)k",
    r"\d+inputs\+\d+outputs \(\d+major\+\d+minor\)pagefaults \d+swaps",
    r"(?:Command being timed|User time|System time|Percent of CPU|Elapsed|Average|Maximum "
    r"resident|Major|Minor|Voluntary|Involuntary|Swaps|File system|Socket|"
    r"Signals delivered|Page size)\b[^\n]*: \S.*",
    r"Exit status: 0",
    # script(1).
    r"Script done(?: on "
    + _DATE
    + r")?(?: \[(?:COMMAND_EXIT_CODE=\"0\"|<not executed on terminal>)\])?\.?",
    r"Script done(?:, (?:(?:output |input )?log |timing |)file is '?[\w./~+-]{1,250}'?)+\.?",
    # set -x, make, environment modules.
    r"\++ (?:echo|date|exit 0|set|wait|cd|sleep|rm|module|popd|true|:)\b.*",
    r"\++ exit",
    r"make(?:\[\d{1,3}\])?: Leaving directory .*",
    r"Unloading (?:(?:useless )?requirement: )?[\w./+ -]{1,250}",
    r"The following modules were not unloaded:",
    r"\(Use \"module --force purge\" to unload all\):",
    r"\d+\) [\w./+-]+(?:\s+\d+\) [\w./+-]+)*",
    # Slurm: srun -v, salloc, seff, sacct.
    r"salloc: Relinquishing job allocation \d+",
    (
        r"srun: (?:launch/slurm: )?(?:_task_finish: )?(?:\S+ )*?(?:tasks? ?[\d,\[\]-]*: "
        r"Completed|task exit notification \S+ .*\(status=0x0000\)\.?)"
    ),
    r"srun: (?:launch/slurm: )?_task_finish: (?:\S+ )*?\(status=0x0000\)\.?",
    r"srun: Complete StepId=[\d.]+ received",
    r"State: (?:COMPLETED|COMPLETING|RUNNING) \(exit code 0\)",
    r"WARNING: Efficiency statistics (?:may|can) be misleading for RUNNING jobs\.",
    r"JobID(?:\s+[A-Z][A-Za-z]+){1,20}",
    r"\d[\d_.]*(?:\.(?:batch|extern))?(?:\s+[\w.:+,-]+){1,16}\s+(?:COMPLETED|COMPLETING|RUNNING)(?:\s+[\w.:+,-]+)*\s+0:0",
    # PALS and ALPS, PBS, OAR.
    r"Application [\w-]+ resources: utime[ =~].*",
    r"(?:Begin|End) PBS (?:Epilogue|Prologue)(?: " + _DATE + r")?(?: " + _NAME + r")?",
    r"Resource Usage on " + _DATE + r":",
    r"qsub: job \d\S{0,80} completed",
    # LSF, below the job's output. Its report is a block, see lsf_report().
    r"PS:",
    r"Read file <[^>]*> for stderr output of this job\.",
    r"The output \(if any\) (?:is above this job summary|follows)[.:]",
    r"Resource usage summary:",
    r"<<(?:Job is finished|ssh exited|bsub exited)>>",
    # Kubernetes, Helm.
    r"[\w./-]{1,80} \"" + _NAME + r"\" deleted(?: from " + _NAME + r"(?: namespace)?)?",
    r"[\w.-]{1,80}/" + _NAME + r" (?:condition met|deleted)",
    r"Session ended, resume using 'kubectl attach [^']{1,250}' command when the pod is running",
    r"NAME\s+(?:READY|STATUS|COMPLETIONS|DESIRED|AGE)(?:\s+[A-Z][A-Z ()-]*)?",
    r"(?:"
    + _NAME
    + r"\s+){1,2}(?P<pods>\d+)/(?P=pods)\s+(?:Running|Completed|Succeeded)\s+0\s+\d\w*.*",
    r"(?:" + _NAME + r"\s+){1,2}0/\d+\s+(?:Completed|Succeeded)\s+0\s+\d\w*.*",
    r"(?:" + _NAME + r"\s+){1,2}(?:Complete\s+)?(?P<jobs>\d+)/(?P=jobs)\s+\d\w*\s+\d\w*",
    r"release \"" + _NAME + r"\" uninstalled",
    # Docker, compose, podman, systemd-run.
    _NAME + r" exited with code 0",
    r"(?:[^\w\s]\s+)?(?:Container|Network|Volume) \"?"
    + _NAME
    + r"\"?\s+(?:Stopping|Stopped|Removing|Removed)(?:\s+[\d.]+m?s)?",
    r"(?:Stopping|Removing) (?:network |volume )?" + _NAME + r"\s*\.\.\.(?:\s*done)?",
    r"Removing (?:network|volume) " + _NAME,
    r"\[\+\] (?:\w+ )?(?P<steps>\d+)/(?P=steps)(?:\s.*)?",
    r"Gracefully stopping\.\.\. \(press Ctrl\+C again to force\)",
    r"Finished with result: success",
    r"Main processes terminated with: code=exited(?:/|, ?)status=0(?:/SUCCESS)?",
    (
        r"(?:Service runtime|CPU time consumed|Memory peak|IO bytes (?:read|written)|IP traffic "
        r"(?:received|sent)):? .*"
    ),
    # GitHub Actions, GitLab CI, Jenkins.
    r"##\[endgroup\]",
    r"::endgroup::",
    r"Cleaning up orphan processes",
    r"Evaluate and set job outputs",
    r"Set output '[\w-]+'",
    r"Complete job name: .*",
    r"section_(?:start|end):\d+:[\w.-]+(?:\[[\w=,]+\])?",
    r"Cleaning up project directory and file based variables",
    r"Job succeeded",
    r"Uploading artifacts(?: for successful job|\.\.\.)?",
    r"Saving cache(?: for successful job)?",
    r"Finished: SUCCESS",
    (
        r"\[Pipeline\] (?:[{}]|// ?\w+|End of "
        r"Pipeline|sh|echo|stage|node|script|dir|ws|wrap|withEnv|withCredentials|archiveArtifacts|junit|cleanWs|deleteDir)"
    ),
    r"(?:Training|Billable) seconds: \d+",
    # ctest, TAP, nsys.
    r"\d+/\d+ Test +#\d+: [\w.-]+ \.*\s+Passed\s+[\d.]+ sec",
    r"100% tests passed, 0 tests failed out of \d+",
    r"Total Test time \(real\) =\s+[\d.]+ sec",
    r"ok \d+(?: - [\w .:/-]*)?",
    r"1\.\.\d+",
    r"Generat(?:ing|ed)(?::| '[\w./-]{1,250}')",
    r"(?:\[\d+/\d+\] )?\[[=\d%\s]{1,80}\]? ?[\w./-]{0,250}\.(?:nsys-rep|qdrep|sqlite)",
    r"/[\w./-]{1,250}\.(?:nsys-rep|qdrep|sqlite)",
)
_ENDING = re.compile("|".join("(?:%s)" % pattern for pattern in _ENDINGS))
# After the name of a field, any value without words of failure is allowed. Exit codes are
# sentences, see _is_closing().
_FIELDS = {
    name: True
    for name in (
        # PBS and Torque.
        "job id",
        "user id",
        "group id",
        "session",
        "session id",
        "resource list",
        "resources used",
        "resource limits",
        "limits",
        "queue",
        "queue name",
        "node",
        "nodes",
        "project",
        "service units",
        "ncpus requested",
        "ncpus used",
        "ngpus requested",
        "gpu utilisation",
        "gpu memory used",
        "cpu time used",
        "memory requested",
        "memory used",
        "walltime requested",
        "walltime used",
        "jobfs requested",
        "jobfs used",
        # seff.
        "array job id",
        "cluster",
        "user/group",
        "cores",
        "cores per node",
        "cpu utilized",
        "cpu efficiency",
        "job wall-clock time",
        "memory utilized",
        "memory efficiency",
        "gpu efficiency",
        "gpu memory efficiency",
        # LSF.
        "cpu time",
        "max memory",
        "average memory",
        "total requested memory",
        "delta memory",
        "max swap",
        "max processes",
        "max threads",
        "run time",
        "turnaround time",
    )
}
# Words of users' scripts.
_FIELDS.update({"job name": False, "account": False, "account string": False})
_FIELD = re.compile(r"([A-Za-z][A-Za-z/ -]{0,29}?)\s*:(?:\s+|$)")

# A sentence about a finished job has no other words.
_CLOSING_WORDS = set(
    (
        _DAYS
        + " "
        + _MONTHS
        + " "
        + _ZONES
        + """
 a after all allreduce all_reduce all_reduce_perf an and at batch benchmark been bye cleanup clock code complete completed completes completion
 date done duration elapsed end ended ending ends end_time epilog epilogue everything exit exit_code exit_status exitcode exited exiting exits exitstatus
 finalized finalizing finish finished finishes finishing for from goodbye h has have host hostname hour hours hrs id image in info is it job job_id jobid jobs
 log lsf measurement min mins minute minutes ms my nccl nccl-tests node nodes normally now of ok on our output overall pass passed passes pbs pod process
 processes program qsub rank ranks rc result results ret retcode return return_code returncode returned returns run runs runtime rv s sbatch script
 sec secs second seconds sge slurm srun state stats status status_code step steps success successful successfully succeeded summary task tasks test tests
 that the thank thanks this time timestamp timing took total total_time used wall wall_time walltime was were with worker you z
"""
    ).split()
)
_CODES = {
    "code",
    "exit",
    "exited",
    "exiting",
    "exits",
    "exitcode",
    "exit_code",
    "exit_status",
    "exitstatus",
    "rc",
    "ret",
    "retcode",
    "return",
    "return_code",
    "returncode",
    "returned",
    "returns",
    "rv",
    "status",
    "status_code",
    "result",
}
_FILLERS = {"is", "was", "of", "with", "an", "a", "the", "value"} | _CODES
_UNITS = {
    "s",
    "sec",
    "secs",
    "second",
    "seconds",
    "ms",
    "min",
    "mins",
    "minute",
    "minutes",
    "h",
    "hour",
    "hours",
    "hrs",
    "tests",
    "ranks",
    "runs",
    "steps",
    "tasks",
    "jobs",
    "nodes",
    "processes",
}
# Words that are followed by a number.
_NUMBERED = {
    "job",
    "jobid",
    "job_id",
    "id",
    "task",
    "step",
    "process",
    "rank",
    "node",
    "pod",
    "worker",
    "test",
    "run",
    "host",
}
# A single one that has ended may have ended too early.
_PARTS = {
    "rank",
    "ranks",
    "process",
    "processes",
    "worker",
    "pod",
    "node",
    "nodes",
    "host",
    "task",
    "tasks",
}
_GOOD = {
    "pass",
    "passed",
    "passes",
    "success",
    "successful",
    "successfully",
    "succeeded",
    "ok",
    "completed",
    "complete",
    "finished",
}
# Words of failure with the opposite meaning.
_PHRASES = (
    (
        re.compile(
            r"(?<![\w.,:/-])(?:0|no|zero|without(?: any)?) "
            r"(?:errors?|failures?|failed|warnings?|problems?|issues?|skipped)\b"
            r"(?: (?:found|detected|reported|occurred))?(?!\W+\d)"
        ),
        "ok",
    ),
    (re.compile(r"\b(?:errors?|failures?|failed|warnings?|skipped) ?[:=] ?0(?![\w.:/-])"), "ok"),
    (re.compile(r"\b(?:terminated|exited|ended) normally\b"), "completed"),
    (re.compile(r"\bclean(?:ing|ed)?[ -]?(?:it )?up\b"), "cleanup"),
    (
        re.compile(
            r"\b(?:removing|deleting|cleanup)(?: of)?(?: (?:the|all|any|local))?(?: "
            r"(?:temporary|temp|tmp|scratch|intermediate|old))? "
            r"(?:files?|folders?|director(?:y|ies)|data|space|containers?)\b"
        ),
        "cleanup",
    ),
    (re.compile(r"\bout of (?=\d)"), "of "),
)
_TOKEN = re.compile(r"[a-z_][\w./-]*|[+-]?\d[\w.,:/%+-]*|[^\s\w]")
_PUNCTUATION = set(
    "-=*#%:;,.!()[]\"'<>|&~_\u2013\u2014\u2500\u2550\u2713\u2714\u2705\U0001f389\U0001f3c1"
)
_FIGURE = re.compile(
    r"[+-]?[\d.:,/+-]+(?:ms|s|m|h|sec|min|z|%)?|\d{4}-\d\d-\d\dt\S+|\d+h\d+m(?:\d+(?:\.\d+)?s)?|\d+m\d+(?:\.\d+)?s"
)
_ZERO = re.compile(r"0|0:0|0x0+|0/success|000")
# In the name of a host or a job, which has characters that no word of a sentence has.
_PROPER = re.compile(r"(?=[\w./-]*[\d_.-])(?!rc|exit|code|sig|stat|err|ret)[a-z][\w.-]{1,100}")


_LSF_HEAD = re.compile(
    r"Subject: Job \d+(?:\[\d+\])?: <.*> (?:in cluster <[^>]*> )?Done|Job <.*> was submitted "
    r"from host <[^>]*> by user <[^>]*>.*|"
    r"Job was executed on host\(s\) <[^>]*>.*|<[^>]*>(?: was used as the (?:home|working) "
    r"directory\.)?|(?:Started|Terminated|Results reported) (?:at|on) .*"
)


def is_ending(text: str) -> bool:
    """Whether a line below the table is allowed at the end of a good run."""
    return bool(_ENDING.fullmatch(text)) or _is_fields(text) or _is_closing(text)


def _is_fields(text: str) -> bool:
    """Lines such as C(Walltime requested: 00:10:00   Walltime Used: 00:00:41)."""
    parts = re.split(r"\s{3,}(?=[A-Za-z][A-Za-z/ -]{0,29}:)", text[:1000])
    return all(_is_field(part) for part in parts)


def _is_field(text: str) -> bool:
    """Whether a text is a known field without words of failure, or an exit code of 0."""
    found = _FIELD.match(text)
    if not found:
        return False
    judged = _FIELDS.get(found.group(1).lower())
    if judged is not None and not (judged and AILING.search(text)):
        return True
    exit_code = r"(?:Job )?Exit (?:Code|Status|Value)\s*:\s+0(?: \(\w+\))?"
    return re.fullmatch(exit_code, text.strip(), re.IGNORECASE) is not None


def _words(text: str) -> list[str] | None:
    """Words and figures of a sentence; None if there are too many."""
    text = text.lower()
    for pattern, plain in _PHRASES:
        text = pattern.sub(plain, text)
    words: list[str] = []
    for token in _TOKEN.findall(text):
        token = token.rstrip(".,:;/-")
        if not token or token in _PUNCTUATION:
            continue
        # end-of-job, but not exit-code, which systemd prints for every code except 0.
        parts = re.split("[-/]", token)
        is_usual = set(parts) <= _CLOSING_WORDS - _CODES and token not in _CLOSING_WORDS
        words += parts if is_usual else [token]
        if len(words) > 20:
            return None
    return words


def _is_closing(text: str) -> bool:
    """A sentence of a script that the job has finished, without an exit code other than 0."""
    words = _words(text) if len(text) <= 300 else None
    if not words:
        return words == []
    figures = {
        place
        for place, word in enumerate(words)
        if _FIGURE.fullmatch(word) or _ZERO.fullmatch(word)
    }
    if not all(place in figures or _is_usual(words, place) for place in range(len(words))):
        return False
    if _tells_an_end(words) and not _tells_a_good_end(words, figures):
        return False
    return _codes_are_zero(words, figures) and _counts_are_full(words)


def _is_usual(words: Sequence[str], place: int) -> bool:
    """Whether a word is usual in such a sentence, or the name of a host or a job."""
    word = words[place]
    if word in _CLOSING_WORDS:
        return True
    named = place and words[place - 1] in ("on", "host", "hostname", "node", "job", "from")
    return bool(named and _PROPER.fullmatch(word) and not AILING.search(word))


def _tells_an_end(words: Sequence[str]) -> bool:
    """Whether a part of the job has ended, which may have been too early."""
    ends = {"exit", "exited", "exits", "exiting", "ended", "ends", "end"}
    return bool(_PARTS & set(words) and ends & set(words))


def _tells_a_good_end(words: Sequence[str], figures: set[int]) -> bool:
    """Whether a sentence says that the end was good: by a word, or by a code of 0."""
    if _GOOD & set(words):
        return True
    return any(
        _ZERO.fullmatch(words[place]) and words[place - 1] in _FILLERS for place in figures if place
    )


def _codes_are_zero(words: list[str], figures: set[int]) -> bool:
    """Whether each number that may be an exit code is 0. C(figures) are the places of numbers."""
    plain = [place for place in sorted(figures) if re.fullmatch(r"[+-]?\d{1,8}", words[place])]
    if len(words) == 1 and plain:
        # As printed by `echo $?` and docker wait.
        return words == ["0"]
    codes = [place for place, word in enumerate(words) if word in _CODES]
    for place in codes:
        after = place + 1
        while after < len(words) and words[after] in _FILLERS:
            after += 1
        if after in figures and not _ZERO.fullmatch(words[after]):
            return False
    return not codes or all(_is_no_code(words, place) for place in plain)


def _is_no_code(words: Sequence[str], place: int) -> bool:
    """Whether a number in a sentence about exit codes is 0, or counts or names something else."""
    before = words[place - 1] if place else ""
    after = words[place + 1] if place + 1 < len(words) else ""
    if words[place] == "0" or before in _NUMBERED or after in _UNITS:
        return True
    months = set(_MONTHS.split())
    if not set(words) & months:
        return False
    # A part of a date.
    return before in months or after in months or bool(re.fullmatch(r"20\d\d", words[place]))


def _counts_are_full(words: Sequence[str]) -> bool:
    """Neither "0 tests passed" nor "3 of 4 passed"."""
    if not _GOOD & set(words):
        return True
    text = " ".join(words)
    for part, whole in re.findall(
        r"(?<![\w/:.-])(\d{1,6})(?: ?/ ?| of )(\d{1,6})(?![\w/:.-])", text
    ):
        if int(part) != int(whole):
            return False
    return not re.search(
        (
            r"(?<![\w.:-])0 (?:tests? |runs? |jobs? |ranks? "
            r")?(?:%s)\b|\b(?:passed|pass|succeeded|successful|completed) 0(?![\w.:])"
        )
        % "|".join(sorted(_GOOD - {"ok"})),
        text,
    )


def lsf_report(lines: Sequence[str], number: int) -> int:
    """The report that LSF appends to a job's output: the number of the line below its verdict; 0
    without a report, or for a failure.

    The report contains the job's script between two rulers, with arbitrary lines.
    """
    if not re.match(r"Sender: LSF System <", lines[number]):
        return 0
    at = number + 1
    while at < len(lines) and at < number + 4000 and lines[at] != "Your job looked like:":
        if lines[at] and not _LSF_HEAD.fullmatch(lines[at]):
            return 0
        at += 1
    for end in range(at + 1, min(len(lines), at + 20000)):
        if re.fullmatch(r"-{40,}", lines[end]):
            verdict = next(
                (place for place in range(end + 1, min(end + 5, len(lines))) if lines[place]), None
            )
            if verdict is not None and lines[verdict] == "Successfully completed.":
                return verdict + 1
    return 0
