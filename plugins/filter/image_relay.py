# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _image_relay_plan


class FilterModule:
    """Filters for role image_relay: the registry, the images, what all hosts get, and what it removes."""

    def filters(self):
        return {
            "image_relay_plan": _image_relay_plan.host_plan,
            "image_relay_images": _image_relay_plan.images_plan,
            "image_relay_client": _image_relay_plan.client_plan,
            "image_relay_removal": _image_relay_plan.removal,
            "image_relay_auth": _image_relay_plan.auth_document,
            "image_relay_drift": _image_relay_plan.drift,
            "image_relay_former": _image_relay_plan.former_registry,
        }
