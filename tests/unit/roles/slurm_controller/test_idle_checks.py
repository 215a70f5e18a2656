"""Checks of idle nodes: which are due, what their job may do, what drains a node, and what a node
needs before it returns to service.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "roles/job_container/files"))


def load(role, name):
    path = ROOT / "roles" / role / "files" / (name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


idle, host = load("slurm_controller", "idle_checks"), load("job_container", "host_check")
NOW, DAY = 1.8e9, 86400
SETTINGS = {"days": 7, "seconds": 60, "account": "trainyard-train", "priority": "low"}


def nodes(states, reason="none"):
    return idle.parse_nodes(
        "".join(
            "%s|%s|train*|Unknown|%s\n" % (name, state, reason) for name, state in states.items()
        )
    )


def names(count):
    return ["gpu-%02d" % number for number in range(count)]


# --- which nodes ---


def test_nodes_of_several_partitions_are_listed_once():
    text = (
        "gpu-a|idle|train*|Unknown|none\ngpu-a|idle|short|Unknown|none\n"
        "gpu-b|drained|short|2026-11-30T08:00:00|disk | full\njunk\ngpu-[1-3]|idle|x|y|z\n"
    )
    assert idle.parse_nodes(text) == {
        "gpu-a": {"state": "idle", "partition": "train", "since": "Unknown", "reason": "none"},
        "gpu-b": {
            "state": "drained",
            "partition": "short",
            "since": "2026-11-30T08:00:00",
            "reason": "disk | full",
        },
    }


@pytest.mark.parametrize("count, most", [(1, 1), (2, 1), (19, 1), (20, 2), (64, 6)])
def test_a_tenth_of_the_nodes_and_at_least_one(count, most):
    probes, due = idle.batch(nodes(dict.fromkeys(names(count), "idle")), {}, 7, NOW)
    assert (probes, due) == ([], names(count)[:most])


@pytest.mark.parametrize(
    "state",
    ["mixed", "allocated", "idle*", "idle~", "reserved", "planned", "maint", "down", "drained"],
)
def test_only_idle_nodes(state):
    assert idle.batch(nodes({"a": state}), {}, 7, NOW) == ([], [])


def test_the_longest_without_a_check_is_first_and_a_young_one_waits():
    known = {"a": {"checked": NOW - 8 * DAY}, "b": {"checked": NOW - 9 * DAY}}
    known["c"] = {"checked": NOW - 6 * DAY}
    found = nodes(dict.fromkeys(["a", "b", "c"], "idle"))
    assert idle.batch(found, known, 7, NOW) == ([], ["b"])
    assert idle.batch(nodes({"c": "idle"}), known, 7, NOW) == ([], [])
    assert idle.batch(nodes({"c": "idle"}), known, 6, NOW) == ([], ["c"])
    # It is off, but nodes still return by a job.
    assert idle.batch(found, known, 0, NOW) == ([], [])
    # Any form of the file.
    for odd in ("x", [], {"checked": "yesterday"}, None):
        assert idle.batch(nodes({"c": "idle"}), {"c": odd}, 7, NOW) == ([], ["c"])


def test_a_node_whose_job_did_not_begin_is_tried_again_in_an_hour():
    found = nodes({"a": "idle"})
    assert idle.batch(found, {"a": {"tried": NOW - 60}}, 7, NOW) == ([], [])
    assert idle.batch(found, {"a": {"tried": NOW - 3601}}, 7, NOW) == ([], ["a"])
    # A clock that was set back.
    assert idle.batch(found, {"a": {"tried": NOW + 9 * DAY}}, 7, NOW) == ([], ["a"])


def test_nodes_that_wait_to_return_are_first():
    waiting = nodes({"a": "drained", "b": "draining"}, "trainyard: probe: gpu-xid: Xid 79")
    both = {**waiting, **nodes({"c": "idle"})}
    assert idle.batch(both, {}, 7, NOW) == (["a"], [])
    # A check that was preempted a moment ago is no reason to wait. A probe is.
    assert idle.batch(waiting, {"a": {"tried": NOW - 60}}, 7, NOW) == (["a"], [])
    assert idle.batch(waiting, {"a": {"probed": NOW - 60}}, 7, NOW) == ([], [])
    assert idle.batch(waiting, {"a": {"probed": NOW - 601}}, 7, NOW) == (["a"], [])
    for reason in ("trainyard: gpu-xid: Xid 79", "trainyard: stays out: gpu-xid", "maintenance"):
        assert idle.batch(nodes({"a": "drained"}, reason), {}, 7, NOW) == ([], [])


def test_the_job_never_waits_and_gives_way():
    command = idle.job("gpu-a", "train", SETTINGS, 60)
    assert command[: command.index("srun")] == ["runuser", "--user", "slurm", "--"]
    for word in ("--exclusive", "--immediate=60", "--qos=low", "--nodelist=gpu-a", "--time=12"):
        assert word in command
    assert command[-4:] == ["sudo", "--non-interactive", idle.CHECK, "60"]
    assert "--reservation=r" in idle.job("gpu-a", "train", SETTINGS, 60, "r")


# --- what is found ---


def answer(wrong=0, rate=1.0, **changes):
    ranks = [
        {
            "kind": "cpu",
            "index": number,
            "model": "EPYC",
            "rates": {"memory": [10.0 * (rate if number else 1.0)] * 10},
            "wrong": {"memory": wrong if number else 0},
            "error": "",
        }
        for number in range(3)
    ]
    told = {"ranks": ranks, "host": {"model": "EPYC", "rates": {}, "wrong": {}, "faults": []}}
    return dict(
        {
            "health": "",
            "not_made": "",
            "run": {"rc": 0, "stdout_lines": ["a warning", json.dumps(told)]},
            "serial": "",
            "before": {},
            "after": {},
            "errors_before": [],
            "errors_after": [],
        },
        **changes,
    )


def test_a_healthy_node():
    found, devices = idle.judge({"a": answer()}, {})
    assert found == {"a": {"bad": "", "health": "", "not_made": ""}}
    assert [device["serial"] for device in devices] == ["a-cpu-0", "a-cpu-1", "a-cpu-2", "a"]


def test_wrong_values_and_a_slow_device_are_bad():
    found, _devices = idle.judge({"a": answer(), "b": answer(wrong=2)}, {})
    assert found["a"]["bad"] == ""
    assert found["b"]["bad"].startswith("burn-in-results: rank 1 (EPYC, serial b-cpu-1): 2 wrong")
    bad = idle.judge({"a": answer(rate=0.5), "b": answer()}, {})[0]["a"]["bad"]
    assert bad.startswith("burn-in-speed: rank 1 (EPYC, serial a-cpu-1) is slow. memory: 5 GB/s")


def test_a_node_is_compared_with_what_others_have_had():
    former = idle.judge({"b": answer(), "c": answer()}, {})[1]
    filed = {
        device["serial"]: idle._burn_in.with_result(None, device, "2026-11-30T08:00:00Z")["results"]
        for device in former
    }
    slow = answer()
    slow["run"]["stdout_lines"][-1] = slow["run"]["stdout_lines"][-1].replace("10.0", "5.0")
    assert "burn-in-speed" in idle.judge({"a": slow}, filed)[0]["a"]["bad"]
    # Alone it is only unknown.
    assert idle.judge({"a": slow}, {})[0]["a"]["bad"] == ""


@pytest.mark.parametrize(
    "told, why",
    [
        (None, "the job did not begin, or was preempted"),
        ([], "the job did not begin, or was preempted"),
        ({}, "the node gave no answer"),
        ({"not_made": "the training container does not run"}, "the training container does not"),
        (
            answer(run={"rc": 1, "stdout_lines": ["The burn-in needs PyTorch, which"]}),
            "the program did not end well: The burn-in needs PyTorch",
        ),
    ],
)
def test_what_is_not_known_drains_nothing(told, why):
    found, devices = idle.judge({"a": told}, {})
    assert found["a"]["bad"] == "" and found["a"]["not_made"].startswith(why) and devices == []


@pytest.mark.parametrize(
    "count, out, held",
    [(3, 3, False), (9, 2, False), (9, 3, True), (64, 20, False), (64, 21, True)],
)
def test_a_third_of_the_nodes_at_most(count, out, held):
    found = nodes(dict.fromkeys(names(count), "idle"))
    for name in names(count)[:out]:
        found[name]["reason"] = "trainyard: verify: burn-in-speed"
    assert idle.is_held(found, 1) is held


# --- what is done ---


@pytest.fixture(name="scheduler")
def _scheduler(monkeypatch, tmp_path):
    """Slurm and its nodes: answers by node, and all commands."""
    state = SimpleNamespace(nodes="a|idle|train*|Unknown|none\n", answers={}, asked=[], held="")

    def output(command):
        if command[0] == "sinfo":
            return state.nodes
        if "show" in command:
            return state.held
        state.asked.append(" ".join(command))
        return ""

    def run_jobs(commands, _seconds):
        state.asked += ["job %s" % name for name in commands]
        return {name: state.answers.get(name) for name in commands}

    monkeypatch.setattr(idle, "output", output)
    monkeypatch.setattr(idle, "run_jobs", run_jobs)
    monkeypatch.setattr(idle, "STATE", str(tmp_path / "state"))

    def tick(**changes):
        state.asked.clear()
        assert idle.main([json.dumps(dict(SETTINGS, **changes))]) == 0
        return list(state.asked)

    state.tick, state.folder = tick, tmp_path / "state"
    return state


def test_a_check_is_made_once_in_some_days(scheduler):
    scheduler.answers["a"] = answer()
    assert scheduler.tick() == ["job a"]
    assert scheduler.tick() == []
    kept = {path.name for path in scheduler.folder.iterdir()}
    assert kept == {"nodes", "a.json", "a-cpu-0.json", "a-cpu-1.json", "a-cpu-2.json"}
    known = json.loads((scheduler.folder / "nodes").read_text(encoding="utf-8"))
    known["a"].update(checked=known["a"]["checked"] - 8 * DAY, tried=0)
    (scheduler.folder / "nodes").write_text(json.dumps(known), encoding="utf-8")
    assert scheduler.tick() == ["job a"]


def test_a_node_at_fault_is_drained_as_verify_does(scheduler, capsys):
    scheduler.answers["a"] = answer(wrong=1)
    drained = (
        "scontrol update nodename=a state=drain reason=trainyard: verify: burn-in-results: "
        "rank 1 (EPYC, serial a-cpu-1): 1 wrong values in memory; rank 2 (EPYC, serial a-cpu-2): 1 wrong values in memory"
    )
    assert scheduler.tick() == ["job a", drained]
    assert "a is drained" in capsys.readouterr().out


def test_the_breaker_holds_a_drain(scheduler, capsys):
    out = "".join("%s|drained|train|x|trainyard: gpu-ecc: GPU 3\n" % name for name in "bc")
    scheduler.nodes += out + "".join("%s|allocated|train|x|none\n" % name for name in "def")
    scheduler.answers["a"] = answer(wrong=1)
    assert scheduler.tick() == ["job a"]
    assert "a is not drained, as a third of the nodes are already" in capsys.readouterr().out


def test_a_preempted_check_changes_nothing_and_is_made_later(scheduler):
    assert scheduler.tick() == ["job a"]
    known = json.loads((scheduler.folder / "nodes").read_text(encoding="utf-8"))
    assert "checked" not in known["a"] and known["a"]["not_made"].startswith("the job did not")
    assert scheduler.tick() == []


WAITS = "a|drained|train*|2026-11-30T08:00:00|trainyard: probe: gpu-xid: Xid 79\n"
RESERVED = [
    "scontrol create reservation reservationname=trainyard-probe-a nodes=a starttime=now duration=30 flags=maint,ignore_jobs users=slurm",
    "scontrol update nodename=a state=resume",
    "job a",
]
FREED = ["scontrol delete reservationname=trainyard-probe-a"]


def test_a_job_runs_before_a_node_returns(scheduler):
    scheduler.nodes, scheduler.answers["a"] = WAITS, answer()
    assert scheduler.tick() == [*RESERVED, *FREED]


@pytest.mark.parametrize(
    "told, reason",
    [
        (None, "trainyard: probe: gpu-xid: Xid 79"),
        (
            answer(health="trainyard: gpu-xid: Xid 48"),
            "trainyard: verify: probe before the return to service: trainyard: gpu-xid: Xid 48",
        ),
    ],
)
def test_a_node_whose_job_fails_does_not_return(scheduler, told, reason):
    """It is drained before the reservation ends, or a job could begin between."""
    scheduler.nodes, scheduler.answers["a"] = WAITS, told
    again = "scontrol update nodename=a state=drain reason=" + reason
    assert scheduler.tick() == [*RESERVED, again, *FREED]
    assert scheduler.tick() == []


def test_the_speed_of_a_probe_is_neither_judged_nor_filed(scheduler):
    """It takes some seconds, in which a device is cold."""
    scheduler.nodes, scheduler.answers["a"] = WAITS, answer(rate=0.5)
    assert scheduler.tick() == [*RESERVED, *FREED]
    assert {path.name for path in scheduler.folder.iterdir()} == {"nodes"}
    # The check of a minute comes when it is due.
    known = json.loads((scheduler.folder / "nodes").read_text(encoding="utf-8"))
    assert "checked" not in known["a"]


def test_a_container_that_is_stopped_keeps_no_node_out(scheduler):
    scheduler.nodes = WAITS
    scheduler.answers["a"] = {"health": "", "not_made": "the training container does not run"}
    assert scheduler.tick() == [*RESERVED, *FREED]


def test_a_probe_that_ends_in_an_error_leaves_no_node_in_service(scheduler, monkeypatch):
    def broken(_commands, _seconds):
        raise ArithmeticError("odd")

    scheduler.nodes = WAITS
    monkeypatch.setattr(idle, "run_jobs", broken)
    with pytest.raises(ArithmeticError):
        scheduler.tick()
    former = WAITS.splitlines()[0].rpartition("|")[2]
    drained = "scontrol update nodename=a state=drain reason=" + former
    assert scheduler.asked[-2:] == [drained, *FREED]


def test_a_run_that_was_killed_in_a_probe(scheduler):
    scheduler.nodes = "a|reserved|train*|Unknown|none\n"
    scheduler.held = "ReservationName=trainyard-probe-a StartTime=x\nReservationName=site Nodes=a\nReservationName=trainyard-probe-z Nodes=z\n"
    assert scheduler.tick() == [
        "scontrol update nodename=a state=drain reason=trainyard: probe: it was interrupted",
        *FREED,
    ]


@pytest.mark.parametrize(
    "text, found", [("", None), ("junk", None), ('x\n{"run": 1}\n', {"run": 1})]
)
def test_the_answer_is_the_last_line(text, found):
    assert idle.parse_answer(text) == found


def test_jobs_run_side_by_side_and_one_that_fails_has_no_answer(capsys):
    def shell(text):
        return ["sh", "-c", text]

    commands = {
        "a": shell("echo '{\"run\": 1}'"),
        "b": shell("echo srun: error: Unable to allocate resources >&2; exit 1"),
    }
    assert idle.run_jobs(commands, 1) == {"a": {"run": 1}, "b": None}
    assert "b: srun: error: Unable to allocate resources" in capsys.readouterr().out


# --- on the node ---


@pytest.fixture(name="node")
def _node(monkeypatch, tmp_path):
    """A node with docker, nvidia-smi and the health program of the test."""
    for name, text in {
        "docker": """case "$1 $2" in
  "inspect --format") echo ${RUNNING-true} ;;
  *) case "$*" in
       *" test -r "*) exit ${UNREADABLE-0} ;;
       *) echo "$*" > %s/docker.log; echo a warning >&2; echo "{\\"ranks\\": []}" ;;
     esac ;;
