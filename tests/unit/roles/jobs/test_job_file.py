# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values of a job file: what each key accepts, and one clear sentence for what it refuses."""

from __future__ import annotations

import _job_file
import _job_text
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PRIORITIES = [
    {"name": "high", "priority": 1000, "preempts": ["low"]},
    {"name": "low", "priority": 0},
    {"name": "normal", "priority": 100, "preempts": ["low"]},
]
SAMPLE = "name: first\ncommand: python3 train.py\nworker_image: pytorch:2.5\n"


def read_job_file(text, changes=(), **more):
    """As the command does it."""
    values = _job_text.read_job_text(text, _job_file.KEYS)
    return _job_file.judge(_job_file.changed(values, changes), **more)


def read(text, *changes, **more):
    return read_job_file(text, changes, **dict({"priorities": PRIORITIES}, **more))


def problems(text, *changes, **more):
    with pytest.raises(_job_file.JobFileError) as caught:
        read(text, *changes, **more)
    return caught.value.problems


@pytest.mark.parametrize(
    "text, events",
    [
        ("", None),
        ("mail: none", []),
        ("mail: fail", ["fail"]),
        ("mail: fail, start,", ["start", "fail"]),
        ("mail: [end, requeue]", ["end", "requeue"]),
        ('mail: ""', None),
    ],
)
def test_when_mails_are_sent(text, events):
    assert read(SAMPLE + text + "\n")["mail"] == events


def test_what_a_person_has_chosen_for_all_jobs():
    assert _job_file.mail_default("end, fail\n") == ["end", "fail"]
    assert _job_file.mail_default("none") == [] and _job_file.mail_default("\n") is None
    with pytest.raises(ValueError, match="'begin' is not possible; use none, or some of start"):
        _job_file.mail_default("begin")


def test_the_parameter_file_of_the_guide():
    job = read(
        "name=first_job\nkind=PyTorchJob\nworker_count=1\nworker_cpu=4\nworker_gpu=0\nworker_memory=4\nworker_shared_memory=4\n"
        'worker_image=master0:5000/eflops/pytorch:v1\ncommand=echo "hello world"\npriority=1\nworkspace_id=your-workspace-id\ninteractive=false\n'
    )
    expected = {
        "name": "first_job",
        "kind": "PyTorchJob",
        "worker_count": 1,
        "worker_cpu": 4,
        "worker_gpu": 0,
        "worker_memory": 4096,
        "worker_shared_memory": 4096,
        "worker_image": "master0:5000/eflops/pytorch:v1",
        "command": 'echo "hello world"',
        "priority": "low",
        "nice": 200,
        "workspace_id": "your-workspace-id",
        "interactive": False,
        "host_class": "",
        "max_minutes": None,
        "preemptible": False,
        "environment": {},
        "workdir": "",
        "retries": 0,
        "services": {"ssh": False, "jupyter": False, "tensorboard": ""},
        "environment_aliases": "none",
        "copy_results": "",
        "mail": None,
    }
    # A new key has its default.
    assert {key: job[key] for key in expected} == expected


def test_all_keys_in_yaml():
    job = read(
        "name: all\nkind: HorovodJob\nworker_count: 2\nworker_cpu: 8\nworker_gpu: 4\nworker_memory: 0.5\nworker_shared_memory: 8\n"
        "worker_image: registry.site:5000/person/image@sha256:abc\ncommand: |\n  set -e\n  horovodrun -np 8 python3 train.py\npriority: high\n"
        "workspace_id: vision\nhost_class: h100\nmax_minutes: 90\nenvironment:\n  NCCL_DEBUG: INFO\n  EMPTY: ''\nworkdir: ~/code\nretries: 2\n"
        "environment_aliases: dlws\ncopy_results: results:runs/a b\n"
    )
    assert (job["worker_memory"], job["command"], job["max_minutes"]) == (
        512,
        "set -e\nhorovodrun -np 8 python3 train.py",
        90,
    )
    assert job["environment"] == {"NCCL_DEBUG": "INFO", "EMPTY": ""} and (
        job["priority"],
        job["nice"],
    ) == ("high", 0)
    assert job["copy_results"] == "results:runs/a b"


