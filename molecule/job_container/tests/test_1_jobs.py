"""Containers of jobs: what a job sees, who owns what it writes, and what is left of it."""

from __future__ import annotations

import json
import shlex

import pytest
from jobs import STORAGE, Job, left

testinfra_hosts = ["ansible://cluster"]
CONFIG = "/etc/trainyard/job/config.json"
# In a container: a rank table of four devices of this host, as role ascend writes it for NPUs.
TABLE = """import json
address = json.load(open("/run/trainyard/job.json"))["entries"][0]["address"]
devices = [{"device_id": str(number), "device_ip": "192.0.2.%d" % (number + 1), "rank_id": str(number)} for number in range(4)]
json.dump({"version": "1.0", "server_count": "1", "server_list": [{"server_id": address, "device": devices}], "status": "completed"}, open("/tmp/table", "w"))
"""


def test_ranges_come_first_and_lines_of_useradd_stay(host):
    lines = host.file("/etc/subuid").content_string.splitlines()
    assert lines[:2] == ["alice:340590592:65536", "bob:340656128:65536"]
    assert [line.partition(":")[0] for line in lines[2:]] == ["ops", "alice", "bob"]


def test_a_job_is_the_person_and_sees_what_it_was_given(host):
    with Job(host, 101, gpus="1,3") as job:
        done = job.run(
            "id -u; id -g; ls /dev/nvidia*; df -m /dev/shm | cat; echo $CUDA_VISIBLE_DEVICES $NCCL_DEBUG $GLOO_SOCKET_IFNAME; "
            "cat /root/file; ls /proc/*/cmdline | cat; touch /data1/share/of-job; exit 7"
        )
        lines = done.stdout.split()
        assert done.rc == 7, done.stderr
        assert lines[:4] == ["2101", "2101", "/dev/nvidia1", "/dev/nvidia3"] and "128" in lines
        assert "0,1 WARN eth0 secret" in " ".join(lines)
        assert len([line for line in lines if line.startswith("/proc/")]) < 8, (
            "it sees its own processes only"
        )
    assert host.file("/data1/share/of-job").uid == 2101
    assert left(host) == ""


def test_a_group_of_the_person_counts(host):
    host.run_expect(
        [0],
        "mkdir -p /data1/share/vision && chgrp vision /data1/share/vision && chmod 2770 /data1/share/vision",
    )
    with Job(host, 102) as job, Job(host, 103, person="bob") as other:
        assert job.run("touch /data1/share/vision/%s" % host.backend.get_hostname()).rc == 0
        assert other.run("touch /data1/share/vision/other").rc == 1


def test_nobody_reads_the_folders_of_another_job(host):
    with Job(host, 104) as job:
        job.begin("echo secret > /tmp/secret; sleep 100")
        with Job(host, 105, person="bob", gpus="") as other:
            done = other.run("ls -d / /dev/nvidia0 /run/trainyard/jobs /tmp/secret")
            assert done.stdout == "/\n", done.stderr
        for path in ("/run/trainyard/jobs/104", STORAGE + "/jobs/104", "/run/trainyard/jobs"):
            assert (
                "Permission denied"
                in host.run("setpriv --reuid=bob --regid=bob --init-groups ls %s" % path).stderr
            )


# Files with capabilities.
CAPABLE = "import os, sys; print([path for path in sys.stdin.read().split('\\0') if path and 'security.capability' in os.listxattr(path, follow_symlinks=False)])"


def in_store(host, name):
    """The path of a file of the image in the store."""
    return host.check_output("find %s/images/overlay -path '*/%s'" % (STORAGE, name)).splitlines()[
        0
    ]


def test_people_cannot_change_the_image_store_nor_become_root_by_it(host):
    assert (
        host.run(
            "setpriv --reuid=alice --regid=alice --init-groups find %s/images -writable ! -type l"
            % STORAGE
        ).stdout
        == ""
    )
    assert host.check_output("find %s/images -perm /6000" % STORAGE) == "", (
        "people would run them as root"
    )
    capable = host.check_output(
        'find %s/images -type f -print0 | python3 -c "%s"' % (STORAGE, CAPABLE)
    )
    assert capable == "[]", "people would have the capabilities"
    as_bob = "setpriv --reuid=bob --regid=bob --init-groups "
    # Each of them can be started and read, and does nothing that bob cannot.
    assert host.run(as_bob + in_store(host, "usr/bin/reads-all") + " /etc/hostname").rc == 0
    assert (
        "Permission denied"
        in host.run(as_bob + in_store(host, "usr/bin/reads-all") + " /etc/shadow").stderr
    )
    assert host.check_output(as_bob + in_store(host, "usr/bin/who-am-i") + " --user") == "2102"
    assert (
        "Permission denied"
        in host.run(as_bob + "head --bytes=1 " + in_store(host, "dev/of-host")).stderr
    )
    options = (
        host.run("findmnt --noheadings --output OPTIONS %s/images" % STORAGE)
        .stdout.strip()
        .split(",")
    )
    assert {"nosuid", "nodev"} <= set(options), "the mount lacks them"


