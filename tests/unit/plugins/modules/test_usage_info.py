"""usage_info, run like in Ansible. sacct is a script."""

from __future__ import annotations

import pytest
from scripted_tools import run_module, scripts

ROW = (
    "4@4@%(user)s@vision@normal@train@COMPLETED@2026-11-26T04:00:00@2026-11-26T04:30:00@2026-11-26T06:30:00@7200@a@"
    "cpu=4,gres/gpu=2,mem=4G,node=1@None@first@@%(comment)s@0:0\n"
)
MEASURED = "ty1:gpus=2,seen=2,used=2,hours=4,use=0.5,idle=0.25,mem=40"


@pytest.fixture(name="sacct")
def fixture_sacct(tmp_path, monkeypatch):
    script = scripts(tmp_path, monkeypatch)

    def answer(text):
        (tmp_path / "rows").write_text(text, encoding="utf-8")
        mark = r"mark=$(echo \"$*\" | sed 's/.*--delimiter=\([^ ]*\) .*/\1/')".replace('\\"', '"')
        script(
            "sacct",
            'echo "$*" > %s/asked\n%s\nsed "s/@/$mark/g" %s/rows' % (tmp_path, mark, tmp_path),
        )
        return tmp_path / "asked"

    answer.script = script
    return answer


def test_a_month(sacct):
    asked = sacct(
        ROW % {"user": "ben", "comment": MEASURED} + ROW % {"user": "anna", "comment": ""}
    )
    told = run_module("usage_info", {"month": "2026-11"}, check=True)
    assert (told["available"], told["changed"], told["month"]) == (True, False, "2026-11")
    assert [(row["user"], row["gpu_hours"], row["mean_use"]) for row in told["people"]] == [
        ("anna", 4.0, None),
        ("ben", 4.0, 0.5),
    ]
    [whole] = told["accounts"]
    assert (whole["user"], whole["gpu_hours"], whole["gpu_hours_idle"]) == ("", 8.0, 1.0)
    assert whole["wait_median_minutes"] == 30
    assert told["csv"].count("\n") == 3 and len(told["lines"]) == 2
    assert "<h1>GPU usage 2026-11</h1>" in told["html"]
    words = asked.read_text(encoding="utf-8").split()
    assert {"--allusers", "--starttime=2026-11-01T00:00:00"} <= set(words)


def test_no_answer_is_a_result(sacct):
    sacct.script("sacct", "echo 'sacct: error: Connection refused' >&2; exit 1")
    told = run_module("usage_info", {"month": "2026-11"})
    assert (told["available"], told["people"]) == (False, []) and told["cause"] and told["fix"]


def test_what_is_no_month():
    told = run_module("usage_info", {"month": "11"})
    assert told["failed"]
    assert told["msg"] == "month: '11' is not a month; write it as in 2026-11"


def test_what_sacct_does_not_print(sacct):
    sacct("error\n")
    told = run_module("usage_info", {"month": "2026-11"})
    assert told["failed"] and "unexpected format" in told["msg"]
