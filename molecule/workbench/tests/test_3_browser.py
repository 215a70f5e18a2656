"""A person in a real browser: a link, an instance with a GPU, a notebook, TensorBoard, VS Code, the
end, a job; and what a second person sees of it.

Pictures are in .cache/hub/pictures. Who changes a page looks at them, and copies those of
docs/images.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import axe
import pytest
from conftest import ROOT
from test_2_hub import IMAGE, Hub
from web_driver import ENTER, SHIFT, _driver

pytestmark = pytest.mark.acceptance
ROLE = "jupyterhub"
__all__ = ["_driver"]
PICTURES = ROOT / ".cache/hub/pictures"
# It opens the devices. Those of other jobs are not there. The one of the job has no driver, and the
# hosts, which are containers, may open none (EPERM). An environment variable alone proves nothing.
CELL = """import errno, glob, os
for path in sorted(glob.glob("/dev/nvidia[0-9]*")):
    try:
        os.open(path, os.O_RDWR)
    except OSError as error:
        print(path, errno.errorcode[error.errno])
gpus, workers = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TRAINYARD_WORKER_COUNT"]
print("gpus", gpus, "world size", workers, "uid", os.getuid())
try:
    print(os.listdir("/data1/share/.trainyard/jobs/bob"))
except OSError as error:
    print("bob's folder", errno.errorcode[error.errno])
"""
NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": "look",
            "metadata": {},
            "outputs": [],
            "source": CELL,
        }
    ],
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {
        "kernelspec": {
            "display_name": "Python (container)",
            "language": "python",
            "name": "python3",
        }
    },
}
TRAINS = """name: curves
worker_image: site/tools:1
environment: {PYTHONPATH: /data1/share/packages, LD_LIBRARY_PATH: /data1/share/packages/lib}
command: |
  python3 -c "
  import os
  from tensorboard.compat.proto.event_pb2 import Event
  from tensorboard.compat.proto.summary_pb2 import Summary
  from tensorboard.summary.writer.event_file_writer import EventFileWriter
  writer = EventFileWriter(os.path.expanduser('~/curves'))
  for step, loss in enumerate((0.9, 0.5, 0.125)):
      writer.add_event(Event(wall_time=1.0 + step, step=step, summary=Summary(value=[Summary.Value(tag='loss', simple_value=loss)])))
  writer.close()
  "
