"""The page, as text and in Chromium: at 1280 and 400 pixels, light and dark."""

from __future__ import annotations

import functools
import html
import math
import re
from pathlib import Path

import browser as chromium
import drawn_once as drawn
import example_reports
import pytest
from example_reports import PUBLISHED

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _report, _report_page

browser, drawn_once = chromium.browser, drawn.drawn_once
SUSPECT_FILE = "/home/ops/lab/.trainyard/reports/suspect.yml"


def make(kind, earlier=2, **changes):
    before = []
    for number in range(earlier):
        before.insert(
            0,
            _report.make(
                generated="2026-11-%02dT18:45:02Z" % (number + 1),
                published=PUBLISHED,
                **example_reports.usual(kind, number),
            ),
        )
    told = dict(example_reports.KINDS[kind](7), **changes)
    return _report.make(
        generated="2026-11-23T18:45:02Z",
        published=PUBLISHED,
        before=before[0] if before else None,
        **told,
    ), before


def page_of(kind, earlier=2, **changes):
    report, before = make(kind, earlier, **changes)
    return _report_page.render(report, PUBLISHED, SUSPECT_FILE, before)


def comparison():
    report, before = make("slow_link")
    return _report_page.render_comparison(before[0], report, PUBLISHED, report["changes"])


# Each is made once.
PAGES = {
    kind: functools.lru_cache(maxsize=None)(functools.partial(page_of, kind))
    for kind in example_reports.KINDS
}
PAGES["comparison"] = functools.lru_cache(maxsize=None)(comparison)


# --- in a browser -------------------------------------------------------------------------------------------------------------------

SEEN_IN_BOTH_THEMES = ("broken_host", "slow_link", "comparison")
OF_OTHER_VERDICTS = {"lab": "pass", "eight_gpus": "warning", "many": "fail"}
ON_A_TELEPHONE = ("slow_link", "comparison")


@pytest.fixture(name="seen", scope="module")
def _seen(browser):
    """What a page is like at a width, by its name.

    All pages of a theme are looked at in one browser, when a test needs the first of them.
    """

    @functools.lru_cache(maxsize=None)
    def of_theme(dark):
        asked = [
            (kind, width)
            for kind in SEEN_IN_BOTH_THEMES + (() if dark else tuple(OF_OTHER_VERDICTS))
            for width in (1280, 400)
        ]
        asked += [] if dark else [(kind, 390) for kind in ON_A_TELEPHONE]
        return dict(
            zip(asked, browser.look_at([(PAGES[kind](), width) for kind, width in asked], dark))
        )

    return lambda kind, width, dark=False: of_theme(dark)[kind, width]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind", SEEN_IN_BOTH_THEMES)
def test_what_people_see(seen, kind, width, dark):
    seen = seen(kind, width, dark)
    told = seen.measured
    assert seen.console == []
    assert told.width == width and told.scrollWidth <= width and told.sticksOut == []
    assert told.faint == [] and told.small == []
    assert told.resources == [] and told.unnamed == [] and told.headless == []
    assert told.torn == [] and told.unsaid == []
    assert told.headings[0].startswith("physics")
    # The verdict is there without scrolling.
    assert (
        told.verdict["text"] == ("warning" if kind == "comparison" else "fail")
        and told.verdict["bottom"] < 600
    )
    # And so the picture says.
    assert seen.pixels.size == (width, 900)
    assert (
        seen.pixels.getpixel((2, 2)) == tuple(told.background[:3])
        and (sum(told.background[:3]) < 150) == dark
    )
    red = sum(
        1
        for colour in seen.pixels.get_flattened_data()
        if colour[0] > 150 and colour[1] < 130 and colour[2] < 130
    )
    assert red > 200


@pytest.mark.slow
@pytest.mark.parametrize("kind, verdict", OF_OTHER_VERDICTS.items())
def test_pages_of_the_other_verdicts(seen, kind, verdict):
    for width in (1280, 400):
        told = seen(kind, width).measured
        assert seen(kind, width).console == [] and told.verdict["text"] == verdict
        assert told.scrollWidth <= width and told.sticksOut == [] and told.faint == []
        assert told.torn == [] and told.unsaid == []
        charts, panels = (1, 64) if kind == "many" else (2, 0)
        assert len(told.curves) == charts + panels and min(told.curves[:charts]) > 10
        # The range of all hosts, what is required, and the curve.
        assert set(told.curves[charts:]) <= {3}


