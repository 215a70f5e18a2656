"""The verdict of a burn-in: who is slow among equals, than before and than published, and what a
healthy cluster looks like.
"""

from __future__ import annotations

import itertools
import json
import random

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _burn_in
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

H100 = "NVIDIA H100 80GB HBM3"
SOFTWARE = "torch 2.4.0, CUDA 12.4, driver 550.163.01"
FACTS = _compat.load_facts()


def figures(model):
    return _compat.gpu_figures(model, FACTS)


def no_figures(_model):
    return {}


def a_device(number, samples=(700.0,) * 10, test="matmul_bfloat16", **changes):
    return dict(
        {
            "kind": "gpu",
            "serial": "16549230%05d" % number,
            "host": "gpu-%02d" % (number // 8),
            "index": number % 8,
            "model": H100,
            "software": SOFTWARE,
            "rates": {test: list(samples)},
            "wrong": {test: 0},
            "error": "",
            "grown": [],
            "state": {},
        },
        **changes,
    )


def judged(devices, filed=None, published=no_figures):
    found = _burn_in.judge(devices, filed or {}, published)
    return found["devices"], {(entry["id"], entry["host"]): entry for entry in found["checks"]}


def bad(devices, filed=None):
    return {device["serial"] for device in judged(devices, filed)[0] if device["verdict"] == "fail"}


def a_cluster(chance, slow, noise=0.02, spread=0.01, count=64, times=10):
    """A cluster in which each GPU has a lasting level, and each measurement its noise."""
    levels = [1 + chance.gauss(0, spread) for _number in range(count)]
    levels[slow] = 0.93
    return [
        a_device(number, [700 * level * (1 + chance.gauss(0, noise)) for _time in range(times)])
        for number, level in enumerate(levels)
    ]


def campaign(runs=1000, **how):
    """Return in how many of 100 runs the slow GPU was named, and in how many another one."""
    chance = random.Random(52)
    named = alarms = 0
    for _run in range(runs):
        slow = chance.randrange(64)
        found = bad(a_cluster(chance, slow, **how))
        serial = a_device(slow)["serial"]
        named += serial in found
        alarms += bool(found - {serial})
    return 100 * named / runs, 100 * alarms / runs


def test_one_slow_gpu_of_64_is_named_and_healthy_noise_is_not():
    named, alarms = campaign()
    assert named >= 99 and alarms <= 1


def test_one_measurement_is_not_enough():
    """Why the program measures ten times: of one measurement the same judgement misses more and
    cries wolf more.
    """
    named, alarms = campaign(runs=200, times=1)
    assert named < 99 or alarms > 1


def test_a_pause_of_the_machine_is_no_slow_gpu():
    devices = [a_device(number) for number in range(8)]
    devices[3]["rates"]["matmul_bfloat16"][4] = 90.0
    assert bad(devices) == set()


def test_half_of_the_devices_do_not_lower_the_bar():
    """One of two hosts, whose room is too hot."""
    devices = [a_device(number, [700.0 if number < 8 else 640.0] * 10) for number in range(16)]
    found, checks = judged(devices)
    assert [device["host"] for device in found if device["verdict"] == "fail"] == ["gpu-01"] * 8
    assert "8 of 8 GPUs of the host are slow" in checks["burn-in-speed", "gpu-01"]["found"]
    assert checks["burn-in-speed", "gpu-00"]["verdict"] == "pass"


def test_a_lot_that_differs_does_not_excuse_itself():
    """The spread widens the limit, but not without an end."""
    speeds = [700.0 - 8 * number for number in range(15)] + [500.0]
    found = bad([a_device(number, [speed] * 10) for number, speed in enumerate(speeds)])
    assert a_device(15)["serial"] in found and len(found) == 1


def test_other_models_and_other_software_are_no_peers():
    devices = [a_device(number) for number in range(4)]
    devices.append(a_device(8, [100.0] * 10, model="Tesla T4"))
    devices.append(a_device(9, [500.0] * 10, software="torch 1.13"))
    found, checks = judged(devices)
    assert {device["verdict"] for device in found} == {"pass"}
    assert checks["burn-in-speed", "gpu-01"]["verdict"] == "warn"
    assert "nothing to compare with" in checks["burn-in-speed", "gpu-01"]["found"]


def filed(number, value, verdict="pass", **changes):
    result = {
        "kind": "gpu",
        "model": H100,
        "software": SOFTWARE,
        "verdict": verdict,
        "rates": {"matmul_bfloat16": value},
    }
    return {a_device(number)["serial"]: [dict(result, **changes)]}


def test_earlier_results_of_the_same_serial_number():
    slower = a_device(0, [650.0] * 10)
    assert bad([slower], filed(0, 700.0)) == {slower["serial"]}
    # A new card in the same slot, a failed result, and another driver.
    assert bad([slower], filed(1, 655.0)) == set()
    assert bad([slower], filed(0, 700.0, verdict="fail")) == set()
    assert bad([slower], filed(0, 700.0, software="torch 1.13")) == set()


def test_the_others_of_earlier_runs_are_peers():
    """With --limit only one host runs."""
    others = {}
    for number in range(1, 6):
        others.update(filed(number, 700.0))
    devices, checks = judged([a_device(0, [650.0] * 10)], others)
    assert devices[0]["verdict"] == "fail" and devices[0]["relative"]["matmul_bfloat16"] < 0.95
    assert "less than the median of 6 such" in checks["burn-in-speed", "gpu-00"]["found"]


@pytest.mark.parametrize("speed, verdict", [(700.0, "pass"), (250.0, "warn")])
def test_published_figures(speed, verdict):
    """All GPUs are equally slow: no peer says so."""
    _devices, checks = judged(
        [a_device(number, [speed] * 10) for number in range(8)], published=figures
    )
    assert checks["burn-in-speed", "gpu-00"]["verdict"] == verdict


@pytest.mark.parametrize(
    "model, memory",
    [
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1555),
        ("Tesla V100-SXM2-32GB", 900),
        ("NVIDIA L40S", 864),
        ("NVIDIA GeForce RTX 4090", None),
        ("NVIDIA L4", None),
    ],
)
def test_figures_of_a_model(model, memory):
    assert figures(model).get("memory") == memory


