# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages of the portal in Chromium, with the recorded data of portal.py: 64 hosts with 512 GPUs,
and 10,000 jobs.
"""

from __future__ import annotations

import axe
import portal
import pytest
from portal import FILES, PREFIX
from web_driver import ENTER, Failed, _driver

pytestmark = pytest.mark.acceptance
__all__ = ["_driver"]
#: What pages load beside JupyterHub's own style sheet, in bytes, and seconds until the first paint.
MOST_BYTES, MOST_SECONDS = 100000, 0.5
TAB = "\ue004"
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@pytest.fixture(scope="module", name="site")
def _site():
    with portal.server() as url:
        yield url + PREFIX


@pytest.fixture(scope="module", name="browser")
def _browser(driver):
    with driver.open() as browser:
        yield browser


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", portal.PAGES)
def test_axe_finds_nothing_serious(browser, site, path, theme):
    assert portal.hub_file("css/style.min.css"), "without JupyterHub's style sheet colours differ"
    browser.go(site + path)
    browser.run("localStorage.setItem('jupyterhub-bs-theme', arguments[0])", theme)
    browser.go(site + path)
    assert browser.run("return document.documentElement.dataset.bsTheme") == theme
    assert axe.faults(browser) == []


@pytest.mark.parametrize("path", ["jobs", "cluster", "", "operators"])
def test_the_first_paint_is_early_and_pages_are_small(browser, site, path):
    """The paint of Chromium itself, from the begin of the navigation.

    The best of three: other programs of the machine need its cores, too.
    """
    found = []
    for _try in range(3):
        browser.go(site + path)
        found.append(browser.wait("a paint", lambda: browser.run(PAINT)) / 1000)
    sizes = browser.run(
        "return performance.getEntries().filter(each => each.decodedBodySize !== undefined && !each.name.includes('/hub/static/'))"
        ".map(each => [each.name, each.decodedBodySize])"
    )
    print("%s: first paint after %s s, %s" % (path or "home", found, sizes))
    assert min(found) < MOST_SECONDS
    assert len(sizes) == 3 and sum(size for _name, size in sizes) < MOST_BYTES


FOCUSED = "return [...document.querySelectorAll('*')].indexOf(document.activeElement)"


def reached(browser):
    """Press Tab until the focus has been everywhere.

    Return the places of the elements that had it, in this order. The body has it between end and
    begin.

    Day, month and year of a field for a day have it one after the other.
    """
    body = browser.run("return [...document.querySelectorAll('*')].indexOf(document.body)")
    found = []
    for _press in range(400):
        browser.press(TAB)
        at = browser.run(FOCUSED)
        if at in found and at != found[-1]:
            break
        if at not in (body, -1, *found[-1:]):
            found.append(at)
    return found


@pytest.mark.parametrize("path", ["", "jobs", "job/9998", "new", "cluster", "usage", "operators"])
def test_all_of_a_page_is_reached_by_keyboard(browser, site, path):
    """Each link, field and button, and each has a focus that is seen.

    The way past the menu is the first of them.
    """
    browser.go(site + path)
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    expected = browser.run(
        "const all = [...document.querySelectorAll('*')];"
        "return all.filter(each => each.matches('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex=\"0\"]')"
        " && each.getClientRects().length && !each.disabled).map(each => all.indexOf(each))"
    )
    found = reached(browser)
    assert sorted(found) == expected
    first = browser.run(
        "return document.querySelectorAll('*')[arguments[0]].getAttribute('href')", min(found)
    )
    assert first == "#main"
    outline = (
        "document.querySelector('main a, main button, main summary').focus({focusVisible: true});"
        " return getComputedStyle(document.activeElement).outlineWidth"
    )
    assert browser.run(outline) == "3px"


def test_a_job_is_stopped_by_keyboard(browser, site):
    browser.go(site + "job/9998")
    browser.find(".ask summary")
    browser.run("document.querySelector('.ask summary').focus()")
    browser.press(ENTER)
    browser.press(TAB)
    assert browser.run("return document.activeElement.innerText") == "Yes, stop it"


def test_an_open_page_shows_new_lines(browser, site):
    """Without a load.

    Its hub refuses requests of scripts without the token of the page, as JupyterHub does.
    """
    browser.go(site + "job/9998")
    browser.run("window.sameLoad = true")
    text = "return document.querySelector('#text').textContent"
    browser.wait("a new line", lambda: "of the log, " in browser.run(text), 30)
    assert portal.HOSTILE in browser.run(text) and browser.run("return window.sameLoad")


def test_without_scripts_lists_details_and_forms_are_there(driver, site):
    with driver.open() as browser:
        browser.command("Emulation.setScriptExecutionDisabled", value=True)
        for path, words in (
            ("", "place 3 of 41 in the queue; expected start"),
            ("jobs", "10000 jobs"),
            ("job/9998", "Ends at the latest"),
            ("cluster", "62 of 64 hosts in service"),
            ("new", "Check only"),
            ("usage", "Download as CSV"),
            ("operators", "Drain"),
        ):
            browser.go(site + path)
            source = browser.ask("GET", "/source")
            assert 'data-bs-theme="' not in source, "a script has run"
            text = " ".join(browser.ask("GET", "/element/%s/text" % main_of(browser)).split())
            assert words in text, path
        # Stop asks, also without a script.
        browser.go(site + "job/9998")
        ask = browser.ask("POST", "/element", {"using": "css selector", "value": ".ask summary"})
        browser.ask("POST", "/element/%s/click" % next(iter(ask.values())))
        text = browser.ask("GET", "/element/%s/text" % main_of(browser))
        assert "Yes, stop it" in text


def main_of(browser):
    found = browser.ask("POST", "/element", {"using": "css selector", "value": "main"})
    return next(iter(found.values()))


def test_no_page_is_wider_than_a_phone(browser, site):
    with browser.phone():
        for path in portal.PAGES:
            browser.go(site + path)
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide <= 390, (path, wide)


def test_the_policy_keeps_scripts_of_texts_from_running(browser, site):
    """If a text of a person ever became HTML, it would do nothing."""
    browser.go(site)
    with pytest.raises(Failed):
        browser.run(
            "return new Promise((done, fail) => { addEventListener('securitypolicyviolation', () => fail(new Error('refused')));"
            " const each = document.createElement('script'); each.textContent = 'document.title = 1'; document.body.append(each); })"
        )
    assert "script-src 'self'" in portal.Handler.policy and (FILES / "pages.js").exists()
