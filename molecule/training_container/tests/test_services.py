"""Services of the container: with a token and without, killed, refused, removed.

A token is read on the host only, because sudo logs command lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HOST = "training-container-a"
ADDRESS = "172.30.87.71"
NAME = "trainyard-training"
testinfra_hosts = ["ansible://" + HOST]
ROOT = Path(__file__).resolve().parents[3]
INSIDE = "/etc/trainyard/services/inside"
# As in molecule.yml.
READER = {
    "name": "reader",
    "port": 8890,
    "command": "python3 service.py reader {address} {port} token={token_file}",
}
AUTHORITY = "/etc/trainyard/services/tls/ca.pem"
# URL, kind of token (none, wrong or the path of one) and authority in, status and body out.
ASK = """
import json, ssl, sys, urllib.error, urllib.request
url, token, authority = sys.argv[1:]
token = {"none": "", "wrong": "0" * 48}.get(token) if token in ("none", "wrong") else open(token).read().strip()
request = urllib.request.Request(url, headers={"Authorization": "token " + token} if token else {})
context = ssl.create_default_context(cafile=authority) if authority != "none" else None
try:
    answer = urllib.request.urlopen(request, timeout=10, context=context)
    told = [answer.status, answer.read().decode()]
except urllib.error.HTTPError as error:
    told = [error.code, ""]
except OSError as error:
    told = [0, str(error)]
print(json.dumps(told))
"""
# Where the token of a file can be seen by others than root, or after it was changed.
SEEN = """
import glob, subprocess, sys
token = open(sys.argv[1]).read().strip().encode()
assert len(token) == 48
seen = []
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ") + glob.glob("/var/log/**/*", recursive=True):
    try:
        if token in open(path, "rb").read():
            seen.append(path)
    except OSError:
        pass