def test_nobody_else_reaches_the_store_of_a_person(host):
    """A set-user-ID file in it would be run as that person."""
    with Job(host, 117) as job:
        assert job.run("true").rc == 0
        host.run_expect([0], "chmod 777 %s/people/2101" % STORAGE)
    with Job(host, 118), Job(host, 119, person="bob"):
        for path in ("people/2101", "jobs/118"):
            assert (
                "Permission denied"
                in host.run(
                    "setpriv --reuid=bob --regid=bob --init-groups ls %s/%s" % (STORAGE, path)
                ).stderr
            )


def test_an_unknown_image_and_a_missing_prolog_are_refused(host):
    with Job(host, 106) as job:
        done = job.run("true", image="nobody/none:1")
        assert (
            done.rc == 125
            and "image 'nobody/none:1' is not on this host; images here:" in done.stderr
            and "site/tools:1" in done.stderr
        )
    assert "the prolog of Slurm has not run for this job" in Job(host, 107).run("true").stderr


def test_signals_reach_the_command(host):
    with Job(host, 108) as job:
        job.begin("trap 'echo got it; exit 5' TERM; sleep 100 & wait")
        host.run_expect(
            [0],
            "sleep 0.5; pkill --signal TERM --oldest --uid alice --full '^/usr/bin/python3 /usr/local/bin/trainyard-run'; sleep 1.5",
        )
        assert host.file("/srv/output").content_string == "got it\n"


@pytest.mark.parametrize(
    "killed",
    ["^[^ ]*conmon", "^/usr/bin/python3 /usr/local/bin/trainyard-run", "^[^ ]*fuse-overlayfs"],
)
def test_nothing_is_left_after_a_kill(host, killed):
    with Job(host, 109) as job:
        # conmon and a new session are outside of the process tree that Slurm knows.
        job.begin("touch /dev/shm/here /tmp/here; setsid sleep 1000 & sleep 1000")
        host.run_expect(
            [0],
            "setpriv --reuid=alice --regid=alice --init-groups env SLURM_JOB_ID=109 "
            "sh -c 'touch /dev/shm/of-alice /tmp/of-alice; setsid sleep 1000 > /dev/null 2>&1 < /dev/null &'",
        )
        host.run_expect([0], "pkill --signal KILL --uid alice --full '%s'" % killed)
    assert left(host) == ""


def test_another_job_of_the_person_goes_on(host):
    with Job(host, 110) as job:
        pid = job.begin("sleep 1000")
        with Job(host, 111) as other:
            assert other.run("true").rc == 0
        assert host.run("kill -0 %s" % pid).rc == 0
    assert left(host) == ""


def test_a_process_that_cannot_be_killed_fails_the_epilog(host):
    host.run_expect(
        [0],
        "mkdir -p /data1/share/hang-$(hostname); python3 /srv/hang.py /data1/share/hang-$(hostname) > /dev/null 2>&1 < /dev/null & sleep 1",
    )
    job = Job(host, 112)
    try:
        host.run_expect([0], job.as_root("prolog"))
        job.begin("cat /data1/share/hang-$(cat /proc/sys/kernel/hostname)/x")
        host.run_expect([0], "sleep 1")
        done = host.run(job.as_root("epilog"))
        assert (
            done.rc == 1
            and "job 112: these processes do not end:" in done.stderr
            and "(cat)" in done.stderr
        )
        health = host.run("/usr/local/lib/trainyard/slurm/health")
        assert health.rc == 1 and health.stdout.startswith(
            "trainyard: epilog: job 112: these processes do not end"
        )
    finally:
        host.run(
            "pkill --signal KILL --full '^python3 /srv/hang.py'; umount /data1/share/hang-$(hostname)"
        )
    # The health program tries it again.
    assert host.run("/usr/local/lib/trainyard/slurm/health").rc == 0 and left(host) == ""
    assert host.run("ls /run/trainyard/epilog.failed").stdout == ""


