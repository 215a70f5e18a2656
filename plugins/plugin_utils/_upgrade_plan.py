# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a host needs an upgrade, and whether it works after one, from a result of gpu_stack_info and one of nvidia_smi_info. Pure functions."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils._driver import fits
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import upstream
from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import problems


def plan(found, noted, asked=None, driver="", smi=None):
    """C(noted) is the host's snapshot, {} without one. C(asked) has versions by package; None, as in a rollback: only faults of the host itself count.

    C(smi) is {} or a skipped result if nobody asked nvidia-smi.
    """
    differences = problems(found, asked or {}, driver)
    if asked is None:
        faults = ["%s: %s." % (entry["what"], entry["found"]) for entry in differences]
    else:
        faults = [
            "%s: requested '%s', found '%s'." % (entry["what"], entry["asked"], entry["found"])
            for entry in differences
        ]
    if not (smi or {}).get("available", True):
        faults.append("nvidia-smi: %s: %s." % (smi["cause"], smi["fix"]))
    # A host of an upgrade that was stopped has a snapshot and does not work yet.
    return {
        "needed": differences != [],
        "over": bool(noted.get("works", True)),
        "faults": faults,
        "reboot": reboot(found, driver),
    }


def reboot(found, driver):
    """Why an upgrade to C(driver) ends with a reboot; empty if it does not, as in a container, which has no kernel of its own."""
    if not found.get("next_kernel"):
        return ""
    wanted, loaded = upstream(str(driver)), found.get("loaded", "")
    if wanted and loaded and not fits(loaded, wanted):
        return "driver %s is loaded, and %s is requested" % (loaded, wanted)
    return found["reboot_required_reason"]