"""
SCALARS = "return fetch('data/plugin/scalars/scalars?tag=loss&run=.').then(answer => answer.json())"
STATUS = "return performance.getEntriesByType('navigation')[0].responseStatus"
LOOKS = "return performance.getEntriesByType('resource').filter(entry => entry.name.endsWith('trainyard/idle')).map(entry => entry.responseStatus)"
BASE = "/user/alice/browser/"


@pytest.fixture(scope="module", name="hub")
def _hub(cluster):
    return Hub(cluster)


def log_in(browser, link, person):
    """Open a link, whose page asks first."""
    browser.go(link)
    assert (
        browser.wait(
            "the question", lambda: browser.run("return document.querySelector('#submit').value")
        )
        == "Log in as " + person
    )
    browser.click("#submit")


@pytest.fixture(scope="module", name="alice")
def _alice(hub, driver):
    """The browser of alice, who has logged in with a link.

    Her home has a notebook, a text, the curves of a job, and TensorBoard for the image's Python.
    """
    cluster = hub.cluster
    files = {
        "look.ipynb": json.dumps(NOTEBOOK),
        "read_me.txt": "a line of alice\n",
        ".local/lib/python3.11/site-packages/share.pth": "/data1/share/packages\n",
    }
    for name, text in files.items():
        cluster.as_person(
            "alice", "mkdir -p %s && cat > %s << 'END'\n%s\nEND" % (Path(name).parent, name, text)
        )
    cluster.as_person("alice", "rm -rf curves")
    assert cluster.ends("alice", cluster.submit("alice", TRAINS))["state"] == "completed"
    PICTURES.mkdir(parents=True, exist_ok=True)
    with driver.open(hub.rules()) as browser:
        log_in(browser, hub.link("alice"), "alice")
        browser.wait("the home of the hub", lambda: browser.url == hub.url + "/hub/home")
        yield browser
        # Nothing of it is left, whatever failed.
        hub.program("alice").stop("alice", "browser")
    cluster.as_person("alice", "rm -rf look.ipynb read_me.txt curves .local")
    hub.cluster.wait("the end", lambda: hub.gpus_in_use() == 0)


@pytest.fixture(scope="module", name="instance")
def _instance(hub, alice):
    """An instance with one GPU, chosen on the start page."""
    alice.go(hub.url + "/hub/spawn/alice/browser")
    alice.type("#worker_gpu", "1")
    alice.type("#worker_memory", "2")
    alice.run("document.querySelector('#worker_image').value = arguments[0]", IMAGE)
    alice.run("document.activeElement.blur()")
    # The whole form, without a scroll bar.
    with alice.phone(1300, 1100):
        alice.picture(PICTURES / "start.png")
    alice.click("input[type=submit], button[type=submit]", "")
    alice.wait("JupyterLab", lambda: BASE + "lab" in alice.url, 240)
    # Without the tabs of an earlier run, which JupyterLab opens again.
    alice.go(hub.origin(BASE) + BASE + "lab?reset")
    alice.wait("the launcher", lambda: alice.text(".jp-Launcher"), 120)
    assert hub.gpus_in_use() == 1
    return hub.origin(BASE) + BASE


def test_a_cell_prints_the_gpu_and_the_world_size(alice, instance):
    alice.picture(PICTURES / "launcher.png")
    cards = alice.text(".jp-LauncherCard")
    assert "VS Code" in cards and "TensorBoard, ssh, images" in cards
    assert "news" not in alice.text().lower()
    # The page asks whether the instance is idle, as its person.
    assert set(alice.wait("the look", lambda: alice.run(LOOKS))) == {200}
    alice.go(instance + "lab/tree/look.ipynb")

    def edits():
        """While it loads, JupyterLab draws the cell again, which loses the focus.

        Without a kernel it asks for one.
        """
        alice.click(".jp-Notebook .cm-content")
        return {"Python (container) | Idle", "Mode: Edit"} <= set(
            alice.text("#jp-main-statusbar").splitlines()
        )

    alice.wait("the cell and its kernel", edits, 120)
    alice.press(SHIFT, ENTER)
    told = alice.wait(
        "the output",
        lambda: (
            "folder" in alice.text(".jp-OutputArea-output") and alice.text(".jp-OutputArea-output")
        ),
        120,
    )
    assert [line for line in told.splitlines() if line] == [
        "/dev/nvidia0 EPERM",
        "gpus 0 world size 1 uid 2101",
        "bob's folder EACCES",
    ]
    alice.picture(PICTURES / "notebook.png")


def test_tensorboard_shows_the_scalars_of_a_job(hub, alice, instance):
    alice.go(instance + "trainyard/")
    assert "trainyard attach --stdio" in alice.text("#ssh")
    # A folder of bob, first.
    hub.cluster.as_person("bob", "mkdir -p /data1/share/bobs && chmod 755 /data1/share/bobs")
    alice.type("#folder", "/data1/share/bobs")
    alice.click("button", "Show")
    assert "/data1/share/bobs belongs to bob" in alice.wait(
        "the refusal", lambda: alice.text(".problem")
    )
    alice.picture(PICTURES / "instance.png")
    alice.type("#folder", "~/curves")
    alice.click("button", "Show")
    alice.wait("TensorBoard", lambda: "/tensorboard/" in alice.url, 240)
    scalars = alice.wait("the scalars", lambda: alice.run(SCALARS), 60)
    assert [point[1:] for point in scalars] == [[0, pytest.approx(0.9)], [1, 0.5], [2, 0.125]]
    alice.wait(
        "the page",
        lambda: alice.run("return document.querySelector('tb-webapp, tf-tensorboard') !== null"),
    )
    alice.picture(PICTURES / "tensorboard.png")


def test_a_file_is_opened_in_vs_code(alice, instance):
    alice.go(instance + "vscode/?folder=/home/alice")
    alice.wait("VS Code", lambda: alice.text(".monaco-workbench"), 180)
    alice.click(".explorer-folders-view .monaco-list-row", "read_me.txt", seconds=120)
    alice.wait(
        "the text", lambda: "a line of alice" in alice.text(".view-lines").replace("\xa0", " "), 60
    )
    assert "Build with Agent" not in alice.text()
    alice.picture(PICTURES / "vscode.png")


def test_others_are_refused(hub, driver, alice, instance):
    """bob in a browser of his own, somebody without a login, and a link that is wrong."""
    paths = [
        BASE + path
        for path in (
            "lab",
            "trainyard/",
            "trainyard/idle",
            "tensorboard/",
            "tensorboard/data/plugin/scalars/tags",
            "vscode/",
            "proxy/8001/",
        )
    ]
    with driver.open(hub.rules()) as browser:
        for path in paths:
            browser.go(hub.origin(path) + path)
            # What a script asks for has no way to the login.
            assert (
                browser.url.startswith(hub.url + "/hub/login")
                or path.endswith("/idle")
                and "Forbidden" in browser.text()
            ), path
        log_in(browser, hub.url + "/hub/login#alice:" + "A" * 43, "alice")
        browser.wait(
            "the refusal",
            lambda: "Type trainyard login on the cluster for a new one" in browser.text(),
        )
        browser.go(hub.url + "/hub/home")
        assert "/hub/login" in browser.url
        log_in(browser, hub.link("bob"), "bob")
        browser.wait("the home of the hub", lambda: browser.url == hub.url + "/hub/home")
        for path in paths:
            browser.go(hub.origin(path) + path)
            assert browser.run(STATUS) in (403, 404), (path, browser.text())
        browser.picture(PICTURES / "refused.png")
    alice.go(hub.origin(BASE) + BASE + "api/status")
    assert '"started"' in alice.text()


def test_on_the_host_nobody_else_reaches_it(hub, alice, instance):
    """Sockets of VS Code and TensorBoard, and no port of theirs."""
    job = [
        job
        for job in json.loads(hub.cluster.trainyard("alice", "list", "--json").out)
        if job["state"] == "running"
    ][-1]
    host, folder = job["hosts"][0], "/run/trainyard/jobs/%s/hub" % job["id"]
    sockets = hub.cluster.on(host, "find %s -name '*.sock' -type s" % folder).out.split()
    assert {folder + "/vscode.sock", folder + "/tensorboard.sock"} <= set(sockets)
    for path in sockets:
        connect = (
            'su bob -c "python3 -c \'import socket; socket.socket(socket.AF_UNIX).connect(\\"%s\\")\'"'
            % path
        )
        assert hub.cluster.on(host, connect, check=False).code == 1, path
    listens = hub.cluster.on(
        host, "ss -Hltnp | grep -E 'node|tensorboard' | grep -v ':443 \\|:8001 ' || true"
    ).out
    assert listens == ""
    # No token in an argument or in the log, in which Jupyter writes three dots instead.
    told = (
        hub.cluster.on(host, "ps -u alice -o args").out
        + hub.cluster.trainyard("alice", "logs", job["id"]).out
    )
    assert re.findall(r"token=(?!\.\.\.)\S+", told) == []


def test_the_share_is_in_the_file_browser(hub, alice, instance):
    """As folder share, also by the link on the page of a job."""
    hub.cluster.as_person("alice", "mkdir -p /data1/share/user/alice/of_share")
    alice.go(instance + "api/contents/share/user/alice")
    assert '"of_share"' in alice.text()


def test_stop_frees_the_gpu(hub, alice, instance):
    alice.go(hub.url + "/hub/home")
    alice.click("tr[data-server-name='browser'] .stop-server", "")
    hub.cluster.wait("the end", lambda: hub.gpus_in_use() == 0, 120)
    assert (
        hub.cluster.on(hub.cluster.head, "sinfo --noheader --Format GresUsed:40").out.count(
            "gpu:h100:0"
        )
        == 1
    )
    alice.picture(PICTURES / "home.png")
    alice.go(hub.origin(BASE) + BASE + "api/status")
    assert '"started"' not in alice.text()


def test_a_job_is_submitted_in_the_form(hub, alice):
    alice.go(hub.origin("/services/jobs/") + "/services/jobs/new")
    for key, text in (("name", "of_form"), ("worker_memory", "1"), ("command", "echo of the form")):
        alice.type("#" + key, text)
    alice.run("document.querySelector('#worker_image').value = arguments[0]", IMAGE)
    alice.picture(PICTURES / "form.png")
    alice.click("button", "Submit")
    alice.wait("the page of the job", lambda: "/services/jobs/job/" in alice.url)
    number = alice.url.rpartition("/")[2]
    assert hub.cluster.ends("alice", number)["state"] == "completed"
    alice.go(alice.url)
    assert "] of the form" in alice.text("pre")
    alice.picture(PICTURES / "job.png")
    alice.click("button", "Submit again")
    alice.wait(
        "the page of the next job",
        lambda: "/services/jobs/job/" in alice.url and alice.url.rpartition("/")[2] != number,
    )
    assert hub.cluster.ends("alice", alice.url.rpartition("/")[2])["state"] == "completed"


def test_the_portal_while_a_job_runs(hub, alice):
    """What changes is seen without a load of the page.

    Stop asks first, and a copy is edited in the form.
    """
    jobs = hub.origin("/services/jobs/") + "/services/jobs/"
    text = "name: lines\nworker_image: site/tools:1\nworker_memory: 1\ncommand: i=0; while true; do i=$((i+1)); echo line $i; sleep 1; done\n"
    number = hub.cluster.submit("alice", text)
    hub.cluster.ends("alice", number, "running")
    alice.go(jobs)
    assert "Free GPUs now" in alice.text("main") and "Group vision" in alice.text("main")
    assert "lines" in alice.text(".jobs")
    alice.go(jobs + "job/" + number)
    alice.run("window.sameLoad = true")
    last = "return Number((document.querySelector('#text').innerText.match(/line (\\d+)\\s*$/) || [0, 0])[1])"
    first = alice.wait("a line", lambda: alice.run(last))
    alice.wait("more lines", lambda: alice.run(last) > first + 3, 60)
    assert alice.run("return window.sameLoad")
    alice.picture(PICTURES / "portal-job.png")
    alice.click("summary", "Stop")
    alice.click("button", "Yes, stop it")
    assert hub.cluster.ends("alice", number)["state"] == "cancelled"
    alice.go(jobs + "job/" + number)
    assert "stopped" in alice.text("main")
    alice.click("a.button", "Edit a copy")
    alice.wait("the form", lambda: alice.run("return document.querySelector('#name')?.value"))
    assert alice.run("return document.querySelector('#name').value") == "lines"
    alice.type("#name", "no name")
    alice.click("button", "Check only")
    alice.wait("the fault", lambda: "is not valid" in alice.text("#problem-name"))
    # The field that is wrong has the focus.
    assert alice.run("return document.activeElement.id") == "name"
    alice.type("#name", "edited")
    alice.click("button", "Check only")
    alice.wait("the answer", lambda: "The job is valid" in alice.text("main"))
    assert "name: edited" in alice.text("pre")


def test_each_page_on_a_phone_and_in_the_dark(hub, alice):
    """No page is wider than the screen, and none has an error of its policy.

    The pictures are for people.
    """
    jobs = hub.origin("/services/jobs/") + "/services/jobs/"
    for path in ("", "jobs", "new", "cluster", "usage", "none"):
        name = path or "home"
        for theme in ("light", "dark"):
            alice.go(jobs + path)
            alice.run("localStorage.setItem('jupyterhub-bs-theme', arguments[0])", theme)
            alice.go(jobs + path)
            shown = alice.run("return document.documentElement.dataset.bsTheme")
            assert shown == theme, path
            alice.picture(PICTURES / ("portal-%s-%s.png" % (name, theme)))
            assert axe.faults(alice) == [], (path, theme)
        with alice.phone():
            alice.go(jobs + path)
            assert alice.run("return document.documentElement.scrollWidth") <= 390, path
            alice.picture(PICTURES / ("portal-%s-390.png" % name))
    alice.run("localStorage.removeItem('jupyterhub-bs-theme')")
    for path in ("home", "spawn/alice/other", "token", "none"):
        alice.go(hub.url + "/hub/" + path)
        alice.picture(PICTURES / ("hub-%s.png" % path.partition("/")[0]))
        assert axe.faults(alice) == [], path


@contextlib.contextmanager
def operator(hub, person):
    """Give somebody the rights of role slurm_accounts, and the page of role jupyterhub, as
    monitoring_operators does.
    """
    head, settings = hub.cluster.head, "/etc/trainyard/hub/hub.json"
    rights = "sacctmgr -i modify user where name=%s set AdminLevel=%s"
    edit = (
        "import json; path = '%s'; found = json.load(open(path)); found['operators'] = %s;"
        " json.dump(found, open(path, 'w'))"
    )
    try:
        hub.cluster.on(head, rights % (person, "Administrator"))
        hub.cluster.on(head, 'python3 -c "%s"' % (edit % (settings, [person])))
        yield
    finally:
        hub.cluster.on(head, 'python3 -c "%s"' % (edit % (settings, [])))
        hub.cluster.on(head, rights % (person, "None"))


def test_an_operator_drains_and_resumes_a_host(hub, driver, alice):
    """With the person's own rights in Slurm.

    Slurm and the log of the portal name the person. Others have no such page.
    """
    cluster, page = hub.cluster, hub.origin("/services/jobs/") + "/services/jobs/operators"
    number = cluster.submit(
        "alice",
        "name: of_alice\nworker_image: site/tools:1\nworker_memory: 1\ncommand: sleep 600\n",
    )
    cluster.ends("alice", number, "running")
    with operator(hub, "bob"), driver.open(hub.rules()) as browser:
        log_in(browser, hub.link("bob"), "bob")
        browser.wait("the home of the hub", lambda: browser.url == hub.url + "/hub/home")
        browser.go(page)
        assert "Operators" in browser.text("nav")
        assert "of_alice" in browser.text("main"), browser.text()
        assert axe.faults(browser) == []
        browser.run("document.querySelector('#node').value = 'workbench-b'")
        browser.type("#reason", "new disk")
        browser.click("button", "Drain")
        browser.wait(
            "the host",
            lambda: browser.run("return !!document.querySelector('button[value=resume]')"),
        )
        browser.picture(PICTURES / "portal-operators.png")
        shown = cluster.on(cluster.head, "scontrol show node workbench-b").out
        assert "DRAIN" in shown and "Reason=new disk [bob@" in shown
        browser.type("#why-workbench-b", "disk replaced")
        browser.click("button[value=resume]", "Resume")
        browser.wait("no host", lambda: "All hosts are in service" in browser.text("main"))
        assert "DRAIN" not in cluster.on(cluster.head, "scontrol show node workbench-b").out
        told = cluster.on(cluster.head, "journalctl --unit trainyard-hub-jobs --output cat").out
        assert "drain of host workbench-b by bob (new disk): done" in told
        assert "resume of host workbench-b by bob (disk replaced): done" in told
        # Somebody who is none, meanwhile.
        alice.go(page)
        assert "This page is for operators" in alice.text() and "bob" not in alice.text()
        answer = alice.run(
            "return fetch(arguments[0], {method: 'POST', body: new URLSearchParams({do: 'drain', node: 'workbench-b', reason: 'x'})})"
            ".then(answer => answer.status)",
            page,
        )
        assert answer == 403
    cluster.trainyard("alice", "stop", number)
    cluster.ends("alice", number)


def test_a_login_link_in_the_tab_of_the_login_page(hub, driver):
    """The browser loads nothing, as only what follows # changes."""
    with driver.open(hub.rules()) as browser:
        browser.go(hub.url + "/hub/login")
        browser.wait(
            "the page", lambda: browser.run("return document.querySelector('#submit').value")
        )
        browser.run("location.hash = arguments[0]", hub.link("alice").partition("#")[2])
        browser.wait(
            "the question",
            lambda: (
                browser.run("return document.querySelector('#submit').value") == "Log in as alice"
            ),
        )
        assert "#" not in browser.url.rstrip("#")
        browser.click("#submit")
        browser.wait("the home of the hub", lambda: browser.url == hub.url + "/hub/home")
