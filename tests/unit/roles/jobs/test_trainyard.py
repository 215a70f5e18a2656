# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command trainyard, with programs in the place of Slurm's that print what Slurm prints.

Scenario workbench has the real ones.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import select
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import _job_text
import jsonschema
import pytest
from slurm_queue import JOBS, a_job

from ansible_collections.trainyard.gpu.plugins.module_utils._slurm import ASSOCIATION_FIELDS

ROOT = Path(__file__).resolve().parents[4]
FILES = ROOT / "roles/jobs/files"
SCHEMA = json.loads(
    (ROOT / "plugins/plugin_utils/trainyard.schema.json").read_text(encoding="utf-8")
)
ME = pwd.getpwuid(os.getuid()).pw_name
NODES = "".join(
    "NodeName=%s State=%s CPUTot=8 CPUAlloc=0 RealMemory=16000 AllocMem=0 Gres=gpu:h100:4 GresUsed=gpu:h100:%d AvailableFeatures=h100 "
    "ActiveFeatures=h100 Partitions=train\n" % entry
    for entry in (("a", "MIXED", 1), ("b", "IDLE", 0))
)
PARTITIONS = "PartitionName=train State=UP Nodes=a,b TotalNodes=2 Default=YES MaxTime=1-00:00:00 DefaultTime=10:00:00 TRES=cpu=16,gres/gpu=8\n"


def association(**values):
    return "|".join(str(values.get(field, "")) for field in ASSOCIATION_FIELDS) + "\n"


ASSOCIATIONS = (
    association(Cluster="trainyard", Account="root", QOS="normal")
    + association(
        Cluster="trainyard",
        Account="vision",
        ParentName="root",
        Share=1,
        GrpTRES="cpu=8,mem=16G,gres/gpu=4",
    )
    + association(
        Cluster="trainyard",
        Account="vision",
        User=ME,
        MaxJobs=500,
        MaxSubmitJobs=2000,
        QOS="low,normal,high",
        DefaultQOS="normal",
    )
)
USAGE = (
    "ClusterName=trainyard Account=vision UserName= Partition= Priority=0 ID=3\n    GrpJobs=N(1)\n    GrpTRES=cpu=8(1),mem=16384(512),gres/gpu=4(4)\n"
    "ClusterName=trainyard Account=vision UserName=%s(2001) Partition= Priority=0 ID=4\n    GrpJobs=N(1)\n    GrpSubmitJobs=N(3) GrpWall=N(0.00)\n"
    "    GrpTRES=cpu=N(1),gres/gpu=N(1)\n    MaxJobs=500(1) MaxJobsAccrue= MaxSubmitJobs=2000(3) MaxWallPJ=\n"
    % ME
)
PROGRAMS = {
    "squeue": "%(jobs)s",
    "sacct": 'case "$*" in *TotalCPU*) cat %(here)s/steps;; *) mark=$(echo "$*" | sed \'s/.*--delimiter=\\([^ ]*\\) .*/\\1/\'); sed "s/@/$mark/g" %(here)s/ended;; esac',
    "scontrol": 'case "$*" in *assoc_mgr*) cat %(here)s/usage;; *partitions*) cat %(here)s/partitions;; *) cat %(here)s/nodes;; esac',
    "sacctmgr": 'case "$*" in *event*) cat %(here)s/events;; *) cat %(here)s/associations;; esac',
    "sbatch": "case $* in *--test-only*) exit 1;; esac; env > %(here)s/environment; cat > %(here)s/script; echo 12",
    "scancel": 'echo "$@" >> %(here)s/cancelled',
    "srun": "printf '%%s\\n' \"$@\" > %(here)s/srun",
}
SAMPLE = "name: first\ncommand: python3 train.py\nworker_image: tools:1\n"


class Run:
    def __init__(self, folder):
        self.here = folder
        (folder / "bin").mkdir()
        for name, text in (
            ("jobs", ""),
            ("ended", ""),
            ("steps", ""),
            ("nodes", NODES),
            ("partitions", PARTITIONS),
            ("associations", ASSOCIATIONS),
            ("usage", USAGE),
        ):
            (folder / name).write_text(text, encoding="utf-8")
        for name, body in PROGRAMS.items():
            self.program(
                name, body % {"here": folder, "jobs": JOBS % (r"|7b1f9c42e0d85a36|", folder)}
            )
        library = folder / "library"
        library.mkdir()
        for path in [
            *FILES.glob("_*.py"),
            *(
                ROOT / ("plugins/module_utils/%s.py" % name)
                for name in (
                    "_slurm",
                    "_usage",
                    "_files",
                    "_messages",
                    "_parse_error",
                    "_log_causes",
                    "_error_signatures",
                    "_host_health",
                    "_quantity",
                )
            ),
            ROOT / "roles/train/files/_job_hang.py",
            *(ROOT / "roles/host_library/files").glob("_*.py"),
        ]:
            (library / path.name).symlink_to(path)
        self.jobs = folder / "share/.trainyard/jobs" / ME
        (self.jobs / ".out").mkdir(parents=True)
        (folder / "jobs.json").write_text(
            json.dumps(
                {
                    "login": "login.site",
                    "share": str(folder / "share"),
                    "jobs": str(self.jobs.parent),
                    "images": ["tools:1", "pytorch:2.5"],
                    "registries": [],
                    "priorities": [
                        {"name": "low", "priority": 0},
                        {"name": "normal", "priority": 1, "preempts": ["low"]},
                        {"name": "high", "priority": 2},
                    ],
                }
            ),
            encoding="utf-8",
        )

    def program(self, name, body):
        (self.here / "bin" / name).write_text("#!/bin/bash\n%s\n" % body, encoding="utf-8")
        (self.here / "bin" / name).chmod(0o755)

    def environment(self, **more):
        return dict(
            os.environ,
            PATH="%s:/usr/bin:/bin" % (self.here / "bin"),
            SECRET="s3cret",
            TRAINYARD_JOBS_CONFIG=str(self.here / "jobs.json"),
            TZ="UTC0",
            PYTHONDONTWRITEBYTECODE="1",
            **more,
        )

    def program_text(self):
        """The command as a person with a home of their own: root has no jobs."""
        return (
            "import atexit, os, pwd, sys, time; atexit.register(lambda: open(%r, 'w').write(str(time.process_time()))); sys.path.insert(0, %r); found = list(pwd.getpwuid(os.getuid())); found[5] = %r; found = pwd.struct_passwd(found); "
            "os.getuid = lambda: found.pw_uid or 1000; pwd.getpwuid = lambda _uid: found; exec(compile(open(%r).read(), 'trainyard', 'exec'))"
            % (
                str(self.here / "seconds"),
                str(self.here / "library"),
                str(self.here / "home"),
                str(FILES / "trainyard.py"),
            )
        )

    def __call__(self, *words, text=None, before=(), **environment):
        command = [*before, sys.executable, "-c", self.program_text(), *words]
        done = subprocess.run(
            command,
            cwd=self.here,
            env=self.environment(**environment),
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
        if "--json" in words:
            # Other programs read it.
            own = {"--dry-run": "dry_run", "--history": "node_history"}
            form = next((own[word] for word in words if word in own), words[0])
            form = form.replace("--json", "overview")
            form = "error" if done.returncode > 1 else form
            jsonschema.validate(
                json.loads(done.stdout), dict(SCHEMA, **{"$ref": "#/$defs/" + form})
            )
        return done

    def seconds(self):
        """CPU seconds of the last call, without those of Slurm's programs."""
        return float((self.here / "seconds").read_text(encoding="utf-8"))

    def file(self, text=SAMPLE, name="job.yml"):
        (self.here / name).write_text(text, encoding="utf-8")
        return name


@pytest.fixture(name="run")
def _run(tmp_path):
    return Run(tmp_path)


def ended(number, state="COMPLETED", code="0:0", hosts="a", name="first"):
    return (
        "@".join(
            [
                str(number),
                str(number),
                ME,
                "vision",
                "normal",
                "train",
                state,
                "2026-11-26T04:00:00",
                "2026-11-26T04:00:05",
                "2026-11-26T05:00:05",
                "3600",
                hosts,
                "cpu=4,gres/gpu=2,mem=4G,node=1",
                "None",
                name,
                "trainyard",
                code,
            ]
        )
        + "\n"
    )


def test_submit(run):
    done = run("submit", run.file(), "--set", "worker_gpu=2")
    assert (done.returncode, done.stderr) == (
        0,
        "",
    ) and done.stdout == (
        "job 12 submitted. Follow it with: trainyard logs -f 12\n"
        "it asks for 2 GPUs, but group vision uses 4 of its 4 now, so it waits; Slurm does not say when it starts\n"
    )
    script = (run.here / "script").read_text(encoding="utf-8")
    assert (
        "#SBATCH --gpus-per-node=2\n" in script
        and "#SBATCH --output=%s/.out/%%j.log\n" % run.jobs in script
        and 'command: "python3 train.py"' in script
    )
    # Nothing of the shell of the person reaches the job.
    assert "s3cret" not in (run.here / "environment").read_text(encoding="utf-8")
    told = json.loads(run("submit", "-", "--json", text=SAMPLE).stdout)
    assert told == {
        "id": "12",
        "name": "first",
        "log": str(run.jobs / ".out/12.log"),
        "cost": "it asks for no GPU",
        "start_estimate": None,
    }


@pytest.mark.parametrize(
    "said, words, estimate",
    [
        ("2026-11-01T00:00:00", "now", "2026-11-01T00:00:00Z"),
        ("2126-11-01T12:30:00", "at 2126-11-01 12:30", "2126-11-01T12:30:00Z"),
    ],
)
def test_submit_tells_when_a_job_starts(run, said, words, estimate):
    """Slurm's answer to --test-only, which no job comes from."""
    run.program(
        "sbatch",
        'echo "$* $TZ" >> %s/asked; case "$*" in *--test-only*) cat > /dev/null; echo \'sbatch: Job 13 to start at %s using 4 processors on nodes a in '
        "partition train' >&2;; *) cat > %s/script; echo 12;; esac" % (run.here, said, run.here),
    )
    free = USAGE.replace("gres/gpu=4(4)", "gres/gpu=4(1)")
    (run.here / "usage").write_text(free, encoding="utf-8")
    done = run("submit", run.file(), "--set", "worker_gpu=2")
    expected = (
        "it asks for 2 GPUs, with which group vision uses 3 of its 4; it is expected to start "
    )
    assert done.stdout.splitlines()[1] == expected + words, done.stderr
    asked = (run.here / "asked").read_text(encoding="utf-8")
    assert asked == "--test-only --parsable UTC0\n--parsable \n"
    told = json.loads(run("submit", run.file(), "--dry-run", "--json").stdout)
    assert (told["start_estimate"], told["cost"]) == (estimate, "it asks for no GPU")
    assert words in run("submit", run.file(), "--dry-run").stderr
    # Slurm does not look at quotas, and would say that a job starts now that waits for one.
    (run.here / "usage").write_text(USAGE, encoding="utf-8")
    told = json.loads(run("submit", run.file(), "--set", "worker_gpu=2", "--json").stdout)
    assert told["start_estimate"] is None and "so it waits" in told["cost"]


def test_dry_run_prints_the_script_and_submits_nothing(run):
    done = run("submit", run.file(), "--dry-run")
    assert (
        done.returncode == 0
        and done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=first\n")
        and not (run.here / "script").exists()
    )


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "name: a\nworker_gpus: 2\ncommand: x\nworker_image: tools:1\n",
            "job.yml: line 2: worker_gpus: there is no such key; did you mean worker_gpu?",
        ),
        (
            SAMPLE + "workspace_id: other\n",
            "job.yml: line 4: workspace_id: 'other' is not one of your accounts (vision)",
        ),
        (SAMPLE + "worker_gpu: 5\n", "but account vision has 4 at most"),
        (SAMPLE + "worker_cpu: 9\n", "the largest host of this cluster has 8 CPUs (a)"),
        (
            SAMPLE.replace("tools:1", "tools:2"),
            "worker_image: 'tools:2' is not an image of this cluster; use one of tools:1, pytorch:2.5; did you mean tools:1?",
        ),
        ("name: [a\n", "job.yml: line 1: a bracket has no end on this line"),
        (SAMPLE + "interactive: true\n", "the job needs your terminal"),
    ],
)
def test_what_is_refused(run, text, said):
    done = run("submit", run.file(text))
    assert (
        done.returncode == 2
        and done.stdout == ""
        and said in done.stderr
        and all(line.startswith("trainyard: ") for line in done.stderr.splitlines())
    )
    told = json.loads(run("submit", run.file(text), "--json").stdout)
    assert told["exit_code"] == 2 and said in told["error"] and not (run.here / "script").exists()


