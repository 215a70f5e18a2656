"""Filter decide: the one way of roles to the decisions of the collection."""

from __future__ import annotations

import base64

import pytest
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

from ansible_collections.trainyard.gpu.plugins.filter.decide import decide

CUDA = {"os": {"id": "debian", "version_id": "12"}, "architecture": "x86_64"}


def rendered(text, **variables):
    return Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text))


def test_a_template_makes_a_decision():
    variables = {"found": {"/etc/x": {"state": "file", "mode": "0644", "checksum": "1"}}}
    text = "{{ [{'path': '/etc/x', 'state': 'absent'}] | trainyard.gpu.decide('files_differ', found) }}"
    assert rendered(text, **variables) is True


def test_a_template_makes_a_decision_of_each_item():
    text = (
        "{{ ['cuda', 'container_toolkit'] | map('trainyard.gpu.decide', 'vendor_source', host,"
        " {'with_key': false}) | map(attribute='name') | list }}"
    )
    assert rendered(text, host=CUDA) == ["trainyard-nvidia-cuda", "trainyard-nvidia-container"]


def test_an_unknown_name_is_one_error():
    with pytest.raises(AnsibleFilterError) as error:
        decide({}, "nfs_server_plans")
    assert str(error.value) == (
        "nfs_server_plans: no decision has this name; "
        "use one of DECISIONS in plugins/plugin_utils/_decisions.py"
    )


@pytest.mark.parametrize(
    "found, decision, requested, error",
    [
        (
            "cudnn",
            "vendor_source",
            {"host": CUDA},
            "'cudnn' is not a repository; use cuda, cuda_ubuntu or container_toolkit",
        ),
        (
            {},
            "sshd_lines",
            {"options": {"Port": 22}},
            "training_sshd_options: 'Port' cannot be set",
        ),
        (
            [],
            "bandwidth_tool",
            {"requested": "iperf", "gpus": {}},
            "'iperf' is not a tool; use auto, all_reduce_perf, torch, horovod",
        ),
        (
            {"content": base64.b64encode(b"[]").decode(), "source": "/r.json"},
            "recorded",
            {},
            "/r.json is damaged (a dictionary is expected). It records what teardown restores or removes. Restore it from a backup, or remove it: "
            "teardown then leaves the host as it is now",
        ),
    ],
)
def test_what_a_function_refuses_is_an_error_with_the_name(found, decision, requested, error):
    with pytest.raises(AnsibleFilterError) as told:
        decide(found, decision, **requested)
    assert str(told.value) == "%s: %s" % (decision, error)
