"""verify_report and compare_reports in a play: what they write, when they fail, and what they
reject before they write anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import drawn_once as charts
import example_reports
import pytest
import yaml
from ansible import context
from ansible.errors import AnsibleError
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.trainyard.gpu.plugins.action import compare_reports, verify_report
from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _jupyterhub_plan

drawn_once = charts.drawn_once
ROOT = Path(__file__).parents[4]
ROLES = ROOT / "roles"


def act(module, check=False, task_vars=None, **args):
    loader = DataLoader()
    task = SimpleNamespace(
        args=args,
        async_val=False,
        check_mode=check,
        diff=False,
        action="trainyard.gpu.x",
        collections=[],
        environment=[],
    )
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
    action = module.ActionModule(
        task, connection, SimpleNamespace(check_mode=check), loader, Templar(loader, {}), None
    )
    return action.run(task_vars=task_vars or {})


@pytest.fixture(name="verify")
def _verify(tmp_path):
    def verify(kind="lab", check=False, **changes):
        return act(
            verify_report,
            check,
            **{"report_dir": str(tmp_path / "reports"), **example_reports.KINDS[kind](), **changes},
        )

    return verify


@pytest.fixture(name="sent")
def _sent(monkeypatch):
    """What goes to hosts, and what they answer: an answer, or an exception."""
    found = SimpleNamespace(files=[], answer={})

    def execute(_self, module_name, module_args, task_vars):
        assert module_name == "trainyard.gpu.managed_files"
        found.files += module_args["files"]
        if isinstance(found.answer, Exception):
            raise found.answer
        return found.answer

    monkeypatch.setattr(verify_report.ActionModule, "_execute_module", execute)
    return found


METRICS = "/var/lib/trainyard/metrics/verify/verify.prom"


def test_metrics_have_the_verdict_also_if_it_is_bad(verify, sent):
    verify()
    verify(check=True, metrics=METRICS)
    assert sent.files == []
    assert verify(metrics=METRICS)["verdict"] != "fail"
    [entry] = sent.files
    assert (entry["path"], entry["mode"], entry["group"]) == (METRICS, "0640", "prometheus")
    assert "\ntrainyard_verify_passed 1\n" in entry["content"]
    kind = next(kind for kind in example_reports.KINDS if verify(kind)["verdict"] == "fail")
    told = verify(kind, metrics=METRICS)
    assert told["failed"] and "\ntrainyard_verify_passed 0\n" in sent.files[-1]["content"]


def test_operators_of_the_portal_have_the_page(verify, sent):
    """In one module run with the metrics.

    The account of the portal reads it, and cannot replace it: folder and file are root's.
    """
    told = verify(metrics=METRICS, portal="/var/lib/trainyard/portal/verify.html")
    metrics, folder, page = sent.files
    assert metrics["path"] == METRICS
    content = page.pop("content")
    assert content == Path(told["folder"], "report.html").read_text(encoding="utf-8")
    assert page == {
        "path": "/var/lib/trainyard/portal/verify.html",
        "mode": "0640",
        "owner": "root",
        "group": "trainyard-hub",
    }
    assert folder == {
        "path": "/var/lib/trainyard/portal",
        "state": "directory",
        "mode": "0750",
        "owner": "root",
        "group": "trainyard-hub",
    }


def test_the_page_of_operators_is_in_no_folder_of_another_account():
    """A FIFO or a link there would make root wait, or write elsewhere.

    Role, portal and removal name one path.
    """
    paths = {
        re.search("'(/[^']+/verify.html)'", _text("verify/tasks/main.yml")).group(1),
        re.search('REPORT = "(.+)"', _text("jupyterhub/files/jobs_page.py")).group(1),
        re.search("__jupyterhub_portal: (.+)", _text("jupyterhub/vars/main.yml")).group(1)
        + "/verify.html",
    }
    [path] = paths
    assert not path.startswith(_jupyterhub_plan.STATE + "/")
    # A run removes the one that was in such a folder.
    written = next(
        task["trainyard.gpu.managed_files"]
        for task in yaml.safe_load(_text("jupyterhub/tasks/start.yml"))
        if task["name"] == "Write programs and settings of the hub"
    )
    assert written["absent"] == ["{{ __jupyterhub_state }}/verify.html"]


def _text(name):
    return (ROLES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "answer", [{"failed": True, "msg": "no space"}, AnsibleError("no route to host")]
)
def test_a_host_of_metrics_that_fails_hides_no_verdict(verify, sent, answer):
    sent.answer = answer
    told = verify(metrics=METRICS)
    assert told["verdict"] != "fail" and "failed" not in told and told["folder"]


def test_a_good_cluster(verify, tmp_path):
    result = verify()
    assert not result.get("failed") and result["changed"] is False and result["verdict"] == "pass"
    folder = Path(result["folder"])
    assert folder.parent == tmp_path / "reports" and sorted(os.listdir(folder)) == [
        "junit.xml",
        "report.html",
        "report.json",
    ]
    assert json.loads((folder / "report.json").read_text(encoding="utf-8")) == result["report"]
    assert ElementTree.parse(folder / "junit.xml").getroot().get("failures") == "0"
    assert result["msg"] == "Verdict: pass.\nReport: %s/report.html" % folder
    assert yaml.safe_load((tmp_path / "reports/suspect.yml").read_text(encoding="utf-8")) == {
        "suspect": {"hosts": {}}
    }


def test_a_verdict_that_fails_fails_after_the_report_is_written(verify, tmp_path):
    result = verify("broken_host")
    assert result["failed"] and result["verdict"] == "fail" and "report" not in result
    assert (
        "GPU is lost" in result["msg"]
        and "Report: %s" % tmp_path in result["msg"]
        and "geheim" not in json.dumps(result)
    )
    report = json.loads(Path(result["folder"], "report.json").read_text(encoding="utf-8"))
    assert report["suspect"] == ["gpu-02"] and report["verdict"] == "fail"
    assert "geheim" not in "".join(
        file.read_text(encoding="utf-8") for file in Path(result["folder"]).iterdir()
    )
    assert yaml.safe_load(Path(result["suspect_file"]).read_text(encoding="utf-8")) == {
        "suspect": {"hosts": {"gpu-02": None}}
    }


def test_warnings(verify):
    assert not verify("eight_gpus").get("failed")
    assert verify("eight_gpus", fail_on="warn")["failed"]


def bandwidth_of(*hosts):
    expected = {"required_gb_s": None, "bound": None, "from": "", "busbw_gb_s": None}
    run = {
        "id": "cluster",
        "hosts": list(hosts),
        "ranks": len(hosts),
        "rows": [],
        "seconds": 1.0,
        "errors": [],
        "transports": [],
        "expected": expected,
        "judged_busbw_gb_s": 1.0,
        "passed": True,
        "reasons": [],
        "avg_busbw_gb_s": 1.0,
        "max_busbw_gb_s": 1.0,
    }
    return {"collective": "gloo", "runs": [run]}


def test_the_suspect_is_taken_back_when_it_is_mended(verify):
    def suspects(**changes):
        return list(
            yaml.safe_load(Path(verify(**changes)["suspect_file"]).read_text(encoding="utf-8"))[
                "suspect"
            ]["hosts"]
        )

    both = bandwidth_of("lab-a", "lab-b")
    assert suspects(suspect=["lab-b"], bandwidth=both) == ["lab-b"]
    # Of a run that measures nothing, or without it, nothing follows for it.
    assert suspects(bandwidth={}) == ["lab-b"] and suspects(bandwidth=bandwidth_of("lab-a")) == [
        "lab-b"
    ]
    assert suspects(suspect=["lab-a"], bandwidth=bandwidth_of("lab-a")) == ["lab-a", "lab-b"]
    assert suspects(bandwidth=both) == []


def test_a_suspect_that_has_left_the_cluster(verify, tmp_path):
    assert "lab-b" in Path(verify(suspect=["lab-b"], bandwidth={})["suspect_file"]).read_text(
        encoding="utf-8"
    )
    assert "lab-b" not in Path(
        verify(bandwidth={}, task_vars={"groups": {"cluster": ["lab-a"]}})["suspect_file"]
    ).read_text(encoding="utf-8")
    (tmp_path / "reports/suspect.yml").write_text("no group: [", encoding="utf-8")
    assert "{}" in Path(verify(bandwidth={})["suspect_file"]).read_text(encoding="utf-8")


def test_what_changed_since_the_last_one(verify):
    first = verify()
    told = example_reports.lab()
    told["versions"]["lab-b"]["kernel"] = 6.2
    second = verify(versions=told["versions"])
    assert second["report"]["compared_with"] == first["report"]["generated"]
    assert second["report"]["changes"] == [
        {"what": "kernel", "host": "lab-b", "before": "6.1.0-27-amd64", "now": "6.2"}
    ]
    # Of another cluster none is taken.
    assert verify(cluster="other")["report"]["compared_with"] is None


def test_bytes_that_are_no_text(verify):
    """Ansible hands them on as lone surrogates, which no file in UTF-8 can hold."""
    told = example_reports.lab()
    told["checks"][0].update(verdict="fail", found="/data/\udcff\x00.txt")
    told["logs"] = [{"host": "lab-a", "name": "job", "tail": "error: \udcff"}]
    folder = Path(verify(checks=told["checks"], logs=told["logs"])["folder"])
    assert "/data/?" in (folder / "report.json").read_text(encoding="utf-8") and "/data/?" in (
        folder / "report.html"
    ).read_text(encoding="utf-8")


def test_check_mode_writes_nothing_and_requires_nothing(verify, tmp_path):
    result = verify(
        "broken_host", check=True, checks=[example_reports.a_finding("free-space", "gpu-01")]
    )
    assert (
        result["verdict"] == "pass"
        and result["folder"] == ""
        and not (tmp_path / "reports").exists()
    )


def test_what_the_site_leaves_out_is_not_missing(verify):
    checks = [entry for entry in example_reports.lab()["checks"] if entry["id"] != "free-space"]
    assert verify(checks=checks)["failed"]
    assert not verify(checks=checks, overrule={"free-space": "skip"}).get("failed")


def test_what_the_bandwidth_job_leaves(verify):
    """The forms that files/all_reduce.py of role verify makes of _bandwidth.py's answers."""
    names, asked = (
        ["lab-a", "lab-b"],
        {"fraction": 0.7, "min_busbw_gb_s": 0, "drop_percent": 20, "peer_fraction": 0.6},
    )
    rows = [_bandwidth.row(size, size / 1e9, 2, 0) for size in _bandwidth.sizes(2**24)]
    runs = []
    for run_id, hosts, peers in (
        ("cluster", names, None),
        ("host:lab-a", names[:1], 2.0),
        ("pair:lab-a,lab-b", names, None),
        ("group:lab-a,lab-b", names, None),
    ):
        run = {
            "id": run_id,
            "hosts": hosts,
            "ranks": 2,
            "rows": rows if run_id != "group:lab-a,lab-b" else [],
            "seconds": 1.0,
            "errors": [],
            "transports": ["TCP over eth0"],
        }
        cards = [_bandwidth.card("eth0", "10000")]
        bound = _bandwidth.expected(
            [{"name": name, "cards": cards, "gpus": []} for name in hosts],
            "gloo",
            asked,
            1.1,
            peers,
        )
        runs.append(dict(run, **_bandwidth.verdict(run, bound)))
    answer = {
        "collective": "gloo",
        "runs": runs,
        "facts": {},
        "blame": [],
        "suspect": [],
        "note": "of the pairs none is slow",
        "rounds": 1,
        "seconds": 9.0,
    }
    result = verify(bandwidth=answer)
    assert result["report"]["bandwidth"] == {
        "collective": "gloo",
        "note": "of the pairs none is slow",
        "runs": runs,
    }
    assert "of the pairs none is slow" in Path(result["folder"], "report.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"checks": [{"id": "free-space"}]}, "checks[0] lacks host, verdict"),
        (
            {"checks": [example_reports.a_finding("free-space", "lab-a", "good")]},
            'checks[0].verdict is "good". Allowed: "pass"',
        ),
        ({"hosts": []}, "hosts has 0 entries"),
        ({"hosts": [{"name": "lab-a"}]}, "hosts[0] lacks address"),
        (
            {"bandwidth": {"collective": "mpi"}},
            'bandwidth.collective is "mpi". Allowed: "nccl", "horovod", "gloo", null',
        ),
        (
            {"blame": [{"kind": "switch", "names": ["x"], "evidence": ""}]},
            'blame[0].kind is "switch". Allowed: "host", "link"',
        ),
        ({"required": ["everything"]}, "required: 'everything' is not a check"),
        (
            {"before": "2020-01-01T00-00-00Z"},
            "no report found. Give a folder that verify.yml has written",
        ),
    ],
)
def test_bad_input_is_one_message_before_anything_is_written(verify, tmp_path, changes, words):
    with pytest.raises(AnsibleError) as raised:
        verify(**changes)
    assert words in str(raised.value) and not (tmp_path / "reports").exists()


