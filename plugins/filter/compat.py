# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _vendor_source
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import QuoteError, quoted

NAMES = ("libnccl2", "libnccl-dev")
# Above 1000, so that it overrides an installed newer version and the vendor's pin of 600.
PREFERENCES = """\
Explanation: Managed by trainyard.gpu. libnccl-dev needs the libnccl2 of its very version, and a newer build may need a newer CUDA than the driver runs.
Package: %s
Pin: version %s
Pin-Priority: 1001
"""


def gpu_fit(stack, directory, image_cuda="", asked=None, facts_file=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import ParseError
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    try:
        return _compat.gpu_fit(stack, _compat.load_facts(facts_file), directory, image_cuda, asked)
    except ParseError as error:
        raise AnsibleFilterError("gpu_fit: %s" % error) from error


def image_fit(
    base, known=None, source_fixes=(), horovod="", facts_file="", requires=None, packages=()
):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    return _compat.image_fit(
        base,
        _compat.load_facts(facts_file),
        known or {},
        _compat.ImageRequest(
            _compat.own_source_fixes() + list(source_fixes), horovod, requires, packages
        ),
    )


def rank_table_fit(reading, asked="auto", mindspore="", packages=(), facts_file=""):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    return _compat.rank_table_fit(
        reading, asked, _compat.load_facts(facts_file), mindspore, packages
    )


def toolkit_version(asked, packages, facts_file=""):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    return _compat.toolkit_version(str(asked), packages, _compat.load_facts(facts_file))


def vendor_source(kind, *arguments, **options):
    if kind not in _vendor_source.KINDS:
        raise AnsibleFilterError(
            "vendor_source: '%s' is not a repository; use cuda, cuda_ubuntu or container_toolkit"
            % kind
        )
    return _vendor_source.vendor_source(kind, *arguments, **options)


def nccl_pair(version, cuda="", directory="", architecture="x86_64", facts_file=""):
    if not version:
        return {"version": "", "known": False, "nearest": [], "packages": [], "preferences": ""}
    found = _vendor_source.facts(facts_file).nccl_pair(
        version, cuda, directory, _vendor_source.CUDA_ARCHITECTURES.get(architecture, architecture)
    )
    try:
        exact = quoted(
            found["version"] or str(NcclBuild(version, 1, ".".join(cuda.split(".")[:2]))), "field"
        )
    except QuoteError as error:
        raise AnsibleFilterError("nccl_pair: %s" % error) from error
    return dict(
        found,
        version=exact,
        packages=["%s=%s" % (name, exact) for name in NAMES],
        preferences=PREFERENCES % (" ".join(NAMES), exact),
    )


class FilterModule:
    """Filters that look up the compatibility data, for all roles."""

    def filters(self):
        return {
            "gpu_fit": gpu_fit,
            "image_fit": image_fit,
            "nccl_pair": nccl_pair,
            "rank_table_fit": rank_table_fit,
            "toolkit_version": toolkit_version,
            "vendor_source": vendor_source,
        }
