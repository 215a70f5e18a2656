"""All readers judge a GPU and an error of it alike: modules, rules of verify, the health program,
the report's reader of logs, and jobs.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import itertools
import re
import sys
from pathlib import Path

import pytest
from eight_gpus import eight_gpus
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import (
    _error_signatures,
    _host_health,
    _nvidia_smi,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nvidia_smi import (
    ParseError,
    fabric_of,
    parse_query,
)
from ansible_collections.trainyard.gpu.plugins.modules import nvidia_smi_info
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _hardware, _verify_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._signatures import explain

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
STATES = FIXTURES / "gpu-state"
# As on hosts, programs find these in one folder.
for folder in ("roles/job_container/files", "roles/jobs/files", "roles/train/files"):
    sys.path.insert(0, str(ROOT / folder))


def load(path: str) -> object:
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_program", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


health, job = load("roles/job_container/files/health.py"), load("roles/jobs/files/job.py")


def index() -> dict:
    with open(STATES / "INDEX.tsv", encoding="utf-8", newline="") as stream:
        return {row["path"]: row for row in csv.DictReader(stream, delimiter="\t")}


ROWS = index()
#: By document: the check that drains the host, empty if it is healthy.
VERDICTS = {
    name: row["expected_key_facts"].partition("=")[2]
    for name, row in ROWS.items()
    if row["expected_key_facts"].startswith("drain=")
}
HEALTHY = {name: (STATES / name).read_text() for name, check in VERDICTS.items() if not check}
for path in sorted((FIXTURES / "nvidia-smi-xml").glob("*.xml")):
    whole = path.read_bytes().decode("utf-8")
    described = whole.count("<gpu id=")
    HEALTHY[path.name] = re.sub("<attached_gpus>[0-9]+<", "<attached_gpus>%d<" % described, whole)


def test_index_lists_every_fixture() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in STATES.iterdir()
        if path.name != "INDEX.tsv"
    }
    assert {name: row["sha256"] for name, row in ROWS.items()} == found


# --- documents ---


def smi(text: str) -> dict:
    """What nvidia_smi_info says of it that verify needs."""
    answer = parse_query(text)
    return {"gpus": answer.gpus, "driver_version": answer.driver_version}


def draining(text: str) -> set:
    """IDs of the checks by which verify drains, after the health program was seen to judge the
    same.
    """
    found = smi(text)
    by_check = _verify_plan.gpu_problems(found, [], {}, "auto")
    ids = {
        check
        for check, problems in by_check.items()
        for problem in problems
        if problem["action"] == "drain"
    }
    reasons = [health.judge_cards(found["gpus"], check) for check in health.OF_CARDS]
    assert any(reasons) == bool(ids)
    assert all(gpu["usable"] for gpu in found["gpus"]) == (not ids)
    return ids


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_of_a_document(name: str) -> None:
    assert draining((STATES / name).read_text()) == ({VERDICTS[name]} - {""})


@pytest.mark.parametrize("name", HEALTHY)
def test_a_gpu_that_works_has_no_problem(name: str) -> None:
    assert draining(HEALTHY[name]) == set()


def changed(text: str, **values: str) -> str:
    """The document with other values of some elements."""
    for tag, value in values.items():
        text, count = re.subn(
            "<%s>[^<]*</%s>" % (tag, tag), "<%s>%s</%s>" % (tag, value, tag), text
        )
        assert count, tag
    return text


H100, GB200, L40S = (
    HEALTHY[name] for name in ("h100-hgx-580.txt", "gb200-580.txt", "vm-pcie-8-of-16.txt")
)
NONE = dict.fromkeys(("state", "status", "cliqueId", "clusterUuid"), "N/A")
ODD = {
    "H100 NVL, which has no NVSwitch": changed(H100, product_name="NVIDIA H100 NVL", **NONE),
    "A100 PCIe without a bridge": changed(
        HEALTHY["a100-sxm4-570.txt"], product_name="NVIDIA A100 80GB PCIe", **NONE
    ),
    "vGPU": changed(
        L40S,
        virtualization_mode="VGPU",
        gpu_recovery_action="N/A",
        current_ecc="Not Supported",
        sram_uncorrectable_parity="N/A",
        dram_uncorrectable="Requested functionality has been deprecated",
        gpu_temp="Not Supported",
        max_link_width="N/A",
        current_link_width="N/A",
    ),
    "Jetson, whose driver reports almost nothing": re.sub(
        r">(?!NVIDIA|GPU-|0000|1<|5[0-9]{2}|None)[^<>\n]+<",
        ">Not Supported<",
        L40S.replace("NVIDIA L40S", "NVIDIA Orin (nvgpu)"),
    ),
    "laptop": changed(
        HEALTHY["rtx-4000-sff-ada-v13.xml"],
        product_name="NVIDIA GeForce RTX 4070 Laptop GPU",
        fan_speed="N/A",
    ),
    "GB200 with a clique of zero": changed(GB200, cliqueId="0"),
    "a driver before the recovery action": re.sub(
        "<gpu_recovery_action>.*?</gpu_recovery_action>",
        "<gpu_reset_status><reset_required>No</reset_required>"
        "<drain_and_reset_recommended>No</drain_and_reset_recommended></gpu_reset_status>",
        H100,
    ),
    "a driver before the status of the fabric": re.sub("<status>.*?</status>", "", H100),
    "values that the caller may not read": changed(H100, serial="Insufficient Permissions"),
    "in brackets": changed(H100, serial="[N/A]", fan_speed="[Not Supported]"),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_a_gpu_of_an_odd_kind_has_no_problem(text: str) -> None:
    assert draining(text) == set()
    assert [problem for gpu in smi(text)["gpus"] for problem in gpu["problems"]] == []


@pytest.mark.parametrize(
    "values, check, action",
    [
        ({"gpu_recovery_action": "Reset"}, "gpu-state", "drain"),
        ({"gpu_recovery_action": "Reboot"}, "gpu-state", "drain"),
        ({"gpu_recovery_action": "GPU Reset Required"}, "gpu-state", "drain"),
        ({"gpu_recovery_action": "Drain P2P"}, "gpu-state", "drain"),
        ({"gpu_recovery_action": "Drain and Reset"}, "gpu-state", "drain"),
        ({"gpu_recovery_action": "Recover IMEX domain"}, "gpu-state", "warn"),
        ({"state": "In Progress"}, "gpu-fabric", "drain"),
        ({"state": "In Progress", "status": "N/A"}, "gpu-fabric", "drain"),
        ({"state": "Not Started", "status": "N/A"}, "gpu-fabric", "drain"),
        ({"status": "Failure"}, "gpu-fabric", "drain"),
        ({"status": "Insufficient Resources"}, "gpu-fabric", "drain"),
        ({"status": "N/A"}, "gpu-fabric", "drain"),
        ({"summary": "Unhealthy"}, "gpu-fabric", "drain"),
        ({"summary": "Limited Capacity"}, "gpu-fabric", "warn"),
        ({"bandwidth": "Degraded"}, "gpu-fabric", "warn"),
        ({"route_unhealthy": "True"}, "gpu-fabric", "warn"),
        ({"remapped_row_pending": "Yes"}, "gpu-ecc", "warn"),
        ({"remapped_row_failure": "Yes"}, "gpu-ecc", "drain"),
        ({"remapped_row_failure": "True"}, "gpu-ecc", "drain"),
        ({"dram_uncorrectable": "1"}, "gpu-ecc", "drain"),
        ({"unrepairable_memory": "Yes"}, "gpu-ecc", "drain"),
        ({"channel_repair_pending": "Yes"}, "gpu-ecc", "warn"),
        ({"tpc_repair_pending": "Yes"}, "gpu-ecc", "warn"),
        ({"sram_threshold_exceeded": "Yes"}, "gpu-ecc", "warn"),
        ({"incorrect_configuration": "Incorrect SystemGuid"}, "gpu-fabric", "warn"),
        ({"clocks_event_reason_hw_power_brake_slowdown": "Active"}, "gpu-throttle", "drain"),
        ({"clocks_event_reason_sw_thermal_slowdown": "Active"}, "gpu-throttle", "warn"),
    ],
)
def test_each_fault_of_a_gpu(values: dict, check: str, action: str) -> None:
    text = changed(GB200, **values)
    (gpu,) = smi(text)["gpus"]
    assert gpu["faults"] == {}
    assert {(problem["id"], problem["action"]) for problem in gpu["problems"]} == {(check, action)}
    assert all(problem["evidence"] and problem["fix"] for problem in gpu["problems"])
    assert draining(text) == ({check} if action == "drain" else set())


def test_a_reset_that_an_older_driver_asks_for() -> None:
    text = ODD["a driver before the recovery action"]
    for tag in ("reset_required", "drain_and_reset_recommended"):
        assert draining(changed(text, **{tag: "Yes"})) == {"gpu-state"}


def test_memory_that_waits_says_when_to_reset() -> None:
    (gpu,) = smi(changed(GB200, remapped_row_pending="Yes"))["gpus"]
    assert "when no job runs" in gpu["problems"][0]["fix"] and gpu["usable"]


def test_the_fabric_of_a_host() -> None:
    assert fabric_of(smi(L40S)["gpus"]) == {
        "present": False,
        "ready": None,
        "states": [],
        "statuses": [],
        "healths": [],
        "cliques": [],
        "clusters": [],
    }
    assert fabric_of(smi(GB200)["gpus"]) == {
        "present": True,
        "ready": True,
        "states": ["Completed"],
        "statuses": ["Success"],
        "healths": ["Healthy"],
        "cliques": ["2"],
        "clusters": ["00000001-0000-0000-0000-000000000001"],
    }
    assert fabric_of(smi((STATES / "fabric-failure.txt").read_text())["gpus"])["ready"] is False


# --- a fault in place of a value ---

FAULTS = (
    "GPU requires reset",
    "Unknown Error",
    "ERR!",
    "[GPU is lost]",
    "gpu REQUIRES RESET",
    "[Unknown Error]",
    "err!",
    "GPU is lost",
    "[GPU requires reset]",
    "UNKNOWN ERROR",
)
VALUE = re.compile(r"<([A-Za-z_0-9]+)>([^<>]*[^<>\s][^<>]*)</\1>")


def values_of(text: str) -> list:
    """The first value of each name, but not those of processes' names."""
    found = {match[1]: match for match in reversed(list(VALUE.finditer(text)))}
    return [found[name] for name in sorted(found) if name != "process_name"]


