"""Role jupyterhub is removed again. What it did not place stays."""

from __future__ import annotations

import re

import pytest
from conftest import Cluster

pytestmark = pytest.mark.acceptance
ROLE = "jupyterhub"
HOST = Cluster.head
PATHS = (
    "/usr/local/lib/trainyard/hub",
    "/usr/local/lib/trainyard/notebook",
    "/etc/trainyard/hub",
    "/etc/trainyard/notebook",
    "/etc/trainyard/tls",
    "/etc/sudoers.d/trainyard-hub",
    "/var/lib/trainyard/hub",
    "/var/lib/trainyard/placed.d/jupyterhub.json",
    "/run/trainyard-hub",
    "/etc/trainyard/firewall",
    "/etc/systemd/system/trainyard-instances.service",
    "/var/lib/trainyard/placed.d/jupyterhub.packages.json",
)
# The account of the hub alone may, while the role is there.
CONNECT = """python3 -c 'import socket; server = socket.create_server(("172.30.104.21", 30500)); socket.create_connection(server.getsockname(), 5)'"""


def test_a_second_run_changes_nothing(cluster, role):
    assert role().changed == 0
    assert "ConnectionRefusedError" in cluster.on(cluster.head, CONNECT, check=False).text


def test_drift_of_the_hub_is_told_and_gone_after_the_role(cluster, playbook, role):
    def rows(run):
        return set(
            re.findall(
                r"(workbench-[ab]) (/\S+|service trainyard-\S+|nftables table inet \w+) (?:as planned|active|loaded) (?=missing|not)",
                run.text,
            )
        )

    assert rows(playbook("drift.yml")) == set()
    # Slurm's daemon starts the health program every five minutes, which would load the tables again
    # before they are compared.
    for host in (cluster.head, cluster.peer):
        cluster.on(host, "systemctl kill --signal=STOP slurmd")
    try:
        cluster.on(
            cluster.head,
            "echo >> /etc/trainyard/notebook/server.json && systemctl stop trainyard-hub-links && nft delete table inet trainyard_instances",
        )
        cluster.on(cluster.peer, "systemctl stop trainyard-instances")
        run = playbook("drift.yml")
    finally:
        for host in (cluster.head, cluster.peer):
            cluster.on(host, "systemctl kill --signal=CONT slurmd")
    assert (
        run.code == 2
        and run.changed == 0
        and rows(run)
        == {
            (cluster.head, "/etc/trainyard/notebook/server.json"),
            (cluster.head, "service trainyard-hub-links"),
            (cluster.head, "nftables table inet trainyard_instances"),
            (cluster.peer, "service trainyard-instances"),
            (cluster.peer, "nftables table inet trainyard_instances"),
        }
    ), run.text[-3000:]
    # A table that was deleted by hand comes back with a restart.
    cluster.on(cluster.head, "systemctl restart trainyard-instances")
    cluster.on(cluster.peer, "systemctl start trainyard-instances")
    assert role().code == 0 and rows(playbook("drift.yml")) == set()


def test_nothing_is_left(cluster, playbook, role):
    """After it was switched off. The command for jobs and sudo were there before."""
    run = playbook("drift.yml", jupyterhub_enabled=False)
    assert run.code == 2 and all(
        "%s %s absent installed" % pair in run.text
        for pair in (
            (cluster.head, "JupyterHub"),
            (cluster.head, "JupyterLab of instances"),
            (cluster.peer, "JupyterLab of instances"),
        )
    ), run.text[-3000:]
    assert playbook("workbench.yml", jupyterhub_enabled=False).code == 0
    assert playbook("workbench.yml", jupyterhub_enabled=False).changed == 0
    assert cluster.on(cluster.peer, "ls --directory " + " ".join(PATHS), check=False).out == ""
    units = "/etc/systemd/system/trainyard-hub* /etc/systemd/system/*/trainyard-hub*"
    assert (
        cluster.on(cluster.head, "ls --directory %s %s" % (" ".join(PATHS), units), check=False).out
        == ""
    )
    assert cluster.on(cluster.head, "id trainyard-hub", check=False).code == 1
    # No rule is left in the kernel: an account that is not the hub's reaches a port of instances.
    cluster.on(cluster.head, CONNECT)
    assert (
        cluster.on(
            cluster.head,
            "pgrep -u trainyard-hub; systemctl list-units --all --no-legend 'trainyard-hub*'",
            check=False,
        ).out
        == ""
    )
    assert (
        cluster.on(
            cluster.head,
            "dpkg-query --show --showformat='${db:Status-Status}' python3-venv",
            check=False,
        ).out
        != "installed"
    )
    assert cluster.on(cluster.head, "command -v sudo openssl").out.count("/") >= 2
    done = cluster.trainyard("alice", "login", check=False)
    assert (
        done.code == 2
        and "this host has no hub" in done.text
        and cluster.trainyard("alice", "quota").code == 0
    )
    assert role("remove").changed == 0