def test_a_report_of_another_cluster_is_refused_as_history(verify, tmp_path):
    other = act(
        verify_report,
        report_dir=str(tmp_path / "other"),
        **dict(example_reports.lab(), cluster="physics"),
    )
    with pytest.raises(AnsibleError) as raised:
        verify(before=other["folder"])
    assert (
        "it is of cluster physics, but this is lab. Set a report of this cluster, or none."
        in str(raised.value)
    )


def test_a_folder_that_ansible_reads_is_refused(verify, tmp_path, monkeypatch):
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(inventory=(str(tmp_path),)))
    with pytest.raises(AnsibleError) as raised:
        verify()
    assert "junit.xml would become hosts" in str(raised.value) and str(
        tmp_path / ".trainyard/reports"
    ) in str(raised.value)
    assert os.listdir(tmp_path) == []
    assert verify(report_dir=str(tmp_path / ".trainyard/reports"))["verdict"] == "pass"


def test_a_folder_that_cannot_be_written_keeps_the_verdict(verify, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(AnsibleError) as raised:
        verify("broken_host", report_dir=str(tmp_path / "file/reports"))
    assert "cannot be written" in str(raised.value) and "GPU is lost" in str(raised.value)


def test_the_suspects_are_left_out_by_ansible_itself(verify, tmp_path):
    (tmp_path / "hosts.yml").write_text(
        "cluster:\n  hosts:\n    lab-a:\n    lab-b:\n", encoding="utf-8"
    )
    for suspect, left in (["lab-b"], ["lab-a"]), ([], ["lab-a", "lab-b"]):
        file = verify(suspect=suspect)["suspect_file"]
        listed = subprocess.run(
            [
                sys.executable,
                "-m",
                "ansible",
                "adhoc",
                "-i",
                str(tmp_path / "hosts.yml"),
                "-i",
                file,
                "--list-hosts",
                "cluster:!suspect",
            ],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert [line.strip() for line in listed.stdout.splitlines()[1:]] == left, listed.stdout


# --- compare ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(name="three")
def _three(verify, tmp_path):
    """Three reports, an hour apart."""
    paths = []
    for hour in range(3):
        path = Path(verify(seconds=hour)["folder"])
        report = json.loads((path / "report.json").read_text(encoding="utf-8"))
        report["generated"] = "2026-11-23T0%d:00:00Z" % hour
        report["versions"]["lab-a"]["kernel"] = "6.1.%d" % hour
        (path / "report.json").write_text(json.dumps(report), encoding="utf-8")
        paths.append(path.rename(path.with_name(report["generated"].replace(":", "-"))))
    return paths


def kernels(result):
    return [
        (change["before"], change["now"])
        for change in result["changes"]
        if change["what"] == "kernel"
    ]


def test_compare_takes_the_last_two(three, capsys):
    result = act(compare_reports, report_dir=str(three[0].parent))
    assert (
        kernels(result) == [("6.1.1", "6.1.2")]
        and result["changed"] is False
        and not result.get("failed")
    )
    assert result["page"] == str(three[2] / "compare.html") and "side by side" in (
        three[2] / "compare.html"
    ).read_text(encoding="utf-8")
    table = capsys.readouterr().out
    assert (
        "what    hosts  2026-11-23T01:00:00Z  2026-11-23T02:00:00Z\nkernel  lab-a  6.1.1                 6.1.2\n"
        in table
    )


def test_compare_has_one_row_for_hosts_that_changed_alike(three, capsys):
    for path, version in zip(three[1:], ("550.90", "560.35")):
        report = json.loads((path / "report.json").read_text(encoding="utf-8"))
        for components in report["versions"].values():
            components["driver"] = version
        (path / "report.json").write_text(json.dumps(report), encoding="utf-8")
    act(compare_reports, report_dir=str(three[0].parent))
    assert [
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("driver")
    ] == [["driver", "lab-a,", "lab-b", "550.90", "560.35"]]


def test_compare_takes_what_is_named(three):
    folder = str(three[0].parent)
    assert kernels(act(compare_reports, report_dir=folder, before=three[0].name)) == [
        ("6.1.0", "6.1.2")
    ]
    assert kernels(act(compare_reports, report_dir=folder, after=three[1].name)) == [
        ("6.1.0", "6.1.1")
    ]
    assert kernels(
        act(
            compare_reports,
            report_dir=folder,
            before=str(three[2] / "report.json"),
            after=str(three[0]),
        )
    ) == [("6.1.2", "6.1.0")]


def test_compare_writes_nothing_in_check_mode(three):
    act(compare_reports, True, report_dir=str(three[0].parent))
    assert not (three[2] / "compare.html").exists()


def test_compare_refuses(three, tmp_path):
    folder = str(three[0].parent)
    other = act(
        verify_report,
        report_dir=str(tmp_path / "other"),
        **dict(example_reports.lab(), cluster="physics"),
    )["folder"]
    for args, words in (
        (
            {"report_dir": str(tmp_path / "none")},
            "holds no report. Run verify.yml, or set verify_report_dir",
        ),
        ({"report_dir": folder, "after": three[0].name}, "holds no report before"),
        ({"report_dir": folder, "before": "yesterday"}, "no report found"),
        ({"report_dir": folder, "before": other}, "it is of cluster physics, but this is lab"),
    ):
        with pytest.raises(AnsibleError) as raised:
            act(compare_reports, **args)
        assert words in str(raised.value)


def test_playbook_compare(three, tmp_path):
    """As a user runs it: hosts that nobody asks anything, reports where the inventory says they
    are.
    """
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        yaml.safe_dump(
            {
                "cluster": {
                    "hosts": {
                        "lab-a": {"ansible_host": "192.0.2.11"},
                        "lab-b": {"ansible_host": "192.0.2.12"},
                    },
                    "vars": {"verify_report_dir": str(three[0].parent)},
                }
            }
        ),
        encoding="utf-8",
    )
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "playbooks/compare.yml",
        "-i",
        str(inventory),
        "-e",
        "compare_before=" + three[0].name,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=dict(os.environ, ANSIBLE_NOCOLOR="1", ANSIBLE_FORCE_COLOR="0"),
    )
    assert done.returncode == 0, done.stdout
    assert (
        "kernel  lab-a  6.1.0                 6.1.2" in done.stdout
        and "1 difference. Page: " in done.stdout
    )
    assert (three[2] / "compare.html").exists()
