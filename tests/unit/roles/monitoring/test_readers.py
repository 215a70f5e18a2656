"""The programs that write metrics on hosts: a tool that goes on, hangs, fails and comes back, the
jobs of GPUs, shares and certificates.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from eight_gpus import eight_gpus
from prometheus import check_metrics

ROOT = Path(__file__).resolve().parents[4]
FILES = ROOT / "roles/monitoring/files"
FIXTURES = ROOT / "tests/fixtures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FILES / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu_reader, host_reader, slurm_reader = (
    load("gpu_reader"),
    load("host_reader"),
    load("slurm_reader"),
)


class Stop(Exception):
    """The test has seen enough."""


class Host:
    """A host with stand-ins for tools, and a reader of its GPUs."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.target = folder, folder / "gpu.prom"
        (folder / "bin").mkdir()
        (folder / "gpus").mkdir()
        (folder / "document").write_text(eight_gpus(), encoding="utf-8")
        self.tool("nvidia-smi", 'case "$*" in *nvlink*) exit 1;; esac\ncat %s/document' % folder)
        monkeypatch.setenv("PATH", "%s:%s" % (folder / "bin", os.environ["PATH"]))
        settings = {"interval": 1, "source": "nvidia_smi", "jobs": True}
        self.reader = gpu_reader.Reader(settings, str(self.target), str(folder / "gpus"))

    def tool(self, name, script):
        path = self.folder / "bin" / name
        path.write_text("#!/bin/sh\n%s\n" % script, encoding="utf-8")
        path.chmod(0o755)

    def give(self, device, job):
        (self.folder / "gpus" / str(device)).write_text("%d 2001\n" % job, encoding="ascii")

    def text(self):
        return self.target.read_text(encoding="utf-8") if self.target.exists() else ""


