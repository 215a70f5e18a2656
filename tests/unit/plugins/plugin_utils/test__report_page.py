"""The page, as text and in Chromium: at 1280 and 400 pixels, light and dark."""

from __future__ import annotations

import functools
import html
import re

import browser as chromium
import example_reports
import pytest
from example_reports import PUBLISHED

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _report, _report_page

browser = chromium.browser
SUSPECT_FILE = "/home/ops/lab/.trainyard/reports/suspect.yml"


def make(kind, earlier=2, **changes):
    before = []
    for number in range(earlier):
        usual = example_reports.lab(number) if kind == "lab" else example_reports.eight_gpus(number, len(example_reports.KINDS[kind]()["hosts"]))
        before.insert(0, _report.make(generated="2026-11-%02dT18:45:02Z" % (number + 1), published=PUBLISHED, **usual))
    told = dict(example_reports.KINDS[kind](7), **changes)
    return _report.make(generated="2026-11-23T18:45:02Z", published=PUBLISHED, before=before[0] if before else None, **told), before


def page_of(kind, earlier=2, **changes):
    report, before = make(kind, earlier, **changes)
    return _report_page.render(report, PUBLISHED, SUSPECT_FILE, before)


def comparison():
    report, before = make("slow_link")
    return _report_page.render_comparison(before[0], report, PUBLISHED, report["changes"])


# Each is made once.
PAGES = {kind: functools.lru_cache(maxsize=None)(functools.partial(page_of, kind)) for kind in example_reports.KINDS}
PAGES["comparison"] = functools.lru_cache(maxsize=None)(comparison)


# --- in a browser -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind", ["broken_host", "slow_link", "comparison"])
def test_what_people_see(browser, kind, width, dark):
    seen = browser(PAGES[kind](), width, dark=dark)
    told = seen.measured
    assert seen.console == []
    assert told.width == width and told.scrollWidth <= width and told.sticksOut == []
    assert told.faint == [] and told.small == []
    assert told.resources == [] and told.unnamed == [] and told.headless == []
    assert told.headings[0].startswith("physics")
    # The verdict is there without scrolling.
    assert told.verdict["text"] == ("warning" if kind == "comparison" else "fail") and told.verdict["bottom"] < 600
    # And so the picture says.
    assert seen.pixels.size == (width, 900)
    assert seen.pixels.getpixel((2, 2)) == tuple(told.background[:3]) and (sum(told.background[:3]) < 150) == dark
    red = sum(1 for colour in seen.pixels.get_flattened_data() if colour[0] > 150 and colour[1] < 130 and colour[2] < 130)
    assert red > 200


@pytest.mark.parametrize("kind, verdict", [("lab", "pass"), ("eight_gpus", "warning"), ("many", "warning")])
def test_pages_of_the_other_verdicts(browser, kind, verdict):
    for width in (1280, 400):
        seen = browser(PAGES[kind](), width)
        assert seen.console == [] and seen.measured.verdict["text"] == verdict
        assert seen.measured.scrollWidth <= width and seen.measured.sticksOut == [] and seen.measured.faint == []
        assert len(seen.measured.curves) == 2 and min(seen.measured.curves) > 10


def test_what_hosts_say_is_text(browser):
    hostile = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\"> \" ' </pre></td>{{ 7 * 7 }}"
    told = example_reports.slow_link()
    told["checks"].append(example_reports.a_finding("free-space", "gpu-01", "fail", found=hostile, expected=hostile, fix=hostile, source=hostile))
    told["logs"] = [{"host": hostile, "name": hostile, "tail": "error: " + hostile}]
    told["versions"]["gpu-01"]["kernel"] = hostile
    told["blame"][0]["evidence"] = hostile
    told["bandwidth"]["runs"][0]["reasons"] = [hostile]
    told["bandwidth"]["runs"][1]["hosts"] = [hostile]
    told["bandwidth"]["runs"][1]["passed"] = False
    page = page_of("slow_link", **told)
    assert "<script" not in page and "<img" not in page and "{{ 7 * 7 }}" in page
    # Also where the page's own protection is taken away, as for measuring.
    seen = browser(page, 1280)
    assert seen.console == [] and seen.measured.title == "physics: fail" and seen.measured.sticksOut == []


def test_the_page_itself_lets_no_script_run(browser):
    seen = browser(page_of("lab").replace("</body>", "<script>document.title = 'owned'</script></body>"), 1280, measured=False)
    assert "<title>lab: pass</title>" in seen.dom and "Content Security Policy" in "".join(seen.console)


