"""The collection on a machine with an NVIDIA GPU: each answer is compared with NVML, PyTorch, nvcc
or the kernel.

    pytest tests/scenarios/test_gpu.py

It needs root, ansible-core, nvidia-ml-py, PyTorch with CUDA, nvcc, a compiler, Open MPI, slurmctld,
slurmd and munged, and builds nccl-tests and Horovod as the roles do. It changes nothing outside of
pytest's folder, except that Slurm makes control groups. No other Slurm may run on the machine,
because the ports and the control group are the same. TRAINYARD_GPU_SOURCES names a folder with an
archive nccl-tests-*.tar.gz, Horovod's source and the wheels of its build, for a machine without a
network. TRAINYARD_GPU_RECORD names a folder for the recorded output.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.module_utils._log_causes import causes
from ansible_collections.trainyard.gpu.plugins.module_utils._horovod import parse_check_build
from ansible_collections.trainyard.gpu.plugins.module_utils._nvidia_smi import why_no_answer
from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import horovod_variables
from ansible_collections.trainyard.gpu.plugins.module_utils import _burn_in
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat
from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_plan import gpu_type

pytestmark = [pytest.mark.acceptance, pytest.mark.gpu]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.environ.get("TRAINYARD_GPU_SOURCES", "")
RECORD = os.environ.get("TRAINYARD_GPU_RECORD", "")
# Of github.com's nccl-tests, if there is no archive.
NCCL_TESTS = ("v2.19.6", "a0b82b2260cf5152b9f8c061bbf7eaf0ba096432")
OPEN_MPI = "/usr/lib/%s-linux-gnu/openmpi" % os.uname().machine
#: A user without an account, files and processes.
STRANGER = 59999


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command, timeout=300, env=None, **options):
    """Return code and output, stderr after stdout."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        env=dict(os.environ, **(env or {})),
        **options,
    )
    return done.returncode, done.stdout


def record(name, text):
    if RECORD:
        Path(RECORD, name).write_text(text, encoding="utf-8")
    return text


def as_module(name, before=(), env=None, **arguments):
    """Run a module on localhost as Ansible does.

    C(before) is a command that runs the rest of its arguments.
    """
    command = [
        *before,
        sys.executable,
        "-m",
        "ansible",
        "adhoc",
        "localhost",
        "--connection",
        "local",
        "--module-name",
        "trainyard.gpu." + name,
        *(["--args", json.dumps(arguments)] if arguments else []),
    ]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env=dict(
            os.environ,
            ANSIBLE_COLLECTIONS_PATH=str(ROOT / ".dev"),
            ANSIBLE_PYTHON_INTERPRETER="/usr/bin/python3",
            ANSIBLE_NOCOLOR="1",
            LC_ALL="C.UTF-8",
            **(env or {}),
        ),
    )
    # A failure is also told before.
    found = re.search(r"^localhost \| \S+ => (\{.*)", done.stdout, re.MULTILINE | re.DOTALL)
    assert found, done.stdout + done.stderr
    return json.loads(found.group(1))


@pytest.fixture(name="nvml", scope="module")
def fixture_nvml():
    import pynvml as nvml

    nvml.nvmlInit()
    yield nvml
    nvml.nvmlShutdown()


@pytest.fixture(name="handles", scope="module")
def fixture_handles(nvml):
    return [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]


@pytest.fixture(name="torch", scope="module")
def fixture_torch():
    import torch

    assert torch.cuda.is_available(), torch.__version__
    return torch


@pytest.fixture(name="facts", scope="module")
def fixture_facts():
    """What the modules say of this machine."""
    found = {
        "smi": as_module("nvidia_smi_info"),
        "stack": as_module("gpu_stack_info", services=["nvidia-persistenced.service"]),
        "host": as_module("host_info", own_name=True, docker_config=True),
        "health": as_module("host_health_info", paths=["/"]),
        "slurm": as_module("slurm_host_info"),
    }
    record("facts.json", json.dumps(found, indent=1))
    return found


def kernel(path):
    return Path(path).read_text(encoding="utf-8")


# --- modules ----------------------------------------------------------------------------------------------------------------


def test_nvidia_smi_info_agrees_with_nvml(facts, nvml, handles):
    smi = facts["smi"]
    record("nvidia-smi.xml", run("nvidia-smi", "-q", "-x")[1])
    record("nvidia-smi.txt", run("nvidia-smi")[1])
    record("topo.txt", run("nvidia-smi", "topo", "-m")[1])
    assert (
        smi["available"]
        and smi["cause"] is None
        and smi["error_gpus"] == []
        and smi["remarks"] == []
    )
    assert smi["driver_version"] == nvml.nvmlSystemGetDriverVersion()
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    assert smi["cuda_version"] == "%d.%d" % (cuda // 1000, cuda % 1000 // 10)
    assert smi["gpu_count"] == len(smi["gpus"]) == len(handles)
    for gpu, handle in zip(smi["gpus"], handles):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        assert gpu["name"] == nvml.nvmlDeviceGetName(handle)
        assert gpu["uuid"] == nvml.nvmlDeviceGetUUID(handle)
        assert gpu["bus_id"] == nvml.nvmlDeviceGetPciInfo(handle).busId.lower()
        assert gpu["minor_number"] == nvml.nvmlDeviceGetMinorNumber(handle)
        assert gpu["memory_total_mib"] == memory.total >> 20
        assert (
            gpu["compute_mode"]
            == {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}[
                nvml.nvmlDeviceGetComputeMode(handle)
            ]
        )
        assert gpu["persistence_mode"] == bool(nvml.nvmlDeviceGetPersistenceMode(handle))
        assert gpu["pcie_generation_max"] == nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        assert gpu["pcie_width"] == nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)
        assert gpu["power_limit_w"] == nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        assert gpu["clocks_max_mhz"]["sm"] == nvml.nvmlDeviceGetMaxClockInfo(
            handle, nvml.NVML_CLOCK_SM
        )
        for keys, ask in (
            (("ecc_mode", "ecc_mode_pending"), nvml.nvmlDeviceGetEccMode),
            (("mig_mode", "mig_mode_pending"), nvml.nvmlDeviceGetMigMode),
        ):
            try:
                found = [bool(value) for value in ask(handle)]
            except nvml.NVMLError_NotSupported:
                found = [None, None]
            assert [gpu[key] for key in keys] == found
        if gpu["ecc_mode"]:
            for kind, period in (
                ("volatile", nvml.NVML_VOLATILE_ECC),
                ("aggregate", nvml.NVML_AGGREGATE_ECC),
            ):
                assert gpu["ecc_errors"][kind]["uncorrectable"] == nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, period
                )
        # Every value that is not reported has its reason, and no value of a working card lacks one.
        assert {key for key, value in gpu.items() if value is None} == set(gpu["unavailable"])
        assert not set(gpu["unavailable"]) & {
            "name",
            "uuid",
            "bus_id",
            "minor_number",
            "memory_used_mib",
            "temperature_c",
            "utilization_gpu_percent",
            "power_draw_w",
            "pcie_generation",
            "architecture",
            "recovery_action",
        }


