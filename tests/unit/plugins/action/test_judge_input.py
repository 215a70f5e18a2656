"""Invalid input, checked as in ansible-playbook: real inventory, real templates, all roles of the
collection.
"""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible.template import Templar
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from ansible_collections.trainyard.gpu.plugins.action import judge_input
from ansible_collections.trainyard.gpu.plugins.action.judge_input import ActionModule
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import published_checks
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import (
    ROLES,
    load_data,
    load_roles,
)

JOB_CHECKS = (
    "only skip for scheduler-job, scheduler-isolation, burn-in-results, burn-in-speed,"
    " burn-in-errors, burn-in-links, burn-in-rails, bandwidth-host, bandwidth-cluster, gpus-busy,"
    " fabric-counters, fabric-errors, nccl-transport, which jobs check themselves"
)


class Judge:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self, inventory, facts=None, **args):
        path = self.folder / "hosts.yml"
        path.write_text(
            inventory if isinstance(inventory, str) else yaml.safe_dump(inventory), encoding="utf-8"
        )
        loader = DataLoader()
        loader.set_vault_secrets(SECRETS)
        manager = InventoryManager(loader=loader, sources=[str(path)])
        variables = VariableManager(loader=loader, inventory=manager)
        for member in manager.get_hosts("cluster"):
            variables.set_nonpersistent_facts(member.name, facts or {})
        host = (
            manager.get_hosts("cluster")
            or manager.get_hosts("all")
            or [manager.get_host("localhost")]
        )[0]
        task_vars = dict(
            variables.get_vars(host=host), hostvars=HostVars(manager, variables, loader)
        )
        task = SimpleNamespace(
            args=args,
            async_val=False,
            check_mode=True,
            diff=False,
            action="trainyard.gpu.judge_input",
            collections=[],
            environment=[],
        )
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
        action = ActionModule(
            task,
            connection,
            SimpleNamespace(check_mode=True),
            loader,
            Templar(loader, task_vars),
            None,
        )
        return action.run(task_vars=task_vars)


LOADER = DataLoader()


@functools.lru_cache(maxsize=None)
def roles():
    """The roles' files are read once, not once for each inventory."""
    return load_roles(LOADER)


@functools.lru_cache(maxsize=None)
def data(path):
    return load_data(LOADER, path)


@pytest.fixture(name="judge")
def _judge(tmp_path, monkeypatch):
    monkeypatch.setattr(judge_input, "load_roles", lambda loader: roles())
    monkeypatch.setattr(judge_input, "load_data", lambda loader, path: data(path))
    return Judge(tmp_path)


def cluster(both=None, first=None, **groups):
    """Return the inventory that README shows, with variables for both hosts, or for the first."""
    hosts = {
        "server-a": dict({"ansible_host": "192.0.2.11"}, **(first or {})),
        "server-b": {"ansible_host": "192.0.2.12"},
    }
    return dict({"cluster": {"hosts": hosts, "vars": both or {}}}, **groups)


def problems(result):
    return {
        (entry["id"], entry["source"]) for entry in result["findings"] if entry["verdict"] == "fail"
    }


def test_the_smallest_inventory_is_good(judge):
    result = judge({"cluster": {"hosts": {"server-a": {}, "server-b": {}}}})
    assert result["findings"] == [] and "failed" not in result


@pytest.mark.parametrize(
    "inventory, said",
    [
        (cluster(), "valid: 2 hosts and 0 variables"),
        (
            {
                "cluster": {
                    "hosts": {"server-a": {"ansible_host": "192.0.2.11"}},
                    "vars": {"cluster_slots": 8},
                }
            },
            "valid: 1 host and 1 variable",
        ),
        # A variable of both hosts counts once, and one that no role has does not count.
        (
            cluster(
                both={"cluster_slots": 8, "cluster_network": "192.0.2.0/24", "mine": 3},
                first={"cluster_slots": 4, "cluster_address": "192.0.2.11"},
            ),
            "valid: 2 hosts and 3 variables",
        ),
        (
            cluster(both={"cluster_slots": 8, "nccl_own": 3}),
            "accepted with warnings: 2 hosts and 1 variable",
        ),
    ],
    ids=["none", "one", "several", "warnings"],
)
def test_what_was_judged_is_told(judge, inventory, said):
    assert judge(inventory)["msg"] == "The input is %s set by the inventory were checked." % said


def test_checks_of_verify_by_their_ids(judge):
    good = {
        "verify_overrule": {
            "gpu-ecc": "warn",
            "ib-ports": "block",
            "bandwidth-host": "skip",
            "nccl-transport": "skip",
        },
        "verify_required": ["free-space", "fabric-counters"],
    }
    assert judge(cluster(good))["findings"] == []
    (one, two) = judge(
        cluster(first={"verify_required": ["free-space", "typo", "host-unreachable"]})
    )["findings"]
    assert [
        (entry["id"], entry["host"], entry["found"], entry["source"]) for entry in (one, two)
    ] == [
        ("input-ids", "server-a", "typo", "verify_required[1]"),
        ("input-ids", "server-a", "host-unreachable", "verify_required[2]"),
    ]
    assert one["expected"] == "the ID of a check" and "README of role verify" in one["fix"]
    published = [
        str(check["id"])
        for check in published_checks(data(os.path.join(ROLES, "verify/meta/rules.yml")))
    ]
    refused = {"host-unreachable", "python-version"}
    assert (
        len(published) > 20
        and judge(
            cluster({"verify_required": [name for name in published if name not in refused]})
        )["findings"]
        == []
    )
    assert problems(judge(cluster({"verify_overrule": dict.fromkeys(published, "skip")}))) == {
        ("input-ids", "verify_overrule")
    }
    assert (
        judge(
            cluster(
                {"verify_overrule": {name: "skip" for name in published if name not in refused}}
            )
        )["findings"]
        == []
    )


