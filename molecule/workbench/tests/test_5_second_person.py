"""What a second person tries: alice's jobs, sessions, files and limits, from bob's account. docs/security.md names the promises."""

from __future__ import annotations

import collections
import concurrent.futures
import datetime
import http.server
import json
import shlex
import ssl
import subprocess
import threading
import time

import pytest
from test_2_hub import Hub
from test_3_browser import log_in
from web_driver import _driver

__all__ = ["_driver"]

# --- between jobs -----------------------------------------------------------------------------------------------------------


# --- in the browser: identity of instances -----------------------------------------------------------------------------------


# --- in the browser: pages, tokens and helpers ------------------------------------------------------------------------------

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# What Chromium sends for a script of bob's page, and for a form of it.
OF_SCRIPT = {"Origin": "https://bob.hub.test", "Referer": "https://bob.hub.test/", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors",
             "Sec-Fetch-Dest": "empty"}
OF_FORM = dict(OF_SCRIPT, **{"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"})
IN_DATABASE = "import sqlite3; found = sqlite3.connect('/var/lib/trainyard/hub/jupyterhub.sqlite', isolation_level=None); "
# A cookie of a login of alice, so many seconds old. The key is the hub's.
COOKIE = IN_DATABASE + """
import time
from tornado.web import create_signed_value
secret = bytes.fromhex(open('/var/lib/trainyard/hub/cookie_secret').read().strip())
(number,), = found.execute("SELECT cookie_id FROM users WHERE name = 'alice'")
for age in (80000, 90000):
    print(create_signed_value(secret, '__Host-jupyterhub-hub-login', number, clock=lambda: time.time() - age).decode())
"""


@pytest.fixture(scope="module", name="hub")
def _hub(cluster):
    return Hub(cluster)


def in_hub(hub, code):
    return hub.cluster.on(hub.cluster.head, "/usr/local/lib/trainyard/hub/environment/bin/python -c %s" % shlex.quote(code)).out


def restart(hub):
    hub.cluster.on(hub.cluster.head, "systemctl restart trainyard-hub")
    hub.cluster.wait("the hub", lambda: hub.nobody().ask("/hub/health").code == 200)


def test_cookies_of_the_hub_are_of_its_host_alone(hub):
    alice = hub.browser("alice")
    assert alice.ask("/services/jobs/").code == 200
    logins = {cookie.name: cookie for cookie in alice.jar if "login" in cookie.name or cookie.name.endswith("service-jobs")}
    found = {name: (cookie.domain, cookie.domain_specified, cookie.path, cookie.secure) for name, cookie in logins.items()}
    # Pages below the name of the hub can neither read a cookie with this prefix nor put another one in its place.
    assert found == {"__Host-jupyterhub-hub-login": ("hub.test", False, "/", True), "__Host-service-jobs": ("jobs--service.hub.test", False, "/", True)}


def test_pages_of_another_host_learn_nothing_and_change_nothing(hub):
    """What a script or a form of bob's page sends with the cookies of alice. test_a_page_of_bob_in_the_browser_of_alice does it in Chromium."""
    alice = hub.browser("alice")
    number = hub.cluster.submit("alice", "name: kept\nworker_image: site/tools:1\nworker_memory: 1\ncommand: sleep 600\n")
    try:
        assert alice.ask("/services/jobs/job/" + number).code == 200
        for path in ("/hub/token", "/hub/home", "/hub/api/user", "/services/jobs/", "/services/jobs/job/" + number, "/hub/nothing"):
            answer = alice.ask(path, headers=OF_SCRIPT)
            # Without such a header no browser shows a script of another host the answer.
            assert not [name for name in answer.headers if name.lower().startswith("access-control-allow")], path
            assert path.startswith("/hub/api") <= (answer.code == 403), (path, answer.code)
            assert "frame-ancestors" in answer.headers["Content-Security-Policy"], path
        before = hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out
        for headers in (OF_SCRIPT, OF_FORM):
            for path in ("/hub/api/users/alice/tokens", "/hub/api/users/alice/servers/of-bob", "/hub/spawn/alice/of-bob"):
                assert alice.ask(path, "POST", b"{}", dict(headers, **{"Content-Type": "text/plain"})).code in (400, 403), path
            for path in ("new", "job/%s/stop" % number, "job/%s/clone" % number):
                assert alice.ask("/services/jobs/" + path, "POST", b"name=x&command=id", dict(headers, **FORM)).code == 403, path
        assert hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out == before
    finally:
        hub.cluster.trainyard("alice", "stop", number)
    hub.cluster.ends("alice", number)


