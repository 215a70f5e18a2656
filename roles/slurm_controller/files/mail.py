# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""mail -s SUBJECT ADDRESS, as Slurm's MailProg: sends Slurm's mail about a job with its cause, what
to do, and the address of its page. A text on standard input, as other programs of ours give it, is
sent as it is.

slurmctld starts it as its own user, which cannot read the folders of people. The job itself has
written why it failed into Slurm's comment of it (roles/jobs/files/job.py). What is not known is
left out: the mail of Slurm is sent in any case.
"""

from __future__ import annotations

import email.message
import email.policy
import json
import os
import re
import select
import subprocess
import sys
import time

CONFIG = os.environ.get("TRAINYARD_MAIL_CONFIG") or "/etc/trainyard/mail.json"
#: Tried in this order if the site names none.
PROGRAMS = ("/usr/sbin/sendmail", "/usr/bin/mail", "/usr/bin/mailx")
#: Seconds for an answer of Slurm, and for the program that sends.
ASK_SECONDS, SEND_SECONDS = 15, 120
#: Seconds and bytes for a text on standard input. slurmctld gives none.
GIVEN_SECONDS, MOST_GIVEN = 5, 65536
#: Begin of the comment of a job that failed.
FAILED = "trainyard: failed: "
#: Characters of a comment that a mail has, and of a subject.
MOST, MOST_SUBJECT = 1000, 500
#: Slurm's states in the words of the command trainyard, as roles/jobs/files/_slurm_client.py has
#: them.
WORDS = {
    "pending": "waiting",
    "configuring": "starting",
    "completing": "ending",
    "completed": "done",
    "cancelled": "stopped",
    "timeout": "out of time",
    "out_of_memory": "out of memory",
    "node_fail": "host failed",
    "boot_fail": "host failed",
    "deadline": "out of time",
    "requeue_hold": "held",
}
#: Ends that the program of a job did not see, by Slurm's name of the state.
STATES = {
    "TIMEOUT": (
        "The job reached its time limit. Raise max_minutes, or let it write checkpoints and begin "
        "from the last one."
    ),
    "OUT_OF_MEMORY": (
        "The job used more memory than it had requested. Raise worker_memory, or use smaller "
        "batches and fewer workers that load data."
    ),
    "NODE_FAIL": (
        "A host of the job failed. Submit the job again with trainyard clone; other hosts take it."
    ),
    "BOOT_FAIL": (
        "A host of the job did not start. Submit the job again with trainyard clone; other hosts "
        "take it."
    ),
    "DEADLINE": (
        "The job could not end before its deadline. Submit it with a later one, or with a shorter "
        "time limit."
    ),
    "PREEMPTED": (
        "A job with a higher priority took its place. A preemptible job is queued again by itself."
    ),
}


def one_line(text: str, most: int) -> str:
    """Return a text of people as a part of one line, without characters that cannot be printed."""
    shown = ""
    for character in text[:most]:
        shown += character if character.isprintable() else "?"
    return shown


def number_of(subject: str, environment: dict[str, str]) -> str:
    """Return the number of the job that a mail is about, empty if it has none.

    Releases before 22.05 have no variables.
    """
    number = environment.get("SLURM_JOB_ID", "")
    if re.fullmatch("[0-9]{1,18}", number):
        return number
    # Job_id=7, or of an array Job_id=7_3 (9) and Job_id=7_* (7). The name of the job comes later.
    match = re.search(r"\bJob_id=([0-9]{1,18})(?:_\S+ \(([0-9]{1,18})\))?", subject)
    return (match.group(2) or match.group(1)) if match else ""


def state_of(subject: str, environment: dict[str, str]) -> str:
    """Return Slurm's name of the state of the job, empty if it is not known."""
    match = re.search(r", ([A-Z_]+)(?:, ExitCode [0-9:]+)?$", subject)
    return environment.get("SLURM_JOB_STATE", "") or (match.group(1) if match else "")