@pytest.mark.parametrize("fault", ["Reset required", "Error", "[Timeout]", "GPU not found", "Lost"])
def test_other_words_of_the_same_kind(fault: str) -> None:
    assert draining(changed(GB200, gpu_temp=fault)) == {"gpu-state"}


def is_noticed(text: str) -> bool:
    try:
        return draining(text) != set()
    except ParseError:
        return True


@pytest.mark.parametrize("name", HEALTHY)
def test_any_value_that_is_a_fault_is_noticed(name: str) -> None:
    text, faults = HEALTHY[name], itertools.cycle(FAULTS)
    missed = [
        (match[1], fault)
        for match, fault in zip(values_of(text), faults)
        if not is_noticed(text[: match.start(2)] + fault + text[match.end(2) :])
    ]
    assert missed == []


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(HEALTHY)), st.sampled_from(FAULTS), st.data())
def test_any_place_of_a_value_that_is_a_fault_is_noticed(
    name: str, fault: str, data: object
) -> None:
    text = HEALTHY[name]
    places = [match for match in VALUE.finditer(text) if match[1] != "process_name"]
    match = data.draw(st.sampled_from(places))
    assert is_noticed(text[: match.start(2)] + fault + text[match.end(2) :])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_section_or_an_attribute_that_is_a_fault(fault: str) -> None:
    for old, new in (
        (r"<ecc_errors>.*?</ecc_errors>", "<ecc_errors>%s</ecc_errors>"),
        (r"<fabric>.*?</fabric>", "<fabric>%s</fabric>"),
        (r'<gpu id="[^"]*">', '<gpu id="%s">'),
    ):
        assert is_noticed(re.sub(old, new % fault, GB200, flags=re.DOTALL)), old


