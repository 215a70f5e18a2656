"""Ports of jobs: alice's job of two hosts, whose first worker listens on job-container-b, and bob,
who tries to reach it.

job-container-a is a login host, too. Nobody logs in on job-container-b.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex

import pytest
from jobs import Job, left

HEAD, PEER = "job-container-a", "job-container-b"
testinfra_hosts = ["ansible://" + PEER]
PAIR = {"SLURM_JOB_NODELIST": "job-container-a,job-container-b"}
ADDRESS, OF_HEAD = "172.30.102.22", "172.30.102.21"
#: In the second network, which the inventory does not name.
SECOND = ("10.8.102.22", "fd00:102::22")
TABLE = "nft list table inet trainyard_jobs"
SERVER = """
import socket, sys
server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM if sys.argv[2] == "tcp" else socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("::", int(sys.argv[1])))
if sys.argv[2] == "udp":
    while True:
        server.sendto(b"hello", server.recvfrom(9)[1])
server.listen(9)
while True:
    connection = server.accept()[0]
    connection.sendall(b"hello")
    connection.close()
"""
CLIENT = """
import socket, sys
client = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_STREAM if sys.argv[3] == "tcp" else socket.SOCK_DGRAM)
client.settimeout(3)
try:
    if sys.argv[4:]:
        client.bind((sys.argv[4], 0))
    client.connect(socket.getaddrinfo(sys.argv[1], int(sys.argv[2]))[0][4])
    client.send(b"x")
    print(client.recv(9).decode())
except OSError as error:
    print(type(error).__name__)
"""
REFUSED = ("ConnectionRefusedError", "PermissionError")


@pytest.fixture
def head(host):
    return host.get_host(
        "ansible://" + HEAD, ansible_inventory=host.backend.ansible_inventory, sudo=True
    )


def as_person(person, *words):
    return "setpriv --reuid=%s --regid=%s --init-groups %s" % (
        person,
        person,
        shlex.join(["python3", "-c", *map(str, words)]),
    )


@contextlib.contextmanager
def listening(host, person, port, kind="tcp"):
    """A process of a person that greets everybody."""
    pid = host.check_output(
        "%s > /dev/null 2>&1 < /dev/null & echo $!" % as_person(person, SERVER, port, kind)
    )
    try:
        host.run_expect(
            [0],
            "for i in $(seq 100); do ss --no-header --listening --numeric --tcp --udp 'sport = :%d' | grep --quiet . && exit 0; "
            "sleep 0.1; done; exit 1" % port,
        )
        yield
    finally:
        host.run("kill %s" % pid)


def answer(host, person, port, address=ADDRESS, kind="tcp", source=()):
    return host.check_output(as_person(person, CLIENT, address, port, kind, *source))


def ports(host, number):
    return json.loads(host.file("/run/trainyard/ports/%s.json" % number).content_string)["ports"]


def is_open_for_its_person_only(host, head, port, kind="tcp"):
    """The second worker on the other host, and connections on the own host, by its address and by
    loopback.
    """
    assert answer(head, "alice", port, kind=kind) == "hello"
    for address in (ADDRESS, "127.0.0.1"):
        assert answer(host, "alice", port, address, kind) == "hello"
        assert answer(host, "bob", port, address, kind) in REFUSED, "bob on the same host"
    assert answer(head, "bob", port, kind=kind) in REFUSED, "bob on a login host"


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_port_of_a_job_is_open_to_its_person_only(host, head, kind):
    with (
        Job(head, 4701, **PAIR),
        Job(host, 4701, **PAIR),
        Job(host, 4702, person="bob", gpus="") as bobs,
    ):
        assert ports(head, 4701) == ports(host, 4701), (
            "both hosts know them from the number of the job"
        )
        port = ports(host, 4701)[0][0]
        with listening(host, "alice", port, kind):
            is_open_for_its_person_only(host, head, port, kind)
            inside = bobs.run("python3 -c %s %s %d %s" % (shlex.quote(CLIENT), ADDRESS, port, kind))
            assert inside.rc == 0 and inside.stdout.strip() in REFUSED, (
                "bob in a container of his own job"
            )
            with (
                Job(head, 4703, person="bob", gpus="", **PAIR),
                Job(host, 4703, person="bob", gpus="", **PAIR),
            ):
                assert answer(head, "bob", port, kind=kind) in REFUSED, (
                    "bob has a job on the same two hosts"
                )
        with listening(host, "bob", ports(host, 4702)[0][0], kind):
            assert (
                answer(host, "bob", ports(host, 4702)[0][0], "127.0.0.1", kind) == "hello"
                and answer(head, "alice", ports(host, 4702)[0][0], kind=kind) in REFUSED
            )
    for each in (host, head):
        assert not re.search(r"_\d+", each.check_output(TABLE)), (
            "nothing of a job is left in the table"
        )
    assert left(host) == left(head) == ""


def test_one_who_takes_a_port_of_a_job_answers_nobody(host, head):
    with Job(head, 4704, **PAIR), Job(host, 4704, **PAIR):
        port = ports(host, 4704)[0][1]
        with listening(host, "bob", port):
            assert answer(head, "alice", port) == answer(host, "alice", port) == "TimeoutError"


def test_root_in_a_container_is_its_person(host, head):
    """Its ID is one of the person's subordinate IDs."""
    with Job(head, 4705, **PAIR), Job(host, 4705, **PAIR), Job(host, 4706, person="bob", gpus=""):
        port = ports(host, 4705)[0][0]
        with listening(host, "alice", port):
            for person, uid, said in (("alice", 340590592, ["hello"]), ("bob", 340656128, REFUSED)):
                client = "setpriv --reuid=%d --clear-groups python3 -c %s %s %d tcp" % (
                    uid,
                    shlex.quote(CLIENT),
                    ADDRESS,
                    port,
                )
                assert host.check_output(client) in said, person


