"""Rules for input, and the structure of an inventory."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _findings, _input_rules

WORDS = {"allowed": "as it must be", "fix": "make it so"}


def judge(rule, *values, truth=True):
    rules = _input_rules.parse_rules(
        {"input_rules": [dict(rule, variable=rule.get("variable", "r_v"))]}, "r", ["r_v"]
    )
    hosts = {"host-%d" % number: {"r_v": value} for number, value in enumerate(values)}
    return _input_rules.judge_rules(rules, hosts, lambda host, expression, item: truth)


@pytest.mark.parametrize(
    "rule, good, bad",
    [
        ({"range": [1, 65535]}, [1, 12345, 65535], [0, 70000, -1, True, "22"]),
        ({"range": [0, None]}, [0, 10**9, 0.5], [-1]),
        ({"range": [None, 3]}, [-5, 3], [4]),
        (
            {"path": "absolute"},
            ["/data1/share", "/a"],
            ["share", "", "/", "//", "/a/../etc", "~/x"],
        ),
        (
            {"network": True},
            ["10.0.0.0/24", "169.254.0.0/16"],
            ["2001:db8::/64", "10.0.0.1/24", "10.0.0.0", "lan", "", "10.0.0.0/33"],
        ),
        (
            {"network": "several", "empty": True},
            ["", [], "10.0.0.0/24", ["10.0.0.0/24", "10.0.1.0/24"]],
            ["lan", ["10.0.0.0/24", "10.0.0.0/16"]],
        ),
        (
            {"hostname": "address"},
            ["10.0.0.1"],
            ["::1", "10.0.0.256", "server-a", "10.0.0.0/24", ""],
        ),
        ({"hostname": "address", "empty": True}, ["", "10.0.0.1"], ["x"]),
        (
            {"command": True},
            ["python3 x.py", "sh -c 'a; b'"],
            ["", "  ", "python3 'x.py", 'say "', "a\\"],
        ),
        ({"range": [1, 9], "empty": True}, ["", None, [], {}], [0, False]),
        (dict(WORDS, pattern="[a-z]+"), ["abc"], ["abc\n", "a1", ""]),
        ({"variable": "r_v[]", "unique": True}, [["a", "b"], []], [["a", "a"]]),
        (
            {"variable": "r_v[].path", "path": "absolute"},
            [[{"path": "/a"}, {}, {"path": None}], "no list"],
            [[{"path": "/a"}, {"path": "b"}]],
        ),
        (
            {"variable": "r_v.inner[].n", "range": [1, 2]},
            [{"inner": [{"n": 1}]}, {}],
            [{"inner": [{"n": 3}]}],
        ),
    ],
)
def test_valid_and_invalid_values_of_each_rule(rule, good, bad):
    for value in good:
        assert judge(rule, value) == [], value
    for value in bad:
        assert len(judge(rule, value)) == 1, value


def test_a_finding_names_variable_value_what_is_allowed_and_the_fix():
    assert judge({"range": [1, 65535]}, 70000) == [
        {
            "id": "input-range",
            "host": "host-0",
            "verdict": "fail",
            "expected": "a number from 1 to 65535",
            "found": "70000",
            "source": "r_v",
            "seconds": 0.0,
            "fix": "set r_v to a number from 1 to 65535",
        }
    ]
    (entry,) = judge(
        {"variable": "r_v[].path", "path": "absolute", "severity": "warn"},
        [{"path": "/a"}, {"path": "b"}],
    )
    assert entry["source"] == "r_v[1].path" and entry["verdict"] == "warn" and entry["found"] == "b"


@pytest.mark.parametrize(
    "rule, value, fix",
    [
        ({"path": "plain"}, "//data1/./share/.", "set r_v to /data1/share"),
        ({"path": "plain_any"}, "/./", "set r_v to /"),
        ({"path": "device"}, "//dev/fuse", "set r_v to /dev/fuse"),
        # In no spelling good.
        ({"path": "plain"}, "//data1/a b", "make it so"),
        ({"path": "device"}, "//dev/sda", "make it so"),
        ({"path": "plain"}, "/data1/../x", "make it so"),
    ],
)
def test_a_path_in_another_spelling_is_refused_with_the_plain_one(rule, value, fix):
    (entry,) = judge(dict(rule, fix="make it so"), value)
    assert (entry["found"], entry["fix"]) == (value, fix)
    rules = _input_rules.parse_rules({"input_rules": [dict(rule, variable="r_v")]}, "r", ["r_v"])
    (entry,) = _input_rules.judge_rules(
        rules, {"a": {"r_v": value}}, None, lambda host, label, value: "(not shown)"
    )
    assert "dev/fuse" not in entry["fix"] and "data1" not in entry["fix"]


@pytest.mark.parametrize(
    "value, advice",
    [
        ("hrad", "did you mean hard?"),
        ("noatme", "did you mean noatime?"),
        ("nconect=4", "did you mean nconnect=4?"),
        ("rsze=8192", "did you mean rsize=8192?"),
        ("foo", "make it so"),
        ("proto=tpc", "make it so"),
        ("nconect=99", "make it so"),
    ],
)
def test_the_option_that_is_meant_is_named(value, advice):
    (entry,) = judge({"nfs_option": "mount", "fix": "make it so"}, value)
    assert (entry["id"], entry["found"], entry["fix"]) == ("input-nfs-option", value, advice)


def test_only_conflicting_options_are_named():
    (entry,) = judge(
        {"exclusive": [["ro", "rw"], ["hide", "nohide"], ["fsid="]]},
        ["rw", "fsid=0", "fsid=1", "ro"],
    )
    assert entry["expected"] == "one of ro and rw, fsid once"
    # exports(5): some options may differ by the flavor of security.
    assert judge({"exclusive": [["ro", "rw"]]}, ["sec=krb5", "rw", "sec=sys", "ro"]) == []
    assert len(judge({"exclusive": [["ro", "rw"]]}, ["sec=krb5", "rw", "ro", "sec=sys"])) == 1


def test_expressions():
    rule = dict(WORDS, that="anything")
    assert judge(rule, 1, truth=True) == []
    (entry,) = judge(rule, 1, truth=False)
    assert (entry["id"], entry["expected"], entry["fix"]) == (
        "input-rule",
        "as it must be",
        "make it so",
    )
    assert judge({"range": [1, 2], "when": "anything"}, 5, truth=False) == []


def test_rules_across_hosts():
    assert judge({"same": True}, 1, 1) == []
    assert [(entry["host"], entry["found"]) for entry in judge({"same": True}, 1, 2, 1)] == [
        ("host-0", "1"),
        ("host-1", "2"),
    ]
    assert judge({"unique": True}, "a", "a") == []
    assert [entry["host"] for entry in judge({"unique": "hosts"}, "a", "b", "a")] == ["host-2"]


def test_secrets_are_not_shown():
    rules = _input_rules.parse_rules(
        {"input_rules": [dict(WORDS, variable="r_v.password", pattern="x+")]}, "r", ["r_v"]
    )
    (entry,) = _input_rules.judge_rules(
        rules,
        {"a": {"r_v": {"password": "hunter2"}}},
        None,
        lambda host, label, value: "(not shown)",
    )
    assert "hunter2" not in str(entry)


def test_a_rule_of_several_variables_is_one_rule_for_each():
    row = {"variable": ["r_v[].path", "r_w"], "path": "absolute"}
    rules = _input_rules.parse_rules({"input_rules": [row]}, "r", ["r_v", "r_w"])
    hosts = {"a": {"r_v": [{"path": "b"}], "r_w": "c"}, "b": {"r_v": [{"path": "/d"}], "r_w": "e"}}
    found = _input_rules.judge_rules(rules, hosts, None)
    assert [(entry["host"], entry["source"], entry["found"]) for entry in found] == [
        ("a", "r_v[0].path", "b"),
        ("a", "r_w", "c"),
        ("b", "r_w", "e"),
    ]


def test_a_variable_that_is_wrong_already_is_not_judged_again():
    rules = _input_rules.parse_rules(
        {"input_rules": [{"variable": "r_v", "range": [1, 2]}]}, "r", ["r_v"]
    )
    assert _input_rules.judge_rules(rules, {"a": {}, "b": {"r_v": 1}}, None) == []


@pytest.mark.parametrize(
    "data, blamed",
    [
        ([], "one list named input_rules"),
        ({"rules": []}, "one list named input_rules"),
        ({"input_rules": [{"range": [1, 2]}]}, "without variable"),
        ({"input_rules": [{"variable": [], "same": True}]}, "without variable"),
        ({"input_rules": [{"variable": ["r_v", 1], "same": True}]}, "without variable"),
        ({"input_rules": [{"variable": "r_v"}]}, "exactly one of"),
        ({"input_rules": [{"variable": "r_v", "range": [1, 2], "same": True}]}, "exactly one of"),
        ({"input_rules": [{"variable": "r_v", "range": [1, 2], "fixx": "x"}]}, "unknown key fixx"),
        ({"input_rules": [{"variable": "r_other", "same": True}]}, "no such variable"),
        (
            {"input_rules": [{"variable": ["r_v", "r_other"], "same": True}]},
            "rule of r_other: the role has no such variable",
        ),
        (
            {"input_rules": [{"variable": "r_v", "same": True, "severity": "fatal"}]},
            "block or warn",
        ),
        ({"input_rules": [{"variable": "r_v", "that": "x"}]}, "needs allowed and fix"),
    ],
)
def test_a_rule_that_is_misspelt_is_an_error(data, blamed):
    with pytest.raises(_input_rules.RuleError, match=blamed):
        _input_rules.parse_rules(data, "r", ["r_v"])


KNOWN = {
    "training_image_base",
    "cluster_head",
    "cluster_network",
    "cluster_ssh_port",
    "docker_engine_version",
    "nccl_version",
    "train_timeout",
    "nfs_server_exports",
    "nfs_server_options",
    "nfs_client_options",
    "package_sources_http_proxy",
    "train_environment",
    "training_container_environment",
    "preflight_fail_on",
}
ROLES = [
    "preflight",
    "upgrade",
    "verify",
    "nvidia_driver",
    "slurm",
    "training_image",
    "cluster",
    "docker_engine",
    "nccl",
    "train",
    "nfs_server",
    "nfs_client",
    "package_sources",
    "training_container",
]


@pytest.mark.parametrize(
    "name, meant, likely",
    [
        ("training_image_bse", "training_image_base", "misspelt"),
        ("ncll_version", "nccl_version", "misspelt"),
        ("trainig_image_base", "training_image_base", "misspelt"),
        ("CLUSTER_SSH_PORT", "cluster_ssh_port", "misspelt"),
        ("clusterSshPort", "cluster_ssh_port", "misspelt"),
        ("trainyard_cluster_head", "cluster_head", "misspelt"),
        ("cluster_netwrok", "cluster_network", "misspelt"),
        ("nfs_srver_exports", "nfs_server_exports", "misspelt"),
        ("cluster_networks", "cluster_network", "misspelt"),
        ("dcker_engine_version", "docker_engine_version", "misspelt"),
        ("dockerengine_version", "docker_engine_version", "misspelt"),
        ("nfs_clinet_options", "nfs_client_options", "misspelt"),
        # A prefix that lacks a word, or has its words in another order.
        ("docker_version", "docker_engine_version", "prefix"),
        ("engine_docker_version", "docker_engine_version", "prefix"),
        ("nfs_options", "nfs_client_options or nfs_server_options", "prefix"),
        ("package_http_proxy", "package_sources_http_proxy", "prefix"),
        # It may be the user's own.
        ("nccl_zzz", "", "maybe"),
        # They begin as the variables of a role do.
        ("docker_engine_plugins", "", "ours"),
        ("docker_engine_mirror", "", "ours"),
        ("verify_treshold", "", "ours"),
        ("preflight_fail", "preflight_fail_on", "ours"),
        ("upgrade_zzz", "", "ours"),
        ("cluster_network2", "cluster_network", "misspelt"),
        ("train_timeouts", "train_timeout", "misspelt"),
        # No role begins like this, but all of it is nearly the name of a variable.
        ("train_enviroments", "train_environment", "misspelt"),
    ],
)
def test_a_name_that_no_role_has(name, meant, likely):
    assert _input_rules.unknown_variables([name, "train_timeout"], KNOWN, ROLES) == {
        name: (meant, likely)
    }


@pytest.mark.parametrize(
    "name",
    [
        "ansible_host",
        "mine",
        "http_proxy",
        "nfs_server",
        "timeout",
        "version",
        "__cluster_head",
        "my_cluster_network",
        "train_env",
        "train_window",
        "cluster_zzz",
        "my_docker_version",
        "container_environment",
        "engine_version",
        "base",
        "image_base",
        "docker",
        "cluster_name",
        # Of well-known other roles, whose inventory may be the same.
        "nfs_exports",
        "nfs_rpcbind_state",
        "nfs_client_mnt_options",
        "docker_edition",
        "docker_users",
        "docker_daemon_options",
        "docker_install_compose",
        "nvidia_driver_ubuntu_install_from_cuda_repo",
        "nvidia_driver_skip_reboot",
        "slurm_config",
        "slurm_nodes",
        "slurm_enable_nfs_server",
        "upgrade_cluster_setup",
    ],
)
def test_a_name_of_the_users_own(name):
    assert _input_rules.unknown_variables([name], KNOWN, ROLES) == {}


def test_a_name_beside_the_one_that_could_be_meant_is_anothers():
    assert (
        _input_rules.unknown_variables(["docker_version", "docker_engine_version"], KNOWN, ROLES)
        == {}
    )
    assert list(
        _input_rules.unknown_variables(
            ["dcker_engine_version", "docker_engine_version"], KNOWN, ROLES
        )
    ) == ["dcker_engine_version"]


def test_a_number_behind_a_name_is_a_second_one():
    names = ["cluster_network", "cluster_network2"]
    assert _input_rules.unknown_variables(names, KNOWN, ROLES) == {
        "cluster_network2": ("cluster_network", "maybe")
    }


def test_a_suggestion_can_have_the_value():
    """job-failures.md, section 2, class P: a proxy is no list of hosts without one."""
    known = {
        "package_sources_no_proxy": {"type": "list", "elements": "str"},
        "package_sources_http_proxy": {"type": "str"},
        "preflight_fail_on": {"type": "str", "choices": ["block", "warn"]},
    }
    unknown = _input_rules.unknown_variables(
        {
            "package_sources_proxy": "http://192.0.2.5:3128",
            "package_sources_proxys": ["a", "b"],
            "preflight_fail": "never",
        },
        known,
        ROLES,
    )
    assert {name: meant for name, (meant, dummy) in unknown.items()} == {
        "package_sources_proxy": "package_sources_http_proxy",
        "package_sources_proxys": "package_sources_no_proxy",
        "preflight_fail": "preflight_fail_on",
    }


def told(answer, value=None, label=""):
    """The findings of a rule whose function gives this answer about a value."""
    (rule,) = _input_rules.parse_rules(
        {"input_rules": [dict(WORDS, variable="x" + label, faults="x | f")]}, "r", ["x"]
    )
    value = value if value is not None else {"Prolog": "/a", "TmpFS": "/b"}
    return [
        (entry["source"], entry["found"], entry["fix"])
        for entry in _input_rules.judge_rules(
            [rule], {"a": {"x": value}}, lambda host, expression, item: answer
        )
    ]


@pytest.mark.parametrize(
    "answer, findings",
    [
        ([], []),
        # What it computes with was found wrong before.
        (True, []),
        (False, [("x", "{'Prolog': '/a', 'TmpFS': '/b'}", "make it so")]),
        (
            ["Port", "AllowUsers"],
            [("x", "{'Prolog': '/a', 'TmpFS': '/b'}", "Port, AllowUsers: make it so")],
        ),
        (
            [{"name": "anna", "gid": 1}],
            [("x", "{'Prolog': '/a', 'TmpFS': '/b'}", "anna: make it so")],
        ),
        (
            ["x: 'Prolog' is ours: why; set another; remove it"],
            [("x.Prolog", "'Prolog' is ours: why", "set another; remove it")],
        ),
        (
            ["x: 'Prolog' is ours; remove it", "x: 'TmpFS' is ours; remove it"],
            [
                ("x.Prolog", "'Prolog' is ours", "remove it"),
                ("x.TmpFS", "'TmpFS' is ours", "remove it"),
            ],
        ),
        # Several things about the whole.
        (
            ["x: 'a' preempts 'b'; correct it", "x: 'c' is listed twice; keep one"],
            [("x", "'a' preempts 'b'", "correct it"), ("x", "'c' is listed twice", "keep one")],
        ),
        (
            ["x: 'Prolog' has 'token=hunter2hunter2'; remove it"],
            [("x.Prolog", "'Prolog' has 'token=***'", "remove it")],
        ),
    ],
)
def test_what_a_function_says_is_told(answer, findings):
    """job-failures.md, section 2, class P: a rule took only whether the list was empty."""
    assert told(answer) == findings


def test_what_a_function_says_of_a_secret_is_not_told():
    (rule,) = _input_rules.parse_rules(
        {"input_rules": [dict(WORDS, variable="x", faults="x | f")]}, "r", ["x"]
    )
    (entry,) = _input_rules.judge_rules(
        [rule],
        {"a": {"x": "hunter2"}},
        lambda host, expression, item: ["x: 'hunter2' is wrong; correct it"],
        reveal=lambda host, label, value: "(not shown)",
    )
    assert "hunter2" not in str(entry) and entry["fix"] == "correct it"


def test_texts_that_may_have_lines():
    rules = _input_rules.parse_rules(
        {
            "input_rules": [
                {"variable": "x", "environment": "unset"},
                {"variable": "y[].z", "multiline": True},
                {"variable": "w", "environment": True},
            ]
        },
        "r",
        ["w", "x", "y"],
    )
    those = _input_rules.texts_of_many_lines(rules)
    paths = ["x.A", "y[12].z", "w.A", "x", "x.A.B", "y[1].a"]
    assert [path for path in paths if _input_rules.may_have_lines(path, those)] == paths[:2]


def test_a_name_that_the_inventory_itself_reads_is_the_users_own():
    assert (
        _input_rules.unknown_variables(
            ["cluster_networks"], KNOWN, ROLES, used={"cluster_networks"}
        )
        == {}
    )


@pytest.mark.parametrize(
    "groups, found",
    [
        ({"cluster": ["a"], "gpus": ["a"]}, {"gpus": "gpu"}),
        ({"cluster": ["a"], "Head": ["a"]}, {"Head": "head"}),
        ({"clusters": ["a"]}, {"clusters": "cluster"}),
        ({"cluster": ["a"], "storge": ["a"]}, {"storge": "storage"}),
        ({"cluster": ["a"], "haed": ["a"]}, {"haed": "head"}),
        ({"cluster": ["a"], "clusters": ["b"]}, {"clusters": "cluster"}),
        ({"cluster": ["a", "b"], "gpu": ["a"], "gpus": ["a", "b"]}, {}),
        ({"cluster": ["a"], "clusters": ["a", "b"]}, {}),
        ({"cluster": ["a"], "gpu1": ["a"]}, {}),
        (
            {
                "cluster": ["a"],
                "cpu": ["a"],
                "rack2": ["a"],
                "lead": ["a"],
                "gpu_a100": ["a"],
                "heads": [],
            },
            {},
        ),
    ],
)
def test_a_group_that_is_nearly_one_of_ours(groups, found):
    assert _input_rules.misspelt_groups(groups) == found


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"type": "str", "choices": ["auto", "never"]}, "one of auto, never"),
        ({"type": "int"}, "an integer"),
        ({}, "text"),
        (
            {"type": "list", "elements": "dict", "options": {"path": {}, "server": {}}},
            "a list of dictionaries with the keys path, server",
        ),
    ],
)
def test_description_of_an_option(spec, words):
    assert _input_rules.describe(spec) == words


def hosts(**addresses):
    return {
        name: {"address": address, "port": "22", "connection": "ssh", "cluster_address": ""}
        for name, address in addresses.items()
    }


@pytest.mark.parametrize(
    "groups, connections, check_id, blamed",
    [
        (
            {"all": ["a"], "ungrouped": ["a"], "servers": ["a"]},
            {},
            "inventory-no-cluster",
            "servers",
        ),
        ({"all": [], "ungrouped": []}, {}, "inventory-no-cluster", "none"),
        ({"all": ["a"], "cluster": []}, {}, "inventory-empty-cluster", "no host"),
        (
            {"all": ["a", "b"], "cluster": ["a"], "head": ["b"]},
            hosts(a="a"),
            "inventory-outside-cluster",
            "b is only in group head",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a"], "storage": ["b"]},
            hosts(a="a"),
            "inventory-outside-cluster",
            "b is only in group storage",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a"], "gpu": ["b"]},
            hosts(a="a"),
            "inventory-outside-cluster",
            "b is only in group gpu",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a", "b"], "head": ["a", "b"]},
            hosts(a="a", b="b"),
            "inventory-one-host",
            "2 hosts: a, b",
        ),
        (
            {"all": ["cluster"], "cluster": ["cluster"]},
            hosts(cluster="x"),
            "inventory-host-like-group",
            "cluster is a host and a group",
        ),
        (
            {"all": ["a", "lab"], "cluster": ["a"], "lab": ["lab"]},
            hosts(a="a"),
            "inventory-host-like-group",
            "lab is a host and a group",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a", "b"]},
            hosts(a="10.0.0.1", b="10.0.0.1"),
            "inventory-same-address",
            "10.0.0.1 is the address of a, b",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a", "b"]},
            hosts(a="Node.example.org", b="node.example.org."),
            "inventory-same-address",
            "a, b",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a", "b"]},
            hosts(a="2001:db8::1", b="2001:0db8:0::1"),
            "inventory-same-address",
            "a, b",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a", "b"]},
            {
                "a": {
                    "address": "a",
                    "port": "22",
                    "connection": "ssh",
                    "cluster_address": "10.0.0.1",
                },
                "b": {
                    "address": "b",
                    "port": "22",
                    "connection": "ssh",
                    "cluster_address": "10.0.0.1",
                },
            },
            "inventory-same-address",
            "10.0.0.1",
        ),
        (
            {"all": ["a", "b"], "cluster": ["a", "b"]},
            {
                "a": {
                    "address": "10.0.0.1",
                    "port": "22",
                    "connection": "ansible.builtin.ssh",
                    "cluster_address": "",
                },
                "b": {
                    "address": "10.0.0.1",
                    "port": "22",
                    "connection": "paramiko_ssh",
                    "cluster_address": "",
                },
            },
            "inventory-same-address",
            "10.0.0.1",
        ),
    ],
)
def test_inventory_that_is_refused(groups, connections, check_id, blamed):
    (entry,) = _input_rules.check_inventory(groups, connections)
    assert (
        entry["id"] == check_id
        and entry["verdict"] == "fail"
        and blamed in entry["found"]
        and entry["fix"]
    )


@pytest.mark.parametrize(
    "groups, connections",
    [
        (
            {
                "all": ["a", "b"],
                "ungrouped": [],
                "cluster": ["a", "b"],
                "head": ["b"],
                "storage": ["a"],
                "gpu": ["a", "b"],
            },
            hosts(a="10.0.0.1", b="10.0.0.2"),
        ),
        (
            {"all": ["a", "b"], "cluster": ["a", "b"], "head": []},
            {
                "a": {
                    "address": "127.0.0.1",
                    "port": "2221",
                    "connection": "ssh",
                    "cluster_address": "10.0.0.1",
                },
                "b": {
                    "address": "127.0.0.1",
                    "port": "2222",
                    "connection": "ssh",
                    "cluster_address": "10.0.0.2",
                },
            },
        ),
    ],
)
def test_inventory_that_is_good(groups, connections):
    assert _input_rules.check_inventory(groups, connections) == []


def test_a_lab_that_is_not_up():
    connections = {
        name: dict(
            entry, missing_lab_key="/checkout/.lab/ssh/id_ed25519", lab_command="make lab-vm"
        )
        for name, entry in hosts(a="10.0.0.1", b="10.0.0.2").items()
    }
    (entry,) = _input_rules.check_inventory({"cluster": ["a", "b"]}, connections)
    assert (entry["id"], entry["host"], entry["verdict"]) == ("inventory-no-lab", "a, b", "fail")
    assert (
        "/checkout/.lab/ssh/id_ed25519 does not exist" in entry["found"]
        and "run make lab-vm," in entry["fix"]
    )


def test_findings_read_once_for_all_hosts_and_blocking_ones_first():
    findings = [
        _findings.finding("a", "x", "warn", "e", "f", "s", "do"),
        _findings.finding("b", "x", "fail", "e", "f", "s", "do"),
        _findings.finding("b", "y", "fail", "e", "f", "s", "do"),
        _findings.finding("c", "y", "pass"),
    ]
    assert (
        _findings.render(findings)
        == "BLOCK b: x, y\n  s: f\n  expected: e\n  fix: do\nWARN a: x\n  s: f\n  expected: e\n  fix: do"
    )
    assert [entry["id"] for entry in _findings.blocks(findings)] == ["b", "b"]
    assert [entry["id"] for entry in _findings.blocks(findings, "warn")] == ["a", "b", "b"]
    with pytest.raises(ValueError):
        _findings.finding("a", "x", "bad")