@pytest.mark.parametrize(
    "name, value, check_id, allowed",
    [
        ("cluster_ssh_port", 0, "input-range", "1 to 65535"),
        ("cluster_ssh_port", 70000, "input-range", "1 to 65535"),
        ("cluster_ssh_port", "ssh", "input-type", "an integer"),
        ("cluster_share_path", "data1/share", "input-path", "absolute path"),
        ("cluster_share_path", "~/share", "input-path", "absolute path"),
        ("cluster_share_path", "/", "input-path", "absolute path"),
        ("cluster_share_path", "/opt/share", "input-folder", "not a system folder"),
        ("cluster_slots", -1, "input-range", "0 to 64"),
        ("package_sources_wheels_dir", "tests", "input-file", "absolute path"),
        (
            "training_image_apt_packages",
            ["libnccl2=2.21.5-1+cuda12.4"],
            "input-rule",
            "at one version",
        ),
        ("nccl_version", "latest", "input-nccl-build", "2.21.5-1+cuda12.4"),
        ("nccl_version", "2.21.5", "input-rule", "together with nccl_cuda"),
        ("nccl_cuda", "twelve", "input-pattern", "such as 12.4"),
        ("nccl_checksum", "md5:1", "input-checksum", "sha256"),
        ("nccl_prefix", "/opt/nccl", "input-pattern", "/usr/local"),
        ("nccl_timeout", 5, "input-range", "60 to 86400"),
        ("nccl_cuda_home", "cuda", "input-path", "absolute path"),
        (
            "package_sources_name_servers",
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
            "input-rule",
            "three servers",
        ),
        (
            "package_sources_nvidia_cuda_url",
            "https://mirror.example.org:cuda",
            "input-url",
            "without credentials",
        ),
        ("package_sources_nvidia_container_url", "mirror.example.org", "input-url", "a URL"),
        ("package_sources_nvidia_keyring_checksum", "md5:1", "input-checksum", "sha256"),
        (
            "package_sources_nvidia_container_key_fingerprint",
            "F796ECB0",
            "input-pattern",
            "40 hexadecimal digits",
        ),
        ("training_image_base_archive", "README.md", "input-file", "absolute path"),
        ("docker_engine_repository_key", "README.md", "input-key", "absolute path"),
        ("nvidia_driver_version", "latest", "input-pattern", "a branch such as 570"),
        ("nvidia_driver_source", "ppa", "input-choice", "nvidia_repository"),
        ("nvidia_driver_runfile_checksum", "md5:0123", "input-checksum", "sha256"),
        ("nvidia_driver_reboot_timeout", 5, "input-range", "60 to 7200"),
        ("docker_engine_no_proxy", ".example.org,localhost", "input-type", "a list"),
        ("train_environment", "NCCL_DEBUG=INFO", "input-type", "a dictionary"),
        ("train_environment", {"1X": "y"}, "input-environment", "not beginning with a digit"),
        ("train_command", "python3 'train.py", "input-command", "all quotes closed"),
        ("training_container_capabilities", ["CAP_IPC_LOCK", "IPC_LOK"], "input-rule", "IPC_LOCK"),
        ("training_container_ulimits", {"memlok": -1}, "input-names", "memlock"),
        ("training_container_ipc", "none", "input-pattern", "private, shareable or host"),
        ("training_container_runtime", "nvidia;id", "input-pattern", "a Docker runtime"),
        ("training_container_user", "1000:1000", "input-pattern", "starts every rank as root"),
        (
            "training_container_services",
            [{"command": "serve", "name": "x"}],
            "input-rule",
            "a port for each service",
        ),
        (
            "training_container_services",
            [{"command": "serve", "name": "x", "port": 12345}],
            "input-rule",
            "other than cluster_ssh_port",
        ),
        (
            "training_container_services",
            [{"name": "jupyterlab"}, {"command": "serve", "name": "x", "port": 8890}],
            "input-rule",
            "a port of its own",
        ),
        (
            "training_container_services",
            [{"name": "aiaa"}],
            "input-rule",
            "a command for each service",
        ),
        (
            "training_container_services",
            [{"address": "cluster", "command": "serve", "name": "aiaa"}],
            "input-rule",
            "{certificate} and {key}",
        ),
        (
            "training_container_notebooks",
            {"repository": "https://git.example.org/x.git"},
            "input-rule",
            "repository and revision",
        ),
        ("training_sshd_options", {"port": 22}, "input-rule", "no Port"),
        (
            "training_sshd_options",
            {"AuthorizedKeysFile": "/x"},
            "input-rule",
            "all hosts trust only these",
        ),
        (
            "training_sshd_options",
            {"PasswordAuthentication": True},
            "input-rule",
            "with the cluster's keys",
        ),
        ("training_sshd_options", {"ForceCommand": "x"}, "input-rule", "no ForceCommand"),
        ("training_sshd_options", {"Match": "all"}, "input-rule", "no Match"),
        (
            "training_image_build_variables",
            {"HOROVOD GPU": "NCCL"},
            "input-environment",
            "names of letters",
        ),
        ("training_image_horovod_url", "ftp://example.org/horovod.tar.gz", "input-url", "URL"),
        ("training_image_horovod_version", "latest", "input-pattern", "0.28.1"),
        ("cluster_network", "10.0.0.1/24", "input-network", "10.0.0.0/24"),
        ("cluster_head", "server-z", "input-rule", "group cluster"),
        ("cluster_storage", "nas", "input-rule", "group cluster"),
        ("cluster_scheduler", "pbs", "input-choice", "none, slurm"),
        ("container_toolkit_version", "latest", "input-pattern", "1.17.8"),
        ("container_toolkit_proof_image", "--privileged", "input-image", "reference of an image"),
        ("preflight_fail_on", "never", "input-choice", "block, warn"),
        ("preflight_overrule", {"drv-branch-eol": "off"}, "input-rule", "skip, warn or block"),
        ("verify_overrule", {"gpu-ecc": "off"}, "input-rule", "skip, warn or block"),
        ("verify_overrule", {"gpu-ec": "skip"}, "input-ids", "IDs of checks"),
        (
            "verify_overrule",
            {"bandwidth-cluster": "warn", "gpu-ecc": "warn"},
            "input-rule",
            JOB_CHECKS,
        ),
        (
            "verify_overrule",
            {"gpus-busy": "block"},
            "input-rule",
            JOB_CHECKS,
        ),
        ("preflight_compat_facts", "facts.yml", "input-file", "absolute path"),
        ("shared_storage_backend", "gluster", "input-choice", "existing"),
        ("training_image_distribution", "carrier-pigeon", "input-choice", "registry, archive"),
        ("training_image_rebuild", "sometimes", "input-choice", "auto, always, never"),
        ("train_launcher", "slurm", "input-choice", "horovodrun, torchrun, mpirun, mindspore"),
        ("cluster_network", "{{ nowhere }}", "input-template", "text"),
        ("cluster_network", "{{ 1 + }}", "input-template", "text"),
    ],
)
def test_a_value_that_is_refused(judge, name, value, check_id, allowed):
    result = judge(cluster({name: value}))
    assert result["failed"]
    assert problems(result) == {(check_id, name)}
    assert {entry["host"] for entry in result["findings"]} == {"server-a", "server-b"}
    first = result["findings"][0]
    assert allowed in first["expected"] and first["fix"]
    if name.endswith(("_environment", "_build_variables")):
        assert str(value) not in first["found"]
    elif check_id != "input-template":
        assert first["found"] == str(value)
    for text in (name, first["found"], first["expected"], first["fix"]):
        assert text in result["msg"]


