# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""image_info, run like in Ansible; docker is a script that prints output of engines."""

from __future__ import annotations

import json

import pytest
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import (
    describe_image,
    layers_digest,
)

LAYERS = ["sha256:a", "sha256:b"]


def inspected(layers=None, **labels):
    layers = LAYERS if layers is None else layers
    return {
        "Id": "sha256:1",
        "Size": 5 << 20,
        "RootFS": {"Layers": layers},
        "Config": {"Env": ["A=1"], "Labels": labels or None},
    }


@pytest.fixture(name="ask")
def fixture_ask(tmp_path):
    """Runs the module with a docker whose body is given."""

    def ask(body, **options):
        path = tmp_path / "docker"
        path.write_text("#!/bin/sh\n" + body, encoding="utf-8")
        path.chmod(0o755)
        return run_module("image_info", dict({"executable": str(path)}, **options), check=True)

    return ask


def test_image_as_it_was_built():
    found = describe_image(
        "x:1", inspected(**{"trainyard.recipe": "abc", "trainyard.layers": layers_digest(LAYERS)})
    )
    assert found["intact"] is True
    assert found["recipe"] == "abc"
    assert found["layers"] == LAYERS
    assert found["environment"] == ["A=1"]
    assert found["size_mib"] == 5


def test_edited_image_keeps_its_labels_but_not_its_layers():
    found = describe_image(
        "x:1",
        inspected(
            layers=LAYERS + ["sha256:edit"],
            **{"trainyard.recipe": "abc", "trainyard.layers": layers_digest(LAYERS)},
        ),
    )
    assert found["present"] is True
    assert found["intact"] is False


@pytest.mark.parametrize(
    "found",
    [None, inspected(), inspected(layers=[]), {"Id": "sha256:1", "Config": None, "RootFS": {}}],
)
def test_image_that_is_none_of_ours(found):
    assert describe_image("x:1", found)["intact"] is False
    assert describe_image("x:1", found)["recipe"] == ""


def test_images_come_in_the_order_asked_for_and_a_missing_one_is_a_result(ask):
    answer = ask(
        """case "$4" in
b:1) echo '%s' ;;
*) echo "Error: No such image: $4" >&2; exit 1 ;;
esac
"""
        % json.dumps([inspected()]),
        names=["a:1", "b:1"],
    )
    assert answer["available"] is True
    assert [(each["name"], each["present"]) for each in answer["images"]] == [
        ("a:1", False),
        ("b:1", True),
    ]
    assert answer["changed"] is False


@pytest.mark.parametrize(
    "message",
    [
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
    ],
)
def test_engine_that_does_not_answer_is_a_result(ask, message):
    answer = ask("echo '%s' >&2; exit 1\n" % message, names=["a:1"], label="trainyard.recipe")
    assert (answer["available"], answer["cause"], answer["labelled"]) == (
        False,
        "engine_unavailable",
        [],
    )
    assert "gpu_stack.yml, which starts Docker" in answer["fix"]
    assert answer["images"][0]["present"] is False


def test_no_client_is_a_result(ask):
    answer = ask("", names=["a:1"], executable="/nowhere/docker")
    assert (answer["available"], answer["cause"]) == (False, "not_installed")


def test_labelled_images_are_listed_once_each(ask):
    answer = ask("printf 'sha256:2\\nsha256:1\\nsha256:2\\n'\n", label="trainyard.recipe")
    assert answer["labelled"] == ["sha256:1", "sha256:2"]
    assert answer["images"] == []


def test_records_are_returned_and_a_damaged_one_fails(ask, tmp_path):
    record = tmp_path / "role.json"
    record.write_text('{"images": ["base:1"]}', encoding="utf-8")
    records = {"role": str(record), "none": str(tmp_path / "none.json")}
    assert ask("", records=records)["records"] == {"role": {"images": ["base:1"]}, "none": {}}
    record.write_text('{"images": ["ba', encoding="utf-8")
    failed = ask("", records=records)
    assert (
        failed["failed"] is True
        and failed["msg"].startswith("%s is damaged" % record)
        and "Restore it from a backup, or remove it" in failed["msg"]
    )


def test_anything_else_fails(ask):
    answer = ask("echo 'flag provided but not defined: -x' >&2; exit 125\n", names=["a:1"])
    assert answer["failed"] is True
    assert "flag provided" in answer["msg"] and "journalctl --unit=docker" in answer["msg"]


def test_docker_engine_info_describes_the_images_with_a_label(tmp_path):
    """In the run that reads the engine: an image without a name is left out, and one with two names
    is there twice.
    """
    images = [
        dict(inspected(**{"trainyard.recipe": "abc"}), RepoTags=["x:1", "server:5443/x:1"]),
        dict(inspected(), RepoTags=None),
    ]
    (tmp_path / "docker").write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        "*'image ls'*label=trainyard.recipe) echo sha256:1; echo sha256:2;;\n"
        f"*'image inspect'*) echo '{json.dumps(images)}';;\n"
        """*info*) echo '{"ServerVersion": "20.10.24"}';;\n"""
        "*) echo Docker version 20.10.24, build 1;;\n"
        "esac\n",
        encoding="utf-8",
    )
    (tmp_path / "docker").chmod(0o755)
    asked = {"executable": str(tmp_path / "docker"), "record": str(tmp_path / "none")}
    told = run_module("docker_engine_info", dict(asked, image_label="trainyard.recipe"), check=True)
    assert [image["name"] for image in told["images"]] == ["x:1", "server:5443/x:1"]
    assert told["images"][0]["recipe"] == "abc"
    assert run_module("docker_engine_info", asked, check=True)["images"] == []
    # The module that reads the host's peers can ask for the same.
    along = run_module("host_info", {"engine": dict(asked, image_label="trainyard.recipe")})
    told = {key: value for key, value in told.items() if key not in ("changed", "invocation")}
    assert along["engine"] == told
    assert run_module("host_info", {})["engine"] == {}
