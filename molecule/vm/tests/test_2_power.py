"""A client reboots, and a server loses power during writes."""

from __future__ import annotations

import time

from virtual_cluster import SHARE, lines_of

LINES = 1000


def test_client_rebooted(cluster):
    cluster.on(cluster.client, "echo before > %s/reboot" % SHARE)
    cluster.wait_for_boot(cluster.client, cluster.reboot(cluster.client))
    cluster.wait(
        "the mount after the boot", 120, lambda: cluster.mount(cluster.client)[:1] == ["nfs4"]
    )
    assert (
        cluster.on(cluster.client, "cat %s/reboot && rm %s/reboot" % (SHARE, SHARE)).out
        == "before\n"
    )
    print(
        "seconds from the start of systemd to the mount: %s"
        % cluster.on(
            cluster.client,
            "systemctl show --property=ActiveEnterTimestampMonotonic --value data1-share.mount",
        ).out.strip(),
        flush=True,
    )


def test_server_killed_in_the_middle_of_a_write(cluster):
    """The host's process gets SIGKILL, so the data in the memory of the server's kernel is lost.

    Flushed data stays in this machine's memory. This verifies that the server acknowledges nothing
    before it has flushed it, but not that a disk keeps flushed data.
    """
    cluster.start_writer(cluster.client, "%s/lines" % SHARE, LINES)
    former = cluster.boot_id(cluster.server)
    cluster.power(cluster.server, "off")
    time.sleep(2)
    acknowledged = cluster.acknowledged(cluster.client)
    assert 10 < acknowledged < LINES - 1, "the writer was at its end before the server was killed"
    cluster.power(cluster.server, "on")
    cluster.wait_for_boot(cluster.server, former)
    # Read from the server's own disk, without caches of the client.
    kept = lines_of(cluster.on(cluster.server, "cat %s/lines" % SHARE).out)
    assert kept[: acknowledged + 1] == list(range(acknowledged + 1))
    cluster.wait(
        "the writer, which goes on by itself", 300, lambda: cluster.has_written(cluster.client)
    )
    assert lines_of(cluster.on(cluster.server, "cat %s/lines" % SHARE).out) == list(range(LINES))
    assert (
        cluster.on(cluster.client, "sha256sum < %s/lines" % SHARE).out
        == cluster.on(cluster.server, "sha256sum < %s/lines" % SHARE).out
    )
    cluster.on(cluster.server, "rm %s/lines" % SHARE)
