"""The collection is found as ansible-core finds it: its finder comes first, whatever test imports the collection's code first."""

from __future__ import annotations

import pytest
from ansible.plugins.loader import init_plugin_loader
from ansible.utils.collection_loader import AnsibleCollectionConfig
from compiled_templates import remember

if AnsibleCollectionConfig.collection_finder is None:
    init_plugin_loader()


@pytest.fixture(scope="session", autouse=True)
def _compiled_templates():
    with pytest.MonkeyPatch.context() as patch:
        remember(patch)
        yield