# In a job of bob: an image of his own, and a container of plain podman, which the epilog finds.
OWN_CONTAINER = """set -e; cd /home/bob; rm -f ran; mkdir -p .config/containers
echo '{"default": [{"type": "insecureAcceptAnything"}]}' > .config/containers/policy.json
tar --create --directory=/etc hostname | podman import --quiet - localhost/own:1
podman create --quiet --network=none --name=own localhost/own:1 /bin/true
printf '#!/bin/sh\\ntouch /home/bob/ran\\nexec /usr/bin/conmon "$@"\\n' > evil && chmod 755 evil
printf '[engine]\\nconmon_path=["/home/bob/evil"]\\n' > .config/containers/containers.conf
"""
AS_BOB = (
    "cd / && setpriv --reuid=bob --regid=bob --init-groups env -i PATH=/usr/bin:/bin "
    "HOME=/home/bob XDG_RUNTIME_DIR=/run/user/2102 sh -c "
)
OF_BOB = STORAGE + "/people/2102"


@pytest.fixture
def _bob_without_store(host):
    yield
    host.run_expect([0], "rm -rf %s/* /home/bob/.config /home/bob/evil /home/bob/ran" % OF_BOB)


@pytest.mark.usefixtures("_bob_without_store")
def test_the_epilog_starts_no_program_of_a_person(host):
    """Podman would start the monitor that bob has chosen, outside of a job."""
    with Job(host, 120, person="bob"):
        host.run_expect([0], AS_BOB + shlex.quote(OWN_CONTAINER))
        assert len(host.file(OF_BOB + "/overlay").listdir()) > 2
    assert not host.file("/home/bob/ran").exists
    # The container is gone with its layer, and the image can be used and removed.
    with Job(host, 121, person="bob"):
        host.run_expect([0], AS_BOB + "'rm /home/bob/.config/containers/containers.conf'")
        assert host.run(AS_BOB + "'podman ps --all --quiet'").stdout == ""
        again = "podman create --network=none --name=own localhost/own:1 /bin/true"
        host.run_expect([0], AS_BOB + "'%s && podman rm own && podman rmi localhost/own:1'" % again)
        layers = [name for name in host.file(OF_BOB + "/overlay").listdir() if len(name) == 64]
        assert layers == [], "a layer of the container is left"
    assert left(host) == ""


@pytest.mark.usefixtures("_bob_without_store")
@pytest.mark.parametrize(
    "made", ["mkfifo", "ln -s /dev/zero", "head --bytes=200000 /dev/zero | tr '\\0' '[' >"]
)
def test_no_file_of_a_person_holds_the_epilog(host, made):
    job = Job(host, 122, person="bob")
    host.run_expect([0], job.as_root("prolog"))
    path = OF_BOB + "/overlay-containers"
    command = "mkdir %s && %s %s/containers.json" % (path, made, path)
    host.run_expect([0], AS_BOB + shlex.quote(command))
    host.run_expect([0], "timeout 30 " + job.as_root("epilog"))
    assert left(host) == ""


def test_the_name_of_a_mount_fails_no_job(host):
    """Mounts of bob, by FUSE for example, are in the table that all programs read."""
    names = ("\\013", "\\034 x", "\\302\\205", "\\342\\200\\250", "\\015")
    points = ["\"$(printf '/srv/bob%s')\"" % name for name in names]
    for point in points:
        host.run_expect([0], "mkdir %s && mount -t tmpfs bob %s" % (point, point))
    try:
        with Job(host, 123) as job:
            assert job.run("true").rc == 0
        assert host.run("/usr/local/lib/trainyard/slurm/health").rc == 0
    finally:
        for point in points:
            host.run_expect([0], "umount %s && rmdir %s" % (point, point))
    assert left(host) == ""


def test_health_misses_a_gpu(host):
    host.run_expect([0], "mv /dev/nvidia3 /srv/")
    done = host.run("/usr/local/lib/trainyard/slurm/health")
    host.run_expect([0], "mv /srv/nvidia3 /dev/")
    assert (done.rc, done.stdout) == (1, "trainyard: gpu-count: 3 of 4 GPUs are present\n")


