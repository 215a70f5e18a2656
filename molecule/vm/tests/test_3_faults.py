"""The other faults, and control tests that must lose data or fail, which show that the tests detect
faults.
"""

from __future__ import annotations

import socket
import time

import pytest
from virtual_cluster import SHARE, lines_of


def mounted(cluster, path=SHARE):
    return cluster.mount(cluster.client, path)[:1] == ["nfs4"]


def test_second_run_changes_nothing(cluster):
    measured = [
        cluster.on(host, "stat --format %y /var/lib/trainyard/shared_storage.speed.json").out
        for host in cluster.hosts
    ]
    run = cluster.shared_storage()
    assert (run.code, run.changed) == (0, {})
    assert measured == [
        cluster.on(host, "stat --format %y /var/lib/trainyard/shared_storage.speed.json").out
        for host in cluster.hosts
    ]
    assert all(count <= 8 for count in run.runs.values()), run.runs


def test_server_rebooted_while_a_client_writes(cluster):
    cluster.start_writer(cluster.client, "%s/lines" % SHARE, 2000)
    former = cluster.reboot(cluster.server)
    assert cluster.acknowledged(cluster.client) < 1500, (
        "the writer is nearly at its end before the server goes down"
    )
    cluster.wait_for_boot(cluster.server, former)
    cluster.wait(
        "the writer, which goes on by itself", 300, lambda: cluster.has_written(cluster.client)
    )
    assert lines_of(
        cluster.on(cluster.server, "cat %s/lines; rm %s/lines" % (SHARE, SHARE)).out
    ) == list(range(2000))


def test_control_an_async_export_loses_what_it_has_acknowledged(cluster):
    """The same kill with `async`: the server acknowledged data that it had not flushed."""
    client = cluster.address[cluster.client]
    cluster.on(
        cluster.server,
        "mkdir -p /data1/async && chmod 0777 /data1/async && touch /data1/async/before && sync && exportfs -o rw,async,no_subtree_check %s:/data1/async"
        % client,
    )
    cluster.on(
        cluster.client,
        "mkdir -p /mnt/async && mount -t nfs -o vers=4.2,hard %s:/data1/async /mnt/async"
        % cluster.address[cluster.server],
    )
    cluster.start_writer(cluster.client, "/mnt/async/lines", 100000)
    former = cluster.boot_id(cluster.server)
    acknowledged = cluster.acknowledged(cluster.client)
    cluster.power(cluster.server, "off")
    cluster.on(cluster.client, "systemctl kill --signal=KILL writer")
    cluster.power(cluster.server, "on")
    cluster.wait_for_boot(cluster.server, former)
    kept = lines_of(
        cluster.on(
            cluster.server,
            "ls /data1/async/before > /dev/null && if [ -e /data1/async/lines ]; then cat /data1/async/lines; fi",
        ).out
    )
    print("acknowledged %d, kept %d" % (acknowledged + 1, len(kept)), flush=True)
    assert len(kept) <= acknowledged, (
        "nothing was lost: the kill would not be seen with sync either"
    )
    cluster.on(cluster.client, "umount --force --lazy /mnt/async; rmdir /mnt/async")
    cluster.on(cluster.server, "rm -r /data1/async")
    cluster.wait(
        "the share",
        120,
        lambda: cluster.on(cluster.client, "stat %s" % SHARE, check=False).code == 0,
    )


def test_link_cut_for_a_minute(cluster):
    cluster.start_writer(cluster.client, "%s/lines" % SHARE, 2000)
    cluster.link(cluster.server, "down")
    time.sleep(5)
    stuck = cluster.acknowledged(cluster.client)
    time.sleep(55)
    assert cluster.acknowledged(cluster.client) == stuck
    cluster.link(cluster.server, "up")
    cluster.wait(
        "the writer, which goes on by itself", 300, lambda: cluster.has_written(cluster.client)
    )
    assert lines_of(
        cluster.on(cluster.server, "cat %s/lines; rm %s/lines" % (SHARE, SHARE)).out
    ) == list(range(2000))


