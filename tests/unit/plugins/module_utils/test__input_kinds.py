"""Kinds of values, each with valid and invalid examples."""

from __future__ import annotations

import time

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _input_kinds as kinds

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "judge, good, bad",
    [
        (
            kinds.is_image,
            [
                "ubuntu",
                "a/b:1",
                "host:5000/a/b@" + DIGEST,
                "localhost/a",
                "nvcr.io/nvidia/pytorch:25.02-py3",
                "a__b/c-d",
                "10.0.0.1:5000/a",
            ],
            [
                "",
                "A",
                "a:",
                ":1",
                "a b",
                "a//b",
                "-a",
                "https://a/b",
                "a@sha256:1",
                "a:b:c",
                "0" * 64,
                "h:99999/a",
                "a\n",
                None,
                1,
            ],
        ),
        (
            kinds.is_hostname,
            ["a", "node_1", "a-b.example.org", "1", "a."],
            ["", "a..b", "-a", "a-", "a b", "a" * 64, "1.2.3.4", "999.1.1.1", "*", "\u00e4", None],
        ),
        (
            kinds.is_client,
            ["10.0.0.0/24", "10.0.0.1", "2001:db8::/32", "nas.example.org"],
            ["10.0.0.1/24", "0.0.0.0/0", "::/0", "*", "a/24", "10.0.0.0/33", ":::"],
        ),
        (
            kinds.is_no_proxy,
            ["*", ".a.example", "a:80", "10.0.0.0/8", "::1", "*.lab", "[::1]"],
            ["a b", "http://a", "a,b", "", "a\n", None],
        ),
        (
            kinds.is_network,
            ["10.0.0.0/24"],
            ["10.0.0.1/24", "10.0.0.0", "0.0.0.0/0", "127.0.0.0/8", "::/64", "10.0.0.0/24\n"],
        ),
        (
            kinds.are_networks,
            [
                "10.0.0.0/24",
                ["10.0.0.0/24"],
                ["10.0.0.0/24", "10.0.1.0/24"],
                "10.0.0.0/24,10.0.1.0/24",
            ],
            [
                [],
                "",
                None,
                ["10.0.0.1/24"],
                ["10.0.0.0/24"] * 2,
                ["10.0.0.0/24", "10.0.0.0/25"],
                [7],
                {},
            ],
        ),
        (
            kinds.is_url,
            ["https://a.example", "http://a:80/b?c=d", "file:///srv/x", "https://[::1]:8080/x"],
            [
                "https://u:p@a",
                "ftp://a",
                "https://",
                "https://a:0",
                "https://a:70000",
                "https://a b",
                "file://host/x",
                "file:///",
                "https://a\\b",
                "https://a@b/c@d",
            ],
        ),
        (
            lambda value: kinds.is_url(
                value, {"schemes": ["http", "https"], "credentials": True, "path": False}
            ),
            ["http://p:3128", "https://u:p%40@p/"],
            ["p:3128", "http://p/x", "socks5://p", "http://p\n"],
        ),
        (
            kinds.is_plain_path,
            ["/a/b", "/a/", "/gr\u00f6\u00dfe"],
            ["/", "a", "/a b", "/a/../b", "/$(x)", "/a\n", "/\u0661", "/a'"],
        ),
        (
            kinds.is_version,
            [
                "12.6",
                "2.21.5-1+cuda12.4",
                "2.8.4-1",
                "11.4.0-1ubuntu1~22.04",
                "2.6.0a0+ecf3bae40a.nv25.01",
                "4.1.7rc1",
                "4.1.7+",
                12,
            ],
            ["latest", "12.6 x", "4:11.2.0", "12.6\n", "", "v1", "1.", "1-", 1.5, None],
        ),
        (kinds.is_command, ["a 'b c'", "a \\\n b"], ["", " ", "a 'b", True, ["a"]]),
        (
            kinds.is_environment,
            [{}, {"A": "b", "_1": 2}],
            [{"1": "x"}, {"A": "b\n"}, {"A": []}, [], "A=b"],
        ),
    ],
)
def test_valid_and_invalid_values_of_each_kind(judge, good, bad):
    assert [value for value in good if not judge(value)] == [] and [
        value for value in bad if judge(value)
    ] == []


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        (
            "pinned",
            [
                "numpy==1.26.4",
                "torch==2.1.0+cu118",
                "torch[a,b]==2.0.0rc1",
                "a==1!2.0",
                "a==2.6.0a0+ecf3bae40a.nv25.01",
                "a==1.0.post1",
                "a==1-1",
                "a==v1",
                "a==1.0.dev3",
                "a_b.c-d==2026.1",
            ],
            [
                "numpy==latest",
                "numpy==",
                "numpy==1.x",
                "numpy==1.*",
                "numpy==1..2",
                "numpy==1.2 ; python_version<'3'",
                "numpy",
                "numpy>=1",
                "==1",
                "-a==1",
                "a==1\n",
            ],
        ),
        (
            "requirement",
            [
                "cmake==3.31.6",
                "a==1; python_version<'3.7'",
                "a==1 ; python_version < \"3.7\" and (os_name == 'posix' or extra=='x')",
                "a==1;'linux' in sys_platform",
                "a==1; sys_platform not in 'win32'",
                "a==1 ; (python_version>='3')",
            ],
            [
                "cmake==3.31.6 ; foo",
                "a==1;",
                "a==1; ",
                "a==1; python_version",
                "a==1; python_version<3",
                "a==1; (python_version<'3'",
                "a==1; python_version<'3' and",
                "a==1; python_version<'3' os_name=='x'",
                "a==1; )(",
                "a==1; python_version<'3\n'",
                "a==1; foo=='x'",
                "a==1; 'a' 'b'",
            ],
        ),
    ],
)
def test_packages_of_pip(kind, good, bad):
    assert [value for value in good if not kinds.is_package(value, kind)] == [] and [
        value for value in bad if kinds.is_package(value, kind)
    ] == []