def test_one_wrong_value_is_a_fault_whatever_the_speed():
    devices = [a_device(number) for number in range(8)]
    devices[5]["wrong"]["matmul_bfloat16"] = 1
    found, checks = judged(devices)
    check = checks["burn-in-results", "gpu-00"]
    assert check["verdict"] == "fail" and "GPU 5" in check["found"] and "1 wrong" in check["found"]
    assert [device["index"] for device in found if device["verdict"] == "fail"] == [5]


def test_a_slow_gpu_says_what_it_says_of_itself():
    devices = [a_device(number) for number in range(8)]
    devices[2]["rates"]["matmul_bfloat16"] = [600.0] * 10
    devices[2]["state"] = {"temperature_c": 91, "power_draw_w": 400, "power_limit_w": 400.0}
    found = judged(devices)[1]["burn-in-speed", "gpu-00"]["found"]
    assert "91 C" in found and "400 of 400.0 W" in found and "14.3 % less" in found


# --- what hosts say ---


def a_card(**changes):
    return dict(
        {
            "index": 0,
            "uuid": "GPU-1",
            "name": H100,
            "serial": "1654923000341",
            "ecc_errors": {
                span: {"correctable": 0, "uncorrectable": 0} for span in ("volatile", "aggregate")
            },
            "problems": [],
        },
        **changes,
    )


def ended(answer):
    return {"rc": 0, "stdout_lines": ["Loading", json.dumps(answer)]}


def told(after=None, host=None, **changes):
    rank = {
        "kind": "gpu",
        "uuid": "GPU-1",
        "index": 0,
        "rates": {"memory": [3000.0] * 10},
        "wrong": {"memory": 0},
        "error": "",
    }
    return dict(
        {
            "run": ended({"software": "torch 2.4.0", "ranks": [rank], "host": host, "error": ""}),
            "serial": "S1234567",
            "before": {"driver_version": "550.1", "gpus": [a_card()]},
            "during": {"gpus": [a_card()]},
            "after": {"gpus": [after or a_card()]},
            "errors_before": [],
            "errors_after": [],
        },
        **changes,
    )


def checks_of(its):
    return {
        entry["id"]: entry
        for entry in _burn_in.judge(_burn_in.of_hosts(its), {}, no_figures)["checks"]
    }