def test_browsers_are_told_to_use_tls_only(hub):
    alice = hub.browser("alice")
    for path in ("/hub/login", "/hub/home", "/hub/nothing", "/hub/api/nothing", "/hub/error/503", "/services/jobs/", "/services/jobs/none",
                 "/services/jobs/job/999999999"):
        assert alice.ask(path).headers["Strict-Transport-Security"] == "max-age=15552000; includeSubDomains", path


def test_a_link_of_somebody_else_shows_their_name(hub):
    """The page shows the name in the link and waits for a click. A link with another name is refused, also the one it was made of."""
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
        return alice.ask("/hub/api/users/alice/tokens", "POST", body, {"X-XSRFToken": alice.xsrf(), "Content-Type": "application/json"})

    def days(text):
        end = datetime.datetime.fromisoformat(text.rstrip("Z")).replace(tzinfo=datetime.timezone.utc)
        return (end - datetime.datetime.now(datetime.timezone.utc)).total_seconds() / 86400

    answer = make(note="for ever")
    assert answer.code == 201 and 29.9 < days(json.loads(answer.text)["expires_at"]) < 30.1
    assert make(note="long", expires_in=31 * 86400).code == 400
    # One from before the limit, and one that was made for longer.
    number = json.loads(answer.text)["id"].lstrip("a")
    in_hub(hub, IN_DATABASE + "found.execute('UPDATE api_tokens SET expires_at = NULL WHERE id = %s')" % number)
    assert in_hub(hub, IN_DATABASE + "print(found.execute('SELECT expires_at FROM api_tokens WHERE id = %s').fetchone())" % number) == "(None,)\n"
    restart(hub)
    alice.token = json.loads(answer.text)["token"]
    assert alice.ask("/hub/api/user").code == 200
    assert 29.9 < days(json.loads(alice.ask("/hub/api/users/alice/tokens/a" + number).text)["expires_at"]) < 30.1
    alice.ask("/hub/api/users/alice/tokens/a" + number, "DELETE")
    assert alice.ask("/hub/api/user").code == 403
    codes = [hub.nobody().ask("/hub/home", headers={"Cookie": "__Host-jupyterhub-hub-login=" + value}).url.partition("?")[0]
             for value in in_hub(hub, COOKIE).split()]
    assert codes == [hub.url + "/hub/home", hub.url + "/hub/login"]


def test_nobody_notices_what_a_person_puts_in_the_place_of_a_file(hub):
    """A pipe in the place of a log, a result of 2 GB, and 200 requests at a time. The helpers run as bob, who has other processes, too."""
    cluster, folder = hub.cluster, hub.cluster.folder + "/bob"
    number = cluster.submit("bob", "name: odd\nworker_image: site/tools:1\nworker_memory: 1\ncommand: 'true'\n")
    cluster.ends("bob", number)
    bob, alice = hub.browser("bob"), hub.browser("alice")
    page = "/services/jobs/job/" + number
    assert bob.ask(page).code == 200 and alice.ask("/services/jobs/").code == 200
    cluster.as_person("bob", "cd %s && rm .out/%s.log %s/result.json && mkfifo .out/%s.log && truncate --size 2G %s/result.json" % ((folder,) + (number,) * 4))
    begun = time.monotonic()
    answer = bob.ask(page)
    assert answer.code == 200 and time.monotonic() - begun < 20
    cookies = "; ".join("%s=%s" % (cookie.name, cookie.value) for cookie in bob.jar if cookie.domain.startswith("jobs--service"))

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
    print("200 requests of bob: %s; the page of alice: %s" % (dict(codes), ", ".join("%.1f s" % each for each in took)))
    assert set(codes) == {200, 429} and codes[429] > 100 and max(took) < 10
    helpers = "pgrep --full --uid bob '^/usr/bin/python3 .*/hub/instance' || true"
    cluster.wait("the end of the helpers", lambda: cluster.on(cluster.head, helpers).out == "")
    # They belong to the unit, whose limits are set.
    told = cluster.on(cluster.head, "systemctl show --property MemoryMax,TasksMax,OOMPolicy trainyard-hub trainyard-hub-jobs").out
    assert told.count("MemoryMax=infinity") == 0 and told.count("OOMPolicy=continue") == 2 and told.count("TasksMax=512") == 2
    # The command itself, as bob would type it.
    assert "it is not a regular file" in cluster.trainyard("bob", "logs", number, check=False).text
    cluster.as_person("bob", "rm -r %s/.out/%s.log %s/%s" % (folder, number, folder, number))