def test_pytorch_sees_the_same_gpus(facts, torch):
    assert torch.cuda.device_count() == facts["smi"]["gpu_count"]
    by_uuid = {gpu["uuid"]: gpu for gpu in facts["smi"]["gpus"]}
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        gpu = by_uuid["GPU-%s" % properties.uuid]
        assert gpu["name"] == properties.name
        # CUDA keeps a part for itself.
        assert (
            0.97 * gpu["memory_total_mib"]
            < properties.total_memory >> 20
            <= gpu["memory_total_mib"]
        )


def test_gpu_stack_info_agrees_with_the_kernel_and_nvcc(facts, nvml, handles):
    stack, said = facts["stack"], kernel("/proc/driver/nvidia/version")
    assert stack["loaded"] == stack["library"] == nvml.nvmlSystemGetDriverVersion()
    assert stack["loaded"] in said and stack["loaded_is_open"] == ("Open Kernel Module" in said)
    assert [gpu["bus_id"] for gpu in stack["gpus"]] == [
        nvml.nvmlDeviceGetPciInfo(handle).busId.lower()[4:] for handle in handles
    ]
    for gpu in stack["gpus"]:
        assert (
            kernel("/sys/bus/pci/devices/%s/device" % gpu["bus_id"]).strip()
            == "0x" + gpu["device_id"]
        )
    assert [gpu["model"] for gpu in stack["gpus"]] == [
        nvml.nvmlDeviceGetName(handle) for handle in handles
    ]
    assert re.search(
        r"release %s, V%s\b"
        % (re.escape(stack["nvcc"]["release"]), re.escape(stack["nvcc"]["version"])),
        run(stack["nvcc"]["path"], "-V")[1],
    )
    assert stack["cuda"][stack["cuda_chosen"]]["version"] == stack["nvcc"]["version"]
    assert {os.path.realpath(folder) for folder in stack["cuda"]} == set(stack["cuda"])
    for path, version in stack["nccl_header"].items():
        major, minor, patch = version.split(".")
        text = kernel(path)
        assert all(
            re.search(r"#define NCCL_%s %s\b" % pair, text)
            for pair in (("MAJOR", major), ("MINOR", minor), ("PATCH", patch))
        )


def test_host_info_counts_the_gpus(facts, handles):
    assert facts["host"]["gpus"] == facts["host"]["nvidia_devices"] == len(handles)
    assert facts["host"]["cpus"] == len(os.sched_getaffinity(0))
    total = int(re.search(r"MemTotal:\s+(\d+) kB", kernel("/proc/meminfo")).group(1))
    assert facts["host"]["memory_mib"] == total >> 10


def test_health_agrees_with_the_kernel_log(facts):
    health = facts["health"]
    assert health["kernel_log"]["error"] == ""
    said = (
        run("dmesg")[1]
        if health["kernel_log"]["source"] == "dmesg"
        else run("journalctl", "--dmesg", "--boot")[1]
    )
    assert "NVRM" in said
    assert bool(health["gpu_errors"]) == bool(re.search(r"NVRM: Xid", said))


# --- Slurm's plan -----------------------------------------------------------------------------------------------------------


def test_gres_conf_names_the_device_nodes(facts, nvml, handles):
    slurm = facts["slurm"]
    assert [gpu["minor"] for gpu in slurm["gpus"]] == sorted(
        nvml.nvmlDeviceGetMinorNumber(handle) for handle in handles
    )
    plans = load("tests/unit/plugins/filter/test_slurm_plan.py", "slurm_plans")
    reading = dict(
        plans.reading("gpu-a"),
        **{key: slurm[key] for key in ("gpus", "hardware", "kernel_hardware", "cgroup", "kernel")},
    )
    found = plans.good({"gpu-a": reading})
    line = next(
        line
        for line in plans.text(found, "/gres.conf").splitlines()
        if line.startswith("NodeName=gpu-a ")
    )
    files = re.search(r"File=(\S+)", line).group(1)
    paths = (
        [files] if "[" not in files else ["/dev/nvidia%d" % gpu["minor"] for gpu in slurm["gpus"]]
    )
    assert len(paths) == len(handles)
    for path in paths:
        node = os.stat(path)
        assert stat.S_ISCHR(node.st_mode) and os.major(node.st_rdev) == 195
    kind = re.search(r"Type=(\S+)", line).group(1)
    node = next(
        line
        for line in plans.text(found, "/slurm.conf").splitlines()
        if line.startswith("NodeName=gpu-a ")
    )
    assert "Gres=gpu:%s:%d" % (kind, len(handles)) in node
    record("gres.conf", plans.text(found, "/gres.conf") + node + "\n")


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within %d s" % seconds
        time.sleep(0.2)


def replaced(text, values):
    """slurm.conf or cgroup.conf with other values, None for a line less."""
    lines = [line for line in text.splitlines() if line.split("=")[0] not in values]
    return (
        "\n".join(["%s=%s" % pair for pair in values.items() if pair[1] is not None] + lines) + "\n"
    )


@contextlib.contextmanager
def daemon(folder, *command):
    """A program in the foreground, which writes what it says to a file in the folder."""
    with open(folder / (command[0] + ".out"), "w", encoding="utf-8") as output:
        with subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=subprocess.STDOUT
        ) as child:
            try:
                yield child
            finally:
                child.terminate()
                child.wait(timeout=30)


