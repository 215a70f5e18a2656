"""The collection is found as ansible-core finds it, as in tests/unit."""

from __future__ import annotations

from ansible.plugins.loader import init_plugin_loader
from ansible.utils.collection_loader import AnsibleCollectionConfig

if AnsibleCollectionConfig.collection_finder is None:
    init_plugin_loader()