@pytest.mark.parametrize(
    "line, said",
    [
        ("worker_gpus: 2", "line 4: worker_gpus: there is no such key; did you mean worker_gpu?"),
        ("zebra: 2", "line 4: zebra: there is no such key; the keys are name, command, kind"),
        (
            "worker_gpu: four",
            "line 4: worker_gpu: 'four' is not possible; use a whole number from 0 to 64",
        ),
        ("worker_gpu: -1", "line 4: worker_gpu: '-1' is not possible"),
        ("worker_gpu: 65", "line 4: worker_gpu: '65' is not possible"),
        ("worker_gpu: 1.5", "'1.5' is not possible"),
        ("worker_gpu: ٣", "'٣' is not possible"),
        ("worker_gpu: [1]", "worker_gpu: a list is not one value"),
        ("worker_gpu:", "'' is not possible"),
        ("worker_count: 0", "use a whole number from 1 to 4096"),
        ("worker_cpu: 1025", "from 1 to 1024"),
        ("worker_memory: 0", "'0' is not possible; use a number of GB above 0"),
        ("worker_memory: 4G", "'4G' is not possible"),
        ("worker_memory: 1e9", "'1e9' is not possible"),
        ("worker_shared_memory: 99999", "from 0 to 16384"),
        ("max_minutes: 0", "a whole number from 1 to"),
        ("retries: 11", "a whole number from 0 to 10"),
        (
            "kind: PytorchJob",
            "line 4: kind: 'PytorchJob' is not one of PyTorchJob, HorovodJob, MPIJob, MindSporeJob, Job; did you mean PyTorchJob?",
        ),
        ("interactive: maybe", "'maybe' is neither true nor false"),
        ("preemptible: 2", "'2' is neither true nor false"),
        ("priority: 10", "priority: '10' is not possible; use 1 to 9, or one of low, normal, high"),
        ("priority: urgent", "'urgent' is not possible"),
        (
            "workspace_id: 'a b'",
            "'a b' is not valid; use the name of an account; 'trainyard quota' lists yours",
        ),
        ("workspace_id: --help", "'--help' is not valid"),
        ("host_class: 'h100&v100'", "'h100&v100' is not valid; use a class of hosts"),
        ("workdir: code", "'code' is not possible; use an absolute path"),
        ("workdir: /a/../b", "'/a/../b' is not possible"),
        ("workdir: '/a,b'", "without commas"),
        ('workdir: "/a\\nb"', "'/a?b' is not one line"),
        ("environment: [A]", "a list is not possible"),
        ("environment: {1A: b}", "'1A' is not the name"),
        ("environment: {'1A': b}", "'1A' is not the name"),
        ("environment: {A: [b]}", "A is a list, but a variable has one value"),
        ("environment: {SLURM_JOB_ID: 1}", "SLURM_JOB_ID is set for each job"),
        ("environment: {RANK: 1}", "RANK is set for each job"),
        ("environment: {'A-B': 1}", "'A-B' is not the name of a variable"),
        ("services: [sshd]", "'sshd' is not one of ssh, jupyter, tensorboard"),
        ("services: [tensorboard]", "tensorboard needs the folder of the logs"),
        ("services: {ssh: maybe}", "'maybe' is neither true nor false"),
        ("services: [[ssh]]", "a list is not one of"),
        ("environment_aliases: DLWS", "did you mean dlws?"),
        ("copy_results: /data", "use remote:path"),
        ("mail: begin", "mail: 'begin' is not possible; use none, or some of start, end, fail"),
        ("mail: [end, none]", "mail: 'none' is not possible"),
        ("mail: {end: true}", "mail: several keys is not possible"),
        ("copy_results: ':s3,secret=x:bucket'", "use remote:path"),
        ("copy_results: '-x:y'", "use remote:path"),
        (
            "interactive: true\nworker_count: 2",
            "line 4: interactive: an interactive job has one worker, but worker_count is 2",
        ),
        ("interactive: true\nretries: 1", "line 5: retries: an interactive job is not run again"),
        (
            "interactive: true\nservices: {ssh: true}",
            "line 5: services: an interactive job has none; remove the key, or interactive",
        ),
        (
            "interactive: true\nenvironment: {A: b}",
            "line 5: environment: an interactive job has none",
        ),
        (
            "interactive: true\ncopy_results: r:x",
            "line 5: copy_results: an interactive job has none",
        ),
        (
            "interactive: true\nenvironment_aliases: dlws",
            "line 5: environment_aliases: an interactive job has none",
        ),
        (
            "interactive: true\npreemptible: true",
            "line 5: preemptible: an interactive job has none",
        ),
        ("environment: {UID: 5}", "UID is set for each job"),
        ('workdir: "/a\\ud800"', "workdir: '/a?' has a character that is none in UTF-8"),
        ('environment: {A: "\\udc00"}', "'?' has a character that is none in UTF-8"),
        (
            "preemptible: true\npriority: high",
            "line 5: priority: jobs of priority high are never preempted; use low, or remove preemptible",
        ),
    ],
)
def test_what_is_refused(line, said):
    (problem,) = problems(SAMPLE + line + "\n")
    assert said in problem and "\n" not in problem


