"""The two hosts, checked without Ansible: the exports, their clients, and the mounts."""

from __future__ import annotations

from virtual_cluster import SHARE


def test_client_has_mounted_it_by_nfs_4_from_the_server(cluster):
    kind, source, options = cluster.mount(cluster.client)
    assert (kind, source) == ("nfs4", "%s:%s" % (cluster.address[cluster.server], SHARE))
    assert {"hard", "vers=4.2", "rw", "nosuid", "nodev"} <= set(options.split(","))
    assert cluster.on(cluster.client, "systemctl is-enabled data1-share.mount").out == "enabled\n"
    # The server uses the folder directly and does not mount its own export.
    assert cluster.mount(cluster.server) == []


def test_server_exports_it_to_the_other_host_alone_and_squashes_root(cluster):
    # This also lists the defaults, which exportfs -v omits.
    exports = cluster.on(cluster.server, "cat /var/lib/nfs/etab").out.splitlines()
    assert len(exports) == 1
    path, client = exports[0].split()
    assert path == SHARE and client.startswith("%s(" % cluster.address[cluster.client])
    options = client.partition("(")[2].rstrip(")").split(",")
    assert {
        "rw",
        "sync",
        "root_squash",
        "no_subtree_check",
        "anonuid=65534",
        "anongid=65534",
    } <= set(options) and "no_root_squash" not in options
    assert cluster.on(
        cluster.server, "cat /proc/fs/nfsd/nfsv4leasetime /proc/fs/nfsd/nfsv4gracetime"
    ).out.split() == ["15", "15"]
    assert cluster.on(cluster.server, "cat /proc/fs/nfsd/threads").out == "4\n"
    assert {"-4.0", "+4.1", "+4.2"} <= set(
        cluster.on(cluster.server, "cat /proc/fs/nfsd/versions").out.split()
    )
    # The site's own files are unchanged.
    assert cluster.on(cluster.server, "grep --count '^[^#]' /etc/exports", check=False).out == "0\n"


def test_root_of_each_host_changes_and_removes_what_root_of_the_other_made(cluster):
    """Like root in the training containers, which has the same rights as the host's root."""
    for maker, other in ((cluster.server, cluster.client), (cluster.client, cluster.server)):
        cluster.on(
            maker,
            "set -e; umask 022; mkdir -p %s/made/by/root; echo one > %s/made/by/root/file"
            % (SHARE, SHARE),
        )
        cluster.on(
            other,
            "set -e; cd %s/made/by/root; echo two >> file; echo three > another; rm another"
            % SHARE,
        )
        assert cluster.on(maker, "cat %s/made/by/root/file" % SHARE).out == "one\ntwo\n"
        cluster.on(other, "rm -r %s/made" % SHARE)
        assert cluster.on(maker, "ls %s" % SHARE).out == ""
    # Root of the clients is not root on the server.
    cluster.on(cluster.client, "touch %s/whose" % SHARE)
    assert (
        cluster.on(
            cluster.server, "stat --format '%%u' %s/whose && rm %s/whose" % (SHARE, SHARE)
        ).out
        == "65534\n"
    )


def test_folder_was_measured_once(cluster):
    for host in cluster.hosts:
        speed = cluster.on(host, "cat /var/lib/trainyard/shared_storage.speed.json").out
        assert '"write_mib_per_second": ' in speed and '"large_mib": 16' in speed
    assert cluster.on(cluster.server, "ls --almost-all %s" % SHARE).out == ""