@pytest.mark.slow
def test_what_hosts_say_is_text(browser):
    hostile = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\"> \" ' </pre></td>{{ 7 * 7 }}"
    told = example_reports.slow_link()
    told["checks"].append(
        example_reports.a_finding(
            "free-space",
            "gpu-01",
            "fail",
            found=hostile,
            expected=hostile,
            fix=hostile,
            source=hostile,
        )
    )
    told["logs"] = [{"host": hostile, "name": hostile, "tail": "error: " + hostile}]
    told["versions"]["gpu-01"]["kernel"] = hostile
    told["blame"][0]["evidence"] = hostile
    told["bandwidth"]["runs"][0]["reasons"] = [hostile]
    told["bandwidth"]["runs"][1]["hosts"] = [hostile]
    told["bandwidth"]["runs"][1]["passed"] = False
    page = page_of("slow_link", **told)
    assert "<script" not in page and "<img" not in page and "{{ 7 * 7 }}" in page
    # Also where the page's own protection is taken away, as for measuring.
    (seen,) = browser.look_at([(page, 1280)])
    assert (
        seen.console == []
        and seen.measured.title == "physics: fail"
        and seen.measured.sticksOut == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_A_TELEPHONE)
def test_on_a_telephone_tables_say_that_they_scroll_and_host_names_stay_whole(seen, kind):
    told = seen(kind, 390).measured
    assert told.wide != [] and told.unsaid == [] and told.torn == [] and told.scrollWidth <= 390
    # Of tables that fit, none says so.
    assert seen("lab", 1280).measured.wide == []


@pytest.mark.slow
def test_one_chart_alone_is_not_stretched(seen):
    (alone,) = seen("broken_host", 1280).measured.figures
    first, second = seen("slow_link", 1280).measured.figures
    assert alone == first == second


@pytest.mark.slow
def test_the_page_itself_lets_no_script_run(browser):
    seen = browser.look_as_it_is(
        page_of("lab").replace("</body>", "<script>document.title = 'owned'</script></body>"), 1280
    )
    assert "<title>lab: pass</title>" in seen.dom and "Content Security Policy" in "".join(
        seen.console
    )


# --- as text --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_from_elsewhere(kind):
    page = PAGES[kind]()
    assert not re.search(
        r"<(?:script|img|iframe|link(?! rel=\"icon\" href=\"data:)|object|embed|form)\b|@import|url\((?!#)",
        page,
    )
    links = re.findall(r"(?:href|src)=\"([^\"#]*)", page)
    assert all(
        link in ("", "data:,")
        or link.startswith("https://github.com/trainyard/gpu/blob/main/docs/errors.md")
        for link in links
    )


def text_of(page):
    page = re.sub(r'<span class="name">(.*?)</span>', r"\1", page)
    return " ".join(
        html.unescape(
            re.sub(r"<[^>]*>", " ", re.sub(r"<(style|svg).*?</\1>", " ", page, flags=re.DOTALL))
        ).split()
    )


def test_the_verdict_and_what_to_do_come_first():
    text = text_of(page_of("slow_link"))
    order = [
        "1 check failed: Bandwidth across hosts. At fault: the link between gpu-02 and gpu-03.",
        "What to do",
        "The link between gpu-02 and gpu-03",
        "check the path between gpu-02 and gpu-03",
        "Hosts and checks",
        "Bandwidth",
        "What changed since 2026-11-02",
        "Versions",
        "Hosts",
    ]
    place = 0
    for words in order:
        place = text.index(words, place) + len(words)


def test_what_a_broken_cluster_gets_told():
    text = text_of(page_of("broken_host"))
    assert "-i %s --limit 'cluster:!suspect'" % SUSPECT_FILE in text
    assert "required, not made 26 checks on gpu-03 Repair the host" in text
    assert "What the errors mean" in text and "xid_off_the_bus" in text
    assert (
        "Unknown message, quoted from the log." in text
        and "ValueError: loss is nan, training failed in step 12" in text
    )
    assert "geheim" not in text and "0123456789abcdef" not in text
    assert "550.54.15 gpu-02" in text and "gpu-03 did not answer" in text