def test_the_name_of_a_process_is_no_fault() -> None:
    process = "<process_info><pid>7</pid><type>C</type>\n<process_name>GPU requires reset</process_name>\n</process_info>"
    text = re.sub(
        "<processes>.*?</processes>", "<processes>%s</processes>" % process, GB200, flags=re.DOTALL
    )
    assert "GPU requires reset" in text and draining(text) == set()


@pytest.mark.parametrize(
    "words", ["Timeout 30 s", "Xid 119: Timeout waiting for RPC", "no timeout", "30 s, timeout"]
)
def test_a_value_that_names_a_timeout_is_none(words: str) -> None:
    assert draining(H100.replace("</gpu>", "<watchdog>%s</watchdog></gpu>" % words, 1)) == set()
    assert draining(changed(H100, gpu_temp="[Timeout]")) == {"gpu-state"}


def test_the_name_of_a_virtual_machine_is_no_fault() -> None:
    lent = (
        "<virtual_gpus><vgpu_instance><vm_name>lost</vm_name></vgpu_instance></virtual_gpus></gpu>"
    )
    assert draining(H100.replace("</gpu>", lent, 1)) == set()


def test_only_the_gpu_at_fault_is_named() -> None:
    text = eight_gpus()
    begin = text.index("00000000:05:00.0")
    rest = re.sub("<current_ecc>[^<]*<", "<current_ecc>Unknown Error<", text[begin:], count=1)
    gpus = smi(text[:begin] + rest)["gpus"]
    assert [gpu["index"] for gpu in gpus if not gpu["usable"]] == [5]
    assert gpus[5]["faults"] == {"current_ecc": "Unknown Error"}
    assert (
        "GPU 5 (00000000:05:00.0): nvidia-smi says 'Unknown Error' in place of current_ecc"
        in (gpus[5]["problems"][0]["evidence"])
    )


