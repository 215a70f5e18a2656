"""The collection is found as ansible-core finds it: its finder comes first, whatever test imports the collection's code first."""

from __future__ import annotations

from ansible.plugins.loader import init_plugin_loader

init_plugin_loader()