def test_a_file_that_is_no_utf_8(run):
    """Whatever the locale of the person takes for a character. The text would fail in the job."""
    (run.here / "latin1.yml").write_bytes(
        SAMPLE.replace("train.py", "caf\xe9.py").encode("latin-1")
    )
    for words, origin in (("latin1.yml", "latin1.yml"), ("-", "standard input")):
        command = 'exec "$@" < %s' % (run.here / "latin1.yml")
        done = run("submit", words, "--dry-run", before=("sh", "-c", command, "sh"), LC_ALL="C")
        assert (done.returncode, done.stderr) == (
            2,
            "trainyard: %s: the file is no text in UTF-8\n" % origin,
        )
    done = run(
        "submit",
        run.file(SAMPLE.replace("first", "first  # caf\xe9")),
        "--dry-run",
        "--set",
        "command=echo \udce9",
        LC_ALL="C",
    )
    assert (
        done.returncode == 2
        and "command: 'echo ?' has a character that is none in UTF-8" in done.stderr
    )
    done = run(
        "submit", "-", "--dry-run", text="\ufeff" + SAMPLE + 'environment: {A: "\\ud83d\\ude00"}\n'
    )
    assert done.returncode == 0 and "\\U0001f600" in done.stdout


def test_the_folder_in_which_a_job_starts(run):
    inside, outside = run.here / "share/project", run.here / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    for folder, said in (
        (str(inside), ""),
        (
            str(inside / "none"),
            "line 4: workdir: '%s/none' is not a folder that you can enter; create it" % inside,
        ),
        (
            str(outside),
            "line 4: workdir: '%s' is not in a container of a job; use a folder below %s/home or %s/share"
            % (outside, run.here, run.here),
        ),
        ("~/none", "line 4: workdir: '~/none' is not a folder that you can enter"),
    ):
        done = run("submit", run.file(SAMPLE + "workdir: %s\n" % folder))
        assert (done.returncode == 0) is (said == "") and said in done.stderr, done.stderr
    # One that has been removed meanwhile.
    done = run(
        "submit",
        "-",
        "--dry-run",
        text=SAMPLE,
        before=("sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"),
    )
    assert done.returncode == 0 and "#SBATCH --chdir=%s/home\n" % run.here in done.stdout, (
        done.stderr
    )


def test_files_that_cannot_be_read(run):
    (run.here / "binary").write_bytes(b"\xff\xfe\x00")
    for name, said in (
        ("none", "none: No such file or directory"),
        ("binary", "binary: the file is no text in UTF-8"),
        ("bin", "bin: Is a directory"),
    ):
        done = run("submit", name)
        assert done.returncode == 2 and done.stderr == "trainyard: %s\n" % said
    (run.here / "jobs.json").unlink()
    assert "jobs.json cannot be read" in run("submit", run.file()).stderr


def test_a_command_that_sleeps_for_ever_is_told(run):
    done = run(
        "submit",
        run.file(
            SAMPLE.replace("python3 train.py", "python3 train.py && sleep infinity")
            + "max_minutes: 30\n"
        ),
    )
    assert done.returncode == 0 and "it ends after 30 minutes" in done.stderr


