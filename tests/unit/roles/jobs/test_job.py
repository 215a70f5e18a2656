# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that runs a job on its hosts: its files, its result, and what it says of a
failure.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import _job_file
import _job_text
import pytest

from ansible_collections.trainyard.gpu.roles.train.files import _job_result

ROOT = Path(__file__).resolve().parents[4]
FILES = ROOT / "roles/jobs/files"
SMALL = {"name": "first", "command": "python3 train.py", "worker_image": "pytorch:2.5"}
# On the hosts they are in one folder.
SHIPPED = [
    FILES / "job.py",
    FILES / "_job_text.py",
    ROOT / "plugins/module_utils/_error_signatures.py",
    ROOT / "plugins/module_utils/_log_causes.py",
    ROOT / "plugins/module_utils/_bandwidth.py",
    ROOT / "plugins/module_utils/_files.py",
    ROOT / "plugins/module_utils/_gpu_numbers.py",
    ROOT / "plugins/module_utils/_host_health.py",
    ROOT / "plugins/module_utils/_messages.py",
    ROOT / "roles/train/files/_job_hang.py",
    ROOT / "roles/train/files/_job_result.py",
    ROOT / "roles/train/files/_job_watch.py",
    *(ROOT / "roles/host_library/files").glob("_*.py"),
]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    for path in SHIPPED:
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "rank").write_bytes((ROOT / "roles/training_image/files/rank.py").read_bytes())
    return folder


@pytest.fixture(name="program", scope="module")
def _program(folder):
    sys.path.insert(0, str(folder))
    try:
        import job
    finally:
        sys.path.remove(str(folder))
    return job


@pytest.mark.parametrize(
    "numbers, given, indexes",
    [
        ([0, 1, 2, 4, 3], "3", ["4"]),
        ([2, 3, 5, 7], "0,3", ["0", "3"]),
        ([0, 1], "", []),
        # trainyard-run refuses it.
        ([0, 1], "2", []),
    ],
)
def test_the_gpus_that_are_watched_are_those_of_nvidia_smi(
    monkeypatch, tmp_path, program, numbers, given, indexes
):
    for number in numbers:
        (tmp_path / ("nvidia%d" % number)).touch()
    config = {"gpus": {"positions": numbers, "nodes": str(tmp_path / "nvidia%d")}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="ascii")
    monkeypatch.setattr(program, "OF_DEVICES", str(path))
    assert program.watched_gpus({"SLURM_STEP_GPUS": given}) == indexes
    monkeypatch.setattr(program, "OF_DEVICES", str(tmp_path / "none"))
    assert program.watched_gpus({}) == []


def judged(**values):
    return _job_file.judge(dict(SMALL, **values))


def test_workers_of_mindspore_run_the_command_themselves(program):
    """trainyard-launch in it numbers the ranks, so nothing of the worker's own may be left."""
    job = judged(
        kind="MindSporeJob",
        worker_count="2",
        worker_gpu="8",
        command="trainyard-launch mindspore train.py",
    )
    assert "unset RANK WORLD_SIZE LOCAL_RANK" in program.environment_file(job, "/f").splitlines()
    assert "trainyard-launch run" not in " ".join(program.worker_command(job, "/f"))


def test_the_environment_of_a_worker_keeps_every_value(program, tmp_path):
    values = {"A": 'it\'s $(id) \\ "x"\n`y`', "B": "", "C": "ä b"}
    text = program.environment_file(
        judged(environment=values, kind="PyTorchJob", environment_aliases="dlws"), "/data1/a b"
    )
    (tmp_path / "environment").write_text(text, encoding="utf-8")
    script = ". %s; python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'" % (
        tmp_path / "environment"
    )
    ours = {
        "PATH": os.environ["PATH"],
        "TRAINYARD_WORKER_INDEX": "1",
        "TRAINYARD_WORKER_COUNT": "2",
        "TRAINYARD_JOB_ID": "7",
        "TRAINYARD_SSH_PORT": "10123",
        "USER": "anna",
        "LC_ALL": "C.UTF-8",
    }
    found = json.loads(
        subprocess.run(["sh", "-c", script], env=ours, stdout=subprocess.PIPE, check=True).stdout
    )
    assert {name: found[name] for name in values} == values and found[
        "TRAINYARD_JOB_DIR"
    ] == "/data1/a b"
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("1", "2", "0")
    assert (found["DLWS_JOB_ID"], found["DLWS_USER_NAME"], found["DLWS_SD_worker0_SSH_PORT"]) == (
        "7",
        "anna",
        "10123",
    )
    assert "unset RANK WORLD_SIZE LOCAL_RANK\n" in program.environment_file(judged(), "/x")