# Bad input, each of which has to be refused: a line break would let a value write a line of its
# own, such as PermitRootLogin, into a file of the host.
@pytest.mark.parametrize(
    "name, value, source",
    [
        (
            "training_sshd_options",
            {"Banner": "x\nPermitRootLogin yes"},  # refused: it would add a line to sshd_config
            ".Banner",
        ),
        ("package_sources_no_proxy", ["a.example\nLD_PRELOAD=/tmp/x"], "[0]"),
        ("nfs_server_exports", [{"path": "/data1/share *(rw)\n/etc"}], "[0].path"),
        ("train_environment", {"A\nB": "x"}, ""),
        (
            "package_sources_apt_repositories",
            [
                {
                    "uris": ["https://m.example\nTrusted: yes"],
                    "suites": ["x/"],
                    "signed_by": "/nowhere",
                }
            ],
            "[0].uris[0]",
        ),
    ],
)
def test_a_text_is_one_line(judge, name, value, source):
    result = judge(cluster({name: value}))
    assert result["failed"] and problems(result) == {("input-text", name + source)}


RUNFILE = {
    "nvidia_driver_source": "runfile",
    "nvidia_driver_version": "570.172.08",
    "nvidia_driver_runfile_checksum": "sha256:" + "0" * 64,
    "nvidia_driver_runfile_url": "https://mirror.example/NVIDIA-Linux-x86_64-570.172.08.run",
}


@pytest.mark.parametrize(
    "name, value",
    [
        ("nvidia_driver_version", "570"),
        ("nvidia_driver_version", "recommended"),
        ("nvidia_driver_runfile_url", ""),
        (
            "nvidia_driver_runfile_url",
            "https://user:secret@mirror.example/NVIDIA-Linux-x86_64-570.172.08.run",
        ),
        ("nvidia_driver_runfile_checksum", ""),
        ("nvidia_driver_runfile_checksum", "sha256:" + "0" * 63),
    ],
)
def test_an_installer_needs_its_version_its_url_and_its_checksum(judge, name, value):
    assert "failed" not in judge(cluster(RUNFILE))
    assert name in {
        source for _id, source in problems(judge(cluster(dict(RUNFILE, **{name: value}))))
    }


def test_an_installer_of_another_version_is_refused(judge):
    other = dict(RUNFILE, nvidia_driver_version="570.124.06")
    assert problems(judge(cluster(other))) == {("input-rule", "nvidia_driver_runfile_url")}


def test_one_cluster_has_one_driver(judge):
    assert ("input-same", "nvidia_driver_version") in problems(
        judge(cluster(first={"nvidia_driver_version": "550"}))
    )


@pytest.mark.parametrize(
    "name, value, source, allowed",
    [
        ("nfs_server_options", ["rw", "norootsquash"], "[1]", "exports(5)"),
        ("nfs_server_options", ["rw=1"], "[0]", "exports(5)"),
        ("nfs_server_options", ["sec=foo"], "[0]", "exports(5)"),
        ("nfs_server_options", ["anonuid=1000"], "[0]", "nfs_server_anonuid"),
        ("nfs_server_exports", [{"path": "share"}], "[0].path", "not a system folder"),
        ("nfs_server_exports", [{"path": "/a"}, {"path": "/a"}], "[1].path", "every value once"),
        (
            "nfs_server_exports",
            [{"path": "/a", "options": ["anonuid=abc"], "full_access": False}],
            "[0].options[0]",
            "exports(5)",
        ),
        (
            "nfs_server_exports",
            [{"path": "/a", "options": ["rw", "anonuid=1000"]}],
            "",
            "nfs_server_anonuid",
        ),
        ("nfs_server_clients", ["*.example.org"], "[0]", "no wildcards"),
        (
            "nfs_client_mounts",
            [{"server": "10.0.0.1", "path": "a"}],
            "[0].path",
            "an absolute path",
        ),
        (
            "nfs_client_mounts",
            [{"server": "10.0.0.1:/a", "path": "/a"}],
            "[0].server",
            "an address",
        ),
        ("nfs_client_mounts", [{"server": "10.0.0.1", "path": "/"}], "[0].path", "a mount point"),
        (
            "nfs_client_mounts",
            [
                {"server": "10.0.0.1", "path": "/a", "target": "/mnt"},
                {"server": "10.0.0.2", "path": "/b", "target": "/mnt/"},
            ],
            "[1].target",
            "every target once",
        ),
        ("nfs_client_options", ["hard,noatime"], "[0]", "one mount option"),
        ("shared_storage_users", [{"name": "anna", "uid": 999}], "[0].uid", "1000 to 65000"),
        (
            "shared_storage_users",
            [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": 2001}],
            "[1].uid",
            "every value once",
        ),
        (
            "shared_storage_users",
            [{"name": "anna", "uid": 2001, "groups": ["nobodys"]}],
            "[0].groups[0]",
            "shared_storage_groups",
        ),
        (
            "shared_storage_trees",
            [{"path": "/etc/people", "of": "users"}],
            "[0].path",
            "first folder",
        ),
    ],
)
def test_what_is_refused_of_the_shared_storage(judge, name, value, source, allowed):
    result = judge(cluster({name: value}))
    assert result["failed"]
    assert {found for dummy, found in problems(result)} == {name + source}
    first = next(entry for entry in result["findings"] if entry["verdict"] == "fail")
    assert allowed in first["expected"] and first["fix"]


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfWBWeD+lmc81HJ9lxOQA+NHp50RTLc67//Lm0MyXzY anna@laptop"
# Without its first line, the last line of a private key is short.
TORN = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\nhunter2\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "keys, said",
    [
        (
            ["-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----\n"],
            "[1].public_keys[0]: ben, key 1: a private key",
        ),
        ([KEY, TORN], "[1].public_keys[1]: ben, key 2: a private key"),
        ([KEY, KEY, "hunter2"], "[1].public_keys[2]: ben, key 3: text that does not begin"),
        ([KEY + "\n"], "[1].public_keys[0]: ben, key 1: text with line breaks"),
        (['from="10.0.0.1" ' + KEY], "ben, key 1: a key with options"),
        (["ssh-dss AAAA"], "ben, key 1: a key of type 'ssh-dss'"),
        ([KEY[:50]], "ben, key 1: a damaged or incomplete key"),
        ([""], "ben, key 1: empty"),
        # Values of another type name no person.
        ([{"key": "hunter2"}], "shared_storage_users[1].public_keys[0]: not text"),
        ("hunter2", "shared_storage_users[1].public_keys: "),
        ([["hunter2"]], "shared_storage_users[1].public_keys[0]: ['text that does not begin"),
        ([5.5], "shared_storage_users[1].public_keys[0]"),
        ({"a": "hunter2"}, "shared_storage_users[1].public_keys: not text"),
    ],
)
def test_text_that_is_no_public_key_of_a_person(judge, keys, said):
    result = judge(
        cluster(
            {
                "shared_storage_users": [
                    {"name": "anna", "uid": 2001, "public_keys": [KEY]},
                    {"name": "ben", "uid": 2002, "public_keys": keys},
                ]
            }
        )
    )
    assert result["failed"] and said in result["msg"], result["msg"]
    assert "hunter2" not in str(result) and KEY.split()[1] not in str(result)


