# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: earlier_bandwidth
short_description: Read the bandwidths of earlier verify runs
version_added: "0.2.0"
description:
  - Reads the reports of earlier runs, newest first, and returns the median bus bandwidth by
    collective and by run.
  - Only passed runs count, of the same cluster, with the same hosts in the same order, the same
    collective and the same message sizes.
  - Runs of a host whose hardware did not pass its checks do not count, because a broken part would
    lower what is expected later.
  - If the folder does not exist, there is no history.
options:
  _terms:
    description: The folder of the reports. It has a folder for each run of verify with its
      C(report.json).
    required: true
  hosts:
    description: Names of the hosts, in the order in which they take part.
    type: list
    elements: str
    required: true
  cluster:
    description: Name of the cluster in the reports. If empty, reports of any cluster with these
      host names are used.
    type: str
    default: ""
  sizes:
    description: The largest message in bytes, by collective.
    type: dict
    required: true
  packs:
    description: Number of newest reports to use. V(0) uses none.
    type: int
    default: 5
  pack:
    description:
      - Path of one C(report.json) to compare with instead of the newest ones, for example that of
        the cluster's acceptance test.
      - The lookup fails if it cannot be read, is not a report, or is of another cluster or other
        hosts.
    type: str
    default: ""
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
history: >-
  {{ lookup('trainyard.gpu.earlier_bandwidth', 'inventories/lab/reports', cluster='lab',
  hosts=['lab-a', 'lab-b'], sizes={'gloo': 16777216}) }}
"""

RETURN = r"""
_list:
  description: One dictionary by collective (C(gloo), C(nccl)). Its values are dictionaries from a
    run's id (C(cluster), C(host:NAME)) to GB/s.
  type: list
  elements: dict
"""

import json
from pathlib import Path

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth


#: Beginnings of the published ids of checks of GPUs, network cards and ports.
_HARDWARE = ("gpu-", "gpus-", "nic-", "ib-")


def _in_order(report, bandwidth):
    """The bandwidth of a report without runs of hosts whose hardware was broken, or could not be
    checked.
    """
    broken = {
        host
        for check in report.get("checks") or []
        if check["id"].startswith(_HARDWARE) and check["verdict"] in ("fail", "not_evaluated")
        for host in check["host"].split(", ")
    }
    return dict(
        bandwidth, runs=[run for run in bandwidth["runs"] if broken.isdisjoint(run["hosts"])]
    )


def _read(path):
    """The cluster, the bandwidth and the whole of a report; ValueError gives the reason if there is
    none.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError("it cannot be read: %s" % error.strerror) from error
    except ValueError as error:
        raise ValueError("it is not JSON: %s" % error) from error
    bandwidth = (
        report.get("bandwidth") if isinstance(report, dict) and "schema_version" in report else None
    )
    if not isinstance(bandwidth, dict) or not isinstance(bandwidth.get("runs"), list):
        raise ValueError("it is not a report of verify with a bandwidth")
    return report.get("cluster", ""), bandwidth, report


def _measured(bandwidth):
    """The hosts of a report. One host alone has no run of all hosts."""
    runs = {run["id"]: run["hosts"] for run in bandwidth["runs"]}
    return runs.get("cluster") or [
        hosts[0] for run_id, hosts in runs.items() if run_id.startswith("host:")
    ]


def _packs(folder, cluster, count):
    """Newest first, because the folders' names are times.

    Unreadable reports, as left by a killed run, are ignored.
    """
    found = []
    for path in sorted(
        Path(folder).glob("*/report.json"), key=lambda path: path.parent.name, reverse=True
    ):
        if len(found) >= count:
            break
        try:
            of, bandwidth, report = _read(path)
        except ValueError:
            continue
        # In a folder shared by several clusters, hosts of the same name may be different machines.
        if cluster in ("", of):
            found.append(_in_order(report, bandwidth))
    return found


def _named(path, cluster, hosts):
    try:
        of, bandwidth, report = _read(Path(path))
    except ValueError as error:
        raise AnsibleLookupError(
            (
                "verify_bandwidth_history: %s: %s. Name a report.json of this cluster, or leave it "
                "empty"
            )
            % (path, error)
        ) from error
    if cluster not in ("", of):
        raise AnsibleLookupError(
            "verify_bandwidth_history: %s is a report of cluster %s, and this is cluster %s "
            "(verify_cluster_name). Name a report.json of cluster %s, "
            "or leave it empty" % (path, of or "without a name", cluster, cluster)
        )
    measured = _measured(bandwidth)
    if measured != hosts:
        raise AnsibleLookupError(
            (
                "verify_bandwidth_history: %s is a report of %s, and this run has %s. Name a "
                "report.json of the same hosts, or leave it empty"
            )
            % (
                path,
                ", ".join(measured) or "no hosts, because nothing was measured then",
                ", ".join(hosts),
            )
        )
    return [_in_order(report, bandwidth)]


class LookupModule(LookupBase):
    """Lookup of the bandwidths of earlier verify runs."""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        hosts = [str(host) for host in self.get_option("hosts")]
        pack, cluster = self.get_option("pack"), self.get_option("cluster")
        packs = (
            _named(pack, cluster, hosts)
            if pack
            else _packs(terms[0], cluster, self.get_option("packs"))
        )
        found = {}
        for collective, largest in self.get_option("sizes").items():
            sizes = _bandwidth.sizes(int(largest))
            runs = {"cluster": hosts, **{"host:%s" % host: [host] for host in hosts}}
            earlier = {
                run_id: _bandwidth.history(packs, collective, run_id, members, sizes)
                for run_id, members in runs.items()
            }
            found[collective] = {
                run_id: value for run_id, value in earlier.items() if value is not None
            }
        return [found]
