"""What a second person tries: alice's jobs, sessions, files and limits, from bob's account.
docs/security.md names the promises.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import datetime
import http.server
import json
import shlex
import ssl
import subprocess
import threading
import time

import pytest
from browser_session import WebSocket
from test_2_hub import SMALL, Hub
from test_3_browser import log_in
from web_driver import _driver

__all__ = ["_driver"]

# Makes as many nested folders as no path can name.
DEEP = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n"

# --- between jobs -----------------------------------------------------------------------------------------------------------

#: A stand-in for a launcher's store: the first worker keeps what arrives at its port, and the
#: second one sends it something.
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
    """From the login host, from a job of his own on the host of the store, and from a container
    there.
    """
    folder = "/data1/share/user/alice"
    cluster.as_person(
        "alice",
        "rm -f %s/address* && printf %%s %s > %s/store.py" % (folder, shlex.quote(STORE), folder),
    )
    cluster.as_person(
        "alice",
        "srun --nodes=2 --ntasks-per-node=1 --gpus=0 --mem=200M trainyard-run site/tools:1 -- python3 %s/store.py %s/address "
        "> %s/store.log 2>&1 < /dev/null &" % (folder, folder, folder),
    )
    try:
        deadline = time.monotonic() + 60
        while not cluster.on(cluster.head, "cat %s/address" % folder, check=False).out:
            assert time.monotonic() < deadline, cluster.on(
                cluster.head, "cat %s/store.log" % folder, check=False
            ).text
            time.sleep(0.5)
        address, port = cluster.on(cluster.head, "cat %s/address" % folder).out.split()
        knock = "python3 -c %s %s %s" % (shlex.quote(KNOCK), address, port)
        own = "srun --nodelist=%s --gpus=0 --mem=200M " % cluster.head
        for command in (knock, own + knock, own + "trainyard-run site/tools:1 -- " + knock):
            done = cluster.as_person("bob", command, check=False)
            assert done.code != 0 and "ConnectionRefusedError" in done.text, done.text
    finally:
        cluster.as_person(
            "alice",
            "touch %s/address.end; scancel --user=alice --full; sleep 3" % folder,
            check=False,
        )
    assert cluster.on(cluster.head, "grep got: %s/store.log" % folder).out.splitlines() == [
        "got: second worker"
    ]
    for host in cluster.hosts:
        assert (
            "to_"
            not in cluster.on(
                host, "nft list table inet trainyard_jobs | grep -E 'to_[0-9]' || true"
            ).out
        )


# --- in the browser: identity of instances -----------------------------------------------------------------------------------

#: What bob runs: it takes a port as soon as it can, answers each request, and writes down what it
#: gets. With a file it speaks TLS by the identity in it.
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
        self.address = json.loads(
            cluster.on(self.host, "cat /etc/trainyard/notebook/server.json").out
        )["addresses"][self.host]
        cluster.on(
            self.host,
            "cat > /home/bob/takes.py <<'END'\n%s\nEND\nchown bob /home/bob/takes.py"
            % TAKES_THE_PORT,
        )

    def start(self, person, name):
        """An instance on the first host: its address for browsers, the number of its job, the
        process of JupyterLab, and its port.
        """
        session = self.people[person]
        with self.cluster.out_of_service(self.cluster.peer):
            assert session.start(person, name, display_name=name, user_options=SMALL).code in (
                201,
                202,
            )
            session.is_ready(person, name)
        job = next(
            job
            for job in json.loads(self.cluster.trainyard(person, "list", "--json").out)
            if job["name"] == name and job["state"] == "running"
        )["id"]
        pid = int(
            self.cluster.on(
                self.host, "pgrep -u %s -f '[j]upyterhub-singleuser.*' | head -n 1" % person
            ).out
        )
        port = int(
            self.cluster.on(
                self.host,
                "ss -Hltnp | sed -n 's/.*%s:\\([0-9]*\\) .*pid=%d,.*/\\1/p'" % (self.address, pid),
            ).out
        )
        return "/user/%s/%s/" % (person, name), job, pid, port

    def stop(self, person, name):
        self.people[person].stop(person, name)

    def identity_of_bob(self):
        """What bob has of an instance of his own: the file that his job has not read yet.

        It is his, so he may.
        """
        bob = self.people["bob"]
        with self.cluster.out_of_service(*self.cluster.hosts):
            assert bob.start("bob", "key", display_name="key", user_options=SMALL).code == 202
            folder = self.cluster.folder + "/bob/.instances"
            self.cluster.wait(
                "the file", lambda: self.cluster.on(self.host, "ls %s" % folder, check=False).out
            )
            secret = json.loads(self.cluster.as_person("bob", "cat %s/*.json" % folder).out)[
                "identity"
            ]
            self.stop("bob", "key")
        self.cluster.wait("the end", lambda: bob.server("bob", "key") is None)
        self.cluster.on(
            self.host,
            "printf %%s %s > /home/bob/own.pem; chown bob /home/bob/own.pem"
            % shlex.quote(secret["certificate"] + secret["key"]),
        )
        return "/home/bob/own.pem"

    @contextlib.contextmanager
    def beside(self, port, identity=""):
        """bob's program, which waits for the port."""
        self.cluster.on(self.host, "cd /home/bob && rm -f got bound refused")
        # As bob's shell on the login host has it: not in a job.
        self.cluster.on(
            self.host,
            "systemd-run --quiet --unit=of-bob --uid=bob --working-directory=/home/bob python3 takes.py %s %d %s"
            % (self.address, port, identity),
        )
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
        self.cluster.wait(
            "the end of JupyterLab",
            lambda: self.cluster.on(self.host, "test -e /proc/%d" % pid, check=False).code,
            90,
        )
        return time.time()

    def routes(self):
        """What the proxy knows, as it tells the hub."""
        ask = (
            "import os, urllib.request as web; told = web.Request('http://127.0.0.1:483/api/routes', "
            "headers={'Authorization': 'token ' + os.environ['CONFIGPROXY_AUTH_TOKEN']}); print(web.urlopen(told).read().decode())"
        )
        return self.cluster.on(
            self.host, 'set -a && . /etc/trainyard/hub/proxy.env && python3 -c "%s"' % ask
        ).out

    def until_gone(self, name, seconds=90):
        """Wait until the proxy has no route of an instance. Return when it was gone."""
        self.cluster.wait(
            "the end of the route", lambda: "/%s" % name not in self.routes(), seconds
        )
        return time.time()

    def asks(self, person, url):
        """Ask as an open tab does, with the token of its person: pages, and the websocket of a
        kernel. Nobody of bob's may answer.
        """
        session = self.people[person]
        for _request in range(5):
            answer = session.ask(url + "api/status")
            assert answer.code != 200 and "of bob" not in answer.text, answer.text
        with (
            pytest.raises(AssertionError, match="HTTP status"),
            WebSocket(session, url + "api/kernels/none/channels"),
        ):
            pass


