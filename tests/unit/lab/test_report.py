from __future__ import annotations

import pytest
import report
from process import LabError

LOG = """\
PLAY [Prepare the hosts] *******************************************************

TASK [trainyard.gpu.docker_engine : Install the engine] ************************
changed: [lab-a]
[ERROR]: Task failed: Module failed: no space left
fatal: [lab-b]: FAILED! => {"changed": false, "msg": "no space left"}

TASK [trainyard.gpu.training_image : Hand the image out] ***********************
fatal: [lab-b -> lab-a]: UNREACHABLE! => {"changed": false}
failed: [lab-a] (item=x) => {"ansible_loop_var": "item"}

PLAY RECAP *********************************************************************
"""
RESULT = {
    "job_id": "20261120t120000z",
    "world_size": 2,
    "ranks": [
        {"rank": 1, "host": "lab-b", "slot": 0, "exit_code": 0, "checksum": "bb"},
        {"rank": 0, "host": "lab-a", "slot": 0, "exit_code": 0, "checksum": "bb"},
    ],
    "metrics": {"accuracy": 0.9722, "loss": 0.1},
    "seconds": {"start": 1.5, "training": 4.0},
}


def test_failures_name_host_and_step():
    assert report.failures(LOG) == [
        ("lab-b", "trainyard.gpu.docker_engine : Install the engine"),
        ("lab-b", "trainyard.gpu.training_image : Hand the image out (unreachable)"),
        ("lab-a", "trainyard.gpu.training_image : Hand the image out"),
    ]


def test_a_finding_names_the_host_it_is_about():
    log = (
        LOG.partition("PLAY RECAP")[0]
        + """
TASK [trainyard.gpu.preflight : Check all hosts against the rules] ****************
[ERROR]: Task failed: Action failed: Preflight found blocking problems; nothing was changed.
BLOCK image-disk: lab-b, lab-c
fatal: [lab-a]: FAILED! => {"changed": false}
"""
    )
    step = "trainyard.gpu.preflight : Check all hosts against the rules"
    assert report.failures(log)[3:] == [("lab-b", step), ("lab-c", step)]


def test_failure_text_without_a_failed_host():
    text = report.failure_text(
        "site.yml", 4, "ERROR! the playbook could not be found\n", "/tmp/site.log"
    )
    assert "exit code 4" in text
    assert text.endswith("log: /tmp/site.log")


def test_summary_ends_with_the_line_that_scripts_read():
    hosts = {"lab-a": "172.30.77.11", "lab-b": "172.30.77.12"}
    lines = report.summary(
        hosts,
        "trainyard/training:0123456789ab",
        "Horovod v0.28.1:\n",
        RESULT,
        {"lab": 3.2, "site.yml": 400.6},
    ).splitlines()
    assert lines[-1] == "lab: ok hosts=2 ranks=2 accuracy=0.97 seconds=404"
    assert lines.index(next(line for line in lines if "lab-a  " in line)) < lines.index(
        next(line for line in lines if "lab-b  " in line)
    )


def test_a_job_that_learned_nothing_is_no_success():
    with pytest.raises(LabError, match="low accuracy: 0.1100"):
        report.summary(
            {}, "", "", {**RESULT, "metrics": {**RESULT["metrics"], "accuracy": 0.11}}, {}
        )


def test_a_job_without_accuracy_is_no_success():
    with pytest.raises(
        LabError, match="20261120t120000z reports no loss and accuracy, only: nothing"
    ):
        report.summary({}, "", "", {**RESULT, "metrics": {}}, {})