def test_list(run):
    (run.here / "ended").write_text(
        ended(3) + ended(4, "FAILED", "2:0") + ended(5, "RUNNING"), encoding="utf-8"
    )
    (run.here / "jobs").write_text(a_job(5, "a") + a_job(6, "", "PENDING"), encoding="utf-8")
    lines = run("list", "--all").stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["JOB", "NAME", "STATE"],
        ["3", "first", "done"],
        ["4", "first", "failed"],
        ["5", "job", "running"],
        ["6", "job", "waiting"],
    ]
    told = json.loads(run("list", "--json").stdout)
    assert [job["id"] for job in told] == ["3", "4", "5", "6"] and told[1]["exit_code"] == 2
    # Why it waits is in words, and in those of Slurm for programs.
    mark = "PENDING|7b1f9c42e0d85a36|"
    waiting = a_job(6, "", "PENDING").replace(mark, mark + "AssocGrpGRES", 1)
    (run.here / "jobs").write_text(a_job(5, "a") + waiting, encoding="utf-8")
    assert run("list").stdout.splitlines()[-1].endswith("has all the GPUs that it may have")
    assert json.loads(run("list", "--json").stdout)[-1]["reason"] == "AssocGrpGRES"
    # A task of an array, once.
    (run.here / "ended").write_text(
        ended(3) + ended(7).replace("7@7@", "4_2@7@", 1), encoding="utf-8"
    )
    (run.here / "jobs").write_text(a_job(7, "", "COMPLETED"), encoding="utf-8")
    assert [job["id"] for job in json.loads(run("list", "--json").stdout)] == ["3", "7"]
    assert json.loads(run("show", "7", "--json").stdout)["state"] == "completed"
    (run.here / "ended").write_text("", encoding="utf-8")
    (run.here / "jobs").write_text("", encoding="utf-8")
    assert (
        run("list").stdout == "no jobs in the last day; `trainyard list --all` shows older ones\n"
    )


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["table", "json"])
def test_ten_thousand_ended_jobs_in_less_than_a_second(run, words):
    """Of the CPU, in Python alone. Scenario workbench has the real sacct with as many."""

    def row(number):
        clock = "2026-11-26T%02d:%02d:%02d" % (number // 3600, number // 60 % 60, number % 60)
        return (
            ended(
                number,
                *(("COMPLETED", "0:0"), ("FAILED", "3:0"), ("CANCELLED by 2001", "0:15"))[
                    number % 3
                ],
                "gpu[%03d-%03d]" % (number % 50, number % 50 + 15),
            )
            .replace("T04:00:05", clock[10:])
            .replace("@first@", "@training of %d@" % number)
        )

    (run.here / "ended").write_text("".join(map(row, range(1, 10001))), encoding="utf-8")
    assert run("list", "--help").returncode == 0
    start = run.seconds()
    done = run("list", "--all", *words)
    assert done.returncode == 0, done.stderr
    if words:
        told = json.loads(done.stdout)
        assert len({job["id"] for job in told}) == 10000 and {
            len(job["hosts"]) for job in told
        } == {16}
    else:
        lines = done.stdout.splitlines()
        assert (
            len(lines) == 10001
            and sum(" failed " in line for line in lines) == 3334
            and sum(" stopped " in line for line in lines) == 3333
        )
    print("%.2f s, of which %.2f s are those of --help" % (run.seconds(), start))
    assert run.seconds() < 1


def test_a_job_of_which_the_accounting_does_not_know_yet(run):
    """The controller tells it a moment later that a job has ended."""
    mark = r"|7b1f9c42e0d85a36|"
    (run.here / "just").write_text(a_job(4, "", "COMPLETED"), encoding="utf-8")
    run.program(
        "squeue",
        'case "$*" in *--states=all*) ;; *) exit 0;; esac\n'
        + (JOBS % (mark, run.here)).replace("/jobs", "/just"),
    )
    (run.here / "ended").write_text("", encoding="utf-8")
    (run.here / "later").write_text(ended(4), encoding="utf-8")
    run.program(
        "sacct",
        PROGRAMS["sacct"] % {"here": run.here} + "\ncp %s/later %s/ended" % (run.here, run.here),
    )
    told = json.loads(run("list", "--json").stdout)
    assert (
        [(job["id"], job["state"]) for job in told] == [("4", "completed")]
        and told[0]["ended"]
        and told[0]["exit_code"] is None
    )
    assert json.loads(run("show", "4", "--json").stdout)["state"] == "completed"
    # The accounting knows more of it by then.
    assert json.loads(run("list", "--json").stdout)[0]["exit_code"] == 0


def test_why(run):
    waiting = a_job(6, "", "PENDING").replace(
        "|7b1f9c42e0d85a36|" * 0 + "PENDING|7b1f9c42e0d85a36|",
        "PENDING|7b1f9c42e0d85a36|AssocGrpGRES",
        1,
    )
    (run.here / "jobs").write_text(
        waiting.replace("anna|7b1f9c42e0d85a36|", "anna|7b1f9c42e0d85a36|vision", 1),
        encoding="utf-8",
    )
    done = run("why", "6")
    assert done.returncode == 0 and done.stdout.startswith(
        "job 6: queued: group vision uses 4 of its 4 GPUs; expected start "
    ), done.stdout + done.stderr
    (run.here / "jobs").write_text("", encoding="utf-8")
    (run.here / "ended").write_text(ended(4, "FAILED", "2:0"), encoding="utf-8")
    assert run("why", "4").stdout == "job 4: it has ended: failed, exit code 2\n"
    assert (
        run("why", "7").stderr
        == "trainyard: you have no job 7; `trainyard list --all` shows yours\n"
    )
    assert run("why", "x").returncode == 2


def test_why_of_a_job_that_runs(run):
    (run.here / "jobs").write_text(a_job(6, "gpu-a", "RUNNING"), encoding="utf-8")
    assert run("why", "6").stdout == "job 6: it does not wait: it is running\n"
    folder = run.jobs / "6"
    folder.mkdir()
    log = folder / "rank.0.log"
    log.write_text("epoch 1\n", encoding="utf-8")
    assert re.fullmatch(
        "job 6: it does not wait: it is running; worker 0 printed something [0-9]+ s ago\n",
        run("why", "6").stdout,
    )
    os.utime(log, (time.time() - 1000,) * 2)
    (folder / "watch.0.json").write_text(
        json.dumps({"now": [[0, 1, 2]], "minutes": [], "devices": []}), encoding="utf-8"
    )
    done = run("why", "6")
    assert done.returncode == 0 and (
        "it may hang: no worker has printed anything for 16 minutes, its GPUs are not used. See `trainyard logs 6 --rank 0`"
        in done.stdout
    ), done.stdout + done.stderr


def answering(folder, ended):
    """The workers of a job: they answer who asks where they wait."""
    while not ended.wait(0.1):
        try:
            mark = (folder / "hang.ask").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        for worker, frame in enumerate(("all_reduce (torch/distributed/c10d.py:5)", "f (t.py:7)")):
            told = {
                "kind": "rank",
                "rank": worker,
                "pid": 7,
                "inner": 7,
                "command": "python3 t.py",
                "state": "S",
                "wchan": "",
                "kernel": "",
                "said": "",
                "children": [],
                "dump": 'Thread 7 (idle): "MainThread"\n    %s\n' % frame,
            }
            text = json.dumps({"ranks": [told], "ras": None, "asked": mark})
            (folder / ("hang.%d.json.new" % worker)).write_text(text, encoding="utf-8")
            (folder / ("hang.%d.json.new" % worker)).rename(folder / ("hang.%d.json" % worker))


def test_why_of_a_job_that_hangs(run):
    """Without output for 10 minutes, the workers are asked.

    What a runner has found is told at once.
    """
    (run.here / "jobs").write_text(a_job(6, "gpu-a,gpu-b", "RUNNING"), encoding="utf-8")
    folder = run.jobs / "6"
    folder.mkdir()
    for worker in range(2):
        log = folder / ("rank.%d.log" % worker)
        log.write_text("epoch 1\n", encoding="utf-8")
        os.utime(log, (time.time() - 1000,) * 2)
        (folder / ("watch.%d.json" % worker)).write_text(
            json.dumps({"now": [], "minutes": [], "devices": [], "answers": True}), encoding="utf-8"
        )
    ended = threading.Event()
    thread = threading.Thread(target=answering, args=(folder, ended), daemon=True)
    thread.start()
    try:
        done = run("why", "6")
    finally:
        ended.set()
        thread.join(10)
    said = "rank 1 on gpu-b is in f, rank 0 on gpu-a waits in all_reduce. Rank 1: f (t.py:7)"
    assert (
        "job 6: it does not wait: it is running; %s. See %s/hang.txt; it may hang: no worker"
        % (said, folder)
        in done.stdout
    ), done.stdout + done.stderr
    assert (folder / "hang.txt").read_text(encoding="utf-8").startswith(said + "\n")
    # Now the file is there.
    told = "it makes no progress: %s. See %s/hang.txt" % (said, folder)
    assert run("why", "6").stdout == "job 6: it does not wait: it is running; %s\n" % told
    assert json.loads(run("show", "6", "--json").stdout)["why"] == told
    # There was output since.
    (folder / "rank.0.log").write_text("epoch 2\n", encoding="utf-8")
    os.utime(folder / "rank.0.log", (time.time() + 5,) * 2)
    assert "it makes no progress" not in run("why", "6").stdout
    assert json.loads(run("show", "6", "--json").stdout)["why"] == ""


def test_why_of_a_job_that_was_stopped_while_it_hung(run):
    (run.here / "ended").write_text(ended(4, "CANCELLED", "0:15"), encoding="utf-8")
    (run.jobs / "4").mkdir()
    result = {"problems": [], "warnings": [], "first_failed": None, "hang": "rank 1 sleeps"}
    (run.jobs / "4/result.json").write_text(json.dumps(result), encoding="utf-8")
    assert run("why", "4").stdout.endswith("; rank 1 sleeps\n")


def test_show_and_logs_of_a_job_that_failed(run):
    (run.here / "ended").write_text(ended(4, "FAILED", "2:0"), encoding="utf-8")
    (run.here / "steps").write_text(
        "4|100|4|00:00:00||4000M|60|\n4.batch|100|4|00:03:20|512.00M|||\n", encoding="utf-8"
    )
    (run.jobs / "4").mkdir()
    (run.jobs / "4/result.json").write_text(
        json.dumps(
            {
                "problems": ["worker 0 on host a ended with exit code 2"],
                "warnings": [],
                "first_failed": {
                    "rank": 0,
                    "host": "a",
                    "lines": ["boom"],
                    "causes": [
                        {"cause": "the driver is older", "fix": "set nvidia_driver_version"}
                    ],
                    "consequences": [{"rank": 1, "host": "b", "exit_code": 143}],
                },
            }
        ),
        encoding="utf-8",
    )
    (run.jobs / ".out/4.log").write_text("line\n", encoding="utf-8")
    (run.jobs / "4/rank.1.log").write_text("of worker 1\n", encoding="utf-8")
    text = run("show", "4").stdout
    for said in (
        "job 4  first  failed",
        "exit code   2",
        "CPU used    50 % of 4 CPUs",
        "memory used 0.5 GB",
        "worker 0 on host a ended",
        "| boom",
        "cause: the driver is older. Set nvidia_driver_version",
        "ended because of it: worker 1 (exit code 143)",
    ):
        assert said in text, text
    assert (
        run("why", "4").stdout
        == "job 4: it has ended: failed, exit code 2; worker 0 on a failed first: the driver is older. Set nvidia_driver_version\n"
    )
    assert json.loads(run("show", "4", "--json").stdout)["result"]["problems"]
    assert (
        run("logs", "4").stdout == "line\n"
        and run("logs", "4", "--rank", "1").stdout == "of worker 1\n"
    )
    assert json.loads(run("logs", "4", "--json").stdout) == {
        "id": "4",
        "rank": None,
        "log": str(run.jobs / ".out/4.log"),
        "text": "line\n",
    }
    assert (
        "leave out --follow, or --json"
        in json.loads(run("logs", "-f", "4", "--json").stdout)["error"]
    )
    done = run("logs", "-f", "4")
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "line\n",
        "trainyard: job 4: failed\n",
    )
    assert (
        "rank.7.log does not exist; the workers of the job are 0 to 0"
        in run("logs", "4", "--rank", "7").stderr
    )