def test_one_version_of_each_package():
    assert kinds.is_one_version_each(
        [
            "numpy==1.2",
            "torch==2.0",
            "a==1; python_version<'3.7'",
            "a==2; python_version>='3.7'",
            "numpy==1.2",
        ]
    )
    assert not kinds.is_one_version_each(["numpy==1.2", "torch==2", "Num_Py==1.2", "numpy==1.3"])
    assert not kinds.is_one_version_each(["a-b==1", "A.b[x]==2"]) and not kinds.is_one_version_each(
        ["a==1;os_name=='x'", "a==2; os_name == 'x'"]
    )


def block(kind="CERTIFICATE", body="TUlJQg=="):
    return "-----BEGIN %s-----\n%s\n-----END %s-----\n" % (kind, body, kind)


PGP = "PGP PUBLIC KEY BLOCK"


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        (
            "CERTIFICATE",
            [
                block(),
                "CN = x\n" + block() + block(),
                block().replace("\n", "\r\n"),
                block(body="  TUlJ\n  Qg=="),
            ],
            [
                block("RSA PRIVATE KEY") + block(),
                block() + block("PRIVATE KEY"),
                block(body="!!!"),
                block(body=""),
                block(body="MIIB..."),
                block()[:-8],
                "x",
                block("TRUSTED CERTIFICATE"),
                block()[:40] + block(),
                block(PGP),
            ],
        ),
        (
            PGP,
            [
                block(PGP, "\nTUlJ\n=abcd"),
                block(PGP, "Version: GnuPG v2\nComment: x\n\nTUlJ\n=abcd"),
                block(PGP, ".\nTUlJ"),
                block(PGP),
            ],
            [
                block(PGP, ""),
                block(PGP, "\n"),
                block(PGP, "Version: GnuPG v2\n\n"),
                block(PGP, "\n=abcd"),
                block("PGP PRIVATE KEY BLOCK"),
                block(PGP, "Version: x\nTUlJ"),
                block(PGP) + block("PGP PRIVATE KEY BLOCK"),
            ],
        ),
    ],
)
def test_keys_and_certificates(kind, good, bad, tmp_path):
    for text, is_good in [(text, True) for text in good] + [(text, False) for text in bad]:
        path = tmp_path / "key"
        path.write_bytes(text.encode())
        assert kinds.is_key(text, kind) is is_good, text
        assert kinds.is_key(str(path), kind) is is_good, text
    path.write_bytes(b"\x99\x01\xff\x80")
    assert (
        not kinds.is_key(str(path), kind)
        and not kinds.is_key("/etc/passwd", kind)
        and not kinds.is_key(str(tmp_path), kind)
    )


