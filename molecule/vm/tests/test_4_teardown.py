"""teardown.yml removes only what the collection installed: compares two snapshots of each host.

Then another firewall, on clean hosts.
"""

from __future__ import annotations

from state_left import state_left
from virtual_cluster import SHARE


def test_nothing_is_left(cluster):
    cluster.on(cluster.client, "echo kept > %s/of-the-user" % SHARE)
    # The users' files are kept. The test removes them as their owner would.
    cluster.on(cluster.server, "rm -rf /data1/user/* /mnt/share/vision/*", check=False)
    # The file system had no quotas before. A quota that was changed since is left alone.
    assert cluster.shared_storage("-e", cluster.people_with_keys()).code == 0
    assert cluster.login("anna", cluster.client, "true").code == 0
    assert cluster.quotas() == {2001: 65536, 2002: 32768}
    cluster.on(cluster.server, "setquota --user 2001 0 1024 0 0 /data1")
    run = cluster.playbook("playbooks/teardown.yml")
    assert run.code == 0
    found = state_left(cluster.hosts, cluster.state, cluster.run_python)
    # The folder created by the role now belongs to the user, because it is not empty.
    assert found == {"%s: state: path %s" % (cluster.server, SHARE): "was None, is present"}
    assert [cluster.on(host, "ls --almost-all /mnt").out for host in cluster.hosts] == ["", ""]
    assert (
        cluster.on(cluster.server, "cat %s/of-the-user; rm %s/of-the-user" % (SHARE, SHARE)).out
        == "kept\n"
    )
    assert cluster.mount(cluster.client) == []
    cluster.on(
        cluster.server,
        "DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends quota",
    )
    assert cluster.quotas() == {2001: 1024}
    cluster.on(
        cluster.server,
        "setquota --user 2001 0 0 0 0 /data1 && DEBIAN_FRONTEND=noninteractive apt-get purge -qq -y --auto-remove quota",
    )


def test_firewalld_too_is_open_for_the_clients_alone(cluster):
    """Last, because it leaves packages on the server.

    Before the run, a firewalld without a rule for NFS blocks the client.
    """
    reach = "timeout 10 bash -c '< /dev/tcp/%s/2049'" % cluster.address[cluster.server]
    cluster.on(
        cluster.server,
        "ufw --force disable && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends firewalld && firewall-cmd --state",
    )
    assert cluster.on(cluster.client, reach, check=False).code != 0
    run = cluster.shared_storage()
    assert run.code == 0
    rules = cluster.on(
        cluster.server, "firewall-cmd --permanent --list-rich-rules"
    ).out.splitlines()
    assert len(rules) == 1 and 'source address="%s"' % cluster.address[cluster.client] in rules[0]
    assert cluster.on(cluster.client, reach, check=False).code == 0
    again = cluster.shared_storage()
    assert (again.code, again.changed) == (0, {})