@pytest.mark.parametrize("name", ["", "a b", "a" * 28, "a-b", "ä", "a\nb", "$(id)", "--x"])
def test_names_that_are_refused(name):
    (problem,) = (
        problems("command: x\nworker_image: y\n", "name=" + name)
        if name
        else problems("command: x\nworker_image: y\nname: ''\n")
    )
    assert "use 1 to 27 letters, digits and '_'" in problem


@pytest.mark.parametrize(
    "command, said",
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("a\x00b", r"control character '\x00'"),
        ("a\x1bb", "control character"),
        ("x" * 65537, "more than 65536 characters"),
    ],
)
def test_commands_that_are_refused(command, said):
    values = {"name": "a", "worker_image": "b", "command": command}
    with pytest.raises(_job_file.JobFileError) as caught:
        _job_file.judge(values)
    assert said in str(caught.value)


def test_all_faults_are_told_at_once():
    found = problems("name: a b\nworker_gpu: x\nkind: y\nzebra: 1\n")
    assert (
        len(found) == 5
        and found[0].startswith("line 4: zebra")
        and "command: a value is required and missing" in "".join(found)
    )


def test_an_image_is_needed_unless_the_cluster_has_one():
    assert "worker_image: a value is required and missing" in problems("name: a\ncommand: b\n")[0]
    assert (
        read("name: a\ncommand: b\n", default_image="trainyard/training:1")["worker_image"]
        == "trainyard/training:1"
    )


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("environment", "{A: 1, B: 'x, y'}", {"A": "1", "B": "x, y"}),
        (
            "services",
            "{ssh: true, tensorboard: ~/logs}",
            {"ssh": True, "jupyter": False, "tensorboard": "~/logs"},
        ),
        ("services", "[ssh, jupyter]", {"ssh": True, "jupyter": True, "tensorboard": ""}),
        ("services", "ssh,jupyter", {"ssh": True, "jupyter": True, "tensorboard": ""}),
    ],
)
def test_mappings_and_lists_in_one_line(key, value, expected):
    """As the guide writes them, in each format."""
    small = "name=a\ncommand=x\nworker_image=i:1\n"
    assert read_job_file(small + "%s=%s\n" % (key, value))[key] == expected
    assert read_job_file(small, ["%s=%s" % (key, value)])[key] == expected
    if value[0] in "{[":
        assert (
            read_job_file("name: a\ncommand: x\nworker_image: i:1\n%s: %s\n" % (key, value))[key]
            == expected
        )
        with pytest.raises(
            _job_file.JobFileError, match=r"line 4: %s: '.*' cannot be read: " % key
        ):
            read_job_file(small + "%s=%s\n" % (key, value[:-1]))
        with pytest.raises(_job_file.JobFileError, match=" x' follows the end of the value"):
            read_job_file(small + "%s=%s x\n" % (key, value))


def test_values_are_changed_for_one_submit():
    assert read(SAMPLE, "worker_gpu=2", "environment.A=x=y", "name=second")["environment"] == {
        "A": "x=y"
    }
    assert read(SAMPLE + "environment: {A: 1, B: 2}\n", "environment.A=3")["environment"] == {
        "A": "3",
        "B": "2",
    }
    assert read(SAMPLE + "worker_gpu: 3\n", "worker_gpu=")["worker_gpu"] == 0
    assert problems(SAMPLE, "worker_gpus=2") == [
        "worker_gpus: there is no such key; did you mean worker_gpu?"
    ]
    assert problems(SAMPLE, "2") == ["--set: '2' is not KEY=VALUE, as in: --set worker_gpu=2"]


