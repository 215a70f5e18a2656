"""Filter all_reduce_perf: judges a log in a template like the module."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import answer

LOG = (
    Path(__file__)
    .parents[4]
    .joinpath("tests/fixtures/all_reduce_perf/sophia-2node-16gpu-ok.txt")
    .read_text(encoding="utf-8")
)


def judged(options, log=LOG):
    return Templar(DataLoader(), variables={"log": log}).template(
        trust_as_template("{{ log | trainyard.gpu.all_reduce_perf(%s) }}" % options)
    )


def test_the_filter_judges_like_the_module():
    assert judged("") == answer(LOG) and judged("")["passed"]


def test_bounds_by_name_and_as_text():
    told = judged(
        "expected_ranks='16', expected_hosts=2, min_busbw_gb_s='190', judge_from_bytes='512M'"
    )
    assert [reason["id"] for reason in told["reasons"]] == ["bandwidth"] and told["judged"][2:] == [
        "ranks",
        "hosts",
        "bandwidth",
    ]


@pytest.mark.parametrize(
    "options, log, said",
    [
        ("min_busbw_gb_s='fast'", LOG, "min_busbw_gb_s: 'fast' is not a valid bandwidth"),
        ("", "total 12", "'total 12' is not the beginning of output"),
        ("", 12, "give the log as text"),
        ("", "", "the text is empty"),
    ],
)
def test_invalid_input_fails_the_template(options, log, said):
    with pytest.raises(AnsibleFilterError, match="all_reduce_perf: ") as refused:
        judged(options, log)
    assert said in str(refused.value)
