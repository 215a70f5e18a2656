"""The proxies of package_sources as environment variables, for builds and downloads of four
roles.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

from ansible_collections.trainyard.gpu.plugins.filter.proxy_environment import FilterModule

ROLES = Path(__file__).parents[4] / "roles"
PROXY = "http://ops:p%40ss@proxy.example.org:3128/"
# The variables of role package_sources, and the environment.
ROWS = [
    ({}, {}),
    ({"http": "", "https": "", "no": []}, {}),
    ({"http": PROXY}, {"http_proxy": PROXY}),
    ({"https": PROXY}, {"https_proxy": PROXY}),
    (
        {"http": PROXY, "https": "http://other:1", "no": ["10.0.0.0/8", ".example.org"]},
        {
            "http_proxy": PROXY,
            "https_proxy": "http://other:1",
            "no_proxy": "10.0.0.0/8,.example.org",
        },
    ),
    ({"no": ["*"]}, {"no_proxy": "*"}),
]


@pytest.mark.parametrize("given, environment", ROWS)
def test_only_what_has_a_value_is_set(given, environment):
    assert (
        FilterModule().filters()["proxy_environment"](
            given.get("http", ""), given.get("https", ""), given.get("no", [])
        )
        == environment
    )


def test_without_the_other_two():
    assert FilterModule().filters()["proxy_environment"](PROXY) == {"http_proxy": PROXY}


@pytest.mark.parametrize("given, environment", ROWS)
@pytest.mark.parametrize("role", ["cuda_toolkit", "nccl", "nccl_tests", "train", "training_image"])
def test_roles_also_run_without_package_sources(role, given, environment):
    text = yaml.safe_load((ROLES / role / "vars/main.yml").read_text(encoding="utf-8"))[
        "__%s_proxies" % role
    ]
    assert (
        Templar(
            DataLoader(),
            {"package_sources_%s_proxy" % name: value for name, value in given.items()},
        ).template(trusted(text))
        == environment
    )
