"""Slurm's mails: the real program with a stand-in for Slurm and for sendmail, which keeps its
arguments and its input.
"""

from __future__ import annotations

import email
import email.policy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from role_variables import role_variable

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = ROOT / "roles/slurm_controller/files/mail.py"
ENDED = "Slurm Job_id=7 Name=first Failed, Run time 00:01:00, FAILED, ExitCode 1"
COMMENT = "trainyard: failed: worker 3 on host gpu-02 failed first: the GPU has too little memory. Use a smaller batch"
PAGE = "https://hub.example.org/services/jobs/job/"


class Mails:
    def __init__(self, folder):
        self.folder = folder
        self.settings = {"program": self.program("sendmail"), "job_page": PAGE}
        self.answer(COMMENT)

    def program(self, name, end="exit 0"):
        path = self.folder / name
        keep = 'cat > "%s/input"; printf "%%s\\n" "$@" > "%s/arguments"\n' % (
            self.folder,
            self.folder,
        )
        path.write_text("#!/bin/sh\n" + keep + end + "\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def answer(self, comment, end="exit 0"):
        """squeue with the mark of its caller after the comment."""
        (self.folder / "comment").write_text(comment, encoding="utf-8")
        path = self.folder / "squeue"
        path.write_text(
            '#!/bin/sh\nprintf "%%s\\n" "$@" > "%s/asked"\ncat "%s/comment"\nfor word; do :; done\nprintf "%%s\\n" "${word##*:}"\n%s\n'
            % (self.folder, self.folder, end),
            encoding="utf-8",
        )
        path.chmod(0o755)

    def send(self, subject=ENDED, address="anna", given="", **environment):
        config = self.folder / "mail.json"
        config.write_text(json.dumps(self.settings), encoding="utf-8")
        return subprocess.run(
            [sys.executable, str(PROGRAM), "-s", subject, address],
            env={
                "PATH": "%s:/usr/bin:/bin" % self.folder,
                "TRAINYARD_MAIL_CONFIG": str(config),
                **environment,
            },
            # slurmctld gives /dev/null, which ends at once, too.
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    def sent(self):
        """The message, and the arguments of the program that has sent it."""
        data = (self.folder / "input").read_bytes()
        arguments = (self.folder / "arguments").read_text(encoding="utf-8").splitlines()
        return email.message_from_bytes(data, policy=email.policy.default), arguments

    def body(self):
        return self.sent()[0].get_content()


@pytest.fixture
def mails(tmp_path):
    return Mails(tmp_path)


def test_a_text_that_is_given_is_sent_as_it_is(mails):
    """The warning of a job whose GPUs are idle has a text of its own."""
    text = "none of the 2 GPUs of job 7 has been used for 1 minute\n"
    done = mails.send("Job 7, train: idle GPUs", given=text.replace("none", "\x1bnone"))
    text = "?" + text
    assert (done.returncode, done.stderr) == (0, "")
    message, arguments = mails.sent()
    assert (message["Subject"], arguments) == ("Job 7, train: idle GPUs", ["-oi", "anna"])
    assert message.get_content() == text
    assert not (mails.folder / "asked").exists()


def test_a_job_that_failed_has_its_cause_its_fix_and_its_page(mails):
    done = mails.send(SLURM_JOB_ID="7", SLURM_JOB_STATE="FAILED")
    assert (done.returncode, done.stderr) == (0, "")
    message, arguments = mails.sent()
    assert arguments == ["-oi", "anna"]
    assert (message["To"], message["Subject"]) == ("anna", ENDED)
    assert message["Auto-Submitted"] == "auto-generated"
    assert message.get_content().splitlines() == [
        ENDED + ".",
        "",
        "Job 7: failed",
        "",
        "The job says: worker 3 on host gpu-02 failed first: the GPU has too little memory. Use a smaller batch",
        "",
        "The job: https://hub.example.org/services/jobs/job/7",
        "",
        "On a login host: trainyard show 7",
    ]
    assert "--jobs=7" in (mails.folder / "asked").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "subject, number",
    [
        (ENDED, "7"),
        ("Slurm Array Task Job_id=7_3 (9) Name=a Ended, Run time 00:00:01, FAILED", "9"),
        ("Slurm Array Summary Job_id=7_* (7) Name=a Ended, Mixed, MaxSignal [9]", "7"),
        ("Slurm Job_id=7 Name=Job_id=8 Began, Queued time 00:00:01", "7"),
        ("no job", ""),
    ],
)
def test_the_number_without_variables(mails, subject, number):
    """Releases of Slurm differ in what they pass on."""
    assert mails.send(subject).returncode == 0
    assert ("trainyard show %s" % number in mails.body()) is bool(number)


@pytest.mark.parametrize(
    "subject, state, said",
    [
        ("Slurm Job_id=7 Name=a Began, Queued time 00:00:01", "RUNNING", None),
        ("Slurm Job_id=7 Name=a Ended, Run time 00:00:01, COMPLETED, ExitCode 0", "", None),
        ("Slurm Job_id=7 Name=a Failed, Run time 00:00:01, TIMEOUT", "", "the GPU has too little"),
    ],
)
def test_only_a_job_that_failed_has_the_cause_of_its_comment(mails, subject, state, said):
    mails.send(subject, **({"SLURM_JOB_STATE": state} if state else {}))
    assert ("the GPU has too little" in mails.body()) is bool(said)


@pytest.mark.parametrize(
    "state, said",
    [
        ("TIMEOUT", "reached its time limit. Raise max_minutes"),
        ("OUT_OF_MEMORY", "Raise worker_memory"),
        ("NODE_FAIL", "Submit the job again"),
        ("FAILED", ""),
    ],
)
def test_an_end_that_the_job_did_not_see(mails, state, said):
    mails.answer("trainyard")
    mails.send("Slurm Job_id=7 Name=a Failed, Run time 00:00:01, " + state)
    assert said in mails.body() and "trainyard\n\n" not in mails.body()


@pytest.mark.parametrize(
    "state, word",
    [("COMPLETED", "done"), ("OUT_OF_MEMORY", "out of memory"), ("PREEMPTED", "preempted")],
)
def test_a_mail_has_the_words_of_the_command(mails, state, word):
    """Slurm's subject stays beside them."""
    mails.send("Slurm Job_id=7 Name=a Ended, Run time 00:00:01, %s, ExitCode 0" % state)
    assert "Job 7: %s" % word in mails.body().splitlines()
    client = (ROOT / "roles/jobs/files/_slurm_client.py").read_text(encoding="utf-8")
    table = re.search(r"^STATES = (\{.*?^\})", client, re.MULTILINE | re.DOTALL).group(1)
    program = PROGRAM.read_text(encoding="utf-8")
    assert "WORDS = " + table in program


@pytest.mark.parametrize("comment, end", [(COMMENT, "exit 1"), ("", "kill -9 $$")])
def test_slurm_that_does_not_answer_loses_no_mail(mails, comment, end):
    mails.answer(comment, end)
    done = mails.send()
    assert done.returncode == 0 and "squeue" in done.stderr
    assert mails.sent()[0]["Subject"] == ENDED and PAGE + "7" in mails.body()


def test_settings_that_cannot_be_read_lose_no_mail(mails):
    """The program of the host sends it then."""
    (mails.folder / "mail").write_text("", encoding="utf-8")
    found = {}
    exec(compile(PROGRAM.read_text(encoding="utf-8"), str(PROGRAM), "exec"), found)
    found["PROGRAMS"] = (mails.program("sendmail"),)
    assert found["program_of"]({}) == str(mails.folder / "sendmail")
    found["CONFIG"] = str(mails.folder / "none.json")
    assert found["read_settings"]() == {}


def test_hostile_names_stay_text(mails):
    """Names of jobs of sbatch have any character, and the comment is the person's."""
    name = "x\nBcc: all@example.org\r\nX-Evil: 1\x1b[2J"
    mails.answer("trainyard: failed: a\nBcc: all@example.org\n.\nb")
    subject = "Slurm Job_id=7 Name=%s Failed, Run time 00:00:01, FAILED, ExitCode 1" % name
    assert mails.send(subject).returncode == 0
    message, arguments = mails.sent()
    assert sorted(message.keys()) == [
        "Auto-Submitted",
        "Content-Transfer-Encoding",
        "Content-Type",
        "MIME-Version",
        "Subject",
        "To",
    ]
    assert "Name=x?Bcc: all@example.org??X-Evil: 1?[2J Failed" in message["Subject"]
    assert "a?Bcc: all@example.org?.?b" in mails.body() and arguments == ["-oi", "anna"]
    # A very long one, in letters of any language, is one header, too.
    mails.send("Slurm Job_id=7 Name=%s Began" % ("\u00e4\u00df" * 4000))
    assert mails.sent()[0]["Subject"].startswith("Slurm Job_id=7 Name=\u00e4\u00df")


@pytest.mark.parametrize(
    "address", ["-oQ/tmp", "a b", "a,b", "a\nb", "", "|touch /tmp/x", "/etc/passwd", "a" * 300]
)
def test_an_address_that_is_none_sends_nothing(mails, address):
    done = mails.send(address=address)
    assert done.returncode == 1 and "is not a mail address; nothing was sent" in done.stderr
    assert not (mails.folder / "input").exists()


def test_another_program_is_called_as_slurm_calls_mail(mails):
    mails.settings["program"] = mails.program("bsd-mailx")
    mails.send(address="anna@example.org")
    assert (mails.folder / "arguments").read_text(encoding="utf-8").splitlines() == [
        "-s",
        ENDED,
        "anna@example.org",
    ]
    assert "the GPU has too little memory" in (mails.folder / "input").read_text(encoding="utf-8")


def test_without_an_address_of_the_portal_there_is_no_link(mails):
    mails.settings["job_page"] = ""
    mails.send()
    assert "https" not in mails.body() and "trainyard show 7" in mails.body()


def test_a_failure_of_the_program_is_one_of_the_mail(mails):
    mails.settings["program"] = mails.program("sendmail", "exit 75")
    assert mails.send().returncode == 75
    mails.settings["program"] = str(mails.folder / "none")
    done = mails.send()
    assert done.returncode == 1 and "set jobs_mail_program" in done.stderr


def test_the_program_needs_nothing_of_this_collection():
    """A mail is not lost because of a file that is missing."""
    assert "sys.path" not in PROGRAM.read_text(encoding="utf-8")
    assert os.access(PROGRAM, os.R_OK)


@pytest.mark.parametrize(
    "given, page",
    [
        ({}, ""),
        ({"jupyterhub_enabled": True}, ""),
        ({"jupyterhub_url": "https://hub.example.org"}, ""),
        ({"jupyterhub_enabled": True, "jupyterhub_url": "https://hub.example.org/"}, PAGE),
        (
            {
                "jupyterhub_enabled": "true",
                "jupyterhub_url": "https://hub.example.org",
                "jupyterhub_subdomains": True,
            },
            "https://jobs--service.hub.example.org/services/jobs/job/",
        ),
    ],
)
def test_the_address_of_the_portal(given, page):
    found = role_variable("slurm_controller", "__slurm_controller_mail_settings", **given)
    assert found == {"program": "", "job_page": page}
    given = dict(given, jobs_mail_program="/opt/sendmail")
    found = role_variable("slurm_controller", "__slurm_controller_mail_settings", **given)
    assert found["program"] == "/opt/sendmail"


def test_slurm_has_the_program_where_the_site_sends_mails():
    def options(**given):
        return role_variable("slurm", "__slurm_options", **given)

    path = "/usr/local/lib/trainyard/slurm/mail"
    assert options(slurm_options={}) == {}
    assert options(slurm_options={}, jobs_mail=False) == {}
    assert options(slurm_options={"A": "b"}, jobs_mail=True) == {"MailProg": path, "A": "b"}
    own = {"MailProg": "/usr/bin/mail"}
    assert options(slurm_options=own, jobs_mail="true") == own
    (program, _settings) = role_variable(
        "slurm_controller", "__slurm_controller_mail_paths", role_path=str(PROGRAM.parents[1])
    )
    assert program == path


def test_the_program_is_there_while_slurm_runs_it():
    """It is installed before slurm.conf names it, and removed after slurmctld has read one without it."""
    tasks = yaml.safe_load((PROGRAM.parents[1] / "tasks/main.yml").read_text(encoding="utf-8"))
    names = [task["name"] for task in tasks]
    configured = names.index("Configure database, accounting and scheduler")
    installed = names.index("Install the program that sends the mails of jobs")
    removed = names.index("Remove the program that sends the mails of jobs")
    assert installed < configured < removed
    [paths] = tasks[removed]["trainyard.gpu.managed_files"].values()
    assert paths == "{{ __slurm_controller_mail_paths }}"
    assert "absent" not in tasks[installed]["trainyard.gpu.managed_files"]
    steps = yaml.safe_load((PROGRAM.parents[1] / "tasks/configure.yml").read_text(encoding="utf-8"))
    assert steps[-1]["name"] == "Reload the settings of the running daemons"


def test_words_of_a_job_are_no_command_of_mail(mails):
    """GNU mailutils obeys ~! at the begin of a line. The person writes the comment of a job."""
    mails.settings["program"] = mails.program("mail")
    mails.answer("trainyard: failed: ~!touch /tmp/owned")
    assert mails.send().returncode == 0
    text = (mails.folder / "input").read_text(encoding="utf-8")
    assert "The job says: ~!touch /tmp/owned\n" in text
    assert [line for line in text.splitlines() if line.startswith("~")] == []
    assert mails.send("~!id Job_id=7 Name=x Began").returncode == 0
    assert (mails.folder / "input").read_text(encoding="utf-8").startswith(" ~!id Job_id=7")


def test_a_name_with_an_encoded_word_stays_a_name(mails):
    """Pythons without the correction of CVE-2024-6923 write its decoded line break as it is."""
    subject = "Slurm Job_id=7 Name==?utf-8?q?x=0AFrom:_root@site=0A=0Abody?= Began"
    assert mails.send(subject).returncode == 0
    head = (mails.folder / "input").read_text(encoding="utf-8").partition("\n\n")[0]
    lines = head.splitlines()
    assert lines[1] == "Subject: " + subject.replace("=?", "= ?")
    assert [line.partition(":")[0] for line in lines] == [
        "To",
        "Subject",
        "Auto-Submitted",
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
    ]