def test_what_is_shown_of_a_file_with_a_key(tmp_path):
    path = tmp_path / "ca.pem"
    path.write_text(block("RSA PRIVATE KEY", "hunter2") + block())
    assert kinds.show_key(str(path)) == "%s with RSA PRIVATE KEY and CERTIFICATE" % path
    assert kinds.show_key("/etc/passwd") == "/etc/passwd"


@pytest.mark.parametrize(
    "use, good, bad",
    [
        (
            "share",
            ["/data1/share", "/srv/x", "/mnt/a"],
            ["/etc", "//etc/x", "/./usr", "/home/a", "/opt/a", "/var/nfs", "/ETC"],
        ),
        (
            "export",
            ["/data1", "/home/share", "/opt/x", "/var/nfs"],
            ["/home", "/opt", "/var", "/var/lib/x", "//var//log", "/root/.ssh"],
        ),
        ("mount", ["/data1", "/home", "/mnt"], ["/usr/", "/opt", "/var/lib/docker", "/boot/efi"]),
        ("tree", ["/home", "/mnt/user", "/opt/x"], ["//etc/x", "/var/x", "/tmp"]),
        ("data", ["/var/lib/docker", "/data/docker", "/mnt/x"], ["/var/lib", "/etc", "/home"]),
        (
            "target",
            ["/workspace", "/etc/nccl.conf", "/dev/shm", "/usr/lib/x"],
            ["/proc/x", "/sys", "/dev", "/etc", "//usr/"],
        ),
    ],
)
def test_folders(use, good, bad):
    assert [path for path in good if not kinds.is_folder(path, use)] == [] and [
        path for path in bad if kinds.is_folder(path, use)
    ] == []


@pytest.mark.parametrize(
    "spec, value, result, found",
    [
        ({"type": "int"}, "12", 12, None),
        ({"type": "int"}, "1_2", "1_2", "1_2"),
        ({"type": "int"}, True, True, "True"),
        ({"type": "float"}, "0.5", 0.5, None),
        ({}, 570, "570", None),
        ({}, 20.10, 20.1, "a number without quotes, which YAML reads as 20.1"),
        ({}, ["x"], ["x"], "a list: ['x']"),
        ({"type": "bool"}, "no", False, None),
        ({"type": "list", "elements": "int"}, ["1", 2], [1, 2], None),
        ({"type": "list"}, "a,b", "a,b", "a,b"),
        ({"choices": ["3"]}, 3, "3", None),
        (
            {"type": "dict", "options": {"uid": {"type": "int"}}},
            {"uid": "2001"},
            {"uid": 2001},
            None,
        ),
        (
            {"type": "dict", "options": {"uid": {"type": "int"}}},
            {"uidd": 1},
            {},
            "an unknown key uidd",
        ),
    ],
)
def test_values_are_converted_to_their_types(spec, value, result, found):
    checked, wrong = kinds.check_type(spec, value)
    assert checked == result and [entry[3] for entry in wrong] == ([found] if found else [])