# --- as text --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_from_elsewhere(kind):
    page = PAGES[kind]()
    assert not re.search(r"<(?:script|img|iframe|link(?! rel=\"icon\" href=\"data:)|object|embed|form)\b|@import|url\((?!#)", page)
    links = re.findall(r"(?:href|src)=\"([^\"#]*)", page)
    assert all(link in ("", "data:,") or link.startswith("https://github.com/trainyard/gpu/blob/main/docs/errors.md") for link in links)


def text_of(page):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<(style|svg).*?</\1>", " ", page, flags=re.DOTALL))).split())


def test_the_verdict_and_what_to_do_come_first():
    text = text_of(page_of("slow_link"))
    order = ["1 check failed: Bandwidth across hosts. At fault: the link between gpu-02 and gpu-04.", "What to do", "The link between gpu-02 and gpu-04",
             "Look at cable, port and switch", "Hosts and checks", "Bandwidth", "What changed since 2026-11-02", "Versions", "Hosts"]
    place = 0
    for words in order:
        place = text.index(words, place) + len(words)


def test_what_a_broken_cluster_gets_told():
    text = text_of(page_of("broken_host"))
    assert "-i %s --limit 'cluster:!suspect'" % SUSPECT_FILE in text
    assert "required, not made 18 checks on gpu-03 Repair the host" in text
    assert "What the errors mean" in text and "xid_off_the_bus" in text
    assert "Unknown message, quoted from the log." in text and "ValueError: loss is nan, training failed in step 12" in text
    assert "geheim" not in text and "0123456789abcdef" not in text
    assert "550.54.15 gpu-02" in text and "gpu-03 did not answer" in text


def test_many_hosts_share_a_column_where_they_are_alike():
    table = _report_page.matrix(make("many", 0)[0], PUBLISHED)
    assert [column["text"] for column in table["columns"]] == ["node-64", "63 hosts"]
    text = text_of(page_of("many", 0))
    assert "the slowest 12 of 2016" in text and "The slowest 12 of 64 hosts alone" in text


def test_checks_that_apply_to_no_host_are_named_in_one_line():
    table = _report_page.matrix(make("lab", 0)[0], PUBLISHED)
    assert "GPUs present" in table["others"] and "One image" not in table["others"]
    assert [row["reason"]["found"] for row in table["rows"] if row["reason"]] == ["no RDMA device needs it here"]


def test_curves_of_this_run_and_the_last_ones():
    charts = {chart["title"]: str(chart["svg"]) for chart in _report_page.charts(*make("lab"))}
    assert list(charts) == ["Across hosts", "On each host alone"]
    assert "2 previous runs" in charts["Across hosts"] and "this run" in charts["Across hosts"] and "required" in charts["Across hosts"]
    assert "lab-a" in charts["On each host alone"] and "lab-b" in charts["On each host alone"]
    for drawing in charts.values():
        # Its colours are the page's, so that they are right in both themes.
        assert not re.search(r"(?:fill|stroke): ?#", drawing) and "var(--ink)" in drawing
    identifiers = re.findall(r"\bid=\"([^\"]*)\"", "".join(charts.values()))
    assert len(identifiers) == len(set(identifiers))


def test_names_that_would_be_formulas():
    told = example_reports.lab()
    told["bandwidth"]["runs"][1]["hosts"] = ["a$x^2$"]
    assert any("a$x^2$" in chart["svg"] for chart in _report_page.charts(make("lab", 0, **told)[0], []))


def test_without_matplotlib_the_numbers_are_there_and_it_is_said(monkeypatch):
    monkeypatch.setattr(_report_page, "has_matplotlib", lambda: False)
    page = page_of("lab")
    text = text_of(page)
    assert "<svg" not in page and "The curves are missing: they need matplotlib on the controller" in text
    assert "across hosts pass 2 " in text


def test_without_bandwidth_there_are_no_curves_to_miss(monkeypatch):
    monkeypatch.setattr(_report_page, "has_matplotlib", lambda: False)
    assert "matplotlib" not in page_of("lab", bandwidth={})


def test_runs_that_died_before_the_first_row():
    told = example_reports.lab()
    told["bandwidth"]["runs"] = [dict(told["bandwidth"]["runs"][0], rows=[], avg_busbw_gb_s=None, max_busbw_gb_s=None, passed=False, reasons=["no rows"])]
    assert "no rows" in text_of(page_of("lab", 0, **told))


@pytest.mark.parametrize("count, text", [(0, "0 B"), (8, "8 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2 ** 30, "1 GiB"), (2 ** 34, "16 GiB")])
def test_sizes_are_shown_with_units(count, text):
    assert _report_page.size(count) == text