def test_counters_that_grow_under_load():
    healthy = checks_of({"gpu-a": told()})
    assert healthy["burn-in-errors"]["verdict"] == "pass"
    counted = a_card(
        ecc_errors={
            "volatile": {"correctable": 3, "uncorrectable": 0},
            "aggregate": {"correctable": 3, "uncorrectable": 0},
        }
    )
    found = checks_of({"gpu-a": told(counted)})["burn-in-errors"]
    assert found["verdict"] == "fail" and "3 correctable memory errors" in found["found"]
    # A remapped row waits only since the run.
    problem = {"id": "gpu-ecc", "action": "warn", "evidence": "GPU 0: memory is pending retirement"}
    found = checks_of({"gpu-a": told(a_card(problems=[problem]))})["burn-in-errors"]
    assert found["verdict"] == "fail" and "pending retirement" in found["found"]
    lost = checks_of({"gpu-a": told(after={"uuid": "GPU-2"})})["burn-in-errors"]
    assert lost["verdict"] == "fail" and "does not show it" in lost["found"]


def test_xids_of_the_run():
    xid = {
        "kind": "Xid",
        "device": "0000:3b:00",
        "code": 63,
        "count": 1,
        "cause": "a memory row was remapped",
        "action": "warn",
    }
    before = told(errors_before=[xid], errors_after=[xid])
    assert checks_of({"gpu-a": before})["burn-in-errors"]["verdict"] == "pass"
    again = told(errors_before=[xid], errors_after=[dict(xid, count=2)])
    found = checks_of({"gpu-a": again})["burn-in-errors"]
    assert found["verdict"] == "fail" and "Xid 63 of 0000:3b:00" in found["found"]
    without = told(errors_before=[], errors_after=[xid])
    assert checks_of({"gpu-a": without})["burn-in-errors"]["verdict"] == "fail"


def test_throttled_at_work():
    slowed = {"id": "gpu-throttle", "action": "drain", "evidence": "GPU 0: lower clocks"}
    during = {"gpus": [a_card(problems=[slowed])]}
    found = checks_of({"gpu-a": told(during=during)})["burn-in-errors"]
    assert found["verdict"] == "warn" and "lower clocks" in found["found"]


@pytest.mark.parametrize(
    "run, said",
    [
        ({"rc": 1, "stderr_lines": ["The burn-in needs PyTorch", ""]}, "needs PyTorch"),
        ({"rc": 1, "stdout_lines": ["{}"], "msg": "non-zero return code"}, "{}"),
        ({"rc": 0, "stdout_lines": ["[1]"]}, "[1]"),
        ({"rc": 0, "stdout_lines": ["[" * 100000]}, "[[["),
        ({"msg": "async task did not complete within the requested time"}, "async task"),
        ({}, "no message"),
    ],
)
def test_a_program_that_does_not_run_is_a_fault(run, said):
    found = checks_of({"gpu-a": told(run=run)})
    assert found["burn-in-results"]["verdict"] == "fail"
    assert said in found["burn-in-results"]["found"]


def test_serial_numbers_of_hosts():
    """Virtual machines have none, or that of their machine."""
    answer = {
        "software": "t",
        "ranks": [],
        "host": {"rates": {"read_local": [1.0]}, "model": "x"},
        "error": "",
    }
    its = {
        name: {"run": ended(answer), "serial": serial}
        for name, serial in (
            ("a", "SAME-1234"),
            ("b", "SAME-1234"),
            ("c", "Not Specified"),
            ("d", "NA"),
            ("e", " J0123456 "),
        )
    }
    assert [device["serial"] for device in _burn_in.of_hosts(its)] == [
        "a",
        "b",
        "c",
        "d",
        "J0123456",
    ]


def test_a_gpu_without_serial_number_has_its_uuid():
    cards = {"gpus": [a_card(serial=None)]}
    found = _burn_in.devices("gpu-a", told(before=cards, after=cards))
    assert found[0]["serial"] == "GPU-1"


def dcgm(key, *results, name="memory"):
    document = {key: {"test_categories": [{"category": "Hardware", "tests": [{"name": name}]}]}}
    document[key]["test_categories"][0]["tests"][0]["results"] = list(results)
    return "== dcgmi\n%s\n== exit 0\n" % json.dumps(document, indent=1)


NEWER = {"entity_group": "GPU", "entity_id": 3}
FAILED = {"status": "Fail", "warnings": [{"error_id": 83, "warning": "Pinned memory allocation"}]}