def comment_of(number: str) -> str:
    """Return Slurm's comment of a job. OSError, subprocess.SubprocessError: Slurm does not
    answer.
    """
    mark = "t" + os.urandom(8).hex()
    command = ["squeue", "--all", "--noheader", "--states=all", "--jobs=" + number]
    done = subprocess.run(
        [*command, "--Format=Comment:" + mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=ASK_SECONDS,
        check=True,
        env=dict(os.environ, PATH=os.environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin"),
    )
    return done.stdout.decode("utf-8", "replace").partition(mark)[0]


def reason_of(comment: str, state: str) -> str:
    """Return why a job failed and what to do, empty if it is not known.

    A job that runs again has the comment of its former end.
    """
    if comment.startswith(FAILED) and (state == "FAILED" or state in STATES):
        # People can write it, and choose the address: the mail says whose words these are.
        return "The job says: " + one_line(comment[len(FAILED) :], MOST)
    return STATES.get(state, "")


def text_of(subject: str, number: str, state: str, reason: str, page: str) -> str:
    """Return the text of a mail."""
    parts = [one_line(subject, MOST_SUBJECT) + "."]
    if number and state:
        known = state.lower()
        word = WORDS.get(known, known.replace("_", " "))
        parts.append("Job %s: %s" % (number, one_line(word, MOST)))
    if reason:
        parts.append(reason)
    if number and page:
        parts.append("The job: %s%s" % (page, number))
    if number:
        parts.append("On a login host: trainyard show %s" % number)
    return "\n\n".join(parts) + "\n"


def message_of(subject: str, address: str, text: str) -> bytes:
    """Return a mail with its headers.

    A name of people cannot become a header: no line break is left, and no encoded word, which the
    policy would decode.
    """
    message = email.message.EmailMessage(email.policy.SMTP.clone(linesep="\n", max_line_length=998))
    message["To"] = address
    message["Subject"] = one_line(subject, MOST_SUBJECT).replace("=?", "= ?")
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return bytes(message)


def program_of(settings: dict) -> str:
    """Return the program that sends, empty if the host has none."""
    named = settings.get("program")
    for path in [named] if named else PROGRAMS:
        if os.access(path, os.X_OK):
            return str(path)
    return ""


def send(program: str, subject: str, address: str, text: str) -> int:
    """Send a mail. Return the exit code of the program."""
    if os.path.basename(program) == "sendmail":
        command, data = [program, "-oi", address], message_of(subject, address, text)
    else:
        command = [program, "-s", one_line(subject, MOST_SUBJECT), address]
        # mail(1) of GNU mailutils obeys a line that begins with ~! also without a terminal.
        data = re.sub("^~", " ~", text, flags=re.MULTILINE).encode()
    return subprocess.run(command, input=data, timeout=SEND_SECONDS, check=False).returncode


def explained(subject: str, environment: dict[str, str], settings: dict) -> str:
    """Return the text of a mail, with what is known of its job."""
    number, state = number_of(subject, environment), state_of(subject, environment)
    comment = ""
    try:
        comment = comment_of(number) if number else ""
    except (OSError, subprocess.SubprocessError) as error:
        print("trainyard: squeue: %s" % error, file=sys.stderr)
    page = settings.get("job_page")
    reason = reason_of(comment, state)
    return text_of(subject, number, state, reason, page if isinstance(page, str) else "")


def given_text() -> str:
    """Return the text on standard input without characters that cannot be printed, empty if there
    is none.
    """
    if sys.stdin is None:
        return ""
    found, deadline = b"", time.monotonic() + GIVEN_SECONDS
    while len(found) < MOST_GIVEN:
        left = max(0.0, deadline - time.monotonic())
        ready, _writable, _failed = select.select([sys.stdin], [], [], left)
        part = os.read(sys.stdin.fileno(), MOST_GIVEN - len(found)) if ready else b""
        if not part:
            break
        found += part
    lines = found.decode("utf-8", "replace").splitlines()
    return "".join([one_line(line, MOST_GIVEN) + "\n" for line in lines])


def read_settings() -> dict:
    """Return what the site has set.

    Without it, the mail of Slurm is sent by the program of the host.
    """
    try:
        with open(CONFIG, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError) as error:
        print("trainyard: %s: %s" % (CONFIG, error), file=sys.stderr)
        return {}
    return found if isinstance(found, dict) else {}


def main(arguments: list[str]) -> int:
    """Send the mail that the arguments of mail(1) describe."""
    if len(arguments) != 3 or arguments[0] != "-s":
        print("usage: mail -s SUBJECT ADDRESS", file=sys.stderr)
        return 2
    subject, address = arguments[1:]
    # People choose it by --mail-user. It must be no option of the program that sends, and no second
    # address.
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+@%=-]{0,253}", address):
        print("trainyard: %r is not a mail address; nothing was sent" % address, file=sys.stderr)
        return 1
    settings = read_settings()
    program = program_of(settings)
    if not program:
        print(
            (
                "trainyard: no program sends mails on this host; install one that has "
                "/usr/sbin/sendmail, or set jobs_mail_program"
            ),
            file=sys.stderr,
        )
        return 1
    text = given_text() or explained(subject, dict(os.environ), settings)
    return send(program, subject, address, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