def test_many_hosts_share_a_column_where_they_are_alike():
    table = _report_page.matrix(make("many", 0)[0], PUBLISHED)
    assert [column["text"] for column in table["columns"]] == ["node-64", "63 hosts"]
    text = text_of(page_of("many", 0))
    assert "the slowest 12 of 2018" in text and "The slowest 12 of 64 hosts alone" in text


def test_the_heat_map_of_a_burn_in():
    """The slowest host comes first, and each cell says the share of the median and the value."""
    devices = [
        {
            "kind": "gpu",
            "serial": "%d<b>" % number,
            "host": "lab-b" if number else "lab-a",
            "index": number,
            "model": "NVIDIA H100 80GB HBM3",
            "software": "torch 2.4.0",
            "verdict": "fail" if number else "pass",
            "wrong": 2 * number,
            "rates": {"matmul_bfloat16": 700.0 - 49 * number},
            "relative": {"matmul_bfloat16": 1 - 0.07 * number},
            "state": {},
        }
        for number in range(2)
    ]
    page = page_of("lab", burn_in=devices)
    assert page.index("1&lt;b&gt;") < page.index("0&lt;b&gt;")
    assert '<td class="number h7" title="651 TFLOP/s">93 %</td>' in page
    assert '<td class="number h0" title="700 TFLOP/s">100 %</td>' in page
    assert "fail, 2 wrong" in page
    assert 'id="burn-in"' not in page_of("lab")


def test_checks_that_apply_to_no_host_are_named_in_one_line():
    table = _report_page.matrix(make("lab", 0)[0], PUBLISHED)
    assert "GPUs present" in table["others"] and "One image" not in table["others"]
    assert [row["reason"]["found"] for row in table["rows"] if row["reason"]] == [
        "no RDMA device needs it here"
    ]


def test_curves_of_this_run_and_the_last_ones():
    charts = {chart["title"]: str(chart["svg"]) for chart in _report_page.charts(*make("lab"))}
    assert list(charts) == ["Across hosts", "On each host alone"]
    assert (
        "previous runs" in charts["Across hosts"]
        and "this run" in charts["Across hosts"]
        and "required" in charts["Across hosts"]
    )
    assert "lab-a" in charts["On each host alone"] and "lab-b" in charts["On each host alone"]
    for drawing in charts.values():
        # Its colours are the page's, so that they are right in both themes.
        assert not re.search(r"(?:fill|stroke): ?#", drawing) and "var(--ink)" in drawing
    identifiers = re.findall(r"\bid=\"([^\"]*)\"", "".join(charts.values()))
    assert len(identifiers) == len(set(identifiers))


def test_names_that_would_be_formulas():
    told = example_reports.lab()
    told["bandwidth"]["runs"][1]["hosts"] = ["a$x^2$"]
    assert any(
        "a$x^2$" in chart["svg"] for chart in _report_page.charts(make("lab", 0, **told)[0], [])
    )


def test_without_matplotlib_the_numbers_are_there_and_it_is_said(monkeypatch):
    monkeypatch.setattr(_report_page, "has_matplotlib", lambda: False)
    page = page_of("lab")
    text = text_of(page)
    assert (
        "<svg" not in page
        and "The curves are missing: they need matplotlib on the controller" in text
    )
    assert "across hosts pass 4 " in text


def test_without_bandwidth_there_are_no_curves_to_miss(monkeypatch):
    monkeypatch.setattr(_report_page, "has_matplotlib", lambda: False)
    assert "matplotlib" not in page_of("lab", bandwidth={})


def test_runs_that_died_before_the_first_row():
    told = example_reports.lab()
    told["bandwidth"]["runs"] = [
        dict(
            told["bandwidth"]["runs"][0],
            rows=[],
            avg_busbw_gb_s=None,
            max_busbw_gb_s=None,
            passed=False,
            reasons=["no rows"],
        )
    ]
    assert "no rows" in text_of(page_of("lab", 0, **told))


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (8, "8 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**30, "1 GiB"),
        (2**34, "16 GiB"),
    ],
)
def test_sizes_are_shown_with_units(count, text):
    assert _report_page.size(count) == text


# --- changes, grouped -----------------------------------------------------------------------------------------------------------------


def rows_of(changes, count=64):
    hosts = [example_reports.a_host("node-%02d" % (number + 1), number) for number in range(count)]
    return _report_page.grouped_changes(changes, {"free-space": "Free space"}, hosts)


