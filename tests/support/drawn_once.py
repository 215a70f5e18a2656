"""Charts of a report that are drawn once in a process: matplotlib takes 0.3 s for each, and many
tests write the same report.
"""

from __future__ import annotations

import copy

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _report_page

CHARTS = {}
DRAW = _report_page._chart


def draw(*args, **options):
    key = repr((args, sorted(options.items())))
    if key not in CHARTS:
        CHARTS[key] = DRAW(*args, **options)
    return copy.copy(CHARTS[key])


@pytest.fixture(scope="module", autouse=True)
def drawn_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_report_page, "_chart", draw)
        yield
