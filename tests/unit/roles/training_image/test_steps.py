# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of the image build are not a module of the collection: they are loaded by path, as the
image loads them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _input_rules, _vendor_source

ROLE = pathlib.Path(__file__).parents[4] / "roles" / "training_image"
SPEC = importlib.util.spec_from_file_location("steps", ROLE / "files" / "steps.py")
steps = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(steps)

FIXES = {
    fix["name"]: fix
    for fix in yaml.safe_load((ROLE / "vars" / "main.yml").read_text())[
        "__training_image_source_fixes"
    ]
}


def test_what_decides_the_image_is_one_for_all_hosts():
    """Each variable that goes into the recipe has a rule for that: with two recipes in a run, some
    hosts would end with another image than the head.
    """
    given = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    decides = set(
        re.findall(
            r"\btraining_image_\w+",
            str(
                [
                    value
                    for name, value in given.items()
                    if name.startswith(
                        (
                            "__training_image_recipe",
                            "__training_image_apt",
                            "__training_image_tools_requested",
                        )
                    )
                ]
            ),
        )
    )
    data, specs = (
        yaml.safe_load((ROLE / "meta" / name).read_text())
        for name in ("input_rules.yml", "argument_specs.yml")
    )
    options = specs["argument_specs"]["main"]["options"]
    rules = _input_rules.parse_rules(data, ROLE.name, options)
    assert len(decides) > 10
    assert decides - {rule["variable"] for rule in rules if rule.get("same")} == set()


def test_steps_leave_no_bytecode_in_a_layer():
    """They run from bind mounts, beside which Python would write __pycache__ into the image."""
    runs = [
        line
        for name in ("Dockerfile", "Dockerfile.nccl_tests")
        for line in (ROLE / "files" / name).read_text(encoding="utf-8").splitlines()
        if "python3" in line
    ]
    assert (
        len(runs) == 6 and [line for line in runs if "python3 -B /run/trainyard/" not in line] == []
    )


def applied(**versions):
    return [
        name
        for name, fix in FIXES.items()
        if steps.applies(fix, dict({"horovod": "0.28.1"}, **versions))
    ]


@pytest.mark.parametrize(
    "version, specification, expected",
    [
        ("2.1.0", ">=2.1", True),
        ("2.1", ">=2.1.0", True),
        ("2.0.1", ">=2.1", False),
        ("2.13.0+cpu", ">=2.1,<2.13", False),
        ("2.12.1", ">=2.1,<2.13", True),
        ("2.6.0a0+df5bbc09d1", ">=2.1", True),
        ("0.28.1", "<=0.28.1", True),
        ("0.28.2", "<=0.28.1", False),
        ("13.0", "==13", True),
        ("9", "<10", True),
    ],
)
def test_fits(version, specification, expected):
    assert steps.fits(version, specification) is expected


@pytest.mark.parametrize(
    "versions, expected",
    [
        (
            {"torch": "2.0.1", "gcc": "12.2.0", "cmake": "3.31.6"},
            [
                "gloo-interface-of-process-sets",
                "no-debug-information",
                "gloo-sources-in-groups",
            ],
        ),
        (
            {"torch": "2.4.0a0+3bcc3cddb5", "gcc": "11.4.0"},
            ["torch-2.1-cxx17", "gloo-interface-of-process-sets", "no-debug-information"],
        ),
        (
            {"torch": "2.13.0+cpu", "gcc": "12.2.0"},
            ["torch-2.13-cxx20", "gloo-interface-of-process-sets", "no-debug-information"],
        ),
        (
            {"torch": "2.11.0", "cuda": "13.0", "gcc": "13.2.0"},
            [
                "torch-2.1-cxx17",
                "cuda-13-cxx17",
                "gcc-13-headers",
                "gloo-interface-of-process-sets",
                "no-debug-information",
            ],
        ),
        (
            {"tensorflow": "2.16.1", "cuda": "12.6", "cmake": "4.0.1"},
            [
                "cmake-4-policy",
                "gloo-interface-of-process-sets",
                "no-debug-information",
                "gloo-sources-in-groups",
            ],
        ),
        ({"torch": "2.13.0", "horovod": "0.28.2"}, []),
        ({"torch": "1.10.2", "horovod": "0.23.0"}, ["gloo-interface-of-process-sets"]),
        ({"torch": "1.10.2", "horovod": "0.22.1"}, []),
    ],
)
def test_fixes_for_what_is_in_the_image(versions, expected):
    assert applied(**versions) == expected


