"""`make lab` as a newcomer types it: in a fresh clone, killed in each of its stages, run again,
taken down.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import transcript
from virtual_cluster import VirtualCluster
from whole_cluster import WholeCluster

ROOT = Path(__file__).resolve().parents[2]
SEEN_WITHIN = 1800
HOSTS = ["lab-a", "lab-b", "lab-c"]


def docker(*arguments):
    return subprocess.run(
        ["docker", *arguments], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split()


def left():
    """What a lab has in the machine's Docker engine.

    Images with a name of its own: Molecule's hosts have another.
    """
    return {
        "containers": [
            name
            for name in docker("ps", "--all", "--format", "{{.Names}}")
            if name.startswith("lab-")
        ],
        "networks": [
            name
            for name in docker("network", "ls", "--format", "{{.Name}}")
            if name.startswith(("lab", "trainyard-lab"))
        ],
        "volumes": [
            name
            for name in docker("volume", "ls", "--format", "{{.Name}}")
            if name.startswith(("lab", "trainyard-lab"))
        ],
        "images": docker("image", "ls", "--quiet", "trainyard-lab/*"),
    }


def without_images():
    """As on a newcomer's machine.

    The end of each test asks for the same. By name: an image that Molecule's hosts are made of
    cannot be removed.
    """
    for name in docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "trainyard-lab/*"):
        docker("image", "rm", "--force", name)


@pytest.fixture(name="clone", scope="module")
def fixture_clone(tmp_path_factory):
    taken = left()
    if taken["containers"]:
        pytest.fail(
            "a lab is up (%s), and a machine can have one: make lab-down"
            % ", ".join(taken["containers"]),
            pytrace=False,
        )
    folder = tmp_path_factory.mktemp("newcomer") / "trainyard.gpu"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    yield folder
    subprocess.run(["make", "lab-down"], cwd=folder, check=True)


def start(clone, log, *arguments):
    print("\n$ make %s  (log %s)" % (" ".join(arguments), log), flush=True)
    # Of the tests' own tools nothing, nor of the make that has called them: a newcomer has none of
    # them.
    foreign = ("ANSIBLE_", "MOLECULE_", "PYTEST_", "MAKE", "MFLAGS")
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(foreign) and key != "KEEP"
    }
    with open(log, "w", encoding="utf-8") as output:
        return subprocess.Popen(
            ["make", *arguments],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_all(process):
    os.killpg(process.pid, signal.SIGKILL)


def kill_make(process):
    process.kill()


def kill_at(line, process, log, kill):
    deadline = time.monotonic() + SEEN_WITHIN
    while not re.search(line, log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
        assert process.poll() is None, "ended with %d before it was killed, see %s" % (
            process.returncode,
            log,
        )
        assert time.monotonic() < deadline, "not seen: %s, see %s" % (line, log)
        time.sleep(0.2)
    kill(process)
    process.wait()


def made(clone, log, target):
    """Run a target of make to its end. Returns what it printed."""
    began = time.monotonic()
    assert start(clone, log, target).wait() == 0, log
    text = log.read_text(encoding="utf-8", errors="replace")
    print(text[text.rindex("\nhosts   ") :])
    print("make %s: %.0f s" % (target, time.monotonic() - began))
    return text


@pytest.mark.acceptance
@pytest.mark.scenario
def test_on_virtual_machines(clone, tmp_path):
    """The whole way on hosts with kernels of their own: share by NFS, memlock=-1; then one of them
    is rebooted, and works again by itself.
    """
    text = made(clone, tmp_path / "lab-vm.log", "lab-vm")
    assert re.fullmatch(
        r"lab: ok hosts=2 ranks=2 accuracy=0\.9[5-9] seconds=\d+", text.rstrip().splitlines()[-1]
    )

    cluster = VirtualCluster("lab", "172.30.77.0/24", clone / ".lab")
    cluster.inventory, cluster.state = clone / "inventories/lab_virtual", tmp_path
    peer = cluster.client
    assert cluster.mount(peer)[:2] == ["nfs4", "172.30.77.11:/data1/share"]
    limit = json.loads(cluster.on(peer, "docker inspect trainyard-training").out)[0]["HostConfig"][
        "Ulimits"
    ]
    assert {(entry["Name"], entry["Soft"], entry["Hard"]) for entry in limit} >= {
        ("memlock", -1, -1)
    }
    assert cluster.on(peer, "docker exec trainyard-training sh -c 'ulimit -l'").out == "unlimited\n"
    # As a job's ranks have it, through the container's own sshd.
    through = "docker exec trainyard-training ssh -o BatchMode=yes -p 12345 %s " % peer
    assert cluster.on(cluster.server, through + "ulimit -l").out == "unlimited\n"
    # A file made by root in one container is appended to and removed by root in the other, and the
    # reverse.
    for maker, other in ((cluster.server, peer), (peer, cluster.server)):
        cluster.inside(maker, "mkdir /data1/share/made && echo one > /data1/share/made/file")
        cluster.inside(other, "echo two >> /data1/share/made/file")
        assert cluster.inside(maker, "cat /data1/share/made/file").out == "one\ntwo\n"
        cluster.inside(other, "rm -r /data1/share/made")

    # The server has the folder anew: healed by a run, in the container that runs on, too.
    started = cluster.inspect(peer)["State"]["StartedAt"]
    cluster.make_share_again()
    cluster.wait(
        "the stale handle",
        60,
        lambda: (
            "stale"
            in cluster.inside(peer, "stat --file-system /data1/share", check=False).text.lower()
        ),
    )
    assert cluster.playbook("playbooks/shared_storage.yml", cwd=clone).code == 0
    cluster.inside(peer, "touch /data1/share/healed && rm /data1/share/healed")
    assert cluster.inspect(peer)["State"]["StartedAt"] == started

    cluster.wait_for_boot(peer, cluster.reboot(peer))
    cluster.wait(
        "sshd in the container",
        600,
        lambda: cluster.on(cluster.server, through + "true", check=False).code == 0,
    )
    # In this order: the time at which each became active, since the kernel's start. sshd is what
    # the container runs.
    asked = "systemctl show --property=ActiveEnterTimestampMonotonic --value "
    mount, container = (
        int(cluster.on(peer, asked + unit).out)
        for unit in ("data1-share.mount", "trainyard-training.service")
    )
    assert 0 < mount < container
    assert cluster.inside(peer, "stat --file-system --format %T /data1/share").out == "nfs\n"
    run = cluster.playbook("playbooks/train.yml", cwd=clone)
    assert run.code == 0 and cluster.last_job()["metrics"]["accuracy"] >= 0.95

    # Only here a host has a clock of its own: of all checks that can be made, this one fails, on
    # this host.
    cluster.on(peer, "date --set=+1minute")
    run = cluster.playbook("playbooks/verify.yml", cwd=clone)
    cluster.on(peer, "date --set=-1minute")
    bad = [
        (check["id"], check["host"], check["found"])
        for check in cluster.last_report()["checks"]
        if check["verdict"] == "fail"
    ]
    assert (
        run.code == 2
        and [check[:2] for check in bad] == [("clock-step", peer)]
        and re.match(r"(59|6\d)\.\d s ahead of the others", bad[0][2])
    ), bad

    # That verify looks is seen where it has to fail.
    cluster.on(peer, "mount -t tmpfs none /data1/share")
    run = cluster.playbook("playbooks/verify.yml", cwd=clone)
    assert (
        run.code == 2 and "it is none (tmpfs), not 172.30.77.11:/data1/share with nfs4" in run.text
    )

    log = tmp_path / "down.log"
    assert start(clone, log, "lab-down").wait() == 0, log
    assert left() == {"containers": [], "networks": [], "volumes": [], "images": []}
    assert subprocess.run(["pgrep", "qemu-system"], check=False).returncode == 1
    assert not (clone / ".lab").exists()


@pytest.mark.acceptance
@pytest.mark.scenario
def test_a_cluster_that_groups_share(clone, tmp_path):
    """make lab-slurm: a queue with quotas, and the digits through it in containers, by each
    launcher. The same parameters as by train.yml. Then what docs/shared-cluster.md has people type.
    """
    text = made(clone, tmp_path / "lab-slurm.log", "lab-slurm")
    assert re.fullmatch(
        r"lab: ok hosts=2 jobs=3 waited=1 accuracy=0\.9[5-9]\d* seconds=\d+",
        text.rstrip().splitlines()[-1],
    )
    assert re.search(r"^\d+ +ben +vision +PENDING +AssocGrpGRES$", text, re.MULTILINE)
    connection = [
        "-i",
        str(clone / ".lab/ssh/id_ed25519"),
        "-o",
        "UserKnownHostsFile=%s" % (clone / ".lab/ssh/known_hosts"),
        "-o",
        "IdentitiesOnly=yes",
    ]

    def types(command, *options, keys=None):
        """What anna sees who has logged in."""
        return subprocess.run(
            ["ssh", *connection, *options, "anna@172.30.77.11", command],
            check=False,
            text=True,
            input=keys,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ).stdout

    begun, page = time.monotonic(), clone / "docs/shared-cluster.md"
    transcript.play(transcript.steps(transcript.FIRST_JOB, page), types)
    print("the first job took %.0f s" % (time.monotonic() - begun))
    assert time.monotonic() - begun < 300

    cluster = WholeCluster("lab", "172.30.77.0/24")
    cluster.inventory, cluster.state = clone / "inventories/lab_slurm", tmp_path
    run = cluster.playbook("site.yml", cwd=clone)
    assert run.code == 0 and run.changed == {}, run.text[-3000:]
    image = docker(
        "exec", "lab-a", "docker", "inspect", "--format", "{{.Config.Image}}", "trainyard-training"
    )[0]
    examples = clone / "roles/train/files/examples"
    programs = [examples / "digits_horovod.py", examples / "example_tools.py"]
    subprocess.run(
        ["scp", "-q", *connection, *programs, "anna@172.30.77.11:/data1/share/user/anna/"],
        check=True,
    )

    def as_anna(options, command):
        through = (
            "cd /data1/share/user/anna && srun --nodes=2 --ntasks-per-node=1 --time=10 %s trainyard-run %s -- %s"
            % (options, image, command)
        )
        return subprocess.run(
            ["ssh", *connection, "anna@172.30.77.11", through],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout

    trained = as_anna("--gpus-per-node=1", "trainyard-launch horovodrun python3 digits_horovod.py")
    print(trained)
    checksums = set(re.findall(r"parameters sha256 (\w+)$", trained, re.MULTILINE))
    run = cluster.playbook("playbooks/train.yml", cwd=clone)
    assert run.code == 0 and "Relinquishing job allocation" in run.text
    assert {rank["checksum"] for rank in cluster.last_job()["ranks"]} == checksums and len(
        checksums
    ) == 1
    (job,) = transcript.blocks("Horovod on two hosts", "yaml", page)
    said = types(
        "cd /data1/share/user/anna && cat > horovod.yml << 'END'\n%sEND\ntrainyard submit horovod.yml"
        % job
    )
    said = types(
        "trainyard logs -f %s; echo ended with $?" % re.match(r"job (\d+) submitted", said).group(1)
    )
    print(said)
    assert (
        said.endswith("ended with 0\n")
        and set(re.findall(r"parameters sha256 (\w+)$", said, re.MULTILINE)) == checksums
    )
    (job,) = [
        block
        for block in transcript.blocks("A shell in a container", "", page)
        if "interactive=true" in block
    ]
    types("cat > shell.params << 'END'\n%sEND" % job)
    said = types(
        "trainyard submit shell.params; echo ended with $?",
        "-tt",
        keys="echo $((6 * 7)) of $(id -un) in $TRAINYARD_JOB_ID\nexit 3\n",
    )
    assert re.search(r"^42 of anna in \d+\r?$", said, re.MULTILINE) and "ended with 3" in said, said
    # As the person, on the share, with no GPU but those of the job.
    told = as_anna(
        "--gpus-per-node=1",
        "sh -c 'touch made-$SLURM_NODEID; id -un; ls /dev | grep -c ^nvidia[0-9]; ulimit -l'",
    ).split()
    assert sorted(told) == sorted(
        ["anna", "1", cluster.on(cluster.head, "ulimit -l").out.strip()] * 2
    ), told
    assert cluster.on(
        cluster.head, "stat --format %U /data1/share/user/anna/made-0 /data1/share/user/anna/made-1"
    ).out.split() == ["anna", "anna"]

    log = tmp_path / "down.log"
    assert start(clone, log, "lab-down").wait() == 0, log
    assert left() == {"containers": [], "networks": [], "volumes": [], "images": []}


STAGES = [
    ("image of the base", r"^training-base: I: (?:installing|extracting)", kill_all),
    ("site.yml", r"^TASK \[trainyard\.gpu\.docker_engine : ", kill_all),
    ("build", r"Building CXX object", kill_make),
    ("build again", r"Building CXX object", kill_all),
    ("training", r"^lab-a \| .*epoch 2 of ", kill_all),
]


@pytest.mark.acceptance
@pytest.mark.scenario
def test_killed_in_every_stage_and_run_again(clone, tmp_path):
    without_images()
    for stage, line, kill in STAGES:
        log = tmp_path / ("%s.log" % stage)
        kill_at(line, start(clone, log, "lab", "HOSTS=3"), log, kill)

    log = tmp_path / "whole.log"
    assert start(clone, log, "lab", "HOSTS=3").wait() == 0, log
    text = log.read_text(encoding="utf-8", errors="replace")
    last = text.rstrip().splitlines()[-1]
    print(last)
    assert re.fullmatch(r"lab: ok hosts=3 ranks=3 accuracy=0\.9[5-9] seconds=\d+", last)
    end = text[text.rindex("\nhosts   ") :]
    for shown in (
        r"^hosts   lab-a \S+, lab-b \S+, lab-c \S+$",
        r"^image   trainyard/training:[0-9a-f]{12} ",
        r"^    \[X\] PyTorch$",
        r"^    \[X\] Gloo$",
        r"^   2  lab-c +0 +0  [0-9a-f]{64}$",
        r"^loss +\d",
        r"^accuracy +0\.9",
        r"^site\.yml +\d",
    ):
        assert re.search(shown, end, re.MULTILINE), shown
    # What is not to be committed is ignored, the inventory of three hosts too.
    assert (
        subprocess.run(
            ["git", "status", "--porcelain"],
            cwd=clone,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout
        == ""
    )

    log = tmp_path / "down.log"
    assert start(clone, log, "lab-down").wait() == 0, log
    assert left() == {"containers": [], "networks": [], "volumes": [], "images": []}
    assert sorted(
        path.name for path in (clone / "inventories").iterdir() if path.name.startswith("lab_")
    ) == ["lab_slurm", "lab_virtual"]
    assert not (clone / ".lab").exists()


@pytest.mark.acceptance
@pytest.mark.scenario
def test_killed_and_taken_down(clone, tmp_path):
    """In the middle of the hosts' image."""
    without_images()
    log = tmp_path / "lab.log"
    kill_at(r"^host: I: (?:installing|extracting)", start(clone, log, "lab"), log, kill_make)
    log = tmp_path / "down.log"
    assert start(clone, log, "lab-down").wait() == 0, log
    assert left() == {"containers": [], "networks": [], "volumes": [], "images": []}


@pytest.mark.acceptance
@pytest.mark.scenario
def test_hosts_of_a_user_s_own_image(clone, tmp_path):
    """LAB_IMAGE=: the hosts are made of it, and lab-down leaves it to the user."""
    own = "of-the-user/host:1"
    subprocess.run(["lab/setup"], cwd=clone, check=True)
    subprocess.run(["python3", "lab/lab.py", "prepare"], cwd=clone, check=True)
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", own, "-"],
        input="FROM trainyard-lab/host:latest\nRUN touch /etc/of-the-user\n",
        text=True,
        check=True,
    )
    try:
        log = tmp_path / "lab.log"
        kill_at(r"^PLAY \[", start(clone, log, "lab", "LAB_IMAGE=%s" % own), log, kill_all)
        for host in HOSTS[:2]:
            subprocess.run(["docker", "exec", host, "test", "-e", "/etc/of-the-user"], check=True)
        log = tmp_path / "down.log"
        assert start(clone, log, "lab-down").wait() == 0, log
        assert left() == {"containers": [], "networks": [], "volumes": [], "images": []}
        assert docker("image", "ls", "--quiet", own)
    finally:
        subprocess.run(["docker", "image", "rm", own], check=True)
