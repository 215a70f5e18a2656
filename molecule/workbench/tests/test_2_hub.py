"""Instances in the browser, over the hub's API: login by link, a kernel and a terminal in the
container of a job, and what others cannot open.
"""

from __future__ import annotations

import html
import json
import re
import time
from urllib.parse import urlsplit

import pytest
from browser_session import Session, WebSocket, lead, origin
from conftest import Cluster
from test_2_services import _laptop

ROLE = "jupyterhub"
HOST = Cluster.head
__all__ = ["_laptop"]
IMAGE = "site/notebook:1"
SMALL = {"worker_image": IMAGE, "worker_memory": 1}
LOOK = """
import errno, glob, os
print(os.getuid(), os.getgid(), os.path.exists("/usr/bin/who-am-i"), sorted(glob.glob("/dev/nvidia[0-9]*")))
for path in ("/data1/share/.trainyard/jobs/bob", "/etc/trainyard"):
    try:
        print(path, os.listdir(path))
    except OSError as error:
        print(path, errno.errorcode[error.errno])
print([name for name in os.environ if "HUB" in name or "TOKEN" in name])
"""


class Hub:
    def __init__(self, cluster):
        self.cluster = cluster
        self.ca = cluster.on(cluster.head, "cat /etc/trainyard/tls/ca.pem").out
        site = json.loads(cluster.on(cluster.head, "cat /etc/trainyard/hub/hub.json").out)
        self.url, self.names, self.address = (
            site["url"],
            site["subdomains"],
            site["addresses"][cluster.head],
        )
        if self.names:
            lead(urlsplit(self.url).hostname, self.address)

    def link(self, person):
        return json.loads(self.cluster.trainyard(person, "login", "--json").out)["url"]

    def nobody(self):
        return Session(self.url, self.ca, self.names)

    def origin(self, path):
        return origin(self.url, self.names, path)

    def rules(self, **others):
        """How Chromium finds the names: those of the hub, and before them some that lead
        elsewhere.
        """
        name = urlsplit(self.url).hostname
        found = ["MAP %s %s" % pair for pair in others.items()]
        return ",".join(
            found
            + ["MAP %s %s" % (each, self.address) for each in (name, "*." + name)] * self.names
        )

    def browser(self, person):
        """A browser in which a person has logged in."""
        session = self.nobody()
        answer = session.log_in(self.link(person))
        assert (answer.code, answer.url) == (200, self.url + "/hub/home"), answer.text
        return session

    def program(self, person):
        """One with a token that the person has made in the browser."""
        session = self.browser(person)
        session.token = session.make_token(person)
        return session

    def gpus_in_use(self):
        nodes = json.loads(self.cluster.trainyard("alice", "nodes", "--json").out)
        return sum(node["gpus"] - node["free"]["gpus"] for node in nodes)


@pytest.fixture(scope="session")
def hub(cluster):
    return Hub(cluster)


@pytest.fixture(scope="session")
def alice(hub):
    return hub.program("alice")


@pytest.fixture(scope="session")
def instance(hub, alice):
    """An instance of alice with one GPU."""
    answer = alice.start(
        "alice",
        "first",
        display_name="First_1",
        user_options=dict(SMALL, worker_gpu=1, cmd="touch /data1/share/harm"),
    )
    assert answer.code in (201, 202), answer.text
    return alice.is_ready("alice", "first")


def test_a_link_is_valid_once(hub):
    link = hub.link("alice")
    assert link.startswith(hub.url + "/hub/login#alice:")
    assert hub.nobody().log_in(link).code == 200
    again = hub.nobody().log_in(link)
    assert again.code == 403 and "was used before" in again.text
    assert hub.nobody().log_in(link[:-1] + "AB"[link[-1] == "A"]).code == 403
    assert hub.nobody().post_token("").code == 403
    # Not in an address, an argument or a log.
    token = link.rpartition(":")[2]
    assert (
        token
        not in hub.cluster.on(
            hub.cluster.head,
            "journalctl --no-pager --output=cat; ps -ef; cat /var/log/*.log 2> /dev/null || true",
        ).out
    )


def test_an_old_link_is_refused(hub):
    link = hub.link("alice")
    hub.cluster.on(
        hub.cluster.head, 'sed -i \'s/"until": [0-9.]*/"until": 1/\' /var/lib/trainyard/hub/links/*'
    )
    answer = hub.nobody().log_in(link)
    assert answer.code == 403 and "was valid for 60 seconds" in answer.text


