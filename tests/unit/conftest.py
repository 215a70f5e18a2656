"""What all unit tests share."""

from __future__ import annotations

import pytest
from compiled_templates import remember


@pytest.fixture(scope="session", autouse=True)
def _compiled_templates():
    with pytest.MonkeyPatch.context() as patch:
        remember(patch)
        yield
