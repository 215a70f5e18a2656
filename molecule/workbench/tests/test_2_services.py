"""What runs beside a job, and the ways to it: ssh, Jupyter, TensorBoard, copies of results,
e-mail.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest

pytestmark = pytest.mark.acceptance
ROLE = "jobs"
# Jupyter and TensorBoard for the image's Python.
PACKAGES = (
    "environment: {PYTHONPATH: /data1/share/packages, LD_LIBRARY_PATH: /data1/share/packages/lib}\n"
)
# Writes three scalars as a training program does, then stays.
TRAINS = """command: |
  python3 -c "
  import os
  from tensorboard.compat.proto.event_pb2 import Event
  from tensorboard.compat.proto.summary_pb2 import Summary
  from tensorboard.summary.writer.event_file_writer import EventFileWriter
  writer = EventFileWriter(os.path.expanduser('~/logs'))
  for step, loss in enumerate((0.9, 0.5, 0.25)):
      writer.add_event(Event(wall_time=1.0 + step, step=step, summary=Summary(value=[Summary.Value(tag='loss', simple_value=loss)])))
  writer.close()
  "
  sleep 900
"""
# Prints code and body of a request to a Unix socket: socket, method, path, body.
REQUEST = """
import http.client, socket, sys
connection = http.client.HTTPConnection("localhost", timeout=60)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
connection.request(sys.argv[2], sys.argv[3], sys.argv[4] if sys.argv[4:] else None)
answer = connection.getresponse()
print(answer.status)
print(answer.read().decode(errors="replace"))
"""


def request(cluster, person, path, method, url, *body):
    """Code and body of a request that a person makes on the login host."""
    done = cluster.as_person(
        person, shlex.join(["python3", "-c", REQUEST, path, method, url, *body]), check=False
    )
    return (
        (int(done.out.split("\n")[0]), done.out.partition("\n")[2])
        if done.code == 0
        else (0, done.text)
    )


@pytest.fixture(name="laptop", scope="module")
def _laptop(cluster):
    """alice's own computer, which is her account on the login host here, with a key."""
    cluster.as_person(
        "alice",
        "mkdir -p -m 700 .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519 && cp .ssh/id_ed25519.pub .ssh/authorized_keys "
        "&& printf 'Host *\\n  StrictHostKeyChecking accept-new\\n  LogLevel ERROR\\n' > .ssh/config",
    )
    yield
    cluster.as_person("alice", "rm -r .ssh")


@pytest.fixture(name="job", scope="module")
def _job(cluster, laptop):
    """A running job of alice with all services, as `trainyard show --json` tells it."""
    cluster.as_person("alice", "rm -rf logs")
    services = "services: {ssh: true, jupyter: true, tensorboard: ~/logs}\n"
    number = cluster.submit(
        "alice",
        "name: served\nworker_image: site/tools:1\nworker_gpu: 1\n" + services + PACKAGES + TRAINS,
    )
    told = {}

    def ready():
        told.update(json.loads(cluster.trainyard("alice", "show", number, "--json").out))
        return (
            told["state"] != "pending"
            and [endpoint["state"] for endpoint in told["endpoints"]] == ["ready"] * 3
        )

    try:
        cluster.wait("the services: %s" % told, ready, 240)
        told["ways"] = {endpoint["service"]: endpoint for endpoint in told["endpoints"]}
        yield told
    finally:
        cluster.trainyard("alice", "stop", number, check=False)


def ssh(cluster, job, *words, text="", check=True):
    """The command that `trainyard show` prints, with more words."""
    given = "printf %%s %s | " % shlex.quote(text) if text else ""
    return cluster.as_person(
        "alice",
        given
        + job["ways"]["ssh"]["command"]
        + " "
        + shlex.join(words)
        + ("" if text else " < /dev/null"),
        check,
    )