@pytest.fixture(name="attack")
def _attack(cluster):
    attack = Attack(cluster)
    yield attack
    for person in ("alice", "bob"):
        for name in ("victim", "own"):
            attack.stop(person, name)


def test_the_port_of_an_ended_instance_gets_no_request(attack):
    """bob binds it, also with the certificate of an instance of his own on the same host.

    The route is gone within 5 seconds.
    """
    identity = attack.identity_of_bob()
    url, job, pid, port = attack.start("alice", "victim")
    assert (
        attack.people["alice"].ask(url + "api/status").code == 200 and "/victim" in attack.routes()
    )
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
            attack.cluster.wait(
                "the hub", lambda: attack.hub.nobody().ask("/hub/health").code == 200
            )
            # A hub that starts while Slurm still reports the job waits for it, at most
            # http_timeout.
            attack.until_gone("victim", 150)
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
@pytest.mark.parametrize(
    "kill",
    [
        "kill -STOP %(pid)d",
        "kill -STOP $(ps -o ppid= %(pid)d)",
        "kill -STOP $(ps -o ppid= %(pid)d) %(pid)d",
    ],
)
def test_an_idle_instance_ends_although_its_watch_is_stopped(attack, kill):
    """The health program of the host looks, too.

    The instance keeps the limits of its start, and does not end itself.
    """
    path, limit = (
        "/etc/trainyard/notebook/server.json",
        'sed -i \'/"idle"/,/}/s/"seconds": [0-9]*/"seconds": %d/\' %s',
    )
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
        assert (
            "job %s did not end itself" % job
            in attack.cluster.on(
                attack.host, "journalctl --no-pager --output=cat --since=-5min"
            ).out
        )
    finally:
        attack.cluster.on(attack.host, limit % (7200, path))


