"""What role verify hands to verify_report, as clusters of several kinds would have it: for tests of the report, and to look at the page.

    python tests/support/example_reports.py FOLDER [lab | eight_gpus | slow_link | broken_host | many]
"""

from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / ".dev"))


def _published():
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import published_checks

    return published_checks(yaml.safe_load((ROOT / "roles/verify/meta/rules.yml").read_text(encoding="utf-8")))


PUBLISHED = _published()
GPU_CHECKS = [check["id"] for check in PUBLISHED if check.get("applies_to") == "gpus"]


def a_finding(check_id, host, verdict="pass", **texts):
    return dict({"id": check_id, "host": host, "verdict": verdict, "expected": "", "found": "", "source": "", "seconds": 0.4, "fix": ""}, **texts)


def a_host(name, number, **changes):
    return dict({"name": name, "address": "10.0.0.%d" % (10 + number), "interface": "eth0", "fabric_address": "10.0.0.%d" % (10 + number), "slots": 1,
                 "reachable": True, "gpus": 0, "rdma_devices": 0}, **changes)


def a_run(run_id, hosts, ranks, peak, passed=True, required=None, expected=None, bound="nic", sizes=range(10, 31, 2), seed=0, transports=(), reasons=(), in_place=False):
    """A run of the form that real ones have: latency rules small sizes, bandwidth the large ones."""
    chance, rows = random.Random("%s%s" % (run_id, seed)), []
    for exponent in sizes:
        size = 2 ** exponent
        busbw = peak * size / (size + peak * 2.5e5) * chance.uniform(0.97, 1.0)
        algbw = busbw / (2 * (ranks - 1) / ranks) if ranks > 1 else busbw
        measured = {"time_us": size / algbw / 1000, "algbw_gb_s": round(algbw, 3), "busbw_gb_s": round(busbw, 3), "wrong": 0}
        rows.append({"size_bytes": size, "count": size // 4, "type": "float", "redop": "sum", "root": -1, "out_of_place": None if in_place else measured,
                     "in_place": dict(measured)})
    values = [row["in_place"]["busbw_gb_s"] for row in rows]
    return {"id": run_id, "hosts": hosts, "ranks": ranks, "rows": rows, "avg_busbw_gb_s": round(sum(values) / len(values), 3), "max_busbw_gb_s": max(values),
            "passed": passed, "reasons": list(reasons), "transports": list(transports), "seconds": 7.5,
            "expected": {"busbw_gb_s": expected, "bound": bound if expected else None, "from": "200 Gb/s a rank's port" if bound == "nic" and expected else "",
                         "required_gb_s": required}}


def lab(seed=0):
    """Two hosts without GPUs, all well."""
    hosts = [a_host("lab-a", 1), a_host("lab-b", 2)]
    names = [host["name"] for host in hosts]
    checks = [a_finding(check_id, name) for name in names for check_id in (
        "image-identical", "container-running", "horovod-build", "ssh-mesh", "shared-storage", "clock-step", "free-space", "bandwidth-host")]
    checks += [a_finding("bandwidth-cluster", ", ".join(names), seconds=8.1)]
    checks += [a_finding("memlock", name, "skipped", found="no RDMA device needs it here") for name in names]
    return {
        "cluster": "lab", "hosts": hosts, "checks": checks, "seconds": 31.4,
        "versions": {name: {"docker": "20.10.24", "kernel": "6.1.0-27-amd64", "image": "348ecd609557", "horovod": "0.28.1"} for name in names},
        "bandwidth": {"collective": "gloo", "runs": [
            a_run("cluster", names, 2, 1.12, required=0.7, expected=None, sizes=range(14, 27, 3), seed=seed, in_place=True),
            *[a_run("host:" + name, [name], 2, 1.9, required=0.9, sizes=range(14, 27, 3), seed=seed, in_place=True) for name in names]]},
    }


def eight_gpus(seed=0, count=2, prefix="gpu"):
    """Hosts with eight GPUs each on a fabric of 200 Gb/s ports, all well but for a link of PCIe."""
    hosts = [a_host("%s-%02d" % (prefix, number + 1), number, slots=8, gpus=8, rdma_devices=8, interface="bond0", fabric_address="169.254.0.%d" % (number + 1))
             for number in range(count)]
    names = [host["name"] for host in hosts]
    checks = [a_finding(check["id"], name) for name in names for check in PUBLISHED if check["stage"] == "host"]
    checks += [a_finding(check["id"], ", ".join(names), seconds=22.0) for check in PUBLISHED if check["stage"] == "cluster"]
    checks.append(a_finding("gpu-persistence", names[-1], "warn", expected="persistence mode on", found="GPU 3: persistence mode is off",
                            source="nvidia-smi -q -x", fix="Run gpu_stack.yml: it enables nvidia-persistenced."))
    return {
        "cluster": "physics", "hosts": hosts, "checks": checks, "seconds": 148.0,
        "versions": {name: {"driver": "550.90.07", "cuda": "12.4", "nccl": "2.21.5", "toolkit": "1.17.8", "docker": "27.3.1", "kernel": "6.8.0-48-generic",
                            "image": "9a1be1f00d2c", "horovod": "0.28.1"} for name in names},
        "bandwidth": {"collective": "nccl", "runs": [
            a_run("cluster", names, 8 * count, 183.0, required=154.0, expected=192.0, seed=seed, transports=["NET/IB/GDRDMA"]),
            *[a_run("host:" + name, [name], 8, 232.0, required=190.0, expected=240.0, bound="nvlink", seed=seed, transports=["P2P/CUMEM"]) for name in names]]},
    }


