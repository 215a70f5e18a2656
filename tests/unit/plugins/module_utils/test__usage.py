"""Usage of GPUs: the AdminComment of a job, and the sums of a month."""

from __future__ import annotations

import csv
import datetime
import io
import time

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _usage as usage

NOVEMBER = usage.month_of("2026-11", datetime.date(2026, 1, 1))[1:]


def gpu(seconds=3600.0, use=0.5, busy=0.8, joules=360000.0, memory=40 << 30):
    return {
        "measured_seconds_total": seconds,
        "use_seconds_total": use * seconds,
        "busy_seconds_total": busy * seconds,
        "energy_joules_total": joules,
        "memory_max_bytes": memory,
    }


def comment(gpus=2, **values):
    found = {"seen": gpus, "used": gpus, "hours": 10, "use": 0.5, "idle": 0.1, "mem": 40, **values}
    return "ty1:gpus=%d," % gpus + ",".join("%s=%s" % item for item in found.items())


def job(**values):
    return {
        "account": "vision",
        "user": "anna",
        "state": "completed",
        "gpus": 2,
        "submit_time": "2026-11-10T00:00:00Z",
        "start_time": "2026-11-10T01:00:00Z",
        "end_time": "2026-11-10T06:00:00Z",
        "admin_comment": "",
        **values,
    }


def test_the_summary_of_a_job():
    found = usage.measured([gpu(), gpu(use=0.1, busy=0.0)])
    text = usage.summary_text(4, found)
    assert text == "ty1:gpus=4,seen=2,used=1,hours=2,use=0.3,idle=0.6,mem=40,kwh=0.2"
    # sacctmgr changes both.
    assert text == text.lower() and '"' not in text
    values = usage.parse_summary(text)
    assert (
        usage.words(values)
        == "30 % on average, 1 of 4 GPUs used, idle 60 % of the time, 40 GiB of memory at most, 0.2 kWh, 2 of 4 GPUs measured"
    )


def test_what_was_not_measured_is_not_idle():
    mig = {"energy_joules_total": 7200000.0, "measured_seconds_total": 0.0, "memory_max_bytes": 5}
    for rows, end in (([], ""), ([mig], ",kwh=2")):
        text = usage.summary_text(8, usage.measured(rows))
        assert text == "ty1:gpus=8,seen=0" + end
        values = usage.parse_summary(text)
        assert (usage.words(values), usage.notes(values)) == ("not measured", [])


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "of an operator",
        "ty1:",
        "ty1:gpus=8",
        "ty1:gpus=8,seen=8",
        "ty1:gpus=-8,seen=0",
        "ty1:gpus=8,seen=0,kwh=1e9",
        "ty1:gpus=8,seen=0\nx",
        "ty1:gpus=nan,seen=0",
        "TY1:gpus=8,seen=0",
        "ty2:gpus=8,seen=0",
    ],
)
def test_other_texts_of_administrators(text):
    assert usage.parse_summary(text) is None


@pytest.mark.parametrize(
    "values, said",
    [
        ({}, []),
        ({"used": 3}, ["5 of its 8 GPUs were never used; request fewer"]),
        ({"used": 7}, ["1 of its 8 GPUs was never used; request fewer"]),
        ({"stopped": 1}, ["it was stopped, because none of its GPUs had been used for 1 minute;"]),
        ({"used": 0, "use": 0}, ["its GPUs were never used; check that the program finds them"]),
        ({"use": 0.14}, ["its GPUs were used 14 % on average; look for what they wait for"]),
        ({"use": 0.15}, []),
        (
            {"stopped": 60},
            ["it was stopped, because none of its GPUs had been used for 60 minutes"],
        ),
    ],
)
def test_notes(values, said):
    found = usage.notes(usage.parse_summary(comment(8, **values)))
    assert len(found) == len(said)
    assert all(text.startswith(begin) for text, begin in zip(found, said))


def test_months():
    assert usage.month_of("", datetime.date(2026, 12, 31)) == ("2026-12", 1796083200, 1798761600)
    assert usage.span_of(*NOVEMBER) == ("2026-11-01T00:00:00", "2026-12-01T00:00:00")
    for text in ("2026-13", "26-11", "2026-11-01", "now"):
        with pytest.raises(ValueError, match="is not a month; write it as in 2026-11"):
            usage.month_of(text, datetime.date(2026, 1, 1))


