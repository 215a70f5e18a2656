"""What a second person tries: alice's jobs, sessions, files and limits, from bob's account. docs/security.md names the promises."""

from __future__ import annotations

import contextlib
import json
import shlex
import time

import pytest
from browser_session import WebSocket
from test_2_hub import SMALL, Hub

# Makes as many nested folders as no path can name.
DEEP = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n"

# --- between jobs -----------------------------------------------------------------------------------------------------------

#: A stand-in for a launcher's store: the first worker keeps what arrives at its port, and the second one sends it something.
STORE = """
import os, socket, sys, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["TRAINYARD_WORKER_INDEX"] == "1":
    deadline = time.time() + 60
    while time.time() < deadline:
        try:
            with socket.create_connection(address, 5) as connection:
                connection.sendall(b"second worker")
            break
        except OSError:
            time.sleep(0.2)
    sys.exit(0)
server = socket.create_server(address)
server.settimeout(60)
open(sys.argv[1], "w").write("%s %d" % address)
while not os.path.exists(sys.argv[1] + ".end"):
    connection = server.accept()[0]
    print("got:", connection.recv(99).decode(), flush=True)
    connection.close()
"""
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).sendall(b'of bob')"


def test_a_second_person_does_not_reach_the_store_of_a_job(cluster):
    """From the login host, from a job of his own on the host of the store, and from a container there."""
    folder = "/data1/share/user/alice"
    cluster.as_person("alice", "rm -f %s/address* && printf %%s %s > %s/store.py" % (folder, shlex.quote(STORE), folder))
    cluster.as_person("alice", "srun --nodes=2 --ntasks-per-node=1 --gpus=0 --mem=200M trainyard-run site/tools:1 -- python3 %s/store.py %s/address "
                               "> %s/store.log 2>&1 < /dev/null &" % (folder, folder, folder))
    try:
        deadline = time.monotonic() + 60
        while not cluster.on(cluster.head, "cat %s/address" % folder, check=False).out:
            assert time.monotonic() < deadline, cluster.on(cluster.head, "cat %s/store.log" % folder, check=False).text
            time.sleep(0.5)
        address, port = cluster.on(cluster.head, "cat %s/address" % folder).out.split()
        knock = "python3 -c %s %s %s" % (shlex.quote(KNOCK), address, port)
        own = "srun --nodelist=%s --gpus=0 --mem=200M " % cluster.head
        for command in (knock, own + knock, own + "trainyard-run site/tools:1 -- " + knock):
            done = cluster.as_person("bob", command, check=False)
            assert done.code != 0 and "ConnectionRefusedError" in done.text, done.text
    finally:
        cluster.as_person("alice", "touch %s/address.end; scancel --user=alice --full; sleep 3" % folder, check=False)
    assert cluster.on(cluster.head, "grep got: %s/store.log" % folder).out.splitlines() == ["got: second worker"]
    for host in cluster.hosts:
        assert "to_" not in cluster.on(host, "nft list table inet trainyard_jobs | grep -E 'to_[0-9]' || true").out


# --- in the browser: identity of instances -----------------------------------------------------------------------------------

#: What bob runs: it takes a port as soon as it can, answers each request, and writes down what it gets. With a file it speaks TLS by the identity in it.
TAKES_THE_PORT = """
import http.server, json, ssl, sys, time
address, port, identity = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def write(name, text):
    with open("/home/bob/" + name, "a") as stream:
        stream.write(text + chr(10))
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        write("got", self.requestline + str(self.headers))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"of bob")
    do_POST = do_GET
    def log_error(self, *words):
        write("refused", "no HTTP")
class Server(http.server.ThreadingHTTPServer):
    def finish_request(self, request, client):
        request.settimeout(20)
        if identity:
            request = context.wrap_socket(request, server_side=True)
        super().finish_request(request, client)
    def handle_error(self, request, client):
        write("refused", str(sys.exc_info()[1]))
if identity:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity[0])
while True:
    try:
        server = Server((address, port), Page)
        break
    except OSError:
        time.sleep(0.02)
write("bound", str(time.time()))
server.serve_forever()
"""