esac"""
        % tmp_path,
        "health": 'echo "$TOLD"; test -z "$TOLD"',
        "dmesg": "",
        "nvidia-smi": "exit 9",
    }.items():
        path = tmp_path / name
        path.write_text("#!/bin/sh\n%s\n" % text, encoding="ascii")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    monkeypatch.setenv("TOLD", "")
    monkeypatch.setattr(host, "HEALTH", str(tmp_path / "health"))
    monkeypatch.setattr(host, "SERIAL", str(tmp_path / "serial"))
    return tmp_path


CONFIG = {"check": {"container": "trainyard-training", "program": "/share/burn_in.py"}}


def test_what_a_node_answers(node):
    found = host.examine(CONFIG, 60)
    assert found["run"] == {"rc": 0, "stdout_lines": ["a warning", '{"ranks": []}']}
    assert found["not_made"] == found["health"] == "" and found["before"] == {}
    command = (node / "docker.log").read_text(encoding="utf-8")
    assert command.startswith("exec --interactive --env TRAINYARD_BURN_IN=")
    assert '"leash": true' in command and '"seconds": 60' in command
    assert command.endswith("trainyard-training python3 -B /share/burn_in.py\n")


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("RUNNING", "false", "the training container does not run"),
        ("UNREADABLE", "1", "the container does not see /share/burn_in.py; run scheduler.yml"),
    ],
)
def test_a_node_that_cannot_run_the_load(node, monkeypatch, name, value, why):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("TOLD", "trainyard: gpu-xid: Xid 79")
    assert host.examine(CONFIG, 60) == {"health": "trainyard: gpu-xid: Xid 79", "not_made": why}
    assert not (node / "docker.log").exists()


@pytest.mark.parametrize("words", [[], ["0"], ["601"], ["-1"], ["60", "x"], ["6; reboot"]])
def test_slurms_user_may_ask_for_seconds_only(words, capsys):
    assert host.main(words) == 2 and "expected a number" in capsys.readouterr().err


def test_the_load_ends_with_the_program(node):
    """docker exec would go on in the container. Its input ends with the one who has started it."""
    (node / "docker").write_text(
        "#!/bin/sh\necho begun > %s/log\ncat\necho ended > %s/log\n" % (node, node)
    )
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; sys.path[:0] = %r; import host_check; host_check.load(%r, 600)"
            % ([*sys.path, str(ROOT / "roles/job_container/files")], CONFIG["check"]),
        ]
    )
    try:
        wait_for(node / "log", "begun\n")
        child.kill()
        wait_for(node / "log", "ended\n")
    finally:
        child.kill()


def wait_for(path, text):
    deadline = idle.time.monotonic() + 60
    while not path.exists() or path.read_text(encoding="utf-8") != text:
        assert idle.time.monotonic() < deadline
        idle.time.sleep(0.05)
