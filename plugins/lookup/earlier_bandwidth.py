# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: earlier_bandwidth
short_description: Read the bandwidths of earlier verify runs
version_added: "0.2.0"
description:
  - Reads the evidence packs that earlier runs have left, newest first, and returns the median of the bus bandwidth by kind of collective and by run.
  - Only runs count that passed, of the same cluster, with the same hosts in the same order, the same collective and the same message sizes.
  - A folder that isn't there has no history.
options:
  _terms:
    description: The folder of the packs, which holds a folder for each run of verify with its C(report.json).
    required: true
  hosts:
    description: Names of the hosts, in the order in which they take part.
    type: list
    elements: str
    required: true
  cluster:
    description: Name of the cluster, as the reports have it. Empty takes those of any cluster whose hosts have these names.
    type: str
    default: ""
  sizes:
    description: The largest message in bytes, by kind of collective.
    type: dict
    required: true
  packs:
    description: How many of the newest packs count. V(0) compares with none.
    type: int
    default: 5
  pack:
    description:
      - Path of one C(report.json) to compare with in place of the newest ones, for example the one of the day on which the cluster was handed over.
      - One that can't be read, is no report, or is of another cluster or other hosts is an error.
    type: str
    default: ""
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
history: >-
  {{ lookup('trainyard.gpu.earlier_bandwidth', 'inventories/lab/reports', cluster='lab', hosts=['lab-a', 'lab-b'], sizes={'gloo': 16777216}) }}
"""

RETURN = r"""
_list:
  description: One dictionary, by kind of collective (C(gloo), C(nccl)), of dictionaries from a run's id (C(cluster), C(host:NAME)) to GB/s.
  type: list
  elements: dict
"""

import json
from pathlib import Path

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth


def _read(path):
    """The cluster and the bandwidth of a pack; ValueError says why there is none."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError("it cannot be read: %s" % error.strerror) from error
    except ValueError as error:
        raise ValueError("it is no JSON: %s" % error) from error
    bandwidth = report.get("bandwidth") if isinstance(report, dict) and "schema_version" in report else None
    if not isinstance(bandwidth, dict) or not isinstance(bandwidth.get("runs"), list):
        raise ValueError("it is no report of verify with bandwidth in it")
    return report.get("cluster", ""), bandwidth


def _measured(bandwidth):
    """The hosts that a pack is about. One host alone has no run of all."""
    runs = {run["id"]: run["hosts"] for run in bandwidth["runs"]}
    return runs.get("cluster") or [hosts[0] for run_id, hosts in runs.items() if run_id.startswith("host:")]


def _packs(folder, cluster, count):
    """Newest first: the folders' names are times. What can't be read is no history; a run that was killed leaves such a thing."""
    found = []
    for path in sorted(Path(folder).glob("*/report.json"), key=lambda path: path.parent.name, reverse=True):
        if len(found) >= count:
            break
        try:
            of, bandwidth = _read(path)
        except ValueError:
            continue
        # In a folder that several clusters share, hosts of the same name are other machines.
        if cluster in ("", of):
            found.append(bandwidth)
    return found


def _named(path, cluster, hosts):
    try:
        of, bandwidth = _read(Path(path))
    except ValueError as error:
        raise AnsibleLookupError("verify_bandwidth_history: %s: %s. Name a report.json of this cluster, or leave it empty" % (path, error)) from error
    if cluster not in ("", of):
        raise AnsibleLookupError(
            "verify_bandwidth_history: %s is a report of cluster %s, and this is cluster %s (verify_cluster_name). Name a report.json of cluster %s, "
            "or leave it empty" % (path, of or "without a name", cluster, cluster))
    measured = _measured(bandwidth)
    if measured != hosts:
        raise AnsibleLookupError(
            "verify_bandwidth_history: %s is a report of %s, and this run has %s. Name a report.json of the same hosts, or leave it empty" % (
                path, ", ".join(measured) or "no hosts, as nothing was measured then", ", ".join(hosts)))
    return [bandwidth]


class LookupModule(LookupBase):
    """What the same hosts' all-reduce reached in earlier verify runs."""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        hosts = [str(host) for host in self.get_option("hosts")]
        pack, cluster = self.get_option("pack"), self.get_option("cluster")
        packs = _named(pack, cluster, hosts) if pack else _packs(terms[0], cluster, self.get_option("packs"))
        found = {}
        for collective, largest in self.get_option("sizes").items():
            sizes = _bandwidth.sizes(int(largest))
            runs = {"cluster": hosts, **{"host:%s" % host: [host] for host in hosts}}
            earlier = {run_id: _bandwidth.history(packs, collective, run_id, members, sizes) for run_id, members in runs.items()}
            found[collective] = {run_id: value for run_id, value in earlier.items() if value is not None}
        return [found]