def upgraded(*names, what="driver", before="550.90.07", now="560.35.03"):
    return [{"what": what, "host": name, "before": before, "now": now} for name in names]


NODES = ["node-%02d" % (number + 1) for number in range(64)]


def test_hosts_that_were_upgraded_together_are_one_row_for_each_fact():
    facts = [
        ("driver", "550", "560"),
        ("cuda", "12.4", "12.6"),
        ("nccl", "2.21.5", "2.23.4"),
        ("toolkit", "1.16", "1.17"),
        ("kernel", "6.8", "6.11"),
    ]
    rows = rows_of(
        [
            change
            for name in NODES
            for what, before, now in facts
            for change in upgraded(name, what=what, before=before, now=now)
        ]
    )
    assert [(row["what"], row["hosts"]["text"], row["before"], row["now"]) for row in rows] == [
        (what, "all 64 hosts", before, now) for what, before, now in facts
    ]


@pytest.mark.parametrize(
    "names, text, folded",
    [
        (NODES, "all 64 hosts", 0),
        (NODES[:2], "node-01, node-02", 0),
        (NODES[:8], ", ".join(NODES[:8]), 0),
        (NODES[:62], "all hosts except node-63, node-64", 0),
        (NODES[:40], "40 hosts", 40),
        (NODES[:9], "9 hosts", 9),
    ],
)
def test_how_a_row_names_its_hosts(names, text, folded):
    (row,) = rows_of(upgraded(*names))
    assert row["hosts"]["text"] == text and row["hosts"]["names"] == ", ".join(names[:folded])


def test_facts_that_changed_alike_on_the_same_hosts_are_one_row():
    (row,) = rows_of(
        [
            change
            for name in NODES[:2]
            for what in ("free-space", "ssh-mesh")
            for change in upgraded(name, what=what, before="pass", now="skipped")
        ]
    )
    assert (row["what"], row["hosts"]["text"]) == ("Free space, ssh-mesh", "node-01, node-02")


def test_what_changed_in_many_ways_is_one_row_with_its_range():
    peaks = [
        change
        for number, name in enumerate(NODES)
        for change in upgraded(
            name,
            what="peak bandwidth, host " + name,
            before="%d GB/s" % (300 + number),
            now="%d GB/s (%+d %%)" % (200 + number, number % 9 - 30),
        )
    ]
    addresses = [
        change
        for number, name in enumerate(NODES[:9])
        for change in upgraded(
            name, what="address", before="10.0.0.%d" % number, now="10.1.0.%d" % number
        )
    ]
    bandwidth, address = rows_of(peaks + addresses)
    assert (bandwidth["what"], bandwidth["hosts"]["text"]) == (
        "peak bandwidth, host alone",
        "all 64 hosts",
    )
    assert (bandwidth["before"], bandwidth["now"]) == (
        "300 to 363 GB/s",
        "200 to 263 GB/s (-30 to -22 %)",
    )
    assert (address["before"], address["now"], address["each"][8]) == (
        "9 values",
        "9 values",
        ("node-09", "10.0.0.8", "10.1.0.8"),
    )


def test_changes_of_few_hosts_stay_apart_where_they_differ():
    rows = rows_of(
        upgraded("node-01", now="560.1")
        + upgraded("node-02", now="560.2")
        + [{"what": "verdict", "host": "", "before": "pass", "now": "fail"}]
    )
    assert [(row["hosts"]["text"], row["now"], row["each"]) for row in rows] == [
        ("node-01", "560.1", []),
        ("node-02", "560.2", []),
        ("", "fail", []),
    ]


@pytest.mark.parametrize("page", ["report", "comparison"])
def test_both_pages_group_changes(page):
    before = _report.make(
        generated="2026-11-02T18:45:02Z",
        published=PUBLISHED,
        **example_reports.eight_gpus(0, 64, "node"),
    )
    told = example_reports.eight_gpus(0, 64, "node")
    for components in told["versions"].values():
        components.update(driver="560.35.03", cuda="12.6")
    report = _report.make(
        generated="2026-11-23T18:45:02Z", published=PUBLISHED, before=before, **told
    )
    assert len(report["changes"]) == 128
    made = (
        _report_page.render(report, PUBLISHED, SUSPECT_FILE)
        if page == "report"
        else _report_page.render_comparison(before, report, PUBLISHED, report["changes"])
    )
    table = re.search(r'aria-label="Changes".*?</table>', made, re.DOTALL).group(0)
    assert table.count("<tr>") == 3
    assert "driver all 64 hosts 550.90.07 560.35.03 cuda all 64 hosts 12.4 12.6" in text_of(table)