def test_hosts_on_which_people_log_in(judge):
    people = {"shared_storage_users": [{"name": "anna", "uid": 2001, "public_keys": [KEY]}]}
    assert "failed" not in judge(cluster(people)) and "failed" not in judge(
        cluster(dict(people, shared_storage_login_hosts=["server-b"]))
    )
    result = judge(cluster(dict(people, shared_storage_login_hosts=["server-a", "nas"])))
    assert result["failed"] and problems(result) == {
        ("input-rule", "shared_storage_login_hosts[1]")
    }
    # Also by the default, and only if a person has keys.
    assert problems(judge(cluster(people, login={"hosts": {"nas": {}}}))) == {
        ("input-rule", "shared_storage_login_hosts[0]")
    }
    assert "failed" not in judge(
        cluster(
            {"shared_storage_users": [{"name": "anna", "uid": 2001}]}, login={"hosts": {"nas": {}}}
        )
    )


@pytest.mark.parametrize(
    "first, both, allowed",
    [
        (
            {"container_toolkit_version": "1.17.7"},
            {"container_toolkit_version": "1.17.8"},
            "same value for all hosts",
        ),
        (
            {},
            {
                "container_toolkit_version": "1.20.0",
                "docker_engine_version": "5:25.0.3-1~debian.12~bookworm",
            },
            "below 1.19.1",
        ),
    ],
)
def test_a_toolkit_that_does_not_fit(judge, first, both, allowed):
    result = judge(cluster(both, first))
    assert result["failed"]
    assert {found for dummy, found in problems(result)} == {"container_toolkit_version"}
    assert (
        allowed
        in next(entry for entry in result["findings"] if entry["verdict"] == "fail")["expected"]
    )
    assert "failed" not in judge(cluster(dict(both, container_toolkit_cdi=False)))


@pytest.mark.parametrize(
    "users, groups",
    [
        ([{"name": "anna", "uid": 2001}], [{"name": "vision", "gid": 2001}]),
        ([{"name": "anna", "uid": 2001, "groups": []}], [{"name": "vision", "gid": 2001}]),
        ([{"name": "vision", "uid": 2001}], [{"name": "vision", "gid": 3001}]),
        ([{"name": "vision", "uid": 2001, "groups": []}], [{"name": "vision", "gid": 3001}]),
    ],
)
def test_a_persons_own_group_is_nobody_elses(judge, users, groups):
    assert {
        found
        for dummy, found in problems(
            judge(cluster({"shared_storage_users": users, "shared_storage_groups": groups}))
        )
    } == {"shared_storage_users"}
    users[0]["groups"] = ["vision"]
    assert "failed" not in judge(
        cluster({"shared_storage_users": users, "shared_storage_groups": groups})
    )


@pytest.mark.parametrize(
    "name, value",
    [
        (
            "nfs_server_options",
            ["rw", "async", "sec=krb5p:krb5", "fsid=0", "mountpoint", "mp=/data1"],
        ),
        (
            "nfs_server_exports",
            [
                {"path": "/data1/share"},
                {"path": "/a", "options": ["rw", "anonuid=1000"], "full_access": False},
            ],
        ),
        (
            "nfs_client_mounts",
            [
                {
                    "server": "nas.example",
                    "path": "/",
                    "target": "/mnt",
                    "options": ["hard", "rsize=1048576"],
                }
            ],
        ),
    ],
)
def test_what_is_taken_of_the_shared_storage(judge, name, value):
    result = judge(cluster({name: value}))
    assert "failed" not in result and problems(result) == set()


@pytest.mark.parametrize(
    "inventory, check_id",
    [
        ({"servers": {"hosts": {"server-a": {}}}}, "inventory-no-cluster"),
        ({}, "inventory-no-cluster"),
        ({"cluster": {"hosts": {}}}, "inventory-empty-cluster"),
        (cluster(head={"hosts": {"login": {}}}), "inventory-outside-cluster"),
        (cluster(head={"hosts": {"server-a": {}, "server-b": {}}}), "inventory-one-host"),
        (cluster(storage={"hosts": {"nas": {}}}), "inventory-outside-cluster"),
        (cluster(**{"server-b": {"hosts": {"server-a": {}}}}), "inventory-host-like-group"),
        (cluster(first={"ansible_host": "192.0.2.12"}), "inventory-same-address"),
        (cluster({"cluster_address": "192.0.2.1"}), "inventory-same-address"),
    ],
)
def test_an_inventory_that_is_refused(judge, inventory, check_id):
    result = judge(inventory)
    assert result["failed"]
    assert check_id in {found for found, source in problems(result)}
    assert check_id in result["msg"]


@pytest.mark.parametrize(
    "values, sources",
    [
        ({"nccl_version": "2.21.5", "nccl_cuda": "12.4.1"}, set()),
        ({"nccl_version": "2.21.5-1+cuda12.4", "nccl_cuda": "12.4.1"}, set()),
        ({"nccl_version": "2.21.5-1+cuda12.4", "nccl_cuda": "12.6"}, {"nccl_cuda"}),
        (
            {
                "nccl_version": "2.21.5-1+cuda12.4",
                "nccl_source": "source",
                "nccl_checksum": "sha256:" + "0" * 64,
            },
            {"nccl_version"},
        ),
        ({"nccl_version": "2.21.5", "nccl_source": "source"}, {"nccl_checksum"}),
        ({"nccl_compute_capabilities": ["90", "9.0"]}, {"nccl_compute_capabilities[1]"}),
        (
            {
                "nccl_version": "2.21.5",
                "nccl_source": "source",
                "nccl_checksum": "sha256:" + "0" * 64,
            },
            set(),
        ),
        (
            {
                "nccl_version": "2.21.5",
                "nccl_source": "source",
                "nccl_checksum": "sha256:" + "0" * 64,
                "nccl_url": "https://github.com/NVIDIA/nccl",
            },
            {"nccl_url"},
        ),
        (
            {
                "training_image_apt_packages": [
                    "libnccl-dev=2.21.5-1+cuda12.4",
                    "libnccl2=2.21.5-1+cuda12.4",
                ]
            },
            set(),
        ),
        (
            {"training_image_apt_packages": ["libnccl-dev=2.21.5-1+cuda12.4", "libnccl2"]},
            {"training_image_apt_packages"},
        ),
    ],
)
def test_nccl_is_one_version(judge, values, sources):
    assert {source for _id, source in problems(judge(cluster(values)))} == sources