@pytest.mark.parametrize("port", [45000, 29500])
def test_other_ports_are_closed_to_people_without_a_job_on_the_host(host, head, port):
    """One as the kernel chooses them, and one that belongs to no job."""
    with Job(head, 4707, **PAIR), Job(host, 4707, **PAIR), listening(host, "alice", port):
        for other, address in ((host, ADDRESS), (host, "127.0.0.1"), (head, ADDRESS)):
            assert (
                answer(other, "alice", port, address) == "hello"
                and answer(other, "bob", port, address) in REFUSED
            )
            assert answer(other, "root", port, address) == "hello", (
                "programs of the system are not judged"
            )
        with Job(host, 4708, person="bob", gpus=""):
            assert answer(host, "bob", port) == "hello", (
                "people who share a host are not separated there"
            )


@contextlib.contextmanager
def unknown_network(host, head):
    """A third network of both hosts, of which no table knows.

    Both have an address of the link, too.
    """
    commands = [
        "ip address %%s 10.99.102.%d/24 dev eth0",
        "ip address %%s fd00:99::%d/64 dev eth0 nodad",
    ]
    places = [
        (each, command % number)
        for each, number in ((head, 21), (host, 22))
        for command in commands
    ]
    for each, command in places:
        each.run_expect([0], command % "add")
    try:
        link = re.search(
            r"fe80::\S+(?=/)", host.check_output("ip -6 -oneline address show dev eth0 scope link")
        ).group()
        yield ["10.99.102.22", "fd00:99::22", link + "%eth0"]
    finally:
        for each, command in places:
            each.run(command.replace(" nodad", "") % "del")


