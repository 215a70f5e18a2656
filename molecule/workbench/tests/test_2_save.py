"""An instance is saved as an image: what people install in it is there at the next start on another
host, and nothing else of it is.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest
from browser_session import WebSocket
from conftest import Cluster
from test_2_hub import Hub

pytestmark = pytest.mark.acceptance
ROLE = "job_container"
HOST = Cluster.head
REGISTRY = "172.30.104.21:5000"
BASE = REGISTRY + "/alice/base:1"
AUTH = "/etc/trainyard/registry/people/%s.json"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
HERE = Path(__file__).resolve().parents[1]
# What no image may have, in its configuration or in a file of a layer: the strings of
# /root/needles, and files with logins.
SEARCH = """
import gzip, io, json, sys, tarfile
needles = [line.encode() for line in open("/root/needles").read().split()]
assert len(needles) == 2 and min(map(len, needles)) > 15
folder = "/data1/share/saved/"
manifest = json.load(open(folder + "manifest.json"))
found = []
for part in [manifest["config"]] + manifest["layers"]:
    data = open(folder + part["digest"][7:], "rb").read()
    data = gzip.decompress(data) if data[:2] == bytes([31, 139]) else data
    found += [part["digest"] for needle in needles if needle in data]
    if part != manifest["config"]:
        names = tarfile.open(fileobj=io.BytesIO(data)).getnames()
        found += [name for name in names if name.endswith("auth.json")]
        last = sorted(names)