def test_explain_a_log_from_anywhere(run):
    """Without Slurm, from a file and from standard input."""
    log = "step 1\n[rank1]: OSError: [Errno 122] Disk quota exceeded: '/data1/share/\x1b[31ma.pt'\n"
    (run.here / "train.log").write_text(log, encoding="utf-8")
    for name in ("squeue", "sacct", "scontrol", "sacctmgr"):
        run.program(name, "exit 9")
    done = run("explain", str(run.here / "train.log"))
    assert done.returncode == 0 and done.stdout.splitlines()[0].startswith("line 2: [rank1]: ")
    assert "(quota_exceeded)" in done.stdout and "what to do: remove files" in done.stdout
    assert "\x1b" not in done.stdout and done.stderr == ""
    found = json.loads(run("explain", "--json", text=log).stdout)
    assert (found["file"], found["causes"][0]["id"]) == ("-", "quota_exceeded")
    assert "repquota" in found["causes"][0]["fix_operator"]
    said = run("explain", "-", text="a\nodd thing failed\n").stdout
    report = "report lines that should be known, without secrets: https://github.com/trainyard/gpu/issues"
    assert said.splitlines() == [
        "no known message. These lines may say why:",
        "line 2: odd thing failed",
        report,
    ]
    # A launcher's words are known, and are not why.
    ended = "srun: error: gpu-a: task 0: Exited with exit code 2\n"
    said = run("explain", "-", text="a\nodd thing failed\n" + ended).stdout.splitlines()
    assert said[0] == "line 3: " + ended.strip() and "(process_failed)" in said[1]
    assert said[3:] == [
        "that is not yet why. These lines may say it:",
        "line 2: odd thing failed",
        report,
    ]
    assert run("explain", text="").stdout == "no known message. The log is empty\n"
    missing = run("explain", "/no/such.log")
    assert (missing.returncode, missing.stderr) == (
        2,
        "trainyard: /no/such.log: No such file or directory\n",
    )


def test_show_tells_the_use_of_gpus_and_of_the_copy(run):
    (run.here / "ended").write_text(ended(4), encoding="utf-8")
    (run.jobs / "4").mkdir()
    result = {
        "problems": [],
        "warnings": ["host a: GPU 1 stayed idle"],
        "gpus": {"a": {"requested": 2, "busy": 1}},
        "copied": {"to": "results:runs", "ok": False, "said": "rclone copy: no space"},
    }
    (run.jobs / "4/result.json").write_text(json.dumps(result), encoding="utf-8")
    minutes = [{"minute": 1, "gpus": [[90, 1, 900], [10, 1, 5]]}]
    (run.jobs / "4/watch.0.json").write_text(
        json.dumps({"now": [[0, 0, 9], [0, 0, 9]], "minutes": minutes, "devices": ["0", "1"]}),
        encoding="utf-8",
    )
    text = run("show", "4").stdout
    assert "GPUs used   1 of 2 were busy, 50 % on average in the last hour\n" in text
    assert "warning: the results were not copied to results:runs: rclone copy: no space\n" in text
    (run.jobs / "4/result.json").write_text(
        json.dumps(
            dict(
                result,
                copied={"to": "results:runs", "ok": True, "said": ""},
                gpus={"a": {"requested": 0}},
            )
        ),
        encoding="utf-8",
    )
    text = run("show", "4").stdout
    assert "results copied to results:runs\n" in text and "GPUs used" not in text


def measured(number, comment, **values):
    """A job as sacct prints it with its AdminComment."""
    text = ended(number, **values)
    fields = text.rstrip("\n").split("@")
    return "@".join([*fields[:-1], comment, fields[-1]]) + "\n"


def test_show_tells_what_was_measured_of_a_job_of_sbatch(run):
    (run.here / "ended").write_text(ended(4), encoding="utf-8")
    steps = "4|1800|4|00:00:00||4000M|60|%s\n4.batch|1800|4|00:03:20||||\n"
    comment = "ty1:gpus=4,seen=4,used=1,hours=2,use=0.21,idle=0.75,mem=71,kwh=1.4"
    (run.here / "steps").write_text(steps % comment, encoding="utf-8")
    text = run("show", "4").stdout
    assert (
        "GPU use     21 % on average, 1 of 4 GPUs used, idle 75 % of the time, 71 GiB of memory at most, 1.4 kWh\n"
        in text
    )
    assert "note        3 of its 4 GPUs were never used; request fewer" in text
    assert "time used   50 % of 60 minutes\n" in text
    # Another text of an administrator.
    (run.here / "steps").write_text(steps % "of|ops\x1b[31m", encoding="utf-8")
    text = run("show", "4").stdout
    assert "GPU use" not in text and "time used   50 % of 60 minutes" in text and "\x1b" not in text


def test_usage_of_a_month(run):
    comment = "ty1:gpus=2,seen=2,used=2,hours=2,use=0.25,idle=0.5,mem=71"
    (run.here / "ended").write_text(
        measured(4, comment) + measured(5, "", state="FAILED"), encoding="utf-8"
    )
    done = run("usage", "--month", "2026-11")
    assert done.returncode == 0, done.stderr
    [heads, line] = done.stdout.splitlines()
    assert heads.split()[:4] == ["ACCOUNT", "PERSON", "JOBS", "FAILED"]
    assert line.split() == ["vision", ME, *"2 1 4.0 2.0 1.0 25 % 0.0 0 0".split()]
    text = run("usage", "--month", "2026-11", "--csv").stdout
    assert text.splitlines()[1] == "vision,%s,2,1,4.0,2.0,1.0,0.25,0.0,0,0" % ME
    told = json.loads(run("usage", "--month", "2026-11", "--json").stdout)
    assert (told["month"], told["people"][0]["gpu_hours"], told["account"]) == (
        "2026-11",
        4.0,
        None,
    )
    assert run("usage", "--month", "2026-12").stdout == "no jobs in 2026-12\n"


def test_usage_asks_slurm_which_jobs_a_person_may_see(run):
    run.program("sacct", 'echo "$*" > %s/asked' % run.here)
    assert run("usage", "--month", "2026-11", "--account", "vision").returncode == 0
    asked = (run.here / "asked").read_text(encoding="utf-8")
    for word in (
        "--allusers",
        "--accounts=vision",
        "--starttime=2026-11-01T00:00:00",
        "--endtime=2026-12-01T00:00:00",
    ):
        assert word in asked.split()


def test_the_sums_of_an_account(run):
    """Role monitoring writes them on the scheduler's host."""
    (run.here / "ended").write_text(measured(4, ""), encoding="utf-8")
    row = dict.fromkeys(("jobs", "failed"), 7)
    row.update(account="vision", user="", gpu_hours=70.0, gpu_hours_measured=0.0)
    row.update(gpu_hours_idle=0.0, mean_use=None, energy_kwh=0.0)
    row.update(wait_median_minutes=None, wait_90_minutes=None)
    path = run.here / "accounts.json"
    path.write_text(json.dumps({"month": "2026-11", "accounts": [row]}), encoding="utf-8")
    words = ("usage", "--month", "2026-11", "--account")
    environment = {"TRAINYARD_ACCOUNT_USAGE": str(path)}
    text = run(*words, "vision", **environment).stdout
    assert "all of the account:\n" in text and "70.0" in text.splitlines()[-1]
    told = json.loads(run(*words, "vision", "--json", **environment).stdout)
    assert told["account"]["gpu_hours"] == 70.0
    assert "all of the account" not in run(*words, "nlp", **environment).stdout
    path.write_text("{", encoding="utf-8")
    assert run(*words, "vision", **environment).returncode == 0


@pytest.mark.parametrize(
    "words, said",
    [
        (("--month", "11"), "--month: '11' is not a month; write it as in 2026-11"),
        (("--account", "a;b"), "--account: 'a;b' is no account; `trainyard quota` shows yours"),
        (("--csv", "--json"), "--csv: leave out --csv, or --json"),
    ],
)
def test_usage_that_is_refused(run, words, said):
    done = run("usage", *words)
    assert done.returncode == 2 and said in done.stdout + done.stderr


def test_stop(run):
    (run.here / "jobs").write_text(a_job(5, "a"), encoding="utf-8")
    (run.here / "ended").write_text(ended(4), encoding="utf-8")
    assert (
        run("stop", "5").stdout == "job 5 is being stopped\n"
        and (run.here / "cancelled").read_text(encoding="utf-8") == "5\n"
    )
    assert run("stop", "4").stderr == "trainyard: job 4 has already ended (done)\n"


def test_several_jobs(run):
    jobs = a_job(5, "a") + a_job(6, "", "PENDING")
    (run.here / "jobs").write_text(jobs, encoding="utf-8")
    (run.here / "ended").write_text(ended(4), encoding="utf-8")
    assert json.loads(run("stop", "5", "6", "--json").stdout) == [
        {"id": "5", "stopped": True},
        {"id": "6", "stopped": True},
    ]
    assert (run.here / "cancelled").read_text(encoding="utf-8") == "5 6\n"
    # One that has ended meanwhile does not keep the others from being stopped.
    done = run("stop", "4,6", "9")
    assert done.returncode == 2 and done.stderr.splitlines() == [
        "trainyard: job 4 has already ended (done)",
        "trainyard: you have no job 9; `trainyard list --all` shows yours",
        "trainyard: job 6 is being stopped",
    ]
    assert (run.here / "cancelled").read_text(encoding="utf-8") == "5 6\n6\n"
    assert [job["id"] for job in json.loads(run("show", "4", "5", "--json").stdout)] == ["4", "5"]
    assert run("show", "4", "5").stdout.count("\njob ") == 1
    lines = run("why", "5", "4", "5").stdout.splitlines()
    assert [line[:6] for line in lines] == ["job 5:", "job 4:"]