FILE = {
    "version": "11.4.4",
    "url": "https://mirror.example.org/cuda_11.4.4_470.82.01_linux.run",
    "checksum": "sha256:" + "0" * 64,
}


@pytest.mark.parametrize(
    "values, sources",
    [
        (
            {
                "cuda_toolkit_versions": ["12.4.1", "11.8", "12.6.3-1"],
                "cuda_toolkit_default": "11.8.0",
                "cuda_toolkit_cudnn_version": "9.1.0.70-1",
            },
            set(),
        ),
        ({"cuda_toolkit_versions": ["12.4.1", "twelve"]}, {"cuda_toolkit_versions[1]"}),
        ({"cuda_toolkit_versions": ["12.4.1", "12.4.0"]}, {"cuda_toolkit_versions"}),
        (
            {"cuda_toolkit_versions": ["12.4"], "cuda_toolkit_default": "12.6"},
            {"cuda_toolkit_default"},
        ),
        (
            {"cuda_toolkit_versions": ["12.4"], "cuda_toolkit_cudnn_version": "9"},
            {"cuda_toolkit_cudnn_version"},
        ),
        ({"cuda_toolkit_cudnn_version": "9.1.0.70-1"}, {"cuda_toolkit_cudnn_version"}),
        (
            {"cuda_toolkit_versions": ["12.4"], "cuda_toolkit_runfiles": [FILE]},
            {"cuda_toolkit_runfiles"},
        ),
        (
            {
                "cuda_toolkit_versions": ["12.4"],
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [FILE],
            },
            {"cuda_toolkit_versions"},
        ),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [FILE],
                "cuda_toolkit_default": "11.4",
            },
            set(),
        ),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [dict(FILE, checksum="md5:1")],
            },
            {"cuda_toolkit_runfiles[0].checksum"},
        ),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [{"version": "11.4.4", "url": FILE["url"]}],
            },
            {"cuda_toolkit_runfiles[0]"},
        ),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [dict(FILE, version="11.4")],
            },
            {"cuda_toolkit_runfiles[0].version"},
        ),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [dict(FILE, url="ftp://a/b.run")],
            },
            {"cuda_toolkit_runfiles[0].url"},
        ),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [FILE, dict(FILE, version="11.4.3")],
            },
            {"cuda_toolkit_runfiles"},
        ),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [dict(FILE, arguments=["--override", "--driver"])],
            },
            {"cuda_toolkit_runfiles[0].arguments[1]"},
        ),
        ({"cuda_toolkit_mpi_home": "mpi"}, {"cuda_toolkit_mpi_home"}),
        ({"cuda_toolkit_timeout": 1}, {"cuda_toolkit_timeout"}),
    ],
)
def test_toolkits_that_are_refused(judge, values, sources):
    assert {source for _id, source in problems(judge(cluster(values)))} == sources


def test_ranks_have_one_nccl(judge):
    assert problems(judge(cluster(first={"nccl_version": "2.21.5-1+cuda12.4"}))) == {
        ("input-same", "nccl_version")
    }


def test_values_that_must_agree(judge):
    result = judge(cluster(first={"cluster_ssh_port": 2222}))
    assert problems(result) == {("input-same", "cluster_ssh_port")}
    assert {(entry["host"], entry["found"]) for entry in result["findings"]} == {
        ("server-a", "2222"),
        ("server-b", "12345"),
    }


def test_there_is_one_image_for_all_hosts(judge):
    assert problems(judge(cluster(first={"training_image_cuda_architectures": ["80"]}))) == {
        ("input-same", "training_image_cuda_architectures")
    }


@pytest.mark.parametrize(
    "when, good",
    [
        ({"torch": ">=2.1,<2.13", "horovod": "==0.28.1"}, True),
        ({"torch": " > 2 , <= 3.0"}, True),
        ({"torch": "~=2.1"}, False),
        ({"torch": "2.1"}, False),
        ({"torch": ">=2.1", "gcc": "13"}, False),
    ],
)
def test_ranges_of_versions(judge, when, good):
    fix = {"name": "ours", "reason": "why", "source": ["issue"], "when": when}
    assert problems(judge(cluster({"training_image_source_fixes": [fix]}))) == (
        set() if good else {("input-rule", "training_image_source_fixes[0].when")}
    )


def test_a_fact_of_the_image_is_a_version(judge):
    (first, dummy) = judge(
        cluster({"preflight_image_facts": {"torch": "latest", "nccl": "2.21.5-1+cuda12.4"}})
    )["findings"]
    assert (first["id"], first["source"], first["found"]) == (
        "input-version",
        "preflight_image_facts.torch",
        "latest",
    )
    assert "begins with a number" in first["expected"]


def test_hosts_are_listed_in_a_group(judge):
    result = judge(cluster({"cluster_hosts": ["a"], "cluster_nodes": ["a"]}))
    assert (
        "failed" not in result
        and [entry["fix"].partition("?")[0] for entry in result["findings"][:2]]
        == ["did you mean group cluster of the inventory, which lists the hosts"] * 2
    )


def test_a_source_fix_names_what_it_replaces(judge):
    fix = {
        "name": "ours",
        "reason": "why",
        "source": ["issue"],
        "when": {"torch": ">=2"},
        "replace": [{"file": "setup.py", "text": "x"}],
    }
    assert {
        source for _id, source in problems(judge(cluster({"training_image_source_fixes": [fix]})))
    } == {"training_image_source_fixes[0].replace[0]"}