print(json.dumps({"found": found, "layers": len(manifest["layers"]), "last": [name for name in last if "of" in name]}))
"""


class Saver:
    """alice, with an instance of an image that only the registry has."""

    def __init__(self, hub):
        self.hub, self.cluster, self.alice = hub, hub.cluster, hub.program("alice")

    def start(self, server, image, away):
        """Start an instance while a host is out of service. Return its address and its job."""
        with self.cluster.out_of_service(away):
            answer = self.alice.start(
                "alice",
                server,
                display_name=server,
                user_options={"worker_image": image, "worker_memory": 1},
            )
            assert answer.code in (201, 202), answer.text
            url = self.alice.is_ready("alice", server)["url"]
        return url, next(
            job["id"]
            for job in json.loads(self.cluster.trainyard("alice", "list", "--json").out)
            if (job["name"], job["state"]) == (server, "running")
        )

    def stop(self, server):
        self.alice.stop("alice", server)
        self.cluster.wait(
            "the end of " + server, lambda: self.alice.server("alice", server) is None
        )

    def inside(self, job, *words, root=False, check=True):
        return self.cluster.trainyard(
            "alice", "attach", job, *["--root"] * root, "--", *words, check=check
        )

    def post(self, url, path, **fields):
        return self.alice.ask(url + "trainyard/" + path, "POST", fields, FORM)

    def save(self, url, name, **more):
        """Save by the page, and return what it tells at the end."""
        answer = self.post(url, "save", name=name, **more)
        assert answer.code == 200, answer.text
        return self.told(url)

    def told(self, url):
        def state():
            found = re.search(
                r'<p id="save"[^>]*>(.*?)</p>', self.alice.ask(url + "trainyard/").text
            )
            return html.unescape(found.group(1)) if found else ""

        self.cluster.wait(
            "the end of the save", lambda: state() and not state().startswith("Saving "), 300
        )
        return state()

    def skopeo(self, person, *words, check=True):
        return self.cluster.as_person(
            person,
            shlex.join(["skopeo", words[0], "--authfile=" + AUTH % person, *words[1:]]),
            check,
        )

    def left(self, job, host):
        """Images and folders of saves in the store of a running job."""
        store = "%s/jobs/%s" % (self.cluster.store, job)
        found = json.loads(
            self.cluster.on(
                host, "cat %s/store/overlay-images/images.json 2> /dev/null || echo null" % store
            ).out
        )
        return (found or []) + self.cluster.on(
            host, "ls -d %s/save.* 2> /dev/null || true" % store
        ).out.split()


def load_base(saver):
    """Push an image with apt and pip as alice, and return its name."""
    saver.cluster.on(
        saver.cluster.head,
        "cat > /root/apt_image.sh << 'END'\n%sEND\nsh /root/apt_image.sh alice/base:1 /data1/share/base.tar"
        % (HERE / "apt_image.sh").read_text(encoding="utf-8"),
    )
    saver.skopeo(
        "alice", "copy", "--quiet", "docker-archive:/data1/share/base.tar", "docker://" + BASE
    )
    return BASE


def forget_base(saver):
    """Images that people have pulled are theirs, and a later test asks what is left of everything
    else.
    """
    saver.cluster.on(
        saver.cluster.head,
        "rm -rf /root/apt_image.sh /data1/share/base.tar /data1/share/of-apt.deb /data1/share/of_pip*",
    )
    saver.cluster.nothing_left("alice")
    for host in saver.cluster.hosts:
        saver.cluster.on(host, "rm -rf %s/people/2101/*" % saver.cluster.store)


@pytest.fixture(scope="module")
def saver(cluster):
    saver = Saver(Hub(cluster))
    load_base(saver)
    yield saver
    for server in ("saver", "again"):
        saver.alice.stop("alice", server)
    cluster.on(
        cluster.head,
        "systemctl start trainyard-image-proxy; rm -rf /root/needles /data1/share/saved /data1/share/of-root /srv/relay/full",
    )
    forget_base(saver)


@pytest.fixture(scope="module")
def instance(saver, cluster):
    """On the first host, which pulls the image for it."""
    return saver.start("saver", BASE, cluster.peer)


def test_the_host_has_pulled_the_image(saver, cluster, instance):
    assert "pulling " + BASE in cluster.trainyard("alice", "logs", instance[1]).out
    names = "cat %s/people/2101/overlay-images/images.json" % cluster.store
    assert BASE in cluster.on(cluster.head, names).out
    assert cluster.on(cluster.peer, names, check=False).out.count(BASE) == 0


def test_root_is_for_instances_and_its_files_are_the_persons(saver, cluster, instance):
    url, job = instance
    told = saver.inside(
        job,
        "sh",
        "-c",
        "id -u; touch /data1/share/of-root /home/alice/of-root /usr/of-root",
        root=True,
    )
    assert told.out.split() == ["0"]
    assert (
        cluster.on(
            cluster.head,
            "stat --format=%U /data1/share/of-root /home/alice/of-root; rm /home/alice/of-root",
        ).out.split()
        == ["alice"] * 2
    )
    assert saver.inside(job, "id", "-u").out.split() == ["2101"]
    # By the page.
    page = saver.post(url, "root")
    name = re.search(r"Terminal (\w+) is root", page.text).group(1)
    with WebSocket(saver.alice, "%sterminals/websocket/%s" % (url, name)) as channel:
        channel.send(json.dumps(["stdin", "id -u; echo 4$((1))2\r"]))
        text = ""
        while "412" not in text:
            kind, *more = json.loads(channel.receive())
            text += more[0] if kind == "stdout" else ""
    assert re.search(r"^(# )?0\r?$", text, re.MULTILINE), text
    saver.alice.ask("%sapi/terminals/%s" % (url, name), "DELETE")
    # A job is its person.
    number = cluster.submit(
        "alice", "name: plain\nworker_image: site/tools:1\ncommand: sleep 600\nworker_memory: 1\n"
    )
    cluster.ends("alice", number, "running")
    done = saver.inside(number, "id", root=True, check=False)
    assert done.code != 0 and "only instances of the hub can be entered as root" in done.text
    cluster.trainyard("alice", "stop", number)


def test_packages_are_installed(saver, instance):
    job = instance[1]
    saver.inside(job, "apt-get", "install", "--yes", "/data1/share/of-apt.deb", root=True)
    saver.inside(
        job,
        "python3",
        "-m",
        "pip",
        "install",
        "--break-system-packages",
        "--no-index",
        "/data1/share/of_pip-1.0-py3-none-any.whl",
    )
    assert saver.inside(job, "of-apt").out == "of apt\n"


@pytest.mark.parametrize("name", ["Tools", "a/b", "$(touch /data1/share/harm)", ""])
def test_bad_names_are_refused(saver, cluster, instance, name):
    assert "lower-case letters" in saver.save(instance[0], name)
    assert cluster.on(cluster.head, "test -e /data1/share/harm", check=False).code == 1


def test_a_registry_that_is_full_or_stopped(saver, cluster, instance):
    """The instance goes on, and nothing is left of the save."""
    url, job = instance
    cluster.on(cluster.head, "touch /srv/relay/full")
    told = saver.save(url, "tools", stop="1")
    assert "the container is not saved, and goes on" in told and "the registry is full" in told
    cluster.on(cluster.head, "rm /srv/relay/full; systemctl stop trainyard-image-proxy")
    try:
        told = saver.save(url, "tools", stop="1")
        assert "the registry %s does not answer" % REGISTRY in told and "goes on" in told
        # The start page works without it.
        assert (
            "your saved images are not known"
            in saver.hub.browser("alice").ask("/hub/spawn/alice/page").text
        )
    finally:
        cluster.on(cluster.head, "systemctl start trainyard-image-proxy")
    assert saver.inside(job, "of-apt").out == "of apt\n" and saver.left(job, cluster.head) == []
    assert saver.alice.run_cell(url, "print(6 * 7)") == "42\n"
    assert "the container is not saved" in cluster.trainyard("alice", "logs", job).out


@pytest.fixture(scope="module")
def saved(saver, cluster, instance):
    """The name of the image."""
    told = saver.save(instance[0], "tools")
    assert re.fullmatch(r"saved as %s/alice/tools:\d{8}-\d{6}" % re.escape(REGISTRY), told), told
    assert saver.left(instance[1], cluster.head) == []
    return told[len("saved as ") :]


def test_the_image_has_the_configuration_of_its_base(saver, saved):
    """Not that of the container."""
    found, base = (
        json.loads(saver.skopeo("alice", "inspect", "--config", "docker://" + name).out)
        for name in (saved, BASE)
    )
    assert (
        found["config"] == base["config"]
        and set(found) <= set(base)
        and found["history"][:-1] == base["history"]
    )
    assert len(found["rootfs"]["diff_ids"]) == len(base["rootfs"]["diff_ids"]) + 1


def test_the_image_has_no_secret(saver, cluster, instance, saved):
    """Neither the token of the server nor the login for the registry is in the configuration or a
    layer, in an argument or in a log.
    """
    cluster.on(
        cluster.head,
        "umask 077; { tr '\\0' '\\n' < /proc/$(pgrep -u alice -o -f jupyterhub-singleuser)/environ | "
        'sed -n s/^JUPYTERHUB_API_TOKEN=//p; sed \'s/.*"auth": "\\([^"]*\\)".*/\\1/\' %s; } > /root/needles'
        % (AUTH % "alice"),
    )
    saver.skopeo("alice", "copy", "--quiet", "docker://" + saved, "dir:/data1/share/saved")
    told = json.loads(cluster.on(cluster.head, "python3 - << 'END'\n%sEND" % SEARCH).out)
    assert told["found"] == [] and {"usr/bin/of-apt", "usr/of-root"} <= set(told["last"]), told
    assert any(name.endswith("dist-packages/of_pip.py") for name in told["last"])
    log = "%s/alice/.out/%s.log" % (cluster.folder, instance[1])
    assert (
        cluster.on(
            cluster.head,
            "grep -cFf /root/needles %s; journalctl --no-pager | grep -cFf /root/needles; ps -ef | grep -cFf /root/needles"
            % log,
            check=False,
        ).out.split()
        == ["0"] * 3
    )


def test_it_is_offered(saver, cluster, saved):
    page = saver.hub.browser("alice").ask("/hub/spawn/alice/page").text
    assert (
        '<optgroup label="Saved by you"><option>%s</option>' % saved in page
        and 'name="other_image"' in page
    )
    assert {"name": saved, "saved": True} in json.loads(
        cluster.trainyard("alice", "images", "--json").out
    )
    assert (
        "/alice/" not in cluster.trainyard("bob", "images").out
        and "/alice/" not in saver.hub.browser("bob").ask("/hub/spawn/bob/page").text
    )


def test_others_cannot_write_it(saver, saved):
    done = saver.skopeo(
        "bob",
        "copy",
        "--quiet",
        "docker-archive:/data1/share/base.tar",
        "docker://" + saved,
        check=False,
    )
    assert done.code != 0 and re.search(
        "denied|403|people write below their own name", done.text
    ), done.text


def test_it_starts_on_the_other_host(saver, cluster, saved):
    url, job = saver.start("again", saved, cluster.head)
    try:
        assert next(
            entry
            for entry in json.loads(cluster.trainyard("alice", "list", "--json").out)
            if entry["id"] == job
        )["hosts"] == [cluster.peer]
        assert "pulling " + saved in cluster.trainyard("alice", "logs", job).out
        assert saver.inside(job, "of-apt").out == "of apt\n"
        assert (
            saver.alice.run_cell(url, "import of_pip, os; print(of_pip.WORD, os.getuid())")
            == "of pip 2101\n"
        )
        # Once more, with the end of the instance.
        answer = saver.post(url, "save", name="tools", stop="1")
        assert answer.code == 200, answer.text
        cluster.wait(
            "the end",
            lambda: (
                cluster.ends("alice", job, "running", "completed", "failed", "cancelled")["state"]
                != "running"
            ),
            300,
        )
        log = cluster.trainyard("alice", "logs", job).out
        newest = re.search(r"saved as (%s/alice/tools:\S+)" % re.escape(REGISTRY), log).group(1)
        assert [
            entry["name"]
            for entry in json.loads(cluster.trainyard("alice", "images", "--json").out)
            if "/alice/tools" in entry["name"]
        ] == [newest, saved]
    finally:
        saver.stop("again")


def test_two_tasks_of_a_host_need_the_same_image(saver, cluster):
    image = REGISTRY + "/alice/base:2"
    saver.skopeo(
        "alice", "copy", "--quiet", "docker-archive:/data1/share/base.tar", "docker://" + image
    )
    done = cluster.as_person(
        "alice",
        "srun --quiet --nodes=1 --ntasks=2 --mem=1000 trainyard-run %s -- sh -c 'echo up'" % image,
    )
    assert done.out.split() == ["up", "up"], done.text


def test_a_stop_leaves_nothing(saver, cluster, instance, saved):
    saver.stop("saver")
    cluster.nothing_left("alice")