def test_ssh_reaches_the_container(cluster, job):
    # As VS Code does: a script on standard input, and its exit code.
    done = ssh(
        cluster,
        job,
        "sh",
        "-s",
        text="echo in job $TRAINYARD_JOB_ID as $(id -un); exit 5\n",
        check=False,
    )
    assert (done.code, done.out.split("\n")[0]) == (5, "in job %s as alice" % job["id"]), done.text
    cluster.as_person("alice", "head -c 3000000 /dev/urandom > sent")
    command = job["ways"]["ssh"]["command"]
    cluster.as_person("alice", "%s cat < sent | cmp - sent" % command)
    cluster.as_person(
        "alice",
        "echo 'put sent received' | sftp -b - %s && cmp sent received" % command[len("ssh ") :],
    )
    # A connection that is cut off ends its sshd, and the next one works.
    cluster.as_person("alice", "timeout --signal=KILL 5 %s cat; true" % command, check=False)
    cluster.wait(
        "the end of the session",
        lambda: cluster.on(job["hosts"][0], "pgrep -u alice -x sshd", check=False).code,
    )
    # A terminal.
    assert (
        "/dev/pts/"
        in cluster.as_person(
            "alice",
            "script -qec %s /dev/null" % shlex.quote(command + " -tt ls -l /proc/self/fd/0"),
        ).out
    )


def test_only_the_key_of_the_person_opens_it(cluster, job):
    cluster.as_person("alice", "ssh-keygen -q -t ed25519 -N '' -f other")
    command = job["ways"]["ssh"]["command"].replace(
        "ssh -o", "ssh -i other -o IdentitiesOnly=yes -o", 1
    )
    command = command.replace("ProxyCommand=ssh ", "ProxyCommand=ssh -i .ssh/id_ed25519 ")
    done = cluster.as_person("alice", command + " true || echo refused", check=False)
    assert done.out == "refused\n" and "Permission denied (publickey)" in done.text
    done = cluster.as_person(
        "bob", "trainyard attach --stdio %s < /dev/null" % job["id"], check=False
    )
    assert done.code == 2 and "you have no job %s" % job["id"] in done.text


@pytest.fixture(name="tunnel", scope="module")
def _tunnel(cluster, job):
    """Sockets on alice's computer that lead to Jupyter and TensorBoard, by the commands that
    `trainyard show` prints.
    """
    for name in ("jupyter", "tensorboard"):
        command = job["ways"][name]["command"]
        port, _colon, rest = command.partition("-L ")[2].partition(":")
        command = command.replace(
            "-L %s:%s" % (port, rest), "-L /home/alice/%s.sock:%s" % (name, rest)
        )
        wait = "for second in $(seq 60); do test -S %s.sock && break; sleep 1; done" % name
        cluster.as_person("alice", "setsid %s < /dev/null > /dev/null 2>&1 & %s" % (command, wait))
    yield
    cluster.on(cluster.head, "pkill -u alice -x ssh; rm -f /home/alice/*.sock", check=False)


def test_tensorboard_shows_what_the_job_has_written(cluster, job, tunnel):
    def scalars():
        code, text = request(
            cluster,
            "alice",
            "/home/alice/tensorboard.sock",
            "GET",
            "/data/plugin/scalars/scalars?run=.&tag=loss",
        )
        return json.loads(text) if code == 200 else []

    cluster.wait("the scalars", lambda: len(scalars()) == 3)
    assert scalars()[-1] == [3.0, 2, 0.25]
    assert request(cluster, "alice", "/home/alice/tensorboard.sock", "GET", "/")[0] == 200


def test_jupyter_runs_a_kernel_in_the_container(cluster, job, tunnel):
    token = job["ways"]["jupyter"]["url"].partition("?token=")[2]
    path = "/home/alice/jupyter.sock"
    assert request(cluster, "alice", path, "GET", "/api/kernels")[0] == 403
    assert request(cluster, "alice", path, "GET", "/api/kernels?token=" + "0" * 48)[0] == 403
    code, text = request(cluster, "alice", path, "POST", "/api/kernels?token=" + token, "{}")
    assert code == 201, text
    number = json.loads(text)["id"]
    cluster.wait(
        "the kernel",
        lambda: (
            cluster.on(job["hosts"][0], "pgrep -u alice -f kernel-%s" % number, check=False).code
            == 0
        ),
    )
    assert "kernel-%s" % number in ssh(cluster, job, "ls /run/trainyard/jupyter").out