def test_only_people_get_a_link(hub):
    for account in ("ops", "nobody"):
        done = hub.cluster.on(
            hub.cluster.head, "su %s -s /bin/sh -c 'trainyard login'" % account, check=False
        )
        assert done.code == 2 and "is not one of the people of this cluster" in done.text
    # The hub can run one program as people, and as nobody else.
    as_hub = "su trainyard-hub -s /bin/sh -c %s"
    assert hub.cluster.on(
        hub.cluster.head,
        as_hub % "'echo {} | sudo -n /usr/local/lib/trainyard/hub/as_person alice'",
    ).out.startswith('{"error"')
    for command in (
        "sudo -n /usr/local/lib/trainyard/hub/as_person root",
        "sudo -n /usr/local/lib/trainyard/hub/as_person slurm",
        "sudo -n /usr/local/lib/trainyard/hub/as_person",
        "sudo -n /usr/local/lib/trainyard/hub/as_person alice more",
        "sudo -n /usr/local/lib/trainyard/hub/instance",
        "sudo -n -u alice /usr/local/lib/trainyard/hub/instance",
        "sudo -n -u alice id",
        "sudo -n id",
    ):
        assert (
            hub.cluster.on(hub.cluster.head, as_hub % ("'%s'" % command), check=False).code == 1
        ), command
    look = "su bob -c 'cat /etc/trainyard/hub/hub.json /etc/trainyard/hub/proxy.env; ls /var/lib/trainyard/hub'"
    assert hub.cluster.on(hub.cluster.head, look, check=False).out == ""


def test_a_cell_runs_in_the_container(hub, alice, instance):
    assert instance["url"] == "/user/alice/first/"
    job = [
        job
        for job in json.loads(hub.cluster.trainyard("alice", "list", "--json").out)
        if job["state"] == "running"
    ][-1]
    assert (job["name"], job["account"], job["gpus"]) == ("First_1", "vision", 1)
    assert hub.gpus_in_use() == 1
    told = alice.run_cell(instance["url"], LOOK).splitlines()
    # site/notebook:1 has this program, and no folder /etc/trainyard. Its kernel has nothing of the
    # hub.
    assert told == [
        "2101 2101 True ['/dev/nvidia0']",
        "/data1/share/.trainyard/jobs/bob EACCES",
        "/etc/trainyard ENOENT",
        "[]",
    ]
    assert hub.cluster.on(hub.cluster.head, "test -e /data1/share/harm", check=False).code == 1


def test_a_kernel_is_interrupted_and_ended(hub, alice, instance):
    kernel = json.loads(
        alice.ask(instance["url"] + "api/kernels", "POST", {"name": "python3"}).text
    )["id"]
    with WebSocket(alice, "%sapi/kernels/%s/channels" % (instance["url"], kernel)) as channel:
        assert channel.execute("import os; print(os.path.basename(os.getcwd()))") == "alice\n"
        number = channel.ask("import time\nprint('begun')\ntime.sleep(3600)")
        channel.printed(number, "begun")
        assert (
            alice.ask("%sapi/kernels/%s/interrupt" % (instance["url"], kernel), "POST", {}).code
            == 204
        )
        assert "KeyboardInterrupt" in channel.rest(number)
    assert alice.ask("%sapi/kernels/%s" % (instance["url"], kernel), "DELETE").code == 204
    hub.cluster.wait(
        "the end of the kernel",
        lambda: all(
            hub.cluster.on(host, "pgrep -f '[i]pykernel_launcher.*%s'" % kernel, check=False).code
            == 1
            for host in hub.cluster.hosts
        ),
    )


def test_a_terminal_is_in_the_container(hub, alice, instance):
    terminal = json.loads(alice.ask(instance["url"] + "api/terminals", "POST", {}).text)["name"]
    with WebSocket(alice, "%sterminals/websocket/%s" % (instance["url"], terminal)) as channel:
        time.sleep(3)
        channel.send(json.dumps(["stdin", "who-am-i -u; echo fini''shed\r"]))
        text = ""
        while "finished" not in text:
            kind, *rest = json.loads(channel.receive())
            text += rest[0] if kind == "stdout" else ""
    # A program of the image, whose set-user-ID bit is of no use. On a busy machine the prompt comes
    # after the command.
    assert re.search(r"^(\$ )?2101\r?$", text, re.MULTILINE), text