# --- errors in the kernel's log ---

#: Forms of a line, of drivers 304 to 595, by dmesg, journalctl and syslog.
FORMS = (
    "NVRM: Xid (PCI:%s): %d%s",
    "NVRM: Xid (%s): %d%s",
    "NVRM: Xid (PCI:%s GPU-I:04): %d%s",
    "[ 1234.567890] NVRM: Xid (PCI:%s): %d%s",
    "[Tue Nov 11 23:25:43 2025] NVRM: Xid (PCI:%s): %d%s",
    "<4>[  966.503025] NVRM: Xid (%s): %d%s",
    "Nov 18 17:26:39 node-a kernel: NVRM: Xid (PCI:%s): %d%s",
    "[   12.000001] node-a kernel: NVRM: Xid (PCI:%s): %d%s",
)
DEVICES = ("0000:3b:00", "0000:AB:00", "0018:01:00", "0000:C1:00")
TEXTS = (
    "",
    ", pid=1234, name=python3, some words",
    ", RLW_REMAP Fatal XC0 i0 Link 09 (0x00000004)",
    ", RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)",
    ", GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    ", GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
)


def judgement(text: str) -> dict:
    """Actions by kind, device and code, after all readers were seen to judge the log alike."""
    errors = _host_health.parse_gpu_errors(text)
    of_module = {
        (error["kind"], error["device"], error["code"]): error["action"]
        for error in errors
        if not error["ended"] and error["action"] != "ignore"
    }
    of_verify = {
        (error["kind"], error["device"], error["code"]): error["action"]
        for error in _verify_plan.gpu_problems({}, errors, {}, "auto")["gpu-xid"]
    }
    assert of_verify == of_module
    # The health program names two.
    bad = [key for key, action in of_module.items() if action == "drain"]
    said = health.judge_kernel_log(text)
    assert said.count("Xid ") == min(2, len(bad))
    assert all("%s %d of %s: " % (kind, code, device) in said for kind, device, code in bad[:2])
    # The report and the job tell the same ones, with the same advice.
    for told in (explain(text), causes_of_a_job(text)):
        named = {
            (kind, device, int(code))
            for entry in told
            for kind, code, device in re.findall(r"^(S?Xid) (\d+) of (\S+): ", entry["cause"])
        }
        assert named == set(of_module) and len(told) == len(of_module)
    fixes = {error["fix"] for error in errors if not error["ended"] and error["action"] != "ignore"}
    assert {cause["fix"] for cause in causes_of_a_job(text)} == fixes
    return of_module


def causes_of_a_job(text: str) -> list:
    row = {"rank": 0, "host": "a", "exit_code": 1, "hostname": "a", "ended": 1.0}
    return job.first_failed([row], {0: text})["causes"]


@pytest.mark.parametrize("code", range(1, 186))
def test_all_readers_judge_each_xid_alike(code: int) -> None:
    row = _host_health.XIDS.get(code)
    device = DEVICES[code % len(DEVICES)]
    for form in FORMS:
        text = form % (device, code, TEXTS[1])
        expected = row.action if row else "warn"
        wanted = {} if expected == "ignore" else {("Xid", device.lower(), code): expected}
        assert judgement(text) == wanted
        assert judgement(text + "\n" + text) == wanted
    if row is None:
        assert "docs.nvidia.com/deploy/xid-errors" in explain(text)[0]["fix"]


@pytest.mark.parametrize("severity, action", [("Fatal", "drain"), ("Non-fatal", "warn")])
@pytest.mark.parametrize("device", ["0000:05:00.0", "0000:AF:00.0"])
def test_all_readers_judge_an_sxid_alike(severity: str, action: str, device: str) -> None:
    line = "[ 5.0] nvidia-nvswitch3: SXid (PCI:%s): %d, %s, Link 30 LTSSM Fault Up"
    for code in (*range(1, 186), 20034, 22013):
        expected = {("SXid", device.lower(), code): action}
        assert judgement(line % (device, code, severity)) == expected


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FORMS),
            st.sampled_from(DEVICES),
            st.one_of(st.integers(1, 185), st.sampled_from([48, 94, 119, 145, 149, 154])),
            st.sampled_from(TEXTS),
        ),
        max_size=12,
    )
)
def test_all_readers_judge_each_log_alike(lines: list) -> None:
    """And the verdict of a log is the worst one of its lines after the last reset of each
    device.
    """
    found = judgement("\n".join(form % rest for form, *others in lines for rest in [tuple(others)]))
    worst: dict = {}
    for _form, device, code, text in lines:
        action = _host_health.meaning("Xid", code, text[2:])["action"]
        key = ("Xid", device.lower(), code)
        if code == 154 and action == "ignore":
            worst = {other: rank for other, rank in worst.items() if other[1] != key[1]}
            continue
        rank = _host_health.ACTIONS.index(action)
        worst[key] = rank if code == 154 else max(rank, worst.get(key, 0))
    assert found == {key: _host_health.ACTIONS[rank] for key, rank in worst.items() if rank}