def test_rows():
    jobs = [
        job(admin_comment=comment()),
        job(state="failed", submit_time="2026-11-10T00:50:00Z"),
        # Half of it is in November, and it did not wait there.
        job(
            start_time="2026-10-31T12:00:00Z",
            end_time="2026-11-01T12:00:00Z",
            admin_comment=comment(hours=48, use=0.9, idle=0, kwh=10),
        ),
        job(user="ben", end_time=None, state="running", start_time="2026-11-30T20:00:00Z"),
        job(user="ben", start_time=None, end_time=None, state="pending"),
        job(account="nlp", start_time="2026-12-01T00:00:00Z", end_time="2026-12-02T00:00:00Z"),
    ]
    anna, ben = usage.usage_rows(jobs, *NOVEMBER)
    assert anna == {
        "account": "vision",
        "user": "anna",
        "jobs": 3,
        "failed": 1,
        # 10, 10, and 12 hours with two GPUs.
        "gpu_hours": 44.0,
        "gpu_hours_measured": 34.0,
        "gpu_hours_idle": 1.0,
        "mean_use": round((10 * 0.5 + 24 * 0.9) / 34, 3),
        "energy_kwh": 5.0,
        "wait_median_minutes": 60,
        "wait_90_minutes": 60,
    }
    assert (ben["user"], ben["jobs"], ben["gpu_hours"], ben["mean_use"]) == ("ben", 1, 8.0, None)
    [whole] = usage.usage_rows(jobs, *NOVEMBER, by_person=False)
    assert (whole["account"], whole["user"], whole["jobs"], whole["gpu_hours"]) == (
        "vision",
        "",
        4,
        52.0,
    )


def test_small_jobs_are_not_0():
    """90 GPU seconds, of which somewhat more than half were idle."""
    small = job(
        start_time="2026-11-10T01:00:00Z",
        end_time="2026-11-10T01:00:45Z",
        admin_comment=usage.summary_text(2, usage.measured([gpu(45.0), gpu(45.0, busy=0.1)])),
    )
    assert "hours=0.025," in small["admin_comment"]
    rows = usage.usage_rows([small], *NOVEMBER)
    [row] = csv.DictReader(io.StringIO(usage.as_csv(rows)))
    found = [row[key] for key in ("gpu_hours", "gpu_hours_measured", "gpu_hours_idle")]
    assert found == ["0.025", "0.025", "0.0138"]
    assert row["energy_kwh"] == "0.2"
    [_heads, line] = usage.as_lines(rows)
    assert line.split()[4:7] == ["0.025", "0.025", "0.0138"]


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0.0"),
        (1, "0.0003"),
        (90, "0.025"),
        (3599, "1.0"),
        (3600, "1.0"),
        (5000, "1.4"),
        (9123.4 * 3600, "9123.4"),
    ],
)
def test_hours_as_people_read_them(seconds, text):
    assert usage.amount(round(seconds / 3600, 4)) == text


def test_csv_is_no_formula():
    rows = usage.usage_rows([job(user="=1+1", account="+a")], *NOVEMBER)
    [cells] = csv.DictReader(io.StringIO(usage.as_csv(rows)))
    assert (cells["user"], cells["account"], cells["mean_use"]) == ("'=1+1", "'+a", "")
    assert cells["gpu_hours"] == "10.0"


def test_names_reach_neither_browser_nor_terminal():
    rows = usage.usage_rows([job(user="<b>\x1b[31m")], *NOVEMBER)
    page = usage.as_html("2026-11", rows, rows)
    assert "<b>" not in page and "&lt;b&gt;" in page and "GPU usage 2026-11" in page
    [heads, line] = usage.as_lines(rows)
    assert heads.startswith("ACCOUNT  PERSON") and "\x1b" not in line and "<b>?[31m" in line


def test_ten_thousand_jobs_in_less_than_two_seconds():
    jobs = [job(user="p%d" % (number % 50), admin_comment=comment()) for number in range(10000)]
    begin = time.process_time()
    assert len(usage.usage_rows(jobs, *NOVEMBER)) == 50
    assert time.process_time() - begin < 2