def test_the_number_of_slurm_is_a_position(host):
    """Devices 0, 1 and 3, of which 1 is of another model and the last one of Slurm's list.

    Without the list nobody can know that.
    """
    change = "import json; told = json.load(open('%s')); told['gpus']%s; json.dump(told, open('%s', 'w'))"
    write = "python3 -c " + shlex.quote(change % (CONFIG, "['positions'] = [0, 3, 1]", CONFIG))
    forget = "python3 -c " + shlex.quote(change % (CONFIG, ".pop('positions')", CONFIG))
    host.run_expect([0], "cp --preserve=all %s /srv/ && mv /dev/nvidia2 /srv/" % CONFIG)
    try:
        host.run_expect([0], write)
        for number, device in enumerate((0, 3, 1)):
            with Job(host, 130 + number, gpus=str(number)) as job:
                done = job.run("ls /dev/nvidia[0-9]*; echo $CUDA_VISIBLE_DEVICES")
                assert done.stdout.split() == ["/dev/nvidia%d" % device, "0"], done.stderr
        beyond = host.run(Job(host, 133, gpus="3").as_root("prolog"))
        assert beyond.rc == 1 and "its list has 3: device numbers 0, 3, 1" in beyond.stderr
        host.run_expect([0], forget)
        unknown = host.run(Job(host, 134, gpus="1").as_root("prolog"))
        assert unknown.rc == 1 and "run playbook scheduler" in unknown.stderr
    finally:
        host.run_expect(
            [0], "mv /srv/nvidia2 /dev/ && cp --preserve=all /srv/config.json %s" % CONFIG
        )
    assert left(host) == ""


def test_ranks_of_mindspore(host):
    """One for each device of the job.

    The image has no MindSpore, so there is no msrun, and the program of ranks is that of the host.
    """
    host.run_expect([0], "cat > /data1/share/table-$(hostname).py << 'END'\n%s\nEND" % TABLE)
    launch = "python3 /data1/share/table-$(cat /proc/sys/kernel/hostname).py && exec trainyard-launch mindspore --folder=/tmp --rank-table=/tmp/table sh -c "
    with Job(host, 114, gpus="1,3") as job:
        done = job.run("trainyard-launch mindspore --folder=/tmp true")
        assert (
            done.rc == 125 and "the image has no msrun, and there is no rank table" in done.stderr
        )
    with Job(host, 115, gpus="1,3") as job:
        done = job.run(launch + "'echo $RANK_ID of $RANK_SIZE on $DEVICE_ID; cat $RANK_TABLE_FILE'")
        assert done.rc == 0, done.stderr
    told = {
        rank: [
            line.partition("] ")[2]
            for line in done.stdout.splitlines()
            if line.startswith("[%d " % rank)
        ]
        for rank in (0, 1)
    }
    assert [told[rank][0] for rank in (0, 1)] == ["0 of 2 on 0", "1 of 2 on 1"]
    # The table has the number of the host, and the container counts from 0.
    (server,) = json.loads("\n".join(told[0][1:]))["server_list"]
    assert [(device["device_id"], device["rank_id"]) for device in server["device"]] == [
        ("1", "0"),
        ("3", "1"),
    ]
    with Job(host, 116, gpus="1,3") as job:
        done = job.run(launch + "'test $RANK_ID = 0 || exit 3; sleep 1000'")
        assert (
            done.rc == 3 and "rank 1 on" in done.stderr and "ended with exit code 3" in done.stderr
        )
    assert left(host) == ""


def test_people_pull_from_the_registries_only(host):
    with Job(host, 113):
        pull = (
            "cd / && setpriv --reuid=alice --regid=alice --init-groups env -i PATH=/usr/bin:/bin HOME=/home/alice XDG_RUNTIME_DIR=/run/user/2101 "
            "podman pull --tls-verify=false localhost:%d/team/image:1"
        )
        said = {}
        for port in (5000, 5001):
            host.run_expect(
                [0], "python3 /srv/registry.py %d > /dev/null 2>&1 < /dev/null & sleep 1" % port
            )
            said[port] = host.run(pull % port).stderr
        host.run("pkill --full '^python3 /srv/registry.py'")
    assert "rejected by policy" in said[5000]
    assert "rejected by policy" not in said[5001] and "404" in said[5001], (
        "it was asked for the content"
    )
    assert left(host) == ""


def test_the_store_has_one_image(host):
    images = json.loads(host.check_output("cat %s/images/overlay-images/images.json" % STORAGE))
    assert ["site/tools:1" in name for image in images for name in image.get("names") or []] == [
        True
    ]