# --- in the browser: pages, tokens and helpers ------------------------------------------------------------------------------

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# What Chromium sends for a script of bob's page, and for a form of it.
OF_SCRIPT = {
    "Origin": "https://bob.hub.test",
    "Referer": "https://bob.hub.test/",
    "Sec-Fetch-Site": "same-site",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Dest": "empty",
}
OF_FORM = dict(OF_SCRIPT, **{"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"})
IN_DATABASE = "import sqlite3; found = sqlite3.connect('/var/lib/trainyard/hub/jupyterhub.sqlite', isolation_level=None); "
# A cookie of a login of alice, so many seconds old. The key is the hub's.
COOKIE = (
    IN_DATABASE
    + """
import time
from tornado.web import create_signed_value
secret = bytes.fromhex(open('/var/lib/trainyard/hub/cookie_secret').read().strip())
(number,), = found.execute("SELECT cookie_id FROM users WHERE name = 'alice'")
for age in (80000, 90000):
    print(create_signed_value(secret, '__Host-jupyterhub-hub-login', number, clock=lambda: time.time() - age).decode())
"""
)


@pytest.fixture(scope="module", name="hub")
def _hub(cluster):
    return Hub(cluster)


def in_hub(hub, code):
    return hub.cluster.on(
        hub.cluster.head,
        "/usr/local/lib/trainyard/hub/environment/bin/python -c %s" % shlex.quote(code),
    ).out


def restart(hub):
    hub.cluster.on(hub.cluster.head, "systemctl restart trainyard-hub")
    hub.cluster.wait("the hub", lambda: hub.nobody().ask("/hub/health").code == 200)


def test_cookies_of_the_hub_are_of_its_host_alone(hub):
    alice = hub.browser("alice")
    assert alice.ask("/services/jobs/").code == 200
    logins = {
        cookie.name: cookie
        for cookie in alice.jar
        if "login" in cookie.name or cookie.name.endswith("service-jobs")
    }
    found = {
        name: (cookie.domain, cookie.domain_specified, cookie.path, cookie.secure)
        for name, cookie in logins.items()
    }
    # Pages below the name of the hub can neither read a cookie with this prefix nor put another one
    # in its place.
    assert found == {
        "__Host-jupyterhub-hub-login": ("hub.test", False, "/", True),
        "__Host-service-jobs": ("jobs--service.hub.test", False, "/", True),
    }


def test_pages_of_another_host_learn_nothing_and_change_nothing(hub):
    """What a script or a form of bob's page sends with the cookies of alice.
    test_a_page_of_bob_in_the_browser_of_alice does it in Chromium.
    """
    alice = hub.browser("alice")
    number = hub.cluster.submit(
        "alice", "name: kept\nworker_image: site/tools:1\nworker_memory: 1\ncommand: sleep 600\n"
    )
    try:
        assert alice.ask("/services/jobs/job/" + number).code == 200
        for path in (
            "/hub/token",
            "/hub/home",
            "/hub/api/user",
            "/services/jobs/",
            "/services/jobs/job/" + number,
            "/hub/nothing",
        ):
            answer = alice.ask(path, headers=OF_SCRIPT)
            # Without these headers no browser shows a script of another host the answer.
            assert "Access-Control-Allow-Origin" not in answer.headers, path
            assert "Access-Control-Allow-Credentials" not in answer.headers, path
            assert path.startswith("/hub/api") <= (answer.code == 403), (path, answer.code)
            assert "frame-ancestors" in answer.headers["Content-Security-Policy"], path
        before = hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out
        for headers in (OF_SCRIPT, OF_FORM):
            for path in (
                "/hub/api/users/alice/tokens",
                "/hub/api/users/alice/servers/of-bob",
                "/hub/spawn/alice/of-bob",
            ):
                assert alice.ask(
                    path, "POST", b"{}", dict(headers, **{"Content-Type": "text/plain"})
                ).code in (400, 403), path
            for path in ("new", "job/%s/stop" % number, "job/%s/clone" % number):
                assert (
                    alice.ask(
                        "/services/jobs/" + path,
                        "POST",
                        b"name=x&command=id",
                        dict(headers, **FORM),
                    ).code
                    == 403
                ), path
        assert hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out == before
    finally:
        hub.cluster.trainyard("alice", "stop", number)
    hub.cluster.ends("alice", number)


