"""ssh_mesh_info, run like in Ansible; fake docker and ssh run their commands on this machine."""

from __future__ import annotations

import json

import pytest
from scripted_tools import run_module, scripts

CONTAINER = {
    "Id": "c" * 64,
    "HostConfig": {"Ulimits": [{"Name": "memlock", "Hard": -1}]},
    "Config": {"Env": ["PATH=/usr/bin:/bin"]},
}


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path, monkeypatch):
    """Two hosts, a and b, of which b's clock can be told to differ. Returns what asks them."""
    script = scripts(tmp_path, monkeypatch)
    (tmp_path / "container.json").write_text(json.dumps([CONTAINER]), encoding="utf-8")
    script(
        "docker",
        f"""
if [ "$1" = inspect ]; then cat {tmp_path}/container.json; exit; fi
shift
while [ "${{1#-}}" != "$1" ]; do shift; done
shift
exec "$@"
""",
    )

    def ask(ahead=0, refuses=(), hangs=(), timeout=5, login_file=":"):
        ssh = script(
            "ssh",
            f"""
while [ "$1" != -- ]; do shift; done
case " {" ".join(refuses)} " in *" $2 "*) echo "ssh: connect to host $2 port 12345: Connection refused" >&2; exit 255;; esac
case " {" ".join(hangs)} " in *" $2 "*) echo "debug1: Authentication succeeded (publickey)." >&2; exec sleep 60;; esac
if [ "$2" = a ]; then {login_file}; fi
if [ "$2" = b ]; then
    date() {{ /bin/date --date="{ahead} seconds" "$@"; }}
fi
eval "$3"
""",
        )
        return run_module(
            "ssh_mesh_info",
            {
                "container": "it",
                "peers": ["a", "b"],
                "executable": ssh,
                "wait": 0,
                "timeout": timeout,
            },
            check=True,
        )

    return ask


def test_logins_that_work(cluster):
    told = cluster()
    assert (told["available"], told["cause"], told["changed"], told["container"]["memlock"]) == (
        True,
        "",
        False,
        "unlimited",
    )
    assert [(login["name"], login["ok"]) for login in told["logins"]] == [("a", True), ("b", True)]
    for login in told["logins"]:
        low, high = login["session"]["clock_ahead_s"]
        assert (
            low <= 0 <= high < 30
            and login["session"]["memlock"]
            and login["session"]["environment"]["PATH"]
        )


@pytest.mark.parametrize("ahead", [-90, 600])
def test_clock_that_differs(cluster, ahead):
    spans = {login["name"]: login["session"]["clock_ahead_s"] for login in cluster(ahead)["logins"]}
    assert spans["a"][0] <= 0 <= spans["a"][1]
    assert (
        spans["b"][0] <= ahead + 0.01
        and spans["b"][1] >= ahead - 0.01
        and spans["b"][1] - spans["b"][0] < 30
    )


def test_login_that_fails(cluster):
    told = cluster(refuses=["b"])
    assert [
        (login["name"], login["cause"], login["session"] == {}) for login in told["logins"]
    ] == [("a", "", False), ("b", "connection_refused", True)]


def test_a_login_that_hangs_does_not_hide_those_that_work(cluster):
    told = cluster(hangs=["b"], timeout=1)
    assert (told["available"], told["cause"]) == (True, "")
    assert [(login["name"], login["cause"]) for login in told["logins"]] == [
        ("a", ""),
        ("b", "session_hangs"),
    ]


@pytest.mark.parametrize(
    "login_file, cause",
    [
        # A progress bar, and a line without an end, after which the next login's part begins.
        ("printf 'loading\\rdone\\n'; printf 'x\\f\\302\\205\\n' >&2", ""),
        ("printf 'Loading ' >&2; exec sleep 60", "session_hangs"),
        ("printf 'Loading '; exit 3", "session_ends"),
        # It ends at the limit of its output, or of its time.
        ("exec yes", ("session_hangs", "session_ends")),
    ],
)
def test_what_login_files_print_belongs_to_their_host(cluster, login_file, cause):
    said = "echo 'debug1: Authentication succeeded (publickey).' >&2; "
    told = cluster(login_file=said + login_file, timeout=1)
    assert [login["name"] for login in told["logins"]] == ["a", "b"]
    first, second = [login["cause"] for login in told["logins"]]
    assert second == "" and (first == cause or first in cause)