def test_nothing_of_it_is_open_to_others(cluster, job):
    host = job["hosts"][0]
    uid = cluster.on(host, "id -u alice").out.strip()
    # Not one port: containers of all people share the network of the host.
    # srun has some on the first host of a job, and asks munge who connects. A kernel of ipykernel
    # has one for its children, which drops what has not its ID.
    listening = cluster.on(
        host, "ss --no-header --listening --tcp --udp --extended --numeric --processes"
    ).out.splitlines()
    owners = [
        re.search(r"pid=(\d+)", line).group(1)
        for line in listening
        if "uid:%s " % uid in line + " "
    ]
    commands = [cluster.on(host, "tr '\\0' ' ' < /proc/%s/cmdline" % owner).out for owner in owners]
    assert [
        command
        for command in commands
        if not re.match(r"srun |\S*python\S* -m ipykernel_launcher ", command)
    ] == []
    token = job["ways"]["jupyter"]["url"].partition("?token=")[2]
    for name in ("jupyter", "tensorboard"):
        path = "/run/trainyard/jobs/%s/task.0.0/%s.sock" % (job["id"], name)
        assert cluster.on(host, "test -S " + path).code == 0
        done = cluster.on(
            host,
            "su bob -c %s" % shlex.quote(shlex.join(["python3", "-c", REQUEST, path, "GET", "/"])),
            check=False,
        )
        assert done.code != 0 and "PermissionError" in done.text
    look = (
        "ps -ef; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; "
        "find / -xdev -user alice -type f -readable -size -64k -not -path '/proc/*' -exec cat {} +"
    )
    seen = cluster.on(
        host, "su bob -c %s 2> /dev/null | tr -cd '[:print:]\\n'" % shlex.quote(look), check=False
    ).text
    assert token and token not in seen
    assert token not in cluster.trainyard("alice", "logs", job["id"]).text


def test_what_the_gpus_do(cluster, job):
    """The hosts have no GPU, so a program in nvidia-smi's place prints its line for one."""
    host = job["hosts"][0]
    cluster.on(
        host,
        "printf '#!/bin/sh\\necho 97, 900, 24576\\n' > /usr/local/bin/nvidia-smi && chmod 755 /usr/local/bin/nvidia-smi",
    )
    try:
        cluster.wait(
            "the use",
            lambda: json.loads(cluster.trainyard("alice", "show", job["id"], "--json").out)[
                "usage"
            ],
        )
        assert "97 %  900 MiB of 24576 MiB" in cluster.trainyard("alice", "show", job["id"]).out
    finally:
        cluster.on(host, "rm /usr/local/bin/nvidia-smi")


def test_all_of_it_ends_with_the_job(cluster, job, tunnel):
    cluster.trainyard("alice", "stop", job["id"])
    assert cluster.ends("alice", job["id"])["endpoints"] == []
    left = (
        "pgrep -u alice -f 'services|jupyter|tensorboard|sshd'; ls /run/trainyard/jobs | grep -x "
        + job["id"]
    )
    cluster.wait("the end", lambda: not cluster.on(job["hosts"][0], left, check=False).out)


def test_an_image_without_them_does_not_fail_the_job(cluster):
    number = cluster.submit(
        "alice",
        "name: bare\nworker_image: site/tools:1\nservices: {jupyter: true, tensorboard: /tmp/logs}\ncommand: sleep 8\n",
    )
    cluster.ends("alice", number, "running")
    cluster.wait(
        "the reason",
        lambda: (
            "the image has no Jupyter; use an image with jupyterlab"
            in cluster.trainyard("alice", "show", number).out
        ),
        8,
    )
    assert cluster.ends("alice", number)["state"] == "completed"