def test_browsers_are_told_to_use_tls_only(hub):
    alice = hub.browser("alice")
    for path in (
        "/hub/login",
        "/hub/home",
        "/hub/nothing",
        "/hub/api/nothing",
        "/hub/error/503",
        "/services/jobs/",
        "/services/jobs/none",
        "/services/jobs/job/999999999",
    ):
        assert (
            alice.ask(path).headers["Strict-Transport-Security"]
            == "max-age=15552000; includeSubDomains"
        ), path


def test_a_link_of_somebody_else_shows_their_name(hub):
    """The page shows the name in the link and waits for a click.

    A link with another name is refused, also the one it was made of.
    """
    page = hub.nobody().ask("/hub/login").text
    assert "Log in as" in page and "submit()" not in page
    url, _hash, text = hub.link("bob").partition("#")
    name, _colon, token = text.rpartition(":")
    assert name == "bob"
    for forged in ("alice:" + token, token, ":" + token):
        answer = hub.nobody().post_token(forged)
        assert answer.code == 403 and "used before" in answer.text
    assert hub.nobody().log_in(url + "#" + text).code == 403
    assert hub.nobody().log_in(hub.link("bob")).code == 200


def test_tokens_and_cookies_end(hub):
    alice = hub.browser("alice")

    def make(**body):
        return alice.ask(
            "/hub/api/users/alice/tokens",
            "POST",
            body,
            {"X-XSRFToken": alice.xsrf(), "Content-Type": "application/json"},
        )

    def days(text):
        end = datetime.datetime.fromisoformat(text.rstrip("Z")).replace(
            tzinfo=datetime.timezone.utc
        )
        return (end - datetime.datetime.now(datetime.timezone.utc)).total_seconds() / 86400

    answer = make(note="for ever")
    assert answer.code == 201 and 29.9 < days(json.loads(answer.text)["expires_at"]) < 30.1
    assert make(note="long", expires_in=31 * 86400).code == 400
    # One from before the limit, and one that was made for longer.
    number = json.loads(answer.text)["id"].lstrip("a")
    in_hub(
        hub,
        IN_DATABASE
        + "found.execute('UPDATE api_tokens SET expires_at = NULL WHERE id = %s')" % number,
    )
    assert (
        in_hub(
            hub,
            IN_DATABASE
            + "print(found.execute('SELECT expires_at FROM api_tokens WHERE id = %s').fetchone())"
            % number,
        )
        == "(None,)\n"
    )
    restart(hub)
    # Without the cookies of the browser, which admit alice, too.
    program = hub.nobody()
    program.token = json.loads(answer.text)["token"]
    assert program.ask("/hub/api/user").code == 200
    token = "/hub/api/users/alice/tokens/a" + number
    assert 29.9 < days(json.loads(program.ask(token).text)["expires_at"]) < 30.1
    program.ask(token, "DELETE")
    assert program.ask("/hub/api/user").code == 403
    codes = [
        hub.nobody()
        .ask("/hub/home", headers={"Cookie": "__Host-jupyterhub-hub-login=" + value})
        .url.partition("?")[0]
        for value in in_hub(hub, COOKIE).split()
    ]
    assert codes == [hub.url + "/hub/home", hub.url + "/hub/login"]