def test_control_a_soft_mount_loses_lines_in_the_same_cut(cluster):
    # Another minor version gives it a separate connection. On the hard mount's connection it would
    # wait as long as that one.
    cluster.on(
        cluster.client,
        "mkdir -p /mnt/soft && mount -t nfs -o vers=4.1,soft,timeo=20,retrans=1 %s:%s /mnt/soft"
        % (cluster.address[cluster.server], SHARE),
    )
    # The writer ignores errors, as many jobs do when they write a checkpoint.
    cluster.on(
        cluster.client,
        "systemd-run --quiet --collect --unit=soft sh -c 'for n in $(seq 0 199); do echo $n >> /mnt/soft/soft-lines; sleep 0.2; done; touch /var/tmp/soft-end'",
    )
    time.sleep(8)
    cluster.link(cluster.server, "down")
    time.sleep(40)
    cluster.link(cluster.server, "up")
    cluster.wait(
        "the end of the loop",
        300,
        lambda: cluster.on(cluster.client, "test -e /var/tmp/soft-end", check=False).code == 0,
    )
    lines = cluster.on(
        cluster.server, "cat %s/soft-lines; rm %s/soft-lines" % (SHARE, SHARE)
    ).out.split()
    print("%d of 200 lines are there" % len(lines), flush=True)
    assert 0 < len(lines) < 200
    cluster.on(cluster.client, "umount --lazy /mnt/soft; rmdir /mnt/soft; rm /var/tmp/soft-end")


def test_folder_unmounted_and_export_removed_by_hand(cluster):
    cluster.on(cluster.client, "systemctl stop data1-share.mount")
    refused = cluster.on(cluster.client, "touch %s/on-the-root-disk" % SHARE, check=False)
    assert refused.code != 0 and "not permitted" in refused.text
    # The site's own exports are left alone.
    site = "/srv/site 192.0.2.7(ro,sync,no_subtree_check)\n"
    cluster.on(
        cluster.server,
        "mkdir -p /srv/site && printf '%s' > /etc/exports.d/site.exports && exportfs -ra" % site,
    )
    cluster.on(cluster.server, "exportfs -u %s:%s" % (cluster.address[cluster.client], SHARE))
    run = cluster.shared_storage()
    assert run.code == 0 and cluster.server in run.changed and mounted(cluster)
    assert cluster.on(cluster.client, "ls %s" % SHARE).out == ""
    assert {
        line.split()[0] for line in cluster.on(cluster.server, "exportfs -s").out.splitlines()
    } == {SHARE, "/srv/site"}
    # exportfs rejects unknown host names. The former exports are active again.
    refused = cluster.shared_storage("-e", {"nfs_server_clients": ["no-such-host.example"]})
    assert refused.code == 2 and "the former ones are active again" in refused.text
    assert {
        line.split()[0] for line in cluster.on(cluster.server, "exportfs -s").out.splitlines()
    } == {SHARE, "/srv/site"}
    assert cluster.on(cluster.server, "cat /etc/exports.d/site.exports").out == site
    cluster.on(cluster.server, "rm /etc/exports.d/site.exports && rmdir /srv/site && exportfs -ra")
    assert (
        mounted(cluster)
        and cluster.on(cluster.client, "touch %s/again && rm %s/again" % (SHARE, SHARE)).code == 0
    )


def test_disk_of_the_share_full(cluster):
    units = "systemctl list-units --state=failed --plain --no-legend | cut -d' ' -f1"
    before = {host: cluster.on(host, units).out for host in cluster.hosts}
    # Including the last blocks, which are reserved for root.
    cluster.on(
        cluster.server,
        "fallocate --length $(($(stat --file-system --format '%%f * %%S' %s) - 8192)) /data1/filler; cat /dev/zero > /data1/filler2"
        % SHARE,
        check=False,
    )
    full = cluster.on(
        cluster.client, "dd if=/dev/zero of=%s/more bs=1M count=4 conv=fsync" % SHARE, check=False
    )
    assert full.code != 0 and "No space left on device" in full.text
    run = cluster.shared_storage()
    assert run.code == 2
    assert "its storage or quota is full" in run.text and "Free space on it" in run.text
    assert {host: cluster.on(host, units).out for host in cluster.hosts} == before
    cluster.on(cluster.server, "rm -f /data1/filler /data1/filler2 %s/more" % SHARE)


