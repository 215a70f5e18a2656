# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""job_container_info on a fake host: programs that are missing or answer, device nodes and
specifications.
"""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _nft_table
from ansible_collections.trainyard.gpu.plugins.modules import job_container_info

ID = "sha256:" + "0" * 64


class FakeModule:
    """Answers (code, text) of programs, by their words."""

    def __init__(self, answers, **params):
        self.answers = answers
        self.params = dict({"packages": [], "images": []}, **params)

    def get_bin_path(self, name):
        return name if any(words.split()[0] == name for words in self.answers) else None

    def run_command(self, command, data=None):
        code, text = next(
            (said for words, said in self.answers.items() if set(words.split()) <= set(command)),
            (1, ""),
        )
        return code, text, ""


def host(answers=None, **params):
    return job_container_info.Host(FakeModule(answers or {}, **params))


def test_a_host_without_any_program():
    assert host().packages() == {} and host(images=["a:1"]).docker_images() == {}


def test_packages_are_told_although_one_is_unknown():
    found = host(
        {"dpkg-query": (1, "podman\t4.3.1\tii \nuidmap\t\tun \n")},
        packages=["podman", "uidmap", "catatonit"],
    )
    assert found.packages() == {"podman": "4.3.1"}


def test_images_that_docker_has():
    found = host(
        {"docker inspect a:1": (0, ID + "\n"), "docker inspect b:1": (1, "Error: No such image")},
        images=["a:1", "b:1"],
    )
    assert found.docker_images() == {"a:1": ID}


LOST = "not loaded"
LOADED = """table inet trainyard_jobs {
  chain output {
    type filter hook output priority filter - 10; policy accept;
    meta skuid 1 drop
  }
}
"""
STATUS = "Name:\tpython3\nCapEff:\t%s\nCapBnd:\t000001ffffffffff\n"


@pytest.mark.parametrize(
    "answers, capabilities, found",
    [
        (
            {},
            "0000000000000000",
            {"admin": False, "error": "", "fault": LOST, "active": False, "enabled": False},
        ),
        (
            {
                "nft list": (0, LOADED),
                "nft --check": (0, ""),
                "systemctl show": (0, "ActiveState=active\nUnitFileState=enabled\n"),
            },
            "0000000000001000",
            {"admin": True, "error": "", "fault": "", "active": True, "enabled": True},
        ),
        (
            {"nft list": (0, ""), "systemctl show": (0, "ActiveState=inactive\nUnitFileState=\n")},
            "000001ffffffffff",
            {
                "admin": True,
                "error": "it ended with code 1",
                "fault": LOST,
                "active": False,
                "enabled": False,
            },
        ),
    ],
)
def test_the_firewall_of_jobs(monkeypatch, tmp_path, answers, capabilities, found):
    (tmp_path / "table.nft").write_text(LOADED)
    monkeypatch.setitem(
        _nft_table.TABLES, _nft_table.JOBS, ("inet trainyard_jobs", str(tmp_path / "table.nft"))
    )
    monkeypatch.setattr(_nft_table, "_PAUSE", 0)
    monkeypatch.setattr(job_container_info, "read_text", lambda _path: STATUS % capabilities)
    assert host(answers).firewall() == found


def test_devices_and_specifications(monkeypatch):
    listed = {
        "/dev/nvidia*": ["/dev/nvidia10", "/dev/nvidiactl", "/dev/nvidia2"],
        "/etc/cdi/*": ["/etc/cdi/a.yaml", "/etc/cdi/a.yaml.bak"],
    }
    monkeypatch.setattr(job_container_info.glob, "glob", lambda pattern: listed.get(pattern, []))
    monkeypatch.setattr(job_container_info, "read_text", lambda path: "kind: nvidia.com/gpu\n")
    assert host().gpu_nodes() == [2, 10] and host().cdi() == {"/etc/cdi/a.yaml": "nvidia.com/gpu"}


def test_the_whole_answer_of_a_host_with_npus(monkeypatch, tmp_path):
    answers = []

    class Module(FakeModule):
        def __init__(self, argument_spec, supports_check_mode):
            super().__init__(
                {},
                **{
                    name: str(tmp_path / name) if spec["type"] == "path" else []
                    for name, spec in argument_spec.items()
                },
            )

        def exit_json(self, **answer):
            answers.append(answer)

    monkeypatch.setattr(job_container_info, "AnsibleModule", Module)
    monkeypatch.setattr(job_container_info, "npu_nodes", lambda: [0, 1, 4])
    monkeypatch.setattr(
        job_container_info, "chip_names", lambda module, numbers: dict.fromkeys(numbers, "910A")
    )
    monkeypatch.setattr(job_container_info, "control_nodes", lambda: ["/dev/davinci_manager"])
    monkeypatch.setattr(job_container_info, "driver_paths", lambda: ["/usr/local/dcmi"])
    job_container_info.main()
    (answer,) = answers
    assert {name: value for name, value in answer.items() if name.startswith("npu_")} == {
        "npu_nodes": [0, 1, 4],
        "npu_control_nodes": ["/dev/davinci_manager"],
        "npu_groups": [[0, 1], [4]],
        "npu_driver_paths": ["/usr/local/dcmi"],
    }