@pytest.mark.parametrize(
    "text, shown",
    [
        ("https://ops:hunter2@a/b", "https://***@a/b"),
        ("https://a/b?token=hunter2&c=d", "https://a/b?token=***&c=***"),
        ("a/b@" + DIGEST, "a/b@" + DIGEST),
        ("https://u:p/q@r@a", "https://***@a"),
        ("u:p@a", "***@a"),
        ("", "''"),
        ("  ", "' '"),
        ("a\nb\x1b", "a b\\x1b"),
        ("a" * 200, "a" * 160 + "..."),
        (["x"], "['x']"),
        ("u:p q@r@a", "***@a"),
        ("ubuntu:22.04@" + DIGEST, "ubuntu:22.04@" + DIGEST),
        ("https://a/b?hunter2#hunter2", "https://a/b?***#***"),
        ("a/b?pass=hunter2&n=1", "a/b?pass=***&n=***"),
        ("https://a/b#x=hunter 2", "https://a/b#x=***"),
        ("A_KEY=hunter2 --sum=3 --token hunter2 'x", "A_KEY=*** --sum=3 --token *** 'x"),
        ("password: hunter2", "password: ***"),
        ("a: b", "a: b"),
        ("-H 'Authorization: Bearer hunter2.hunter2'", "-H 'Authorization: Bearer ***'"),
        (
            {"splunk-token": "hunter2", "max-size": "10m"},
            "{'splunk-token': '***', 'max-size': '10m'}",
        ),
        ([{"a": "u:hunter2@b"}, 1], "[{'a': '***@b'}, 1]"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY----- ***",
        ),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", "-----BEGIN PRIVATE KEY----- ***"),
        ("x " + "Ab1+" * 15, "x ***"),
        (DIGEST, DIGEST),
        ("0123456789abcdef" * 4,) * 2,
    ],
)
def test_secrets_are_masked_in_shown_text(text, shown):
    assert kinds.show(text) == shown
    assert kinds.show(shown) == shown


@pytest.mark.parametrize(
    "how, value, shown",
    [
        (
            kinds.show_names,
            {"A B": "hunter2", "WANDB_API_KEY": "hunter2"},
            "A B, WANDB_API_KEY (values are not shown)",
        ),
        (kinds.show_names, {}, "{}"),
        (kinds.show_names, ["A=hunter2"], "a list (not shown)"),
        (kinds.show_names, "A=hunter2", "a text (not shown)"),
        (kinds.show_names, None, "no value (null) (not shown)"),
        (kinds.show_key, "/a/b.asc", "/a/b.asc"),
        (kinds.show_key, "key.asc", "key.asc"),
        (kinds.show_key, "hunter2" * 8, "a text (not shown)"),
        (kinds.show_key, "/a\nhunter2", "a text (not shown)"),
        (kinds.show_key, ["hunter2"], "a list (not shown)"),
        (
            kinds.show_key,
            "-----BEGIN A KEY-----\nhunter2\n-----END A KEY-----\n-----BEGIN CERTIFICATE-----",
            "a text with A KEY and CERTIFICATE",
        ),
        (kinds.show_key, "----BEGIN A KEY----\nhunter2", "a text (not shown)"),
    ],
)
def test_what_is_shown_of_variables_and_keys(how, value, shown):
    assert how(value) == shown


def test_a_long_value_is_judged_at_once():
    begun = time.process_time()
    for text in (
        "a" * 200000,
        ":" * 200000,
        "@" * 200000,
        "https://" + "a:" * 100000,
        "a." * 100000,
        "a-" * 100000,
        "u:" + "p" * 200000 + "@a",
    ):
        kinds.show(text)
        kinds.is_key("-----BEGIN CERTIFICATE-----" + text, "CERTIFICATE")
        kinds.is_package("a==1" + text, "pinned")
        kinds.is_package("a==1;" + "(" * 900 + text, "requirement")
        for judge in (
            kinds.is_image,
            kinds.is_url,
            kinds.is_host,
            kinds.is_client,
            kinds.is_no_proxy,
            kinds.is_plain_path,
        ):
            judge(text)
    assert time.process_time() - begun < 1.5
    assert "ppp" not in kinds.show("https://u:" + "p" * 2000 + "@a")


@pytest.mark.parametrize(
    "one, other, apart",
    [
        ("gpu", "gpus", 1),
        ("haed", "head", 1),
        ("abc", "abc", 0),
        ("abc", "xyz", 3),
        ("a", "abcd", 3),
    ],
)
def test_distance_between_misspelt_words(one, other, apart):
    assert kinds.distance(one, other) == apart