def test_stale_handle_after_the_folder_was_made_again(cluster):
    """After the test with the full disk, the run also verifies that there is space again."""
    cluster.make_share_again()
    cluster.wait(
        "the stale handle",
        60,
        lambda: (
            "Stale" in cluster.on(cluster.client, "stat --file-system %s" % SHARE, check=False).text
        ),
    )
    run = cluster.shared_storage()
    assert run.code == 0
    assert mounted(cluster)
    cluster.on(cluster.client, "touch %s/healed" % SHARE)
    cluster.on(cluster.server, "rm %s/healed" % SHARE)


def test_both_started_at_once_and_the_server_slower(cluster):
    cluster.on(
        cluster.server,
        "mkdir -p /etc/systemd/system/nfs-server.service.d && printf '[Service]\\nExecStartPre=/bin/sleep 60\\nTimeoutStartSec=300\\n' "
        "> /etc/systemd/system/nfs-server.service.d/slow.conf && sync",
    )
    former = {host: cluster.boot_id(host) for host in cluster.hosts}
    for host in cluster.hosts:
        cluster.power(host, "off")
    for host in cluster.hosts:
        cluster.power(host, "on")
    cluster.wait(
        "the client, whose boot doesn't wait for the server",
        420,
        lambda: cluster.boot_id(cluster.client) not in ("", former[cluster.client]),
    )
    cluster.wait("the mount", 420, lambda: mounted(cluster))
    asked = "systemctl show --property=ActiveEnterTimestampMonotonic --value "
    login, mount = (
        int(cluster.on(cluster.client, asked + unit).out)
        for unit in ("systemd-user-sessions.service", "data1-share.mount")
    )
    # The client's clock starts with its kernel. The server's NFS starts at least a minute later.
    assert 0 < login < mount and mount > 60e6
    cluster.wait_for_boot(cluster.server, former[cluster.server])
    assert (
        "sleep 60"
        in cluster.on(
            cluster.server, "systemctl show --property=ExecStartPre nfs-server.service"
        ).out
    )
    cluster.on(
        cluster.server, "rm -r /etc/systemd/system/nfs-server.service.d && systemctl daemon-reload"
    )
    cluster.on(cluster.client, "touch %s/after && rm %s/after" % (SHARE, SHARE))