@pytest.mark.parametrize(
    "text, faults, remarks",
    [
        ("", [], []),
        # DCGM 4, and DCGM 3 as in NVIDIA/DCGM#139.
        (dcgm("DCGM Diagnostic", dict(NEWER, status="Pass")), [], []),
        (
            "Warning: the version differs\n"
            + dcgm("DCGM Diagnostic", dict(NEWER, status="Pass"), dict(NEWER, **FAILED)),
            ["dcgmi diag: memory of GPU 3: Pinned memory allocation"],
            [],
        ),
        (
            dcgm(
                "DCGM GPU Diagnostic",
                {"gpu_id": "0", "status": "Skip"},
                {"gpu_id": "1", "status": "Fail", "warnings": ["bad page"]},
                {"gpu_ids": "0,1", "status": "Fail"},
            ),
            [
                "dcgmi diag: memory of GPU 1: bad page",
                "dcgmi diag: memory of GPU 0,1: Fail",
            ],
            [],
        ),
        # NVIDIA/DCGM#253: warnings of healthy hosts after an upgrade.
        (
            dcgm("DCGM Diagnostic", dict(NEWER, status="Warn", warnings=[{"warning": "slow"}])),
            [],
            ["dcgmi diag: memory of GPU 3: slow"],
        ),
        (
            "== dcgmi\nError: unable to establish a connection\n== exit 226\n",
            [],
            ["dcgmi diag gave no result: Error: unable to establish a connection"],
        ),
        ("== dcgmi\n{\n== exit 124\n", [], ["dcgmi diag gave no result: {"]),
        ("== dcgmi\n[]\n{}\n== exit 0\n", [], ["dcgmi diag gave no result: [] {}"]),
        ("== nhc\n\n== exit 0\n", [], []),
        (
            "== nhc\n20261130 08:00:00 [slurm] /usr/libexec/nhc/node-mark-offline gpu-a\n"
            "ERROR:  nhc:  Health check failed:  check_fs_mount:  /scratch not mounted\n\n== exit 1\n",
            ["nhc: ERROR:  nhc:  Health check failed:  check_fs_mount:  /scratch not mounted"],
            [],
        ),
        ("== nhc\nno configuration\n== exit 1\n", ["nhc: no configuration"], []),
        ("== nhc\n\n== exit 124\n", [], ["nhc did not end in time"]),
    ],
)
def test_the_verdicts_of_other_tools_join(text, faults, remarks):
    assert _burn_in.vendor_findings(text) == (faults, remarks)
    found = checks_of({"gpu-a": told(vendor=text)})["burn-in-errors"]
    assert found["verdict"] == ("fail" if faults else "warn" if remarks else "pass")
    assert all(each in found["found"] for each in faults + remarks)
    assert bool(found["fix"]) is bool(faults or remarks)


def test_a_slow_disk_is_a_warning():
    """It is measured once, and others use the share meanwhile."""
    hosts = [
        a_device(0, [rate], "write_share", kind="host", serial=name, host=name, model="EPYC")
        for name, rate in (("a", 1.0), ("b", 1.0), ("c", 0.5))
    ]
    devices, checks = judged(hosts)
    found = checks["burn-in-speed", "c"]
    assert found["verdict"] == "warn" and "write_share" in found["found"] and found["fix"]
    assert checks["burn-in-speed", "a"]["verdict"] == "pass"
    assert {device["verdict"] for device in devices} == {"pass"}


def test_two_gpus_of_one_board_are_two_devices():
    rank = {"kind": "gpu", "model": H100, "wrong": {}, "error": ""}
    ranks = [
        dict(rank, uuid="GPU-1", index=0, rates={"memory": [3000.0] * 10}),
        dict(rank, uuid="GPU-2", index=1, rates={"memory": [1000.0] * 10}),
    ]
    cards = {"gpus": [a_card(), a_card(uuid="GPU-2", index=1)]}
    its = dict(told(before=cards, run=ended({"ranks": ranks, "host": {}})), after=cards)
    judged = _burn_in.judge(_burn_in.of_hosts({"gpu-a": its}), {}, no_figures)
    shown = {device["serial"]: device["verdict"] for device in judged["devices"]}
    assert shown == {"GPU-1": "pass", "GPU-2": "fail", "S1234567": "pass"}