for command in ("docker inspect NAME", "docker logs NAME", "journalctl --no-pager --all", "systemctl show NAME.service"):
    done = subprocess.run(command.replace("NAME", sys.argv[2]).split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and done.stdout, command
    if token in done.stdout:
        seen.append(command)
print(seen)
"""


def ask(host, url, token="none", authority="none"):
    return json.loads(host.check_output("python3 -c %s %s %s %s", ASK, url, token, authority))


def token_of(name):
    return "%s/%s.token" % (INSIDE, name)


def seen(host, name):
    return host.check_output("python3 -c %s %s %s", SEEN, token_of(name), NAME)


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within %d s" % seconds
        time.sleep(0.5)


def process_of(host, name, port):
    status, text = ask(host, "http://127.0.0.1:%d/" % port)
    return text.split()[1] if status == 200 and text.split()[0] == name else ""


def host_processes(host, name):
    return host.check_output(
        "grep -lzx TRAINYARD_SERVICE=%s /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true",
        name,
    ).split()


def started(host):
    return host.check_output("docker inspect --format '{{.Id}} {{.State.StartedAt}}' %s", NAME)


def test_again_changes_nothing(role):
    """Earlier tests have stopped the container, and other ones may have left other settings."""
    assert role().code == 0
    again = role()
    assert (again.code, again.changed) == (0, 0)


def test_token_is_asked_for(host):
    url = "http://127.0.0.1:8890/one.ipynb"
    until(lambda: process_of(host, "reader", 8890))
    assert ask(host, url) == [403, ""] and ask(host, url, "wrong") == [403, ""]
    status, text = ask(host, url, token_of("reader"))
    assert status == 200 and "A notebook of the scenario" in text
    # It logs addresses.
    assert ask(host, url + "?reader", token_of("reader"))[0] == 200
    token = host.file(token_of("reader"))
    assert (token.mode, token.user, host.file(INSIDE).mode) == (0o600, "root", 0o700)


def test_token_is_seen_nowhere(host):
    assert "reader: token=(token)" in host.check_output("docker logs %s 2>&1", NAME)
    assert seen(host, "reader") == "[]"


def test_only_its_own_address_is_open(host):
    assert ask(host, "http://%s:8890/" % ADDRESS)[0] == 0
    assert ask(host, "https://%s:5000/" % ADDRESS, authority=AUTHORITY)[1].startswith("aiaa ")
    assert (
        ask(host, "https://127.0.0.1:5000/", authority=AUTHORITY)[0] == 0
        and ask(host, "https://%s:5000/" % ADDRESS)[0] == 0
    )
    # The key of the authority stays on the host.
    assert host.check_output("docker exec %s ls /etc/trainyard/services", NAME).split() == [
        "config.json",
        "reader.token",
        "services.key",
        "services.pem",
        "services.py",
        "supervisor.py",
    ]
    assert host.file("/etc/trainyard/services/tls/ca.key").mode == 0o600


def test_comes_back_after_it_was_killed(host, role):
    before, container = process_of(host, "reader", 8890), started(host)
    host.check_output("kill -KILL %s", host_processes(host, "reader")[0])
    until(lambda: process_of(host, "reader", 8890) not in ("", before))
    # The supervisor, too. The next one ends what it left.
    before = process_of(host, "reader", 8890)
    host.check_output(
        "pkill --signal KILL --full --exact %s",
        "python3 -B /etc/trainyard/services/supervisor.py /run/trainyard-services",
    )
    until(lambda: process_of(host, "reader", 8890) not in ("", before))
    assert len(host_processes(host, "reader")) == 1 and started(host) == container
    assert role().code == 0


def test_lives_and_dies_with_the_container(host):
    host.check_output("systemctl stop %s", NAME)
    assert host_processes(host, "reader") == host_processes(host, "aiaa") == []
    host.check_output("systemctl start %s", NAME)
    until(lambda: process_of(host, "reader", 8890))


@pytest.mark.acceptance
def test_drift_tells_a_service_that_does_not_run(host, role):
    assert role().code == 0
    assert role("drift", shows="training_container_differences").shown == []
    former = host.check_output("cat %s/config.json", INSIDE)
    host.check_output("sed -i s/5000/5001/ %s/config.json", INSIDE)
    until(lambda: ask(host, "https://%s:5001/" % ADDRESS, authority=AUTHORITY)[0] == 200)
    told = role("drift", shows="training_container_differences").shown
    assert [entry["what"] for entry in told] == [INSIDE + "/config.json"]
    mended = role()
    assert (mended.code, mended.changed) == (0, 1) and host.check_output(
        "cat %s/config.json", INSIDE
    ) == former


def test_service_that_opens_the_host_is_refused(host, role):
    container, before = started(host), process_of(host, "reader", 8890)
    run = role(
        training_container_services=[
            READER,
            {"name": "open", "port": 5002, "command": "python3 service.py open 0.0.0.0 {port}"},
        ]
    )
    assert run.code != 0
    assert (
        "service open: refused: it was stopped because it listened on 0.0.0.0 port 5002" in run.text
    )
    assert ask(host, "http://%s:5002/" % ADDRESS)[0] == 0 and host_processes(host, "open") == []
    assert started(host) == container and process_of(host, "reader", 8890) == before


def test_removed_service_is_gone(host, role):
    assert (
        role().code == 0 and ask(host, "https://%s:5000/" % ADDRESS, authority=AUTHORITY)[0] == 200
    )
    container, before = started(host), process_of(host, "reader", 8890)
    run = role(training_container_services=[READER])
    assert run.code == 0
    assert (
        host_processes(host, "aiaa") == host_processes(host, "open") == []
        and ask(host, "https://%s:5000/" % ADDRESS)[0] == 0
    )
    assert host.check_output(
        "find /etc/trainyard/services -type f -printf '%P ' | tr ' ' '\\n' | sort"
    ).split() == [
        "inside/config.json",
        "inside/reader.token",
        "inside/services.py",
        "inside/supervisor.py",
    ]
    # The other one and the container go on.
    assert started(host) == container and process_of(host, "reader", 8890) == before
    again = role(training_container_services=[READER])
    assert (again.code, again.changed) == (0, 0)


@pytest.fixture(name="jupyter_image", scope="module")
def fixture_jupyter_image():
    """An image with the JupyterLab of role jupyterhub, whose packages are pinned with checksums."""
    packages = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "jupyter"
    requirements = ROOT / "roles/jupyterhub/files/requirements-server.txt"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
            "--only-binary=:all:",
            "--no-deps",
            "--python-version=3.11",
            "--require-hashes",
            "--target",
            packages,
            "--requirement",
            requirements,
        ],
        check=True,
    )
    recipe = (
        "FROM trainyard/training:molecule\nCOPY jupyter /usr/local/lib/python3.11/dist-packages\n"
        "RUN ln -s /usr/local/lib/python3.11/dist-packages/share/jupyter /usr/local/share/jupyter\n"
    )
    (packages.parent / "Dockerfile").write_text(recipe, encoding="utf-8")
    pack = "tar --create --directory %s Dockerfile jupyter | docker exec --interactive %s docker build --quiet --tag trainyard/training:jupyter -"
    subprocess.run(["bash", "-o", "pipefail", "-ec", pack % (packages.parent, HOST)], check=True)
    return "trainyard/training:jupyter"


@pytest.mark.acceptance
def test_jupyterlab(host, role, jupyter_image):
    """Beside it, the path that the run prints, and a notebook that is read by its interface."""
    run = role(
        training_container_image=jupyter_image,
        training_container_services=[{"name": "jupyterlab", "workdir": "/claraDevDay"}],
    )
    assert (
        run.code == 0
        and "jupyterlab: http://127.0.0.1:8890, token in %s" % token_of("jupyterlab") in run.text
    )
    url = "http://127.0.0.1:8890/api/contents/one.ipynb"
    assert ask(host, url)[0] == ask(host, url, "wrong")[0] == 403
    status, text = ask(host, url, token_of("jupyterlab"))
    assert status == 200 and "A notebook of the scenario" in text
    assert ask(host, "http://127.0.0.1:8890/lab", token_of("jupyterlab"))[0] == 200
    assert ask(host, "http://%s:8890/api" % ADDRESS)[0] == 0
    assert seen(host, "jupyterlab") == "[]"


@pytest.mark.acceptance
def test_z_removal_keeps_the_work_of_people(host, role):
    assert role().code == 0
    host.check_output("echo mine > /var/lib/trainyard/notebooks/tree/mine.ipynb")
    run = role("remove")
    assert run.code == 0 and "Kept /var/lib/trainyard/notebooks/tree, which has changes" in run.text
    assert not host.file("/etc/trainyard/services").exists and host_processes(host, "reader") == []
    host.check_output("rm /var/lib/trainyard/notebooks/tree/mine.ipynb")