def test_the_last_lines_of_a_log(run):
    log = run.jobs / ".out/4.log"
    text = "".join("line %d\n" % number for number in range(20000))
    log.write_text(text, encoding="utf-8")
    (run.here / "ended").write_text(ended(4), encoding="utf-8")
    assert run("logs", "4", "--tail", "2").stdout == "line 19998\nline 19999\n"
    assert run("logs", "4", "--tail", "0").stdout == ""
    assert run("logs", "4", "--tail", "15000").stdout == text[text.index("line 5000\n") :]
    assert run("logs", "4", "--tail", "99999").stdout == text
    assert run("logs", "-f", "4", "--tail", "1").stdout == "line 19999\n"
    told = json.loads(run("logs", "4", "--tail", "1", "--json").stdout)
    assert told["text"] == "line 19999\n"
    log.write_text(text + "no end", encoding="utf-8")
    assert run("logs", "4", "--tail", "2").stdout == "line 19999\nno end"
    assert "use 0 or more" in run("logs", "4", "--tail", "-1").stderr


def test_the_place_in_the_queue(run):
    """It is in a file of role monitoring, as others' jobs are hidden."""
    waiting = a_job(6, "", "PENDING").replace(
        "PENDING|7b1f9c42e0d85a36|", "PENDING|7b1f9c42e0d85a36|Priority", 1
    )
    (run.here / "jobs").write_text(waiting, encoding="utf-8")
    settings = json.loads((run.here / "jobs.json").read_text(encoding="utf-8"))
    settings["queue"] = str(run.here / "queue.json")
    (run.here / "jobs.json").write_text(json.dumps(settings), encoding="utf-8")
    (run.here / "nodes").write_text(
        NODES.replace("IDLE", "IDLE+DRAIN").rstrip("\n")
        + " Reason=fan [root@2026-11-26T04:00:00]\n",
        encoding="utf-8",
    )
    assert run("why", "6").stdout.startswith("job 6: queued: other jobs are before it; expected")
    reason = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
    jobs = [
        {"id": 3, "partition": "train", "reason": reason},
        {"id": 4, "partition": "other", "reason": "Priority"},
        {"id": 6, "partition": "train", "reason": "Priority"},
    ]

    def write(age):
        text = json.dumps({"written": time.time() - age, "jobs": jobs})
        (run.here / "queue.json").write_text(text, encoding="utf-8")

    write(10)
    assert run("why", "6").stdout.startswith(
        "job 6: queued: other jobs are before it; place 2 of 2 in the queue, whose first job waits: hosts that it needs are out of service or "
        "reserved: b (fan); expected start "
    )
    # A reader that has stopped, and a file that is damaged.
    write(1000)
    assert "place" not in run("why", "6").stdout
    (run.here / "queue.json").write_text("{", encoding="utf-8")
    assert "place" not in run("why", "6").stdout


def sealed_in(script):
    return _job_text.opened(script.partition("<<'END_OF_JOB'\n")[2].partition("END_OF_JOB\n")[0])


def test_clone_submits_the_file_of_a_job(run):
    (run.jobs / "4").mkdir()
    (run.jobs / "4/spec.yml").write_text(SAMPLE, encoding="utf-8")
    # The number was used again, with a new database.
    (run.jobs / "4.2").mkdir()
    (run.jobs / "4.2/spec.yml").write_text(SAMPLE.replace("first", "second"), encoding="utf-8")
    assert json.loads(run("clone", "4", "--set", "worker_gpu=1", "--dry-run", "--json").stdout)[
        "script"
    ].startswith("#!/bin/bash\n")
    assert run("clone", "4", "--set", "worker_gpu=1").returncode == 0
    script = (run.here / "script").read_text(encoding="utf-8")
    assert "--job-name=second\n" in script and "--gpus-per-node=1\n" in script
    assert "job 5 has no job file" in run("clone", "5").stderr


def test_a_clone_of_a_job_that_waits(run):
    """It has no folder yet. Its script has the file, sealed, and somebody else's is no file."""
    (run.here / "home").mkdir()
    assert (
        run("submit", run.file(SAMPLE + "worker_gpu: 2\nenvironment: {A: END_OF_JOB}\n")).returncode
        == 0
    )
    script = run.here / "script"
    (run.here / "kept").write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
    usual = PROGRAMS["scontrol"] % {"here": run.here}
    kept = 'case "$*" in "write batch_script 12 -") cat %s/kept; exit;; *batch_script*) exit 1;; esac\n'
    run.program("scontrol", kept % run.here + usual)
    done = run("clone", "12", "--set", "name=again")
    assert done.returncode == 0, done.stderr
    text = script.read_text(encoding="utf-8")
    assert "--job-name=again\n" in text and "--gpus-per-node=2\n" in text
    assert "job 13 has no job file" in run("clone", "13").stderr
    for other in ("#!/bin/sh\nsleep 1\n", "<<'END_OF_JOB'\nx\nEND_OF_JOB\n"):
        (run.here / "kept").write_text(other, encoding="utf-8")
        assert "job 12 has no job file" in run("clone", "12").stderr


def test_a_clone_starts_where_the_job_has_started(run):
    folder = run.here / "share/project"
    folder.mkdir()
    submitted = ("sh", "-c", 'cd "$0" && exec "$@"', str(folder))
    assert run("submit", str(run.here / run.file()), before=submitted).returncode == 0
    script = (run.here / "script").read_text(encoding="utf-8")
    assert "#SBATCH --chdir=%s\n" % folder in script
    (run.jobs / "4").mkdir()
    (run.jobs / "4/spec.yml").write_text(sealed_in(script)[1], encoding="utf-8")
    assert run("clone", "4").returncode == 0
    assert "#SBATCH --chdir=%s\n" % folder in (run.here / "script").read_text(encoding="utf-8")


def test_attach(run):
    (run.here / "jobs").write_text(a_job(5, "a,b"), encoding="utf-8")
    assert run("attach", "5", "--rank", "1", "--", "id", "-u").returncode == 0
    words = (run.here / "srun").read_text(encoding="utf-8").split("\n")[:-1]
    assert "--nodelist=b" in words and words[-5:] == [
        "trainyard-run",
        "--enter=1",
        "--",
        "id",
        "-u",
    ]
    assert run("attach", "5", "--root", "--", "id", "-u").returncode == 0
    assert (run.here / "srun").read_text(encoding="utf-8").split("\n")[-7:-1] == [
        "trainyard-run",
        "--enter=0",
        "--root",
        "--",
        "id",
        "-u",
    ]
    for rank in ("2", "-1", "-3"):
        assert (
            run("attach", "5", "--rank", rank).stderr
            == "trainyard: job 5 has no worker %s; its workers are 0 to 1\n" % rank
        )


def a_running_job(run, **files):
    """Job 5 on hosts a and b, with services, as it has written its files."""
    (run.here / "jobs").write_text(a_job(5, "a,b"), encoding="utf-8")
    (run.jobs / "5").mkdir()
    files = dict(
        {
            "job.json": _job_text.sealed(
                {"services": {"ssh": True, "jupyter": True, "tensorboard": "/logs"}}, ""
            )
        },
        **files,
    )
    for name, content in files.items():
        (run.jobs / "5" / name).write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )


def test_endpoints(run):
    a_running_job(
        run,
        **{
            "services.json": {
                "jupyter": {
                    "state": "ready",
                    "why": "",
                    "token": "abc",
                    "host": "a",
                    "socket": "/run/trainyard/jobs/5/task.0.0/jupyter.sock",
                },
                "tensorboard": {
                    "state": "failed",
                    "why": "the image has no TensorBoard",
                    "token": "",
                    "host": "a",
                    "socket": "/x",
                },
            }
        },
    )
    told = {
        endpoint["service"]: endpoint
        for endpoint in json.loads(run("show", "5", "--json").stdout)["endpoints"]
    }
    through = (
        "ssh -o 'ProxyCommand=ssh %s@login.site trainyard attach --stdio 5' -o HostKeyAlias=jobs-of-%s"
        % (ME, ME)
    )
    assert told["ssh"]["command"] == through + " %s@job-5" % ME
    assert (
        told["jupyter"]["command"]
        == through + " -N -L 8888:/run/trainyard/jobs/5/task.0.0/jupyter.sock %s@job-5" % ME
    )
    assert told["jupyter"]["url"] == "http://localhost:8888/?token=abc"
    assert (
        told["tensorboard"]["command"],
        told["tensorboard"]["url"],
        told["tensorboard"]["why"],
    ) == (None, None, "the image has no TensorBoard")
    text = run("show", "5").stdout
    assert (
        "tensorboard failed: the image has no TensorBoard\n" in text
        and "then open http://localhost:8888/?token=abc\n" in text
    )
    # They are of a running job.
    (run.here / "jobs").write_text("", encoding="utf-8")
    (run.here / "ended").write_text(ended(5), encoding="utf-8")
    assert json.loads(run("show", "5", "--json").stdout)["endpoints"] == []


