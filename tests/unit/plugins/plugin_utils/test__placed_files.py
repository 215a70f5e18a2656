"""Whether a host has files as requested, and that role cluster reads those of role
package_sources.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _placed_files

ROLES = Path(__file__).parents[4] / "roles"
ENTRIES = [
    {"path": "/etc/a", "state": "directory", "mode": "0755"},
    {"path": "/etc/a/file", "content": "text\n", "mode": "0644"},
    {"path": "/etc/a/none", "state": "absent", "mode": "0644", "content": "omitted"},
    {"path": "/etc/a/any-mode", "content": ""},
]
TEXT, EMPTY = (hashlib.sha256(text).hexdigest() for text in (b"text\n", b""))
FOUND = {
    "/etc/a": {"state": "directory", "checksum": "", "mode": "0755"},
    "/etc/a/file": {"state": "file", "checksum": TEXT, "mode": "0644"},
    "/etc/a/any-mode": {"state": "file", "checksum": EMPTY, "mode": "0600"},
}


@pytest.mark.parametrize(
    "changed, differ",
    [
        ({}, False),
        ({"/etc/a": None}, True),
        ({"/etc/a": {"state": "directory", "checksum": "", "mode": "0700"}}, True),
        ({"/etc/a": {"state": "other", "checksum": "", "mode": "0755"}}, True),
        ({"/etc/a/file": {"state": "file", "checksum": EMPTY, "mode": "0644"}}, True),
        ({"/etc/a/file": {"state": "file", "checksum": TEXT, "mode": "0666"}}, True),
        ({"/etc/a/file": {"state": "directory", "checksum": "", "mode": "0644"}}, True),
        ({"/etc/a/file": None}, True),
        ({"/etc/a/none": {"state": "other", "checksum": "", "mode": "0777"}}, True),
        ({"/etc/other": {"state": "file", "checksum": TEXT, "mode": "0644"}}, False),
    ],
)
def test_files_that_differ(changed, differ):
    found = {path: entry for path, entry in dict(FOUND, **changed).items() if entry}
    assert _placed_files.files_differ(ENTRIES, found) is differ


def test_role_cluster_reads_what_role_package_sources_compares():
    """A file that is not read would count as absent."""
    text = (ROLES / "package_sources/vars/main.yml").read_text(encoding="utf-8")
    variables = yaml.safe_load(text)
    paths = [
        entry["path"]
        for name in ("__package_sources_directories", "__package_sources_site_files")
        for entry in variables[name]
    ]
    site = variables["__package_sources_site"]
    wanted = {re.sub(r"{{ __package_sources_site }}", site, path) for path in paths}
    [task] = yaml.safe_load((ROLES / "cluster/tasks/gather_host.yml").read_text(encoding="utf-8"))
    assert set(task["trainyard.gpu.host_info"]["files"]) == wanted | {site + "/ca-bundle.crt"}
