# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""trainyard-run: from what Slurm says to the command of podman, and the exchange between the
workers of a step.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from shared_modules import FOLDERS

from ansible_collections.trainyard.gpu.plugins.plugin_utils._job_container_plan import (
    cdi_specification,
)

FILES = Path(__file__).resolve().parents[4] / "roles" / "job_container" / "files"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FILES / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = load("trainyard_run")
ID = "9507cb1e499394de3e22c6874f3372f03c0e633c90908f48f29475da291dc90e"
OTHER = "1" * 64
CONFIG = {
    "podman": "/usr/bin/podman",
    "mount_program": "/usr/bin/fuse-overlayfs",
    "init": True,
    "gpus": {"cdi": "nvidia.com/gpu", "nodes": "/dev/nvidia%d"},
}


@pytest.mark.parametrize(
    "text, names",
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("lab-[1-3,7]", ["lab-1", "lab-2", "lab-3", "lab-7"]),
        ("n[09-11]x,z", ["n09x", "n10x", "n11x", "z"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
        ("h5-[12,13b]", None),
        ("a[1-2", None),
    ],
)
def test_node_lists(text, names):
    if names is None:
        with pytest.raises(run.Refused):
            run.expand_nodes(text)
    else:
        assert run.expand_nodes(text) == names


def test_task_counts():
    assert run.expand_counts("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(run.Refused, match="'x'"):
        run.expand_counts("x")


def test_workers():
    step = {
        "SLURM_STEP_NODELIST": "lab-[a,b]".replace("a,b", "1-2"),
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
    }
    assert run.workers(step) == {"index": 3, "count": 4, "nodes": ["lab-1", "lab-2"], "local": 1}
    assert run.workers({"SLURMD_NODENAME": "lab-1", "SLURM_NTASKS": "4"})["count"] == 1, (
        "a batch script is one worker"
    )


def test_steps_have_ports_of_their_own():
    ranges = [[10340, 10359], [12000, 12019]]
    first = [run.step_ports(ranges, step)[: run.PORTS_OF_STEP] for step in ("0", "1", "12")]
    assert first == [[10340, 10341, 10342], [10343, 10344, 10345], [12016, 12017, 12018]], (
        "steps of the same time begin with others"
    )
    assert all(
        sorted(run.step_ports(ranges, step)) == [*range(10340, 10360), *range(12000, 12020)]
        for step in ("0", "77", "batch")
    )
    assert run.step_ports([], "0") == []


@pytest.mark.parametrize(
    "name, found",
    [
        ("trainyard/test:1", ID),
        ("localhost/trainyard/test:1", ID),
        (ID[:12], ID),
        ("sha256:" + ID, ID),
        ("own", OTHER),
        ("trainyard/test@sha256:aa", ID),
        ("trainyard/test", None),
        ("other@sha256:aa", None),
        ("trainyard/test:2", None),
    ],
)
def test_images_of_the_host_and_of_the_user(name, found):
    stores = [
        [{"id": ID, "names": ["localhost/trainyard/test:1"], "digest": "sha256:aa"}],
        [{"id": OTHER, "names": ["docker.io/library/own:latest"]}, {"id": "2" * 64}],
    ]
    if found:
        assert run.find_image(name, stores) == found
    else:
        with pytest.raises(
            run.Refused,
            match="images here: docker.io/library/own:latest, localhost/trainyard/test:1",
        ):
            run.find_image(name, stores)


def test_the_store_of_the_host_comes_first():
    stores = [
        [{"id": ID, "names": ["localhost/x:latest"]}],
        [{"id": OTHER, "names": ["localhost/x:latest"]}],
    ]
    assert run.find_image("x", stores) == ID


def test_the_environment_survives_the_shell(tmp_path):
    values = {
        "A": 'it\'s $HOME `id` "x"\nsecond line',
        "B_2": "",
        "BASH_FUNC_x%%": "() { :; }",
        "bad-name": "1",
    }
    file = tmp_path / "environment"
    file.write_text(run.environment_text(values), encoding="utf-8")
    shown = subprocess.run(
        ["sh", "-c", '. %s; printf %%s "$A$B_2"' % file],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    assert shown == values["A"]
    assert "bad-name" not in file.read_text(encoding="utf-8") and "BASH_FUNC" not in file.read_text(
        encoding="utf-8"
    )


def test_settings_yield_to_the_job_and_both_to_the_program():
    found = run.task_environment(
        {
            "NCCL_DEBUG": "INFO",
            "PATH": "/host",
            "LD_PRELOAD": "x",
            "MASTER_ADDR": "z",
            "CONTAINERS_CONF": "y",
            "TOKEN": "t",
        },
        run.parse_settings('# of the role\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME="eth0"\n'),
        {"MASTER_ADDR": "10.0.0.1"},
    )
    assert found == {
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eth0",
        "MASTER_ADDR": "10.0.0.1",
        "TOKEN": "t",
    }


@pytest.mark.parametrize(
    "asked, environment, size",
    [
        ("8g", {}, "8g"),
        ("", {"TRAINYARD_SHM_SIZE": "2g"}, "2g"),
        ("", {"SLURM_MEM_PER_NODE": "4000"}, "2000m"),
        ("", {"SLURM_MEM_PER_NODE": "0"}, "1g"),
        ("", {}, "1g"),
        ("lots", {}, None),
        ("8g --privileged", {}, None),
    ],
)
def test_shared_memory(asked, environment, size):
    if size:
        assert run.shared_memory(asked, environment, "1g") == size
    else:
        with pytest.raises(run.Refused, match="is not a size"):
            run.shared_memory(asked, environment, "1g")


def test_the_host_file_has_each_address_once():
    entries = [
        {"address": "10.0.0.2", "slots": 1},
        {"address": "10.0.0.1", "slots": 2},
        {"address": "10.0.0.2", "slots": 1},
    ]
    assert run.host_file(entries) == "10.0.0.2 slots=2\n10.0.0.1 slots=2\n"


@pytest.mark.parametrize(
    "text, option",
    [
        ("/data", "--mount=type=bind,source=/data,target=/data"),
        ("/data:/x:ro", "--mount=type=bind,source=/data,target=/x,readonly"),
        ("data", None),
        ("/data:x", None),
        ("/a,target=/b", None),
        ("/a:/b:z", None),
    ],
)
def test_mounts(text, option):
    if option:
        assert run.mount_option(text) == option
    else:
        with pytest.raises(run.Refused):
            run.mount_option(text)


def test_devices(monkeypatch):
    host = {"nodes": [0, 3], "driver": []}
    monkeypatch.setattr(run._gpu_numbers, "read_specifications", list)
    # Without a description that can be read, as nvidia-smi counts.
    assert run.device_options([0, 3], CONFIG, host) == [
        "--device=nvidia.com/gpu=0",
        "--device=nvidia.com/gpu=1",
    ]
    own = cdi_specification([0, 3], ["/dev/nvidiactl"])
    monkeypatch.setattr(run._gpu_numbers, "read_specifications", lambda: [own])
    assert run.device_options([0, 3], CONFIG, host) == [
        "--device=nvidia.com/gpu=0",
        "--device=nvidia.com/gpu=3",
    ]
    nodes = {
        "gpus": {
            "cdi": "",
            "nodes": "/dev/nvidia%d",
            "control": ["/dev/nvidiactl", "/dev/nvidia-uvm"],
        }
    }
    there = {"/dev/nvidia1", "/dev/nvidiactl"}.__contains__
    assert run.device_options([1], nodes, host, there) == [
        "--device=/dev/nvidia1",
        "--device=/dev/nvidiactl",
    ]
    assert run.device_options([], nodes, host, there) == []
    with pytest.raises(run.Refused, match="/dev/nvidia2, which this host does not have"):
        run.device_options([1, 2], nodes, host, there)


def options_of(kinds, numbers, positions, driver=()):
    """The devices of a task, from what Slurm says to the command of podman, on a host whose driver
    is not loaded.
    """
    config = {"gpus": dict(kinds, positions=numbers)}
    host = {"nodes": sorted(numbers), "driver": list(driver)}
    gpus = run._gpu_numbers.of_task({"SLURM_STEP_GPUS": positions}, config, host)
    return run.device_options(gpus, config, host, lambda path: True)


@pytest.mark.parametrize(
    "numbers, positions, opened",
    [
        # Four A100 around a display card: Type=a100 File=/dev/nvidia[0-2,4], then Type=dgx
        # File=/dev/nvidia3.
        ([0, 1, 2, 4, 3], "3", [4]),
        ([0, 1, 2, 4, 3], "4", [3]),
        ([0, 1, 2, 4, 3], "0,1,2,3", [0, 1, 2, 4]),
        # File=/dev/nvidia2,/dev/nvidia3,/dev/nvidia5,/dev/nvidia7
        ([2, 3, 5, 7], "0", [2]),
        ([2, 3, 5, 7], "2-3", [5, 7]),
    ],
)
def test_the_number_of_slurm_is_a_position(monkeypatch, numbers, positions, opened):
    own = cdi_specification(numbers, [])
    monkeypatch.setattr(run._gpu_numbers, "read_specifications", lambda: [own])
    by_cdi = {"cdi": "nvidia.com/gpu", "nodes": "/dev/nvidia%d"}
    assert options_of(by_cdi, numbers, positions) == [
        "--device=nvidia.com/gpu=%d" % number for number in opened
    ]
    by_node = {"cdi": "", "nodes": "/dev/davinci%d"}
    assert options_of(by_node, numbers, positions) == [
        "--device=/dev/davinci%d" % number for number in opened
    ]


def test_the_rings_of_npus_are_of_device_numbers():
    """The first NPU of a host that has lost davinci0 to davinci3 is davinci4."""
    assert options_of(RINGS["gpus"], [4, 5, 6, 7], "0,1")[:2] == [
        "--device=/dev/davinci4",
        "--device=/dev/davinci5",
    ]
    with pytest.raises(run.Refused, match="the devices 2, 4"):
        options_of(RINGS["gpus"], [2, 4, 5], "0,1")


def test_what_starts_ranks_of_mindspore_is_in_each_container():
    config = {"launcher": "/l/trainyard-launch", "rank": "/l/rank"}
    told = [
        "--mount=type=bind,source=/l/trainyard-launch,target=/usr/local/bin/trainyard-launch,readonly",
        "--mount=type=bind,source=/usr/local/lib/trainyard/shared/_launchers.py,target=/usr/local/bin/_launchers.py,readonly",
        "--mount=type=bind,source=/l/rank,target=/usr/local/lib/trainyard/rank,readonly",
    ]
    assert run.program_mounts(config, lambda path: False) == told
    # Of role ascend.
    table = "/etc/trainyard/hccl.json"
    assert run.program_mounts(config, lambda path: path == table) == told + [
        "--mount=type=bind,source=%s,target=%s,readonly" % (table, table)
    ]
    variables = [
        run.own_variables(
            run.Worker("7", "0", {"index": 0, "count": 1}, [], {"home": "/h", "name": "a"}),
            [{"address": "10.0.0.1", "slots": 1}],
            {"ssh": 1, "master": 2},
            {"gpus": {}},
            lambda path, there=there: there,
        )
        for there in (True, False)
    ]
    assert [each.get("TRAINYARD_RANK_TABLE") for each in variables] == [table, None]


def test_infiniband_devices_and_locked_memory():
    nodes = [
        "/dev/infiniband/" + name
        for name in ("uverbs10", "umad0", "rdma_cm", "issm0", "uverbs0", "by-path")
    ]
    assert run.infiniband_devices(nodes) == [
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/uverbs10",
    ]
    assert run.infiniband_devices([]) == []
    assert (
        run.memlock_option(run.resource.RLIM_INFINITY) == "-1:-1"
        and run.memlock_option(65536) == "65536:65536"
    )


RINGS = {
    "gpus": {
        "cdi": "",
        "nodes": "/dev/davinci%d",
        "control": ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"],
        "variables": ["ASCEND_RT_VISIBLE_DEVICES"],
        "groups": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "mounts": ["/usr/local/Ascend/driver", "/usr/local/dcmi", "/etc/hccn.conf"],
    }
}


def test_npus():
    """Only those of the task, with the nodes that all need, and the driver to read."""
    there = {
        "/dev/davinci4",
        "/dev/davinci5",
        "/dev/davinci_manager",
        "/dev/hisi_hdc",
        "/usr/local/Ascend/driver",
        "/etc/hccn.conf",
    }.__contains__
    assert run.device_options([4, 5], RINGS, {}, there) == [
        "--device=/dev/davinci4",
        "--device=/dev/davinci5",
        "--device=/dev/davinci_manager",
        "--device=/dev/hisi_hdc",
    ]
    assert run.driver_mounts([4, 5], RINGS, there) == [
        "--mount=type=bind,source=/usr/local/Ascend/driver,target=/usr/local/Ascend/driver,readonly",
        "--mount=type=bind,source=/etc/hccn.conf,target=/etc/hccn.conf,readonly",
    ]
    assert (
        run.driver_mounts([], RINGS, there) == run.device_options([], RINGS, {}, there) == []
        and run.driver_mounts([0], CONFIG) == []
    )
    with pytest.raises(run.Refused, match="/dev/davinci6, which this host does not have"):
        run.device_options([6], RINGS, {}, there)


@pytest.mark.parametrize("gpus", [[0], [1, 2], [0, 1, 2, 3], [4, 7], list(range(8))])
def test_devices_with_links_to_each_other(gpus):
    run.check_groups(gpus, RINGS)
    run.check_groups(gpus + [9], CONFIG)


@pytest.mark.parametrize("gpus", [[3, 4], [0, 1, 2, 3, 4], list(range(7)), [0, 7]])
def test_devices_without_links_are_refused(gpus):
    with pytest.raises(
        run.Refused,
        match="lie within 0-3 or within 4-7, or are all 8, because no others have links to each other; request 1 or 2 or 4",
    ):
        run.device_options(gpus, RINGS, {}, lambda path: True)


def test_the_numbers_of_npus_in_the_container():
    own = run.own_variables(
        run.Worker("7", "0", {"index": 0, "count": 1}, [4, 5], {"home": "/home/a", "name": "a"}),
        [{"address": "10.0.0.1", "slots": 2}],
        {"ssh": 1, "master": 2},
        RINGS,
    )
    slurm = {"SLURM_STEP_GPUS": "4,5", "CUDA_VISIBLE_DEVICES": "4,5"}
    host = {"nodes": list(range(8)), "driver": []}
    assert run._gpu_numbers.of_task(slurm, RINGS, host) == [4, 5]
    found = run.task_environment(slurm, {}, own)
    assert (
        found["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"
        and found["SLURM_STEP_GPUS"] == "4,5"
        and "CUDA_VISIBLE_DEVICES" not in found
    )


def plan(**changes):
    return dict(
        {
            "store": "/s",
            "runtime": "/r",
            "folder": "/r/task.0.0",
            "stores": ["/images", "/own"],
            "name": "job-7.0.0",
            "job": "7",
            "uid": 2101,
            "gid": 2102,
            "shm": "1g",
            "memlock": "-1:-1",
            "workdir": "/home/a",
            "terminal": False,
            "mounts": [],
            "devices": ["--device=nvidia.com/gpu=0"],
            "image": ID,
            "command": ["python3", "a b.py", "--rm"],
        },
        **changes,
    )


def test_the_command_of_podman():
    command = run.podman_command(plan(), CONFIG)
    assert (
        command[-4:] == ["sh", "python3", "a b.py", "--rm"]
        and command[command.index("-c") - 1] == ID
    ), "options of the user come after the image"
    assert {
        "--userns=keep-id",
        "--user=2101:2102",
        "--network=host",
        "--label=trainyard.job=7",
        "--shm-size=1g",
        "--ulimit=memlock=-1:-1",
        "--pull=never",
        "--group-add=keep-groups",
        "--device=nvidia.com/gpu=0",
        "--init",
        "--log-driver=passthrough",
    } <= set(command)
    assert [word for word in command if "imagestore" in word] == [
        "--storage-opt=additionalimagestore=/images",
        "--storage-opt=additionalimagestore=/own",
    ]
    assert not any(
        word.startswith(("--privileged", "--volume", "--env-host", "--ipc", "--pid="))
        for word in command
    )
    assert [word for word in command if word.startswith("--env")] == ["--env=TRAINYARD_JOB_ID=7"], (
        "no variable of the job"
    )
    assert "--tty" in run.podman_command(plan(terminal=True), CONFIG)


def test_a_running_container_is_entered():
    tasks = [
        ("task.0.0", 5),
        ("task.1.0", 9),
        ("task.1.10", 20),
        ("task.batch.1", 7),
        ("other", 99),
    ]
    assert (run.newest_task(tasks, 0), run.newest_task(tasks, 1), run.newest_task(tasks, 2)) == (
        "task.1.0",
        "task.batch.1",
        None,
    )
    assert run.container_name("7", "task.1.0") == "job-7.1.0"
    container = {"name": "job-7.1.0", "store": "/store", "runtime": "/runtime", "stores": []}
    command = run.enter_command(
        container,
        {"podman": "/usr/bin/podman", "mount_program": "/usr/bin/fuse-overlayfs"},
        False,
        ["id", "-u"],
    )
    at = command.index("exec")
    assert "--root=/store" in command[:at] and "run" not in command[:at]
    assert command[at:] == [
        "exec",
        "--interactive",
        "job-7.1.0",
        "/bin/sh",
        "-c",
        run.START,
        "sh",
        "id",
        "-u",
    ]


def test_an_instance_is_entered_as_root():
    """Of the container, with the person's ID in its place."""
    container = {"name": "job-7.batch.0", "store": "/store", "runtime": "/runtime", "stores": []}
    command = run.enter_command(container, CONFIG, True, ["bash"], root=True)
    assert command[command.index("exec") :] == [
        "exec",
        "--interactive",
        "--tty",
        "--user=0:0",
        "job-7.batch.0",
        "/bin/sh",
        "-c",
        run.START_ROOT,
        "sh",
        str(os.getuid()),
        str(os.getgid()),
        "bash",
    ]
    assert run.ROOT_INSIDE in run.START_ROOT and run.START_ROOT.startswith(
        ". /run/trainyard/environment; exec "
    )


class Job:
    """The folders of job 7 on its host, with a program in the place of podman."""

    def __init__(self, folder, monkeypatch):
        self.runtime, self.disk = folder / "run/7", folder / "store/jobs/7"
        for path in (
            self.runtime / "task.batch.0",
            self.disk,
            folder / "store/images/overlay-images",
        ):
            path.mkdir(parents=True)
        self.stored(folder / "store/images", "site/tools:1")
        self.folder = folder
        self.config = dict(
            CONFIG,
            store=str(folder / "store/images"),
            storage=str(folder / "store"),
            registries=["front:5000"],
        )
        self.environment = {"SLURM_JOB_ID": "7", "HOME": "/home/a", "SECRET": "s"}
        monkeypatch.setattr(run, "RUNTIME", str(folder / "run"))

    @staticmethod
    def stored(store, name):
        (store / "overlay-images").mkdir(parents=True, exist_ok=True)
        (store / "overlay-images/images.json").write_text(
            run.json.dumps([{"id": ID, "names": [name]}]), encoding="utf-8"
        )


@pytest.fixture(name="job")
def _job(tmp_path, monkeypatch):
    return Job(tmp_path, monkeypatch)


def options(*words):
    return run.arguments_of(list(words))


def test_only_instances_are_entered_as_root(job, monkeypatch, capsys):
    (job.runtime / "task.batch.0/job.json").write_text('{"root": false}', encoding="utf-8")
    with pytest.raises(
        run.Refused,
        match="only instances of the hub can be entered as root; in a job, everything runs as its person",
    ):
        run.enter(
            options("--enter=0", "--root", "--dry-run", "--", "id"), job.environment, job.config
        )
    assert (
        run.enter(options("--enter=0", "--dry-run", "--", "id"), job.environment, job.config) == 0
        and "--user" not in capsys.readouterr().out
    )
    (job.runtime / "task.batch.0/job.json").write_text('{"root": true}', encoding="utf-8")
    assert (
        run.enter(
            options("--enter=0", "--root", "--dry-run", "--", "id"), job.environment, job.config
        )
        == 0
        and "--user=0:0" in capsys.readouterr().out
    )
    with pytest.raises(run.Refused, match="task 1 of job 7 has no container"):
        run.enter(options("--enter=1", "--", "id"), job.environment, job.config)


def stand_in(job, found=None, error=None):
    """A module in the place of _images, which has tests of its own."""

    class Images:
        calls = []

        class ImageError(Exception):
            pass

        class RegistryError(Exception):
            pass

        @classmethod
        def pull(cls, name, person, config, environment, folder, is_there):
            cls.calls.append(
                (
                    name,
                    person["uid"],
                    environment,
                    folder,
                    is_there(),
                    (job.runtime / "pulling").read_text(encoding="utf-8"),
                )
            )
            if error:
                raise cls.ImageError(error)
            if found:
                job.stored(job.folder / ("store/people/%d" % os.getuid()), found)

        @classmethod
        def save(cls, *words):
            cls.calls.append(words)
            if error:
                raise cls.RegistryError(error)
            return found

    return Images


def provide(job, name, pulls=True):
    person = {"uid": os.getuid(), "name": "a"}
    if not pulls:
        return run.stored_image(name, person, job.config)
    return run.provide_image(
        name, person, job.config, str(job.runtime), str(job.disk), job.environment
    )


def test_an_image_of_the_host_is_not_pulled(job, monkeypatch):
    monkeypatch.setattr(run, "beside", None)
    assert provide(job, "site/tools:1") == (ID, [job.config["store"]])
    # Of no registry of the site, and in a dry run.
    for name, pulls in (
        ("other:5000/x:1", True),
        ("front:50000/x:1", True),
        ("gone:1", True),
        ("front:5000/x:1", False),
    ):
        with pytest.raises(
            run.Refused, match="image '%s' is not on this host; images here: site/tools:1" % name
        ):
            provide(job, name, pulls)


def test_an_image_of_the_registry_is_pulled_once(job, monkeypatch, capsys):
    images = stand_in(job, "front:5000/a/x:1")
    monkeypatch.setattr(run, "beside", lambda name: {"_images": images}[name])
    own = str(job.folder / ("store/people/%d" % os.getuid()))
    assert (
        provide(job, "front:5000/a/x:1")
        == (ID, [job.config["store"], own])
        == provide(job, "front:5000/a/x:1")
    )
    ((name, uid, environment, folder, is_there, mark),) = images.calls
    assert (name, uid, is_there, mark) == (
        "front:5000/a/x:1",
        os.getuid(),
        False,
        "front:5000/a/x:1\n",
    ) and folder == str(job.disk / "pull")
    assert "SECRET" not in environment and environment["SLURM_JOB_ID"] == "7"
    assert (
        capsys.readouterr().err == "trainyard-run: pulling front:5000/a/x:1\n"
        and not (job.runtime / "pulling").exists()
    )


def test_why_an_image_is_not_pulled(job, monkeypatch):
    monkeypatch.setattr(
        run, "beside", lambda _name: stand_in(job, error="the pull failed: unauthorized")
    )
    with pytest.raises(
        run.Refused,
        match="image 'front:5000/x:1' is not on this host: the pull failed: unauthorized",
    ):
        provide(job, "front:5000/x:1")
    assert not (job.runtime / "pulling").exists()


def test_a_save_is_of_the_container_of_task_0(job, monkeypatch, capsys):
    images = stand_in(job, "front:5000/a/tools:20261128-120000")
    monkeypatch.setattr(run, "beside", lambda _name: images)
    assert run.save(options("--save=tools"), job.environment, job.config) == 0
    assert capsys.readouterr().out == "saved as front:5000/a/tools:20261128-120000\n"
    ((name, container, person, _config, place, environment),) = images.calls
    assert (name, container, person["uid"]) == (
        "tools",
        "job-7.batch.0",
        os.getuid(),
    ) and "SECRET" not in environment
    assert (
        place["command"][-1] == "--storage-opt=additionalimagestore=" + job.config["store"]
        and "run" not in place["command"]
    )
    assert (
        place["store"] == str(job.disk / "store")
        and "--root=" + place["store"] in place["command"]
        and place["folder"] == str(job.disk)
    )
    monkeypatch.setattr(run, "beside", lambda _name: stand_in(job, error="the registry is full"))
    with pytest.raises(
        run.Refused, match="the container is not saved, and goes on: the registry is full"
    ):
        run.save(options("--save=tools"), job.environment, job.config)
    with pytest.raises(run.Refused, match="task 0 of job 8 has no container"):
        run.save(options("--save=tools"), {"SLURM_JOB_ID": "8"}, job.config)


def test_the_modules_beside_it_are_found(monkeypatch):
    monkeypatch.setattr(run, "LIBRARY", str(FILES))
    before = list(run.sys.path)
    assert run.beside("_images").name_problem("tools") == "" and run.sys.path == before
    for name in ("_images", "_registry"):
        del run.sys.modules[name]


def test_all_hosts_wait_for_one_that_pulls(monkeypatch, tmp_path):
    """Each of them knows by the name of the image whether another one may need to pull it."""
    assert run.can_be_pulled("front:5000/x:1", ["front:5000/"]) and not run.can_be_pulled(
        "front:50000/x:1", ["front:5000"]
    )
    assert not run.can_be_pulled("site/tools:1", []) and run.PULL_SECONDS > 3600
    waited = []
    monkeypatch.setattr(run, "make_keys", lambda _folder: {})
    monkeypatch.setattr(run, "own_address", lambda *_words: "127.0.0.1")
    monkeypatch.setattr(
        run,
        "lead",
        lambda *words: (
            waited.append(words[-1])
            or {"entries": [words[1]] * 2, "ports": {"ssh": 1, "master": 2}, "keys": {}}
        ),
    )
    place = {"index": 0, "count": 2, "nodes": ["a", "b"], "local": 0}
    (tmp_path / "environment").write_text("", encoding="utf-8")
    for more in ((), (run.PULL_SECONDS, True)):
        run.write_task(
            str(tmp_path),
            run.Worker("7", "0", place, [], {"uid": 1, "home": "/h", "name": "a"}),
            {},
            dict(CONFIG, environment=str(tmp_path / "environment")),
            *more,
        )
        assert run._files.read_json(str(tmp_path / "job.json"))["root"] is bool(more)
    assert waited == [run.PEER_SECONDS, run.PULL_SECONDS]


root = load("trainyard_root")


@pytest.mark.parametrize(
    "text, own, lines",
    [
        # Of a container with keep-id.
        (
            "         0          1       2101\n      2101          0          1\n      2102       2102      63435\n",
            2101,
            ["0 2101 1", "1 1 2100", "2102 2102 63435"],
        ),
        ("0 0 4294967295\n", 3, ["0 3 1", "1 1 2", "4 4 4294967291"]),
        ("0 0 2\n", 1, ["0 1 1"]),
        ("0 0 1\n1 5 4\n", 4, ["0 4 1", "1 1 3"]),
    ],
)
def test_ids_of_a_root_whose_files_are_the_persons(text, own, lines):
    assert root.mapping(text, own) == lines


def test_a_host_that_permits_no_other_ids(monkeypatch, capsys):
    monkeypatch.setattr(
        root,
        "become_root",
        lambda *_words: (_ for _ in ()).throw(OSError(1, "a user namespace cannot be made")),
    )
    assert (
        root.main(["1", "1", "id"]) == 125
        and capsys.readouterr().err
        == "trainyard-root: a user namespace cannot be made; tell the operator\n"
    )
    monkeypatch.setattr(root, "become_root", lambda *_words: None)
    assert (
        root.main(["1", "1", "/none/x"]) == 127
        and "trainyard-root: /none/x: No such file" in capsys.readouterr().err
    )


def test_the_host_file_in_the_place_of_one_of_the_person():
    assert run.host_file_mount("", "/f", "/home/anna") == []
    assert run.host_file_mount("~/ib_config", "/f", "/home/anna") == [
        "--mount=type=bind,source=/f/hosts,target=/home/anna/ib_config,readonly"
    ]
    with pytest.raises(run.Refused, match="'hosts' is not an absolute path"):
        run.host_file_mount("hosts", "/f", "/home/anna")


def test_podman_gets_nothing_of_the_job():
    found = run.podman_environment(
        "/r",
        {"SLURM_JOB_ID": "7", "TOKEN": "t", "CONTAINERS_STORAGE_CONF": "mine", "HOME": "/home/a"},
    )
    assert "TOKEN" not in found and "CONTAINERS_STORAGE_CONF" not in found
    assert (found["TRAINYARD_JOB_ID"], found["XDG_RUNTIME_DIR"]) == ("7", "/r"), (
        "the epilog finds conmon by these"
    )


def test_variables_of_every_job():
    entries = [{"address": "10.0.0.1", "slots": 2}, {"address": "10.0.0.2", "slots": 2}]
    found = run.own_variables(
        run.Worker("7", "0", {"index": 1, "count": 2}, [2, 3], {"home": "/home/a", "name": "a"}),
        entries,
        {"ssh": 1, "master": 2, "control": 3},
        dict(CONFIG, fabric="10.1.0.0/24"),
    )
    assert {
        name: found[name]
        for name in (
            "TRAINYARD_JOB_ID",
            "TRAINYARD_WORKER_INDEX",
            "TRAINYARD_WORKER_COUNT",
            "TRAINYARD_WORKER_ADDRESS",
            "MASTER_ADDR",
            "MASTER_PORT",
            "TRAINYARD_SSH_PORT",
            "CUDA_VISIBLE_DEVICES",
            "TRAINYARD_FABRIC",
        )
    } == {
        "TRAINYARD_JOB_ID": "7",
        "TRAINYARD_WORKER_INDEX": "1",
        "TRAINYARD_WORKER_COUNT": "2",
        "TRAINYARD_WORKER_ADDRESS": "10.0.0.2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "2",
        "TRAINYARD_SSH_PORT": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TRAINYARD_FABRIC": "10.1.0.0/24",
    }


def test_ports_are_free_on_all_hosts():
    entries = [{"address": "a", "ports": [1, 2, 3, 4]}, {"address": "b", "ports": [2, 3, 4, 9]}]
    assert run.common_ports(entries) == {"ssh": 2, "master": 3, "control": 4}
    with pytest.raises(
        run.Refused, match="has 1 free ports on all of its hosts, and 3 are needed: a, b"
    ):
        run.common_ports([entries[0], {"address": "b", "ports": [9, 2]}])


def test_a_step_of_one_task_needs_no_port_of_the_job(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "PORTS", str(tmp_path / "%s.json"))
    monkeypatch.setattr(run, "own_address", lambda *_words: "127.0.0.1")
    (tmp_path / "environment").write_text("", encoding="utf-8")
    run.write_task(
        str(tmp_path),
        run.Worker(
            "7",
            "0",
            {"index": 0, "count": 1, "nodes": ["a"], "local": 0},
            [],
            {"uid": 1, "home": "/h", "name": "a"},
        ),
        {},
        dict(CONFIG, environment=str(tmp_path / "environment")),
    )
    ports = run._files.read_json(str(tmp_path / "job.json"))["ports"]
    assert len(set(ports.values())) == 3 and min(ports.values()) > 29999, (
        "they lie outside of those that jobs get"
    )


def test_a_taken_port_is_not_used():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        assert not run.free("127.0.0.1", port)
        with run.listening("127.0.0.1", [port, 0]) as server:
            assert server.getsockname()[1] != port


@pytest.fixture
def clear(monkeypatch):
    """Messages without munge, which the tests' host does not have.

    The message begins with the ID of its sender.
    """
    monkeypatch.setattr(
        run, "munged", lambda data, uid: ("%d " % uid + run.json.dumps(data)).encode()
    )

    def opened(text, uid):
        sender, _blank, data = text.decode().partition(" ")
        return run.json.loads(data) if sender == str(uid) else None

    monkeypatch.setattr(run, "unmunged", opened)


def entry(address, ports):
    return {"address": address, "slots": 2, "ports": list(ports), "local": 0}


def first_of(count):
    """The first worker of a step."""
    return run.Worker("7", "0", {"index": 0, "count": count}, [], {"uid": 2101})


def exchange(job, uid, ports, results):
    own = entry("127.0.0.1", ports)
    worker = run.Worker(job, "0", {"index": 1, "count": 2}, [], {"uid": uid})
    results[1] = run.follow(worker, own, "127.0.0.1", ports, 10)


def free_range(count):
    """Return free ports in a row."""
    for first in range(15000, 25000, count):
        if all(run.free("127.0.0.1", port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise AssertionError("no free ports")


def lead_in_background(ports, results, seconds=10):
    leader = threading.Thread(
        target=lambda: results.update(
            led=run.lead(
                first_of(2),
                entry("127.0.0.1", ports),
                {"user_private": "k"},
                [[ports[0], ports[-1]]],
                seconds,
            )
        )
    )
    leader.start()
    return leader


def connected(port):
    """A stranger's connection to the first worker, once it listens."""
    for _attempt in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("nobody listens")


def test_workers_agree(clear):
    ports, results = free_range(6), {}
    follower = threading.Thread(target=exchange, args=("7", 2101, ports, results))
    follower.start()
    # Two ranges, as of a job that has other ones on another host: it listens in both.
    led = run.lead(
        first_of(2),
        entry("127.0.0.1", ports),
        {"user_private": "k"},
        [[ports[0], ports[1]], [ports[2], ports[5]]],
        10,
    )
    follower.join()
    assert results[1] == led and led["keys"] == {"user_private": "k"}
    assert led["ports"] == {"ssh": ports[1], "master": ports[3], "control": ports[4]}, (
        "those of the exchange are not used again at once"
    )


def test_strangers_get_no_keys(clear):
    """Another user, and another job of the same user, connect first."""
    ports, results = free_range(5), {}
    leader = lead_in_background(ports, results)
    for message in (
        b'666 {"job": "7", "step": "0", "index": 1, "entry": {}}\n',
        b'2101 {"job": "8", "step": "0", "index": 1, "entry": {}}\n',
        b"\n",
    ):
        with connected(ports[0]) as connection:
            connection.sendall(message)
            assert connection.recv(100) == b""
    exchange("7", 2101, ports, results)
    leader.join()
    assert results[1] == results["led"]


def test_a_stranger_who_sends_slowly_delays_nobody(clear):
    ports, results = free_range(5), {}
    leader = lead_in_background(ports, results)
    strangers = [connected(ports[0]) for _number in range(3)]
    for stranger in strangers:
        stranger.sendall(b"x")
    begin = time.monotonic()
    exchange("7", 2101, ports, results)
    leader.join()
    assert time.monotonic() - begin < 2 and results[1] == results["led"]
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    "limit, count, messages",
    [("STRANGERS", 3, 1), ("MESSAGE_SECONDS", 1, 20), ("MESSAGE_BYTES", 1, 20)],
)
def test_what_a_stranger_can_hold_is_limited(clear, monkeypatch, limit, count, messages):
    """The oldest of too many is closed, and so is one that sends a byte now and then, or without an
    end.
    """
    monkeypatch.setattr(
        run, limit, {"STRANGERS": 2, "MESSAGE_SECONDS": 0.5, "MESSAGE_BYTES": 5}[limit]
    )
    ports, results = free_range(5), {}
    leader = lead_in_background(ports, results, 20)
    first, *others = [connected(ports[0]) for _number in range(count)]
    begin = time.monotonic()
    with pytest.raises(OSError):
        for _number in range(messages):
            first.sendall(b"x")
            first.settimeout(0.15 if messages > 1 else 3)
            try:
                if first.recv(1) == b"":
                    raise OSError("closed")
            except socket.timeout:
                if messages == 1:
                    raise AssertionError("it is still heard") from None
    assert time.monotonic() - begin < 4
    for each in [first, *others]:
        each.close()
    monkeypatch.setattr(run, limit, 1 << 20)
    exchange("7", 2101, ports, results)
    leader.join()


def test_a_port_of_another_person_delays_no_worker(clear):
    """It accepts connections, and says nothing."""
    ports, results = free_range(6), {}
    with socket.create_server(("127.0.0.1", ports[0])):
        leader = lead_in_background(ports, results)
        begin = time.monotonic()
        exchange("7", 2101, ports, results)
        leader.join()
    assert time.monotonic() - begin < 2 and results[1] == results["led"]


def test_a_worker_that_does_not_start_is_named(clear):
    with pytest.raises(TimeoutError, match="worker 1, 2 did not start within 0"):
        run.lead(first_of(3), entry("127.0.0.1", []), {}, [[free_range(3)[0]] * 2], 0)
    with pytest.raises(TimeoutError, match="worker 0 on 127.0.0.1 did not answer"):
        worker = run.Worker("7", "0", {"index": 1}, [], {"uid": 2101})
        run.follow(worker, entry("127.0.0.1", []), "127.0.0.1", free_range(1), 0.2)


def test_the_sender_of_a_message_is_checked(monkeypatch, tmp_path):
    tool = tmp_path / "unmunge"
    tool.write_text(
        "#!/bin/sh\nprintf 'STATUS:          Success (0)\\nUID:             alice (2101)\\nGID:             alice (2101)\\n\\n{\"a\": 1}'\n",
        encoding="ascii",
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run.unmunged(b"MUNGE:x", 2101) == {"a": 1}
    assert run.unmunged(b"MUNGE:x", 2102) is None


def test_a_folder_of_another_user_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    run.private_folder(str(tmp_path / "mine"), os.getuid())
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for path, uid in (
        (tmp_path / "mine", os.getuid() + 1),
        (tmp_path / "link", os.getuid()),
        (tmp_path / "none", os.getuid()),
    ):
        with pytest.raises(run.Refused, match="the prolog of Slurm has not run"):
            run.private_folder(str(path), uid)


def test_file_systems_and_ranges(monkeypatch):
    monkeypatch.setattr(run, "LIBRARY", str(FILES.parents[2] / "plugins/module_utils"))
    mounts = "1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /home rw shared:1 - nfs4 s:/home rw\n"
    assert (
        run.file_system("/home/a/store", mounts) == "nfs4"
        and run.file_system("/homes", mounts) == "ext4"
    )
    for separator in "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000":
        strange = "3 1 0:3 / /home/bob/%s rw - fuse.x bob rw\n" % separator
        for text in (strange, strange.replace(separator, "\n")):
            assert run.file_system("/home/a/store", text + mounts) == "nfs4", "of another person"
    assert (
        run.has_range("a", 5, "b:1:2\na:3:4\n")
        and run.has_range("x", 5, "5:3:4\n")
        and not run.has_range("a", 5, "ab:3:4\na:3\n")
    )


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "name an image, as in"),
        (["--enter=0", "image", "--", "x"], "--enter has no image"),
        (["image"], "write it after --"),
        (["image", "--"], "write it after --"),
        (["--save=x", "--enter=0"], "--save has no image"),
        (["--save=x", "image"], "--save has no image"),
        (["--save=x", "--", "id"], "--save has no image"),
        (["--save"], "expected one argument"),
    ],
)
def test_arguments_are_required(words, said, capsys):
    with pytest.raises(SystemExit):
        run.arguments_of(words)
    assert said in capsys.readouterr().err


def test_the_command_may_have_any_options():
    options = run.arguments_of(["--shm-size", "8g", "image", "--", "python3", "--", "-h"])
    assert (options.image, options.shm_size, options.command) == (
        "image",
        "8g",
        ["python3", "--", "-h"],
    )


def test_working_folder():
    assert run.working_folder("", "/data/x", ["/data"], "/home/a") == "/data/x"
    assert run.working_folder("", "/database", ["/data"], "/home/a") == "/home/a"
    assert run.working_folder("/w", "/data", ["/data"], "/home/a") == "/w"


# A stand-in of podman: starts "conmon", whose child is the container, writes pid and ID, and ends.
PODMAN = r"""
import os, subprocess, sys, time
folder, runtime, seconds, code = sys.argv[1:5]
if "rm" in sys.argv:
    sys.exit(0)
if "inspect" in sys.argv:
    # The first answer comes before podman has seen the end.
    first = not os.path.exists(folder + "/asked")
    open(folder + "/asked", "w").close()
    print("running 0" if first else "exited " + code)
    sys.exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    child = subprocess.Popen([sys.executable, "-c",
        "import signal, sys, time\nsignal.signal(15, lambda n, f: sys.exit(3))\nprint('up', flush=True)\ntime.sleep(%s)\nsys.exit(%s)" % (seconds, code)])
    open(folder + "/monitor", "w").write(str(os.getpid()))
    open(folder + "/pid.new", "w").write(str(child.pid))
    os.rename(folder + "/pid.new", folder + "/pid")
    ended = child.wait()
    if seconds != "0.0":
        open(runtime + "/tmp/exits/the-id", "w").write(str(ended if ended >= 0 else 128 - ended))
    os._exit(0)
while not os.path.exists(folder + "/pid"):
    time.sleep(0.01)
open(folder + "/id", "w").write("the-id")
"""


def supervised(tmp_path, seconds, code):
    """A process that supervises a stand-in. It prints the exit code."""
    (tmp_path / "tmp" / "exits").mkdir(parents=True)
    program = (
        "import importlib.util, sys\nsys.path[:0] = %r\nspec = importlib.util.spec_from_file_location('r', %r)\nr = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(r)\ncommand = [sys.executable, '-c', %r, %r, %r, '%s', '%s', 'run']\n"
        "sys.exit(r.supervise(command, {}, {'folder': %r, 'runtime': %r, 'name': 'x'}, True))"
        % (
            FOLDERS,
            str(FILES / "trainyard_run.py"),
            PODMAN,
            str(tmp_path),
            str(tmp_path),
            seconds,
            code,
            str(tmp_path),
            str(tmp_path),
        )
    )
    return subprocess.Popen([os.sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def ends(pid, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not run.parent(pid):
            return True
        time.sleep(0.05)
    return False


def test_the_exit_code_is_the_one_of_the_command(tmp_path):
    process = supervised(tmp_path, "0", "7")
    assert process.communicate(timeout=60)[0] == "up\n" and process.returncode == 7


def test_the_exit_code_is_known_after_podman_has_removed_the_file(tmp_path):
    process = supervised(tmp_path, "0.0", "7")
    assert process.communicate(timeout=60)[0] == "up\n" and process.returncode == 7


def test_signals_reach_the_command_once(tmp_path):
    process = supervised(tmp_path, "100", "0")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 3


def test_a_killed_wrapper_takes_the_container_with_it(tmp_path):
    process = supervised(tmp_path, "100", "0")
    assert process.stdout.readline() == "up\n"
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    container = int((tmp_path / "pid").read_text(encoding="ascii"))
    process.kill()
    assert ends(container) and process.stdout.read() == "", (
        "and the output is closed, so that Slurm goes on"
    )


def test_a_killed_monitor_ends_the_container(tmp_path):
    process = supervised(tmp_path, "100", "0")
    assert process.stdout.readline() == "up\n"
    # The container may be up before its monitor has written the files.
    while not (tmp_path / "pid").exists():
        time.sleep(0.01)
    container = int((tmp_path / "pid").read_text(encoding="ascii"))
    os.kill(run.parent(container), signal.SIGKILL)
    assert process.wait(60) == 137 and ends(container)