def children() -> set[int]:
    listed = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in listed for pid in path.read_text(encoding="ascii").split()}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The reader waits for each child of its process.

    Those that other tests have left in this process are not its own.
    """
    former, waitpid = children(), os.waitpid

    def of_this_test(pid, options):
        if pid != -1:
            return waitpid(pid, options)
        own = children() - former
        if not own:
            raise ChildProcessError
        ended = (waitpid(child, options) for child in own)
        return next((done for done in ended if done != (0, 0)), (0, 0))

    monkeypatch.setattr(os, "waitpid", of_this_test)
    return Host(tmp_path, monkeypatch)


def test_one_tool_prints_many_documents(host):
    host.tool(
        "nvidia-smi",
        'case "$*" in *nvlink*) exit 1;; esac\necho started >> %s/log\necho "$@" >> %s/log\n'
        "for n in 1 2 3; do cat %s/document; done" % ((host.folder,) * 3),
    )
    published = []
    host.reader.publish = published.append
    with pytest.raises(gpu_reader.Silent, match="it ended"):
        host.reader.read_nvidia()
    assert len(published) == 3
    log = (host.folder / "log").read_text(encoding="utf-8").splitlines()
    assert log == ["started", "-q -x -l 1"]


def test_the_file_has_the_jobs_of_gpus(host):
    host.give(0, 4711)
    # What is no number of a job, and half a file, are no jobs.
    (host.folder / "gpus" / "1").write_text("", encoding="ascii")
    (host.folder / "gpus" / "2.new").write_text("5 5", encoding="ascii")
    with pytest.raises(gpu_reader.Silent):
        host.reader.read_nvidia()
    text = host.text()
    assert check_metrics(text) == ""
    assert "trainyard_gpus 8\n" in text and text.count("trainyard_gpu_job{") == 8
    assert "} 4711\n" in text and "trainyard_gpu_job_energy_joules_total{" in text


def test_without_slurm_there_are_no_jobs(host):
    host.reader.has_jobs = False
    with pytest.raises(gpu_reader.Silent):
        host.reader.read_nvidia()
    assert "trainyard_gpu_job" not in host.text() and "trainyard_gpus 8" in host.text()


def test_a_tool_that_hangs_leaves_no_flat_line(host):
    host.reader.interval = 0.1
    host.tool(
        "nvidia-smi",
        'case "$*" in *nvlink*) exit 1;; esac\ncat %s/document; exec sleep 60' % host.folder,
    )
    begun = time.monotonic()
    gpu_reader.documents.__defaults__ = None
    documents = gpu_reader.documents

    def impatient(stream, _patience):
        return documents(stream, 0.5)

    gpu_reader.documents = impatient
    try:

        def wait(_seconds):
            if not gpu_reader.has_children():
                raise Stop
            time.sleep(0.05)

        with pytest.raises(Stop):
            host.reader.run(wait)
    finally:
        gpu_reader.documents = documents
    assert time.monotonic() - begun < 20
    assert not host.target.exists() and "no whole document" in host.reader.message


def test_no_second_tool_starts_while_one_hangs(host):
    """A process in the driver cannot be killed. Each that is started anew would hang, too."""
    left = subprocess.Popen(["sleep", "60"])
    waits, starts = [], []
    host.reader.source = "npu_smi"

    def read():
        starts.append(1)
        raise gpu_reader.Silent("no answer")

    host.reader.read_npus = read

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 5:
            raise Stop

    try:
        with pytest.raises(Stop):
            host.reader.run(wait)
        assert len(starts) == 1
    finally:
        left.kill()
        left.wait()


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("echo NVIDIA-SMI has failed; exit 9", "NVIDIA-SMI has failed"),
        ("exit 0", "without a word"),
    ],
)
def test_a_tool_that_fails_is_told(host, capsys, printed, told):
    host.target.write_text("old 1\n", encoding="utf-8")
    host.tool("nvidia-smi", printed)
    turns = []

    def wait(_seconds):
        turns.append(1)
        if len(turns) == 3:
            raise Stop

    with pytest.raises(Stop):
        host.reader.run(wait)
    assert not host.target.exists()
    # Once, although it fails again and again.
    assert capsys.readouterr().err.count(told) == 1


def test_a_document_that_cannot_be_read_ends_the_curve(host):
    host.target.write_text("old 1\n", encoding="utf-8")
    (host.folder / "document").write_text(
        eight_gpus().replace("<attached_gpus>8<", "<attached_gpus>9<"), encoding="utf-8"
    )
    with pytest.raises(gpu_reader.Silent):
        host.reader.read_nvidia()
    assert not host.target.exists() and "attached_gpus" in host.reader.message


def test_a_lost_gpu_is_beside_the_document(host):
    lost = "Unable to determine the device handle for GPU0000:07:00.0: GPU is lost.\\n"
    host.tool(
        "nvidia-smi",
        "case \"$*\" in *nvlink*) exit 1;; esac\nprintf '%s' >&2; cat %s/document"
        % (lost, host.folder),
    )
    with pytest.raises(gpu_reader.Silent):
        host.reader.read_nvidia()
    assert "trainyard_gpus 8\n" in host.text()


def test_nvlinks_are_read_now_and_then(host):
    uuid = "GPU-x"
    host.tool(
        "nvidia-smi",
        'echo call >> %s/calls\nprintf "GPU 0: H100 (UUID: %s)\\n\\t Link 0: 26.562 GB/s\\n"'
        % (host.folder, uuid),
    )

    class Answer:
        gpus = [{"uuid": uuid, "index": 0}]

    for _look in range(3):
        [family] = host.reader.nvlinks(Answer)
        assert family.samples == [({"gpu": "0", "uuid": uuid}, 1)]
    assert (host.folder / "calls").read_text(encoding="utf-8") == "call\n"


def test_npus(host):
    text = FIXTURES / "npu-smi/npu-1.8.21-8x910A.txt"
    host.tool("npu-smi", "cat %s" % text)
    host.give(5, 77)
    host.reader.read_npus()
    assert "trainyard_gpus 8\n" in host.text() and "} 77\n" in host.text()
    for script in ("echo there is no npu card; exit 1", "echo hello"):
        host.tool("npu-smi", script)
        with pytest.raises(gpu_reader.Silent):
            host.reader.read_npus()


def test_the_driver_alone(host, monkeypatch):
    cards = [
        {"bus": "0000:c1:00.0", "uuid": "GPU-b", "minor": 0, "model": "H100"},
        {"bus": "0000:3b:00.0", "uuid": "GPU-a", "minor": 1, "model": "H100"},
    ]
    monkeypatch.setattr(gpu_reader._gpu_numbers, "read_host", lambda _kinds: {"driver": cards})
    host.give(1, 9)
    host.reader.read_driver()
    text = host.text()
    assert check_metrics(text) == "" and "trainyard_gpus 2\n" in text
    assert 'trainyard_gpu_job{gpu="0",uuid="GPU-a"} 9\n' in text


def test_the_time_of_a_gap_belongs_to_no_job(host):
    host.give(0, 4711)
    with pytest.raises(gpu_reader.Silent):
        host.reader.read_nvidia()
    host.reader.last = time.monotonic() - 3600
    with pytest.raises(gpu_reader.Silent):
        host.reader.read_nvidia()
    assert all(own["seconds"] <= 5 for own in host.reader.sums.values())


def test_the_program_runs_alone(tmp_path):
    """With the modules as on a host: in one folder."""
    folders = ("roles/host_library/files", "roles/train/files", "plugins/module_utils")
    for name in FILES.glob("*.py"):
        code = "import runpy, sys; sys.path[:0] = %r; runpy.run_path(%r, run_name='x')" % (
            [str(ROOT / folder) for folder in folders],
            str(name),
        )
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


# --- shares, certificates, the kernel log ---

MOUNTS = "36 35 0:30 / %s rw,relatime - nfs4 server:/data rw\n"


def test_a_share_that_answers(tmp_path):
    size, free = host_reader.space(str(tmp_path), MOUNTS % tmp_path)
    status = os.statvfs(tmp_path)
    assert size == status.f_blocks * status.f_bsize and 0 <= free <= size
    # A folder that is not mounted has the space of another disk.
    assert host_reader.space(str(tmp_path), "") is None


def test_a_share_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(host_reader, "SECONDS", 0.2)
    monkeypatch.setattr(
        host_reader, "output", lambda command, seconds=0.2: _output(["sleep", "30"], seconds)
    )
    begun = time.monotonic()
    assert host_reader.space(str(tmp_path), MOUNTS % tmp_path) is None
    assert time.monotonic() - begun < 5


_output = host_reader.output


def test_when_a_certificate_ends(tmp_path):
    path = tmp_path / "a.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-subj", "/CN=a", "-days", "10", "-keyout", "/dev/null", "-out", str(path)],
        check=True,
        capture_output=True,
    )
    assert 9.9 * 86400 < host_reader.end_of(str(path)) - time.time() <= 10 * 86400
    path.write_text("no certificate", encoding="utf-8")
    assert host_reader.end_of(str(path)) is None
    assert host_reader.end_of(str(tmp_path / "none")) is None


def test_errors_are_counted_over_runs(tmp_path):
    log = "[ 10.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    counts = str(tmp_path / "run" / "metrics.json")
    for _run in range(2):
        [(labels, value)] = host_reader.errors_family(log, counts).samples
        assert labels["action"] == "drain" and value == 1
    (tmp_path / "run" / "metrics.json").write_text("{", encoding="utf-8")
    assert host_reader.errors_family(log, counts).samples[0][1] == 1


def test_the_metrics_of_a_host(tmp_path, monkeypatch):
    monkeypatch.setattr(host_reader, "kernel_log", lambda: "")
    monkeypatch.setattr(host_reader, "COUNTS", str(tmp_path / "counts.json"))
    monkeypatch.setattr(host_reader.errors_family, "__defaults__", (str(tmp_path / "counts.json"),))
    settings = {"shares": [str(tmp_path)], "certificates": ["/none"], "gpus": 8}
    text = host_reader._metrics.render(host_reader.families(settings))
    assert check_metrics(text) == ""
    assert "trainyard_host_gpus_expected 8\n" in text and "trainyard_share_answers{" in text
    assert 'trainyard_host_cpu_seconds_total{mode="idle"}' in text


def test_sums_outlive_a_restart_of_the_reader(host):
    """It is restarted for a reset of a GPU, and with new settings.

    The jobs of the other GPUs go on.
    """
    host.give(0, 7)
    answer = gpu_reader._nvidia_smi.parse_query(eight_gpus())
    families = gpu_reader._metrics.gpu_families(answer, host.reader.jobs())
    host.reader.publish(families)
    again = gpu_reader.Reader(
        {"interval": 1, "source": "nvidia_smi", "jobs": True}, str(host.target), host.reader.marks
    )
    again.publish(families)
    line = next(line for line in host.text().splitlines() if "job_measured_seconds_total{" in line)
    assert float(line.split()[-1]) >= 2
    # Another job, and a damaged file.
    host.give(0, 8)
    again.publish(families)
    line = next(line for line in host.text().splitlines() if "job_measured_seconds_total{" in line)
    assert float(line.split()[-1]) < 2
    for text in ("{", "[]", '{"a": 1}', '{"a": {"job": 7}}'):
        (host.folder / "sums.json").write_text(text, encoding="utf-8")
        assert (
            gpu_reader.Reader(
                {"interval": 1, "source": "nvidia_smi", "jobs": True}, str(host.target)
            ).sums
            == {}
        )


# --- Slurm ---


def answered(commands):
    """A stand-in for Slurm's commands: the texts by the first words, None for one that fails."""
    asked = []

    def ask(command):
        asked.append(command)
        words = " ".join(command)
        return next((text for begin, text in commands.items() if words.startswith(begin)), None)

    return ask, asked