@pytest.mark.parametrize(
    "answer",
    [
        {"ranks": [7]},
        {"ranks": 7},
        {"ranks": [{"wrong": {"memory": "many"}}]},
        {"ranks": [{"rates": [1]}]},
        {"host": []},
        {"host": {"faults": 1}},
        {"ranks": [{"index": "first"}]},
        {"ranks": [{"wrong": {"memory": float("inf")}}]},
    ],
)
def test_an_answer_of_another_form_is_a_fault_of_its_host_only(answer):
    run = {"rc": 0, "stdout_lines": [json.dumps(answer)], "stderr_lines": []}
    found = checks_of({"gpu-a": {"run": run, "serial": "S1234567"}})["burn-in-results"]
    both = _burn_in.of_hosts({"gpu-a": {"run": run}, "gpu-b": told()})
    assert found["verdict"] == ("fail" if answer != {"host": []} else "pass")
    assert [device["verdict"] for device in _burn_in.judge(both, {}, no_figures)["devices"]][
        -2:
    ] == ["pass", "pass"]


@pytest.mark.parametrize("lines", [5, {"a": 1}, [7], "x", [None]])
def test_output_of_another_form_is_a_fault_of_its_host_only(lines):
    run = {"rc": 0, "stdout_lines": lines, "stderr_lines": lines}
    both = _burn_in.of_hosts({"gpu-a": {"run": run}, "gpu-b": told()})
    verdicts = [device["verdict"] for device in _burn_in.judge(both, {}, no_figures)["devices"]]
    assert verdicts[0] == "fail" and verdicts[-2:] == ["pass", "pass"]


def test_rates_without_a_sum_count_for_nothing():
    assert _burn_in._numbers({"memory": [1e308, 2.5, float("inf"), float("nan"), True]}) == {
        "memory": [2.5]
    }


@pytest.mark.parametrize(
    "serial, name",
    [
        ("1654923000341", "1654923000341.json"),
        ("GPU-8f2a", "GPU-8f2a.json"),
        ("../../etc/cron.d/x", "etc_cron_d_x.json"),
        ("..", "unknown.json"),
        ("a\nb\0c", "a_b_c.json"),
        ("x" * 500, "x" * 100 + ".json"),
    ],
)
def test_a_serial_number_names_a_file_in_the_folder(serial, name):
    assert _burn_in.file_name(serial) == name


def test_the_file_keeps_the_last_results():
    device = judged([a_device(0)])[0][0]
    document = None
    for number in range(30):
        document = _burn_in.with_result(document, device, "2026-01-01T00:00:%02dZ" % number)
    assert len(document["results"]) == _burn_in.KEPT
    assert document["results"][-1]["generated"] == "2026-01-01T00:00:29Z"
    assert _burn_in.read_document(document)["results"] == document["results"]


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"schema_version": 2, "results": []}, {"schema_version": "1"}],
)
def test_other_files_are_no_results(document):
    assert _burn_in.read_document(document) is None


def test_a_broken_result_is_left_out():
    document = {
        "schema_version": 1,
        "serial": "s",
        "results": [{"rates": {}}, 3, dict(filed(0, "fast")[a_device(0)["serial"]][0])],
    }
    assert _burn_in.read_document(document) == {"serial": "s", "results": []}


# --- between hosts ---

HOSTS = ["gpu-a", "gpu-b", "gpu-c", "gpu-d"]


def pairs_of(speed, passed=lambda pair: True):
    found = [
        {"id": "pair:%s,%s" % pair, "hosts": list(pair), "judged_busbw_gb_s": speed(pair)}
        for pair in itertools.combinations(HOSTS, 2)
    ]
    return [dict(run, passed=passed(tuple(run["hosts"]))) for run in found] + [
        {"id": "cluster", "hosts": HOSTS, "judged_busbw_gb_s": 1.0, "passed": True}
    ]


@pytest.mark.parametrize(
    "speed, verdict, said",
    [
        (lambda pair: 40.0, "pass", "6 pairs are equally fast"),
        (lambda pair: 37.0 if pair[0] == "gpu-a" else 40.0, "pass", ""),
        (lambda pair: 30.0 if pair == ("gpu-b", "gpu-c") else 40.0, "warn", "gpu-b - gpu-c: 30"),
        (lambda pair: 30.0 if "gpu-c" in pair else 40.0, "warn", "gpu-c is slow with each other"),
    ],
)
def test_pairs_of_hosts(speed, verdict, said):
    found = _burn_in.link_check(pairs_of(speed), "nccl", HOSTS)
    assert found["verdict"] == verdict and said in found["found"]
    assert found["host"] == ", ".join(HOSTS)