# --- curves ---------------------------------------------------------------------------------------------------------------------------


def alone_on(count, slow=()):
    told = example_reports.eight_gpus(0, count, "node")
    for run in told["bandwidth"]["runs"][1:]:
        run["passed"] = run["hosts"][0] not in slow
    return _report_page.charts(make("eight_gpus", 0, **told)[0], [])[-1]


def test_up_to_eight_hosts_have_a_colour_and_a_label_each():
    drawing = str(alone_on(8, slow=["node-03"])["svg"])
    for number in range(1, 9):
        # The curve, its markers, the line to the label, and the label.
        assert drawing.count("var(--host-%d)" % number) >= 4
        assert re.search(
            r"fill: var\(--host-%d\)[^>]*>%snode-0%d<"
            % (number, "✕ " if number == 3 else "", number),
            drawing,
        )
    assert "legend" not in drawing


def test_more_than_eight_hosts_have_a_chart_each_with_the_same_axes():
    chart = alone_on(9, slow=["node-05"])
    assert (
        chart["svg"] == "" and len(chart["panels"]) == 9 and chart["panels"][0]["name"] == "node-05"
    )
    assert sorted(panel["name"] for panel in chart["panels"]) == [
        "node-%02d" % number for number in range(1, 10)
    ]
    assert "range of all 9 hosts" in chart["note"] and "from 0 to 334 GB/s" in chart["note"]
    for panel in chart["panels"]:
        drawing = str(panel["svg"])
        assert drawing.count("stroke-dasharray") == 1 and ("var(--fail)" in drawing) == (
            panel["name"] == "node-05"
        )
    # What is required is at the same height in all of them.
    assert (
        len(
            {re.search(r'd="M3 ([\d.]+)H', str(panel["svg"])).group(1) for panel in chart["panels"]}
        )
        == 1
    )


def test_names_in_small_charts_are_text():
    told = example_reports.eight_gpus(0, 9, "node")
    told["bandwidth"]["runs"][1]["hosts"] = ['"><script>']
    page = page_of("eight_gpus", 0, **told)
    assert "<script" not in page and "&gt;&lt;script&gt;" in page


def test_labels_do_not_overlap():
    heights = _report_page._apart([0.5, 0.5, 0.5, 0.51, 0.02, 0.0])
    order = sorted(heights)
    assert all(
        above - below >= _report_page.LINE_HEIGHT - 1e-9 for below, above in zip(order, order[1:])
    )
    assert (
        min(heights) >= 0
        and max(_report_page._apart([1.0] * 9)) <= 1
        and min(_report_page._apart([1.0] * 9)) >= 0
    )


def test_long_names_keep_their_end_beside_a_curve():
    assert _report_page._short("gpu-01") == "gpu-01"
    assert _report_page._short("training-node-rack12-017") == "training…ack12-017"


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_single_point_is_a_chart_around_it(hosts):
    told = example_reports.eight_gpus(0, hosts)
    told["bandwidth"]["runs"] = [
        example_reports.a_run("host:gpu-%02d" % number, ["gpu-%02d" % number], 8, 300.0, sizes=[28])
        for number in range(1, hosts + 1)
    ]
    (chart,) = _report_page.charts(make("eight_gpus", 0, **told)[0], [])
    assert str(chart["svg"]).count(">256 MiB<") == 1 and "gpu-01" in chart["svg"]


def test_the_comparison_shows_what_is_required():
    before, now = (
        _report.make(
            generated="2026-11-%sT18:45:02Z" % day,
            published=PUBLISHED,
            **example_reports.eight_gpus(),
        )
        for day in ("02", "23")
    )
    (chart,) = _report_page.comparison_charts(before, now, [])
    for label in ("before", "after", "required"):
        assert ">%s<" % label in chart["svg"]
    now["bandwidth"]["runs"][0]["expected"] = dict(
        now["bandwidth"]["runs"][0]["expected"], required_gb_s=160.0
    )
    (chart,) = _report_page.comparison_charts(before, now, [])
    assert ">required before<" in chart["svg"] and ">required after<" in chart["svg"]
    assert re.search(
        r"across hosts 183 183 [\d.]+ [\d.]+ 154 160",
        text_of(_report_page.render_comparison(before, now, PUBLISHED, [])),
    )


