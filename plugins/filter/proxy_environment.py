# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: proxy_environment
short_description: Return a site's proxies as environment variables
version_added: "0.4.0"
description:
  - Returns C(http_proxy), C(https_proxy) and C(no_proxy) for option C(environment) of a task. Those
    without a value are left out.
positional: https_proxy, no_proxy
options:
  _input:
    description: URL of the proxy for http, as in C(package_sources_http_proxy). Empty means none.
    type: str
    required: true
  https_proxy:
    description: URL of the proxy for https, as in C(package_sources_https_proxy). Empty means none.
    type: str
    default: ""
  no_proxy:
    description: Hosts that are reached without a proxy, as in C(package_sources_no_proxy).
    type: list
    elements: str
    default: []
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Download a file through the site's proxy
  ansible.builtin.get_url:
    url: https://example.org/file
    dest: /var/tmp/file
    mode: "0644"
  environment: "{{ 'http://proxy.example.org:3128' |
    trainyard.gpu.proxy_environment('http://proxy.example.org:3128', ['10.0.0.0/8']) }}"
"""

RETURN = r"""
_value:
  description: The variables.
  type: dict
  sample: {http_proxy: "http://proxy.example.org:3128", no_proxy: 10.0.0.0/8}
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _proxies


def proxy_environment(http_proxy, https_proxy="", no_proxy=()):
    return _proxies.proxy_environment(http_proxy, https_proxy, no_proxy)


class FilterModule:
    """Filters for the proxies of a site."""

    def filters(self):
        return {"proxy_environment": proxy_environment}