def test_what_the_gpus_do(run):
    minutes = [
        {"minute": 1, "gpus": [[150, 2, 900], [0, 0, None]]},
        {"minute": 2, "gpus": [[30, 1, 800], [0, 0, None]]},
    ]
    a_running_job(
        run,
        **{
            "watch.0.json": {
                "now": [[97, 900, 24576], [None, None, 24576]],
                "minutes": minutes,
                "devices": ["0", "1"],
            },
            # Slurm gave GPU 3 of a host where nvidia-smi shows all four.
            "watch.1.json": {
                "now": [[1, 2, 3]] * 3 + [[50, 5, 9]],
                "minutes": [],
                "devices": ["3"],
            },
        },
    )
    told = json.loads(run("show", "5", "--json").stdout)["usage"]
    assert [
        (
            gpu["host"],
            gpu["gpu"],
            gpu["percent"],
            gpu["memory_mib"],
            gpu["hour_percent"],
            gpu["hour_memory_mib"],
        )
        for gpu in told
    ] == [("a", 0, 97, 900, 60, 900), ("a", 1, None, None, None, None), ("b", 3, 50, 5, None, None)]
    assert "a     0    97 %  900 MiB of 24576 MiB  60 %       900 MiB\n" in run("show", "5").stdout


def test_attach_for_ssh(run):
    (run.here / "jobs").write_text(a_job(5, "a,b"), encoding="utf-8")
    home = run.here / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/authorized_keys").write_text("# none\n", encoding="utf-8")
    done = run("attach", "--stdio", "5")
    assert (
        done.returncode == 2
        and "you have no public key on this host; put one into %s/.ssh/authorized_keys" % home
        in done.stderr
    )
    (home / ".ssh/authorized_keys").write_text("ssh-ed25519 AAAA mine", encoding="utf-8")
    for name in ("5", "job-5"):
        assert run("attach", "--stdio", name, "--rank", "1").returncode == 0
        words = (run.here / "srun").read_text(encoding="utf-8").split("\n")[:-1]
        assert words[-4:] == [
            "/usr/local/lib/trainyard/jobs/door",
            "serve",
            str(run.jobs / ".ssh"),
            "1",
        ]
        assert "--nodelist=b" in words and "--pty" not in words and "--unbuffered" in words
    assert (run.jobs / ".ssh/authorized_keys").read_text(
        encoding="utf-8"
    ) == "ssh-ed25519 AAAA mine\n"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (run.jobs / ".ssh").iterdir()}
    assert (
        modes == {"authorized_keys": 0o600, "host_key": 0o600}
        and (run.jobs / ".ssh").stat().st_mode & 0o777 == 0o700
    )
    key = (run.jobs / ".ssh/host_key").read_bytes()
    assert (
        run("attach", "--stdio", "5").returncode == 0
        and (run.jobs / ".ssh/host_key").read_bytes() == key
    )


def test_tensorboard(run):
    logs = run.here / "home/logs"
    assert run("tensorboard", "home/logs").stderr == "trainyard: home/logs is not a folder\n"
    logs.mkdir(parents=True)
    assert (
        "%s is on this host only; use a folder below %s/home or %s/share"
        % (run.here, run.here, run.here)
        in run("tensorboard", ".").stderr
    )
    (run.here / "ended").write_text(
        ended(12, "FAILED", "1:0", name="tensorboard"), encoding="utf-8"
    )
    done = run("tensorboard", "home/logs", "--set", "worker_image=tools:1")
    assert (done.returncode, done.stdout) == (1, "job 12 failed\n"), done.stderr
    script = (run.here / "script").read_text(encoding="utf-8")
    assert (
        "services:\n  - {tensorboard: %s}\n" % logs in script
        and "--gpus" not in script
        and "#SBATCH --time=240\n" in script
    )
    # Root may read every folder, so this one is a file. Scenario workbench has that of another
    # person.
    path = run.here / run.file()
    done = run("submit", "-", text=SAMPLE + "services: {tensorboard: %s}\n" % path)
    assert (
        done.returncode == 2
        and "services: tensorboard: '%s' is not a folder that you can read" % path in done.stderr
    )
    assert run("submit", "-", text=SAMPLE + "services: {tensorboard: ~/later}\n").returncode == 0


def test_quota_nodes_and_images(run):
    lines = run("quota").stdout.splitlines()
    assert [
        line.rsplit(None, 2)[1:] if "no limit" not in line else line.rsplit(None, 3)[1:]
        for line in lines[4:]
    ] == [["1", "8"], ["0.5", "16"], ["1", "500"], ["3", "2000"], ["-", "1440"], ["-", "600"]]
    assert lines[3].split() == ["LIMIT", "ACCOUNT", "USED", "AT", "MOST"] and lines[7].startswith(
        "your waiting and running jobs"
    )
    [entry] = json.loads(run("quota", "--json").stdout)
    assert (
        entry["cpus"],
        entry["cpus_used"],
        entry["memory_mib"],
        entry["submitted_used"],
        entry["max_submitted"],
    ) == (8, 1, 16384, 3, 2000)
    assert lines[1].split() == [
        "vision",
        "4",
        "4",
        "1",
        "no",
        "limit",
        "no",
        "limit",
        "low,normal,high",
    ]
    lines = run("nodes").stdout.splitlines()
    assert (
        lines[1].split()
        == ["a", "in", "service", "8", "of", "8", "16", "of", "16", "3", "of", "4", "h100"]
        and lines[-1] == "a worker can have 4 GPUs, 8 CPUs and 15.62 GB now, on b"
    )
    assert run("images").stdout == "tools:1\npytorch:2.5\n"
    assert json.loads(run("images", "--json").stdout) == [
        {"name": "tools:1"},
        {"name": "pytorch:2.5"},
    ]
    for name in ("quota", "nodes", "images"):
        assert json.loads(run(name, "--json").stdout)


def test_gpus_that_no_worker_can_have(run):
    """Of a host without free CPUs or memory, and of one that is out of service."""
    text = NODES.replace("CPUAlloc=0", "CPUAlloc=8", 1).replace("AllocMem=0", "AllocMem=16000")
    (run.here / "nodes").write_text(text, encoding="utf-8")
    lines = run("nodes").stdout.splitlines()
    assert lines[-3:] == [
        "no worker can start now",
        "3 GPUs of a are free, but no CPU is",
        "4 GPUs of b are free, but no memory is",
    ]
    away = NODES.replace("State=IDLE", "State=IDLE+DRAIN").replace(
        "Partitions=train\nNodeName=b", "Partitions=train\nNodeName=b", 1
    )
    away = away.rstrip("\n") + " Reason=fan \x1b[31mbroken [root@2026-11-26T04:00:00]\n"
    (run.here / "nodes").write_text(away, encoding="utf-8")
    lines = run("nodes").stdout.splitlines()
    assert lines[-2:] == [
        "b is out of service: fan ?[31mbroken, since 2026-11-26 04:00",
        "a worker can have 3 GPUs, 8 CPUs and 15.62 GB now, on a",
    ]
    told = {entry["name"]: entry for entry in json.loads(run("nodes", "--json").stdout)}
    assert told["b"]["since"] == "2026-11-26T04:00:00Z" and told["a"]["since"] is None


def test_the_overview(run):
    (run.here / "jobs").write_text(a_job(5, "a") + a_job(6, "", "PENDING"), encoding="utf-8")
    lines = run().stdout.splitlines()
    assert lines[0] == "you have 1 running and 1 waiting jobs"
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["5", "job", "running"],
        ["6", "job", "waiting"],
    ]
    assert lines[4:] == [
        "7 of 8 GPUs are free (h100)",
        "group vision uses 4 of 4 GPUs, you use 1",
        "next: trainyard submit job.yml, trainyard list, trainyard --help",
    ]
    told = json.loads(run("--json").stdout)
    assert told["classes"] == [{"name": "h100", "gpus": 8, "free": 7}]
    run.program("squeue", "echo 'error: Unable to contact slurm controller' >&2; exit 1")
    assert run().returncode == 3