def test_nobody_notices_what_a_person_puts_in_the_place_of_a_file(hub):
    """A pipe in the place of a log, a result of 2 GB, and 200 requests at a time.

    The helpers run as bob, who has other processes, too.
    """
    cluster, folder = hub.cluster, hub.cluster.folder + "/bob"
    number = cluster.submit(
        "bob", "name: odd\nworker_image: site/tools:1\nworker_memory: 1\ncommand: 'true'\n"
    )
    cluster.ends("bob", number)
    bob, alice = hub.browser("bob"), hub.browser("alice")
    page = "/services/jobs/job/" + number
    assert bob.ask(page).code == 200 and alice.ask("/services/jobs/").code == 200
    cluster.as_person(
        "bob",
        "cd %s && rm .out/%s.log %s/result.json && mkfifo .out/%s.log && truncate --size 2G %s/result.json"
        % ((folder,) + (number,) * 4),
    )
    begun = time.monotonic()
    answer = bob.ask(page)
    assert answer.code == 200 and time.monotonic() - begun < 20
    cookies = "; ".join(
        "%s=%s" % (cookie.name, cookie.value)
        for cookie in bob.jar
        if cookie.domain.startswith("jobs--service")
    )

    def load(_number):
        # A connection of its own: the jar of a session is for one thread.
        return hub.nobody().ask(page, headers={"Cookie": cookies}).code

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        waiting = [pool.submit(load, each) for each in range(200)]
        took = []
        while not all(each.done() for each in waiting):
            begun = time.monotonic()
            assert alice.ask("/services/jobs/").code == 200
            took.append(time.monotonic() - begun)
        codes = collections.Counter(each.result() for each in waiting)
    print(
        "200 requests of bob: %s; the page of alice: %s"
        % (dict(codes), ", ".join("%.1f s" % each for each in took))
    )
    assert set(codes) == {200, 429} and codes[429] > 100 and max(took) < 10
    helpers = "pgrep --full --uid bob '^/usr/bin/python3 .*/hub/instance' || true"
    cluster.wait("the end of the helpers", lambda: cluster.on(cluster.head, helpers).out == "")
    # They belong to the unit, whose limits are set.
    told = cluster.on(
        cluster.head,
        "systemctl show --property MemoryMax,TasksMax,OOMPolicy trainyard-hub trainyard-hub-jobs",
    ).out
    assert (
        told.count("MemoryMax=infinity") == 0
        and told.count("OOMPolicy=continue") == 2
        and told.count("TasksMax=512") == 2
    )
    # The command itself, as bob would type it.
    assert "it is not a regular file" in cluster.trainyard("bob", "logs", number, check=False).text
    cluster.as_person("bob", "rm -r %s/.out/%s.log %s/%s" % (folder, number, folder, number))


@pytest.mark.acceptance
def test_a_stopped_helper_is_killed(hub):
    """bob stops his helpers, which the hub cannot end.

    Meanwhile his turns are taken, and nobody else's.
    """
    cluster, bob, alice = hub.cluster, hub.browser("bob"), hub.browser("alice")
    for session in (bob, alice):
        assert session.ask("/services/jobs/").code == 200
    # Root keeps them from running: bob would do it in a loop.
    stop = "for try in $(seq 200); do pkill -STOP --full --uid bob '/hub/instance$' && exit; sleep 0.02; done; exit 1"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # It is answered when the helper is killed, after 140 s.
        answer = pool.submit(bob.ask, "/services/jobs/", timeout=170)
        cluster.on(cluster.head, "su bob -s /bin/bash -c %s" % shlex.quote(stop))
        begun = time.monotonic()
        assert alice.ask("/services/jobs/").code == 200
        assert answer.result().code == 503 and 100 < time.monotonic() - begun < 160
    cluster.wait(
        "the end of the helpers",
        lambda: (
            cluster.on(cluster.head, "pgrep --full --uid bob '/hub/instance$' || true").out == ""
        ),
        30,
    )
    assert bob.ask("/services/jobs/").code == 200


# A page that bob serves under a name of his own. It does all that a page can do with the cookies of
# alice, and keeps what it has learnt.
ATTACK = """<!DOCTYPE html><title>notebook</title><script>
var told = {};
async function attack(hub, jobs) {
  for (var url of [hub + "/hub/token", hub + "/hub/home", hub + "/hub/api/user", jobs + "/services/jobs/"]) {
    try {
      var answer = await fetch(url, {credentials: "include"});
      told[url] = answer.status + " " + (await answer.text()).includes("alice");
    } catch (error) {
      told[url] = "refused";
    }
  }
  for (url of [hub + "/hub/api/users/alice/tokens", jobs + "/services/jobs/new"]) {
    try {
      answer = await fetch(url, {method: "POST", credentials: "include", headers: {"Content-Type": "text/plain"}, body: "{}"});
      told["post " + url] = String(answer.status);
    } catch (error) {
      told["post " + url] = "refused";
    }
    await fetch(url, {method: "POST", credentials: "include", mode: "no-cors", body: new URLSearchParams({name: "of_bob", command: "id"})}).catch(() => 0);
  }
  for (url of [hub + "/hub/token", jobs + "/services/jobs/"]) {
    var frame = document.body.appendChild(document.createElement("iframe"));
    frame.src = url;
    await new Promise(done => { frame.onload = done; setTimeout(done, 5000); });
    try {
      told["frame " + url] = String(frame.contentDocument.body.innerText.includes("alice"));
    } catch (error) {
      told["frame " + url] = "refused";
    }
  }
  var parent = location.hostname.split(".").slice(1).join(".");
  document.cookie = "__Host-jupyterhub-hub-login=of-bob; domain=" + parent + "; path=/; secure";
  document.cookie = "_xsrf=of-bob; domain=" + parent + "; path=/; secure";
  told.cookies = document.cookie;
  return told;
}
</script><body></body>"""