def test_a_server_outside_by_automount_then_ones_own_by_fstab(cluster):
    """Both hosts mount the share from a server outside the inventory: one of them, under the name
    of a NAS, with an export of the site.
    """
    outside = {
        "nfs_client_mounts": [
            {
                "server": "nas.example",
                "path": "/data1/nas",
                "target": SHARE,
                "options": ["hard", "vers=4.1", "nconnect=2"],
            }
        ],
        "nfs_client_unit": "automount",
    }
    unreachable = cluster.playbook("playbooks/preflight.yml", "-e", outside)
    assert unreachable.code == 2 and unreachable.changed == {}
    assert "nfs-server-unreachable" in unreachable.text
    site = "/data1/nas %s\n" % " ".join(
        "%s(rw,sync,no_subtree_check,no_root_squash)" % address
        for address in cluster.address.values()
    )
    cluster.on(
        cluster.server,
        "mkdir /data1/nas && printf '%s' > /etc/exports.d/site.exports && exportfs -ra && ufw allow 2049/tcp"
        % site,
    )
    for host in cluster.hosts:
        cluster.on(host, "echo '%s nas.example' >> /etc/hosts" % cluster.address[cluster.server])
    run = cluster.shared_storage("-e", outside)
    assert (
        run.code == 0
        and "Not verified for hosts outside this play" not in run.text
        and "nothing was verified" not in run.text
    )
    for host in cluster.hosts:
        kind, source, options = [
            line.split()
            for line in cluster.on(
                host, "findmnt --noheadings --output FSTYPE,SOURCE,OPTIONS %s" % SHARE
            ).out.splitlines()
            if "nfs" in line
        ][0]
        assert (kind, source) == ("nfs4", "nas.example:/data1/nas") and {
            "vers=4.1",
            "nconnect=2",
        } <= set(options.split(","))
        assert cluster.on(host, "systemctl is-active data1-share.automount").out == "active\n"
    # The cluster has no exports any more, and the server now belongs to the site.
    assert {
        line.split()[0] for line in cluster.on(cluster.server, "exportfs -s").out.splitlines()
    } == {"/data1/nas"}
    assert (
        cluster.on(cluster.server, "cat /etc/exports.d/site.exports; ls /etc/exports.d").out
        == site + "site.exports\n"
    )
    # Back to the cluster's server, with a line in fstab: the units are removed.
    cluster.on(cluster.server, "ufw delete allow 2049/tcp")
    run = cluster.shared_storage("-e", {"nfs_client_unit": "fstab"})
    assert run.code == 0 and cluster.mount(cluster.client)[:2] == [
        "nfs4",
        "%s:%s" % (cluster.address[cluster.server], SHARE),
    ]
    for host in cluster.hosts:
        assert cluster.on(host, "ls /etc/systemd/system/ | grep data1", check=False).out == ""
    assert cluster.on(cluster.client, "grep --count nfs /etc/fstab").out == "1\n"
    again = cluster.shared_storage("-e", {"nfs_client_unit": "fstab"})
    assert (again.code, again.changed) == (0, {})
    cluster.on(cluster.server, "rm /etc/exports.d/site.exports && exportfs -ra && rm -r /data1/nas")
    for host in cluster.hosts:
        cluster.on(host, "sed -i /nas.example/d /etc/hosts")


def test_people_and_groups(cluster):
    """Also replaces the line in fstab of the previous test with a unit."""
    people = cluster.people_with_keys()
    run = cluster.shared_storage("-e", people)
    assert run.code == 0 and mounted(cluster)
    assert cluster.on(cluster.client, "grep --count nfs /etc/fstab", check=False).out == "0\n"
    assert cluster.on(cluster.client, "systemctl is-enabled data1-share.mount").out == "enabled\n"
    for host in cluster.hosts:
        assert cluster.on(host, "id -u anna ben; id -gn anna; getent group vision").out.split() == [
            "2001",
            "2002",
            "vision",
            "vision:x:3001:",
        ]
        assert cluster.on(
            host, "stat --format '%a %u %g' /data1/user/anna /data1/user/ben /mnt/share/vision"
        ).out.splitlines() == ["700 2001 3001", "700 2002 2002", "2770 0 3001"]
        assert cluster.on(host, "getent shadow anna").out.split(":")[1] in ("!", "!!", "*")
    assert mounted(cluster, "/data1/user") and mounted(cluster, "/mnt/share")
    cluster.on(
        cluster.client,
        "su anna -c 'echo mine > /data1/user/anna/file && echo ours > /mnt/share/vision/file'",
    )
    assert (
        cluster.on(cluster.client, "su ben -c 'cat /data1/user/anna/file'", check=False).code != 0
    )
    assert (
        cluster.on(cluster.server, "stat --format %u:%g /mnt/share/vision/file").out
        == "2001:3001\n"
    )
    # ben's quota is 32 MiB.
    over = cluster.on(
        cluster.client,
        "su ben -c 'dd if=/dev/zero of=/data1/user/ben/file bs=1M count=40 conv=fsync'",
        check=False,
    )
    assert over.code != 0 and "quota" in over.text.lower()
    assert "no group quotas are on for /" in run.text
    assert cluster.quotas() == {2001: 65536, 2002: 32768}
    again = cluster.shared_storage("-e", people)
    assert (again.code, again.changed) == (0, {})
    # anna has a key on the login host, and her home there is on the share.
    assert (
        cluster.login("anna", cluster.client, "id -un; pwd; cat file").out
        == "anna\n/data1/user/anna\nmine\n"
    )
    assert (
        cluster.login("anna", cluster.server, "true").code == 255
        and cluster.login("ben", cluster.client, "true").code == 255
    )
    # A quota that was changed since is left alone.
    cluster.on(cluster.server, "setquota --user 2001 0 70000 0 0 /data1")
    # No longer configured, but in use: neither the mount nor the export is removed, because data
    # that is not written yet would be lost.
    cluster.on(
        cluster.client,
        "systemd-run --quiet --collect --uid=anna --unit=holder sh -c 'exec 3> /data1/user/anna/held; echo held >&3; sleep 1000'",
    )
    cluster.wait(
        "the file that is held open",
        60,
        lambda: (
            cluster.on(cluster.client, "su anna -c 'cat /data1/user/anna/held'", check=False).out
            == "held\n"
        ),
    )
    refused = cluster.shared_storage()
    assert refused.code == 2
    assert "/data1/user" in cluster.on(cluster.server, "exportfs -s").out and mounted(
        cluster, "/data1/user"
    )
    cluster.on(cluster.client, "systemctl stop holder")
    # Not in use: the mount and the quota are removed. The users' files are kept.
    assert cluster.shared_storage().code == 0
    assert cluster.login("anna", cluster.client, "true").code == 255
    assert (
        cluster.on(
            cluster.client,
            "ls /etc/ssh/sshd_config.d/00-trainyard-people.conf /etc/trainyard/people",
            check=False,
        ).code
        != 0
    )
    assert cluster.quotas() == {2001: 70000}
    cluster.on(cluster.server, "setquota --user 2001 0 0 0 0 /data1")
    assert cluster.on(cluster.server, "cat /data1/user/anna/held").out == "held\n"
    assert not mounted(cluster, "/data1/user")
    assert cluster.on(cluster.server, "cat /data1/user/anna/file").out == "mine\n"


