"""Folders and quotas of users that need a separate kernel: on a server that squashes root, and on a
disk with quotas.
"""

from __future__ import annotations

from virtual_cluster import SHARE

from ansible_collections.trainyard.gpu.plugins.module_utils._log_causes import answer, log_of

ANNA, BEN = (
    {"owner": 2001, "group": 3001, "mode": "0700"},
    {"owner": 2002, "group": 2002, "mode": "0700"},
)
RECORD = "/var/lib/trainyard/placed.d/test.json"


def test_a_nas_that_squashes_root(cluster):
    """For the client the server is a NAS with an export outside the inventory.

    Folders of its administrator are accepted, and users create their own.
    """
    export = "/data1/nas %s(rw,sync,no_subtree_check,root_squash)" % cluster.address[cluster.client]
    cluster.on(
        cluster.server,
        "mkdir --mode=0755 /data1/nas && echo '%s' > /etc/exports.d/site.exports && exportfs -ra"
        % export,
    )
    cluster.on(
        cluster.client,
        "mkdir /mnt/nas && mount -t nfs4 %s:/data1/nas /mnt/nas" % cluster.address[cluster.server],
    )
    folders = [
        {"path": "/mnt/nas"},
        dict(ANNA, path="/mnt/nas/anna"),
        {"path": "/mnt/nas/vision", "owner": 0, "group": 3001, "mode": "2770"},
    ]
    refused = cluster.module(cluster.client, "shared_folders", folders=folders, record=RECORD)
    commands = [
        "mkdir -p /data1/nas/anna && chown 2001:3001 /data1/nas/anna && chmod 0700 /data1/nas/anna",
        "mkdir -p /data1/nas/vision && chown 0:3001 /data1/nas/vision && chmod 2770 /data1/nas/vision",
    ]
    assert refused.code == 2 and refused.changed == {}
    assert all(command in refused.text for command in commands) and "root_squash" in refused.text
    assert cluster.on(cluster.server, "ls /data1/nas").out == ""
    # The administrator creates them and allows users to create their own folders.
    cluster.on(cluster.server, " && ".join(commands) + " && chmod 1777 /data1/nas")
    again = cluster.module(
        cluster.client,
        "shared_folders",
        folders=[*folders, dict(BEN, path="/mnt/nas/ben")],
        record=RECORD,
    )
    assert again.code == 0
    assert cluster.on(
        cluster.server, "cd /data1/nas && stat --format '%n %a %u %g' *"
    ).out.splitlines() == ["anna 700 2001 3001", "ben 700 2002 2002", "vision 2770 0 3001"]
    assert (
        '"made": true' in cluster.on(cluster.client, "cat " + RECORD).out
        and "anna" not in cluster.on(cluster.client, "cat " + RECORD).out
    )
    limits = cluster.module(
        cluster.client,
        "disk_quotas",
        quotas=[{"path": "/mnt/nas/ben", "kind": "user", "id": 2002, "limit_mib": 8}],
        record=RECORD,
    )
    assert (limits.code, limits.changed) == (0, {})
    cluster.on(cluster.client, "umount /mnt/nas && rmdir /mnt/nas && rm " + RECORD)
    cluster.on(cluster.server, "rm /etc/exports.d/site.exports && exportfs -ra && rm -r /data1/nas")


def test_a_limit_that_the_kernel_keeps(cluster):
    """In CI without the roles and with unpacked tools, because emulated machines install packages
    slowly. test_3_faults.py has the complete test.
    """
    cluster.on(
        cluster.server,
        "set -e; cd /srv; apt-get download quota; dpkg --extract quota_*.deb quota; ln -s /srv/quota/usr/sbin/*quota /usr/local/sbin/",
    )
    cluster.on(cluster.server, "mkdir --mode=0700 /data1/ben && chown 2002:2002 /data1/ben")
    write = "setpriv --reuid 2002 --regid 2002 --clear-groups dd if=/dev/zero of=/data1/ben/file bs=1M count=12 conv=fsync"
    cluster.on(cluster.server, write)
    quota = {"path": "/data1/ben", "kind": "user", "id": 2002, "limit_mib": 8}
    assert cluster.module(cluster.server, "disk_quotas", quotas=[quota], record=RECORD).code == 0
    cluster.on(cluster.server, "rm /data1/ben/file")
    over = cluster.on(cluster.server, write, check=False)
    assert over.code != 0 and "quota" in over.text.lower()
    # What a job says, whose program gets this message.
    assert [cause["id"] for cause in answer(log_of(over.text))["causes"]] == ["quota_exceeded"]
    assert cluster.module(cluster.server, "disk_quotas", record=RECORD, state="former").code == 0
    cluster.on(cluster.server, write)
    cluster.on(
        cluster.server,
        "rm -r /data1/ben /srv/quota*; find /usr/local/sbin -name '*quota' -delete; test ! -e "
        + RECORD,
    )


def test_what_people_write_below_the_share_is_theirs(cluster):
    """The umask of a person counts, and root of another host, who is user 65534 on the server,
    reads nothing. The share itself stays open for it.
    """
    tree, as_anna = SHARE + "/people", "setpriv --reuid 2001 --regid 2001 --clear-groups sh -c "
    as_nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups "
    # As an earlier release has left it, with a file.
    cluster.on(
        cluster.server,
        "mkdir -p %s/anna %s/vision && chown 2001:2001 %s/anna && chmod 0700 %s/anna && chgrp 3001 %s/vision && chmod 2770 %s/vision"
        % ((tree,) * 6),
    )
    cluster.on(
        cluster.server,
        as_anna + "'umask 077; mkdir %s/anna/old; touch %s/anna/old/file'" % (tree, tree),
    )
    assert (
        cluster.on(cluster.server, as_nobody + "touch %s/vision/of-nobody" % tree, check=False).code
        == 0
    ), "the fault of earlier releases"
    folders = [
        {"path": tree, "without_uid": 65534},
        dict(ANNA, path=tree + "/anna", group=2001, without_uid=65534),
        {"path": tree + "/vision", "owner": 0, "group": 3001, "mode": "2770", "without_uid": 65534},
    ]
    assert (
        cluster.module(cluster.server, "shared_folders", folders=folders, record=RECORD).code == 0
    )
    again = cluster.module(cluster.server, "shared_folders", folders=folders, record=RECORD)
    assert (again.code, again.changed) == (0, {})
    cluster.on(
        cluster.client, as_anna + "'umask 077; cd %s/anna; mkdir .ssh; touch .ssh/key'" % tree
    )
    seen = cluster.on(cluster.server, "cd %s/anna; stat --format %%a .ssh .ssh/key" % tree)
    assert seen.out.split() == ["700", "600"]
    # Although anna opens her folder.
    cluster.on(cluster.server, "chmod 755 %s/anna" % tree)
    for command in ("ls %s/anna/.ssh", "ls %s/vision", "touch %s/vision/x", "touch %s/anna/old/x"):
        assert cluster.on(cluster.client, command % tree, check=False).code != 0, command
        assert cluster.on(cluster.server, as_nobody + command % tree, check=False).code != 0, (
            command
        )
    cluster.on(cluster.client, "touch %s/of-root && rm %s/of-root" % (SHARE, SHARE))
    cluster.on(cluster.server, "rm -r %s %s" % (tree, RECORD))