def test_the_comparison_of_many_hosts_has_small_charts():
    before, now = (
        _report.make(
            generated="2026-11-%sT18:45:02Z" % day,
            published=PUBLISHED,
            **example_reports.eight_gpus(0, 9),
        )
        for day in ("02", "23")
    )
    changes = [
        {
            "what": "peak bandwidth, host gpu-%02d" % number,
            "host": "gpu-%02d" % number,
            "before": "",
            "now": "",
        }
        for number in range(1, 10)
    ]
    across, alone = _report_page.comparison_charts(before, now, changes)
    assert (
        across["svg"]
        and len(alone["panels"]) == 9
        and all(
            "var(--old)" in panel["svg"] and "stroke-dasharray" in panel["svg"]
            for panel in alone["panels"]
        )
    )


# --- names of hosts -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, html",
    [
        (
            "gpu-1 and gpu-10, gpu-1.",
            '<span class="name">gpu-1</span> and <span class="name">gpu-10</span>, <span class="name">gpu-1</span>.',
        ),
        (
            "gpu-100 my-gpu-1 gpu-1.example.org gpu-1-x",
            "gpu-100 my-gpu-1 gpu-1.example.org gpu-1-x",
        ),
        ("<b>gpu-1</b>", '&lt;b&gt;<span class="name">gpu-1</span>&lt;/b&gt;'),
        (
            "a-name-that-is-longer-than-a-line-of-a-telephone",
            "a-name-that-is-longer-than-a-line-of-a-telephone",
        ),
    ],
)
def test_names_of_hosts_in_a_text(text, html):
    names = ["gpu-1", "gpu-10", "a-name-that-is-longer-than-a-line-of-a-telephone"]
    assert (
        str(_report_page.unbroken(text, _report_page._pattern([{"name": name} for name in names])))
        == html
    )


# --- colours --------------------------------------------------------------------------------------------------------------------------

CSS = (Path(_report_page.__file__).parent / "page.css").read_text(encoding="utf-8")
THEMES = dict(
    zip(
        ("light", "dark", "print"),
        [
            dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
            for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
        ],
    )
)
RULES = re.sub(r":root \{.*?\}|/\*.*?\*/", "", CSS, flags=re.DOTALL)
# currentColor and inherit are among these; a chart's labels have the colours of its curves.
TEXTS = set(re.findall(r"(?<![\w-])color: var\(--([\w-]+)\)", RULES)) | {
    re.search(r"--([\w-]+)", colour).group(1) for colour in _report_page._COLOURS.values()
} - {"grid"}
BACKGROUNDS = set(re.findall(r"background(?:-color)?: var\(--([\w-]+)\)", RULES))
# A chart is on the panel, or its small charts are.
IN_CHARTS = {name for name in TEXTS if name.startswith("host-")} | {"old"}


def linear(colour):
    """Red, green and blue as parts of light, from the values of sRGB."""
    values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values
    ]


def luminance(colour):
    return sum(part * value for part, value in zip((0.2126, 0.7152, 0.0722), linear(colour)))


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_wcag():
    assert round(contrast("#000000", "#ffffff"), 2) == 21
    assert (
        round(contrast("#767676", "#ffffff"), 2) == 4.54
        and round(contrast("#777777", "#ffffff"), 2) == 4.48
    )


@pytest.mark.parametrize("theme", THEMES)
def test_every_text_can_be_read_on_every_background(theme):
    assert {"ink", "soft", "pass", "warn", "fail", "now", "old", "host-1", "host-8"} <= TEXTS
    assert {"paper", "panel", "pass-wash", "warn-wash", "fail-wash", "none-wash"} == BACKGROUNDS
    colours = THEMES[theme]
    pairs = [
        (text, behind)
        for text in sorted(TEXTS)
        for behind in sorted(BACKGROUNDS)
        if text not in IN_CHARTS or behind == "panel"
    ]
    faint = {pair: round(contrast(*(colours[name] for name in pair)), 2) for pair in pairs}
    assert {pair: value for pair, value in faint.items() if value < 4.5} == {}