def test_what_is_refused_before_anything_changes(cluster):
    """A selection. tests/unit/plugins/action/test_judge_input.py has all checks of the
    controller.
    """
    for variables, said in (
        ({"cluster_share_path": "data1/share"}, "cluster_share_path"),
        ({"cluster_share_path": "/"}, "cluster_share_path"),
        ({"nfs_server_options": ["rw", "norootsquash"]}, "nfs_server_options[1]: norootsquash"),
        (
            {"shared_storage_users": [{"name": "anna", "uid": 999}]},
            "shared_storage_users[0].uid: 999",
        ),
        (
            {"shared_storage_users": [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": 2001}]},
            "every value once",
        ),
        (
            {"shared_storage_users": [{"name": "anna", "uid": 2001, "groups": ["nobodys"]}]},
            "shared_storage_users[0].groups[0]: nobodys",
        ),
        (
            {
                "nfs_client_mounts": [
                    {"server": "10.0.0.1", "path": "/a", "target": "/data1/share"},
                    {"server": "10.0.0.1", "path": "/b", "target": "/data1/share/"},
                ]
            },
            "every target once",
        ),
    ):
        run = cluster.playbook("playbooks/inventory_check.yml", "-e", variables)
        assert run.code == 2 and run.changed == {}
        assert said in run.text, (variables, run.text[-1500:])
    # The client exports nothing, and a mount from it would wait forever.
    mount = {"server": cluster.client, "path": "/data1/other"}
    run = cluster.playbook(
        "playbooks/preflight.yml",
        "-e",
        {
            "nfs_server_clients": ["no-such-host.example"],
            "shared_storage_users": [{"name": "ops", "uid": 2001}],
            "nfs_client_mounts": [mount],
        },
    )
    assert run.code == 2 and run.changed == {}
    assert (
        "nfs-client-unknown" in run.text
        and "account-clash" in run.text
        and "NFS server %s" % cluster.client in run.text
    )


def test_firewall_is_open_for_the_clients_alone(cluster):
    rules = [
        line
        for line in cluster.on(cluster.server, "ufw status").out.splitlines()
        if line.startswith("2049")
    ]
    assert len(rules) == 1 and cluster.address[cluster.client] in rules[0]
    # This machine is not a client, but is on the same network.
    with pytest.raises(OSError):
        socket.create_connection((cluster.address[cluster.server], 2049), 5)
    socket.create_connection((cluster.address[cluster.server], 22), 5).close()