def test_words_that_are_almost_right(run):
    for words, said in (
        (("sow",), "there is no subcommand 'sow'; did you mean show?; see: trainyard --help"),
        (("stop",), "the following arguments are required: ID; see: trainyard stop --help"),
        (
            ("list", "--stat", "x", "--folow"),
            "unrecognized arguments: --folow; see: trainyard --help",
        ),
        (
            ("logs", "4", "--folow"),
            "unrecognized arguments: --folow; did you mean --follow?; see: trainyard --help",
        ),
        (
            ("list", "--state", "runing"),
            "; did you mean running?",
        ),
        (("list", "--since", "yesterday"), "--since: 'yesterday' is not a time; use 30m, 12h"),
        (("logs", "4", "--tail", "x"), "argument --tail: invalid int value: 'x'"),
        (("submit", run.file(), "--set", "worker_image="), "worker_image: a value is required"),
    ):
        done = run(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr, done.stderr
    assert "no subcommand" in json.loads(run("sow", "--json").stdout)["error"]


def test_the_list_is_filtered(run):
    found = ended(3) + ended(4, "FAILED", "2:0", name="BERT large") + ended(5, "TIMEOUT")
    (run.here / "ended").write_text(found, encoding="utf-8")
    (run.here / "jobs").write_text(a_job(6, "", "PENDING"), encoding="utf-8")

    def numbers(*words):
        return [job["id"] for job in json.loads(run("list", "--json", *words).stdout)]

    assert numbers("--state", "waiting") == ["6"]
    assert numbers("--state", "out of time,failed") == ["4", "5"]
    assert numbers("--state", "timeout") == ["5"]
    assert numbers("--name", "bert") == ["4"] and numbers("--name", "f?rst") == ["3", "5"]
    assert numbers("--name", "[") == []
    run.program("sacct", 'echo "$*" > %s/asked' % run.here)
    for since in ("2h", "2020-01-31", "2020-01-31T18:00"):
        assert numbers("--since", since) == ["6"]
        asked = (run.here / "asked").read_text(encoding="utf-8")
        assert ("--starttime=2020-01-31T" in asked) == since.startswith("2020")
    (run.here / "jobs").write_text("", encoding="utf-8")
    said = run("list", "--state", "failed", "--since", "2h").stdout
    assert said == "no jobs with this state since 2h; `trainyard list --all` shows older ones\n"
    assert "needs a terminal" in run("list", "--watch").stderr


def on_terminal(run, *words, seconds=20, **environment):
    """Return what the command prints on a terminal."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", run.program_text(), *words]
    with subprocess.Popen(
        command,
        env=dict(run.environment(), **{"TERM": "xterm", **environment}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=run.here,
    ) as child:
        os.close(theirs)
        text, end = b"", time.monotonic() + seconds
        while time.monotonic() < end and text.count(b"Ctrl-C") < 2:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                text += os.read(ours, 1 << 16)
            except OSError:
                break
        # Not Ctrl-C: a shell may have started the tests with SIGINT ignored.
        child.terminate()
    os.close(ours)
    return text.decode()


def test_colours_on_a_terminal(run):
    found = ended(4, "FAILED", "2:0", name="running") + ended(5)
    (run.here / "ended").write_text(found, encoding="utf-8")
    assert "\x1b" not in run("list", TERM="xterm").stdout
    shown = on_terminal(run, "list")
    assert "running  \x1b[31mfailed\x1b[0m" in shown and shown.count("\x1b") == 2
    assert "\x1b[31mfailed\x1b[0m" in on_terminal(run, "show", "4")
    for off in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_terminal(run, "list", **off)


def test_the_list_is_shown_again(run):
    (run.here / "ended").write_text(ended(4), encoding="utf-8")
    shown = on_terminal(run, "list", "--watch", "1", NO_COLOR="1")
    assert shown.count("every 1 s, Ctrl-C ends") == 2 and "first  done" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("words", [("list",), ("nodes",), ("logs", "4"), ("--help",)])
def test_an_output_that_is_full_or_closed(run, words):
    (run.jobs / ".out/4.log").write_text("line\n", encoding="utf-8")
    full = run(*words, before=("sh", "-c", 'exec "$@" > /dev/full', "sh"))
    assert (full.returncode, full.stderr) == (
        2,
        "trainyard: standard output: No space left on device\n",
    )
    closed = run(*words, before=("sh", "-c", 'exec "$@" >&-', "sh"))
    assert (closed.returncode, closed.stderr) == (0, "")
    gone = run(*words, before=("bash", "-c", '"$@" | true; exit "${PIPESTATUS[0]}"', "bash"))
    assert (gone.returncode, gone.stderr) == (0, "")


def test_why_a_host_is_out_of_service(run):
    text = NODES.replace("State=IDLE", "State=IDLE+DRAIN").rstrip("\n")
    text += " Reason=trainyard: gpu-xid: Xid 79 [root@2026-11-29T08:12:00]\n"
    (run.here / "nodes").write_text(text, encoding="utf-8")
    lines = run("nodes").stdout.splitlines()
    said = "b is out of service: trainyard: gpu-xid: Xid 79, since 2026-11-29 08:12"
    assert lines.count(said) == 1
    entries = json.loads(run("nodes", "--json").stdout)
    assert [entry["since"] for entry in entries] == [None, "2026-11-29T08:12:00Z"]


def test_the_history_of_hosts(run):
    (run.here / "events").write_text("", encoding="utf-8")
    assert run("nodes", "--history").stdout == "no host was out of service in the last 30 days\n"
    (run.here / "events").write_text(
        "b|2026-11-29T10:00:00|Unknown|DRAIN|trainyard: share: a|b\x1b[2J\n"
        "a|2026-11-28T10:00:00|2026-11-28T11:00:00|DOWN*|Not responding\n",
        encoding="utf-8",
    )
    lines = run("nodes", "--history").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["HOST", "a", "b"]
    assert lines[2].endswith("trainyard: share: a|b?[2J") and " -  " in lines[2]
    assert json.loads(run("nodes", "--history", "--json").stdout)[0] == {
        "node": "a",
        "start": "2026-11-28T10:00:00Z",
        "end": "2026-11-28T11:00:00Z",
        "state": "down*",
        "reason": "Not responding",
    }
    (run.here / "events").write_text("only|three|fields\n", encoding="utf-8")
    assert run("nodes", "--history").returncode == 3


@pytest.mark.parametrize(
    "answer, last, said",
    [
        ("{'registry_used_mib': 1536, 'registry_mib': 102400}", "1.5 100", ""),
        ("{'registry_used_mib': 0, 'registry_mib': None}", "0 no limit", ""),
        (
            "1/0",
            "- 600",
            "trainyard: the space of your images is not known: the registry does not answer\n",
        ),
    ],
)
def test_the_space_of_images(run, answer, last, said):
    module = run.here / "library/_registry.py"
    module.unlink()
    module.write_text(
        "class RegistryError(Exception):\n    pass\n\n\nLOGINS = %r\n\n\ndef space(person):\n    assert person == %r\n    try:\n        return %s\n"
        "    except ZeroDivisionError:\n        raise RegistryError('the registry does not answer')\n"
        % (str(run.here), ME, answer),
        encoding="utf-8",
    )
    done = run("quota")
    assert (
        done.returncode == 0
        and " ".join(done.stdout.split()).endswith(last)
        and done.stderr == said
    )
    assert said or "your images in the registry (GB)" in done.stdout


def test_mails_as_the_job_or_its_person_has_chosen(run):
    def sent(*words):
        done = run("submit", run.file(), *words)
        assert done.returncode == 0, done.stderr
        script = (run.here / "script").read_text(encoding="utf-8")
        return [line for line in script.splitlines() if "--mail" in line]

    # Not at this site.
    assert sent() == []
    done = run("submit", run.file(), "--set", "mail=end")
    assert done.returncode == 2
    assert "mail: this cluster sends no mails (jobs_mail); remove the key" in done.stderr
    path = run.here / "jobs.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(dict(config, mail=True)), encoding="utf-8")
    assert sent() == ["#SBATCH --mail-type=END,FAIL,REQUEUE"]
    chosen = run.here / "home/.config/trainyard/mail"
    chosen.parent.mkdir(parents=True)
    chosen.write_text("start, fail\n", encoding="utf-8")
    assert sent() == ["#SBATCH --mail-type=BEGIN,FAIL"]
    assert sent("--set", "mail=none") == []
    chosen.write_text("always\n", encoding="utf-8")
    done = run("submit", run.file())
    assert done.returncode == 2
    assert "%s: 'always' is not possible; use none, or some of start, end" % chosen in done.stderr


def test_a_job_too_many(run):
    """The limit is named, also if sbatch alone knows which account a job has."""
    run.program(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user'\\''s size and/or "
        "time limits)' >&2; exit 1",
    )
    job = run.file()
    assert "violates accounting/QOS policy" in run("submit", job).stderr
    (run.here / "usage").write_text(
        USAGE.replace("GrpSubmitJobs=N(3)", "GrpSubmitJobs=N(2000)"), encoding="utf-8"
    )
    said = "workspace_id: you have 2000 waiting and running jobs in account vision, which allows each person 2000; wait until one ends, or stop one"
    done = run("submit", job)
    assert done.returncode == 2 and said in done.stderr
    # Of two accounts, nobody but Slurm knows the default one.
    both = USAGE + USAGE.replace("Account=vision", "Account=language")
    (run.here / "usage").write_text(
        both.replace("GrpSubmitJobs=N(3)", "GrpSubmitJobs=N(2000)", 1), encoding="utf-8"
    )
    done = run("submit", job)
    assert done.returncode == 2 and said in done.stderr and "language" not in done.stderr


def test_images_of_the_registry(run):
    entry = {
        "name": "front:5000/site/pytorch:2.5",
        "frameworks": {"PyTorch": "2.5.1"},
        "platforms": ["linux/amd64"],
        "digest": "sha256:1",
    }
    (run.here / "images.json").write_text(
        json.dumps({"registry": "front:5000", "images": [entry, {"name": "tools:1"}]}),
        encoding="utf-8",
    )
    assert (
        run("images").stdout
        == "tools:1\npytorch:2.5\nfront:5000/site/pytorch:2.5  PyTorch 2.5.1  linux/amd64\n"
    )
    assert json.loads(run("images", "--json").stdout) == [
        {"name": "tools:1"},
        {"name": "pytorch:2.5"},
        entry,
    ]
    # All hosts are x86_64.
    (run.here / "jobs.json").write_text(
        (run.here / "jobs.json")
        .read_text()
        .replace('"registries": []', '"registries": ["front:5000"]')
    )
    arm = dict(entry, platforms=["linux/arm64"])
    (run.here / "nodes").write_text(NODES.replace("CPUTot", "Arch=x86_64 CPUTot"), encoding="utf-8")
    (run.here / "images.json").write_text(
        json.dumps({"registry": "front:5000", "images": [arm]}), encoding="utf-8"
    )
    job = run.file(SAMPLE.replace("tools:1", arm["name"]))
    done = run("submit", job)
    assert (
        done.returncode == 2
        and "is for linux/arm64, but the hosts of this cluster need linux/amd64 (a, b)"
        in done.stderr
    ), done.stderr
    (run.here / "images.json").write_text("{", encoding="utf-8")
    assert run("submit", job).returncode == 0
    done = run("images")
    assert (
        done.returncode == 2
        and "images.json cannot be read" in done.stderr
        and "run playbook image_relay" in done.stderr
    )


@pytest.mark.parametrize(
    "answer, lines, said",
    [
        (
            "['front:5000/%(me)s/tools:20261128-120000', 'front:5000/%(me)s/old:1']",
            [
                "front:5000/%(me)s/tools:20261128-120000  saved by you",
                "front:5000/%(me)s/old:1  saved by you",
            ],
            "",
        ),
        ("1/0", [], "trainyard: your saved images are not known: the registry does not answer\n"),
    ],
)
def test_images_that_the_person_has_saved(run, answer, lines, said):
    """With a module in the place of _registry, which has tests of its own."""
    module = run.here / "library/_registry.py"
    module.unlink()
    module.write_text(
        "class RegistryError(Exception):\n    pass\n\n\nLOGINS = %r\n\n\ndef saved_images(person):\n    assert person == %r\n    try:\n        return %s\n"
        "    except ZeroDivisionError:\n        raise RegistryError('the registry does not answer')\n"
        % (str(run.here), ME, answer % {"me": ME}),
        encoding="utf-8",
    )
    done = run("images")
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (
        0,
        ["tools:1", "pytorch:2.5"] + [line % {"me": ME} for line in lines],
        said,
    )
    assert [entry for entry in json.loads(run("images", "--json").stdout) if "saved" in entry] == [
        {"name": line.partition(" ")[0] % {"me": ME}, "saved": True} for line in lines
    ]


@pytest.mark.parametrize(
    "name, body, code, said",
    [
        (
            "squeue",
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            3,
            "Start the controller on its host",
        ),
        ("squeue", "echo half", 3, "squeue printed something unexpected"),
        (
            "sacct",
            "echo 'sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:a:6819: Connection refused' >&2; exit 1",
            3,
            "Start the database daemon",
        ),
    ],
)
def test_slurm_that_does_not_answer(run, name, body, code, said):
    run.program(name, body)
    done = run("list")
    assert done.returncode == code and said in done.stderr and done.stdout == ""


def without_database(run):
    said = "error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:a:6819: Connection refused"
    for name in ("sacct", "sacctmgr"):
        run.program(name, "echo '%s: %s' >&2; exit 1" % (name, said))


def test_the_database_is_down(run):
    """The controller goes on without it: it judges jobs, and tells of those that run."""
    without_database(run)
    assert run("submit", run.file()).stdout.startswith("job 12 submitted.")
    # What the controller knows is judged as usual, and what it refuses is told.
    for key, said in (
        ("worker_cpu: 9", "the largest host of this cluster has 8 CPUs"),
        ("worker_gpu: 5", "but account vision has 4 at most"),
    ):
        assert said in run("submit", run.file(SAMPLE + key + "\n")).stderr
    a_running_job(run)
    assert (
        json.loads(run("show", "5", "--json").stdout)["efficiency"] == {}
        and "job 5  job  running\n" in run("show", "5").stdout
    )
    for words in (("list",), ("quota",), ("show", "4")):
        done = run(*words)
        assert (
            done.returncode == 3
            and done.stdout == ""
            and done.stderr.count("\n") == 1
            and "Jobs go on meanwhile" in done.stderr
        ), done.stderr


def test_a_priority_that_the_account_does_not_have(run):
    """Only the database knows it. It is asked once sbatch has refused the job."""
    run.program(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1",
    )
    job = run.file(SAMPLE + "priority: high\n")
    assert (
        run("submit", job).stderr
        == "trainyard: sbatch: Batch job submission failed: Invalid qos specification\n"
    )
    (run.here / "associations").write_text(
        ASSOCIATIONS.replace("low,normal,high", "low,normal"), encoding="utf-8"
    )
    done = run("submit", job)
    assert (
        done.returncode == 2
        and done.stderr
        == "trainyard: job.yml: line 4: priority: account vision cannot use 'high'; use one of low, normal\n"
    )
    # A job without a priority has not asked for one.
    assert "Invalid qos" in run("submit", run.file()).stderr


def test_a_full_share(run):
    """A limit for the size of files is in the place of the full file system of scenario
    workbench.
    """
    full = ("sh", "-c", 'ulimit -f 1; exec "$@"', "sh")
    done = run("submit", run.file(), before=full)
    assert done.returncode == 2 and not (run.here / "script").exists()
    assert (
        done.stderr
        == "trainyard: %s/.out cannot be written: File too large. Remove files of yours on the share, or tell the operator\n"
        % run.jobs
    )
    assert list((run.jobs / ".out").iterdir()) == []
    # Why a job has left no result.
    (run.here / "ended").write_text(ended(4, "FAILED", "125:0"), encoding="utf-8")
    said = "it has left no result: %s/.out cannot be written: File too large." % run.jobs
    assert (
        said in run("show", "4", before=full).stdout
        and said in json.loads(run("show", "4", "--json", before=full).stdout)["why"]
    )
    assert json.loads(run("show", "4", "--json").stdout)["why"] == ""


def test_sbatch_that_refuses(run):
    run.program(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)' >&2; exit 1",
    )
    done = run("submit", run.file())
    assert done.returncode == 2 and "Job violates accounting/QOS policy" in done.stderr


def test_names_of_jobs_do_not_reach_the_terminal(run):
    (run.here / "ended").write_text(ended(3, name="\x1b[31mred"), encoding="utf-8")
    assert "\x1b" not in run("list").stdout


def test_help_has_an_example_for_each_subcommand(run):
    text = run("--help").stdout
    names = [
        line.split()[0]
        for line in text[text.index("  SUBCOMMAND [ARGUMENT...]\n") :].splitlines()[1:]
        if line.startswith("    ")
    ]
    assert names[:3] == ["submit", "list", "show"] and len(names) >= 11
    for name in names:
        assert "example:\n  trainyard %s" % name in run(name, "--help").stdout


@pytest.fixture(name="completed")
def _completed(run):
    """What a shell offers after some words, which it splits at = and : as bash does."""
    run.program("trainyard", "echo")
    start = [sys.executable, "-c", run.program_text()]
    (run.here / "bin/trainyard").write_text(
        '#!/bin/bash\nexec %s "$@"\n' % shlex.join(start), encoding="utf-8"
    )

    def completed(*words):
        script = (
            "source %s; COMP_WORDS=(%s); COMP_CWORD=%d; _trainyard; printf '%%s\\n' \"${COMPREPLY[@]}\""
            % (
                FILES / "completion.bash",
                " ".join("'%s'" % entry for entry in words),
                len(words) - 1,
            )
        )
        return subprocess.run(
            ["bash", "-c", script],
            env=run.environment(),
            cwd=run.here,
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.split()

    return completed


def test_completion(run, completed):
    jobs = a_job(12, "a") + a_job(13, "", "PENDING") + a_job(21, "a")
    (run.here / "jobs").write_text(jobs, encoding="utf-8")
    (run.here / "ended").write_text(ended(14) + ended(2), encoding="utf-8")
    assert completed("trainyard", "s") == ["submit", "show", "stop"]
    # Jobs that have ended have logs, but are not stopped. The newest comes first.
    assert completed("trainyard", "logs", "1") == ["14", "13", "12"]
    assert completed("trainyard", "stop", "") == ["21", "13", "12"]
    assert completed("trainyard", "stop", "12", "2") == ["21"]
    assert completed("trainyard", "logs", "--f") == ["--follow"]
    assert completed("trainyard", "list", "--") == [
        *("--all", "--state", "--since", "--name", "--watch", "--json", "--help")
    ]
    assert completed("trainyard", "nodes", "1") == completed("trainyard", "sow", "") == []
    names = [
        line.split()[0]
        for line in run("--help").stdout.partition("  SUBCOMMAND [ARGUMENT...]\n")[2].splitlines()
        if line.startswith("    ")
    ]
    assert completed("trainyard", "") == [*names, "--help"]


def test_completion_of_values(run, completed):
    submit = ("trainyard", "submit", "job.yml", "--set")
    assert completed(*submit, "worker_im") == ["worker_image="]
    assert completed(*submit, "worker_image", "=") == ["tools:1", "pytorch:2.5"]
    assert completed(*submit, "worker_image", "=", "py") == ["pytorch:2.5"]
    # The shell has made three words of it, and replaces the last one.
    assert completed(*submit, "worker_image", "=", "tools", ":", "") == ["1"]
    assert completed(*submit, "priority", "=", "") == ["low", "normal", "high"]
    assert completed(*submit, "preemptible", "=", "t") == ["true"]
    assert completed("trainyard", "list", "--state", "wait") == ["waiting"]
    # Without Slurm nothing is offered, and nothing is said in the middle of the person's line.
    run.program("squeue", "echo no >&2; exit 1")
    assert completed("trainyard", "stop", "") == []


def test_login_needs_a_hub(run):
    """Scenario workbench has one."""
    done = run("login", "--json")
    assert (
        done.returncode == 2
        and "this host has no hub for the browser" in json.loads(done.stdout)["error"]
    )
