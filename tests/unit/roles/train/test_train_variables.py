"""What role train reads of other hosts and of the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from role_variables import role_variable, task_variable

HOSTS = {
    "a": {"cluster_host": {"gpus": 8}},
    "b": {"cluster_host": {}},
    "c": {"cluster_host": {"gpus": 3}},
    "d": {},
}


@pytest.mark.parametrize("names, gpus", [("abcd", {"a": 8, "b": 0, "d": 0}), ("c", {}), ("", {})])
def test_gpus_of_the_hosts_in_the_play(names, gpus):
    """A host without facts has none that a job could use."""
    members = [{"name": name, "in_play": name != "c"} for name in names]
    assert role_variable("train", "__train_gpus", cluster_members=members, hostvars=HOSTS) == gpus


@pytest.mark.parametrize(
    "site, proxies",
    [
        ({}, {}),
        ({"http_proxy": "http://p:1"}, {"http_proxy": "http://p:1"}),
        ({"no_proxy": ["a", "b"]}, {"no_proxy": "a,b"}),
        (
            {"http_proxy": "", "https_proxy": "https://p:1", "no_proxy": []},
            {"https_proxy": "https://p:1"},
        ),
    ],
)
def test_proxies_for_the_download(site, proxies):
    assert (
        role_variable(
            "train",
            "__train_proxies",
            **{"package_sources_" + name: value for name, value in site.items()},
        )
        == proxies
    )


@pytest.mark.parametrize(
    "backend, scheduler, waits",
    [
        ("auto", "slurm", True),
        ("slurm", "slurm", True),
        ("direct", "slurm", False),
        ("auto", "none", False),
    ],
)
def test_a_job_waits_in_the_queue_of_a_scheduled_cluster(backend, scheduler, waits):
    words = role_variable(
        "train",
        "__train_queue",
        train_backend=backend,
        cluster_scheduler=scheduler,
        __train_job_id="x",
        train_timeout=0,
        train_queue_options=["--qos=high"],
        __train_members=[{"name": "a", "slots": 1}],
    )
    found = [
        word
        for word in words
        if word in ("salloc", "--job-name=trainyard-x", "--nodelist=a", "--qos=high")
    ]
    assert found == (
        ["salloc", "--job-name=trainyard-x", "--nodelist=a", "--qos=high"] if waits else []
    )
    assert bool(words) is waits


def test_two_jobs_of_one_second_have_different_ids():
    def job_id(given):
        return task_variable(
            "train", "main.yml", "Set the job ID", "__train_job_id", train_job_id=given
        )

    ids = {job_id("") for _number in range(20)}
    assert len(ids) == 20 and all(re.fullmatch(r"\d{8}t\d{6}z-[0-9a-f]{6}", each) for each in ids)
    assert job_id("mine") == "mine"


def test_each_program_of_the_runner_is_removed():
    """A file that stays keeps its folder, and the teardown fails."""
    tasks = Path(__file__).resolve().parents[4] / "roles/train/tasks"
    named = [
        set(re.findall(r"__train_runner \| dirname }}/([\w.]+)", (tasks / name).read_text("utf-8")))
        for name in ("run.yml", "remove.yml")
    ]
    assert "_job_hang.py" in named[0]
    assert named[0] == named[1]
