"""What role verify hands to verify_report, as clusters of several kinds would have it: for tests of
the report, and to look at the page.

PYTHONPATH=.dev python tests/support/example_reports.py FOLDER [lab | eight_gpus | slow_link |
broken_host | many]
"""

from __future__ import annotations

import datetime
import json
import random
import sys
import zlib
from pathlib import Path

import yaml

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _blame
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _report,
    _report_files,
    _report_page,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._bandwidth_checks import (
    bandwidth_checks,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._bandwidth_tool import with_search
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import published_checks

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = published_checks(
    yaml.safe_load((ROOT / "roles/verify/meta/rules.yml").read_text(encoding="utf-8"))
)
# Thresholds under which the healthy ones of these clusters pass, also against the history of their
# own runs.
ASKED = {"fraction": 0.8, "min_busbw_gb_s": 0.0, "drop_percent": 20.0, "peer_fraction": 0.6}
H100 = {
    "cards": [_bandwidth.card("mlx5_%d" % number, 400, rdma=True) for number in range(4)],
    "gpus": [{"nvlink": 450.0, "pcie": 63.0}] * 8,
}


def a_finding(check_id, host, verdict="pass", **texts):
    return dict(
        {
            "id": check_id,
            "host": host,
            "verdict": verdict,
            "expected": "",
            "found": "",
            "source": "",
            "seconds": 0.4,
            "fix": "",
        },
        **texts,
    )


def a_host(name, number, **changes):
    return dict(
        {
            "name": name,
            "address": "10.0.0.%d" % (10 + number),
            "interface": "eth0",
            "fabric_address": "10.0.0.%d" % (10 + number),
            "slots": 1,
            "reachable": True,
            "gpus": 0,
            "rdma_devices": 0,
        },
        **changes,
    )


def a_run(
    run_id, hosts, ranks, peak, sizes=range(10, 31, 2), seed=0, transports=(), in_place=False
):
    """A run of the form that real ones have: latency limits small sizes, bandwidth the large ones.

    C(peak) is its maximum. Not judged: nothing is required.
    """
    chance = random.Random("%s%s" % (run_id, seed))
    shape = [
        2**exponent / (2**exponent + peak * 2.5e5) * chance.uniform(0.97, 1.0) for exponent in sizes
    ]
    rows = []
    for exponent, part in zip(sizes, shape):
        size, busbw = 2**exponent, peak * part / max(shape)
        algbw = busbw / (2 * (ranks - 1) / ranks) if ranks > 1 else busbw
        measured = {
            "time_us": round(size / algbw / 1000, 2),
            "algbw_gb_s": round(algbw, 4),
            "busbw_gb_s": round(busbw, 4),
            "wrong": 0,
        }
        rows.append(
            {
                "size_bytes": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "root": -1,
                "out_of_place": None if in_place else measured,
                "in_place": dict(measured),
            }
        )
    run = {
        "id": run_id,
        "hosts": list(hosts),
        "ranks": ranks,
        "rows": rows,
        "errors": [],
        "transports": list(transports),
        "seconds": 7.5,
    }
    return dict(
        run,
        **_bandwidth.verdict(
            run, {"busbw_gb_s": None, "bound": None, "from": "", "required_gb_s": None}
        ),
    )


def judged(runs, facts, collective, earlier=None):
    """The runs with what verify expects of them, and its verdicts.

    C(facts) are the cards and GPUs that each of the hosts has, C(earlier) the peaks of earlier
    runs.
    """
    return _bandwidth.judge_runs(
        runs,
        {host: facts for run in runs for host in run["hosts"]},
        collective,
        ASKED,
        earlier or {},
    )


def searched(names, required, alone, speed):
    """What PyTorch's job finds if the cluster is too slow.

    C(speed) tells what a group of hosts reaches.
    """
    search, answers, groups = (
        _blame.search(names, required, alone, share=ASKED["peer_fraction"]),
        None,
        {},
    )
    try:
        while True:
            answers = {group: speed(group) for group in search.send(answers)}
            groups.update(answers)
    except StopIteration as done:
        verdict = done.value
    runs = [
        a_run(
            "%s:%s" % ("pair" if len(group) == 2 else "group", ",".join(group)),
            group,
            8 * len(group),
            value,
            sizes=[28],
            in_place=True,
        )
        for group, value in groups.items()
        if 1 < len(group) < len(names)
    ]
    return dict(verdict, collective="nccl", runs=judged(runs, H100, "nccl"))


def lab(seed=0):
    """Two hosts without GPUs, all well."""
    hosts = [a_host("lab-a", 1, slots=2), a_host("lab-b", 2, slots=2)]
    names = [host["name"] for host in hosts]
    checks = [
        a_finding(check_id, name)
        for name in names
        for check_id in (
            "image-identical",
            "container-running",
            "horovod-build",
            "unit-as-planned",
            "foreign-access",
            "ssh-mesh",
            "container-share",
            "container-limits",
            "session-environment",
            "shared-storage",
            "clock-step",
            "free-space",
        )
    ]
    checks += [
        a_finding("memlock", name, "skipped", found="no RDMA device needs it here")
        for name in names
    ]
    words = {"sizes": range(16, 25, 2), "seed": seed, "in_place": True}
    answer = {
        "collective": "gloo",
        "blame": [],
        "suspect": [],
        "note": "",
        "runs": judged(
            [a_run("cluster", names, 4, 1.0, **words)]
            + [a_run("host:" + name, [name], 2, 1.9, **words) for name in names],
            {"cards": [_bandwidth.card("eth0", 10)], "gpus": []},
            "gloo",
            {"host:" + name: 1.9 for name in names},
        ),
    }
    return {
        "cluster": "lab",
        "hosts": hosts,
        "checks": checks + of_bandwidth(answer, names),
        "seconds": 31.4,
        "versions": {
            name: {
                "docker": "20.10.24",
                "kernel": "6.1.0-27-amd64",
                "image": "348ecd609557",
                "horovod": "0.28.1",
            }
            for name in names
        },
        "bandwidth": {"collective": "gloo", "runs": answer["runs"]},
    }


def of_bandwidth(answer, names):
    """The checks of the measurement."""
    return [
        entry for entry in bandwidth_checks(answer, names) if entry["id"].startswith("bandwidth-")
    ]


def eight_gpus(seed=0, count=2, prefix="gpu", speed=None):
    """Hosts with eight GPUs each on a fabric of four 400 Gb/s ports, all well except for the
    persistence mode of the last.

    C(speed) tells what a group of hosts reaches, None what a healthy cluster does.
    """
    hosts = [
        a_host(
            "%s-%02d" % (prefix, number + 1),
            number,
            slots=8,
            gpus=8,
            rdma_devices=4,
            interface="bond0",
            fabric_address="169.254.0.%d" % (number + 1),
        )
        for number in range(count)
    ]
    names = [host["name"] for host in hosts]
    checks = [
        a_finding(check["id"], name)
        for name in names
        for check in PUBLISHED
        if check["stage"] == "host"
        and check["id"] != "bandwidth-host"
        and (check["id"], name) != ("gpu-persistence", names[-1])
    ]
    checks += [
        a_finding(check["id"], ", ".join(names), seconds=22.0)
        for check in PUBLISHED
        if check["stage"] == "cluster" and check["id"] != "bandwidth-cluster"
    ]
    checks.append(
        a_finding(
            "gpu-persistence",
            names[-1],
            "warn",
            expected="persistence mode on",
            found="GPU 3: persistence mode is off",
            source="nvidia-smi -q -x",
            fix="Run gpu_stack.yml: it enables nvidia-persistenced.",
        )
    )
    # No two runs of a healthy cluster are quite the same.
    peak = speed(names) if speed else round(183.0 * (1 - 0.004 * (seed % 4)), 1)
    answer = {
        "collective": "nccl",
        "tool": "all_reduce_perf",
        "blame": [],
        "suspect": [],
        "note": "",
        "watched": {"errors": {}},
        "runs": judged(
            [a_run("cluster", names, 8 * count, peak, seed=seed, transports=["NET/IB/GDRDMA"])]
            + [
                a_run(
                    "host:" + name,
                    [name],
                    8,
                    334.0 - number % 5 * 1.5,
                    seed=seed,
                    transports=["P2P/CUMEM"],
                )
                for number, name in enumerate(names)
            ],
            H100,
            "nccl",
        ),
    }
    whole = answer["runs"][0]
    if not whole["passed"]:
        alone = {run["hosts"][0]: run["judged_busbw_gb_s"] for run in answer["runs"][1:]}
        answer = with_search(
            answer, searched(names, whole["expected"]["required_gb_s"], alone, speed)
        )
    return {
        "cluster": "physics",
        "hosts": hosts,
        "checks": checks + of_bandwidth(answer, names),
        "seconds": 148.0,
        "versions": {
            name: {
                "driver": "550.90.07",
                "cuda": "12.4",
                "nccl": "2.21.5",
                "toolkit": "1.17.8",
                "docker": "27.3.1",
                "kernel": "6.8.0-48-generic",
                "image": "9a1be1f00d2c",
                "horovod": "0.28.1",
            }
            for name in names
        },
        "bandwidth": {
            "collective": "nccl",
            "tool": "all_reduce_perf",
            "tool_reason": "the best tool, and the image has it",
            "note": answer["note"],
            "runs": answer["runs"],
        },
        "blame": answer["blame"],
        "suspect": answer["suspect"],
    }


def slow_link(seed=0):
    """Four of them, of which two have a bad link between them. README shows its page."""
    told = eight_gpus(
        seed, 4, speed=lambda group: 41.2 if {"gpu-02", "gpu-03"} <= set(group) else 186.0
    )
    told["checks"] = [
        dict(entry, verdict="pass", expected="", found="", fix="")
        if entry["id"] == "gpu-persistence"
        else entry
        for entry in told["checks"]
    ]
    return told


def broken_host(seed=0):
    """Three of them, of which one has lost a GPU and another does not answer; what hosts say is
    hostile and holds secrets.
    """
    told = eight_gpus(seed, 3)
    one, two, three = [host["name"] for host in told["hosts"]]
    told["hosts"][2].update(reachable=False, slots=8)
    told["versions"].pop(three)
    told["versions"][two] = dict(told["versions"][two], driver="550.54.15")
    # No job could run, and two of the hosts could not be measured alone.
    jobs = ("bandwidth-host", "gpus-busy", "fabric-counters")
    kept = [
        entry
        for entry in told["checks"]
        if entry["host"] in (one, two)
        and (entry["host"], entry["id"])
        not in ((two, "gpus-present"), (two, "gpu-xid"), (two, "stack-drift"))
        and (entry["id"] not in jobs or (entry["host"], entry["id"]) == (one, "bandwidth-host"))
    ]
    told["checks"] = kept + [
        a_finding(
            "gpus-present",
            two,
            "fail",
            expected="8 GPUs",
            found="7 GPUs; Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost.",
            source="nvidia-smi -q -x",
            fix="Power the host off and on; leave it out until then.",
        ),
        a_finding(
            "gpu-xid",
            two,
            "fail",
            expected="no Xid that tells of broken hardware",
            found="NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            source="journalctl -k -b",
            fix="Power the host off and on; a GPU that is lost again has to be replaced.",
        ),
        a_finding(
            "stack-drift",
            two,
            "warn",
            expected="driver 550.90.07",
            found="driver 550.54.15",
            source="gpu_stack_info",
            fix="Run upgrade.yml.",
        ),
        a_finding("bandwidth-host", two, "skipped", found="not measured: a GPU is lost"),
        a_finding(
            "bandwidth-cluster",
            "%s, %s, %s" % (one, two, three),
            "not_evaluated",
            found="a host does not answer",
            fix="Repair the host and run verify.yml again.",
        ),
    ]
    told["bandwidth"]["runs"] = [
        run for run in told["bandwidth"]["runs"] if run["id"] == "host:" + one
    ]
    told["blame"] = [{"kind": "host", "names": [two], "evidence": "a GPU is lost (Xid 79)"}]
    told["suspect"] = [two]
    told["logs"] = [
        {
            "host": two,
            "name": "kernel",
            "tail": "\n".join(
                [
                    "[%d.%06d] nvidia 0000:86:00.0: enabling device (0000 -> 0003)"
                    % (number, number * 37)
                    for number in range(70)
                ]
                + [
                    "NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
                ]
            ),
        },
        {
            "host": one,
            "name": "job",
            "tail": "\x1b[31mERROR\x1b[0m: <script>alert('owned')</script>\nproxy http://ops:geheim@proxy.example.org:3128/ refused\n"
            "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\nValueError: loss is nan, training failed in step 12\n",
        },
    ]
    return told


def many(seed=0):
    """As many as a page has to bear: 64 hosts, which are too slow only together, so that all their
    pairs were measured.
    """
    return eight_gpus(
        seed,
        64,
        "node",
        lambda group: 112.0 if len(group) == 64 else 186.0 - hash_of(group) % 20 / 10.0,
    )


def hash_of(names):
    return zlib.crc32(",".join(names).encode())


KINDS = {
    function.__name__: function for function in (lab, eight_gpus, slow_link, broken_host, many)
}


def usual(kind, seed):
    """The same cluster in an earlier week, when it was well."""
    return (
        lab(seed)
        if kind == "lab"
        else eight_gpus(seed, len(KINDS[kind]()["hosts"]), "node" if kind == "many" else "gpu")
    )


def weeks(kind):
    """Four reports, each with the earlier ones. The last is of this kind."""
    schema, moment, earlier = (
        _report_files.load_schema(),
        datetime.datetime(2026, 11, 23, 18, 0),
        [],
    )
    for seed in range(4):
        generated = (moment + datetime.timedelta(days=7 * seed)).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = KINDS[kind](seed) if seed == 3 else usual(kind, seed)
        report = _report.make(
            generated=generated, published=PUBLISHED, before=earlier[0] if earlier else None, **told
        )
        assert _report_files.problem_of(report, schema) == ""
        yield report, list(earlier)
        earlier.insert(0, report)


def main(folder, *kinds):
    for kind in kinds or KINDS:
        place = str(Path(folder, kind))
        for report, earlier in weeks(kind):
            files = {
                "report.json": json.dumps(report, indent=1),
                "report.html": _report_page.render(
                    report, PUBLISHED, place + "/suspect.yml", earlier
                ),
            }
            if earlier:
                files["compare.html"] = _report_page.render_comparison(
                    earlier[0], report, PUBLISHED, report["changes"]
                )
            print(_report_files.write(place, report["generated"], files))


if __name__ == "__main__":
    main(*sys.argv[1:])
