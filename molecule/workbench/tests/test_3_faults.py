"""What breaks while people work: Slurm's daemons, the share, images, a registry, and people who
leave.

Each time one clear error, nothing that is lost, and nothing that is left running.
"""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from conftest import Cluster
from test_2_hub import SMALL, Hub

pytestmark = pytest.mark.acceptance
ROLE = "jobs"
HOST = Cluster.head
REGISTRY = Cluster.head + ":5001"
CERTIFICATES = "/etc/containers/certs.d/" + REGISTRY
# A registry that knows nobody.
REFUSES = """
import http.server, ssl

class Refuses(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="site"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

server = http.server.ThreadingHTTPServer(("", 5001), Refuses)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/root/refuses.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def job(command="sleep 600", **values):
    values = dict(
        {
            "name": "fault",
            "worker_image": "site/tools:1",
            "worker_memory": "1",
            "command": json.dumps(command),
        },
        **values,
    )
    return "".join("%s: %s\n" % item for item in values.items())


@pytest.fixture(name="hub", scope="module")
def _hub(cluster):
    return Hub(cluster)


def test_the_controller_is_down(cluster):
    number = cluster.submit("alice", job("sleep 30; echo survived"))
    cluster.ends("alice", number, "running")
    cluster.on(cluster.head, "systemctl stop slurmctld")
    try:
        for words, text in (
            (("submit", "-"), job()),
            (("list",), None),
            (("show", number), None),
            (("stop", number), None),
            (("nodes",), None),
        ):
            said = cluster.refused(3, *words, text=text)
            assert (
                "Slurm does not answer" in said
                and "Start the controller on its host ('systemctl start slurmctld')" in said
            )
        # The share has it all.
        assert cluster.trainyard("alice", "logs", number).code == 0
        cluster.wait(
            "the end of the job without a controller",
            lambda: "survived" in cluster.trainyard("alice", "logs", number).out,
            90,
        )
    finally:
        cluster.on(cluster.head, "systemctl start slurmctld")
    cluster.wait(
        "the controller", lambda: cluster.on(cluster.head, "squeue", check=False).code == 0
    )
    told = cluster.ends("alice", number)
    assert (told["state"], told["result"]["exit_code"]) == ("completed", 0)
    cluster.nothing_left("alice")
    # What was refused is not there.
    assert [entry["id"] for entry in json.loads(cluster.trainyard("alice", "list", "--json").out)][
        -1
    ] == number


def test_the_database_is_down(cluster):
    number = cluster.submit("alice", job())
    cluster.ends("alice", number, "running")
    cluster.on(cluster.head, "systemctl stop slurmdbd")
    try:
        for words in (("list",), ("quota",)):
            assert (
                "Start the database daemon on its host ('systemctl start mariadb slurmdbd'). Jobs go on meanwhile."
                in cluster.refused(3, *words)
            )
        # The controller goes on: it tells of jobs that run, judges accounts, and keeps what the
        # database has to learn.
        assert cluster.ends("alice", number, "running")["efficiency"] == {}
        assert "'language' is not one of your accounts (vision)" in cluster.refused(
            2, "submit", "-", text=job(workspace_id="language")
        )
        later = cluster.submit("alice", job("echo later"))
        cluster.wait(
            "the later job",
            lambda: "later" in cluster.trainyard("alice", "logs", later, check=False).out,
            90,
        )
        cluster.trainyard("alice", "stop", number)
    finally:
        cluster.on(cluster.head, "systemctl start slurmdbd")

    def states():
        done = cluster.trainyard("alice", "list", "--json", check=False)
        found = (
            {entry["id"]: entry["state"] for entry in json.loads(done.out)}
            if done.code == 0
            else {}
        )
        return found.get(number), found.get(later)

    cluster.wait("the accounting catches up", lambda: states() == ("cancelled", "completed"), 180)
    cluster.nothing_left("alice")


@contextlib.contextmanager
def small_share(cluster):
    """A small file system in the place of alice's folder on the share.

    All of her jobs run on the host that has it.
    """
    folder = cluster.folder + "/alice"
    with cluster.out_of_service(cluster.peer):
        cluster.on(
            cluster.head,
            "mount -t tmpfs -o size=1m,mode=700,uid=2101,gid=2101 small {0} && "
            "install -d -m 700 -o alice -g alice {0}/.out".format(folder),
        )
        try:
            yield folder
        finally:
            cluster.on(cluster.head, "umount --lazy " + folder)


def test_the_share_is_full(cluster):
    with small_share(cluster) as folder:
        good = cluster.submit("alice", job("echo kept"))
        assert cluster.ends("alice", good)["state"] == "completed"
        running = cluster.submit("alice", job("sleep 20; echo lost"))
        cluster.ends("alice", running, "running")
        cluster.on(cluster.head, "! dd if=/dev/zero of=%s/fill bs=4k 2> /dev/null" % folder)
        said = cluster.refused(2, "submit", "-", text=job())
        assert (
            "%s/.out cannot be written: No space left on device. Remove files of yours on the share, or tell the operator"
            % folder
            in said
        )
        # Its log and its result have no room, which is told where the person looks.
        told = cluster.ends("alice", running)
        assert told["state"] == "failed" and told["why"].startswith(
            "it has left no result: %s/.out cannot be written: No space left" % folder
        ), told
        cluster.nothing_left("alice")
        # What was there before stays, and there is room again.
        assert (
            "kept" in cluster.trainyard("alice", "logs", good).out
            and cluster.ends("alice", good)["result"]["exit_code"] == 0
        )
        cluster.on(cluster.head, "rm %s/fill" % folder)
        assert (
            cluster.ends("alice", cluster.submit("alice", job("echo again")))["state"]
            == "completed"
        )
    cluster.nothing_left("alice")


def test_fifty_submits_at_once(cluster):
    with cluster.out_of_service(*cluster.hosts):
        cluster.as_person(
            "alice",
            "rm -rf many && mkdir many && cat > many.yml << 'END'\n%sEND\n"
            "for n in $(seq 50); do trainyard submit many.yml --json > many/$n 2>&1 & done; wait"
            % job(name="many"),
        )
        text = cluster.as_person("alice", "cat many/*").out
        numbers = re.findall(r'"id": "(\d+)"', text)
        assert len(set(numbers)) == len(numbers) == 50, text
        waiting = [
            entry
            for entry in json.loads(cluster.trainyard("alice", "list", "--json").out)
            if entry["state"] == "pending"
        ]
        assert {entry["id"] for entry in waiting} == set(numbers) and {
            entry["name"] for entry in waiting
        } == {"many"}
        cluster.as_person("alice", "scancel --me")
        cluster.wait(
            "an empty queue", lambda: cluster.on(cluster.head, "squeue --noheader").out == ""
        )
        # They have not begun, so they have no folder.
        folders = set(cluster.as_person("alice", "ls %s/alice" % cluster.folder).out.split())
        assert folders and not set(numbers) & folders
    cluster.nothing_left("alice")


def test_a_name_and_a_number_that_are_taken(cluster):
    """Jobs of one name have their own numbers and folders.

    Numbers begin anew with a new database: the folder of the older job stays as it is.
    """
    with cluster.out_of_service(*cluster.hosts):
        first, second = (
            cluster.submit("alice", job("echo of the " + word, name="twin"))
            for word in ("first", "second")
        )
        old = "%s/alice/%s" % (cluster.folder, second)
        cluster.as_person("alice", "mkdir %s && echo older > %s/spec.yml" % (old, old))
    for number, word in ((first, "first"), (second, "second")):
        assert (
            cluster.ends("alice", number)["state"] == "completed"
            and "of the " + word in cluster.trainyard("alice", "logs", number).out
        )
    assert cluster.as_person("alice", "ls %s; cat %s/spec.yml" % (old, old)).out.split() == [
        "spec.yml",
        "older",
    ]
    assert (
        json.loads(cluster.trainyard("alice", "show", second, "--json").out)["folder"] == old + ".2"
    )
    cluster.nothing_left("alice")


def test_an_image_that_does_not_exist(cluster):
    said = cluster.refused(2, "submit", "-", text=job(worker_image="site/gone:1"))
    assert (
        "worker_image: 'site/gone:1' is not an image of this cluster; use one of site/notebook:1, site/tools:1"
        in said
    )
    # One that was there when the job was submitted. The job is sealed, so the list of the login
    # host names it for a moment.
    config = "/etc/trainyard/jobs.json"
    cluster.on(
        cluster.head,
        """cp -p %s /root/jobs.json && sed -i 's|"site/tools:1"|"site/gone:1", &|' %s"""
        % (config, config),
    )
    try:
        number = cluster.submit("alice", job(worker_gpu="1", worker_image="site/gone:1"))
    finally:
        cluster.on(cluster.head, "mv /root/jobs.json %s" % config)
    not_on_this_host(cluster, number, "image 'site/gone:1' is not on this host; images here: ")


def not_on_this_host(cluster, number, reason):
    told = cluster.ends("alice", number)
    assert (told["state"], told["exit_code"], told["result"]["first_failed"]["exit_code"]) == (
        "failed",
        125,
        125,
    )
    lines = [
        line
        for line in told["result"]["first_failed"]["lines"]
        if "trainyard-run: " in line and "pulling" not in line
    ]
    assert len(lines) == 1 and reason in lines[0], lines
    cluster.nothing_left("alice")
    return lines[0]


@pytest.fixture(name="registry", scope="module")
def _registry(cluster, playbook):
    """A registry of the site that refuses people without a login."""
    allowed = {"job_container_registries": [REGISTRY]}
    cluster.on(
        cluster.head,
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=%s -addext subjectAltName=DNS:%s "
        "-keyout /root/refuses.key -out /root/refuses.crt 2> /dev/null && cat /root/refuses.key /root/refuses.crt > /root/refuses.pem && "
        "mkdir -p %s && cp /root/refuses.crt %s/ca.crt && cat > /root/refuses.py << 'END'\n%s\nEND\n"
        "systemd-run --quiet --unit=refuses python3 /root/refuses.py"
        % (HOST, HOST, CERTIFICATES, CERTIFICATES, REFUSES),
    )
    try:
        for name in ("scheduler.yml", "workbench.yml"):
            run = playbook(name, **allowed)
            assert run.code == 0, run.text[-3000:]
        yield REGISTRY
    finally:
        cluster.on(
            cluster.head,
            "systemctl stop refuses; rm -r /root/refuses.* %s; rmdir %s"
            % (CERTIFICATES, CERTIFICATES.rpartition("/")[0]),
            check=False,
        )
        for name in ("scheduler.yml", "workbench.yml"):
            assert playbook(name).code == 0


def test_a_registry_that_refuses(cluster, registry):
    image = registry + "/team/image:1"
    with cluster.out_of_service(cluster.peer):
        done = cluster.as_person(
            "alice", "srun --quiet --mem=500 podman pull " + image, check=False
        )
        assert (
            done.code != 0
            and re.search("unauthorized|authentication required|401", done.text)
            and registry in done.text
        ), done.text
        assert (
            "team/image"
            not in cluster.on(
                cluster.head,
                "cat %s/people/alice/overlay-images/images.json" % cluster.store,
                check=False,
            ).out
        )
        # The host tries to pull it for the job, and says why it cannot.
        line = not_on_this_host(
            cluster,
            cluster.submit("alice", job(worker_image=image)),
            "image '%s' is not on this host: the pull of" % image,
        )
        assert re.search("unauthorized|authentication required|401", line), line


def test_a_person_who_leaves_while_a_job_and_an_instance_run(cluster, hub, playbook):
    without = [
        {"name": "vision", "gpus": 2, "members": ["alice"]},
        {"name": "language", "gpus": 8, "members": []},
    ]
    bob = hub.program("bob")
    assert bob.start("bob", "gone", display_name="Gone", user_options=SMALL).code in (201, 202)
    bob.is_ready("bob", "gone")
    # The name is taken. That of another person's instance is not.
    taken = bob.start("bob", "gone", display_name="Gone", user_options=SMALL)
    assert taken.code == 400 and "already running" in taken.text
    number = cluster.submit("bob", job("echo begun; sleep 600"))
    cluster.ends("bob", number, "running")
    cluster.wait("the first line", lambda: "begun" in cluster.trainyard("bob", "logs", number).out)
    try:
        run = playbook("people.yml", slurm_accounts=without)
        assert run.code == 0, run.text[-3000:]
        # The job goes on, the instance is stopped, and nothing new begins.
        cluster.wait(
            "the end of the instance",
            lambda: (
                cluster.on(cluster.head, "squeue --noheader --user=bob --format=%A").out.split()
                == [number]
            ),
        )
        assert cluster.ends("bob", number, "running")["state"] == "running"
        assert (
            "workspace_id: bob has no account on this cluster; ask the operator"
            in cluster.refused(2, "submit", "-", person="bob", text=job())
        )
        assert "bob is not one of the people" in cluster.refused(2, "login", person="bob")
        run = playbook("people.yml", slurm_accounts=without, slurm_accounts_cancel_jobs=True)
        assert run.code == 0, run.text[-3000:]
        cluster.nothing_left("bob")
        # The log and the result are kept, and no token.
        kept = "%s/bob/%s" % (cluster.folder, number)
        assert (
            "the job was stopped before it ended"
            in cluster.as_person("bob", "cat %s/result.json" % kept).out
        )
        assert (
            "begun" in cluster.as_person("bob", "cat %s/job.log" % kept).out
            and cluster.as_person("bob", "ls %s/bob/.instances" % cluster.folder).out == ""
        )
    finally:
        run = playbook("people.yml")
    assert run.code == 0, run.text[-3000:]
    assert cluster.ends("bob", cluster.submit("bob", job("true")))["state"] == "completed"
    cluster.nothing_left("alice", "bob")