def slurm_text(name):
    return (FIXTURES / "slurm/22.05" / (name + ".txt")).read_text(encoding="utf-8")


USAGE = "ClusterName=c Account=a UserName= Partition= Priority=0 ID=2\n  GrpTRES=cpu=N(0),gres/gpu=8(3)\n"


def test_the_metrics_of_a_queue():
    ask, asked = answered(
        {
            "squeue": "",
            "scontrol --oneliner": slurm_text("nodes-idle"),
            "scontrol show assoc_mgr": USAGE,
            "sacctmgr": "c\n",
        }
    )
    families, queue = slurm_reader.readings(ask)
    text = slurm_reader._metrics.render(families)
    assert check_metrics(text) == "" and len(asked) == 4 and queue == []
    assert (
        text.count('trainyard_slurm_up{daemon="slurm') == 2
        and "trainyard_slurm_node_state{" in text
    )
    assert "} 0\n" not in "".join(line for line in text.splitlines(True) if "slurm_up" in line)


def test_a_controller_that_does_not_answer_is_asked_once():
    ask, asked = answered({"sacctmgr": "c\n"})
    families, queue = slurm_reader.readings(ask)
    text = slurm_reader._metrics.render(families)
    # The former file of waiting jobs grows old.
    assert 'trainyard_slurm_up{daemon="slurmctld"} 0\n' in text and queue is None
    assert 'trainyard_slurm_up{daemon="slurmdbd"} 1\n' in text
    assert "node_state" not in text and len(asked) == 2


