"""What a second person tries: alice's jobs, sessions, files and limits, from bob's account. docs/security.md names the promises."""

from __future__ import annotations

import shlex
import time

# Makes as many nested folders as no path can name.
DEEP = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n"

# --- between jobs -----------------------------------------------------------------------------------------------------------

#: A stand-in for a launcher's store: the first worker keeps what arrives at its port, and the second one sends it something.
STORE = """
import os, socket, sys, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["TRAINYARD_WORKER_INDEX"] == "1":
    deadline = time.time() + 60
    while time.time() < deadline:
        try:
            with socket.create_connection(address, 5) as connection:
                connection.sendall(b"second worker")
            break
        except OSError:
            time.sleep(0.2)
    sys.exit(0)
server = socket.create_server(address)
server.settimeout(60)
open(sys.argv[1], "w").write("%s %d" % address)
while not os.path.exists(sys.argv[1] + ".end"):
    connection = server.accept()[0]
    print("got:", connection.recv(99).decode(), flush=True)
    connection.close()
"""
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).sendall(b'of bob')"


def test_a_second_person_does_not_reach_the_store_of_a_job(cluster):
    """From the login host, from a job of his own on the host of the store, and from a container there."""
    folder = "/data1/share/user/alice"
    cluster.as_person("alice", "rm -f %s/address* && printf %%s %s > %s/store.py" % (folder, shlex.quote(STORE), folder))
    cluster.as_person("alice", "srun --nodes=2 --ntasks-per-node=1 --gpus=0 --mem=200M trainyard-run site/tools:1 -- python3 %s/store.py %s/address "
                               "> %s/store.log 2>&1 < /dev/null &" % (folder, folder, folder))
    try:
        deadline = time.monotonic() + 60
        while not cluster.on(cluster.head, "cat %s/address" % folder, check=False).out:
            assert time.monotonic() < deadline, cluster.on(cluster.head, "cat %s/store.log" % folder, check=False).text
            time.sleep(0.5)
        address, port = cluster.on(cluster.head, "cat %s/address" % folder).out.split()
        knock = "python3 -c %s %s %s" % (shlex.quote(KNOCK), address, port)
        own = "srun --nodelist=%s --gpus=0 --mem=200M " % cluster.head
        for command in (knock, own + knock, own + "trainyard-run site/tools:1 -- " + knock):
            done = cluster.as_person("bob", command, check=False)
            assert done.code != 0 and "ConnectionRefusedError" in done.text, done.text
    finally:
        cluster.as_person("alice", "touch %s/address.end; scancel --user=alice --full; sleep 3" % folder, check=False)
    assert cluster.on(cluster.head, "grep got: %s/store.log" % folder).out.splitlines() == ["got: second worker"]
    for host in cluster.hosts:
        assert "to_" not in cluster.on(host, "nft list table inet trainyard_jobs | grep -E 'to_[0-9]' || true").out


# --- in the browser: identity of instances -----------------------------------------------------------------------------------


# --- in the browser: pages, tokens and helpers ------------------------------------------------------------------------------


# --- on the hosts -----------------------------------------------------------------------------------------------------------

def test_what_a_job_leaves_keeps_no_node_out_of_service(cluster):
    script = "for top in /tmp /dev/shm; do mkdir $top/left && cd $top/left && python3 -c \"%s\"; done; mkdir '/tmp/a\nb' /tmp/closed; chmod 0 /tmp/closed" % DEEP
    cluster.as_person("bob", "srun --nodelist=%s --mem=200M sh -c %s" % (cluster.peer, shlex.quote(script)))
    cluster.nothing_left("bob")
    assert cluster.on(cluster.head, "sinfo --noheader --nodes=%s --format %%T" % cluster.peer).out.strip() == "idle"
    assert cluster.on(cluster.peer, "ls /run/trainyard/epilog.failed; find /tmp -maxdepth 1 -user bob", check=False).out == ""


def test_cron_and_at_are_refused_on_training_hosts(cluster):
    for host in cluster.hosts:
        assert "bob" not in cluster.on(host, "cat /etc/cron.allow /etc/at.allow").out.split()



# --- people who leave, and limits -------------------------------------------------------------------------------------------