def test_a_lab_that_does_not_exist_is_one_line(judge):
    inventory = cluster(
        {"ansible_ssh_private_key_file": "{{ inventory_dir }}/../.lab/ssh/id_ed25519"}
    )
    assert judge(inventory) == {
        "changed": False,
        "failed": True,
        "msg": "server-a, server-b do not exist yet: run make lab, which creates these hosts and their key",
    }
    # Not where more is wrong.
    result = judge(
        cluster(
            {
                "ansible_ssh_private_key_file": "{{ inventory_dir }}/../.lab/ssh/id_ed25519",
                "cluster_ssh_port": 22,
            }
        )
    )
    assert {check_id for check_id, dummy in problems(result)} == {"inventory-no-lab", "input-rule"}


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("preflight_rules_files", "host_rules: [\n", "no YAML: line "),
        ("preflight_rules_files", "", "no list host_rules"),
        ("preflight_rules_files", "rules: []\n", "no list host_rules"),
        (
            "preflight_rules_files",
            "host_rules:\n  - {id: ours, that: 'true'}\n",
            "rule ours: no key expected, fix",
        ),
        (
            "preflight_rules_files",
            "host_rules:\n  - {id: ours, otherwise: none}\n  - {id: ours, that: 'a =='}\n",
            "rule ours: no key",
        ),
        (
            "preflight_compat_facts",
            "cuda: {driver_branchs: []}\n",
            "did you mean cuda.driver_branches?",
        ),
        ("preflight_compat_facts", "- a\n", "it is not a dictionary"),
    ],
)
def test_a_file_of_the_sites_own_that_is_wrong_inside(judge, tmp_path, name, text, said):
    path = tmp_path / "own.yml"
    path.write_text(text, encoding="utf-8")
    result = judge(
        cluster(
            {
                name: [str(path)] if name.endswith("files") else str(path),
                "preflight_overrule": {"our-own": "skip"} if name.endswith("files") else {},
            }
        )
    )
    assert problems(result) == {
        ("input-file-content", name + ("[0]" if name.endswith("files") else ""))
    }
    first = result["findings"][0]
    assert (
        str(path) in first["found"]
        and said in first["found"]
        and name in first["fix"]
        and first["expected"] in result["msg"]
    )


def test_a_good_file_of_the_sites_own(judge, tmp_path):
    path = tmp_path / "own.yml"
    path.write_text(
        "host_rules:\n  - {id: our-own, severity: warn, stage: host, that: 'true', expected: a, found: b, source: c, fix: d}\n",
        encoding="utf-8",
    )
    assert "failed" not in judge(
        cluster({"preflight_rules_files": [str(path)], "preflight_overrule": {"our-own": "skip"}})
    )


def test_all_problems_come_at_once(judge):
    result = judge(
        cluster(
            {"cluster_ssh_port": 0, "cluster_share_path": "share", "preflight_fail_on": "no"},
            head={"hosts": {"login": {}}},
        )
    )
    assert {name for check_id, name in problems(result)} >= {
        "cluster_ssh_port",
        "cluster_share_path",
        "preflight_fail_on",
        "inventory",
    }


def test_values_are_templated_with_the_host_and_the_defaults_of_all_roles(judge):
    ports = {
        "cluster_ssh_port": "{{ port_of[inventory_hostname] }}",
        "port_of": {"server-a": 2222, "server-b": 2222},
    }
    assert judge(cluster(ports))["findings"] == []
    assert judge(cluster({"cluster_storage": "{{ cluster_head }}"}))["findings"] == []


@pytest.mark.parametrize(
    "name, template",
    [
        ("training_image_base", "{{ cluster_host.architecture }}-base"),
        ("training_image_base", "{{ mine }}-base"),
        # It can be evaluated at once, and has a different value later.
        (
            "training_image_base",
            "{{ (cluster_host | default({})).architecture | default('none') }}-base",
        ),
        ("cluster_slots", "{{ (cluster_members | length) if cluster_members is defined else 1 }}"),
    ],
    ids=["fails", "indirect", "default", "test"],
)
def test_what_is_only_known_during_the_run_is_left_to_the_run(judge, name, template):
    result = judge(cluster({name: template, "mine": "{{ cluster_host.architecture }}"}))
    assert result["findings"] == [] and result["deferred"] == [name]


@pytest.mark.parametrize(
    "template, bad",
    [
        ("{{ cluster_host.architecture }}-base", False),
        ("{{ cluster_host.architecture }} base", True),
        ("{{ (cluster_host | default({'architecture': 'none'})).architecture }} base", True),
        ("{{ cluster_host.unknown }}", True),
    ],
)
def test_it_is_judged_once_the_run_knows_it(judge, template, bad):
    inventory = cluster({"training_image_base": template})
    result = judge(
        inventory, facts={"cluster_host": {"architecture": "x86_64"}, "cluster_members": []}
    )
    assert result["deferred"] == []
    assert {name for _check, name in problems(result)} == (
        {"training_image_base"} if bad else set()
    )


def test_what_the_run_does_not_set_is_not_deferred(judge):
    assert (
        judge(cluster({"training_image_base": "a/base:1", "cluster_slots": "{{ 1 + 1 }}"}))[
            "deferred"
        ]
        == []
    )


def test_a_misspelt_name_is_refused_and_one_with_the_prefix_of_a_role_too(judge):
    result = judge(cluster({"cluster_ssh_prot": 2222, "my_own": 1}))
    assert result["failed"]
    assert {(entry["id"], entry["source"], entry["fix"]) for entry in result["findings"]} == {
        (
            "input-unknown",
            "cluster_ssh_prot",
            "did you mean cluster_ssh_port? Correct the name; if the variable is your own, choose another name",
        )
    }
    (entry,) = judge(cluster({"docker_version": "28"}))["findings"][:1]
    assert entry["verdict"] == "fail" and entry["fix"] == (
        "did you mean docker_engine_version? Correct the name; if docker_version is your own variable, set docker_engine_version as well, and it is ignored"
    )
    inventory = cluster({"nccl_colour": "blue", "my_own": 1})
    result = judge(inventory)
    assert "failed" not in result and {entry["source"] for entry in result["findings"]} == {
        "nccl_colour"
    }
    (entry,) = judge(cluster({"docker_engine_mirror": "x"}))["findings"][:1]
    assert entry["verdict"] == "fail" and entry["fix"] == (
        "correct the name; if the variable is your own, choose a name that does not begin with the name of a role"
    )
    assert (
        judge(
            cluster(
                {
                    "cluster_colour": "blue",
                    "train_window": 3,
                    "docker_version": "28",
                    "docker_engine_version": "",
                }
            )
        )["findings"]
        == []
    )
    assert judge(inventory, fail_on="warn")["failed"]
    assert judge(cluster({"nccl_colour": "blue", "preflight_fail_on": "warn"}))["failed"]


def test_a_secret_is_not_shown(judge):
    result = judge(cluster({"training_image_registry_login": "hunter2"}))
    assert result["failed"] and "hunter2" not in str(result)
    result = judge(cluster({"training_image_registry_login": {"pasword": "hunter2"}}))
    assert result["failed"] and "hunter2" not in str(result) and "pasword" in result["msg"]


SECRETS = [("default", VaultSecret(b"word"))]