@pytest.fixture(name="slurm", scope="module")
def fixture_slurm(facts, tmp_path_factory):
    """Slurm on this host, with what slurm_plan says of it.

    All files are in one folder. Accounting, the account slurm and job_container's programs are left
    out.
    """
    folder = tmp_path_factory.mktemp("slurm")
    os.chmod(folder, 0o755)
    (folder / "spool").mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    plans = load("tests/unit/plugins/filter/test_slurm_plan.py", "slurm_plans")
    name = os.uname().nodename.split(".")[0]
    real = {
        key: facts["slurm"][key]
        for key in ("gpus", "hardware", "kernel_hardware", "cgroup", "kernel", "hostname")
    }
    release = re.search(r"\d+\.\d+", run("slurmd", "-V")[1]).group()
    found = plans.good(
        {name: dict(plans.reading(name, release=release), **real)},
        members=[{"name": name, "address": "127.0.0.1"}],
    )
    for part in ("slurm.conf", "gres.conf", "cgroup.conf"):
        (folder / part).write_text(record(part, plans.text(found, "/" + part)), encoding="utf-8")
    conf = (folder / "slurm.conf").read_text(encoding="utf-8")
    conf = re.sub(r" (AllowQos|TRESBillingWeights)=\S+", "", conf)
    (folder / "slurm.conf").write_text(
        replaced(
            conf,
            {
                "SlurmUser": "root",
                "DisableRootJobs": None,
                "AuthInfo": "socket=%s/munge" % folder,
                "StateSaveLocation": folder / "state",
                "SlurmdSpoolDir": folder / "spool",
                "SlurmctldLogFile": folder / "slurmctld.log",
                "SlurmdLogFile": folder / "slurmd.log",
                "SlurmctldPidFile": folder / "slurmctld.pid",
                "SlurmdPidFile": folder / "slurmd.pid",
                "AccountingStorageType": None,
                "AccountingStorageHost": None,
                "AccountingStorageTRES": None,
                "AccountingStorageEnforce": None,
                "PreemptType": None,
                "PreemptMode": None,
                "SlurmctldParameters": None,
                "Prolog": None,
                "Epilog": None,
                "PrologEpilogTimeout": None,
                "HealthCheckProgram": None,
                "HealthCheckInterval": None,
                "HealthCheckNodeState": None,
            },
        ),
        encoding="utf-8",
    )
    if not facts["slurm"]["dbus"]:
        # With systemd slurmd asks it for its control group. Without it Slurm 22.05 does not enable
        # the controller memory.
        slices = Path("/sys/fs/cgroup/system.slice")
        slices.mkdir(exist_ok=True)
        (slices / "cgroup.subtree_control").write_text("+cpuset +cpu +memory", encoding="utf-8")
        for part, values in (
            (
                "cgroup.conf",
                {"IgnoreSystemd": "yes", "ConstrainRAMSpace": None, "ConstrainSwapSpace": None},
            ),
            ("slurm.conf", {"JobAcctGatherType": "jobacct_gather/linux"}),
        ):
            (folder / part).write_text(
                replaced((folder / part).read_text(encoding="utf-8"), values), encoding="utf-8"
            )
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            stack.enter_context(
                daemon(
                    folder,
                    "munged",
                    "--foreground",
                    "--force",
                    "--socket",
                    folder / "munge",
                    "--key-file",
                    folder / "key",
                    "--pid-file",
                    folder / "munged.pid",
                    "--log-file",
                    folder / "munged.log",
                    "--seed-file",
                    folder / "munged.seed",
                )
            )
            until((folder / "munge").exists)
            stack.enter_context(daemon(folder, "slurmctld", "-D", "-c"))
            stack.enter_context(daemon(folder, "slurmd", "-D"))
            until(lambda: run("sinfo", "--noheader", "--format", "%T")[1] == "idle\n")
            yield name
        finally:
            for log in sorted(folder.glob("*.log")) + sorted(folder.glob("*.out")):
                record(
                    log.name.replace(".", "_") + ".txt",
                    log.read_text(encoding="utf-8", errors="replace"),
                )


def test_slurm_knows_the_gpu(slurm, facts, handles):
    kind = gpu_type(facts["smi"]["gpus"][0]["name"])
    assert run("sinfo", "--noheader", "--format", "%G")[1].startswith(
        "gpu:%s:%d" % (kind, len(handles))
    )
    assert "State=IDLE" in record("node.txt", run("scontrol", "show", "node", slurm)[1])


def test_job_with_a_gpu_sees_its_own(slurm, facts, torch):
    found = as_module("nvidia_smi_info", before=("srun", "--quiet", "--immediate=30", "--gpus=1"))
    assert found["gpu_count"] == 1 and found["gpus"][0]["uuid"] in [
        gpu["uuid"] for gpu in facts["smi"]["gpus"]
    ]
    code, text = run(
        "srun",
        "--quiet",
        "--immediate=30",
        "--gpus=1",
        sys.executable,
        "-c",
        "import os, torch\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], torch.cuda.device_count(), float(torch.ones(1000, device='cuda').sum()))",
    )
    assert (code, text) == (0, "0 1 1000.0\n")


def test_job_without_a_gpu_cannot_open_one(slurm, facts):
    tries = "import glob, os\nfor path in sorted(glob.glob('/dev/nvidia[0-9]*')):\n try: os.open(path, os.O_RDWR)\n except OSError as error: print(error)"
    code, text = run("srun", "--quiet", "--immediate=30", sys.executable, "-c", tries)
    gpus = [gpu["path"] for gpu in facts["slurm"]["gpus"]]
    assert (code, text.splitlines()) == (
        0,
        ["[Errno 1] Operation not permitted: '%s'" % path for path in gpus],
    )
    code, text = run(
        "srun",
        "--quiet",
        "--immediate=30",
        sys.executable,
        "-c",
        "import torch; print(torch.cuda.is_available())",
    )
    assert code == 0 and text.endswith("False\n"), text
    found = as_module("nvidia_smi_info", before=("srun", "--quiet", "--immediate=30"))
    record("fault-job.json", json.dumps(found, indent=1))
    assert not found["available"] and found["cause"] == "no_devices"