def slow_link(seed=0):
    """Four of them, of which two have a bad link between them."""
    told = eight_gpus(seed, 4)
    names = [host["name"] for host in told["hosts"]]
    told["checks"] = [entry for entry in told["checks"] if entry["verdict"] == "pass" and entry["id"] != "bandwidth-cluster"] + [
        a_finding("bandwidth-cluster", ", ".join(names), "fail", expected="154 GB/s bus bandwidth at least, 80 % of what the network allows",
                  found="peak 41.2 GB/s, 21 % of what the network allows", source="all_reduce_perf -b 1K -e 1G -f 4 -g 1 -w 5 -n 20 -c 1", seconds=36.0,
                  fix="Look at cable, port and switch between gpu-02 and gpu-04.")]
    runs = told["bandwidth"]["runs"]
    runs[0] = a_run("cluster", names, 32, 41.2, passed=False, required=154.0, expected=192.0, seed=seed, transports=["NET/IB/GDRDMA"],
                    reasons=["peak 41.2 GB/s is below the 154 GB/s that are required"])
    for first in range(4):
        for second in range(first + 1, 4):
            bad = (first, second) == (1, 3)
            runs.append(a_run("pair:%s,%s" % (names[first], names[second]), [names[first], names[second]], 16, 40.8 if bad else 186.0 + first, passed=not bad,
                              required=154.0, expected=192.0, seed=seed))
    told["blame"] = [{"kind": "link", "names": ["gpu-02", "gpu-04"], "evidence": "40.8 GB/s between the two, measured twice; each of them reaches 186 GB/s or more "
                      "with every other host."}]
    told["suspect"] = []
    return told


def broken_host(seed=0):
    """Three of them, of which one has lost a GPU and another does not answer; what hosts say is hostile and holds secrets."""
    told = eight_gpus(seed, 3)
    one, two, three = [host["name"] for host in told["hosts"]]
    told["hosts"][2].update(reachable=False, slots=8)
    told["versions"].pop(three)
    told["versions"][two] = dict(told["versions"][two], driver="550.54.15")
    kept = [entry for entry in told["checks"] if entry["host"] in (one, two) and (entry["host"], entry["id"]) not in (
        (two, "gpus-present"), (two, "gpu-xid"), (two, "stack-drift"))]
    told["checks"] = kept + [
        a_finding("gpus-present", two, "fail", expected="8 GPUs", found="7 GPUs; Unable to determine the device handle for GPU 0000:86:00.0: GPU is lost.",
                  source="nvidia-smi -q -x", fix="Power the host off and on; leave it out until then."),
        a_finding("gpu-xid", two, "fail", expected="no Xid that tells of broken hardware",
                  found="NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", source="journalctl -k -b",
                  fix="Power the host off and on; a GPU that is lost again has to be replaced."),
        a_finding("stack-drift", two, "warn", expected="driver 550.90.07", found="driver 550.54.15", source="gpu_stack_info", fix="Run upgrade.yml."),
        a_finding("bandwidth-cluster", "%s, %s, %s" % (one, two, three), "not_evaluated", found="a host does not answer",
                  fix="Repair the host and run verify.yml again."),
    ]
    told["bandwidth"]["runs"] = [run for run in told["bandwidth"]["runs"] if run["id"] == "host:" + one]
    told["blame"] = [{"kind": "host", "names": [two], "evidence": "a GPU is lost (Xid 79)"}]
    told["suspect"] = [two]
    told["logs"] = [
        {"host": two, "name": "kernel", "tail": "\n".join(
            ["[%d.%06d] nvidia 0000:86:00.0: enabling device (0000 -> 0003)" % (number, number * 37) for number in range(70)]
            + ["NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."])},
        {"host": one, "name": "job", "tail": "\x1b[31mERROR\x1b[0m: <script>alert('owned')</script>\nproxy http://ops:geheim@proxy.example.org:3128/ refused\n"
                                             "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\nValueError: loss is nan, training failed in step 12\n"},
    ]
    return told


def many(seed=0):
    """As many as a page has to bear: 64 hosts and all their pairs."""
    told = eight_gpus(seed, 64, "node")
    names = [host["name"] for host in told["hosts"]]
    told["bandwidth"]["runs"] += [a_run("pair:%s,%s" % (first, second), [first, second], 16, 186.0, required=154.0, expected=192.0, sizes=[26, 30])
                                  for number, first in enumerate(names) for second in names[number + 1:]]
    return told


KINDS = {function.__name__: function for function in (lab, eight_gpus, slow_link, broken_host, many)}


def main(folder, *kinds):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _report, _report_files

    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _report_page

    schema, moment = _report_files.load_schema(), datetime.datetime(2026, 11, 23, 18, 0)
    for kind in kinds or KINDS:
        place, earlier = str(Path(folder, kind)), []
        for seed in range(4):
            generated = (moment + datetime.timedelta(days=7 * seed)).strftime("%Y-%m-%dT%H:%M:%SZ")
            last = seed == 3
            told = KINDS[kind](seed) if last or kind in ("lab", "eight_gpus") else eight_gpus(seed, len(KINDS[kind]()["hosts"]))
            report = _report.make(generated=generated, published=PUBLISHED, before=earlier[0] if earlier else None, **told)
            assert _report_files.problem_of(report, schema) == ""
            page = _report_page.render(report, PUBLISHED, place + "/suspect.yml", earlier)
            print(_report_files.write(place, generated, {"report.json": str(report), "report.html": page}))
            earlier.insert(0, report)


if __name__ == "__main__":
    main(*sys.argv[1:])