def test_waiting_jobs_have_no_names(tmp_path):
    """Everybody reads them. The order is that in which Slurm looks at them."""

    def job(number, **changes):
        return dict(
            {
                "id": number,
                "state": "pending",
                "priority": 10,
                "partition": "train",
                "reason": "Priority",
                "gpus": 2,
                "node_count": 1,
                "start_estimate": None,
                "name": "secret",
                "user": "anna",
                "account": "vision",
                "comment": "secret",
            },
            **changes,
        )

    jobs = [
        job(5),
        job(4, state="running"),
        job(7, priority=20, reason="Resources", start_estimate="2026-11-26T04:00:00Z"),
        job(3),
        # Held: it has no place.
        job(2, priority=0, reason="JobHeldUser"),
        job(6, reason="ReqNodeNotAvail, UnavailableNodes:gpu-a"),
    ]
    found = slurm_reader._slurm_metrics.waiting(jobs)
    assert [entry["id"] for entry in found] == [7, 3, 5, 6]
    assert found[0] == {
        "id": 7,
        "partition": "train",
        "reason": "Resources",
        "gpus": 2,
        "workers": 1,
        "start_estimate": "2026-11-26T04:00:00Z",
    }
    path = tmp_path / "queue.json"
    for _time in range(2):
        slurm_reader.write_queue(str(path), found, 5.0)
    assert json.loads(path.read_text(encoding="utf-8")) == {"written": 5.0, "jobs": found}
    assert path.stat().st_mode & 0o777 == 0o644 and [*tmp_path.iterdir()] == [path]
    assert "anna" not in path.read_text(encoding="utf-8")


