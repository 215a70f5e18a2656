"""Alert rules: each fires and does not fire by promtool's tests, has a section in the manual, and
is changed by name.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus import program

from ansible_collections.trainyard.gpu.plugins.module_utils import _host_health
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _monitoring_plan as planned

ROOT = Path(__file__).resolve().parents[4]
FILES = ROOT / "roles/monitoring/files"
TEXT = (FILES / "rules.yml").read_text(encoding="utf-8")
CASES = yaml.safe_load((Path(__file__).parent / "rules_tests.yml").read_text(encoding="utf-8"))


def rules(text=TEXT):
    return {
        rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]
    }


def promtool(folder, text, *command):
    (folder / "rules.yml").write_text(text, encoding="utf-8")
    (folder / "dcgm.yml").write_text((FILES / "dcgm.yml").read_text(encoding="utf-8"))
    cases = json.loads(json.dumps(CASES))
    for case in cases["tests"]:
        for test in case.get("alert_rule_test", []):
            for alert in test.get("exp_alerts", []):
                link = planned.MANUAL % test["alertname"].lower()
                alert["exp_annotations"]["documentation"] = link
    (folder / "tests.yml").write_text(json.dumps(cases), encoding="utf-8")
    return subprocess.run(
        [program("promtool"), *command], cwd=folder, capture_output=True, text=True, check=False
    )


def test_each_rule_fires_and_does_not_fire(tmp_path):
    document = planned.rules_document(TEXT, {}, 2)
    done = promtool(tmp_path, document, "test", "rules", "tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("rules.yml", "dcgm.yml"):
        done = promtool(tmp_path, document, "check", "rules", name)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_both_cases():
    fires, silent = set(), set()
    for case in CASES["tests"]:
        for test in case.get("alert_rule_test", []):
            (fires if test.get("exp_alerts") else silent).add(test["alertname"])
    assert fires == silent == set(rules())


@pytest.mark.acceptance
def test_a_changed_threshold_is_noticed(tmp_path):
    """The tests see each of these, so they would see a slip."""
    changes = [
        ("< 0.05\n          or min", "< 0.01\n          or min"),
        ("> 0.05 and", "> 0.5 and"),
        ("0.75 * quantile", "0.4 * quantile"),
        ("[12h]) >= 3", "[12h]) >= 2"),
        ("> 7200", "> 72000"),
        ("21 * 86400", "2 * 86400"),
        ('{action="drain"}[15m]', '{action=~".*"}[15m]'),
        ('{action="warn"}[15m]', '{action=~".*"}[15m]'),
        ("on (model) group_left () max by (model)", "on () group_left () max"),
    ]
    for before, after in changes:
        assert before in TEXT, before
        document = planned.rules_document(TEXT.replace(before, after), {}, 2)
        assert promtool(tmp_path, document, "test", "rules", "tests.yml").returncode != 0, before


def test_labels_and_the_manual():
    manual = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    titles = re.findall("^### (.+)$", manual, re.MULTILINE)
    assert [title for title in titles if title[0].isupper() and title in rules()] == list(rules())
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("page", "warn"), name
        assert set(rule["annotations"]) == {"summary"}, name


def test_actions_are_those_of_the_table_of_xids():
    """No code is in a rule: the label has the action of the table."""
    used = set(re.findall(r'action="(\w+)"', TEXT))
    assert used < set(_host_health.ACTIONS)
    assert not re.search(r"code[!=]", TEXT)


def test_checks_exist():
    text = (ROOT / "roles/verify/meta/rules.yml").read_text(encoding="utf-8")
    known = set(re.findall(r"^\s+- id: ([a-z-]+)$", text, re.MULTILINE))
    checks = {rule["labels"]["check"] for rule in rules().values() if "check" in rule["labels"]}
    assert checks - known == set()


def test_rules_are_changed_by_name(tmp_path):
    changes = {
        "DiskNearlyFull": {"for": "4h", "labels": {"team": "storage"}},
        "QueueStuck": False,
        "VerifyFailed": False,
        "VerifyOld": False,
    }
    document = planned.rules_document(TEXT, changes, 4)
    changed = rules(document)
    assert changed["DiskNearlyFull"]["for"] == "4h"
    assert changed["DiskNearlyFull"]["labels"]["team"] == "storage"
    assert changed["DiskNearlyFull"]["labels"]["severity"] == "warn"
    assert set(rules()) - set(changed) == {"QueueStuck", "VerifyFailed", "VerifyOld"}
    # A group without rules is none.
    assert "verify" not in [group["name"] for group in json.loads(document)["groups"]]
    assert "[4h]" in changed["GpuAllocatedButIdle"]["expr"] and "IDLE" not in document
    for hours, words in ((4, "for 4 hours"), (1, "for 1 hour")):
        idle = rules(planned.rules_document(TEXT, {}, hours))["GpuAllocatedButIdle"]
        assert idle["annotations"]["summary"].endswith(words)
    assert changed["HostDown"]["annotations"]["documentation"].endswith("monitoring.md#hostdown")
    assert promtool(tmp_path, document, "check", "rules", "rules.yml").returncode == 0
    assert planned.unknown_rules(TEXT, {"DiskNearlyFul": False}) == ["DiskNearlyFul"]


@pytest.mark.parametrize("name", ["rules.yml", "dcgm.yml"])
def test_names_of_metrics_exist(name):
    """A rule on a name that nobody writes never fires."""
    written = "".join(
        (ROOT / "plugins/module_utils" / (module + ".py")).read_text(encoding="utf-8")
        for module in ("_metrics", "_slurm_metrics")
    ) + (FILES / "host_reader.py").read_text(encoding="utf-8")
    text = (FILES / name).read_text(encoding="utf-8")
    for metric in set(re.findall(r"\btrainyard_[a-z_]+", text)) - {
        "trainyard_gpu_tensor_active_ratio"
    }:
        short = re.sub("^trainyard_(gpu|slurm)_", "", metric)
        assert metric in written or '"%s"' % short in written, metric
