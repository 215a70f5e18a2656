# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sbatch script of a job: its options, and that no value of a person becomes a line of it."""

from __future__ import annotations

import shlex
import subprocess

import _batch
import _job_file
import _job_text
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PLACE = {"output": "/data1/share/.trainyard/jobs/anna/.out/%j.log", "workdir": "/home/anna"}
SMALL = {"name": "first", "command": "python3 train.py", "worker_image": "pytorch:2.5"}


def judged(**values):
    return _job_file.judge(
        dict(SMALL, **values),
        [{"name": "low", "priority": 0}, {"name": "high", "priority": 9, "preempts": ["low"]}],
    )


def options(**values):
    return _batch.options(judged(**values), PLACE)


def test_a_small_job():
    assert options() == [
        "--job-name=first",
        "--nodes=1",
        "--cpus-per-task=1",
        "--mem=4096M",
        "--ntasks-per-node=1",
        "--comment=trainyard",
        "--chdir=/home/anna",
        "--no-requeue",
        "--propagate=NONE",
        "--open-mode=append",
        "--output=/data1/share/.trainyard/jobs/anna/.out/%j.log",
    ]


def test_each_key_of_slurm():
    found = options(
        worker_count="2",
        worker_cpu="8",
        worker_gpu="4",
        worker_memory="16",
        worker_shared_memory="8",
        workspace_id="vision",
        priority="7",
        host_class="h100",
        max_minutes="90",
    )
    assert found[1:8] + [found[8], found[11]] == [
        "--nodes=2",
        "--cpus-per-task=8",
        "--gpus-per-node=4",
        "--qos=high",
        "--account=vision",
        "--constraint=h100",
        "--time=90",
        "--mem=24576M",
        "--nice=200",
    ]
    assert "--requeue" in options(preemptible="true") and "--qos=low" in options(preemptible="true")
    assert "--mail-type=END,FAIL,REQUEUE" in _batch.options(judged(), dict(PLACE, mail=True))


def test_when_slurm_sends_mails():
    def types(default, **values):
        place = dict(PLACE, mail=True, mail_default=default)
        found = _batch.options(judged(**values), place)
        return [option for option in found if option.startswith("--mail")]

    assert types(None) == ["--mail-type=END,FAIL,REQUEUE"]
    assert types(["start"]) == ["--mail-type=BEGIN"]
    assert types([]) == []
    # The job counts more than its person.
    assert types(["start"], mail="fail, end") == ["--mail-type=END,FAIL"]
    assert types(["start"], mail="none") == []
    assert "--mail" not in " ".join(options(mail="fail"))


def test_an_interactive_job_is_one_command(tmp_path):
    (tmp_path / "sh").symlink_to("/bin/dash")
    command = _batch.interactive_command(
        judged(interactive="true", worker_gpu="1", worker_shared_memory="2"), PLACE
    )
    assert (
        command[0] == "srun"
        and "--gpus-per-node=1" in command
        and "--output" not in " ".join(command)
    )
    at = command.index("--")
    assert (
        command[at - 4 : at] == ["--pty", "trainyard-run", "--shm-size=2048m", "pytorch:2.5"]
        and command[-1] == "python3 train.py"
    )
    # With or without bash in the image.
    command = _batch.interactive_command(
        judged(interactive="true", command='echo "it\'s $((1 + 1))"; exit 3'), PLACE
    )
    for folder in ("/usr/bin:/bin", str(tmp_path)):
        done = subprocess.run(
            ["/bin/sh"] + command[command.index("--") + 2 :],
            env={"PATH": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (3, "it's 2\n")
    # From a file, so that others on the host do not read it in the list of processes.
    (tmp_path / "command.sh").write_text('echo "it\'s $((1 + 1))"; exit 3\n')
    command = _batch.interactive_command(
        judged(interactive="true", command="secret"), PLACE, str(tmp_path / "command.sh")
    )
    assert "secret" not in " ".join(command)
    for folder in ("/usr/bin:/bin", str(tmp_path)):
        done = subprocess.run(
            ["/bin/sh"] + command[command.index("--") + 2 :],
            env={"PATH": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (3, "it's 2\n")


def spec_of(**values):
    return _job_file.to_yaml(dict(SMALL, **values))


def lines(text):
    """The options that sbatch reads, and the text that the program gets."""
    head, _mark, rest = text.partition("exec ")
    marks = [line[len("#SBATCH ") :] for line in head.split("\n") if line.startswith("#SBATCH ")]
    run, _break, body = rest.partition("\n")
    return [word for line in marks for word in shlex.split(line)], run, body


def test_the_script():
    text = _batch.script(judged(), spec_of(), PLACE)
    asked, run, body = lines(text)
    assert (
        text.startswith("#!/bin/bash\n")
        and asked == options()
        and run == _batch.PROGRAM + " run <<'END_OF_JOB'"
    )
    assert body.partition("\n")[2] == (
        'name: first\ncommand: "python3 train.py"\nworker_image: "pytorch:2.5"\nEND_OF_JOB\n'
    )
    assert _job_text.opened(body[: -len("END_OF_JOB\n")]) == (judged(), spec_of())


@pytest.mark.parametrize(
    "command",
    [
        "echo 'a b' \"c\" $(id) `id`\nEND_OF_JOB\n#SBATCH --account=other\nEND_OF_JOB_1",
        "#SBATCH --uid=0\n\\",
        "'",
        "END_OF_JOB",
    ],
)
def test_the_command_stays_data(command, tmp_path):
    job = judged(command=command)
    text = _batch.script(job, spec_of(command=command), PLACE)
    assert lines(text)[0] == options()
    # Run by a shell, with a program that prints its input in the place of ours.
    program = tmp_path / "job"
    program.write_text("#!/bin/sh\ncat\n", encoding="utf-8")
    program.chmod(0o755)
    said = subprocess.run(
        ["bash"],
        input=text.replace(_batch.PROGRAM, str(program)),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=True,
    )
    assert said.stderr == "" and _job_text.opened(said.stdout) == (job, spec_of(command=command))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "command",
                "workdir",
                "copy_results",
                "workspace_id",
                "host_class",
                "worker_image",
                "name",
                "priority",
            ]
        ),
        st.text(max_size=30),
        max_size=4,
    )
)
def test_no_value_becomes_an_option(values):
    """Whatever the judge accepts: the options are those that were meant, and the job file comes out
    as it went in.
    """
    try:
        job = judged(**values)
    except _job_file.JobFileError:
        return
    place = dict(PLACE, workdir=job["workdir"] or "/home/anna")
    text = _batch.script(job, spec_of(**values), place)
    asked, run, body = lines(text)
    assert asked == _batch.options(job, place) and run.startswith(_batch.PROGRAM)
    end = body.rstrip("\n").rpartition("\n")
    carried, spec = _job_text.opened(end[0] + "\n")
    again = _job_text.read_job_text(spec, _job_file.KEYS)
    assert run.endswith("'%s'" % end[2]) and end[2] not in end[0].split("\n")
    assert carried == job and again["command"] == dict(SMALL, **values)["command"]