class Attack:
    """Instances on the first host, where both people are, and programs of bob beside them."""

    def __init__(self, cluster):
        self.cluster, self.hub, self.host = cluster, Hub(cluster), cluster.head
        self.people = {person: self.hub.program(person) for person in ("alice", "bob")}
        self.address = json.loads(cluster.on(self.host, "cat /etc/trainyard/notebook/server.json").out)["addresses"][self.host]
        cluster.on(self.host, "cat > /home/bob/takes.py <<'END'\n%s\nEND\nchown bob /home/bob/takes.py" % TAKES_THE_PORT)

    def start(self, person, name):
        """An instance on the first host: its address for browsers, the number of its job, the process of JupyterLab, and its port."""
        session = self.people[person]
        with self.cluster.out_of_service(self.cluster.peer):
            assert session.start(person, name, display_name=name, user_options=SMALL).code in (201, 202)
            url = session.is_ready(person, name)["url"]
        job = next(job for job in json.loads(self.cluster.trainyard(person, "list", "--json").out) if job["name"] == name and job["state"] == "running")["id"]
        pid = int(self.cluster.on(self.host, "pgrep -u %s -f '[j]upyterhub-singleuser.*' | head -n 1" % person).out)
        port = int(self.cluster.on(self.host, "ss -Hltnp | sed -n 's/.*%s:\\([0-9]*\\) .*pid=%d,.*/\\1/p'" % (self.address, pid)).out)
        return url, job, pid, port

    def stop(self, person, name):
        self.people[person].stop(person, name)

    def identity_of_bob(self):
        """What bob has of an instance of his own: the file that his job has not read yet. It is his, so he may."""
        bob = self.people["bob"]
        with self.cluster.out_of_service(*self.cluster.hosts):
            assert bob.start("bob", "key", display_name="key", user_options=SMALL).code == 202
            folder = self.cluster.folder + "/bob/.instances"
            self.cluster.wait("the file", lambda: self.cluster.on(self.host, "ls %s" % folder, check=False).out)
            secret = json.loads(self.cluster.as_person("bob", "cat %s/*.json" % folder).out)["identity"]
            self.stop("bob", "key")
        self.cluster.wait("the end", lambda: bob.server("bob", "key") is None)
        self.cluster.on(self.host, "printf %%s %s > /home/bob/own.pem; chown bob /home/bob/own.pem" % shlex.quote(secret["certificate"] + secret["key"]))
        return "/home/bob/own.pem"

    @contextlib.contextmanager
    def beside(self, port, identity=""):
        """bob's program, which waits for the port."""
        self.cluster.on(self.host, "cd /home/bob && rm -f got bound refused")
        # As bob's shell on the login host has it: not in a job.
        self.cluster.on(self.host, "systemd-run --quiet --unit=of-bob --uid=bob --working-directory=/home/bob python3 takes.py %s %d %s" % (
            self.address, port, identity))
        try:
            yield
        finally:
            self.cluster.on(self.host, "systemctl stop of-bob", check=False)

    def read(self, name):
        return self.cluster.on(self.host, "cat /home/bob/" + name, check=False).out

    def when_bound(self):
        self.cluster.wait("bob's program on the port", lambda: self.read("bound"), 90)
        return float(self.read("bound"))

    def until_ended(self, pid):
        """Wait for the end of JupyterLab. It frees its port before. Return when it had ended."""
        self.cluster.wait("the end of JupyterLab", lambda: self.cluster.on(self.host, "test -e /proc/%d" % pid, check=False).code, 90)
        return time.time()

    def routes(self):
        """What the proxy knows, as it tells the hub."""
        return self.cluster.on(self.host, ". /etc/trainyard/hub/proxy.env && curl --silent --header \"Authorization: token $CONFIGPROXY_AUTH_TOKEN\" "
                                          "http://127.0.0.1:483/api/routes").out

    def until_gone(self, name):
        """Wait until the proxy has no route of an instance. Return when it was gone."""
        self.cluster.wait("the end of the route", lambda: "/%s" % name not in self.routes(), 90)
        return time.time()

    def asks(self, person, url):
        """Ask as an open tab does, with the token of its person: pages, and the websocket of a kernel. Nobody of bob's may answer."""
        session = self.people[person]
        for _request in range(5):
            answer = session.ask(url + "api/status")
            assert answer.code != 200 and "of bob" not in answer.text, answer.text
        with pytest.raises(AssertionError, match="HTTP status"), WebSocket(session, url + "api/kernels/none/channels"):
            pass


@pytest.fixture(name="attack")
def _attack(cluster):
    attack = Attack(cluster)
    yield attack
    for person in ("alice", "bob"):
        for name in ("victim", "own"):
            attack.stop(person, name)


def test_the_port_of_an_ended_instance_gets_no_request(attack):
    """bob binds it, also with the certificate of an instance of his own on the same host. The route is gone within 5 seconds."""
    identity = attack.identity_of_bob()
    url, job, pid, port = attack.start("alice", "victim")
    assert attack.people["alice"].ask(url + "api/status").code == 200 and "/victim" in attack.routes()
    with attack.beside(port, identity):
        attack.cluster.on(attack.host, "scancel %s" % job)
        attack.when_bound()
        attack.asks("alice", url)
        ended = attack.until_ended(pid)
        assert attack.until_gone("victim") - ended < 5
        attack.asks("alice", url)
        # The proxy or the hub asked who is there, and gave up.
        assert attack.read("got") == "" and "EOF" in attack.read("refused")