def test_the_page_has_the_ssh_command(hub, alice, instance, laptop):
    page = alice.ask(instance["url"] + "trainyard/").text
    command = html.unescape(re.search(r'<pre id="ssh" tabindex="0">(.*?)</pre>', page).group(1))
    number = re.search(r"attach --stdio (\d+)", command).group(1)
    # The login host of the page is workbench-a, where this runs.
    done = hub.cluster.as_person(
        "alice", command + " 'id -u; echo $TRAINYARD_JOB_ID; test -x /usr/bin/who-am-i' < /dev/null"
    )
    assert done.out.split() == ["2101", number]
    assert "ProxyCommand ssh alice@workbench-a trainyard attach --stdio %n" in html.unescape(page)


def test_tensorboard_is_for_folders_of_the_person(hub, alice, instance):
    hub.cluster.as_person("bob", "mkdir -p /data1/share/bobs && chmod 755 /data1/share/bobs")
    for folder, complaint in (
        ("/data1/share/bobs", "/data1/share/bobs belongs to bob"),
        ("/home/bob", "/home/bob"),
        ("/etc", "is not in"),
        ("~/none", "No such file"),
    ):
        answer = alice.ask(
            instance["url"] + "trainyard/tensorboard",
            "POST",
            {"folder": folder},
            {"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert answer.code == 400 and complaint in html.unescape(answer.text), answer.text
    # This image has no TensorBoard.
    answer = alice.ask(
        instance["url"] + "trainyard/tensorboard",
        "POST",
        {"folder": "~"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert answer.code == 400 and "the image has no TensorBoard" in answer.text
    assert json.loads(alice.ask(instance["url"] + "trainyard/idle").text) == {"message": ""}


def test_others_cannot_open_it(hub, instance):
    """bob with a token, with cookies, without both, and on the host itself."""
    url = instance["url"]
    paths = [
        url + path
        for path in (
            "lab",
            "api/status",
            "api/kernels",
            "api/contents",
            "api/terminals",
            "tree",
            "files/.bashrc",
        )
    ]
    for person in (hub.program("bob"), hub.browser("bob")):
        told = {
            path: person.ask(path).code
            for path in paths + ["/hub/api/users/alice", "/hub/api/users/alice/servers/first"]
        }
        assert set(told.values()) <= {403, 404, 405}, told
        assert person.stop("alice", "first").code in (403, 404) and person.start(
            "alice", "other", **SMALL
        ).code in (403, 404)
    # Without a login, and with a wrong token.
    for token in ("", "0" * 32):
        nobody = hub.nobody()
        nobody.token = token
        for path in paths:
            answer = nobody.ask(path)
            assert answer.code in (403, 404) or answer.url.startswith(hub.url + "/hub/login?"), path
        assert nobody.ask("/hub/api/users/alice").code == 403
    # On the host of the instance, where all people share addresses and ports.
    job = [
        job
        for job in json.loads(hub.cluster.trainyard("alice", "list", "--json").out)
        if job["state"] == "running"
    ][-1]
    host = job["hosts"][0]
    look = """
import glob, http.client, os, socket, subprocess, urllib.error, urllib.request
for line in subprocess.run(["ss", "-Hltn"], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines():
    address = line.split()[3].replace("0.0.0.0", "127.0.0.1").replace("*", "127.0.0.1").replace("[::]", "[::1]")
    for path in ("%(url)slab", "%(url)sapi/contents", "%(url)sapi/kernels", "/"):
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open("http://" + address + path, timeout=5) as answer:
                if "/hub/" not in answer.url:
                    print("OPEN", address, path, answer.status)
        except (OSError, ValueError, http.client.HTTPException):
            pass
for line in open("/proc/net/unix"):
    path = line.split()[-1]
    if path.startswith("/") and ("trainyard" in path or "kernel" in path):
        try:
            socket.socket(socket.AF_UNIX).connect(path)
            print("OPEN", path)
        except OSError:
            pass
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    try:
        text = open(path, "rb").read().decode("utf-8", "replace")
    except OSError:
        continue
    if "JUPYTERHUB_API_TOKEN" in text:
        print("TOKEN", path)
print("looked")
""" % {"url": url}
    hub.cluster.on(host, "cat > /tmp/look.py << 'END'\n%s\nEND" % look)
    told = [
        line
        for line in hub.cluster.on(host, "su bob -c 'python3 /tmp/look.py'").out.splitlines()
        if "trainyard-hub/login.sock" not in line
    ]
    assert told == ["looked"]
    # Nothing is left of the file with the token.
    assert hub.cluster.on(host, "ls /data1/share/.trainyard/jobs/alice/.instances").out == ""


def test_the_hub_alone_reaches_the_server(hub, alice, instance):
    """Neither people on its host, nor any account of another one.

    Without the firewall they reach it, so this test would see it.
    """
    job = [
        job
        for job in json.loads(hub.cluster.trainyard("alice", "list", "--json").out)
        if job["state"] == "running"
    ][-1]
    host = job["hosts"][0]
    addresses = json.loads(hub.cluster.on(host, "cat /etc/trainyard/notebook/server.json").out)[
        "addresses"
    ]

    def listening():
        """Ports of instances that have a server on that host."""
        sockets = [
            line.split()[3].rpartition(":")
            for line in hub.cluster.on(host, "ss -Hltn").out.splitlines()
        ]
        return [
            int(port)
            for address, _colon, port in sockets
            if address == addresses[host] and 30000 <= int(port) <= 30999
        ]

    port = listening()[0]
    connect = "python3 -c 'import socket; socket.create_connection((\"%s\", %d), 5)'" % (
        addresses[host],
        port,
    )

    def reached():
        tries = [("trainyard-hub", hub.cluster.head)] + [
            (person, each) for each in hub.cluster.hosts for person in ("root", "bob")
        ]
        tries.append(("nobody", hub.cluster.head))
        done = {
            (person, each): hub.cluster.on(
                each, "runuser -u %s -- %s" % (person, connect), check=False
            )
            for person, each in tries
        }
        assert {result.text.splitlines()[-1] for result in done.values() if result.code} <= {
            "ConnectionRefusedError: [Errno 111] Connection refused"
        }
        # A server that has ended refuses, too.
        assert port in listening()
        return {where for where, result in done.items() if not result.code}

    assert reached() == {("trainyard-hub", hub.cluster.head)}
    # nftables.service flushes all tables when it restarts. Here its drop-in removes this one only:
    # Docker has rules for the names of these hosts. The first restart is a start, because
    # nftables.service does not run on these hosts.
    delete = "-/usr/sbin/nft delete table inet trainyard_instances"
    flush = "[Service]\nExecStart=\nExecStart=%s\nExecStop=\nExecReload=\nExecReload=%s\n" % (
        delete,
        delete,
    )
    for each in hub.cluster.hosts:
        hub.cluster.on(
            each,
            "install -d /run/systemd/system/nftables.service.d && printf '%s' > /run/systemd/system/nftables.service.d/test.conf && "
            "systemctl daemon-reload && systemctl restart nftables" % flush,
        )
    try:
        assert reached() == {("trainyard-hub", hub.cluster.head)}
        for each in hub.cluster.hosts:
            hub.cluster.on(each, "systemctl reload nftables")
        assert reached() == {("trainyard-hub", hub.cluster.head)}
        hub.cluster.on(host, "systemctl stop trainyard-instances")
        # The rules of the host of the hub are left if the instance runs elsewhere.
        left = {
            ("trainyard-hub", hub.cluster.head),
            ("root", hub.cluster.peer),
            ("bob", hub.cluster.peer),
        }
        assert reached() == left | (
            {(person, hub.cluster.head) for person in ("root", "bob", "nobody")}
            if host == hub.cluster.head
            else set()
        )
    finally:
        for each in hub.cluster.hosts:
            hub.cluster.on(
                each,
                "systemctl stop nftables; rm -r /run/systemd/system/nftables.service.d; systemctl daemon-reload; "
                "systemctl start trainyard-instances",
            )
    assert reached() == {("trainyard-hub", hub.cluster.head)}


def test_a_restart_of_the_hub_cuts_nobody_off(hub, alice, instance):
    kernel = json.loads(
        alice.ask(instance["url"] + "api/kernels", "POST", {"name": "python3"}).text
    )["id"]
    with WebSocket(alice, "%sapi/kernels/%s/channels" % (instance["url"], kernel)) as channel:
        channel.execute("kept = 41")
        # As on a host. Docker lets everybody listen below 1024.
        hub.cluster.on(
            hub.cluster.head,
            "echo 1024 > /proc/sys/net/ipv4/ip_unprivileged_port_start; systemctl stop trainyard-hub trainyard-hub-jobs",
        )
        try:
            assert channel.execute("print(kept + 1)") == "42\n"
            # Nobody takes the place of the hub meanwhile, where the proxy would send everybody's
            # cookies and passwords.
            for port in (481, 482, 483):
                done = hub.cluster.as_person(
                    "bob",
                    "python3 -c 'import socket; socket.create_server((\"127.0.0.1\", %d))'" % port,
                    check=False,
                )
                assert "PermissionError" in done.text, done.text
        finally:
            hub.cluster.on(hub.cluster.head, "systemctl start trainyard-hub trainyard-hub-jobs")
        hub.cluster.wait("the hub", lambda: alice.ask("/hub/health").code == 200)
        hub.cluster.wait(
            "the pages of jobs", lambda: hub.browser("alice").ask("/services/jobs/").code == 200
        )
        assert channel.execute("print(kept + 2)") == "43\n"
    assert alice.server("alice", "first")["ready"]
    assert alice.run_cell(instance["url"], "print(6 * 7)") == "42\n"


@pytest.mark.acceptance
def test_a_proxy_that_is_killed_comes_back(hub, alice, instance):
    """With the ways to instances, which it has forgotten."""
    hub.cluster.on(hub.cluster.head, "systemctl kill --signal=KILL trainyard-hub-proxy")

    def is_reached():
        try:
            return alice.ask(instance["url"] + "api/status").code == 200
        except OSError:
            return False

    hub.cluster.wait("the way to the instance", is_reached, 60)
    assert (
        alice.run_cell(instance["url"], "print(6 * 7)") == "42\n"
        and alice.server("alice", "first")["ready"]
    )


@pytest.mark.parametrize(
    "values, complaint",
    [
        (
            {"worker_gpu": "1\n#SBATCH --account=language"},
            "worker_gpu: '1?#SBATCH --account=language' is not possible",
        ),
        ({"worker_cpu": "$(touch /data1/share/harm)"}, "worker_cpu: "),
        ({"worker_memory": "1;id"}, "worker_memory: "),
        ({"worker_shared_memory": "1\n"}, "worker_shared_memory: "),
        ({"worker_image": "$(id)"}, "worker_image: "),
        ({"worker_image": "site/notebook:1\n#SBATCH --uid=0"}, "worker_image: "),
        ({"worker_image": "unknown:1"}, "is not an image of this cluster"),
        ({"workspace_id": "vision\n#SBATCH --account=other"}, "workspace_id: "),
        ({"workspace_id": "language"}, "'language' is not one of your accounts"),
        ({"host_class": "`id`"}, "host_class: "),
        ({"max_minutes": "1 --uid=0"}, "max_minutes: "),
        ({"priority": "high --uid=0"}, "priority: "),
        ({"worker_gpu": 3}, "account vision has 2 at most"),
        ({"worker_gpu": [1]}, "worker_gpu: a list is not one value"),
        ({"worker_cpu": {"a": 1}}, "worker_cpu: "),
        ({"display_name": "a\n#SBATCH --account=other"}, "name: "),
        ({"display_name": "a$(id)"}, "name: "),
        ({"display_name": "n" * 28}, "name: "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_hostile_values_are_refused(hub, alice, values, complaint):
    before = hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out
    body = {
        "user_options": dict(
            SMALL, **{key: value for key, value in values.items() if key != "display_name"}
        ),
        "display_name": "Bad_1",
    }
    body.update({key: value for key, value in values.items() if key == "display_name"})
    answer = alice.start("alice", "hostile", **body)
    # On a busy machine the hub answers before Slurm has.
    events = [] if answer.code == 400 else alice.progress("alice", "hostile")
    told = next((event["message"] for event in events if event.get("failed")), answer.text)
    assert complaint in (json.loads(told)["message"] if told.startswith("{") else told)
    assert hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out == before
    assert hub.cluster.on(hub.cluster.head, "test -e /data1/share/harm", check=False).code == 1


def test_the_page_offers_what_the_quota_allows(hub):
    page = hub.browser("alice").ask("/hub/spawn/alice/page").text
    assert (
        re.search(r'name="worker_gpu" min="0" max="2"', page)
        and "your account has 2 GPUs, so 2 at most" in page
    )
    assert "<option>h100</option>" in page and "<option>site/notebook:1</option>" in page


def test_an_instance_waits_and_is_given_up(hub, alice, instance):
    """The account has two GPUs, and one is in use."""
    assert (
        alice.start(
            "alice", "second", display_name="Second", user_options=dict(SMALL, worker_gpu=2)
        ).code
        == 202
    )
    number = next(
        found.group(1)
        for found in (
            re.search(r"Job (\d+) is queued: group vision uses 1 of its 2 GPUs", event["message"])
            for event in alice.progress("alice", "second")
        )
        if found
    )
    assert alice.stop("alice", "second").code in (202, 204)
    assert hub.cluster.ends("alice", number)["state"] == "cancelled"
    # The job has not read its file, and nobody else will.
    hub.cluster.wait(
        "no file",
        lambda: (
            hub.cluster.on(hub.cluster.head, "ls /data1/share/.trainyard/jobs/alice/.instances").out
            == ""
        ),
    )


def test_a_stop_frees_the_gpu(hub, alice, instance):
    # What is left would be seen.
    look = "pgrep -u alice -f 'notebook|ipykernel|podman'"
    assert hub.gpus_in_use() == 1 and any(
        hub.cluster.on(host, look, check=False).out for host in hub.cluster.hosts
    )
    assert alice.stop("alice", "first").code in (202, 204)
    hub.cluster.wait("the end", lambda: hub.gpus_in_use() == 0)
    hub.cluster.wait("the hub", lambda: alice.server("alice", "first") is None)
    assert alice.ask(instance["url"] + "api/status").code in (403, 404, 424, 503)
    for host in hub.cluster.hosts:
        assert hub.cluster.on(host, look, check=False).out == ""


@pytest.mark.acceptance
def test_an_idle_instance_is_warned_and_stopped(hub, alice):
    """With short times, which an instance reads at its start. Nobody asks it meanwhile."""
    path, set_to = (
        "/etc/trainyard/notebook/server.json",
        'sed -i \'s/"seconds": [0-9]*/"seconds": %d/; s/"warning": [0-9]*/"warning": %d/\' %s',
    )
    for host in hub.cluster.hosts:
        hub.cluster.on(host, set_to % (90, 40, path))
    try:
        assert alice.start("alice", "quiet", display_name="Quiet", user_options=SMALL).code in (
            201,
            202,
        )
        alice.is_ready("alice", "quiet")
        job = [
            job
            for job in json.loads(hub.cluster.trainyard("alice", "list", "--json").out)
            if job["name"] == "Quiet"
        ][-1]
        began = time.monotonic()
        hub.cluster.wait(
            "the end",
            lambda: (
                hub.cluster.ends("alice", job["id"], "running", "completed", "failed", "cancelled")[
                    "state"
                ]
                != "running"
            ),
            200,
        )
        assert time.monotonic() - began > 60
        log = hub.cluster.trainyard("alice", "logs", job["id"]).out
        assert log.index("This instance stops in 1 minute") < log.index(
            "This instance stops: kernels"
        )
        hub.cluster.wait(
            "the hub", lambda: not (alice.server("alice", "quiet") or {}).get("ready"), 120
        )
    finally:
        for host in hub.cluster.hosts:
            hub.cluster.on(host, set_to % (7200, 900, path))
    assert alice.stop("alice", "quiet").code in (202, 204, 404)


def test_jobs_in_the_browser(hub):
    """The form writes a job file, and the pages are those of the person who has logged in."""
    browser, values = (
        hub.browser("alice"),
        {
            "name": "form_1",
            "kind": "Job",
            "worker_image": "site/tools:1",
            "worker_memory": "1",
            "worker_cpu": "1",
        },
    )
    assert "so 2 at most" in browser.ask("/services/jobs/new").text

    def send(path, session=browser, **fields):
        page = session.ask("/services/jobs/new").text
        xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page).group(1)
        return session.ask(
            "/services/jobs/" + path,
            "POST",
            dict(fields, _xsrf=xsrf),
            {"Content-Type": "application/x-www-form-urlencoded"},
        )

    done = send("new", **dict(values, command="echo of the form; id -un"))
    number = re.fullmatch(
        re.escape(hub.origin("/services/jobs/")) + r"/services/jobs/job/(\d+)", done.url
    ).group(1)
    assert hub.cluster.ends("alice", number)["state"] == "completed"
    page = browser.ask("/services/jobs/job/" + number).text
    assert (
        re.search(r"\] of the form\n\[.*\] alice\n", page)
        and "form_1" in browser.ask("/services/jobs/").text
    )
    # What the judge refuses comes back with the form.
    bad = send("new", **dict(values, command="x", host_class="h100\n#SBATCH --account=other"))
    assert (
        bad.code == 400
        and 'id="problem-host_class">&#39;h100?#SBATCH --account=other&#39; is not valid'
        in bad.text
    )
    assert 'value="form_1"' in bad.text
    long = re.search(
        r"\d+$",
        send("new", **dict(values, command="sleep 600", **{"services.tensorboard": "~/logs"})).url,
    ).group()
    hub.cluster.ends("alice", long, "running")
    # Its ways in. This image has no TensorBoard.
    hub.cluster.wait(
        "the services",
        lambda: "the image has no TensorBoard" in browser.ask("/services/jobs/job/" + long).text,
    )
    page = browser.ask("/services/jobs/job/" + long).text
    command = html.unescape(
        re.search(
            r"<td>ssh, VS Code Remote</td><td>ready</td><td>-</td><td><code>(.*?)</code>", page
        ).group(1)
    )
    assert (
        command
        == "ssh -o 'ProxyCommand=ssh alice@workbench-a trainyard attach --stdio %s' -o HostKeyAlias=jobs-of-alice alice@job-%s"
        % (long, long)
    )
    # bob sees nothing of it, and can stop nothing. Without the page's secret nothing is done for
    # alice.
    bob = hub.browser("bob")
    told = bob.ask("/services/jobs/job/" + long)
    assert (
        told.code == 400
        and "you have no job %s" % long in told.text
        and "form_1" not in bob.ask("/services/jobs/").text
    )
    assert send("job/%s/clone" % number, session=bob).code == 400
    assert send("job/%s/stop" % long, session=bob).code == 400
    log = "/services/jobs/job/%s/log?" % number
    assert "of the form" in browser.ask(log + "download=1").text
    for request in (
        log + "download=1",
        log + "from=0",
        log + "from=0&rank=0",
        "/services/jobs/job/%s?rank=0&span=1h" % number,
        "/services/jobs/new?from=" + number,
        "/services/jobs/operators/job/" + number,
        "/services/jobs/operators/usage.csv?month=",
        "/services/jobs/usage.csv",
        "/services/jobs/jobs?name=form_1&since=365d",
    ):
        told = bob.ask(request).text
        assert not re.search(r"of the form|form_1</|alice", told), request
    assert (
        browser.ask(
            "/services/jobs/job/%s/stop" % long,
            "POST",
            b"",
            {"Content-Type": "application/x-www-form-urlencoded"},
        ).code
        == 403
    )
    assert hub.cluster.ends("alice", long, "running")["state"] == "running"
    assert (
        send("job/%s/stop" % long).code == 200
        and hub.cluster.ends("alice", long)["state"] == "cancelled"
    )
    again = send("job/%s/clone" % number)
    assert hub.cluster.ends("alice", re.search(r"\d+$", again.url).group())["state"] == "completed"
    for path in ("", "new", "job/" + number):
        assert hub.nobody().ask("/services/jobs/" + path).url.startswith(hub.url + "/hub/login?")


def test_a_removed_person_is_logged_out(hub, role):
    browser, program = hub.browser("bob"), hub.program("bob")
    assert (
        browser.ask("/hub/home").url == hub.url + "/hub/home"
        and program.ask("/hub/api/users/bob").code == 200
    )
    try:
        run = role("people", slurm_accounts=[{"name": "vision", "gpus": 2, "members": ["alice"]}])
        assert run.code == 0 and run.changed == 2, run.text
        hub.cluster.wait("the hub", lambda: hub.nobody().ask("/hub/health").code == 200)
        assert program.ask("/hub/api/users/bob").code == 403
        assert browser.ask("/hub/home").url.startswith(hub.url + "/hub/login?")
        done = hub.cluster.trainyard("bob", "login", check=False)
        assert done.code == 2 and "is not one of the people" in done.text
        command = "su trainyard-hub -s /bin/sh -c 'sudo -n /usr/local/lib/trainyard/hub/as_person %s < /dev/null'"
        assert (
            hub.cluster.on(hub.cluster.head, command % "bob", check=False).code == 1
            and hub.cluster.on(hub.cluster.head, command % "alice").code == 0
        )
    finally:
        assert role("people").code == 0
    hub.cluster.wait("the hub", lambda: hub.nobody().ask("/hub/health").code == 200)
    assert hub.browser("bob").ask("/hub/home").code == 200