def test_gpu_belongs_to_one_job_and_is_free_after_it(slurm, nvml, handles, tmp_path):
    """The job ends while a process that left its session holds memory on the GPU."""

    def on_gpu():
        return {
            process.pid
            for handle in handles
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }

    before = on_gpu()
    # Without input it goes on at once.
    (tmp_path / "left.py").write_text(WORKER + "import time\ntime.sleep(600)\n", encoding="utf-8")
    script = tmp_path / "job"
    script.write_text(
        "#!/bin/sh\n%s left.py < /dev/null > out &\nuntil grep -q ready out; do sleep 0.2; done\nsleep 8\n"
        % sys.executable,
        encoding="utf-8",
    )
    every = "--gpus=%d" % len(handles)
    code, text = run(
        "sbatch", "--parsable", every, "--output", tmp_path / "log", "--chdir", tmp_path, script
    )
    assert code == 0, text
    job = text.strip()
    until(lambda: on_gpu() - before, 60)
    code, text = run("srun", "--immediate=2", every, "true")
    assert code != 0 and "Unable to allocate resources" in text
    code, text = run("sbatch", "--parsable", every, "--output", "/dev/null", "--wrap", "true")
    waiting = text.strip()
    until(
        lambda: (
            run("squeue", "--noheader", "--jobs", waiting, "--format", "%T %r")[1]
            == "PENDING Resources\n"
        )
    )
    until(lambda: "JobState=COMPLETED" in run("scontrol", "show", "job", job)[1], 60)
    until(lambda: on_gpu() <= before)
    until(lambda: "JobState=COMPLETED" in run("scontrol", "show", "job", waiting)[1])


# --- rules ------------------------------------------------------------------------------------------------------------------


def a_verified_host(facts, **changes):
    """This host in a cluster in which everything else is in order."""
    rules = load("tests/unit/plugins/action/test_verify_rules.py", "verify_rules")
    real = {
        key: facts["host"][key]
        for key in ("nvidia_devices", "gpus", "cpus", "os", "architecture", "python_version")
    }
    # The clock of a virtual machine may be that of its host.
    health = dict(
        facts["health"], clock={"synchronized": True, "source": "timedatectl", "error": ""}
    )
    host = rules.gpu_host(
        "a",
        facts=real,
        answer=health,
        **dict(
            {
                "__verify_gpus": facts["smi"],
                "__verify_container_gpus": facts["smi"],
                "__verify_stack": facts["stack"],
                "upgrade_asked": {},
                "nvidia_driver_asked": "",
            },
            **changes,
        ),
    )
    return rules, rules.verdicts(host, rules.plain("b", "10.0.0.12"))


def test_verify_has_nothing_against_a_healthy_host(facts):
    rules, findings = a_verified_host(facts)
    assert rules.bad(findings) == []
    told = {entry["id"]: entry["verdict"] for entry in findings if entry["host"] == "a"}
    assert {name: told[name] for name in rules.GPU_IDS} == dict.fromkeys(rules.GPU_IDS, "pass")


def test_compatibility_rules_on_the_real_stack(facts):
    """No rule stops this host."""
    rules = load("tests/unit/plugins/action/test_compat_rules.py", "compat_rules")
    real = {
        key: facts["host"][key]
        for key in ("nvidia_devices", "gpus", "os", "architecture", "python_version")
    }
    host = rules.host(
        (facts["stack"]["gpus"][0]["device_id"],),
        facts=real,
        base="nvcr.io/nvidia/pytorch:25.08-py3",
    )
    host["cluster_stack"] = facts["stack"]
    findings, _result = rules.verdicts(host)
    told = {
        name: (entry["verdict"], entry["found"])
        for name, entry in findings.items()
        if entry["verdict"] in ("warn", "fail")
    }
    record(
        "compatibility.json",
        json.dumps(
            {name: (entry["verdict"], entry["found"]) for name, entry in findings.items()}, indent=1
        ),
    )
    # A site may leave its driver without a hold, or at an old branch. Both are true of such a
    # machine.
    assert set(told) <= {"drv-unpinned", "drv-branch-eol"}, told


# --- faults -----------------------------------------------------------------------------------------------------------------


def hidden(*paths):
    """A command that runs another one without these files: /dev/null is mounted over them, in a
    mount namespace of its own.
    """
    mounts = "".join("mount --bind /dev/null '%s' && " % path for path in paths)
    return ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh"]


def management_libraries():
    """Every libnvidia-ml that the loader may take."""
    found = set(
        glob.glob("/usr/lib/*/libnvidia-ml.so.1")
        + glob.glob("/usr/local/nvidia/lib*/libnvidia-ml.so.1")
    )
    found.update(re.findall(r"libnvidia-ml\.so\.1 .*=> (\S+)", run("ldconfig", "-p")[1]))
    return sorted({os.path.realpath(path) for path in found})


def test_missing_library(facts):
    smi = as_module("nvidia_smi_info", before=hidden(*management_libraries()))
    record("fault-library.json", json.dumps(smi, indent=1))
    assert (smi["available"], smi["cause"], smi["gpus"]) == (False, "library_missing", [])
    assert "libnvidia-ml" in smi["fix"]
    rules, findings = a_verified_host(facts, __verify_gpus=smi)
    failed = {entry["id"]: entry for entry in rules.bad(findings)}
    assert (
        "gpus-present" in failed
        and failed["gpus-present"]["found"] == "library_missing"
        and failed["gpus-present"]["fix"] == smi["fix"]
    )


def test_missing_program(facts):
    smi = as_module("nvidia_smi_info", executable="/nowhere/nvidia-smi")
    assert (smi["available"], smi["cause"]) == (
        False,
        "not_installed",
    ) and "install the NVIDIA driver" in smi["fix"]
    rules, findings = a_verified_host(facts, __verify_gpus=smi)
    assert "gpus-present" in {entry["id"] for entry in rules.bad(findings)}


def test_path_without_the_program(tmp_path):
    for folder in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for name in os.listdir(folder):
            if name != "nvidia-smi" and not (tmp_path / name).is_symlink():
                (tmp_path / name).symlink_to(os.path.join(folder, name))
    smi = as_module("nvidia_smi_info", env={"PATH": str(tmp_path)})
    assert (smi["available"], smi["cause"]) == (
        False,
        "not_installed",
    ) and "nvidia-smi is not on the PATH" in smi["fix"]


@pytest.mark.parametrize(
    "kind, cause, fix",
    [
        ("gpus", "no_devices", "check the permissions of /dev/nvidia*"),
        ("control", "access_blocked", "which cgroup"),
    ],
)
def test_device_node_that_is_none(handles, nvml, kind, cause, fix):
    """As in a container or a cgroup without them. The driver still knows its GPUs."""
    paths = (
        ["/dev/nvidia%d" % nvml.nvmlDeviceGetMinorNumber(handle) for handle in handles]
        if kind == "gpus"
        else ["/dev/nvidiactl"]
    )
    smi = as_module("nvidia_smi_info", before=hidden(*paths))
    record("fault-%s.txt" % kind, run(*hidden(*paths), "nvidia-smi", "-q", "-x")[1])
    assert (smi["available"], smi["cause"]) == (False, cause) and fix in smi["fix"]