def test_a_pair_that_fails():
    runs = pairs_of(lambda pair: 40.0, lambda pair: pair != ("gpu-a", "gpu-d"))
    found = _burn_in.link_check(runs, "nccl", HOSTS)
    assert found["verdict"] == "fail" and "gpu-a - gpu-d" in found["found"]


# --- each network card alone ---

CARDS = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]


def by_rail(speed, hosts=("gpu-a", "gpu-b", "gpu-c", "gpu-d")):
    """What the bandwidth job has measured: C(speed) tells it of a card and a pair, None for one
    that fails.
    """
    pairs = [("gpu-a", "gpu-d"), ("gpu-b", "gpu-c"), ("gpu-a", "gpu-c"), ("gpu-b", "gpu-d")]
    pairs = [pair for pair in pairs if set(pair) <= set(hosts)] or [tuple(hosts)]
    runs = [
        {
            "card": card,
            "hosts": list(pair),
            "busbw_gb_s": speed(card, pair),
            "wrong": 0,
            "error": "" if speed(card, pair) else "no GID",
        }
        for card in CARDS
        for pair in pairs
    ]
    facts = {
        host: {
            "rails": [
                {"name": card, "rdma": True, "model": "15b3:1021", "serial": host + card}
                for card in CARDS
            ]
        }
        for host in hosts
    }
    return {"collective": "nccl", "rails": runs, "facts": facts}


@pytest.mark.parametrize(
    "speed, verdict, said",
    [
        (lambda card, pair: 44.0 + len(pair[0] + card) % 3, "pass", "16 cards are equally fast"),
        # The card of one host. Those that it was measured with have another partner.
        (
            lambda card, pair: 20.0 if card == "mlx5_2" and "gpu-c" in pair else 44.0,
            "warn",
            "mlx5_2 of gpu-c: 20 GB/s, 54.5 % less than the median of 16 such (44 GB/s)",
        ),
        (
            lambda card, pair: None if card == "mlx5_2" and "gpu-c" in pair else 44.0,
            "fail",
            "mlx5_2 of gpu-c: with gpu-b: no GID; with gpu-a: no GID",
        ),
    ],
)
def test_one_card_of_sixteen_is_named(speed, verdict, said):
    judged = _burn_in.judge_rails(by_rail(speed), {})
    (check,) = judged["checks"]
    assert (check["id"], check["verdict"], check["found"]) == ("burn-in-rails", verdict, said)
    bad = [device["serial"] for device in judged["devices"] if device["verdict"] == "fail"]
    assert bad == ([] if verdict == "pass" else ["gpu-cmlx5_2"])
    assert {device["kind"] for device in judged["devices"]} == {"hca"}


def test_two_hosts_cannot_tell_whose_card_it_is():
    judged = _burn_in.judge_rails(
        by_rail(lambda card, pair: 20.0 if card == "mlx5_1" else 44.0, ("gpu-a", "gpu-b")), {}
    )
    found = judged["checks"][0]["found"]
    assert found.startswith("mlx5_1 of gpu-a: 20 GB/s") and "mlx5_1 of gpu-b" in found


def test_a_card_that_was_faster_before():
    """All of them are slow now, so no other one shows it."""
    whole = _burn_in.judge_rails(by_rail(lambda card, pair: 44.0), {})
    filed = {
        device["serial"]: [_burn_in.filed_result(device, "2026-01-01T00:00:00Z")]
        for device in whole["devices"]
    }
    assert filed["gpu-amlx5_3"][0]["name"] == "mlx5_3"
    judged = _burn_in.judge_rails(by_rail(lambda card, pair: 30.0), filed)
    assert judged["checks"][0]["verdict"] == "warn"
    assert "31.8 % less than in earlier burn-ins of it (44 GB/s)" in judged["checks"][0]["found"]


def test_without_rails_there_is_no_finding():
    assert _burn_in.judge_rails({}, {}) == {"devices": [], "checks": []}
    assert _burn_in.judge_rails({"facts": {"a": {"cards": []}}}, {})["checks"] == []
