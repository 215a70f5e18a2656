from __future__ import annotations

from types import SimpleNamespace

import inventory
import yaml


def test_environment_wins_over_pip_conf():
    text = "global.cert='/etc/one.pem'\n:env:.cert='/etc/two.pem'\nglobal.index-url='https://pip.example/simple'\n"
    assert inventory.parse_pip_config(text) == {
        "cert": "/etc/two.pem",
        "index-url": "https://pip.example/simple",
    }


def test_a_machine_without_settings_hands_none_on():
    assert inventory.package_sources({}, {}) == {}


def test_settings_of_a_site(tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    found = inventory.package_sources(
        {"HTTPS_PROXY": "http://proxy.example:3128", "no_proxy": "localhost,.example"},
        {
            "cert": str(bundle),
            "index-url": "https://pip.example/simple",
            "extra-index-url": "file:///opt/wheels http://plain.example/simple https://more.example/simple",
        },
    )
    assert found == {
        "package_sources_ca_certificates": [str(bundle)],
        "package_sources_https_proxy": "http://proxy.example:3128",
        "package_sources_no_proxy": ["localhost", ".example"],
        "package_sources_pip_index_url": "https://pip.example/simple",
        "package_sources_pip_extra_index_urls": ["https://more.example/simple"],
    }


def test_yaml_keeps_what_it_is_given():
    variables = {"a": "no", "b": ["x: y", 1], "c": {"d": None}}
    assert yaml.safe_load(inventory.to_yaml(variables)) == variables


def test_an_inventory_follows_the_kind_of_hosts(tmp_path):
    lab = SimpleNamespace(
        key="/key", known_hosts="/known", subnet="172.30.77.0/24", hosts={"lab-a": "172.30.77.11"}
    )
    folder = tmp_path / "inventories" / "lab_3"
    for kind in ("lab", "lab_virtual", "lab"):
        (tmp_path / "inventories" / kind / "group_vars").mkdir(parents=True, exist_ok=True)
        inventory.write_inventory(tmp_path, folder, lab, tmp_path / "inventories" / kind)
        assert (folder / "group_vars").resolve() == tmp_path / "inventories" / kind / "group_vars"
