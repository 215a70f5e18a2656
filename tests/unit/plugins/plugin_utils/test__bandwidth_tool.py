"""Which tool measures the bandwidth, and what all_reduce_perf has measured as runs of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.filter.bandwidth_checks import bandwidth_checks
from ansible_collections.trainyard.gpu.plugins.module_utils import _all_reduce
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool
from ansible_collections.trainyard.gpu.plugins.plugin_utils._report_files import load_schema, problem_of

LOGS = Path(__file__).parents[3] / "fixtures/all_reduce_perf"
NGC = ["all_reduce_perf", "mpi", "mpirun", "horovodrun", "torch", "horovod"]
TF = ["horovodrun", "horovod", "tensorflow"]
EIGHT, NONE = {"a": 8, "b": 8}, {"a": 0, "b": 0}
FACTS = {host: {"cards": [{"name": "mlx5_0", "rdma": True, "line": 25.0, "pcie": 31.5}], "gpus": [], "interface": "eth0"} for host in "ab"}
PLAN = {"asked": {"fraction": 0.7, "min_busbw_gb_s": 0.0, "peer_fraction": 0.6, "drop_percent": 20.0}, "history": {}}


@pytest.mark.parametrize("gpus, image, more, tool, reason", [
    (EIGHT, NGC, {}, "all_reduce_perf", "the best tool"),
    ({"a": 8}, ["all_reduce_perf", "torch"], {}, "all_reduce_perf", "the best tool"),
    ({"a": 8}, ["torch"], {"on_host": True}, "all_reduce_perf", "the best tool"),
    ({"a": 1}, NGC, {}, "torch", "one GPU alone"),
    (EIGHT, ["all_reduce_perf", "mpirun", "torch"], {}, "torch", "a build with MPI"),
    (EIGHT, ["all_reduce_perf", "mpi", "torch"], {}, "torch", "needs mpirun"),
    (EIGHT, ["torch"], {"on_host": True}, "torch", "does not reach from host to host"),
    ({"a": 8, "b": 4}, NGC, {}, "torch", "a 8, b 4"),
    ({"a": 8, "b": 0}, NGC, {}, "torch", "a GPU on every host"),
    (EIGHT, NGC, {"problems": {"mpirun": ["interfaces differ"]}}, "torch", "interfaces differ"),
    (NONE, NGC, {}, "torch", "a GPU on every host"),
    (NONE, TF, {}, "horovod", "PyTorch: the image does not have it"),
    (NONE, TF, {"frameworks": ["tensorflow"]}, "horovod", "PyTorch"),
    (EIGHT, TF, {}, "horovod", "training_image_nccl_tests_tag"),
    (NONE, NGC, {"asked": "horovod"}, "horovod", "verify_bandwidth_tool"),
    (EIGHT, NGC, {"asked": "torch"}, "torch", "verify_bandwidth_tool"),
])
def test_choice(gpus, image, more, tool, reason):
    chosen = _bandwidth_tool.choose(more.pop("asked", "auto"), gpus, image, **more)
    assert chosen["tool"] == tool and reason in chosen["reason"] and chosen["problem"] == ""
    assert chosen["where"] == ("host" if more.get("on_host") and tool == "all_reduce_perf" else "container")


@pytest.mark.parametrize("asked, image, more, problem", [
    ("auto", [], {}, "PyTorch: the image does not have it. Horovod: the image does not have it"),
    ("auto", ["horovod", "horovodrun", "tensorflow"], {"frameworks": []}, "none of the image's frameworks (tensorflow)"),
    ("auto", TF, {"problems": {"horovodrun": ["interfaces differ"]}}, "interfaces differ"),
    # What is requested is not replaced.
    ("all_reduce_perf", ["torch"], {}, "a GPU on every host"),
    ("horovod", ["torch"], {}, "Horovod: the image does not have it"),
])
def test_no_tool(asked, image, more, problem):
    chosen = _bandwidth_tool.choose(asked, NONE, image, **more)
    assert chosen["tool"] == "" and problem in chosen["problem"]


def told(text, **bounds):
    return dict(_all_reduce.answer(text, **bounds), available=True, cause=None, fix=None)


@pytest.fixture(name="log")
def fixture_log():
    return (LOGS / "polaris-2node-8gpu.txt").read_text(encoding="utf-8")


def answer(alone, together, plan=None):
    found = _bandwidth_tool.of_nccl_tests(alone, together, FACTS, {"a": 4, "b": 4}, plan or PLAN)
    return dict(found, tool="all_reduce_perf", tool_reason="the best tool, and the image has it")


def verdicts(found):
    return {(check["id"], check["host"]): check for check in bandwidth_checks(found, ["a", "b"], [], {"a": 4, "b": 4})}


def test_a_good_log_becomes_a_run_with_its_rows(log):
    found = answer({}, told(log, expected_ranks=8, expected_hosts=2))
    (run,) = found["runs"]
    assert (run["id"], run["ranks"], run["judged"]) == ("cluster", 8, ["complete", "correct", "ranks", "hosts"])
    assert len(run["rows"]) > 10 and run["max_busbw_gb_s"] > 1
    # The schema of the report takes it.
    schema = load_schema()
    shape = dict(schema, required=[], properties={"bandwidth": schema["properties"]["bandwidth"]})
    assert problem_of({"bandwidth": {key: found[key] for key in ("collective", "note", "runs", "tool", "tool_reason")}}, shape) in ("", None)


def test_what_limits_the_hosts_is_required(log):
    slow = dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1000.0))
    check = verdicts(answer({}, told(log), slow))["bandwidth-cluster", "a, b"]
    assert check["verdict"] == "fail" and "required are 1e+03" in check["found"] and "all_reduce_perf" in check["source"] and check["fix"]
    enough = dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1.0))
    assert verdicts(answer({}, told(log), enough))["bandwidth-cluster", "a, b"]["verdict"] == "pass"


@pytest.mark.parametrize("spoil, reason", [
    (lambda log: log.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 3 FAILED"), "wrong"),
    (lambda log: log[:log.index("# Out of bounds values")], "summary"),
])
def test_a_run_that_is_worth_nothing_fails_however_fast_it_was(log, spoil, reason):
    bad = spoil(log)
    assert bad != log
    found = answer({}, told(bad, expected_ranks=8, expected_hosts=2), dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1.0)))
    check = verdicts(found)["bandwidth-cluster", "a, b"]
    assert check["verdict"] == "fail" and reason in check["found"]
    assert found["blame"] == [] and "verify_bandwidth_tool: torch" in found["note"]


def test_ranks_that_are_missing_and_a_tool_that_did_not_start(log):
    assert "16 ranks were asked for" in verdicts(answer({}, told(log, expected_ranks=16)))["bandwidth-cluster", "a, b"]["found"]
    gone = {"available": False, "cause": "timeout", "fix": "it hangs", "passed": False, "reasons": [], "rows": []}
    checks = verdicts(answer({"a": gone}, gone))
    assert checks["bandwidth-cluster", "a, b"]["verdict"] == checks["bandwidth-host", "a"]["verdict"] == "fail"
    assert "it hangs" in checks["bandwidth-host", "a"]["found"]
    # Without an observation there is no verdict.
    assert {checks[key]["verdict"] for key in checks if key[0] in ("gpus-busy", "fabric-counters", "nccl-transport")} == {"skipped"}


def test_transport_comes_from_the_tools_own_log(log):
    text = "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n" + log
    check = verdicts(answer({}, told(text)))["nccl-transport", "a, b"]
    assert check["verdict"] == "fail" and "NET/Socket" in check["found"]