def test_device_nodes_that_a_user_may_not_open(tmp_path):
    node = os.stat("/dev/nvidiactl").st_rdev
    made = (
        "mknod %s/node c %d %d && chmod 600 %s/node && mount --bind %s/node /dev/nvidiactl && exec setpriv --reuid %d --clear-groups nvidia-smi -q -x"
        % (tmp_path, os.major(node), os.minor(node), tmp_path, tmp_path, STRANGER)
    )
    code, text = run("unshare", "--mount", "sh", "-c", made)
    record("fault-permission.txt", text)
    assert code and why_no_answer(code, text, "")[0] == "permission", text


def test_stub_of_the_library(tmp_path):
    """CUDA's folder of stubs in LD_LIBRARY_PATH: the stub says that the driver is not loaded, which
    is not the cause.
    """
    stubs = glob.glob(cuda_home() + "/targets/*/lib/stubs/libnvidia-ml.so") + glob.glob(
        cuda_home() + "/lib64/stubs/libnvidia-ml.so"
    )
    (tmp_path / "libnvidia-ml.so.1").symlink_to(stubs[0])
    record(
        "fault-stub.txt", run("nvidia-smi", "-q", "-x", env={"LD_LIBRARY_PATH": str(tmp_path)})[1]
    )
    smi = as_module("nvidia_smi_info", env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert (smi["available"], smi["cause"]) == (
        False,
        "library_missing",
    ) and "LD_LIBRARY_PATH" in smi["fix"]


# --- builds, which run while the tests above do ---------------------------------------------------------------------------------


def cuda_home():
    return os.path.dirname(
        os.path.dirname(os.path.realpath(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"))
    )


def nccl_home(folder):
    """The system's NCCL, or a folder in its layout for the one in the wheel."""
    if os.path.exists("/usr/include/nccl.h"):
        return "/usr"
    wheel = Path(importlib.util.find_spec("nvidia.nccl").submodule_search_locations[0])
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(wheel / "include")
    for name in ("libnccl.so", "libnccl.so.2"):
        (folder / "lib" / name).symlink_to(wheel / "lib/libnccl.so.2")
    return str(folder)


def capability():
    return (
        run("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")[1]
        .split()[0]
        .replace(".", "")
    )


class Build:
    """A build in the background."""

    def __init__(self, name, folder, command, env):
        self.name, self.log, self.begun = name, folder / (name + ".log"), time.time()
        with open(self.log, "w", encoding="utf-8") as stream:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    def done(self):
        code = self.child.wait(timeout=1800)
        text = record(self.name + ".log", self.log.read_text(encoding="utf-8", errors="replace"))
        assert code == 0, text[-8000:]
        record(self.name + ".seconds", "%.1f\n" % (os.path.getmtime(self.log) - self.begun))
        return text

    def end(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)


def begin_nccl_tests(folder):
    """The program of role nccl_tests, with what the role would give it."""
    programs = folder / "nccl_tests"
    programs.mkdir()
    for path in (
        "roles/nccl_tests/files/nccl_tests_from_source.py",
        "roles/nccl/files/source_build.py",
    ):
        shutil.copy(ROOT / path, programs)
    source_build = load("roles/nccl/files/source_build.py", "source_build")
    home = nccl_home(folder / "nccl")
    asked = {
        "tag": NCCL_TESTS[0],
        "source": "git",
        "commit": NCCL_TESTS[1],
        "checksum": "",
        "cuda_home": cuda_home(),
        "cuda": "",
        "nccl_home": home,
        "url": "https://github.com/NVIDIA/nccl-tests.git",
        "nccl": source_build.header_version(home + "/include/nccl.h"),
        "nccl_package": "",
        "mpi_home": OPEN_MPI if os.path.exists(OPEN_MPI + "/include/mpi.h") else "",
        "compute_capabilities": [capability()],
        "make_variables": {},
        "prefix": str(folder / "prefix"),
    }
    for path in (
        sorted(glob.glob(os.path.join(SOURCES, "nccl-tests-*.tar.gz")))[-1:] if SOURCES else []
    ):
        asked.update(
            source="archive",
            url="file://" + path,
            checksum=hashlib.sha256(Path(path).read_bytes()).hexdigest(),
            tag="v" + re.search(r"nccl-tests-(.+)\.tar\.gz", path).group(1),
        )
    return Build(
        "nccl_tests",
        folder,
        [
            sys.executable,
            "-B",
            str(programs / "nccl_tests_from_source.py"),
            str(folder / "nccl_tests.json"),
        ],
        dict(os.environ, TRAINYARD_NCCL_TESTS=json.dumps(asked)),
    )


def recipe():
    """The arguments of the image's build step for Horovod."""
    defaults = yaml.safe_load(
        (ROOT / "roles/training_image/defaults/main.yml").read_text(encoding="utf-8")
    )
    fixes = yaml.safe_load(
        (ROOT / "roles/training_image/vars/main.yml").read_text(encoding="utf-8")
    )["__training_image_source_fixes"]
    names = {
        name: defaults["training_image_horovod_" + name]
        for name in ("version", "sha256", "url", "build_packages", "dependencies")
    }
    requires = {"frameworks": ["pytorch"], "controllers": ["gloo"], "tensor_operations": ["nccl"]}
    return dict(
        names,
        compile=True,
        pip_packages=defaults["training_image_pip_packages"],
        fixes=fixes,
        variables=horovod_variables(requires, [capability()], {}),
    )


def begin_horovod(folder):
    """The step of the image's build, in an environment of its own that has the packages of this
    Python.
    """
    environment = folder / "environment"
    assert run(sys.executable, "-m", "venv", "--without-pip", environment)[0] == 0
    python = environment / "bin/python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[1].strip()
    packages = os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin))
    Path(site, "parent.pth").write_text(
        "import site; site.addsitedir(%r)\n" % packages, encoding="utf-8"
    )
    here = folder / "step"
    here.mkdir()
    shutil.copy(ROOT / "roles/training_image/files/steps.py", here)
    (here / "arguments.json").write_text(json.dumps(recipe()), encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if SOURCES:
        (here / "wheels").symlink_to(SOURCES)
        variables["PIP_NO_INDEX"] = "1"
    if not os.path.exists("/usr/include/nccl.h"):
        variables["HOROVOD_NCCL_HOME"] = nccl_home(folder / "nccl_of_wheel")
    step = (
        "import steps, sys; steps.HERE = %r; sys.argv = ['steps.py', 'horovod']; steps.main()"
        % str(here)
    )
    return Build(
        "horovod", folder, [str(python), "-B", "-c", step], dict(variables, PYTHONPATH=str(here))
    )


@pytest.fixture(scope="module", autouse=True)
def builds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("builds")
    found = {"nccl_tests": begin_nccl_tests(folder), "horovod": begin_horovod(folder)}
    yield found
    for build in found.values():
        build.end()


# --- NCCL -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(name="all_reduce_perf", scope="module")
def fixture_all_reduce_perf(builds):
    builds["nccl_tests"].done()
    return str(builds["nccl_tests"].log.parent / "prefix/bin/all_reduce_perf")


def test_all_reduce_perf_on_one_gpu(all_reduce_perf):
    code, text = run(all_reduce_perf, "-b", "8", "-e", "256M", "-f", "2", "-g", "1")
    record("all_reduce_perf.txt", text)
    assert code == 0, text
    answer = as_module("nccl_all_reduce", log=text)
    assert answer["complete"] and answer["out_of_bounds"] == {"count": 0, "ok": True}
    assert (answer["ranks"], answer["hosts"], answer["gpus"]) == (1, 1, 1)
    assert len(answer["rows"]) == 26 and all(
        row[way]["wrong"] == 0 for row in answer["rows"] for way in ("out_of_place", "in_place")
    )
    # One rank moves nothing between GPUs, which must not pass for a measurement.
    assert not answer["passed"] and [reason["id"] for reason in answer["reasons"]] == ["one_rank"]
    code = int(re.search(r"nccl-library=(\d+)", text).group(1))
    assert answer["nccl_version"] == "%d.%d.%d" % (code // 10000, code % 10000 // 100, code % 100)


def test_more_gpus_than_there_are(all_reduce_perf, handles):
    answer = as_module(
        "nccl_all_reduce", executable=all_reduce_perf, gpus=len(handles) + 1, max_bytes="1M"
    )
    assert answer.get("msg", "").startswith(
        "gpus: %d: more GPUs are requested than the host has" % (len(handles) + 1)
    ), answer


def test_two_ranks_on_one_gpu(all_reduce_perf):
    """NCCL's own error of a real card. nccl-tests would refuse by themselves, so that the device is
    set by their variable.
    """
    answer = as_module(
        "nccl_all_reduce",
        executable=all_reduce_perf,
        gpus=2,
        launcher="mpirun_per_gpu",
        hosts=["localhost"],
        max_bytes="1M",
        environment={"NCCL_TESTS_DEVICE": "0", "CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "WARN"},
        timeout=120,
    )
    record("duplicate_gpu.txt", answer.get("output", json.dumps(answer)))
    assert not answer["passed"] and "duplicate_gpu" in [
        reason["id"] for reason in answer["reasons"]
    ], answer


# --- PyTorch ----------------------------------------------------------------------------------------------------------------


def torchrun(program, *arguments, ranks=1, env=None, **options):
    return run(
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(ranks),
        program,
        *arguments,
        env=env,
        **options,
    )


@pytest.fixture(name="bandwidth_job")
def fixture_bandwidth_job(tmp_path):
    for path in (
        "roles/verify/files/all_reduce.py",
        "plugins/module_utils/_bandwidth.py",
        "plugins/module_utils/_blame.py",
        "roles/train/files/_job_watch.py",
    ):
        shutil.copy(ROOT / path, tmp_path)
    return tmp_path


def test_bandwidth_job_with_one_rank(bandwidth_job, torch):
    """One rank has no other to exchange data with: nothing is measured, the facts are there, and
    the job ends in order.
    """
    plan = {
        "hosts": [{"name": "here", "slots": 1}],
        "at_once": 0,
        "largest": {"gloo": 1 << 24, "nccl": 1 << 28},
        "history": {},
        "asked": {"fraction": 0.7, "min_busbw_gb_s": 0, "peer_fraction": 0.6, "drop_percent": 20},
    }
    code, text = torchrun(
        bandwidth_job / "all_reduce.py",
        env={
            "TRAINYARD_JOB_DIR": str(bandwidth_job),
            "TRAINYARD_BANDWIDTH": base64.b64encode(json.dumps(plan).encode()).decode(),
        },
    )
    assert code == 0, text
    found = json.loads((bandwidth_job / "bandwidth.json").read_text(encoding="utf-8"))
    record("bandwidth.json", json.dumps(found, indent=1))
    assert (found["collective"], found["runs"], found["blame"], found["note"]) == (
        "nccl",
        [],
        [],
        "",
    )
    gpus = found["facts"]["here"]["gpus"]
    assert len(gpus) == torch.cuda.device_count() and all(gpu["pcie"] > 0 for gpu in gpus)


def test_sums_of_nccl_and_a_working_gpu_are_seen(bandwidth_job, torch):
    """The functions of the job with a process group of one rank: the sums are checked on the GPU,
    and nvidia-smi shows that it works.
    """
    program = bandwidth_job / "one.py"
    program.write_text(
        """\
import json, os, torch, torch.distributed as dist
import all_reduce
torch.cuda.set_device(0)
log = all_reduce.nccl_log()
dist.init_process_group("nccl")
device = torch.device("cuda", 0)
rows = all_reduce.all_reduce_rows(0, 1, [1 << 20, 1 << 28], device)
buffer = torch.ones(1 << 26, device=device)
other = torch.ones(8192, 8192, device=device)
def work(count):
    for _ in range(count):
        dist.all_reduce(buffer)
        torch.mm(other, other)
    torch.cuda.synchronize()
seen = all_reduce.watch(work, lambda value: all_reduce.slowest(value, device), [], True)
said = all_reduce.said(log, 0)
dist.destroy_process_group()
with open("answer.json", "w") as stream:
    json.dump({"rows": rows, "seen": seen, "nccl": [line for line in said if "NCCL version" in line or "nranks" in line]}, stream)
""",
        encoding="utf-8",
    )
    code, text = torchrun(program, cwd=bandwidth_job)
    assert code == 0, text
    answer = json.loads((bandwidth_job / "answer.json").read_text(encoding="utf-8"))
    record("watched.json", json.dumps(answer, indent=1))
    assert [row["in_place"]["wrong"] for row in answer["rows"]] == [0, 0]
    assert all(row["in_place"]["busbw_gb_s"] == 0 for row in answer["rows"])
    assert (
        len(answer["seen"]["gpus"]) == torch.cuda.device_count() and answer["seen"]["gpus"][0] > 50
    )
    version = ".".join(map(str, torch.cuda.nccl.version()))
    assert any("NCCL version %s" % version in line for line in answer["nccl"]) and any(
        "nranks 1 " in line for line in answer["nccl"]
    )


def test_two_ranks_of_pytorch_on_one_gpu(tmp_path, torch):
    """The common mistake of a program that does not select its GPU."""
    program = tmp_path / "same.py"
    program.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\ndist.all_reduce(torch.ones(4, device='cuda:0'))\n"
        "torch.cuda.synchronize()\n",
        encoding="utf-8",
    )
    code, text = torchrun(program, ranks=2, cwd=tmp_path)
    record("duplicate_gpu_torch.txt", text)
    assert code != 0
    assert [error["id"] for error in causes(text)] == ["duplicate_gpu"]
    assert "local rank" in causes(text)[0]["fix"]


def test_more_ranks_than_gpus(tmp_path, torch):
    code, text = torchrun(
        ROOT / "roles/train/files/examples/digits_torchrun.py",
        "--epochs",
        "1",
        ranks=torch.cuda.device_count() + 1,
        cwd=tmp_path,
    )
    record("too_many_ranks_torch.txt", text)
    assert code != 0 and "too_many_gpus" in [error["id"] for error in causes(text)], text[-3000:]


@pytest.mark.parametrize(
    "name, arguments, least",
    [
        ("digits_torchrun.py", ["--epochs", "8"], 0.9),
        ("resnet18_ddp.py", ["--epochs", "4", "--random-images", "20000"], 0.3),
    ],
)
def test_example_on_the_gpu(tmp_path, torch, nvml, handles, name, arguments, least):
    job = {
        "TRAINYARD_JOB_DIR": str(tmp_path),
        "TRAINYARD_RANK_REPORT": str(tmp_path / "report.json"),
    }
    code, text = torchrun(
        ROOT / "roles/train/files/examples" / name,
        *arguments,
        env=dict(job, NCCL_DEBUG="VERSION"),
        cwd=tmp_path,
    )
    record(name + ".txt", text)
    assert code == 0 and "Warning" not in text, text
    # NCCL, and so the GPU, and not Gloo.
    assert "NCCL version %s" % ".".join(map(str, torch.cuda.nccl.version())) in text
    # With ten classes, a network that has learned nothing has a loss of 2.3 and an accuracy of 0.1.
    # ResNet's accuracy varies while its learning rate grows.
    loss, printed = map(float, re.findall(r"loss ([\d.]+), test accuracy ([\d.]+)", text)[-1])
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert printed == report["metrics"]["accuracy"] > least and loss < 1
    assert "parameters sha256 " + report["checksum"] in text
    # The checkpoint was written on the GPU.
    model = torch.load(tmp_path / "checkpoint.pt", weights_only=False)["model"]
    assert {tensor.device.type for tensor in model.values()} == {"cuda"}


# --- Horovod ----------------------------------------------------------------------------------------------------------------

HOROVOD = """\
import ctypes, json, re, sys
import horovod.torch as hvd
import torch
hvd.init()
torch.cuda.set_device(0 if len(sys.argv) > 2 else hvd.local_rank())
given = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
total = hvd.allreduce(given, op=hvd.Sum, name="given")
with open("/proc/self/maps") as stream:
    paths = sorted(set(re.findall(r"/\\S*libnccl\\S*", stream.read())))
code = ctypes.c_int()
ctypes.CDLL(paths[0]).ncclGetVersion(ctypes.byref(code))
with open(sys.argv[1], "w") as stream:
    json.dump({"size": hvd.size(), "device": total.device.type, "equal": torch.equal(total, given), "paths": paths, "version": code.value,
               "nccl": hvd.nccl_built(), "gloo": hvd.gloo_enabled()}, stream)
"""


@pytest.fixture(name="horovodrun", scope="module")
def fixture_horovodrun(builds):
    text = builds["horovod"].done()
    assert "Source fix torch-2.1-cxx17" in text or "Source fix torch-2.13-cxx20" in text
    return str(builds["horovod"].log.parent / "environment/bin/horovodrun")


def without_path():
    """The module's process must not find the packages of this test's Python."""
    return {"PYTHONPATH": ""}


def test_horovod_of_the_recipe_has_nccl(horovodrun):
    record("check-build.txt", run(horovodrun, "--check-build", env=without_path())[1])
    requires = {"frameworks": ["pytorch"], "controllers": ["gloo"], "tensor_operations": ["nccl"]}
    answer = as_module(
        "horovod_build_info", executable=horovodrun, requires=requires, import_required=True
    )
    assert (
        answer["available"] and answer["missing"] == [] and answer["version"] == recipe()["version"]
    )
    assert answer["frameworks"] == {"tensorflow": False, "pytorch": True, "mxnet": False}
    assert answer["controllers"] == {"mpi": False, "gloo": True}
    assert (
        answer["tensor_operations"]["nccl"]
        and answer["tensor_operations"]["gloo"]
        and not answer["tensor_operations"]["mpi"]
    )
    assert parse_check_build(
        run(horovodrun, "--check-build", env=without_path())[1]
    ).tensor_operations["nccl"]


def horovod_job(horovodrun, folder, ranks, *arguments, debug="INFO"):
    program, answer = folder / "reduce.py", folder / "answer.json"
    program.write_text(HOROVOD, encoding="utf-8")
    python = os.path.join(os.path.dirname(horovodrun), "python")
    code, text = run(
        horovodrun,
        "-np",
        ranks,
        "--gloo",
        python,
        program,
        answer,
        *arguments,
        env=dict(without_path(), NCCL_DEBUG=debug),
        timeout=120,
    )
    return code, text, json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None


def test_horovod_reduces_on_the_gpu_with_nccl(horovodrun, tmp_path, torch):
    code, text, answer = horovod_job(horovodrun, tmp_path, 1)
    record("horovod_job.txt", text)
    assert code == 0, text
    assert answer["size"] == 1 and answer["device"] == "cuda" and answer["equal"] and answer["gloo"]
    # One NCCL in the process: PyTorch's. Horovod is linked to the shared library, so it uses the
    # loaded one.
    version = torch.cuda.nccl.version()
    assert (
        len(answer["paths"]) == 1
        and answer["version"] == version[0] * 10000 + version[1] * 100 + version[2]
    )
    assert "NCCL version %d.%d.%d" % version in text
    assert re.search(r"ncclCommInitRank\w* comm \S+ rank 0 nranks 1 ", text), text[-3000:]


@pytest.mark.parametrize("debug, error", [("WARN", "duplicate_gpu"), ("", "nccl_invalid_usage")])
def test_two_ranks_of_horovod_on_one_gpu(horovodrun, tmp_path, debug, error):
    """Without NCCL_DEBUG Horovod prints no reason."""
    code, text, _answer = horovod_job(horovodrun, tmp_path, 2, "same", debug=debug)
    record("duplicate_gpu_horovod%s.txt" % debug, text)
    assert code != 0
    assert [found["id"] for found in causes(text)] == [error], text[-3000:]


def test_example_of_horovod_on_the_gpu(horovodrun, tmp_path):
    python = os.path.join(os.path.dirname(horovodrun), "python")
    code, text = run(
        horovodrun,
        "-np",
        "1",
        "--gloo",
        python,
        ROOT / "roles/train/files/examples/digits_horovod.py",
        "--epochs",
        "8",
        env=dict(without_path(), TRAINYARD_JOB_DIR=str(tmp_path), NCCL_DEBUG="VERSION"),
        cwd=tmp_path,
        timeout=300,
    )
    record("digits_horovod.txt", text)
    assert code == 0, text
    assert "NCCL version" in text and float(re.findall(r"test accuracy ([\d.]+)", text)[-1]) > 0.9


# --- jobs of Slurm ----------------------------------------------------------------------------------------------------------


def health_check(folder, **health):
    """HealthCheckProgram as it is on hosts: beside its module, with a configuration."""
    shutil.copy(ROOT / "roles/job_container/files/health.py", folder)
    for name in ("_host_health", "_mountinfo", "_nft_table", "_nvidia_smi", "_quantity"):
        shutil.copy(ROOT / "plugins/module_utils" / (name + ".py"), folder)
    (folder / "config.json").write_text(json.dumps({"health": health}), encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, text = run(
        "/usr/bin/python3",
        "-c",
        "import health, sys; health.CONFIG = 'config.json'; sys.exit(health.main())",
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, text, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_health_check_of_a_healthy_host(tmp_path, handles):
    code, text, seconds = health_check(tmp_path, gpus=len(handles), free_gib={"/": 0.1})
    record("health.txt", "%d %s %.3f s\n" % (code, text, seconds))
    assert (code, text) == (0, "") and seconds < 1


def test_health_check_misses_a_gpu(tmp_path, handles):
    code, text, _seconds = health_check(tmp_path, gpus=len(handles) + 1)
    assert (code, text) == (
        1,
        "trainyard: %d of %d GPUs are present\n" % (len(handles), len(handles) + 1),
    )


WORKER = """\
import os, sys, torch
os.setsid()
keep = torch.zeros(1 << 28, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def worker(job, uid):
    """A process of a user that has a GiB on the GPU."""

    def become():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)

    # The folders of root may be closed to this user.
    env = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "HOME": "/nonexistent",
        "USER": "stranger",
    }
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env=dict(env, **({"SLURM_JOB_ID": job} if job else {})),
        preexec_fn=become if uid else None,
    )
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()


def test_process_left_on_the_gpu_is_seen_and_ended_by_the_epilog(tmp_path, torch, nvml, handles):
    epilog = load("roles/job_container/files/epilog.py", "epilog")
    assert not epilog.owned(STRANGER, []), "user %d has processes on this machine" % STRANGER

    def on_gpu():
        return {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handles[0])}

    with worker("4242", STRANGER) as left, worker("", 0) as other:
        assert {left.pid, other.pid} <= on_gpu()
        seen = {
            process["pid"]: process
            for process in as_module("nvidia_smi_info")["gpus"][0]["processes"]
        }
        assert (
            {left.pid, other.pid} <= set(seen)
            and seen[left.pid]["type"] == "C"
            and seen[left.pid]["used_memory_mib"] > 1024
        )
        record("nvidia-smi-processes.xml", run("nvidia-smi", "-q", "-x")[1])
        used = nvml.nvmlDeviceGetMemoryInfo(handles[0]).used
        epilog.finish("4242", STRANGER, str(tmp_path / "storage"), str(tmp_path / "runtime"))
        assert left.wait(timeout=10) == -signal.SIGKILL
        # The driver frees the memory of a process after its end.
        deadline = time.monotonic() + 10
        while left.pid in on_gpu() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert other.pid in on_gpu() and left.pid not in on_gpu()
        assert nvml.nvmlDeviceGetMemoryInfo(handles[0]).used < used - (1 << 30)


def test_burn_in_of_each_gpu(tmp_path, torch):
    """Each part of the load once, with its figures, compared with those of the data sheet where
    there are some.
    """
    program = ROOT / "roles/burn_in/files/burn_in.py"
    before = as_module("nvidia_smi_info")
    code, text = run(
        sys.executable,
        "-B",
        program,
        env={"TRAINYARD_BURN_IN": json.dumps({"seconds": 30, "folders": {"local": str(tmp_path)}})},
    )
    assert code == 0, text
    record("burn-in.json", text)
    told = {
        "run": {"rc": 0, "stdout_lines": text.splitlines()},
        "before": before,
        "during": {},
        "after": as_module("nvidia_smi_info"),
    }
    found = _burn_in.judge(
        _burn_in.of_hosts({"here": told}),
        {},
        lambda model: _compat.gpu_figures(model, _compat.load_facts()),
    )
    gpus = [device for device in found["devices"] if device["kind"] == "gpu"]
    assert len(gpus) == torch.cuda.device_count()
    for device in gpus:
        print(device["model"], device["rates"])
        assert device["wrong"] == 0 and device["verdict"] == "pass", found["checks"]
        assert {"matmul_float32", "matmul_float16", "memory", "to_device", "from_device"} <= set(
            device["rates"]
        )
    # No published figure is out of reach.
    assert {check["verdict"] for check in found["checks"]} <= {"pass", "warn"}


def test_the_gpu_of_a_process_of_no_job_is_seen(torch, facts):
    """By its open device file, as the prolog sees it, and within the time that it has."""
    users = load("roles/job_container/files/_gpu_users.py", "_gpu_users")
    minors = [gpu["minor_number"] for gpu in facts["smi"]["gpus"]]
    with worker("", STRANGER) as stranger, worker("4242", STRANGER) as own:
        begun = time.monotonic()
        found = users.strangers(minors, "/dev/nvidia%d", {"4242"})
        assert time.monotonic() - begun < 4 * users.SECONDS
        assert stranger.pid in found and own.pid not in found