def test_what_is_not_there_fits_no_range():
    assert not steps.applies({"when": {"torch": "<9"}}, {"torch": None})


@pytest.mark.parametrize("name", FIXES)
def test_every_fix_says_why_and_where_that_is_known_from(name):
    assert FIXES[name]["reason"]
    assert FIXES[name]["source"]
    assert FIXES[name]["when"]
    assert FIXES[name].get("replace") or FIXES[name].get("environment")


def test_fix_replaces_text_and_sets_variables(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("a 14\nb 14\n")
    fix = {
        "name": "x",
        "reason": "r",
        "source": ["s"],
        "when": {"torch": ">=2"},
        "environment": {"A": "1"},
        "replace": [{"file": "CMakeLists.txt", "from": "14", "to": "17"}],
    }
    assert steps.apply_fixes([fix], {"torch": "2.1"}, str(tmp_path)) == {"A": "1"}
    assert (tmp_path / "CMakeLists.txt").read_text() == "a 17\nb 17\n"


def test_fix_for_a_source_that_is_another_one_fails_and_names_it(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("a 17\n")
    fix = {
        "name": "x",
        "reason": "r",
        "source": ["s"],
        "when": {"torch": ">=2"},
        "replace": [{"file": "CMakeLists.txt", "from": "14", "to": "17"}],
    }
    with pytest.raises(steps.StepError, match="source fix x: CMakeLists.txt does not contain '14'"):
        steps.apply_fixes([fix], {"torch": "2.1"}, str(tmp_path))


def test_site_environment_takes_proxies_and_points_every_tool_at_the_ca():
    found = steps.site_environment(
        "# proxies\nhttp_proxy=http://user:word@proxy:3128\nHTTPS_PROXY='http://proxy:3128'\nSECRET=no\n",
        "/ca",
        "/pip.conf",
    )
    assert found["http_proxy"] == "http://user:word@proxy:3128"
    assert found["HTTPS_PROXY"] == "http://proxy:3128"
    assert "SECRET" not in found
    assert {found[name] for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")} == {"/ca"}
    assert found["PIP_CONFIG_FILE"] == "/pip.conf"
    assert steps.site_environment("", None, None) == {}


def test_repository_as_deb822():
    text = steps.deb822(
        {
            "uris": ["https://example.org/a"],
            "suites": ["./"],
            "signed_by": "unused",
            "architectures": ["amd64"],
        },
        "/tmp/0.asc",
    )
    assert (
        text
        == "Types: deb\nURIs: https://example.org/a\nSuites: ./\nArchitectures: amd64\nSigned-By: /tmp/0.asc\n"
    )


@pytest.mark.parametrize("name", ["types", "uris", "suites", "components", "architectures"])
@pytest.mark.parametrize("word", ["a b", "a\nTrusted: yes", ""])
def test_a_word_that_apts_sources_cannot_hold(name, word):
    with pytest.raises(steps.StepError, match="white space"):
        steps.deb822(
            dict({"uris": ["https://example.org/a"], "suites": ["./"]}, **{name: [word]}),
            "/tmp/0.asc",
        )


def test_step_that_is_refused_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["steps.py", "nccl", '{"version": "2.28.9-1+cuda13.0"}'])

    def refuse(_arguments):
        raise steps.StepError("training_image_nccl_version: no")

    monkeypatch.setattr(steps, "step_nccl", refuse)
    with pytest.raises(SystemExit, match="trainyard: training_image_nccl_version: no"):
        steps.main()


def test_keys_in_sources_become_files():
    """As role package_sources writes them, for the apt of an older base."""
    block = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQIN%s\n -----END PGP PUBLIC KEY BLOCK-----\n"
    text, keys = steps.keys_as_files(
        "# Managed.\nTypes: deb\nURIs: https://a.example\n"
        + block % "A"
        + "\nTypes: deb\nURIs: https://b.example\n"
        + block % "B",
        "/tmp/x",
    )
    assert text == (
        "# Managed.\nTypes: deb\nURIs: https://a.example\nSigned-By: /tmp/x/site-0.asc\n"
        "\nTypes: deb\nURIs: https://b.example\nSigned-By: /tmp/x/site-1.asc\n"
    )
    assert keys == [
        (
            "site-%d.asc" % number,
            "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQIN%s\n-----END PGP PUBLIC KEY BLOCK-----\n"
            % letter,
        )
        for number, letter in enumerate("AB")
    ]
    assert steps.keys_as_files("Signed-By: /usr/share/keyrings/site.gpg\n", "/tmp/x") == (
        "Signed-By: /usr/share/keyrings/site.gpg\n",
        [],
    )


def pip_calls(monkeypatch, version, failing=()):
    """What is installed by which pip: monkeypatches the base's answer to --version, and the call
    itself.
    """
    calls = []

    def pip(*arguments, **variables):
        calls.append((arguments[1:], os.environ.get("PYTHONPATH", "")))
        if set(arguments) & set(failing):
            raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(steps, "pip", pip)
    monkeypatch.setattr(
        steps,
        "answer",
        lambda command, pattern: re.search(pattern, "pip %s from /usr" % version).group(1),
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return calls


@pytest.mark.parametrize("version", ["9.0.1", "18.1", "20.2.4"])
def test_pip_that_is_too_old_is_stood_in_for_and_nothing_of_that_stays(monkeypatch, version):
    calls = pip_calls(monkeypatch, version)
    with steps.newer_pip(["pip==21.3.1"]):
        steps.pip_install("x", ["cmake==3.28.4"])
    (bootstrap, before), (packages, path) = calls
    assert bootstrap[0] == "--target" and bootstrap[-1] == "pip==21.3.1" and before == ""
    assert packages == ("cmake==3.28.4",) and path == bootstrap[1]
    assert "PYTHONPATH" not in os.environ and not os.path.exists(path)


@pytest.mark.parametrize("version", ["20.3", "23.0.1", "25.2"])
def test_pip_that_is_new_enough_does_it_itself(monkeypatch, version):
    calls = pip_calls(monkeypatch, version)
    with steps.newer_pip(["pip==21.3.1"]):
        steps.pip_install("x", ["cmake==3.28.4"])
    assert calls == [(("cmake==3.28.4",), "")]


def test_package_that_has_no_release_for_the_base_s_python_names_its_variable(monkeypatch):
    pip_calls(monkeypatch, "21.3.1", failing=["cmake==3.31.6"])
    with pytest.raises(steps.StepError) as refused:
        steps.pip_install("training_image_horovod_build_packages", ["cmake==3.31.6"])
    text = str(refused.value)
    assert text.startswith(
        "training_image_horovod_build_packages: cmake==3.31.6 could not be installed for Python %d.%d"
        % sys.version_info[:2]
    )
    assert "Set training_image_horovod_build_packages to" in text


# --- a Horovod that was compiled from the same inputs ----------------------------------------------------------------------

ARGUMENTS = {
    "version": "0.28.1",
    "sha256": "0" * 64,
    "fixes": [],
    "build_packages": ["cmake==3.28.4"],
}
VERSIONS = {"horovod": "0.28.1", "torch": "2.13.0+cpu", "gcc": "12.2.0"}


def test_the_tag_follows_all_that_a_compilation_depends_on(monkeypatch):
    debs = ["libc6-dev\t2.36-9\n"]
    monkeypatch.setattr(steps.shutil, "which", lambda _name: "/usr/bin/dpkg-query")
    monkeypatch.setattr(steps.subprocess, "check_output", lambda *_command, **_options: debs[-1])
    monkeypatch.delenv("HOROVOD_NCCL_HOME", raising=False)

    def tag(variables=None, versions=VERSIONS, **changes):
        return steps.build_tag(dict(ARGUMENTS, **changes), versions, variables or {})

    first = tag()
    assert re.match(r"0[0-9a-f]{16}$", first) and tag() == first
    others = [
        tag({"HOROVOD_WITH_MPI": "1"}),
        tag(versions=dict(VERSIONS, torch="2.12.0+cpu")),
        tag(sha256="1" * 64),
        tag(fixes=[{"name": "torch-cxx"}]),
        tag(build_packages=["cmake==3.31.6"]),
    ]
    debs.append("libc6-dev\t2.36-10\n")
    others.append(tag())
    monkeypatch.setenv("HOROVOD_NCCL_HOME", "/opt/nccl")
    others.append(tag())
    assert len({first, *others}) == 8


@pytest.mark.parametrize("failing", [False, True])
def test_a_wheel_of_the_same_inputs_is_installed_and_one_that_cannot_be_is_compiled(
    monkeypatch, tmp_path, failing
):
    calls = []

    def pip(*arguments, **_variables):
        calls.append(arguments)
        if failing:
            raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(steps, "pip", pip)
    monkeypatch.setattr(steps, "HERE", str(tmp_path))
    assert not steps.install_compiled("0aaa") and calls == []
    wheel = tmp_path / "wheels/horovod-0.28.1-0aaa-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir()
    wheel.touch()
    assert not steps.install_compiled("0bbb") and calls == []
    assert steps.install_compiled("0aaa") != failing
    assert calls == [("install", "--no-deps", "--no-index", str(wheel))]


# --- NVIDIA's lists and keys in a base ------------------------------------------------------------------------------------

UTILS = ROLE.parents[1] / "plugins" / "module_utils"
PLACE = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu1804/x86_64"
OURS = [{"uris": [PLACE + "/"], "suites": ["/"]}]


def key(name):
    """A public key of OpenPGP as far as a keyring is read: one packet, of version 4.

    Returns its fingerprint and its bytes.
    """
    body = b"\x04" + name.encode()
    packet = b"\xc6" + bytes([len(body)]) + body
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper(), packet


NEW, NEW_KEY = key("3bf863cc")
OLD, OLD_KEY = key("7fa2af80")
OTHER, OTHER_KEY = key("the distribution's")
VENDOR = {
    "fingerprints": [NEW],
    "retired_keys": [OLD],
    "places": [_vendor_source.CUDA_PLACE % "[^/]+"],
    "former_places": [_vendor_source.FORMER_PLACE],
}


@pytest.fixture(name="base")
def fixture_base(tmp_path, monkeypatch):
    """Apt's settings of a base, and what lies beside the step in a build."""
    for name in ("apt_sources", "openpgp"):
        spec = importlib.util.spec_from_file_location(name, UTILS / ("_%s.py" % name))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(steps, "answer", lambda command, pattern: "amd64")
    for folder in ("sources.list.d", "trusted.gpg.d", "keyrings"):
        (tmp_path / folder).mkdir()
    (tmp_path / "sources.list").write_text("deb http://archive.ubuntu.com/ubuntu bionic main\n")
    (tmp_path / "trusted.gpg").write_bytes(OTHER_KEY)
    return tmp_path


def texts(base):
    return {
        path.name: path.read_text()
        for path in [base / "sources.list"] + sorted((base / "sources.list.d").iterdir())
    }


def test_an_image_from_before_april_2022_loses_the_withdrawn_key_and_what_it_signed(base, capsys):
    (base / "sources.list.d/cuda.list").write_text("deb %s /\n" % PLACE)
    (base / "sources.list.d/nvidia-ml.list").write_text(
        "deb https://developer.download.nvidia.com/compute/machine-learning/repos/ubuntu1804/x86_64 /\n"
    )
    (base / "trusted.gpg").write_bytes(OTHER_KEY + OLD_KEY)
    steps.remove_retired(VENDOR, str(base))
    assert texts(base) == {"sources.list": "deb http://archive.ubuntu.com/ubuntu bionic main\n"}
    assert (base / "trusted.gpg").read_bytes() == OTHER_KEY
    output = capsys.readouterr().out
    assert (
        "Removed NVIDIA's withdrawn key %s" % OLD in output
        and "cuda.list" in output
        and "nvidia-ml.list" in output
    )


def test_an_entry_whose_present_key_is_trusted_stays(base):
    (base / "sources.list.d/cuda.list").write_text("deb %s /\n" % PLACE)
    (base / "trusted.gpg.d/cuda.gpg").write_bytes(NEW_KEY)
    (base / "trusted.gpg.d/old.gpg").write_bytes(OLD_KEY)
    steps.remove_retired(VENDOR, str(base))
    assert (
        "cuda.list" in texts(base)
        and not (base / "trusted.gpg.d/old.gpg").exists()
        and (base / "trusted.gpg.d/cuda.gpg").read_bytes() == NEW_KEY
    )


@pytest.mark.parametrize(
    "content, stays",
    [(NEW_KEY, True), (OTHER_KEY, False), (OLD_KEY, False)],
    ids=["present", "another", "withdrawn"],
)
def test_an_entry_with_a_keyring_of_its_own_is_judged_by_that(base, content, stays):
    ring = base / "keyrings/cuda.gpg"
    ring.write_bytes(content)
    (base / "sources.list.d/cuda.sources").write_text(
        "Types: deb\nURIs: %s/\nSuites: /\nSigned-By: %s\n" % (PLACE, ring)
    )
    steps.remove_retired(VENDOR, str(base))
    assert ("cuda.sources" in texts(base)) is stays


def test_a_mirror_and_the_distribution_are_left_alone(base):
    (base / "sources.list.d/cuda.list").write_text(
        "deb https://mirror.site.example/compute/cuda/repos/ubuntu1804/x86_64 /\n"
    )
    before = texts(base)
    steps.remove_retired(VENDOR, str(base))
    assert texts(base) == before


def test_another_entry_for_the_build_s_repository_conflicts(base):
    """apt: Conflicting values set for option Signed-By. Others in the same list stay."""
    path = base / "sources.list.d/cuda.list"
    path.write_text("deb %s /\ndeb http://other.example/ /\n" % PLACE)
    places = steps.repository_places(OURS)
    found = steps.lists_without(lambda entry: entry["location"] in places, str(base))
    assert [(entry[0], entry[2]) for entry in found] == [
        (str(path), b"deb http://other.example/ /\n")
    ]


def test_distributions_are_found_without_setuptools(tmp_path, monkeypatch):
    """Python 3.6 of Ubuntu 18.04 has pip and no pkg_resources.

    Wheels, installed sources and Debian's packages each keep it in another way.
    """
    for path, text in [
        ("torch-1.10.2.dist-info/METADATA", "Name: torch\nVersion: 1.10.2\n"),
        ("Py_Thing.egg-info/PKG-INFO", "Version: 2.0\n"),
        ("six-1.11.0.egg-info", "Metadata-Version: 1.1\nVersion: 1.11.0\n"),
        ("torchvision-0.9.dist-info/METADATA", "Version: 0.9\n"),
    ]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [
        steps.distribution_on_path(name) for name in ("torch", "py-thing", "six", "tensorflow")
    ] == ["1.10.2", "2.0", "1.11.0", None]