@pytest.fixture(name="page_of_bob")
def _page_of_bob(tmp_path):
    """A server of bob's own on this machine, with the page at each path.

    Returns its address, for the rules of the browser.
    """
    certificate = str(tmp_path / "bob.pem")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            certificate,
            "-out",
            certificate,
            "-days",
            "1",
            "-subj",
            "/CN=bob",
            "-addext",
            "subjectAltName=DNS:bob.hub.test",
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        seen = []

        def do_GET(self):
            self.seen.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(ATTACK.encode())

        def log_message(self, *_words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "127.0.0.1:%d" % server.server_address[1], Handler.seen
    server.shutdown()


@pytest.mark.acceptance
def test_a_page_of_bob_in_the_browser_of_alice(hub, driver, page_of_bob):
    """However he gets it there, for example in the place of JupyterLab in his own instance: what
    his name serves is his.
    """
    address, seen = page_of_bob
    jobs = hub.origin("/services/jobs/")
    before = in_hub(
        hub,
        IN_DATABASE
        + "print(found.execute('SELECT count(*) FROM api_tokens WHERE session_id IS NULL').fetchone())",
    )
    queue = hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out
    with driver.open(hub.rules(**{"bob.hub.test": address})) as browser:
        log_in(browser, hub.link("alice"), "alice")
        browser.wait("the home of the hub", lambda: browser.url == hub.url + "/hub/home")
        browser.go(jobs + "/services/jobs/")
        browser.wait("the pages of jobs", lambda: "alice" in browser.text("nav"))
        browser.go("https://bob.hub.test/user/bob/x/lab")
        told = browser.run("return attack(arguments[0], arguments[1])", hub.url, jobs)
        assert (
            told.pop("cookies") == "_xsrf=of-bob"
            and len(told) == 8
            and set(told.values()) == {"refused"}
        ), told
        assert not [cookies for cookies in seen if "login" in cookies or "service-jobs" in cookies]
        assert (
            in_hub(
                hub,
                IN_DATABASE
                + "print(found.execute('SELECT count(*) FROM api_tokens WHERE session_id IS NULL').fetchone())",
            )
            == before
        )
        assert hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out == queue
        # Whatever cookie he has left behind, she still works.
        browser.go(hub.url + "/hub/home")
        assert browser.url == hub.url + "/hub/home" and "alice" in browser.text()
        # The same script within the name of the hub reads all, so it would have been seen.
        browser.run("document.open(); document.write(arguments[0]); document.close()", ATTACK)
        told = browser.run("return attack(location.origin, arguments[0])", jobs)
        assert told[hub.url + "/hub/token"] == told[hub.url + "/hub/home"] == "200 true", told


@pytest.mark.acceptance
def test_a_link_in_a_browser_waits_for_a_click(hub, driver):
    with driver.open(hub.rules()) as browser:
        browser.go(hub.link("bob"))
        assert (
            browser.wait(
                "the question",
                lambda: browser.run("return document.querySelector('#submit').value"),
            )
            == "Log in as bob"
        )
        assert "logs this browser in as bob" in browser.text() and "#" not in browser.url
        time.sleep(3)
        assert browser.url.startswith(hub.url + "/hub/login")
        browser.click("#submit")
        browser.wait("the home of the hub", lambda: browser.url == hub.url + "/hub/home")
        # A browser in which somebody is logged in stays theirs.
        browser.go(hub.link("alice"))
        browser.wait("the home of the hub", lambda: browser.url.startswith(hub.url + "/hub/home"))
        assert "bob" in browser.text() and "alice" not in browser.text()


# --- on the hosts -----------------------------------------------------------------------------------------------------------


def test_what_a_job_leaves_keeps_no_node_out_of_service(cluster):
    script = (
        "for top in /tmp /dev/shm; do mkdir $top/left && cd $top/left && python3 -c \"%s\"; done; mkdir '/tmp/a\nb' /tmp/closed; chmod 0 /tmp/closed"
        % DEEP
    )
    cluster.as_person(
        "bob", "srun --nodelist=%s --mem=200M sh -c %s" % (cluster.peer, shlex.quote(script))
    )
    cluster.nothing_left("bob")
    assert (
        cluster.on(
            cluster.head, "sinfo --noheader --nodes=%s --format %%T" % cluster.peer
        ).out.strip()
        == "idle"
    )
    assert (
        cluster.on(
            cluster.peer,
            "ls /run/trainyard/epilog.failed; find /tmp -maxdepth 1 -user bob",
            check=False,
        ).out
        == ""
    )


def test_cron_and_at_are_refused_on_training_hosts(cluster):
    for host in cluster.hosts:
        assert "bob" not in cluster.on(host, "cat /etc/cron.allow /etc/at.allow").out.split()


# --- people who leave, and limits -------------------------------------------------------------------------------------------


def test_a_person_cannot_take_all_cpus_and_sees_the_limits(cluster):
    """alice's account has 2 of the cluster's GPUs, so it has half of the 24 CPUs."""
    text = (
        "name: greedy\ncommand: sleep 600\nworker_image: site/tools:1\nworker_memory: 1\n"
        "worker_count: 2\nworker_cpu: 12\n"
    )
    done = cluster.trainyard("alice", "submit", "-", text=text, check=False)
    said = "worker_cpu: the job needs 24 CPUs (2 workers with 12 each), but account vision has 12"
    assert done.code == 2 and said in done.text, done.text
    [entry] = json.loads(cluster.trainyard("alice", "quota", "--json").out)
    found = {key: entry[key] for key in ("cpus", "memory_mib", "max_jobs", "max_submitted")}
    assert found == {"cpus": 12, "memory_mib": 16384, "max_jobs": 500, "max_submitted": 2000}
    assert entry["partition_minutes"] == 43200 and entry["registry_mib"] == 100 * 1024


# The status of a request to the registry with the login in a file of root.
ASK_REGISTRY = """
import base64, http.client, json, ssl
login = list(json.load(open("/root/former-login.json"))["auths"].values())[0]["auth"]
registry = http.client.HTTPSConnection("%s", 5000, context=ssl._create_unverified_context())
registry.request("GET", "/v2/", headers={"Authorization": "Basic " + login})
print(registry.getresponse().status)
"""


def test_a_former_person_has_no_login_at_the_registry(cluster, playbook):
    """carol, who is in no account, joins, keeps a copy of the login for the registry, and
    leaves.
    """
    people = [{"name": "alice", "uid": 2101}, {"name": "bob", "uid": 2102}]
    registry = json.loads(
        cluster.on(cluster.head, "cat /etc/trainyard/registry/people/bob.json").out
    )
    address = next(iter(registry["auths"])).partition(":")[0]
    ask = "python3 -c " + shlex.quote(ASK_REGISTRY % address)
    carol = {"name": "carol", "uid": 2103}
    try:
        assert playbook("people.yml", shared_storage_users=[*people, carol]).code == 0
        login = "/etc/trainyard/registry/people/carol.json"
        cluster.on(cluster.head, "umask 077; cp %s /root/former-login.json" % login)
        assert cluster.on(cluster.head, ask).out == "200\n"
    finally:
        assert playbook("people.yml").code == 0
    assert cluster.on(cluster.head, ask).out == "401\n"
    for host in cluster.hosts:
        assert cluster.on(host, "test -e " + login, check=False).code == 1
        assert cluster.on(host, "getent passwd carol").out.endswith("/usr/sbin/nologin\n")
    cluster.on(cluster.head, "rm /root/former-login.json")