@pytest.mark.parametrize(
    "name, text",
    [
        ("nccl_url", "nccl_source: source\n      nccl_url: "),
        ("training_image_base", "training_image_base: "),
        ("cluster_network", "mine: "),
        ("package_sources_nvidia_cuda_url", "mine: "),
    ],
)
def test_a_value_from_a_vault_is_not_shown(judge, name, text):
    vaulted = (
        VaultLib(SECRETS)
        .encrypt("hunter2 behind ops@")
        .decode()
        .strip()
        .replace("\n", "\n        ")
    )
    inventory = "cluster:\n  hosts:\n    server-a:\n      %s!vault |\n        %s\n" % (
        text,
        vaulted,
    )
    result = judge(inventory + ("      %s: '{{ mine }}'\n" % name if "mine" in text else ""))
    assert result["failed"] and {source for dummy, source in problems(result)} == {name}
    assert "hunter2" not in str(result) and "(not shown)" in result["msg"]


@pytest.mark.parametrize(
    "url",
    [
        "https://ops:hunter2@m.example",
        "https://ops:hunter2/x@y@m.example/a b",
        "ops:hunter2@m.example/x",
        "ftp://hunter2@m.example",
        "https://m.example/x y?token=hunter2",
        "https://ops:hunter2 z@m.example",
    ],
)
def test_credentials_in_a_refused_url_are_masked(judge, url):
    result = judge(
        cluster(
            {
                "docker_engine_repository_url": url,
                "training_image_horovod_url": url,
                "training_image_base": url,
            }
        )
    )
    assert len(problems(result)) == 3 and "hunter2" not in str(result) and "***" in result["msg"]


PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2\n-----END RSA PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "values, shown",
    [
        (
            {"train_environment": {"A B": "x", "WANDB_API_KEY": "hunter2"}},
            "train_environment: the name 'A B'\n",
        ),
        (
            {"training_container_environment": {"A": ["hunter2"], "B": "hunter2"}},
            "training_container_environment: A is a list\n",
        ),
        ({"training_image_build_variables": {"A B": "hunter2"}}, "the name 'A B'"),
        ({"nccl_tests_make_variables": {"A B": "hunter2"}}, "A B (values are not shown)"),
        (
            {
                "training_image_source_fixes": [
                    {
                        "name": "x",
                        "reason": "y",
                        "source": ["z"],
                        "when": {"torch": ">=2"},
                        "environment": ["A=hunter2"],
                    }
                ]
            },
            "training_image_source_fixes[0].environment: a list (not shown)",
        ),
        ({"train_environment": "A=hunter2"}, "train_environment: a text (not shown)"),
        ({"train_environment": {"A": "hunter2\n"}}, "A: a text (not shown) (\\n)"),
        ({"train_command": "WANDB_API_KEY=hunter2 python3 'x"}, "WANDB_API_KEY=*** python3"),
        (
            {"docker_engine_repository_key": PRIVATE},
            "docker_engine_repository_key: a text with RSA PRIVATE KEY",
        ),
        (
            {"package_sources_ca_certificates": [PRIVATE]},
            "package_sources_ca_certificates[0]: a text with RSA PRIVATE KEY",
        ),
        (
            {"package_sources_ca_certificates": PRIVATE},
            "package_sources_ca_certificates: a text with RSA PRIVATE KEY",
        ),
        ({"cluster_head": PRIVATE}, "-----BEGIN RSA PRIVATE KEY----- ***"),
        (
            {
                "docker_engine_daemon_options": {
                    "Log Driver": "x",
                    "log-opts": {"splunk-token": "hunter2"},
                }
            },
            "docker_engine_daemon_options",
        ),
        ({"ansible_host": "ops:hunter2@host"}, "***@host is the address of"),
        ({"ansible_host": "ops:hun ter2@h"}, "ansible_host: ***@h"),
        ({"docker_engine_repository_url": "m.example/x?pass=hunter2"}, "m.example/x?pass=***"),
        (
            {"docker_engine_repository_url": "ftp://m.example/x?auth=hunter2#token=hunter2"},
            "ftp://m.example/x?auth=***#token=***",
        ),
        ({"docker_engine_repository_url": "ops:hun@ter2@m.example"}, "***@m.example"),
    ],
)
def test_secrets_are_not_shown(judge, values, shown):
    result = judge({"cluster": {"hosts": {"server-a": {}, "server-b": {}}, "vars": values}})
    assert result["failed"] and shown in result["msg"]
    assert "hunter2" not in str(result) and "ter2" not in str(result)


def test_credentials_in_the_name_of_a_host_are_masked(judge):
    result = judge(
        "cluster:\n  hosts:\n    'ops:hunter2@10.0.0.1': {ansible_host: 10.0.0.1}\n    b:\nhead:\n  hosts:\n    'ops:hunter2@c':\n"
    )
    assert (
        result["failed"]
        and "hunter2" not in str(result)
        and "***@c is only in group head" in result["msg"]
    )


@pytest.mark.parametrize("before", [True, False])
def test_the_text_of_a_template_that_fails_is_not_shown(before):
    error = AnsibleError(
        "template error while templating string: unexpected '}'"
        + (". String: hunter2 {{ }" if before else "")
    )
    variable = judge_input.Variable("train_environment", {"type": "dict"}, False, (), {})
    value, problems_of_it = judge_input.judge_value(variable, functools.partial(fail, error))
    assert (
        value == "a template that fails: template error while templating string: unexpected '}'"
        and problems_of_it is None
    )


def fail(error):
    raise error


#: A shared cluster of four hosts in which people would log in on the head, which runs jobs.
SHARED = """
cluster:
  hosts:
    gpu-a: {ansible_host: 192.0.2.11}
    gpu-b: {ansible_host: 192.0.2.12}
    gpu-c: {ansible_host: 192.0.2.13}
  vars: {cluster_scheduler: slurm}
"""


def test_a_login_host_that_runs_jobs_is_named_with_the_way_out(judge):
    result = judge(SHARED)
    told = [entry for entry in result["findings"] if entry["verdict"] == "fail"]
    assert {(entry["source"], entry["found"]) for entry in told} == {
        ("cluster_login_hosts[0]", "gpu-a")
    }
    for line in (
        "gpu: {hosts: {gpu-a: , gpu-b: }}",
        "login: {hosts: {front: }}",
        "scheduler: {hosts: {front: }}",
    ):
        assert "'%s'" % line in told[0]["fix"]
    # What the message says, each way by itself.
    accepted = SHARED.replace(
        "{cluster_scheduler: slurm}",
        "{cluster_scheduler: slurm, slurm_accept_login_on_gpu_hosts: true}",
    )
    assert (
        "slurm_accept_login_on_gpu_hosts: true" in told[0]["fix"]
        and problems(judge(accepted)) == set()
    )
    apart = SHARED.replace("  vars:", "    front: {ansible_host: 192.0.2.10}\n  vars:")
    apart += "gpu: {hosts: {gpu-a: , gpu-b: , gpu-c: }}\nlogin: {hosts: {front: }}\nscheduler: {hosts: {front: }}\n"
    assert problems(judge(apart)) == set()
    # Without group scheduler, the head is scheduler and runs jobs. People need a job there.
    assert problems(judge(apart.replace("scheduler: {hosts: {front: }}\n", ""))) == set()


