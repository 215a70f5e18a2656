"""Reports as files: valid and invalid ones, the history of a site, and complete writes."""

from __future__ import annotations

import copy
import json
import os
import stat

import example_reports
import pytest
from example_reports import PUBLISHED
from hypothesis import given, settings
from hypothesis import strategies as some
from jsonschema import Draft202012Validator

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _report, _report_files

SCHEMA = _report_files.load_schema()
NAMES = ["lab-a", "lab-b"]


def make(generated="2026-11-23T18:45:02Z", **changes):
    return _report.make(
        generated=generated, published=PUBLISHED, **dict(example_reports.lab(), **changes)
    )


def put(folder, generated="2026-11-23T18:45:02Z", **changes):
    return _report_files.write(
        str(folder), generated, {"report.json": json.dumps(make(generated, **changes))}
    )


# --- shape ------------------------------------------------------------------------------------------------------------------------


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", example_reports.KINDS)
def test_example_reports_match_the_schema(kind):
    report = json.loads(
        json.dumps(
            _report.make(
                generated="2026-11-23T18:45:02Z",
                published=PUBLISHED,
                **example_reports.KINDS[kind](),
            )
        )
    )
    assert _report_files.problem_of(report, SCHEMA) == "" and not list(
        Draft202012Validator(SCHEMA).iter_errors(report)
    )


def nodes(value, path=()):
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from nodes(inner, path + (key,))


WHOLE = json.loads(
    json.dumps(
        _report.make(
            generated="2026-11-23T18:45:02Z", published=PUBLISHED, **example_reports.broken_host()
        )
    )
)
PATHS = [path for path in nodes(WHOLE) if path]
ANYTHING = (
    some.none()
    | some.booleans()
    | some.integers(-3, 3)
    | some.floats(-2, 2)
    | some.text(max_size=3)
    | some.lists(some.none(), max_size=1)
    | some.just({})
)


@settings(max_examples=300, deadline=None)
@given(some.sampled_from(PATHS), some.sampled_from(["replace", "remove", "add"]), ANYTHING)
def test_what_is_read_is_judged_as_jsonschema_does(path, how, value):
    """The controller needs no jsonschema for it, so the few words of the schema that are read here
    have to mean the same.
    """
    report = copy.deepcopy(WHOLE)
    place = report
    for key in path[:-1]:
        place = place[key]
    if how == "remove":
        del place[path[-1]]
    elif how == "add" and isinstance(place, dict):
        place["something"] = value
    else:
        place[path[-1]] = value
    assert bool(_report_files.problem_of(report, SCHEMA)) == (
        not Draft202012Validator(SCHEMA).is_valid(report)
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda report: report.pop("checks"), "the report lacks checks"),
        (
            lambda report: report["checks"][0].update(verdict="good"),
            'checks[0].verdict is "good". Allowed: "pass", "warn", "fail", "skipped", "not_evaluated"',
        ),
        (
            lambda report: report["hosts"][0].update(slots="8"),
            'hosts[0].slots is "8", but must be of type integer',
        ),
        (lambda report: report.update(schema_version=True), "schema_version is true. Allowed: 1"),
        (lambda report: report.update(hosts=[]), "hosts has 0 entries, but must have 1 or more"),
        (
            lambda report: report.update(generated="yesterday"),
            'generated is "yesterday", but must match',
        ),
        (
            lambda report: report["checks"][0].update(seconds=-1),
            "checks[0].seconds is -1, but must be 0 or more",
        ),
        (
            lambda report: report.update(owner="me"),
            "the report has owner, which is not a known key. Allowed: schema_version, ",
        ),
    ],
)
def test_what_is_wrong_is_named(change, words):
    report = make()
    change(report)
    assert words in _report_files.problem_of(report, SCHEMA)


# --- reading --------------------------------------------------------------------------------------------------------------------


def test_read_by_folder_or_by_file(tmp_path):
    path = put(tmp_path)
    assert (
        _report_files.read(path, SCHEMA)
        == _report_files.read(path + "/report.json", SCHEMA)
        == json.loads(json.dumps(make()))
    )


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "no report found. Give a folder that verify.yml has written"),
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"[" * 100000, "it is not JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "the report is [], but must be of type object"),
        (b"{}", "the report lacks schema_version, cluster"),
        (
            b'{"schema_version": 2}',
            "a report of schema version 2; this version of the collection reads 1",
        ),
    ],
)
def test_what_is_no_report(tmp_path, content, words):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(_report.ReportError) as raised:
        _report_files.read(str(path), SCHEMA)
    assert words in str(raised.value) and str(path) in str(raised.value)


