"""What role verify takes and publishes: the same ids everywhere."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from role_variables import role_variable

from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import published_checks

ROLE = Path(__file__).parents[4] / "roles/verify"


def load(name):
    return yaml.safe_load((ROLE / "meta" / name).read_text(encoding="utf-8"))


def test_published_checks_alone_can_be_overruled_and_required():
    """The list of them is rules.yml, and there is no other. test_judge_input.py tries each."""
    assert {
        rule["variable"]
        for rule in load("input_rules.yml")["input_rules"]
        if rule.get("ids") == "verify"
    } == {"verify_overrule", "verify_required[]"}


def test_every_id_that_judge_hosts_makes_itself_is_published():
    checks = {check["id"]: check for check in published_checks(load("rules.yml"))}
    calls = [
        node
        for node in ast.walk(
            ast.parse(
                (ROLE.parents[1] / "plugins/action/judge_hosts.py").read_text(encoding="utf-8")
            )
        )
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "finding"
    ]
    # The others pass on a rule's id.
    own = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}
    assert own == {"host-unreachable", "python-version"} and {
        ast.unparse(node.args[0]) for node in calls
    } - {repr(name) for name in own} == {"rule['id']"}
    readme = (ROLE / "README.md").read_text(encoding="utf-8")
    for name in own:
        # Nobody tells them of a host that is good, so a run without them must not fail for it.
        assert (checks[name]["stage"], checks[name]["required"], checks[name]["applies_to"]) == (
            "host",
            False,
            "trouble",
        ) and "\n| `%s` |" % name in readme


def test_every_rule_is_in_the_readme():
    readme = (ROLE / "README.md").read_text(encoding="utf-8")
    assert [
        rule["id"] for rule in load("rules.yml")["host_rules"] if "`%s`" % rule["id"] not in readme
    ] == []


def decided(name, **given):
    variables = {
        "inventory_hostname": "a",
        "ansible_play_hosts": ["a", "b"],
        "ansible_play_hosts_all": ["a", "b"],
        "hostvars": {"a": {}, "b": {}},
        "cluster_head": "a",
        "cluster_share_path": "/data1/share",
        "training_container_name": "trainyard-training",
        "verify_checks": [],
        "cluster_scheduler": "none",
    }
    return role_variable("verify", "__verify_" + name, **dict(variables, **given))


OF_MEASUREMENT = [
    "bandwidth-host",
    "bandwidth-cluster",
    "gpus-busy",
    "fabric-counters",
    "fabric-errors",
    "nccl-transport",
]
OF_BURN_IN = [
    "burn-in-results",
    "burn-in-speed",
    "burn-in-errors",
    "burn-in-links",
    "burn-in-rails",
]
OF_JOBS = ["scheduler-job", "scheduler-isolation"] + OF_BURN_IN + OF_MEASUREMENT


RUNS = {
    "ansible_check_mode": False,
    "__verify_is_alone": True,
    "verify_measure_bandwidth": True,
    "verify_required": [],
    "verify_overrule": {},
    "training_image_requires": {"frameworks": ["pytorch"]},
    "__verify_judged": {"findings": []},
    "verify_bandwidth_tool": "auto",
}
NO_TOOL = {"__verify_bandwidth_choice": {"tool": "", "problem": "the image has none"}}


@pytest.mark.parametrize(
    "changes, unmeasured",
    [
        ({}, []),
        (
            {"ansible_play_hosts_all": ["a"]},
            ["bandwidth-cluster", "fabric-counters", "fabric-errors"],
        ),
        ({"__verify_is_alone": False, "verify_required": ["bandwidth-cluster"]}, OF_JOBS),
        ({"ansible_check_mode": True}, OF_JOBS),
        ({"verify_measure_bandwidth": "false"}, OF_JOBS),
        # A check that is required and switched off is reported.
        (
            {"verify_measure_bandwidth": False, "verify_required": ["bandwidth-cluster"]},
            [each for each in OF_JOBS if each != "bandwidth-cluster"],
        ),
        # A cluster of which nothing can be told stays without a good verdict.
        ({"training_image_requires": {"frameworks": []}}, ["horovod-build"]),
        ({"training_image_requires": {"frameworks": []}, "verify_required": ["horovod-build"]}, []),
        ({"training_image_requires": {"frameworks": ["tensorflow"]}}, []),
        # An image that nothing is required of may have no tool. One that lacks what was requested
        # is a fault.
        (
            dict(NO_TOOL, training_image_requires={}),
            ["bandwidth-host", "bandwidth-cluster", "horovod-build"],
        ),
        (
            dict(NO_TOOL, training_image_requires={}, verify_required=["bandwidth-cluster"]),
            ["bandwidth-host", "horovod-build"],
        ),
        (NO_TOOL, []),
        (
            dict(NO_TOOL, training_image_requires={}, verify_bandwidth_tool="torch"),
            ["horovod-build"],
        ),
        # Horovod without process sets measures all together only.
        (
            {"verify_bandwidth": {"collective": "horovod", "runs": [{"id": "cluster"}]}},
            ["bandwidth-host"],
        ),
        (
            {
                "verify_bandwidth": {
                    "collective": "horovod",
                    "runs": [{"id": "host:a"}, {"id": "cluster"}],
                }
            },
            [],
        ),
        ({"__verify_judged": {"findings": [{"id": "ssh-mesh", "verdict": "fail"}]}}, []),
    ],
)
def test_what_this_run_makes_can_be_required(changes, unmeasured):
    assert decided("unmeasured", **dict(RUNS, **changes)) == unmeasured


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({}, ""),
        ({"training_image_requires": {}}, ""),
        ({"__verify_judged": {"findings": [{"id": "free-space", "verdict": "fail"}]}}, ""),
        ({"ansible_check_mode": True}, "no job is started in check mode"),
        ({"verify_measure_bandwidth": "no"}, "verify_measure_bandwidth is false"),
        (
            {"__verify_is_alone": False},
            "no job is started as part of another playbook: run verify.yml",
        ),
        ({"training_image_requires": {"frameworks": ["tensorflow"]}}, ""),
        (
            {"__verify_judged": {"findings": [{"id": "ssh-mesh", "verdict": "fail"}]}},
            "no job can run, because these checks failed: ssh-mesh",
        ),
    ],
)
def test_why_no_job_is_started(changes, reason):
    assert decided("no_job", **dict(RUNS, **changes)) == reason
    members = [
        {"name": "a", "in_play": True, "slots": 1},
        {"name": "b", "in_play": True, "slots": 1},
    ]
    checks = decided("without_job", cluster_members=members, **dict(RUNS, **changes))
    assert {check["id"] for check in checks} == set(OF_MEASUREMENT if reason else []) and {
        check["verdict"] for check in checks
    } <= {"skipped"}
    assert [check["found"] for check in checks if check["id"] == "bandwidth-cluster"] == (
        ["not measured: " + reason] if reason else []
    )


SCHEDULED = dict(
    RUNS,
    cluster_scheduler="slurm",
    cluster_members=[{"name": name, "in_play": True, "slots": 1} for name in "ab"],
    hostvars={
        "a": {"__verify_scheduler": {"nodes": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}},
        "b": {},
    },
    slurm_plan={
        "accounts": [{"name": "vision", "gpus": 2, "members": ["anna"]}],
        "missing_people": [],
    },
    shared_storage_users=[{"name": "anna", "uid": 2001}],
    shared_storage_trees=[{"path": "/data1/share/user", "of": "users"}],
    training_image_name="trainyard/training:1",
)


@pytest.mark.parametrize(
    "changes, reason, unmeasured",
    [
        ({}, "", []),
        # Bandwidth cannot be measured through the container, but jobs can run.
        ({"__verify_judged": {"findings": [{"id": "ssh-mesh", "verdict": "fail"}]}}, "", []),
        ({"cluster_scheduler": "none"}, "the cluster has no scheduler", []),
        ({"verify_measure_bandwidth": False}, "verify_measure_bandwidth is false", OF_JOBS),
        (
            {"__verify_is_alone": False},
            "no job is started as part of another playbook: run verify.yml",
            OF_JOBS,
        ),
        (
            {"hostvars": {"a": {}, "b": {}}},
            "the scheduler does not answer a, or has none of the hosts",
            [],
        ),
        # Of the view of the first host, on all hosts.
        ({"inventory_hostname": "b"}, "", []),
        ({"slurm_plan": {}}, "the accounts of the scheduler were not read", []),
        (
            {"shared_storage_users": []},
            "slurm_accounts has no member who is in shared_storage_users, so nobody can submit a job",
            ["scheduler-job", "scheduler-isolation"],
        ),
    ],
)
def test_why_no_job_of_a_person_is_tried(changes, reason, unmeasured):
    given = dict(SCHEDULED, **changes)
    assert decided("no_probe", **given) == reason and decided("unmeasured", **given) == unmeasured
    checks = decided("without_probe", **given)
    assert [(check["id"], check["host"], check["verdict"], check["found"]) for check in checks] == (
        [
            (check, name, "skipped", reason)
            for check in ("scheduler-job", "scheduler-isolation")
            for name in "ab"
        ]
        if reason and given["cluster_scheduler"] == "slurm"
        else []
    )
    left_out = decided("without_probe", **dict(given, verify_overrule={"scheduler-job": "skip"}))
    assert left_out == [check for check in checks if check["id"] == "scheduler-isolation"]
    assert (
        decided(
            "without_probe",
            **dict(given, verify_overrule={"scheduler-job": "skip", "scheduler-isolation": "skip"}),
        )
        == []
    )


@pytest.mark.parametrize(
    "changes, image",
    [
        ({}, "trainyard/training:1"),
        ({"job_container_enabled": "no"}, ""),
        ({"job_container_training_image": False}, ""),
    ],
)
def test_jobs_run_in_the_training_image_if_there_are_containers(changes, image):
    assert decided("probe", **dict(SCHEDULED, **changes)) == {
        "person": "anna",
        "account": "vision",
        "folder": "/data1/share/user/anna",
        "image": image,
        "problem": "",
        "possible": True,
    }
    assert decided("reserved", **SCHEDULED) == ["a", "b"]


@pytest.mark.parametrize(
    "given, begun",
    [
        ({}, ""),
        ({"cluster_host": {"begun": ""}}, ""),
        ({"cluster_host": {"begun": "0" * 32}}, "0" * 32),
        ({"cluster_host": {"begun": "0" * 32}, "training_sshd_has_changed": True}, ""),
    ],
    ids=["no facts", "verify.yml alone", "begun", "sshd changed after it"],
)
def test_check_that_role_cluster_has_begun(given, begun):
    assert decided("begun_check", **given) == begun


@pytest.mark.parametrize(
    "logins, cause",
    [
        ([], ""),
        ([{"name": "a", "cause": ""}, {"name": "b", "cause": "timeout"}], ""),
        ([{"name": "b", "cause": ""}, {"name": "a", "cause": "timeout"}], "timeout"),
    ],
)
def test_own_login(logins, cause):
    """Horovod is not asked through an sshd that does not answer."""
    assert decided("own_login", training_sshd_proof={"proofs": {"a": {"logins": logins}}}) == cause
    assert decided("own_login") == ""


def test_checks_of_the_job():
    assert (
        decided("of_jobs")
        == OF_JOBS
        == [row["id"] for row in load("rules.yml")["other_checks"] if row.get("job")]
    )
    # Without them a measurement cannot start, so none of them is made by a job.
    assert set(decided("needed_by_jobs")) == {
        "host-unreachable",
        "image-identical",
        "container-running",
        "ssh-mesh",
        "shared-storage",
        "container-share",
    }


def test_gpus_of_the_container():
    hosts = {
        "a": {"__verify_container_gpus": {"gpu_count": 8}},
        "b": {"__verify_container_gpus": {"skipped": True}},
        "c": {},
    }
    members = [{"name": name, "in_play": True, "slots": 1} for name in "abc"]
    assert decided("bandwidth_gpus", hostvars=hosts, cluster_members=members) == {
        "a": 8,
        "b": 0,
        "c": 0,
    }


def a_check(check_id, host="a", verdict="fail"):
    return {"id": check_id, "host": host, "verdict": verdict}


@pytest.mark.parametrize(
    "checks, job, host, logs",
    [
        ([a_check("ssh-mesh", verdict="pass"), a_check("gpu-xid", verdict="warn")], [], "a", []),
        (
            [a_check("ssh-mesh"), a_check("memlock")],
            [],
            "a",
            [("a", "training container and Docker")],
        ),
        ([a_check("shared-storage", "a, b")], [], "b", [("b", "kernel")]),
        ([a_check("ssh-mesh", "b")], [], "a", []),
        # The job's log is on the head, and one for all.
        ([], [a_check("fabric-counters", "b")], "a", [("a", "bandwidth job")]),
        ([], [a_check("fabric-counters", "b")], "b", []),
        ([], [a_check("bandwidth-host", "a", "skipped")], "a", [("a", "bandwidth job")]),
        # That there are no GPUs is no failure.
        (
            [],
            [a_check("gpus-busy", "a", "skipped"), a_check("bandwidth-cluster", "a, b", "warn")],
            "a",
            [],
        ),
    ],
)
def test_logs_that_matter(checks, job, host, logs):
    found = decided(
        "logs",
        verify_checks=checks,
        verify_bandwidth_checks=job,
        inventory_hostname=host,
        train_run_result={"rc": 1},
    )
    assert [(log["host"], log["name"]) for log in found] == logs
    assert (
        "trainyard-training.service" in found[0]["argv"]
        if logs and "container" in logs[0][1]
        else True
    )


def test_every_log_that_a_row_names_is_read():
    table = load("rules.yml")
    named = {
        name for row in table["host_rules"] + table["other_checks"] for name in row.get("logs", [])
    }
    expected = [
        sorted(row["id"] for row in table["host_rules"] if name in row.get("logs", []))
        for name in sorted(named)
    ]
    assert [sorted(source["checks"]) for source in decided("log_sources")] == expected


def test_tails_of_the_logs_that_could_be_read():
    read = {
        "rc": 0,
        "stdout": "bind: Address already in use",
        "item": {"host": "a", "name": "kernel", "argv": []},
    }
    hosts = {
        "a": {
            "__verify_log": {
                "results": [
                    read,
                    dict(read, rc=1),
                    dict(read, stdout="  "),
                    {"failed": True, "item": read["item"]},
                ]
            }
        },
        "b": {},
    }
    for its in hosts.values():
        its["cluster_host"] = {"kernel": "6.1.0"}
    assert decided("evidence", hostvars=hosts, cluster_members=[])["logs"] == [
        {"host": "a", "name": "kernel", "tail": "bind: Address already in use"}
    ]


@pytest.mark.parametrize(
    "given, said",
    [
        (
            {},
            "is a report of cluster other, and this is cluster lab (verify_cluster_name). Name a report.json of cluster lab, or leave it empty",
        ),
        (
            {"verify_cluster_name": "other"},
            "is a report of x, and this run has a, b. Name a report.json of the same hosts, or leave it empty",
        ),
        # What doesn't measure has no use for it, and a host that is down is the greater trouble.
        ({"verify_measure_bandwidth": "false"}, ""),
        ({"shared_storage_proof": {}}, ""),
        ({"down": True}, ""),
    ],
)
def test_a_report_of_another_cluster_ends_the_run_before_hosts_are_asked(tmp_path, given, said):
    """The role's own tasks up to the first that asks a host."""
    path = tmp_path / "report.json"
    path.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "cluster": "other",
                "bandwidth": {"runs": [{"id": "host:x", "hosts": ["x"]}]},
            }
        ),
        encoding="utf-8",
    )
    tasks = yaml.safe_load((ROLE / "tasks/gather.yml").read_text(encoding="utf-8"))
    asks = next(number for number, task in enumerate(tasks) if "block" in task)
    told = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "cluster_members": [{"name": name, "slots": 1, "in_play": True} for name in "ab"],
        "cluster_share_path": "/data1/share",
        "verify_cluster_name": "lab",
        "verify_bandwidth_history": str(path),
    }
    hosts = {name: {"cluster_host": {"gpus": 0, "nvidia_devices": 0}} for name in "ab"}
    down = [
        {
            "name": "Fall out",
            "ansible.builtin.fail": {},
            "when": "inventory_hostname == 'b' and down | default(false)",
        }
    ]
    play = {
        "hosts": "cluster",
        "gather_facts": False,
        "vars_files": [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml"), "told.yml"],
        "tasks": down
        + [
            {
                "any_errors_fatal": False,
                "block": tasks[:asks] + [{"ansible.builtin.debug": {"msg": "the hosts are asked"}}],
            }
        ],
    }
    for name, content in {
        "told.yml": dict(told, **given),
        "play.yml": [play],
        "hosts.yml": {"cluster": {"hosts": hosts}},
    }.items():
        (tmp_path / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        str(tmp_path / "hosts.yml"),
        str(tmp_path / "play.yml"),
    ]
    # There ansible.cfg says where the collection is.
    run = subprocess.run(
        command,
        cwd=ROLE.parents[1],
        text=True,
        capture_output=True,
        check=False,
        env=dict(os.environ, ANSIBLE_NOCOLOR="1", ANSIBLE_FORCE_COLOR="0"),
    )
    output = " ".join(run.stdout.split())
    if said:
        assert "verify_bandwidth_history: %s %s" % (path, said) in output, run.stdout + run.stderr
        assert (
            run.returncode == 2
            and "the hosts are asked" not in output
            and output.count("fatal: [") == 1
        )
    else:
        assert "the hosts are asked" in output, run.stdout + run.stderr


def test_thresholds_and_models_of_the_measured_hosts():
    """The job gets them with its plan: a threshold is a variable of a host, of a number or of a
    text.
    """
    gpus = [{"name": "NVIDIA H200", "index": 0}, {"name": "NVIDIA H200", "index": 1}]
    hostvars = {
        "a": {"verify_bandwidth_host_min_gb_s": "4.5", "cluster_host": {"x": 1}},
        "b": {"cluster_host": {"x": 1}, "__verify_gpus": {"gpus": gpus}},
    }
    members = [{"name": name, "address": "", "fabric_address": ""} for name in hostvars]
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8"))
    given = {
        **{name: value for name, value in defaults.items() if name.startswith("verify_bandwidth_")},
        "hostvars": hostvars,
        "cluster_members": members,
        "verify_report_dir": "/nowhere",
        "__verify_bandwidth_names": ["a", "b"],
        "__verify_bandwidth_members": [],
        "__verify_bandwidth_sought": {"hosts": [], "sizes": {}},
    }
    asked = role_variable("verify", "__verify_bandwidth_plan", **given)["asked"]
    assert asked["host_min_gb_s"] == {"a": 4.5, "b": 0.0}
    assert asked["models"] == {
        "NVIDIA H200": {
            "links": 18,
            "gb_s": 26.562,
            "nvlink": 478.116,
            "bridge": False,
            "known": True,
        }
    }
    assert (asked["fraction"], asked["min_busbw_gb_s"]) == (0.7, 0.0)


def test_only_lines_of_this_run_explain_a_failure(tmp_path):
    """The error of a fault that has ended explained another one."""
    begun = time.time() - 100
    container, kernel = decided("log_sources", __verify_begun=begun)
    assert "--dmesg" in kernel["argv"]
    (since,) = [word for word in kernel["argv"] if word.startswith("--since=-")]
    assert 100 <= int(since[len("--since=-") : -1]) < 200
    # Of a unit that does not run, the lines of its last start.
    for name, script in (
        (
            "systemctl",
            '[ "$1" = show ] && echo id-$4; [ "$1" = show ] || [ "$3" = docker.service ]',
        ),
        ("journalctl", 'echo "$*"'),
    ):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n%s\n" % script)
        program.chmod(0o755)
    environment = dict(os.environ, PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
    said = subprocess.run(
        container["argv"], env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    unit = "id-trainyard-training.service"
    assert said[0].endswith(
        "--lines=30 _SYSTEMD_INVOCATION_ID=%s + INVOCATION_ID=%s" % (unit, unit)
    )
    assert said[1].endswith("%s --unit=docker.service" % container["argv"][4])


@pytest.mark.parametrize("result, read", [({"rc": 1, "tail": []}, 1), ({}, 0), ({"msg": "x"}, 0)])
def test_the_log_of_a_job_that_did_not_start_is_of_an_earlier_one(result, read):
    failed = {"id": "bandwidth-host", "host": "a", "verdict": "fail"}
    logs = decided(
        "logs",
        __verify_begun=time.time(),
        verify_bandwidth_checks=[failed],
        train_run_result=result,
    )
    assert len([log for log in logs if log["name"] == "bandwidth job"]) == read


def test_device_numbers_of_hosts_without_a_reading():
    """A host whose health could not be read, and one from before the reading had lists."""
    told = {
        "a": {"__verify_health": {"slurm_gpus": {"listed": [0, 1, 3, 4], "fault": ""}}},
        "b": {},
        "c": {"__verify_health": {"slurm_gpus": {}}},
    }
    found = role_variable("verify", "__verify_listed", ansible_play_hosts=list(told), hostvars=told)
    assert found == [[0, 1, 3, 4], [], []]