@pytest.mark.parametrize(
    "kind, first, second, started, said",
    [
        ("PyTorchJob", "a", "a", {}, []),
        ("PyTorchJob", "a", None, {}, ["worker 0 has a, worker 1 has none"]),
        ("Job", None, None, {}, []),
        # horovodrun, started by worker 0: the others only lend their hosts, and its ranks report
        # for themselves.
        ("HorovodJob", "a", None, {}, []),
        ("HorovodJob", "a", None, {0: {1: "a", 2: "a"}}, []),
        (
            "HorovodJob",
            "a",
            None,
            {0: {1: "a", 2: "b"}},
            [
                "worker 0 has a, rank 1, started by worker 0, has a, rank 2, started by worker 0, has b"
            ],
        ),
        (
            "MPIJob",
            "a",
            None,
            {0: {1: None}},
            ["worker 0 has a, rank 1, started by worker 0, has none"],
        ),
        # torchrun with two ranks in each worker. The second worker has no rank of its own number.
        ("PyTorchJob", "a", None, {0: {1: "a"}, 1: {2: "a", 3: "a"}}, []),
        (
            "PyTorchJob",
            "a",
            None,
            {0: {1: "a"}, 1: {2: "a", 3: "b"}},
            ["rank 3, started by worker 1, has b"],
        ),
    ],
)
def test_parameters_that_differ_are_found(program, tmp_path, kind, first, second, started, said):
    own = {0: first, 1: second}
    rows = [row(rank, 0, checksum=own[rank]) for rank in (0, 1)]
    reports = {
        worker: {rank: {"checksum": checksum} for rank, checksum in ranks.items()}
        for worker, ranks in started.items()
    }
    found = program.problems_of(rows, 0, "", "/f", program.checksums_of(rows, reports, kind))
    assert len(found) == len(said) and all(
        words in problem for words, problem in zip(said, found)
    ), found


def test_the_watcher_knows_the_card_of_the_data(program):
    text = '# Managed by trainyard.gpu.\nGLOO_SOCKET_IFNAME=eth1\nNCCL_SOCKET_IFNAME="=eth1"\nNCCL_IB_DISABLE=1\nOTHER=x\n'
    assert program.of_network(text, {}) == {
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",
        "NCCL_IB_DISABLE": "1",
    }
    assert (
        program.of_network(text, {"GLOO_SOCKET_IFNAME": "eth2", "PATH": "/bin"})[
            "GLOO_SOCKET_IFNAME"
        ]
        == "eth2"
    )
    assert program.of_network("", {"KEY": "x"}) == {}


def test_who_runs_the_command(program):
    for kind, count, launched in (
        ("Job", "2", False),
        ("PyTorchJob", "2", False),
        ("HorovodJob", "2", True),
        ("MPIJob", "2", True),
        ("MPIJob", "1", False),
    ):
        command = program.worker_command(judged(kind=kind, worker_count=count), "/f")
        assert command[0] == "/bin/sh" and command[-2:] == ["/f/environment", "/f/command.sh"]
        assert (
            "exec trainyard-launch run " in command[2]
        ) == launched and "services" not in command[2]
    # Everybody can read the arguments of a process.
    assert "train.py" not in " ".join(
        program.srun_command(judged(), "/f") + program.worker_command(judged(), "/f")
    )