def test_tensorboard_alone(cluster):
    assert cluster.trainyard("bob", "tensorboard", "/home/alice/logs", check=False).code == 2
    image = ("--set", "worker_image=site/tools:1")
    done = cluster.trainyard(
        "alice",
        "tensorboard",
        "/home/alice/logs",
        *image,
        "--set",
        "environment.PYTHONPATH=/data1/share/packages",
        "--set",
        "environment.LD_LIBRARY_PATH=/data1/share/packages/lib",
        "--json",
    )
    told = json.loads(done.out)
    assert [
        (endpoint["service"], endpoint["state"], endpoint["url"]) for endpoint in told["endpoints"]
    ] == [("tensorboard", "ready", "http://localhost:6006/")]
    cluster.trainyard("alice", "stop", told["id"])
    cluster.ends("alice", told["id"])
    # Without it in the image the job says so and fails.
    done = cluster.trainyard("alice", "tensorboard", "/home/alice/logs", *image, check=False)
    assert (
        done.code == 1
        and "the image has no TensorBoard"
        in done.text + cluster.trainyard("alice", "logs", done.out.split()[1]).text
    )


def test_the_launchers_of_guides_find_the_other_workers(cluster):
    """kind MPIJob: the command runs on worker 0, and ssh with the host file reaches the others.

    The names are those of Apulis.
    """
    number = cluster.submit(
        "alice",
        "name: mpi\nkind: MPIJob\nworker_count: 2\nworker_image: site/tools:1\nenvironment_aliases: dlws\ncommand: |\n"
        "  while read -r host slots; do ssh -p $DLWS_SD_worker0_SSH_PORT $host "
        "'echo $TRAINYARD_WORKER_INDEX of $DLWS_NUM_WORKER as '$(id -un) < /dev/null; done < ~/ib_config\n"
        "  echo rank $RANK on $DLWS_ROLE_IDX\n",
    )
    job = cluster.ends("alice", number)
    assert job["state"] == "completed", cluster.trainyard("alice", "logs", number).text
    # RANK is of PyTorchJob only.
    assert cluster.trainyard("alice", "logs", number, "--rank", "0").out.splitlines() == [
        "0 of 2 as alice",
        "1 of 2 as alice",
        "rank on 0",
    ]


def test_results_are_copied_to_the_persons_own_storage(cluster):
    """To a WebDAV server that runs as another user, then to one that is down."""
    cluster.on(
        cluster.peer,
        "install --directory --owner=nobody /srv/dav && "
        "systemd-run --unit=dav --uid=nobody --setenv=HOME=/srv/dav rclone serve webdav /srv/dav --addr 172.30.104.22:8080",
    )
    cluster.as_person(
        "alice",
        "rclone config create results webdav url http://172.30.104.22:8080 vendor other > /dev/null",
    )
    text = "name: copied\nworker_image: site/tools:1\ncopy_results: results:runs/1\ncommand: echo the result > $TRAINYARD_JOB_DIR/model\n"
    job = cluster.ends("alice", cluster.submit("alice", text))
    assert (job["state"], job["result"]["copied"]) == (
        "completed",
        {"to": "results:runs/1", "ok": True, "said": ""},
    )
    assert cluster.on(cluster.peer, "cat /srv/dav/runs/1/model").out == "the result\n"
    cluster.on(cluster.peer, "systemctl stop dav")
    job = cluster.ends("alice", cluster.submit("alice", text))
    # A status of its own: the training itself was good.
    assert (job["state"], job["exit_code"], job["result"]["copied"]["ok"]) == (
        "completed",
        0,
        False,
    ) and "rclone copy" in job["result"]["copied"]["said"]
    cluster.wait(
        "free hosts",
        lambda: (
            cluster.on(cluster.head, "squeue --noheader; sinfo --noheader --format %T").out.split()
            == ["idle"]
        ),
    )


def test_the_end_is_mailed(cluster):
    number = cluster.submit("alice", "name: mailed\nworker_image: site/tools:1\ncommand: exit 4\n")
    cluster.ends("alice", number)
    cluster.wait(
        "the mail",
        lambda: (
            "Job_id=%s Name=mailed Failed" % number
            in cluster.on(cluster.head, "cat /var/log/sent_mail", check=False).out
        ),
    )
