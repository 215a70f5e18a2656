# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command trainyard, with programs in the place of Slurm's that print what Slurm prints. Scenario workbench has the real ones."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
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
    "sbatch": "env > %(here)s/environment; cat > %(here)s/script; echo 12",
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
                for name in ("_slurm", "_log_causes", "_error_signatures", "_host_health")
            ),
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

    def __call__(self, *words, text=None, before=(), **environment):
        ours = dict(
            os.environ,
            PATH="%s:/usr/bin:/bin" % (self.here / "bin"),
            SECRET="s3cret",
            TRAINYARD_JOBS_CONFIG=str(self.here / "jobs.json"),
            TZ="UTC0",
            PYTHONDONTWRITEBYTECODE="1",
            **environment,
        )
        # As a person: root has no jobs.
        # As a person with a home of their own: root has no jobs.
        program = (
            "import atexit, os, pwd, sys, time; atexit.register(lambda: open(%r, 'w').write(str(time.process_time()))); sys.path.insert(0, %r); found = list(pwd.getpwuid(os.getuid())); found[5] = %r; found = pwd.struct_passwd(found); "
            "os.getuid = lambda: found.pw_uid or 1000; pwd.getpwuid = lambda _uid: found; exec(compile(open(%r).read(), 'trainyard', 'exec'))"
            % (
                str(self.here / "seconds"),
                str(self.here / "library"),
                str(self.here / "home"),
                str(FILES / "trainyard.py"),
            )
        )
        command = [*before, sys.executable, "-c", program, *words]
        done = subprocess.run(
            command,
            cwd=self.here,
            env=ours,
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
    ) and done.stdout == "job 12 submitted. Follow it with: trainyard logs -f 12\n"
    script = (run.here / "script").read_text(encoding="utf-8")
    assert (
        "#SBATCH --gpus-per-node=2\n" in script
        and "#SBATCH --output=%s/.out/%%j.log\n" % run.jobs in script
        and 'command: "python3 train.py"' in script
    )
    # Nothing of the shell of the person reaches the job.
    assert "s3cret" not in (run.here / "environment").read_text(encoding="utf-8")
    told = json.loads(run("submit", "-", "--json", text=SAMPLE).stdout)
    assert told == {"id": "12", "name": "first", "log": str(run.jobs / ".out/12.log")}


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
        "job 6: queued: group vision uses 4 of its 4 GPUs; estimated start "
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


def test_show_and_logs_of_a_job_that_failed(run):
    (run.here / "ended").write_text(ended(4, "FAILED", "2:0"), encoding="utf-8")
    (run.here / "steps").write_text(
        "4|100|4|00:00:00||4000M\n4.batch|100|4|00:03:20|512.00M|\n", encoding="utf-8"
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
    assert said == "no known message. These lines may say why:\nline 2: odd thing failed\n"
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


def test_stop(run):
    (run.here / "jobs").write_text(a_job(5, "a"), encoding="utf-8")
    (run.here / "ended").write_text(ended(4), encoding="utf-8")
    assert (
        run("stop", "5").stdout == "job 5 is being stopped\n"
        and (run.here / "cancelled").read_text(encoding="utf-8") == "5\n"
    )
    assert run("stop", "4").stderr == "trainyard: job 4 has already ended (done)\n"


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
    # Root may read every folder, so this one is a file. Scenario workbench has that of another person.
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
        and lines[-1] == "a worker can have 4 GPUs now, on b"
    )
    assert run("images").stdout == "tools:1\npytorch:2.5\n"
    assert json.loads(run("images", "--json").stdout) == [
        {"name": "tools:1"},
        {"name": "pytorch:2.5"},
    ]
    for name in ("quota", "nodes", "images"):
        assert json.loads(run(name, "--json").stdout)


def test_why_a_host_is_out_of_service(run):
    text = NODES.replace("State=IDLE", "State=IDLE+DRAIN").rstrip("\n")
    text += " Reason=trainyard: gpu-xid: Xid 79 [root@2026-11-29T08:12:00]\n"
    (run.here / "nodes").write_text(text, encoding="utf-8")
    lines = run("nodes").stdout.splitlines()
    assert [
        line.startswith("b is out of service since 2026-11-29 ")
        and line.endswith(": trainyard: gpu-xid: Xid 79")
        for line in lines
    ].count(True) == 1
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
    """A limit for the size of files is in the place of the full file system of scenario workbench."""
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


def test_completion(run):
    (run.here / "jobs").write_text("", encoding="utf-8")
    run.program("squeue", "echo 12; echo 13; echo 21")

    def completed(*words):
        script = "source %s; COMP_WORDS=(%s); COMP_CWORD=%d; _trainyard; echo ${COMPREPLY[*]}" % (
            FILES / "completion.bash",
            " ".join("'%s'" % entry for entry in words),
            len(words) - 1,
        )
        return subprocess.run(
            ["bash", "-c", script],
            env=dict(os.environ, PATH="%s:/usr/bin:/bin" % (run.here / "bin")),
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.split()

    assert completed("trainyard", "s") == ["submit", "show", "stop"] and completed(
        "trainyard", "logs", "1"
    ) == ["12", "13"]
    assert completed("trainyard", "logs", "--f") == ["--follow"]
    names = [
        line.split()[0]
        for line in run("--help").stdout.partition("  SUBCOMMAND [ARGUMENT...]\n")[2].splitlines()
        if line.startswith("    ")
    ]
    assert sorted(completed("trainyard", "")) == sorted(names)


def test_login_needs_a_hub(run):
    """Scenario workbench has one."""
    done = run("login", "--json")
    assert (
        done.returncode == 2
        and "this host has no hub for the browser" in json.loads(done.stdout)["error"]
    )