def test_a_command_that_fails_or_hangs(capsys):
    assert slurm_reader.ask(["sh", "-c", "echo no controller >&2; exit 1"]) is None
    assert "no controller" in capsys.readouterr().err
    assert slurm_reader.ask(["sleep", "9"], 0.2) is None
    assert slurm_reader.ask(["/none"]) is None
    assert slurm_reader.ask(["echo", "1"]) == "1\n"


def test_settings_are_json(tmp_path):
    """As the role writes them."""
    path = tmp_path / "reader.json"
    path.write_text(json.dumps({"interval": 15, "source": "dcgm", "jobs": False}), encoding="utf-8")
    reader = gpu_reader.Reader(json.loads(path.read_text(encoding="utf-8")))
    assert reader.interval == 15 and reader.jobs() is None


GROUPS = {
    # Version 2, with a job that has a second slurmd's scope and one without memory.
    "v2": {
        "system.slice/slurmstepd.scope/job_7/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        "system.slice/slurmstepd.scope/job_7/memory.current": "1073741824\n",
        "system.slice/slurmstepd.scope/job_7/step_0/user/cpu.stat": "usage_usec 9\n",
        "system.slice/gpu-a_slurmstepd.scope/job_12345678/cpu.stat": "usage_usec 1000000\n",
        "system.slice/slurmstepd.scope/system/cpu.stat": "usage_usec 9\n",
        "system.slice/slurmstepd.scope/job_x/cpu.stat": "usage_usec 9\n",
        "user.slice/job_9/cpu.stat": "usage_usec 9\n",
    },
    "v1": {
        "cpuacct/slurm/uid_2001/job_7/cpuacct.usage": "2500000000\n",
        "memory/slurm/uid_2001/job_7/memory.usage_in_bytes": "1073741824\n",
        "memory/slurm/uid_2001/job_7/step_0/memory.usage_in_bytes": "9\n",
        "cpuacct/slurm_gpu-a/uid_2002/job_12345678/cpuacct.usage": "1000000000\n",
        "cpuacct/user.slice/uid_2001/job_9/cpuacct.usage": "9\n",
    },
    "none": {},
}


@pytest.mark.parametrize("version", GROUPS)
def test_what_each_job_uses(tmp_path, version):
    """On trees as both versions of control groups have them.

    A job whose memory is not known has no such series.
    """
    for name, text in GROUPS[version].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    loads = host_reader.job_loads(str(tmp_path))
    assert loads == (
        {
            7: {"cpu_seconds": 2.5, "memory": 1 << 30},
            12345678: {"cpu_seconds": 1.0, "memory": None},
        }
        if version != "none"
        else {}
    )
    text = host_reader._metrics.render(host_reader._metrics.job_load_families(loads))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == (
        [
            'trainyard_job_cpu_seconds_total{slurm_job="7"} 2.5',
            'trainyard_job_cpu_seconds_total{slurm_job="12345678"} 1',
            'trainyard_job_memory_bytes{slurm_job="7"} 1073741824',
        ]
        if version != "none"
        else []
    )
    assert check_metrics(text) == ""
