"""Keys and logins of the ssh mesh."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _ssh_mesh

# Made by ssh-keygen, fingerprints by ssh-keygen -l.
KEYS = {
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJtyXjapDhUJWTy0ntvwkoGVm5DVeGqTrlkoHnIvFo/5": None,
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFffeY+JMYBah+vwF/4Y3uBnQB0XlnhiMRUnLzjcXqyE": "SHA256:D3v/31wE8HKjexd7Tiz4FUa6oAmRGKgjVFnNrQPVaM0",
}
OLD, NEW = KEYS
CLIENT = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIELzV8t/sj3AyZIJ3Sstc18kQi5vxDVjnhPNqF+2Xsu4"


def member(name, in_play=True, reachable=True, address=None):
    return {
        "name": name,
        "address": f"10.0.0.{ord(name)}" if address is None else address,
        "interface": "eth0" if reachable else "",
        "slots": 8 if reachable else 0,
        "reachable": reachable,
        "in_play": in_play,
    }


def entry(name, host_key=OLD, public_key=CLIENT, **more):
    return {
        "name": name,
        "address": f"10.0.0.{ord(name)}",
        "interface": "eth0",
        "slots": 8,
        "host_key": host_key,
        "public_key": public_key,
        **more,
    }


def answer(*recorded, host_key=OLD, public_key=CLIENT, rotated=False):
    return {
        "host_key": host_key,
        "public_key": public_key,
        "rotated": rotated,
        "recorded": {"hosts": list(recorded)} if recorded else {},
    }


def test_fingerprint_is_what_ssh_keygen_prints():
    assert _ssh_mesh.fingerprint(NEW + " a comment") == KEYS[NEW]


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 !!!"])
def test_fingerprint_of_something_else(text):
    with pytest.raises(_ssh_mesh.ParseError):
        _ssh_mesh.fingerprint(text)


def test_the_keys_of_a_new_cluster():
    mesh = _ssh_mesh.mesh_members(
        [member("a"), member("b")], {"b": answer(host_key=NEW), "a": answer()}
    )
    assert mesh == {
        "hosts": [entry("a"), entry("b", host_key=NEW)],
        "kept": [],
        "unknown": [],
        "changed": [],
        "behind": [],
    }


def test_check_mode_before_there_are_keys():
    mesh = _ssh_mesh.mesh_members([member("a")], {"a": answer(host_key="", public_key="")})
    assert mesh["unknown"] == ["a"] and mesh["hosts"][0]["host_key"] is None


def test_key_that_changed_by_itself_is_named_with_both_fingerprints():
    mesh = _ssh_mesh.mesh_members(
        [member("a"), member("b")],
        {"a": answer(entry("a"), entry("b")), "b": answer(entry("a"), entry("b"), host_key=NEW)},
    )
    assert mesh["changed"] == [
        {
            "name": "b",
            "kind": "host_key",
            "found": KEYS[NEW],
            "recorded": _ssh_mesh.fingerprint(OLD),
            "recorded_on": "b",
            "problem": "b: its host key is %s, but the recorded key is %s (b:/etc/trainyard/cluster.json)."
            % (KEYS[NEW], _ssh_mesh.fingerprint(OLD)),
        },
    ]


def test_machine_that_was_replaced_is_named_by_what_the_others_have_on_record():
    mesh = _ssh_mesh.mesh_members(
        [member("a"), member("b")], {"a": answer(entry("a"), entry("b")), "b": answer(host_key=NEW)}
    )
    assert [(key["name"], key["recorded_on"]) for key in mesh["changed"]] == [("b", "a")]


def test_client_key_counts_too():
    mesh = _ssh_mesh.mesh_members([member("a")], {"a": answer(entry("a"), public_key=NEW)})
    assert [(key["kind"], key["found"]) for key in mesh["changed"]] == [("public_key", KEYS[NEW])]
    assert mesh["changed"][0]["problem"].startswith(
        "a: its client key is %s, but the recorded key is " % KEYS[NEW]
    )


def test_asked_rotation_is_no_change_by_itself():
    answers = {
        "a": answer(entry("a"), entry("b")),
        "b": answer(entry("a"), entry("b"), host_key=NEW, rotated=True),
    }
    mesh = _ssh_mesh.mesh_members([member("a"), member("b")], answers)
    assert mesh["changed"] == [] and mesh["hosts"][1]["host_key"] == NEW


def test_host_that_was_away_during_a_rotation_learns_without_an_alarm():
    """b rotated and has that on record; a still has the old key."""
    answers = {
        "a": answer(entry("a"), entry("b")),
        "b": answer(entry("a"), entry("b", host_key=NEW), host_key=NEW),
    }
    mesh = _ssh_mesh.mesh_members([member("a"), member("b")], answers)
    assert mesh["changed"] == [] and mesh["hosts"][1]["host_key"] == NEW


def test_limit_keeps_what_is_on_record_about_a_host_that_is_down():
    mesh = _ssh_mesh.mesh_members(
        [member("a"), member("b", in_play=False, reachable=False, address="")],
        {"a": answer(entry("a"), entry("b", host_key=NEW))},
    )
    assert mesh["hosts"] == [entry("a"), entry("b", host_key=NEW)]
    assert (mesh["kept"], mesh["unknown"], mesh["behind"]) == (["b"], [], [])


def test_limit_on_a_new_cluster_does_not_know_the_others():
    mesh = _ssh_mesh.mesh_members(
        [member("a"), member("b", in_play=False)],
        {"a": answer(), "b": answer(host_key="", public_key="")},
    )
    assert (mesh["unknown"], mesh["behind"]) == (["b"], [])
    assert mesh["hosts"][1]["host_key"] is None and mesh["hosts"][1]["address"] == "10.0.0.98"


@pytest.mark.parametrize(
    "recorded, behind",
    [
        ([entry("a"), entry("b")], []),
        ([entry("a", slots=4), entry("b", interface="bond0")], []),
        ([entry("a", host_key=NEW), entry("b")], ["b"]),
        ([entry("b")], ["b"]),
        ([], []),
    ],
)
def test_host_outside_of_the_play_is_told_what_it_lacks(recorded, behind):
    mesh = _ssh_mesh.mesh_members(
        [member("a"), member("b", in_play=False)],
        {"a": answer(entry("a"), entry("b")), "b": answer(*recorded)},
    )
    assert mesh["behind"] == behind


CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
The fingerprint for the ED25519 key sent by the remote host is
SHA256:XyfaT1rJe+tOcr+josOLp2F7kkqqqLQ5C0ZW9qVv2vI.
Host key verification failed.
"""