def test_the_forms_that_were_published() -> None:
    lines = (STATES / "xid-forms.txt").read_text().splitlines()
    actions = [list(judgement(line).values()) for line in lines]
    assert actions == [["drain"], ["drain"], ["drain"], ["warn"], ["drain"]]
    assert all(entry["signature"] for line in lines for entry in explain(line))


def test_a_reset_ends_it_for_all_readers() -> None:
    assert judgement((STATES / "xid-48-then-reset.txt").read_text()) == {}
    fatal = judgement((STATES / "xid-fatal-then-nonfatal.txt").read_text())
    assert fatal == {("Xid", "0000:a1:00", 145): "drain"}


def test_lines_of_the_driver_without_an_xid() -> None:
    lines = (STATES / "nvrm-without-xid.txt").read_text().splitlines()
    assert [explain(line)[0]["signature"] for line in lines] == [
        "driver_reset_required",
        "driver_adapter_failed",
    ]


# --- Fabric Manager ---


def a_stack(active: bool = True, loaded: bool = True, switches: int = 4, **versions: str) -> dict:
    return {
        "nvswitches": switches,
        "loaded": "550.163.01",
        "services": {
            "nvidia-fabricmanager.service": {"active": active, "loaded": loaded, "enabled": loaded}
        },
        "packages": {
            name.replace("_", "-"): {"version": version} for name, version in versions.items()
        },
    }


@pytest.mark.parametrize(
    "stack, said",
    [
        (a_stack(nvidia_fabricmanager_550="550.163.01-1"), []),
        (a_stack(active=False), ["nvidia-fabricmanager.service is not running"]),
        (a_stack(active=False, loaded=False), ["nvidia-fabricmanager.service is not installed"]),
        (
            a_stack(nvidia_fabricmanager_550="550.127.08-1"),
            ["nvidia-fabricmanager-550 is 550.127.08-1, and driver 550.163.01 is loaded"],
        ),
        (
            a_stack(nvidia_fabric_manager="550.127.08-1.el9"),
            ["nvidia-fabric-manager is 550.127.08-1.el9, and driver 550.163.01 is loaded"],
        ),
        # Headers, and a package that only depends on others.
        (
            a_stack(
                nvidia_fabricmanager_550="550.163.01-1",
                nvidia_fabricmanager_dev_535="535.247.01-1",
                cuda_drivers_fabricmanager="580.95.05-1",
            ),
            [],
        ),
        (a_stack(active=False, loaded=False, switches=0), []),
        # Facts of an older release.
        ({}, []),
        ({"packages": {}, "loaded": "550.163.01"}, []),
    ],
)
def test_nvswitches_need_fabric_manager(stack: dict, said: list) -> None:
    found = _verify_plan.fabric_manager_problems(stack, "auto")
    assert len(found) == len(said)
    assert all(words in problem["evidence"] for words, problem in zip(said, found))
    assert {problem["action"] for problem in found} <= {"drain"}
    left = _verify_plan.fabric_manager_problems(stack, "never")
    assert {problem["action"] for problem in left} <= {"warn"}


def test_a_fix_that_says_reset_names_the_reader_of_metrics():
    """It holds the GPUs, so that a reset fails while it runs."""
    texts = list(_host_health.ADVICE.values())
    texts += [fix for _action, fix in _host_health._RECOVERIES.values()]
    texts += [_nvidia_smi._RESET_LATER, _nvidia_smi._RESET_FIX, _hardware._LINKS]
    texts += [text for each in nvidia_smi_info.FIXES.values() for text in each if text]
    texts += [signature.operator for signature in _error_signatures.SIGNATURES]
    told = [
        text
        for text in texts
        if re.search(r"\breset(s)? (it|its|the|GPUs?)\b|gpu-reset", text, re.I)
    ]
    assert len(told) >= 14
    assert [text for text in told if "systemctl stop trainyard-metrics-gpu" not in text] == []
