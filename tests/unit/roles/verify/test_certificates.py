# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which certificates the check certificate-end judges."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

ROLE = Path(__file__).parents[4] / "roles/verify"


REGISTRY, HUB = "/etc/trainyard/registry/tls/registry.pem", "/etc/trainyard/tls/hub.pem"
#: Of daemons on each host, and of those who read them.
HOST, CLIENT = (
    "/etc/trainyard/monitoring/tls/host.pem",
    "/etc/trainyard/monitoring/tls/client.pem",
)


@pytest.mark.parametrize(
    "site, judged",
    [
        ({}, [REGISTRY, HUB, HOST, CLIENT]),
        (
            {"image_relay_certificate": "", "jupyterhub_tls_certificate": "/srv/hub.pem"},
            [REGISTRY, "/srv/hub.pem", HOST, CLIENT],
        ),
        (
            {"image_relay_certificate": "/srv/registry.pem"},
            ["/srv/registry.pem", HUB, HOST, CLIENT],
        ),
        (
            {"monitoring_certificate": "/srv/metrics.pem"},
            [REGISTRY, HUB, "/srv/metrics.pem", CLIENT],
        ),
    ],
)
def test_verify_judges_the_certificates_in_use(site, judged):
    """Not one that a role created before the site had its own, and that nobody renews."""
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    assert (
        Templar(DataLoader(), site).template(trusted(variables["__verify_certificates"])) == judged
    )