def test_the_command_of_a_worker_runs(program, tmp_path):
    """With the variables of the file, in the place of the launcher, and with a service beside it on
    worker 0.
    """
    (tmp_path / "environment").write_text("A='b c'\n", encoding="utf-8")
    (tmp_path / "command.sh").write_text("echo $A; exit 3\n", encoding="utf-8")
    for name, text in (
        ("trainyard-launch", '#!/bin/sh\necho launched $1 $A; shift; exec "$@"\n'),
        ("python3", '#!/bin/sh\necho "$@"\n'),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)

    def run(index, **values):
        ours = {
            "PATH": "%s:%s" % (tmp_path, os.environ["PATH"]),
            "TRAINYARD_WORKER_INDEX": index,
            "TRAINYARD_JOB_DIR": str(tmp_path),
        }
        done = subprocess.run(
            program.worker_command(judged(**values), str(tmp_path)),
            env=ours,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    assert run("0") == (3, "b c\n") and run("0", kind="MPIJob", worker_count="2") == (
        3,
        "launched run b c\nb c\n",
    )
    assert (
        run("1", services={"jupyter": "true"}) == (3, "b c\n")
        and not (tmp_path / "services.log").exists()
    )
    assert run("0", services={"jupyter": "true"}) == (3, "b c\n")
    deadline = time.monotonic() + 10
    while not (tmp_path / "services.log").exists() or not (tmp_path / "services.log").read_text(
        encoding="utf-8"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (tmp_path / "services.log").read_text(
        encoding="utf-8"
    ) == "/usr/local/lib/trainyard/services run\n"
    options = program.run_options(judged(services={"tensorboard": "/l"}), "/home/anna")
    assert "--mount=%s/services:/usr/local/lib/trainyard/services:ro" % program.HERE in options


def test_the_use_of_gpus_by_minute(program):
    minutes = program.with_sample([], 7, [[50, 900, 9], [None, None, None]])
    minutes = program.with_sample(minutes, 7, [[70, 800, 9], [10, 1, 9]])
    assert (
        minutes == [{"minute": 7, "gpus": [[120, 2, 900], [10, 1, 1]]}]
        and program.with_sample(minutes, 8, []) == minutes
    )
    # A GPU that the host has lost begins anew, and only an hour is kept.
    minutes = program.with_sample(minutes, 7, [[1, 2, 3]])
    assert [len(minute["gpus"]) for minute in minutes] == [2, 1]
    for minute in range(100, 200):
        minutes = program.with_sample(minutes, minute, [[1, 2, 3]])
    assert len(minutes) == 60 and minutes[0]["minute"] == 140


def test_cpus_and_memory_by_minute(program):
    """CPUs are the mean of the minute, which begins where the one before has ended.

    Memory is the most.
    """
    gib = 1 << 30
    loads = program.with_load([], 7, 425.0, {"cpu_seconds": 10.0, "memory": gib})
    loads = program.with_load(loads, 7, 475.0, {"cpu_seconds": 210.0, "memory": 3 * gib})
    loads = program.with_load(loads, 8, 485.0, {"cpu_seconds": 230.0, "memory": 2 * gib})
    shown = [(each["minute"], each["cpus"], each["memory_gb"]) for each in loads]
    assert shown == [(7, 4.0, 3.0), (8, 2.0, 2.0)]
    assert program.with_load(loads, 9, 500.0, {}) == loads
    # A host without Slurm's groups knows nothing of it.
    assert program.with_load([], 9, 1.0, {"cpu_seconds": None, "memory": None}) == []
    loads = program.with_load([], 9, 1.0, {"cpu_seconds": None, "memory": gib // 2})
    assert (loads[0]["cpus"], loads[0]["memory_gb"]) == (None, 0.5)
    for minute in range(100, 200):
        loads = program.with_load(loads, minute, 60.0 * minute, {"cpu_seconds": 1, "memory": 1})
    assert len(loads) == 60


def row(rank, code, ended=None, **more):
    return dict(
        {
            "rank": rank,
            "host": "h%d" % rank,
            "slot": 0,
            "exit_code": code,
            "checksum": None,
            "hostname": "h%d" % rank,
            "container_id": None,
            "ended": ended,
        },
        **more,
    )


@pytest.mark.parametrize(
    "rows, code, stopped, expected, said",
    [
        ([row(0, 0), row(1, 0)], 0, "", 0, []),
        (
            [row(0, 143, 9), row(1, 3, 8)],
            143,
            "",
            3,
            [
                "worker 0 on host h0 ended with exit code 143",
                "worker 1 on host h1 ended with exit code 3",
            ],
        ),
        ([row(0, 2, 9), row(1, 3, 8)], 2, "", 3, ["exit code 2", "exit code 3"]),
        ([row(0, None), row(1, 0)], 137, "", 137, ["worker 0 on host h0 was killed"]),
        # The kernel has ended worker 1, as its memory was full, and worker 0 has lost its peer.
        ([row(0, 1, 9), row(1, 137, 8)], 1, "", 137, ["exit code 1", "exit code 137"]),
        ([row(0, 0), row(1, None, hostname=None)], 1, "", 1, ["worker 1 did not start on host h1"]),
        (
            [row(0, 143), row(1, 143)],
            143,
            "signal SIGTERM",
            143,
            ["stopped before it ended: signal SIGTERM", "143", "143"],
        ),
        (
            [row(0, 0, checksum="a"), row(1, 0, checksum="b")],
            0,
            "",
            1,
            ["do not have the same parameters"],
        ),
        (
            [row(0, 0), row(1, 0)],
            1,
            "",
            1,
            ["srun ended with exit code 1, although no worker failed"],
        ),
    ],
)
def test_the_verdict(program, rows, code, stopped, expected, said):
    problems = program.problems_of(
        rows, code, stopped, "/f", program.checksums_of(rows, {}, "PyTorchJob")
    )
    assert len(problems) == len(said) and all(
        words in problem for words, problem in zip(said, problems)
    ), problems
    assert (
        _job_result.exit_code(program.STOPPED if stopped else code, rows, problems, bool(stopped))
        == expected
    )


def test_the_first_failure_is_explained(program):
    log = (
        "epoch 1\n" * 50
        + "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\nbye\r\n"
    )
    found = program.first_failed([row(0, 143, 5), row(1, 1, 4), row(2, 1, 6)], {1: log})
    assert (
        found["rank"],
        found["host"],
        found["exit_code"],
        found["lines"][-1],
        len(found["lines"]),
    ) == (1, "h1", 1, "bye", 20)
    assert found["causes"][0]["id"] == "nccl_invalid_usage" and found["causes"][0]["fix"]
    assert program.first_failed([row(0, 0)], {}) is None


def test_idle_gpus_are_told(program):
    watched = {
        0: {
            "peaks": [90, 0],
            "devices": ["0", "1"],
            "looks": 5,
            "interface": "eth0",
            "rdma": False,
            "sent_bytes": 1,
            "received_bytes": 2,
        }
    }
    gpus, fabric, warnings = program.seen(["h0", "h1"], 2, watched)
    assert (gpus["h0"]["busy"], gpus["h0"]["idle"], gpus["h1"]["busy"]) == (
        1,
        [1],
        None,
    ) and fabric["h0"]["sent_bytes"] == 1
    assert warnings == [
        "host h0: GPU 1 (0 % at most) stayed idle, although the job requested 2. Check how its command chooses its GPUs, and CUDA_VISIBLE_DEVICES"
    ]


def test_folders_of_jobs(program, tmp_path):
    base = str(tmp_path)
    assert (
        program.job_folder(base, "7", False) == base + "/7"
        and stat.S_IMODE(os.stat(base + "/7").st_mode) == 0o700
    )
    # Requeued.
    assert program.job_folder(base, "7", True) == base + "/7"
    # The number of an older job.
    assert (
        program.job_folder(base, "7", False) == base + "/7.2"
        and program.job_folder(base, "7", True) == base + "/7.2"
    )
    assert program.job_folder(base, "8", True) == base + "/8"


def test_a_folder_of_somebody_else_is_refused(program, tmp_path):
    me = pwd.getpwuid(os.getuid())
    (tmp_path / "real").mkdir()
    (tmp_path / me.pw_name).symlink_to(tmp_path / "real")
    with pytest.raises(program.Refused, match="is not a folder of"):
        program.own_folder(str(tmp_path), me)
    (tmp_path / me.pw_name).unlink()
    with pytest.raises(
        program.Refused, match="cannot be used: No such file or directory. Tell the operator"
    ):
        program.own_folder(str(tmp_path), me)
    (tmp_path / me.pw_name).mkdir()
    assert program.own_folder(str(tmp_path), me) == str(tmp_path / me.pw_name)


PROGRAMS = {
    "scontrol": "echo h0; echo h1",
    # Both workers, as srun starts them.
    "srun": """n=0; for word; do case $word in */job) break;; esac; shift; done
export SLURM_STEP_GPUS=0; codes=0; SLURM_PROCID=0 python3 "$@" & one=$!; SLURM_PROCID=1 python3 "$@" & two=$!
trap 'kill -TERM $one $two' TERM; wait $one; a=$?; wait $two; b=$?; wait; exit $((a > b ? a : b))""",
    "trainyard-run": """while [ "$1" != -- ]; do shift; done; shift; export TRAINYARD_WORKER_INDEX=$SLURM_PROCID TRAINYARD_WORKER_COUNT=2
[ "$1" != trainyard-launch ] || shift 2; exec "$@" """,
}


@pytest.fixture(name="whole")
def _whole(folder, tmp_path):
    """The programs of a cluster in the place of Slurm and podman: what a job does around its
    command.
    """
    bin_, library = tmp_path / "bin", tmp_path / "library"
    bin_.mkdir()
    library.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (library / path.name).write_bytes(path.read_bytes())
    text = (
        (library / "job.py")
        .read_text(encoding="utf-8")
        .replace("/usr/local/bin/trainyard-run", str(bin_ / "trainyard-run"))
    )
    (library / "job").write_text(
        text.replace("/etc/trainyard/jobs.json", str(tmp_path / "jobs.json")).replace(
            "/usr/local/lib/trainyard/shared", str(library)
        ),
        encoding="utf-8",
    )
    for name, body in PROGRAMS.items():
        (bin_ / name).write_text("#!/bin/bash\n%s\n" % body, encoding="utf-8")
        (bin_ / name).chmod(0o755)
    me = pwd.getpwuid(os.getuid()).pw_name
    (tmp_path / "jobs" / me / ".out").mkdir(parents=True)
    (tmp_path / "jobs.json").write_text(
        json.dumps({"jobs": str(tmp_path / "jobs")}), encoding="utf-8"
    )

    def start(values, **environment):
        ours = dict(
            os.environ,
            PATH="%s:%s" % (bin_, os.environ["PATH"]),
            SLURM_JOB_ID="7",
            SLURM_JOB_NODELIST="h[0-1]",
            **environment,
        )
        return (
            subprocess.Popen(
                [sys.executable, str(library / "job"), "run"],
                env=ours,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
            tmp_path / "jobs" / me / "7",
            _job_text.sealed(_job_file.judge(values), _job_file.to_yaml(values)),
        )

    return start


def test_a_job_from_its_script_to_its_result(whole):
    command = 'echo "worker $RANK of $WORLD_SIZE, $A"\nprintf \'{"metrics": {"accuracy": 0.9}, "checksum": "c"}\' > "$TRAINYARD_RANK_REPORT"'
    process, folder, text = whole(
        dict(SMALL, kind="PyTorchJob", worker_count="2", command=command, environment={"A": "it's"})
    )
    said, _none = process.communicate(text, timeout=60)
    assert process.returncode == 0, said
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (result["exit_code"], result["world_size"], result["metrics"], result["problems"]) == (
        0,
        2,
        {"accuracy": 0.9},
        [],
    )
    assert (folder / "rank.1.log").read_text(
        encoding="utf-8"
    ) == "worker 1 of 2, it's\n" and "worker 0 of 2, it's" in said
    assert {
        stat.S_IMODE(path.stat().st_mode) & 0o077
        for path in folder.iterdir()
        if not path.is_symlink()
    } == {0}
    assert os.readlink(folder / "job.log") == "../.out/7.log"


def test_ranks_that_the_command_starts_report_for_themselves(whole):
    command = (
        'for rank in 0 1; do HOROVOD_RANK=$rank "$PYTHON" -c "import sys; sys.path.insert(0, sys.argv[1]); import example_tools; '
        'example_tools.report(sys.argv[2], {\'loss\': int(sys.argv[3])})" "$EXAMPLES" "sum$rank" $rank; done'
    )
    environment = {"PYTHON": sys.executable, "EXAMPLES": str(ROOT / "roles/train/files/examples")}
    process, folder, text = whole(
        dict(SMALL, kind="HorovodJob", command=command, environment=environment)
    )
    said, _none = process.communicate(text, timeout=60)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (
        process.returncode == 1
        and "the ranks do not have the same parameters after training: worker 0 has sum0, rank 1, started by worker 0, has sum1"
        in said
    ), said
    assert result["metrics"] == {"loss": 0} and result["ranks"][0]["checksum"] == "sum0"


def test_a_job_that_fails_is_tried_again_and_explained(whole):
    process, folder, text = whole(
        dict(
            SMALL,
            worker_count="2",
            retries="1",
            command='echo "CUDA driver version is insufficient for CUDA runtime version"; exit $((3 + TRAINYARD_WORKER_INDEX))',
        )
    )
    said, _none = process.communicate(text, timeout=60)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (
        process.returncode == result["exit_code"]
        and result["exit_code"] in (3, 4)
        and result["attempts"] == 2
        and "attempt 1 of 2 failed" in said
    )
    assert (
        result["first_failed"]["causes"][0]["id"] == "driver_too_old"
        and "cause: the driver is older than" in said
    )


@pytest.mark.parametrize("mail", [True, False])
def test_a_job_that_fails_tells_slurm_why_for_its_mails(whole, tmp_path, mail):
    """Only where Slurm sends mails. A Slurm that refuses changes nothing."""
    config = {"jobs": str(tmp_path / "jobs"), "mail": mail}
    (tmp_path / "jobs.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "bin/scontrol").write_text(
        '#!/bin/bash\nif [ "$1" = update ]; then printf "%%s\\n" "$@" > %s; exit 1; fi\necho h0\n'
        % (tmp_path / "update"),
        encoding="utf-8",
    )
    command = 'echo "CUDA driver version is insufficient for CUDA runtime version"; exit 3'
    process, _folder, text = whole(dict(SMALL, command=command))
    said, _none = process.communicate(text, timeout=60)
    assert process.returncode == 3, said
    assert (tmp_path / "update").exists() is mail
    if mail:
        words = (tmp_path / "update").read_text(encoding="utf-8").splitlines()
        assert words[:2] == ["update", "JobId=7"] and len(words) == 3
        begin = (
            "Comment=trainyard: failed: worker 0 on host h0 failed first: the driver is older than"
        )
        assert words[2].startswith(begin)


def test_the_comment_of_a_job_is_one_short_line(program):
    cause = {"cause": "a\nb\x1b", "fix": "c" * 5000}
    failed = {"rank": 1, "host": "h", "causes": [cause]}
    found = program.failed_comment(failed)
    assert found.startswith("trainyard: failed: worker 1 on host h failed first: a?b?. Cccc")
    assert len(found) == 2019
    assert program.failed_comment(None) == program.failed_comment(dict(failed, causes=[])) == ""


def test_a_job_that_is_stopped_says_so(whole):
    process, folder, text = whole(dict(SMALL, worker_count="2", command="sleep 300"))
    process.stdin.write(text)
    process.stdin.close()
    deadline = 100
    while not all((folder / ("rank.%d.json" % rank)).exists() for rank in range(2)) and deadline:
        subprocess.run(["sleep", "0.2"], check=True)
        deadline -= 1
    subprocess.run(["sleep", "0.5"], check=True)
    process.terminate()
    assert process.wait(30) == 143
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (
        result["problems"][0] == "the job was stopped before it ended: signal SIGTERM"
        and result["first_failed"] is None
    )
    process.stdout.close()


def test_a_job_that_hangs_tells_where_its_ranks_wait(whole, tmp_path):
    """A minute is a second here.

    One rank waits for a pipe, the other sleeps; then the first goes on, and the job ends well.
    """
    for name, old, new in (
        ("_job_hang.py", "minutes * 60", "minutes * 1"),
        ("job", "LOOK_SECONDS = 15", "LOOK_SECONDS = 0.3"),
    ):
        path = tmp_path / "library" / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    command = 'export TRAINYARD_JOB_ID=7; test "$RANK" = 0 && exec cat %s; exec sleep 3600' % (
        tmp_path / "pipe"
    )
    process, folder, text = whole(
        dict(SMALL, kind="PyTorchJob", worker_count="2", command=command, hang_minutes="2")
    )
    process.stdin.write(text)
    process.stdin.close()
    deadline = time.monotonic() + 60
    while not (folder / "hang.txt").exists():
        assert time.monotonic() < deadline and process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    said = (folder / "hang.txt").read_text(encoding="utf-8")
    assert said.startswith("rank 0 on h0 waits for a pipe, rank 1 on h1 sleeps. "), said
    assert "=== host h0\n\n--- rank 0\nprocess " in said and "=== host h1\n\n--- rank 1\n" in said
    process.terminate()
    assert process.wait(30) == 143
    log = process.stdout.read()
    process.stdout.close()
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["hang"] in result["warnings"] and "trainyard: %s\n" % result["hang"] in log
    assert re.match(
        "at its end: rank 0 on h0 waits for a pipe",
        result["hang"],
    )
    assert result["hang"].endswith("See %s/hang.txt" % folder)


def test_a_good_job_stays_good_on_a_full_share(whole, tmp_path):
    """Neither its log nor its result can be written at its end."""
    process, folder, text = whole(
        dict(SMALL, worker_count="2", command='mkdir -p "$TRAINYARD_JOB_DIR/result.json"')
    )
    process.kill()
    process.communicate()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            process.args,
            env=dict(
                os.environ, PATH="%s:%s" % (tmp_path / "bin", os.environ["PATH"]), SLURM_JOB_ID="7"
            ),
            input=text,
            text=True,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "") and (folder / "result.json").is_dir()
    assert list(folder.glob("result.json.*")) == []


def test_a_job_that_cannot_write_does_not_start(whole, tmp_path):
    process, folder, text = whole(
        dict(SMALL, worker_count="2", command="touch %s" % (tmp_path / "begun"))
    )
    process.kill()
    process.communicate()
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *process.args],
        env=dict(
            os.environ, SLURM_JOB_ID="7", PATH="%s:%s" % (tmp_path / "bin", os.environ["PATH"])
        ),
        input=text,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    assert (
        done.returncode == 125
        and done.stderr
        == "trainyard: the folder of the job: File too large. Free space on the share, or tell the operator\n"
    )
    assert folder.exists() and not (tmp_path / "begun").exists()


def run_text(whole, text, *words, **environment):
    process, folder, _text = whole(SMALL)
    process.kill()
    process.communicate()
    done = subprocess.run(
        process.args[:2] + list(words or ["run"]),
        env=dict(os.environ, **dict({"SLURM_JOB_ID": "7", "LC_ALL": "C"}, **environment)),
        input=text,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done, folder


def test_what_is_no_job_cannot_run(whole):
    done, folder = run_text(whole, "", SLURM_JOB_ID="")
    assert done.returncode == 125 and "this is not a job of Slurm" in done.stdout
    assert not folder.exists()


OLD = "name: a\ncommand: b \u00e9\nworker_image: c\n"


@pytest.mark.parametrize(
    "text, said",
    [
        # As a job has it that was in the queue when the cluster got this release.
        (OLD, "it was submitted by another release of the command trainyard"),
        (
            _job_text.sealed(judged(), OLD).replace('"version": 1', '"version": 2'),
            "it was submitted by another release of the command trainyard",
        ),
        (
            _job_text.sealed(judged(), OLD.replace("b", "x")).replace("x", "b"),
            "it was damaged or edited after trainyard submit had judged it",
        ),
    ],
)
def test_a_job_that_nobody_has_judged_is_refused_and_can_be_submitted_again(whole, text, said):
    done, folder = run_text(whole, text)
    assert done.returncode == 125
    assert done.stdout == (
        "trainyard: job 7 cannot run: %s. Submit it again with: trainyard clone 7\n" % said
    )
    # What clone reads.
    assert (folder / "spec.yml").read_text(encoding="utf-8") == OLD
    assert sorted(path.name for path in folder.iterdir()) == ["spec.yml"]


@pytest.mark.parametrize(
    "text", ["", _job_text.sealed(judged(), "").replace("train", "other"), "{"]
)
def test_a_worker_refuses_a_damaged_job(whole, text):
    """The file may come from another host, over the network."""
    done, folder = run_text(whole, OLD)
    (folder / "job.json").write_text(text, encoding="utf-8")
    done, folder = run_text(whole, None, "task", str(folder))
    assert done.returncode == 125 and done.stdout.startswith("trainyard: job 7 cannot run: it was ")
    assert done.stdout.endswith("Submit it again with: trainyard clone 7\n")


def test_a_job_file_is_read_with_any_locale(whole):
    values = dict(SMALL, environment={"A": "\u00e9"}, command="true")
    process, folder, text = whole(values, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    said, _none = process.communicate(text, timeout=60)
    assert process.returncode == 0, said
    assert 'A: "\u00e9"' in (folder / "spec.yml").read_text(encoding="utf-8")


KILLED = {"rank": 2, "host": "h2", "exit_code": 137}


def test_a_kill_for_memory_is_the_first_failure(program):
    """Worker 2 was killed by the kernel. Slurm then ended the others."""
    rows = [row(0, 143, 1010.0), row(1, 143, 1010.2), row(2, 137, 1000.0)]
    found = program.first_failed(rows, {2: "step 300 loss 0.1\nKilled\n"})
    assert {key: found[key] for key in KILLED} == KILLED
    assert [cause["id"] for cause in found["causes"]] == ["out_of_memory_killed"]
    assert [each["rank"] for each in found["consequences"]] == [0, 1]
    # The one that lost its peer ended with an error of its own, and it even has a cause.
    lost = "NCCL WARN socketProgress: Connection closed by remote peer 10.10.1.3<36138>\n"
    rows = [row(0, 1, 1001.0), row(1, 143, 1010.2), row(2, 137, 1000.0)]
    assert program.first_failed(rows, {0: lost})["rank"] == 2
    # Nor does a message about another worker make it the first if its clock is ahead.
    rows = [row(0, 1, 990.0), row(1, 143, 1010.2), row(2, 137, 1000.0)]
    assert program.first_failed(rows, {0: lost})["rank"] == 2
    # One that was killed together with what records it.
    rows = [row(0, 143, 1010.0), row(2, None)]
    found = program.first_failed(rows, {})
    assert (found["rank"], found["causes"][0]["line"]) == (2, "it was killed")


def test_words_of_a_launcher_do_not_make_a_rank_the_second(program):
    """An unknown failure below torchrun or mpirun, and a rank that has a cause of its own
    afterwards.
    """
    rows = [row(0, 1, 1000.0), row(1, 1, 1004.0)]
    odd = "OddError: seven of nine\n"
    refused = "ConnectionRefusedError: [Errno 111] Connection refused\n"
    for trailer in (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
        "torch/distributed/elastic/multiprocessing/api.py:897] Sending process 2108 closing signal SIGTERM\n"
        "torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 2107)\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
        "prterun detected that one or more processes exited with non-zero status\n",
    ):
        found = program.first_failed(rows, {0: odd + trailer, 1: refused})
        assert (found["rank"], found["lines"]) == (0, ["OddError: seven of nine"])
    # One that says that it lost another.
    lost = "socketProgress: Connection closed by remote peer 10.10.1.3<36138>\n" + trailer
    assert program.first_failed(rows, {0: lost, 1: refused})["rank"] == 1


@pytest.mark.parametrize("code, expected", [(1, 1), (3, 1), (137, 1), (139, 1), (135, 1)])
@pytest.mark.parametrize("ends", [(3.0, 1.0, 2.0), (2.0, 1.0, 3.0), (None, 1.0, None)])
def test_the_first_to_end_by_itself_is_named(program, code, expected, ends):
    for others in (143, 1, 137):
        rows = [row(0, others, ends[0]), row(1, code, ends[1]), row(2, others, ends[2])]
        assert program.first_failed(rows, {})["rank"] == expected


def test_the_clock_of_the_launcher_counts(program):
    """Host h0 is an hour behind: by its own clock it ended first."""
    rows = [row(0, 1, 100.0), row(1, 1, 3600.0)]
    assert program.first_failed(rows, {})["rank"] == 0
    rows = [row(0, 1, 100.0, seen=51.0), row(1, 1, 3600.0, seen=50.0)]
    assert program.first_failed(rows, {})["rank"] == 1
    assert program._job_result.exit_code(1, rows, [], False) == 1
    # Not some of one clock and some of the other.
    rows = [row(0, 1, 100.0), row(1, 1, 3600.0, seen=50.0)]
    assert program.first_failed(rows, {})["rank"] == 0
    assert "seen" not in program._job_result.entries(rows)[1]


def test_what_srun_says_of_tasks(program, capfdbinary):
    job = object.__new__(program.Job)
    job.ends = {}
    said = [
        b"step 1\n",
        b"srun: error: node-b: tasks 1-2,5: Exited with exit code 1\n",
        b"srun: error: node-c: task 3: Out Of Memory\n",
        b"srun: error: node-b: task 1: Killed\n",
        b"\xff srun: error: node-b: task 9: Killed\n",
    ]
    job.pass_on(said)
    assert capfdbinary.readouterr().err == b"".join(said)
    assert sorted(job.ends) == [1, 2, 3, 5]
    assert job.ends[1][0] <= job.ends[3][0]
    assert job.ends[3][1] == "srun: error: node-c: task 3: Out Of Memory"
    assert program.task_numbers("0-9999999999") == list(range(program.MOST_TASKS + 1))


def test_the_scheduler_and_the_control_group_know_of_memory(program):
    rows = [row(0, 143, 9), row(1, 1, 8)]
    said = {1: "srun: error: h1: task 1: Out Of Memory"}
    found = program.first_failed(rows, {1: "step\n"}, said)
    assert [cause["id"] for cause in found["causes"]] == ["job_out_of_memory"]
    # With limit and peak. The kill of a process below the worker is enough.
    memory = {"h1": {"limit": 300 << 20, "peak": 299 << 20, "oom_kills": 2}}
    rows = [row(0, 143, 9), row(1, 137, 8)]
    (cause,) = program.first_failed(rows, {1: "step\nKilled\n"}, {}, memory)["causes"]
    assert cause["id"] == "job_out_of_memory" and cause["fix"].startswith("raise worker_memory")
    assert "limit 300 MiB, peak 299 MiB" in cause["cause"] and "killed 2 of" in cause["cause"]
    # Kills that belong to another worker change nothing.
    (cause,) = program.first_failed(rows, {1: "step\n"}, {}, {"h0": memory["h1"]})["causes"]
    assert cause["id"] == "out_of_memory_killed"


def test_the_end_of_a_process_is_no_cause_beside_that_of_its_log(program):
    said = {1: "srun: error: h1: task 1: Exited with exit code 3"}
    rows = [row(0, 143, 5), row(1, 3, 4)]
    log = "CUDA driver version is insufficient for CUDA runtime version\n"
    found = program.first_failed(rows, {1: log}, said)
    assert [cause["id"] for cause in found["causes"]] == ["driver_too_old"]
    found = program.first_failed(rows, {1: "step 300\n"}, said)
    assert [cause["id"] for cause in found["causes"]] == ["process_failed"]


def test_without_a_known_message_lines_of_the_log_are_shown(program):
    log = "epoch 1\n" * 50 + "odd thing failed\n" + "bye\n" * 30
    found = program.first_failed([row(0, 1, 5)], {0: log})
    assert found["causes"] == [] and found["lines"] == ["odd thing failed"]
    lines = program._job_result.failure_lines("worker", found, "fix")
    assert lines[0] == "worker 0 on host h0 failed first. Lines of its log that may say why:"
    found = program.first_failed([row(0, 1, 5), row(1, 143, 6)], {0: "a\nb\n"})
    assert found["lines"] == ["a", "b"]
    lines = program._job_result.failure_lines("worker", found, "fix")
    assert lines[-1] == "ended because of it: worker 1 (exit code 143)"


def test_a_log_that_is_no_file_is_not_read(program, tmp_path):
    os.mkfifo(str(tmp_path / "rank.0.log"))
    found = program.first_failed([row(0, 1, 5)], program._job_result.Logs(str(tmp_path)))
    assert found["causes"] == [] and found["lines"] == []
