"""Role jupyterhub is removed again. What it did not place stays."""

from __future__ import annotations

from conftest import Cluster

ROLE = "jupyterhub"
HOST = Cluster.head
PATHS = ("/usr/local/lib/trainyard/hub", "/usr/local/lib/trainyard/notebook", "/etc/trainyard/hub", "/etc/trainyard/notebook", "/etc/trainyard/tls",
         "/etc/sudoers.d/trainyard-hub", "/var/lib/trainyard/hub", "/var/lib/trainyard/placed.d/jupyterhub.json", "/run/trainyard-hub",
         "/var/lib/trainyard/placed.d/jupyterhub.packages.json")


def test_a_second_run_changes_nothing(cluster, role):
    assert role().changed == 0


def test_nothing_is_left(cluster, role):
    """The command for jobs and sudo were there before."""
    assert role("remove").code == 0
    units = "/etc/systemd/system/trainyard-hub* /etc/systemd/system/*/trainyard-hub*"
    assert cluster.on(cluster.head, "ls --directory %s %s" % (" ".join(PATHS), units), check=False).out == ""
    assert cluster.on(cluster.head, "id trainyard-hub", check=False).code == 1
    assert cluster.on(cluster.head, "pgrep -u trainyard-hub; systemctl list-units --all --no-legend 'trainyard-hub*'", check=False).out == ""
    assert cluster.on(cluster.head, "dpkg-query --show --showformat='${db:Status-Status}' python3-venv", check=False).out != "installed"
    assert cluster.on(cluster.head, "command -v sudo openssl").out.count("/") >= 2
    done = cluster.trainyard("alice", "login", check=False)
    assert done.code == 2 and "this host has no hub" in done.text and cluster.trainyard("alice", "quota").code == 0
    assert role("remove").changed == 0