def test_rules_use_only_the_colours_of_the_themes():
    assert len(THEMES) == 3 and {len(colours) for colours in THEMES.values()} == {
        len(THEMES["light"])
    }
    assert (
        re.findall(
            r"#[0-9a-f]{3,8}\b|rgba?\(|hsla?\(|opacity|(?<![\w-])(?:white|black|gray|grey|red)(?![\w-])",
            RULES,
        )
        == []
    )


@pytest.mark.parametrize("theme", THEMES)
def test_the_colours_of_hosts_are_different_ones(theme):
    """By the distance in CIE Lab: 2 can just be seen side by side."""

    def coordinates(colour):
        red, green, blue = linear(colour)
        tristimulus = (
            (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
            0.2126 * red + 0.7152 * green + 0.0722 * blue,
            (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
        )
        x, y, z = [
            value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
            for value in tristimulus
        ]
        return 116 * y - 16, 500 * (x - y), 200 * (y - z)

    hosts = [coordinates(THEMES[theme]["host-%d" % number]) for number in range(1, 9)]
    assert (
        min(math.dist(one, other) for number, one in enumerate(hosts) for other in hosts[:number])
        > 20
    )


# --- the examples ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", example_reports.KINDS)
def test_examples_do_not_contradict_themselves(kind):
    report, before = make(kind)
    runs = {run["id"]: run for run in report["bandwidth"]["runs"]}
    known = {
        "%.3g" % value
        for run in runs.values()
        for value in (run["max_busbw_gb_s"], run["expected"]["required_gb_s"])
        if value
    }
    # Each bandwidth in a text is that of a run, or of what it has to reach.
    texts = [
        text
        for entry in report["checks"]
        if entry["id"].startswith("bandwidth-")
        for text in (entry["found"], entry["expected"])
    ]
    texts += [entry["evidence"] for entry in report["blame"]]
    texts += [reason for run in runs.values() for reason in run["reasons"]] + [
        report["bandwidth"].get("note", "")
    ]
    told = [
        value
        for text in texts
        for value in re.findall(r"([\d.]+) GB/s|required: ([\d.]+)|reaches ([\d.]+)", text)
    ]
    assert {value for found in told for value in found if value} <= known
    for run in runs.values():
        assert run["passed"] == (run["max_busbw_gb_s"] >= run["expected"]["required_gb_s"])
        assert run["max_busbw_gb_s"] == max(row["in_place"]["busbw_gb_s"] for row in run["rows"])
        slots = {host["name"]: host["slots"] for host in report["hosts"]}
        assert run["ranks"] == sum(slots[host] for host in run["hosts"])
    # A check has one verdict for a host, which is that of its run.
    findings = [
        (entry["id"], name) for entry in report["checks"] for name in entry["host"].split(", ")
    ]
    assert len(findings) == len(set(findings))
    for entry in report["checks"]:
        if entry["id"] in ("bandwidth-host", "bandwidth-cluster") and entry["verdict"] in (
            "pass",
            "fail",
        ):
            assert runs[
                "cluster" if entry["id"] == "bandwidth-cluster" else "host:" + entry["host"]
            ]["passed"] == (entry["verdict"] == "pass")
    # Hosts are searched for if the cluster is too slow, and only then.
    assert any(run_id.startswith(("pair:", "group:")) for run_id in runs) == (
        "cluster" in runs and not runs["cluster"]["passed"]
    )
    assert all(
        [host["name"] for host in other["hosts"]] == [host["name"] for host in report["hosts"]]
        for other in before
    )
    # Against its own history it would have been judged the same.
    for run_id, run in runs.items():
        earlier = [
            other for pack in before for other in pack["bandwidth"]["runs"] if other["id"] == run_id
        ]
        assert all(
            0.8 * other["max_busbw_gb_s"] <= run["expected"]["required_gb_s"] for other in earlier
        )


def test_the_example_of_readme_has_one_peak():
    report = make("slow_link")[0]
    text = text_of(_report_page.render(report, PUBLISHED, SUSPECT_FILE))
    assert {run["max_busbw_gb_s"] for run in report["bandwidth"]["runs"] if not run["passed"]} == {
        41.2
    }
    assert {value for value in re.findall(r"\b(?:39|4\d)\.\d\b(?= GB/s)", text)} == {"41.2"}