@pytest.mark.parametrize(
    "stderr, cause",
    [
        (CHANGED, "host_key_changed"),
        (
            "No ED25519 host key is known for [10.0.0.2]:12345 and you have requested strict checking.\nHost key verification failed.\n",
            "host_key_unknown",
        ),
        ("root@10.0.0.2: Permission denied (publickey).\n", "login_refused"),
        ("ssh: Could not resolve hostname b: Name or service not known\n", "name_unresolved"),
        ("ssh: connect to host 10.0.0.2 port 12345: Connection refused\n", "connection_refused"),
        ("ssh: connect to host 10.0.0.2 port 12345: Connection timed out\n", "timeout"),
        ("Connection timed out during banner exchange\n", "no_banner"),
        (
            "Connection timed out during banner exchange\r\nConnection to 10.0.0.2 port 12345 timed out\r\n",
            "no_banner",
        ),
        ("ssh: connect to host 10.0.0.2 port 12345: No route to host\n", "unreachable"),
        (
            "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.2 port 12345\n",
            "connection_closed",
        ),
        ("sh: 8: /usr/local/lib/trainyard/bin/ssh: not found\n", "ssh_missing"),
        ("something new\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_cause_of_a_login_that_failed(stderr, cause):
    found, fix, evidence = _ssh_mesh.judge_login("b", 255, stderr)
    assert found == cause and fix and evidence


GREETED = """OpenSSH_9.2p1 Debian-2+deb12u3, OpenSSL 3.0.14 4 Jun 2024
debug1: Connecting to 10.0.0.2 [10.0.0.2] port 12345.
debug1: Connection established.
debug1: identity file /etc/trainyard/ssh/id_ed25519-cert type -1: No such file or directory
debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2p1 Debian-2+deb12u3
debug1: SSH2_MSG_KEXINIT sent
"""
LOGGED_IN = (
    GREETED
    + """debug1: SSH2_MSG_NEWKEYS received
Authenticated to 10.0.0.2 ([10.0.0.2]:12345) using "publickey".
debug1: Sending command: echo
"""
)


@pytest.mark.parametrize(
    "rc, stderr, cause",
    [
        # The limit of one login, and ssh's own time limits in the key exchange.
        (124, GREETED, "path_mtu"),
        (255, GREETED + "Connection to 10.0.0.2 port 12345 timed out\n", "path_mtu"),
        (255, GREETED, "path_mtu"),
        (124, LOGGED_IN, "session_hangs"),
        (137, LOGGED_IN, "session_hangs"),
        (255, LOGGED_IN + "Timeout, server 10.0.0.2 not responding.\n", "session_hangs"),
        # `exit 1` in .bashrc, and a program of it that is missing.
        (1, LOGGED_IN, "session_ends"),
        (127, LOGGED_IN + "bash: line 1: conda: command not found\n", "session_ends"),
        (1, LOGGED_IN + "cat: /root/x: Permission denied\n", "session_ends"),
        # The wrapper of ssh itself.
        (
            127,
            "timeout: /usr/local/lib/trainyard/bin/ssh: No such file or directory\n",
            "ssh_missing",
        ),
        (124, "debug1: Connection established.\n", "no_banner"),
        (124, "debug1: Connecting to 10.0.0.2 [10.0.0.2] port 12345.\n", "timeout"),
        (255, GREETED + "Connection closed by 10.0.0.2 port 12345\n", "connection_closed"),
        (255, LOGGED_IN + "root@b: Permission denied (publickey).\n", "login_refused"),
    ],
)
def test_how_far_a_login_came(rc, stderr, cause):
    found, fix, evidence = _ssh_mesh.judge_login("b", rc, stderr)
    assert found == cause and fix and not evidence.startswith(("debug1", "OpenSSH"))


def test_login_that_worked():
    assert _ssh_mesh.judge_login("b", 0, "a warning of the login shell\n") == ("", "", "")


def test_logins_are_told_apart():
    # The second one's date doesn't know %N.
    assert _ssh_mesh.parse_logins(
        "T 0 1700000000.5 1700000001.25\no hostname=a\no \nT 255 1700000000.%N 1700000000.%N\ne refused\n",
        "T",
    ) == [
        {
            "rc": 0,
            "stdout": "hostname=a\n\n",
            "stderr": "",
            "began": 1700000000.5,
            "ended": 1700000001.25,
        },
        {"rc": 255, "stdout": "", "stderr": "refused\n", "began": None, "ended": None},
    ]


@pytest.mark.parametrize(
    "began, ended, clock, ahead",
    [
        (100.0, 100.5, 100.2, [-0.3, 0.2]),
        (100.0, 100.5, 160.0, [59.5, 60.0]),
        (100.0, None, 100.2, None),
        (100.0, 100.5, None, None),
    ],
)
def test_a_clock_was_read_at_some_time_during_the_login(began, ended, clock, ahead):
    assert _ssh_mesh.clock_ahead({"began": began, "ended": ended}, clock) == ahead


@pytest.mark.parametrize(
    "spans, expected",
    [
        # Of two, it is the other one that differs.
        ({"a": [-0.1, 0.1], "b": [4.8, 5.2]}, {"a": 0.0, "b": 5.0}),
        ({"a": [-0.1, 0.1], "b": [-5.2, -4.8]}, {"a": 0.0, "b": -5.0}),
        # Of three, the one that is alone; also where that is the one that was asked.
        ({"a": [-0.1, 0.1], "b": [4.8, 5.2], "c": [4.9, 5.1]}, {"a": -5.0, "b": 0.0, "c": 0.0}),
        ({"a": [-0.1, 0.1], "b": None}, {"a": 0.0}),
        ({"a": None}, {}),
    ],
)
def test_clocks_are_compared_with_the_middle_one(spans, expected):
    proofs = {
        "down": {"logins": []},
        "a": {
            "logins": [
                {"name": name, "session": {"clock_ahead_s": span} if span else {}}
                for name, span in spans.items()
            ]
        },
    }
    told = _ssh_mesh.clocks(proofs)
    assert {name: clock["ahead_s"] for name, clock in told.items()} == expected
    assert all(clock["uncertain_s"] > 0 for clock in told.values())


def test_a_session_may_print_anything():
    """Characters that end a line for Python only, and escape sequences of terminals."""
    (login,) = _ssh_mesh.parse_logins("T 3 1 2\no a\x0cb\rc\x85d\u2028e\n\ne x\x1b[2Jy\n\n", "T")
    assert login["stdout"] == "a\x0cb\rc\x85d\u2028e\n"
    _cause, _fix, evidence = _ssh_mesh.judge_login("b", 3, LOGGED_IN + login["stderr"] * 9)
    assert evidence == "x [2Jy (exit code 3)"
    assert len(_ssh_mesh.judge_login("b", 255, "x" * 99999)[2]) < 500


def test_garbage_between_logins():
    with pytest.raises(_ssh_mesh.ParseError, match="mktemp"):
        _ssh_mesh.parse_logins("mktemp: no space left\n", "T")


@pytest.mark.parametrize("text", ["{", "[]", '{"hosts": [{"name": "a"}]}', '{"head": "a"}'])
def test_record_that_is_none(text):
    with pytest.raises(_ssh_mesh.ParseError):
        _ssh_mesh.parse_record(text)


def test_empty_record():
    assert _ssh_mesh.parse_record("\n") == {}


PATH = "/usr/local/lib/trainyard/bin:/usr/bin"


def session(container="c" * 64, memlock="unlimited", path=PATH, way_back="open"):
    return {
        "hostname": "b",
        "container_id": container,
        "memlock": memlock,
        "way_back": way_back,
        "environment": {"PATH": path},
    }


def proof(*logins, container="c" * 64, cause=""):
    return {
        "cause": cause,
        "fix": "fix",
        "logins": list(logins),
        "container": {"id": container, "memlock": "unlimited", "environment": {"PATH": PATH}},
    }


def login(name, cause="", **found):
    return {
        "name": name,
        "cause": cause,
        "fix": "mend",
        "evidence": "seen",
        "session": {} if cause else session(**found),
    }


@pytest.mark.parametrize(
    "found, about, words",
    [
        (login("b"), None, []),
        (login("b", memlock="64"), "memlock", ["ulimit -l is 64", "unlimited"]),
        (login("b", path="/usr/bin:/bin"), "session", ["PATH is '/usr/bin:/bin'"]),
        (login("b", way_back=""), None, []),
        (
            login("b", way_back="[Errno 111] Connection refused"),
            "way_back",
            [
                "the container of b cannot connect to a on another port than sshd's ([Errno 111] Connection refused)"
            ],
        ),
        (
            login("b", container="d" * 64),
            "session",
            ["logs in to container dddddddddddd", "two hosts share an address"],
        ),
        (
            login("b", cause="connection_refused"),
            "login",
            ["a cannot log in to b (connection_refused)"],
        ),
        (
            login("b", cause="host_key_changed"),
            "login",
            ["a cannot log in to b (host_key_changed)", KEYS[NEW]],
        ),
    ],
)
def test_problem_of_the_mesh_is_named(found, about, words):
    members, hosts = [member("a"), member("b")], [entry("a"), entry("b", host_key=NEW)]
    said = _ssh_mesh.mesh_problems(
        {"a": proof(found, container="a" * 64), "b": proof()}, members, hosts
    )
    assert len(said["problems"]) == (1 if words else 0) and said["absent"] == []
    assert all(word in said["problems"][0] for word in words)
    assert said["findings"] == [
        # A login names the side that does not answer.
        {"hosts": ["b"] if about == "login" else ["a", "b"], "about": about, "problem": problem}
        for problem in said["problems"]
    ]


@pytest.mark.parametrize(
    "causes, blamed",
    [
        # b hangs: its own session, and that of a.
        ({"ab": "session_hangs", "bb": "session_hangs"}, {"ab": ["b"], "bb": ["b"]}),
        ({"ab": "connection_closed", "cb": "connection_closed"}, {"ab": ["b"], "cb": ["b"]}),
        # A login that fails one way only, in a network that loses packets.
        ({"ab": "timeout"}, {"ab": ["a", "b"]}),
        ({"ab": "timeout", "cb": "timeout"}, {"ab": ["b"], "cb": ["b"]}),
        ({"ab": "path_mtu", "ac": "path_mtu"}, {"ab": ["a"], "ac": ["a"]}),
        # Another host is answered, so b alone cannot be at fault.
        ({"ab": "login_refused"}, {"ab": ["a", "b"]}),
        ({"aa": "connection_refused", "ab": "timeout"}, {"aa": ["a"], "ab": ["a"]}),
    ],
)
def test_the_side_that_does_not_answer_is_named(causes, blamed):
    names = ["a", "b", "c"]
    proofs = {
        source: proof(*(login(name, cause=causes.get(source + name, "")) for name in names))
        for source in names
    }
    said = _ssh_mesh.mesh_problems(proofs, [member(n) for n in names], [entry(n) for n in names])
    found = {
        entry["problem"][0] + entry["problem"].partition(" log in to ")[2][0]: entry["hosts"]
        for entry in said["findings"]
    }
    assert found == blamed


def test_a_host_whose_keys_cannot_be_read_says_nothing_of_the_others():
    mesh = _ssh_mesh.mesh_members([member("a"), member("b")], {"a": {"failed": True}, "b": {}})
    assert [host["host_key"] for host in mesh["hosts"]] == [None, None]
    said = _ssh_mesh.mesh_problems(
        {"b": proof(login("b"))}, [member("a"), member("b")], mesh["hosts"]
    )
    assert said["findings"] == []


@pytest.mark.parametrize(
    "found, good",
    [
        ("/opt/lib:/opt/hpcx/lib", True),
        ("/usr/local/cuda/compat/lib.real:/opt/lib:/opt/hpcx/lib", True),
        ("/opt/hpcx/lib:/opt/lib", False),
        ("/opt/lib", False),
        ("", False),
    ],
)
def test_library_path_of_a_session_has_what_the_container_has(found, good):
    container = {
        "id": "c" * 64,
        "memlock": None,
        "environment": {"LD_LIBRARY_PATH": "/opt/lib:/opt/hpcx/lib"},
    }
    there = {"container_id": "c" * 64, "memlock": "64", "environment": {"LD_LIBRARY_PATH": found}}
    assert (_ssh_mesh._differences("a", "b", there, container) == []) is good


def test_container_that_can_not_be_asked():
    said = _ssh_mesh.mesh_problems(
        {"a": proof(cause="container_not_running")}, [member("a")], [entry("a")]
    )
    assert said["problems"] == ["a: its container does not answer (container_not_running): fix"]


@pytest.mark.parametrize(
    "cause, problems, absent",
    [
        ("timeout", 0, ["b"]),
        ("connection_refused", 0, ["b"]),
        ("host_key_changed", 1, []),
        ("login_refused", 1, []),
    ],
)
def test_host_outside_of_the_play_may_be_away_but_not_be_another(cause, problems, absent):
    said = _ssh_mesh.mesh_problems(
        {"a": proof(login("b", cause=cause))},
        [member("a"), member("b", in_play=False)],
        [entry("a"), entry("b")],
    )
    assert (len(said["problems"]), said["absent"]) == (problems, absent)


def test_limit_has_nothing_to_compare_a_session_outside_of_the_play_with():
    said = _ssh_mesh.mesh_problems(
        {"a": proof(login("b", memlock="64"))},
        [member("a"), member("b", in_play=False)],
        [entry("a"), entry("b")],
    )
    assert (said["problems"], said["findings"], said["absent"]) == ([], [], [])