def test_no_address_of_a_host_leads_past_its_table(host, head):
    """The block of a job and a port of the kernel, in networks that the inventory does not name."""
    with Job(head, 4713, **PAIR), Job(host, 4713, **PAIR):
        block = ports(host, 4713)[0][0]
        with (
            listening(host, "alice", block),
            listening(host, "alice", 45002),
            unknown_network(host, head) as unknown,
        ):
            for port in (block, 45002):
                for address in SECOND:
                    assert (
                        answer(head, "alice", port, address)
                        == answer(host, "alice", port, address)
                        == "hello"
                    ), address
                for address in (*SECOND, *unknown):
                    assert answer(head, "bob", port, address) in REFUSED, address
                for address in (SECOND[0], unknown[0]):
                    assert answer(head, "bob", port, address, source=[OF_HEAD]) in REFUSED, (
                        "he looks like a host of the job"
                    )
            assert answer(head, "bob", block, kind="udp", source=[OF_HEAD]) in REFUSED


@pytest.mark.parametrize("uid", [60001, 64999, 65533, 65536, 99999])
def test_ids_outside_of_the_usual_ranges_are_judged(host, head, uid):
    """Accounts of a directory have them.

    Of these, only the one of slurm is an account of the system.
    """
    client = "setpriv --reuid=%d --clear-groups python3 -c %s %s %%d tcp" % (
        uid,
        shlex.quote(CLIENT),
        ADDRESS,
    )
    with Job(head, 4714, **PAIR), Job(host, 4714, **PAIR):
        block = ports(host, 4714)[0][0]
        with listening(host, "alice", block), listening(host, "alice", 45003):
            for port in (block, 45003):
                assert (
                    host.check_output(client % port) in REFUSED
                    and head.check_output(client % port) in REFUSED
                )


def test_the_ports_stay_while_nftables_starts_again(host, head):
    with Job(head, 4709, **PAIR), Job(host, 4709, **PAIR):
        port = ports(host, 4709)[0][0]
        with listening(host, "alice", port):
            for command in (
                "systemctl start nftables",
                "systemctl reload nftables",
                "systemctl restart nftables",
            ):
                for each in (host, head):
                    each.run_expect([0], command)
                is_open_for_its_person_only(host, head, port)


@pytest.mark.parametrize(
    "flush",
    [
        "nft flush ruleset",
        "nft flush table inet trainyard_jobs",
        "nft flush chain inet trainyard_jobs people",
    ],
)
def test_the_health_program_loads_the_table_that_somebody_has_flushed(host, head, flush):
    with Job(head, 4712, **PAIR), Job(host, 4712, **PAIR):
        port = ports(host, 4712)[0][0]
        with listening(host, "alice", port):
            host.run_expect([0], flush)
            assert answer(host, "bob", port) == "hello", "nothing protects the port any more"
            host.run("/usr/local/lib/trainyard/slurm/health")
            is_open_for_its_person_only(host, head, port)


def test_a_prolog_that_fails_opens_nothing(host, head):
    job = Job(host, 4710, **PAIR)
    host.run_expect(
        [0],
        "printf '#!/bin/sh\\necho no netlink >&2\\nexit 1\\n' > /srv/nft && chmod 755 /srv/nft && mount --bind /srv/nft /usr/sbin/nft",
    )
    try:
        done = host.run(job.as_root("prolog"))
    finally:
        host.run_expect([0], "umount /usr/sbin/nft")
    assert (
        done.rc == 1
        and "nft: no netlink; repair nftables on this host, or set job_container_firewall to false"
        in done.stderr
    )
    assert not host.file("/run/trainyard/ports/4710.json").exists
    with Job(head, 4710, **PAIR), listening(host, "alice", 45001):
        assert answer(host, "alice", 45001) in REFUSED
    host.run_expect([0], job.as_root("epilog"))


def test_the_table_is_there_before_jobs(host):
    assert (
        host.service("trainyard-jobs-firewall").is_running
        and host.service("trainyard-jobs-firewall").is_enabled
    )
    assert (
        "Before=slurmd.service"
        in host.file("/etc/systemd/system/trainyard-jobs-firewall.service").content_string
    )