# --- history ----------------------------------------------------------------------------------------------------------------------


def test_history_is_of_this_cluster_newest_first(tmp_path):
    for day in (1, 2, 3, 4):
        put(tmp_path, "2026-11-%02dT18:45:02Z" % day)
    put(tmp_path, "2026-11-05T18:45:02Z", cluster="other")
    put(
        tmp_path,
        "2026-11-06T18:45:02Z",
        hosts=example_reports.lab()["hosts"] + [example_reports.a_host("lab-c", 3)],
    )
    (tmp_path / "2026-11-07T18-45-02Z").mkdir()
    (tmp_path / "2026-11-07T18-45-02Z/report.json").write_text("{", encoding="utf-8")
    (tmp_path / "notes").mkdir()
    reports, passed_over = _report_files.history(str(tmp_path), SCHEMA, "lab", NAMES, 3)
    assert [report["generated"][:10] for report in reports] == [
        "2026-11-04",
        "2026-11-03",
        "2026-11-02",
    ]
    (reason,) = passed_over
    assert "2026-11-07T18-45-02Z" in reason and "not JSON" in reason


def test_without_a_folder_there_is_no_history(tmp_path):
    assert _report_files.history(str(tmp_path / "none"), SCHEMA, "lab", NAMES, 3) == ([], [])


@pytest.mark.parametrize(
    "cluster, names, words",
    [
        ("lab", NAMES, ""),
        ("lab", NAMES[::-1], ""),
        ("physics", NAMES, "it is of cluster lab, but this is physics"),
        ("lab", ["lab-a"], "its hosts are lab-a, lab-b, but these are lab-a"),
    ],
)
def test_reports_of_another_cluster(cluster, names, words):
    assert _report_files.difference(make(), cluster, names) == words


# --- writing ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_who_may_read_it(tmp_path, mask):
    before = os.umask(mask)
    try:
        path = put(tmp_path / "deep/reports")
    finally:
        os.umask(before)
    # A site whose mask is stricter means it.
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o750 & ~mask
    assert stat.S_IMODE(os.stat(path + "/report.json").st_mode) == 0o640 & ~mask


def test_two_of_one_second(tmp_path):
    first, second = put(tmp_path), put(tmp_path)
    assert (
        os.path.basename(first) == "2026-11-23T18-45-02Z"
        and os.path.basename(second) == "2026-11-23T18-45-02Z.02"
    )
    assert _report_files.folders(str(tmp_path)) == [second, first]


def test_whole_or_not_at_all(tmp_path):
    with pytest.raises(TypeError):
        _report_files.write(
            str(tmp_path), "2026-11-23T18:45:02Z", {"report.json": "{}", "report.html": None}
        )
    assert os.listdir(tmp_path) == []


# --- folders that Ansible reads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "folder, read",
    [
        ("inventory/reports", True),
        ("inventory/deep/reports", True),
        ("inventory", True),
        ("inventory/.trainyard/reports", False),
        ("inventory/group_vars/reports", False),
        ("inventory/reports.bak", False),
        ("reports", False),
        ("inventory-2", False),
    ],
)
def test_where_reports_would_become_hosts(tmp_path, folder, read):
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/hosts.yml").write_text(
        "cluster:\n  hosts:\n    lab-a:\n    lab-b:\n", encoding="utf-8"
    )
    source = str(tmp_path / "inventory")
    assert _report_files.read_as_inventory(str(tmp_path / folder), ["lab-a,", source]) == (
        source if read else ""
    )
    # And ansible-core means the same.
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader

    _report_files.write(
        str(tmp_path / folder),
        "2026-11-23T18:45:02Z",
        {"junit.xml": "<testsuites>\n</testsuites>\n"},
    )
    hosts = sorted(
        host.name for host in InventoryManager(loader=DataLoader(), sources=[source]).get_hosts()
    )
    assert ("<testsuites>" in hosts) == read
    assert read or hosts == NAMES


def test_a_file_as_inventory_reads_nothing_beside_it(tmp_path):
    (tmp_path / "hosts.yml").write_text("cluster:\n", encoding="utf-8")
    assert (
        _report_files.read_as_inventory(str(tmp_path / "reports"), [str(tmp_path / "hosts.yml")])
        == ""
    )
