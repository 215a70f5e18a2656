"""The tool that measures the bandwidth, and results of all_reduce_perf as runs of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._bandwidth_checks import (
    bandwidth_checks,
)
from ansible_collections.trainyard.gpu.plugins.module_utils import _all_reduce, _bandwidth
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool
from ansible_collections.trainyard.gpu.plugins.plugin_utils._report_files import (
    load_schema,
    problem_of,
)

LOGS = Path(__file__).parents[3] / "fixtures/all_reduce_perf"
NGC = ["all_reduce_perf", "mpi", "mpirun", "horovodrun", "torch", "horovod"]
TF = ["horovodrun", "horovod", "tensorflow"]
EIGHT, NONE = {"a": 8, "b": 8}, {"a": 0, "b": 0}
CARDS = [{"name": "mlx5_0", "rdma": True, "line": 25.0, "pcie": 31.5}]
FACTS = {
    host: {"cards": CARDS, "gpus": [], "interface": "eth0", "counters": [1000, 2000]}
    for host in "ab"
}
# What the module runs, behind mpirun.
COMMAND = [
    "mpirun",
    "-np",
    "8",
    "-H",
    "a:4,b:4",
    "all_reduce_perf",
    "-b",
    "4",
    "-e",
    "1073741824",
    "-f",
    "2",
    "-g",
    "1",
    "-w",
    "5",
    "-n",
    "20",
    "-c",
    "1",
]
PLAN = {
    "asked": {"fraction": 0.7, "min_busbw_gb_s": 0.0, "peer_fraction": 0.6, "drop_percent": 20.0},
    "history": {},
}


@pytest.mark.parametrize(
    "gpus, image, more, tool, reason",
    [
        (EIGHT, NGC, {}, "all_reduce_perf", "the best tool"),
        ({"a": 8}, ["all_reduce_perf", "torch"], {}, "all_reduce_perf", "the best tool"),
        ({"a": 8}, ["torch"], {"on_host": True}, "all_reduce_perf", "the best tool"),
        ({"a": 1}, NGC, {}, "torch", "one GPU alone"),
        (EIGHT, ["all_reduce_perf", "mpirun", "torch"], {}, "torch", "a build with MPI"),
        (EIGHT, ["all_reduce_perf", "mpi", "torch"], {}, "torch", "needs mpirun"),
        (EIGHT, ["torch"], {"on_host": True}, "torch", "cannot run across hosts"),
        ({"a": 8, "b": 4}, NGC, {}, "torch", "a 8, b 4"),
        ({"a": 8, "b": 0}, NGC, {}, "torch", "a GPU on every host"),
        (EIGHT, NGC, {"problems": {"mpirun": ["interfaces differ"]}}, "torch", "interfaces differ"),
        (NONE, NGC, {}, "torch", "a GPU on every host"),
        (NONE, TF, {}, "horovod", "PyTorch: the image does not have it"),
        (NONE, TF, {"frameworks": ["tensorflow"]}, "horovod", "PyTorch"),
        (EIGHT, TF, {}, "horovod", "training_image_nccl_tests_tag"),
        (NONE, NGC, {"asked": "horovod"}, "horovod", "verify_bandwidth_tool"),
        (EIGHT, NGC, {"asked": "torch"}, "torch", "verify_bandwidth_tool"),
    ],
)
def test_the_best_possible_tool_is_chosen(gpus, image, more, tool, reason):
    chosen = _bandwidth_tool.choose(more.pop("asked", "auto"), gpus, image, **more)
    assert chosen["tool"] == tool and reason in chosen["reason"] and chosen["problem"] == ""
    assert chosen["where"] == (
        "host" if more.get("on_host") and tool == "all_reduce_perf" else "container"
    )


@pytest.mark.parametrize(
    "asked, image, more, problem",
    [
        (
            "auto",
            [],
            {},
            "PyTorch: the image does not have it. Horovod: the image does not have it",
        ),
        (
            "auto",
            ["horovod", "horovodrun", "tensorflow"],
            {"frameworks": []},
            "none of the image's frameworks (tensorflow)",
        ),
        ("auto", TF, {"problems": {"horovodrun": ["interfaces differ"]}}, "interfaces differ"),
        # What is requested is not replaced.
        ("all_reduce_perf", ["torch"], {}, "a GPU on every host"),
        ("horovod", ["torch"], {}, "Horovod: the image does not have it"),
    ],
)
def test_no_tool(asked, image, more, problem):
    chosen = _bandwidth_tool.choose(asked, NONE, image, **more)
    assert chosen["tool"] == "" and problem in chosen["problem"]


def told(text, **bounds):
    return dict(
        _all_reduce.answer(text, bounds=bounds),
        available=True,
        cause=None,
        fix=None,
        command=COMMAND,
    )


@pytest.fixture(name="log")
def fixture_log():
    return (LOGS / "polaris-2node-8gpu.txt").read_text(encoding="utf-8")


def moved(gb, cards=(), peaks=(97, 96, 95, 98), **changes):
    """What host_watch.py tells after a run in which the card has sent and received that much."""
    return dict(
        {
            "cards": list(cards or CARDS),
            "counters": [1000 + int(gb * 1e9), 2000 + int(gb * 1e9)],
            "peaks": list(peaks),
        },
        **changes,
    )


def answer(alone, together, plan=None, after=None, image=(), gpus=None):
    seen = {"a": moved(170), "b": moved(170)} if after is None else after
    found = _bandwidth_tool.of_nccl_tests(
        {"alone": alone, "facts": FACTS, "after": seen},
        together,
        gpus or {"a": 4, "b": 4},
        plan or PLAN,
        image,
    )
    return dict(found, tool="all_reduce_perf", tool_reason="the best tool, and the image has it")


def verdicts(found, hosts=("a", "b")):
    return {
        (check["id"], check["host"]): check
        for check in bandwidth_checks(found, list(hosts), [], dict.fromkeys(hosts, 4))
    }


def test_a_good_log_becomes_a_run_with_its_rows(log):
    found = answer({}, told(log, expected_ranks=8, expected_hosts=2))
    (run,) = found["runs"]
    assert (run["id"], run["ranks"], run["judged"]) == (
        "cluster",
        8,
        ["complete", "correct", "ranks", "hosts"],
    )
    assert len(run["rows"]) > 10 and run["max_busbw_gb_s"] > 1
    # The schema of the report takes it.
    schema = load_schema()
    shape = dict(schema, required=[], properties={"bandwidth": schema["properties"]["bandwidth"]})
    assert problem_of(
        {
            "bandwidth": {
                key: found[key] for key in ("collective", "note", "runs", "tool", "tool_reason")
            }
        },
        shape,
    ) in ("", None)


def test_what_limits_the_hosts_is_required(log):
    slow = dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1000.0))
    check = verdicts(answer({}, told(log), slow))["bandwidth-cluster", "a, b"]
    assert (
        check["verdict"] == "fail"
        and "required: 1e+03" in check["found"]
        and "all_reduce_perf" in check["source"]
        and check["fix"]
    )
    enough = dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1.0))
    assert verdicts(answer({}, told(log), enough))["bandwidth-cluster", "a, b"]["verdict"] == "pass"


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (
            lambda log: log.replace(
                "# Out of bounds values : 0 OK", "# Out of bounds values : 3 FAILED"
            ),
            "wrong",
        ),
        (lambda log: log[: log.index("# Out of bounds values")], "summary"),
    ],
)
def test_a_run_that_is_worth_nothing_fails_however_fast_it_was(log, spoil, reason):
    bad = spoil(log)
    assert bad != log
    found = answer(
        {},
        told(bad, expected_ranks=8, expected_hosts=2),
        dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1.0)),
    )
    check = verdicts(found)["bandwidth-cluster", "a, b"]
    assert check["verdict"] == "fail" and reason in check["found"]
    assert found["blame"] == [] and "which the image does not have" in found["note"]


def test_ranks_that_are_missing_and_a_tool_that_did_not_start(log):
    assert (
        "16 ranks are requested"
        in verdicts(answer({}, told(log, expected_ranks=16)))["bandwidth-cluster", "a, b"]["found"]
    )
    gone = {
        "available": False,
        "cause": "timeout",
        "fix": "it hangs",
        "passed": False,
        "reasons": [],
        "rows": [],
    }
    checks = verdicts(answer({"a": gone}, gone))
    assert (
        checks["bandwidth-cluster", "a, b"]["verdict"]
        == checks["bandwidth-host", "a"]["verdict"]
        == "fail"
    )
    assert "it hangs" in checks["bandwidth-host", "a"]["found"]
    # How much a run that did not end must have moved is not known.
    others = [
        checks[key]
        for key in checks
        if key[0] in ("gpus-busy", "fabric-counters", "nccl-transport")
    ]
    assert {check["verdict"] for check in others} == {"skipped"} and len(others) == 5
    assert {check["found"].partition(": ")[2] for check in others} == {
        "all_reduce_perf did not complete"
    }


def test_a_run_that_hangs_says_where_its_ranks_waited(log):
    """As the first host has told. A run that has ended well in spite of it does not."""
    waited = "no work of the GPUs of host a and no bytes on its network for 10 minutes: NCCL has no answer from rank 5 on b. See /share/hang.txt"
    after = {"a": moved(170, waited=waited), "b": moved(170)}
    gone = {"available": False, "passed": False, "rows": [], "reasons": []}
    gone["reasons"] = [{"id": "timeout", "cause": "it did not end within 900 s", "fix": None}]
    check = verdicts(answer({}, gone, after=after))["bandwidth-cluster", "a, b"]
    assert check["found"] == (
        "the measurement failed: it did not end within 900 s; %s. %s"
        % (waited, _bandwidth_tool.NO_BLAME)
    )
    whole = told(log, expected_ranks=8, expected_hosts=2)
    assert answer({}, whole, after=after)["runs"][-1]["errors"] == []


def test_transport_comes_from_the_tools_own_log(log):
    text = "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n" + log
    check = verdicts(answer({}, told(text)))["nccl-transport", "a, b"]
    assert check["verdict"] == "fail" and "NET/Socket" in check["found"]


# 4 bytes to 1 GiB: twice 22 times each, and 5 times the largest at least, all of them at most.
LEAST = 2 * 22 * ((2 << 30) - 4) + 5 * (1 << 30)
MOST = LEAST + 5 * (1 << 30)


def test_what_a_run_has_reduced(log):
    """By nccl-tests' src/common.cu: one to synchronize, 20 measured and one checked for each
    placement, and the warm-up of old and new versions.
    """
    assert _bandwidth_tool.reduced_bytes(told(log)["rows"], COMMAND) == (LEAST, MOST)
    rows = [{"size_bytes": 1 << power} for power in range(3, 10)]
    command = ["all_reduce_perf", "-g", "8", "-w", "0", "-n", "1", "-c", "1"]
    assert _bandwidth_tool.reduced_bytes(rows, command) == (2 * 3 * (1024 - 8),) * 2
    # A variable of that name is not the option.
    assert (
        _bandwidth_tool.reduced_bytes(rows, ["mpirun", "-n", "16", *command])
        == (2 * 3 * (1024 - 8),) * 2
    )
    # What the newer versions warm up with is below the bound.
    warm = sum(1 << power for power in range(3, 10))
    assert 5 * warm <= _bandwidth_tool.reduced_bytes(rows, ["-w", "5", "-n", "1"])[1] - 2 * 3 * (
        1024 - 8
    )


@pytest.mark.parametrize(
    "gb, verdict",
    [
        # A tree of two hosts moves it once, a ring of eight ranks 1.75 times.
        (LEAST / 1e9, "pass"),
        (1.75 * MOST / 1e9, "pass"),
        (0.81 * LEAST / 1e9, "pass"),
        (0.79 * LEAST / 1e9, "fail"),
        (0, "fail"),
        (2.39 * MOST / 1e9, "pass"),
        (2.41 * MOST / 1e9, "warn"),
    ],
)
def test_counters_around_the_run_of_all_hosts(log, gb, verdict):
    checks = verdicts(answer({}, told(log), after={"a": moved(170), "b": moved(gb)}))
    assert (
        checks["fabric-counters", "a"]["verdict"] == "pass"
        and checks["fabric-counters", "b"]["verdict"] == verdict
    )
    assert (
        checks["fabric-counters", "a"]["expected"]
        == "99.9 GB to 210 GB, depending on NCCL's algorithm, each way over mlx5_0, within 20 %"
    )
    assert {checks["gpus-busy", host]["verdict"] for host in "ab"} == {"pass"}


@pytest.mark.parametrize(
    "after, found",
    [
        ({"a": moved(170)}, "not read: the host did not answer after the run"),
        (
            {"a": moved(170), "b": moved(170, cards=[dict(CARDS[0], name="mlx5_1")])},
            "not read: before the run the fabric's cards were mlx5_0, after it mlx5_1",
        ),
        ({"a": moved(170), "b": moved(170, counters=None)}, "mlx5_0 has no readable counters"),
    ],
)
def test_counters_that_say_nothing(log, after, found):
    checks = verdicts(answer({}, told(log), after=after))
    assert (checks["fabric-counters", "b"]["verdict"], checks["fabric-counters", "b"]["found"]) == (
        "skipped",
        found,
    )
    assert checks["fabric-counters", "a"]["verdict"] == "pass"


@pytest.mark.parametrize(
    "peaks, verdict",
    [
        ((5, 97, 96, 98), "pass"),
        ((97, 96, 95, 4), "fail"),
        ((), "skipped"),
        ((97, 96, 95, None), "skipped"),
    ],
)
def test_gpus_in_use_while_it_ran(log, peaks, verdict):
    check = verdicts(answer({}, told(log), after={"a": moved(170), "b": moved(170, peaks=peaks)}))[
        "gpus-busy", "b"
    ]
    assert check["verdict"] == verdict and check["expected"] == "4 GPUs in use (5 % or more)"


def test_a_run_with_wrong_values_has_moved_its_data(log):
    """It came to its end."""
    bad = log.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 3 FAILED")
    checks = verdicts(answer({}, told(bad), after={"a": moved(170), "b": moved(3)}))
    assert [checks["fabric-counters", host]["verdict"] for host in "ab"] == ["pass", "fail"]


def test_one_host_has_no_fabric_and_its_gpus_are_seen(log):
    """Its run is the one alone."""
    text = "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n" + log
    found = answer({"a": told(text)}, {}, after={"a": moved(0)}, gpus={"a": 4})
    checks = verdicts(found, ["a"])
    assert {key: check["verdict"] for key, check in checks.items()} == {
        ("bandwidth-host", "a"): "pass",
        ("gpus-busy", "a"): "pass",
        ("nccl-transport", "a"): "pass",
    } and not found["search"]


def slow(log, image=("torch",)):
    return answer(
        {}, told(log), dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1000.0)), image=image
    )


def test_who_is_to_blame_is_looked_for_where_all_hosts_fail(log):
    assert (
        slow(log)["search"] is True
        and slow(log, ["horovod"])["search"] is False
        and "which the image does not have" in slow(log, [])["note"]
    )
    good = answer(
        {}, told(log), dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1.0)), image=["torch"]
    )
    assert good["search"] is False and good["note"] == ""
    # A run that failed as well, and not a host alone, which is named by its own check.
    assert answer({}, told(log, expected_ranks=16), image=["torch"])["search"] is True
    bad = {"available": False, "passed": False, "reasons": [], "rows": [], "fix": "it hangs"}
    good = answer(
        {"a": bad},
        told(log),
        dict(PLAN, asked=dict(PLAN["asked"], min_busbw_gb_s=1.0)),
        image=["torch"],
    )
    assert good["search"] is False and not good["runs"][0]["passed"]


def run_of_job(run_id, hosts, busbw, passed=True):
    run = {
        "id": run_id,
        "hosts": hosts,
        "ranks": 8,
        "rows": [_bandwidth.row(1 << 30, 0.1, 8, 0)],
        "seconds": 1.0,
        "errors": [],
        "transports": [],
    }
    bound = {
        "busbw_gb_s": 24.0,
        "bound": "nic",
        "from": "x",
        "required_gb_s": 16.8,
        "history_gb_s": None,
    }
    return dict(run, **dict(_bandwidth.verdict(run, bound), passed=passed, judged_busbw_gb_s=busbw))


JOB = {
    "collective": "nccl",
    "blame": [{"kind": "host", "names": ["b"], "evidence": "slow in each pair"}],
    "suspect": ["b"],
    "note": "",
    "rounds": 3,
    "watched": {},
    "runs": [
        run_of_job("host:a", ["a"], 200.0),
        run_of_job("cluster", ["a", "b"], 3.0, False),
        run_of_job("pair:a,b", ["a", "b"], 3.0, False),
    ],
}


def test_the_blame_of_the_job_and_the_verdict_of_all_reduce_perf(log):
    found = _bandwidth_tool.with_search(slow(log), JOB)
    assert found["suspect"] == ["b"] and found["rounds"] == 3 and found["note"] == ""
    check = verdicts(found)["bandwidth-cluster", "a, b"]
    assert (
        check["verdict"] == "fail"
        and "required: 1e+03" in check["found"]
        and "host b: slow in each pair (by PyTorch's all-reduce)" in check["found"]
    )
    assert (
        check["fix"] == "check b; until then leave out: b" and "all_reduce_perf" in check["source"]
    )
    # Of the job's runs only those that all_reduce_perf has not made.
    assert [run["id"] for run in found["runs"]] == ["cluster", "pair:a,b"] and len(
        found["runs"][0]["rows"]
    ) > 10
    schema = load_schema()
    shape = dict(
        schema,
        required=[],
        properties={
            "bandwidth": schema["properties"]["bandwidth"],
            "blame": schema["properties"]["blame"],
        },
    )
    bandwidth = {key: found[key] for key in ("collective", "note", "runs", "tool", "tool_reason")}
    assert problem_of({"bandwidth": bandwidth, "blame": found["blame"]}, shape) in ("", None)


@pytest.mark.parametrize(
    "job, tail, note",
    [
        (
            {},
            ["trainyard: failed: rank 3 ended with exit code 1", "x"],
            "PyTorch's job, which searches for a suspect host or link, has measured nothing: rank 3 ended with exit code 1",
        ),
        (
            {},
            [
                "trainyard: warning: host a: GPU 3 (0 % at most) stayed idle, see also /data1/hang.txt",
                "trainyard: warning: no output for 10 minutes: rank 3 on b is in load_batch, the others wait in all_reduce. See /data1/x/hang.txt",
                "trainyard: failed: the job was stopped after its timeout of 900 s",
                "trainyard: failed: rank 3 on host b was killed and has no exit code",
            ],
            "PyTorch's job, which searches for a suspect host or link, has measured nothing: the job was stopped after its timeout of 900 s; "
            "no output for 10 minutes: rank 3 on b is in load_batch, the others wait in all_reduce. See /data1/x/hang.txt",
        ),
        (
            {},
            [],
            "PyTorch's job, which searches for a suspect host or link, has measured nothing: the job left no result",
        ),
        (
            dict(JOB, blame=[], suspect=[], note="no host and no link stands out"),
            [],
            "PyTorch's job searched for a suspect host or link: no host and no link stands out",
        ),
        (
            dict(JOB, blame=[], suspect=[], note=_bandwidth.BROKE_OFF),
            [],
            "PyTorch's job searched for a suspect host or link: the job did not complete",
        ),
        (
            dict(JOB, blame=[], suspect=[], runs=[run_of_job("cluster", ["a", "b"], 21.5)]),
            [],
            "with PyTorch's all-reduce the same hosts pass, with 21.5 GB/s together, so no search for a host or link was made",
        ),
    ],
)
def test_no_blame_has_a_reason(log, job, tail, note):
    found = _bandwidth_tool.with_search(slow(log), job, tail)
    assert (
        found["note"] == note
        and found["blame"] == found["suspect"] == []
        and note in verdicts(found)["bandwidth-cluster", "a, b"]["found"]
    )


@pytest.mark.parametrize("collective, verdict", [("nccl", "pass"), ("gloo", "skipped")])
def test_where_all_reduce_perf_has_failed_the_job_was_watched(log, collective, verdict):
    """Unless it worked without the GPUs."""
    must = _bandwidth.must_move(1 << 30, 20, 8)
    hosts = {
        host: {
            "ranks": 4,
            "via": [" via NET/IB/0"],
            "gpus": [99] * 4,
            "sent_bytes": must,
            "received_bytes": must,
        }
        for host in "ab"
    }
    job = dict(
        JOB,
        collective=collective,
        lost={host: {"tcp": [1000, 0], "cards": {}, "mtu": {"eth0": 1500}} for host in "ab"},
        watched={"ranks": 8, "size_bytes": 1 << 30, "iterations": 20, "error": "", "hosts": hosts},
    )
    cut = log[: log.index("# Out of bounds values")]
    checks = verdicts(_bandwidth_tool.with_search(answer({}, told(cut), image=["torch"]), job))
    assert {
        check["verdict"] for key, check in checks.items() if not key[0].startswith("bandwidth-")
    } == {verdict}
    # A whole run of its own is judged by what it has moved itself.
    checks = verdicts(_bandwidth_tool.with_search(dict(slow(log)), job))
    assert checks["fabric-counters", "a"]["found"] == "sent 170 GB; received 170 GB"


def test_connections_of_a_run_that_did_not_come_to_its_end(log):
    """NCCL's log has named them, whatever became of the run."""
    text = (
        "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
        + log[: log.index("# Out of bounds values")]
    )
    checks = verdicts(answer({}, told(text)))
    assert (
        checks["nccl-transport", "a, b"]["verdict"] == "fail"
        and checks["fabric-counters", "a"]["verdict"] == "skipped"
    )


def test_results_of_the_tasks_of_each_host():
    """As Ansible registers them."""
    alone = {"a": {"passed": True, "rows": []}, "b": {"skipped": True}}
    before = {host: {"rc": 0, "stdout": '{"counters": [1, 2]}'} for host in "ab"}
    after = {"a": {"rc": 0, "stdout": '{"peaks": []}'}, "b": {"rc": 1, "stdout": ""}, "c": {}}
    assert _bandwidth_tool.results_of_tasks(alone, before, after) == {
        "alone": {"a": alone["a"]},
        "facts": {"a": {"counters": [1, 2]}, "b": {"counters": [1, 2]}},
        "after": {"a": {"peaks": []}},
    }
    # Without the facts of a host nothing can be judged.
    with pytest.raises(ValueError):
        _bandwidth_tool.results_of_tasks({}, {"a": {"rc": 1, "stdout": ""}}, {})