@pytest.mark.acceptance
def test_a_stopped_helper_is_killed(hub):
    """bob stops his helpers, which the hub cannot end. Meanwhile his turns are taken, and nobody else's."""
    cluster, bob, alice = hub.cluster, hub.browser("bob"), hub.browser("alice")
    for session in (bob, alice):
        assert session.ask("/services/jobs/").code == 200
    # Root keeps them from running: bob would do it in a loop.
    stop = "for try in $(seq 200); do pkill -STOP --full --uid bob '/hub/instance$' && exit; sleep 0.02; done; exit 1"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(bob.ask, "/services/jobs/")
        cluster.on(cluster.head, "su bob -s /bin/bash -c %s" % shlex.quote(stop))
        begun = time.monotonic()
        assert alice.ask("/services/jobs/").code == 200
        assert answer.result().code == 503 and 100 < time.monotonic() - begun < 160
    cluster.wait("the end of the helpers", lambda: cluster.on(cluster.head, "pgrep --full --uid bob '/hub/instance$' || true").out == "", 30)
    assert bob.ask("/services/jobs/").code == 200


# A page that bob serves under a name of his own. It does all that a page can do with the cookies of alice, and keeps what it has learnt.
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
    """A server of bob's own on this machine, with the page at each path. Returns its address, for the rules of the browser."""
    certificate = str(tmp_path / "bob.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", certificate, "-out", certificate, "-days", "1", "-subj", "/CN=bob",
                    "-addext", "subjectAltName=DNS:bob.hub.test"], check=True, stderr=subprocess.DEVNULL)

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
    """However he gets it there, for example in the place of JupyterLab in his own instance: what his name serves is his."""
    address, seen = page_of_bob
    jobs = hub.origin("/services/jobs/")
    before = in_hub(hub, IN_DATABASE + "print(found.execute('SELECT count(*) FROM api_tokens WHERE session_id IS NULL').fetchone())")
    queue = hub.cluster.on(hub.cluster.head, "squeue --noheader --format=%i").out
    with driver.open(hub.rules(**{"bob.hub.test": address})) as browser:
        log_in(browser, hub.link("alice"), "alice")
        browser.wait("the home of the hub", lambda: browser.url == hub.url + "/hub/home")
        browser.go(jobs + "/services/jobs/")
        browser.wait("the pages of jobs", lambda: "alice" in browser.text("nav"))
        browser.go("https://bob.hub.test/user/bob/x/lab")
        told = browser.run("return attack(arguments[0], arguments[1])", hub.url, jobs)
        assert told.pop("cookies") == "_xsrf=of-bob" and len(told) == 8 and set(told.values()) == {"refused"}, told
        assert not [cookies for cookies in seen if "login" in cookies or "service-jobs" in cookies]
        assert in_hub(hub, IN_DATABASE + "print(found.execute('SELECT count(*) FROM api_tokens WHERE session_id IS NULL').fetchone())") == before
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
        assert browser.wait("the question", lambda: browser.run("return document.querySelector('#submit').value")) == "Log in as bob"
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


# --- people who leave, and limits -------------------------------------------------------------------------------------------