@pytest.mark.parametrize(
    "value, preemptible, expected",
    [
        ("1", False, ("low", 200)),
        ("3", False, ("low", 0)),
        ("4", False, ("normal", 200)),
        ("9", False, ("high", 0)),
        ("high", False, ("high", 0)),
        ("", False, ("normal", 0)),
        ("", True, ("low", 0)),
        ("2", True, ("low", 100)),
    ],
)
def test_priorities(value, preemptible, expected):
    assert _job_file.chosen_priority(value, preemptible, PRIORITIES) == expected


@pytest.mark.parametrize(
    "priorities, expected",
    [
        ([], [("", (9 - number) * 100) for number in range(1, 10)]),
        (
            [{"name": "only", "priority": 5}],
            [("only", (9 - number) * 100) for number in range(1, 10)],
        ),
        (
            [{"name": "b", "priority": 2}, {"name": "a", "priority": 1}],
            [
                ("a", 400),
                ("a", 300),
                ("a", 200),
                ("a", 100),
                ("a", 0),
                ("b", 300),
                ("b", 200),
                ("b", 100),
                ("b", 0),
            ],
        ),
    ],
)
def test_numbers_are_spread_over_the_priorities_of_the_site(priorities, expected):
    assert [
        _job_file.chosen_priority(str(number), False, priorities) for number in range(1, 10)
    ] == expected


def test_each_row_of_the_table_is_complete():
    """The documentation, the help of submit and the form in the browser have its words."""
    for key in _job_file.TABLE:
        assert key.doc and key.accepts.allowed and not key.doc.endswith("."), key.name
        assert key.accepts.convert(_job_text.read_job_text("a: " + key.example, ())["a"])
        if key.default is not None:
            key.accepts.convert(key.default)
    assert len(set(_job_file.KEYS)) == len(_job_file.TABLE)
    services = _job_file.judge({"name": "a", "command": "b", "worker_image": "c"})["services"]
    assert [service.name for service in _job_file.SERVICES] == list(services)


def test_the_fields_of_the_form():
    fields = _job_file.form_fields()
    assert [field["name"] for field in fields[:3]] == ["name", "kind", "preemptible"]
    by_name = {field["name"]: field for field in fields}
    assert len(by_name) == len(fields)
    # An empty field takes the default, so that is what it shows. Without one it shows an example.
    assert by_name["worker_memory"]["placeholder"] == by_name["worker_memory"]["default"] == "4"
    assert (by_name["name"]["default"], by_name["name"]["placeholder"]) == ("", "first_job")
    assert by_name["kind"]["choices"] == _job_file.KINDS and by_name["kind"]["default"] == "Job"
    assert by_name["services.tensorboard"]["control"] == "text"


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=40)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(_job_file.KEYS),
        TEXTS
        | st.lists(TEXTS, max_size=3)
        | st.dictionaries(
            st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), TEXTS, max_size=3
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_job_is_written_as_it_is_read(values):
    if any("\0" in str(value) for value in values.values()):
        return
    read_again = _job_text.read_job_text(_job_file.to_yaml(values), _job_file.KEYS)
    # An empty list and an empty mapping are written as such, and nothing else changes.
    assert {str(key): value for key, value in read_again.items()} == values


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(_job_file.KEYS + ("x",)),
        TEXTS | st.lists(TEXTS, max_size=3) | st.dictionaries(TEXTS, TEXTS, max_size=3),
        max_size=6,
    )
)
def test_every_value_is_judged_and_every_message_is_one_line(values):
    try:
        job = _job_file.judge(
            dict({"name": "a", "command": "b", "worker_image": "c"}, **values), PRIORITIES
        )
    except _job_file.JobFileError as error:
        assert error.problems and all(
            "\n" not in problem and problem.isprintable() for problem in error.problems
        ), error.problems
    else:
        assert set(job) == set(_job_file.KEYS) | {"nice"}
