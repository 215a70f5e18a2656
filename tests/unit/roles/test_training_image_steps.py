# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of the image build are not a module of the collection: they are loaded by path, as the image loads them."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

ROLE = pathlib.Path(__file__).parents[3] / "roles" / "training_image"
SPEC = importlib.util.spec_from_file_location("steps", ROLE / "files" / "steps.py")
steps = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(steps)

FIXES = {fix["name"]: fix for fix in yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["__training_image_source_fixes"]}


def test_what_decides_the_image_is_one_for_all_hosts():
    """Each variable that goes into the recipe has a rule for that: with two recipes in a run, some hosts would end with another image than the head."""
    given = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    decides = set(re.findall(r"\btraining_image_\w+", str([value for name, value in given.items() if name.startswith(
        ("__training_image_recipe", "__training_image_apt", "__training_image_tools_asked"))])))
    rules = yaml.safe_load((ROLE / "meta" / "input_rules.yml").read_text())["input_rules"]
    assert len(decides) > 10
    assert decides - {rule["variable"] for rule in rules if rule.get("same")} == set()


def applied(**versions):
    return [name for name, fix in FIXES.items() if steps.applies(fix, dict({"horovod": "0.28.1"}, **versions))]


@pytest.mark.parametrize("version, specification, expected", [
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
])
def test_fits(version, specification, expected):
    assert steps.fits(version, specification) is expected


@pytest.mark.parametrize("versions, expected", [
    ({"torch": "2.0.1", "gcc": "12.2.0", "cmake": "3.31.6"}, ["no-debug-information"]),
    ({"torch": "2.4.0a0+3bcc3cddb5", "gcc": "11.4.0"}, ["torch-2.1-cxx17", "no-debug-information"]),
    ({"torch": "2.13.0+cpu", "gcc": "12.2.0"}, ["torch-2.13-cxx20", "no-debug-information"]),
    ({"torch": "2.11.0", "cuda": "13.0", "gcc": "13.2.0"}, ["torch-2.1-cxx17", "cuda-13-cxx17", "gcc-13-headers", "no-debug-information"]),
    ({"tensorflow": "2.16.1", "cuda": "12.6", "cmake": "4.0.1"}, ["cmake-4-policy", "no-debug-information"]),
    ({"torch": "2.13.0", "horovod": "0.28.2"}, []),
])
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
    fix = {"name": "x", "reason": "r", "source": ["s"], "when": {"torch": ">=2"}, "environment": {"A": "1"},
           "replace": [{"file": "CMakeLists.txt", "from": "14", "to": "17"}]}
    assert steps.apply_fixes([fix], {"torch": "2.1"}, str(tmp_path)) == {"A": "1"}
    assert (tmp_path / "CMakeLists.txt").read_text() == "a 17\nb 17\n"


def test_fix_for_a_source_that_is_another_one_fails_and_names_it(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("a 17\n")
    fix = {"name": "x", "reason": "r", "source": ["s"], "when": {"torch": ">=2"}, "replace": [{"file": "CMakeLists.txt", "from": "14", "to": "17"}]}
    with pytest.raises(steps.StepError, match="source fix x: CMakeLists.txt has no «14»"):
        steps.apply_fixes([fix], {"torch": "2.1"}, str(tmp_path))


def test_site_environment_takes_proxies_and_points_every_tool_at_the_ca():
    found = steps.site_environment("# proxies\nhttp_proxy=http://user:word@proxy:3128\nHTTPS_PROXY='http://proxy:3128'\nSECRET=no\n", "/ca", "/pip.conf")
    assert found["http_proxy"] == "http://user:word@proxy:3128"
    assert found["HTTPS_PROXY"] == "http://proxy:3128"
    assert "SECRET" not in found
    assert {found[name] for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")} == {"/ca"}
    assert found["PIP_CONFIG_FILE"] == "/pip.conf"
    assert steps.site_environment("", None, None) == {}


def test_repository_as_deb822():
    text = steps.deb822({"uris": ["https://example.org/a"], "suites": ["./"], "signed_by": "unused", "architectures": ["amd64"]}, "/tmp/0.asc")
    assert text == "Types: deb\nURIs: https://example.org/a\nSuites: ./\nArchitectures: amd64\nSigned-By: /tmp/0.asc\n"


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
    text, keys = steps.keys_as_files("# Managed.\nTypes: deb\nURIs: https://a.example\n" + block % "A" + "\nTypes: deb\nURIs: https://b.example\n" + block % "B", "/tmp/x")
    assert text == ("# Managed.\nTypes: deb\nURIs: https://a.example\nSigned-By: /tmp/x/site-0.asc\n"
                    "\nTypes: deb\nURIs: https://b.example\nSigned-By: /tmp/x/site-1.asc\n")
    assert keys == [("site-%d.asc" % number, "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQIN%s\n-----END PGP PUBLIC KEY BLOCK-----\n" % letter)
                    for number, letter in enumerate("AB")]
    assert steps.keys_as_files("Signed-By: /usr/share/keyrings/site.gpg\n", "/tmp/x") == ("Signed-By: /usr/share/keyrings/site.gpg\n", [])


def pip_calls(monkeypatch, version, failing=()):
    """What is installed by which pip: monkeypatches the base's answer to --version, and the call itself."""
    calls = []

    def pip(*arguments, **variables):
        calls.append((arguments[1:], os.environ.get("PYTHONPATH", "")))
        if set(arguments) & set(failing):
            raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(steps, "pip", pip)
    monkeypatch.setattr(steps, "answer", lambda command, pattern: re.search(pattern, "pip %s from /usr" % version).group(1))
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
    assert text.startswith("training_image_horovod_build_packages: cmake==3.31.6 can't be installed for Python %d.%d" % sys.version_info[:2])
    assert "Set training_image_horovod_build_packages to" in text