@pytest.mark.acceptance
@pytest.mark.parametrize("with_identity", [True, False])
def test_without_the_hub_the_identity_protects(attack, with_identity):
    """Nothing removes the route meanwhile."""
    identity = attack.identity_of_bob() if with_identity else ""
    url, job, _pid, port = attack.start("alice", "victim")
    attack.cluster.on(attack.host, "systemctl stop trainyard-hub")
    try:
        with attack.beside(port, identity):
            attack.cluster.on(attack.host, "scancel %s" % job)
            attack.when_bound()
            assert "/victim" in attack.routes()
            attack.asks("alice", url)
            attack.cluster.on(attack.host, "systemctl start trainyard-hub")
            attack.cluster.wait("the hub", lambda: attack.hub.nobody().ask("/hub/health").code == 200)
            attack.until_gone("victim")
            attack.asks("alice", url)
            assert attack.read("got") == "" and attack.read("refused")
    finally:
        attack.cluster.on(attack.host, "systemctl start trainyard-hub")
        attack.cluster.wait("the hub", lambda: attack.hub.nobody().ask("/hub/health").code == 200)


@pytest.mark.acceptance
def test_a_replaced_program_loses_its_route(attack):
    """bob ends JupyterLab in his running job and takes its port. alice opens his address."""
    url, job, pid, port = attack.start("bob", "own")
    with attack.beside(port):
        # The batch script would end the job.
        attack.cluster.as_person("bob", "kill -STOP $(ps -o ppid= %d); kill -KILL %d" % (pid, pid))
        bound = attack.when_bound()
        assert attack.until_gone("own") - bound < 5
        assert attack.cluster.ends("bob", job, "running")["state"] == "running"
        attack.asks("bob", url)
        assert attack.read("got") == ""
    assert attack.people["bob"].stop("bob", "own").code in (202, 204)


@pytest.mark.acceptance
@pytest.mark.parametrize("kill", ["kill -STOP %(pid)d", "kill -STOP $(ps -o ppid= %(pid)d)", "kill -STOP $(ps -o ppid= %(pid)d) %(pid)d"])
def test_an_idle_instance_ends_although_its_watch_is_stopped(attack, kill):
    """The health program of the host looks, too. The instance keeps the limits of its start, and does not end itself."""
    path, limit = "/etc/trainyard/notebook/server.json", "sed -i '/\"idle\"/,/}/s/\"seconds\": [0-9]*/\"seconds\": %d/' %s"
    _url, job, pid, _port = attack.start("bob", "own")
    attack.cluster.as_person("bob", kill % {"pid": pid})
    health = "SLURMD_NODENAME=%s /usr/local/lib/trainyard/slurm/health" % attack.host
    try:
        attack.cluster.on(attack.host, limit % (10, path))
        for _look in range(20):
            attack.cluster.on(attack.host, health)
            if attack.cluster.ends("bob", job, "running", "cancelled")["state"] != "running":
                break
            time.sleep(5)
        assert attack.cluster.ends("bob", job, seconds=90)["state"] == "cancelled"
        assert "its own watch has not ended it" in attack.cluster.on(attack.host, "journalctl --no-pager --output=cat --since=-5min").out
    finally:
        attack.cluster.on(attack.host, limit % (7200, path))


# --- in the browser: pages, tokens and helpers ------------------------------------------------------------------------------


# --- on the hosts -----------------------------------------------------------------------------------------------------------

def test_what_a_job_leaves_keeps_no_node_out_of_service(cluster):
    script = "for top in /tmp /dev/shm; do mkdir $top/left && cd $top/left && python3 -c \"%s\"; done; mkdir '/tmp/a\nb' /tmp/closed; chmod 0 /tmp/closed" % DEEP
    cluster.as_person("bob", "srun --nodelist=%s --mem=200M sh -c %s" % (cluster.peer, shlex.quote(script)))
    cluster.nothing_left("bob")
    assert cluster.on(cluster.head, "sinfo --noheader --nodes=%s --format %%T" % cluster.peer).out.strip() == "idle"
    assert cluster.on(cluster.peer, "ls /run/trainyard/epilog.failed; find /tmp -maxdepth 1 -user bob", check=False).out == ""


def test_cron_and_at_are_refused_on_training_hosts(cluster):
    for host in cluster.hosts:
        assert "bob" not in cluster.on(host, "cat /etc/cron.allow /etc/at.allow").out.split()



# --- people who leave, and limits -------------------------------------------------------------------------------------------