def test_values_that_differ_are_set_for_all_hosts(judge):
    result = judge(cluster(first={"cluster_ssh_port": 2222}))
    assert {entry["fix"] for entry in result["findings"]} == {
        "set cluster_ssh_port in the variables of group cluster, and remove it from single hosts"
    }


def fixes(result):
    """What is to be done, by the variable and what was found."""
    return {
        (entry["source"], entry["found"]): entry["fix"]
        for entry in result["findings"]
        if entry["host"] == "server-a"
    }


PATH_AND_TARGET = "path is the folder on the server, and target the mount point: write this value as path, and the mount point as target"


@pytest.mark.parametrize(
    "name, value, found, fix",
    [
        # job-failures.md, section 2, class P.
        (
            "nfs_client_mounts",
            [{"path": "/home", "server": "192.0.2.40", "export": "/export/home"}],
            "an unknown key export",
            PATH_AND_TARGET,
        ),
        (
            "nfs_client_mounts",
            [{"path": "/a", "server": "nas", "mountpoint": "/b"}],
            "an unknown key mountpoint",
            "target is the mount point, and path the folder on the server: name the key target",
        ),
        (
            "nfs_client_mounts",
            [{"path": "/a", "server": "nas", "Target": "/b"}],
            "an unknown key Target",
            "did you mean target?",
        ),
        (
            "shared_storage_users",
            [{"name": "anna", "uid": 2001, "home": "/home/anna"}],
            "an unknown key home",
            "remove the key: a person's home is the person's folder in the first tree of shared_storage_trees that is of users",
        ),
        # uid is near, and has another meaning.
        (
            "shared_storage_users",
            [{"name": "anna", "uid": 2001, "xid": 2001}],
            "an unknown key xid",
            "remove the key",
        ),
        # The near key has another type.
        (
            "shared_storage_users",
            [{"name": "anna", "uid": 2001, "group_s": "staff"}],
            "an unknown key group_s",
            "remove the key",
        ),
        (
            "nfs_server_exports",
            [{"path": "/data1/share", "hosts": ["a"]}],
            "an unknown key hosts",
            "name the key clients, a list of addresses, networks or names; the hosts of the cluster are clients without it",
        ),
        (
            "slurm_partitions",
            [{"name": "a", "nodes": ["server-a"]}],
            "an unknown key nodes",
            "name the key hosts, a list of training hosts or of groups of the inventory",
        ),
        (
            "slurm_max_minutes",
            "INFINITE",
            "INFINITE",
            "set slurm_max_minutes to an integer; 0 means no limit",
        ),
        (
            "slurm_max_minutes",
            "2-00:00:00",
            "2-00:00:00",
            "set slurm_max_minutes to 2880 minutes; 0 means no limit",
        ),
        (
            "slurm_accounts",
            [{"name": "a", "max_minutes": "UNLIMITED"}],
            "UNLIMITED",
            "set slurm_accounts[0].max_minutes to an integer; without it, the default is the limit of the partition",
        ),
    ],
)
def test_a_word_of_another_collection_is_answered(judge, name, value, found, fix):
    assert {said: fix for (dummy, said), fix in fixes(judge(cluster({name: value}))).items()}[
        found
    ] == fix


def test_each_refused_option_of_slurm_is_named(judge):
    """The third was not visible among 16 keys, as values are cut."""
    options = dict.fromkeys(["Key%s" % letter for letter in "ABCDEFGHIJKLM"], "x" * 20)
    options.update(Prolog="/a", HealthCheckProgram="/b", AccountingStorageEnforce="limits")
    found = fixes(judge(cluster({"slurm_options": options})))
    assert {
        source: fix for (source, dummy), fix in found.items() if source.startswith("slurm_options")
    } == {
        "slurm_options.Prolog": "add a program with slurm_options.TaskProlog; remove it",
        "slurm_options.HealthCheckProgram": "remove it",
        "slurm_options.AccountingStorageEnforce": "remove it",
    }
    assert "'Prolog' is set by the roles: the prolog prepares the job's folders" in str(found)


def test_refused_options_of_sshd_are_named(judge):
    options = {"AllowUsers": "me", "LogLevel": "INFO"}
    found = fixes(judge(cluster({"training_sshd_options": options})))
    assert list(found.values()) == [
        "AllowUsers: remove the option. Users enter a container with docker exec"
    ]
    # The names are visible behind the end of a long value, too.
    options = dict({"AcceptEnv": ["LONG_%d" % number for number in range(40)]}, **options)
    assert list(fixes(judge(cluster({"training_sshd_options": options})))) == [
        ("training_sshd_options", "AllowUsers")
    ]


@pytest.mark.parametrize(
    "name, template",
    [
        ("cluster_slots", "{{ ansible_processor_vcpus }}"),
        ("cluster_address", "{{ ansible_facts['default_ipv4']['address'] }}"),
        ("cluster_address", "{{ ansible_default_ipv4.address }}"),
        ("nfs_server_threads", "{{ ansible_facts.processor_vcpus * 8 }}"),
        ("training_container_shm_size", "{{ (ansible_memtotal_mb / 2) | int }}m"),
    ],
)
def test_a_fact_of_the_host_is_judged_when_it_is_known(judge, name, template):
    result = judge(cluster({name: template}))
    assert "failed" not in result and result["needs_facts"] and result["deferred"] == [name]
    assert not judge(cluster({"cluster_slots": 8}))["needs_facts"]
    # Facts are known now, but not this one.
    result = judge(cluster({name: template}), {"ansible_facts": {"architecture": "x86_64"}})
    assert result["failed"] and {entry["source"] for entry in result["findings"]} == {name}


def test_a_variable_of_the_connection_is_no_fact(judge):
    result = judge(
        cluster({"train_command": "run {{ ansible_sudo_flags }} {{ ansible_ssh_user }}"})
    )
    assert result["needs_facts"], "the first could be one"
    result = judge(cluster({"train_command": "run {{ ansible_ssh_user }}"}))
    assert result["failed"] and not result["needs_facts"]


def test_a_variable_of_the_build_may_have_lines(judge):
    lines = {"HOROVOD_CMAKE_ARGS": "-DA=1\n-DB=2\n"}
    assert judge(cluster({"training_image_build_variables": lines}))["findings"] == []
    for name in ("training_container_environment", "nccl_tests_make_variables"):
        assert judge(cluster({name: lines}))["failed"]
    lines = {"HOROVOD_CMAKE_ARGS": "-DA=1\x00"}
    assert judge(cluster({"training_image_build_variables": lines}))["failed"]
