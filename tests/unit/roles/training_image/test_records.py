"""What role training_image makes of its records: packages that it installed, base images that it
pulled.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted
from scripted_tools import run_module
from trusted import trust_as_template

ROLE = Path(__file__).parents[4] / "roles/training_image"
# As releases up to 0.2.0 wrote it.
FORMER = {"images": ["base:1"], "packages": ["docker-registry", "libssl3"]}


def tasks(name):
    def inner(entries):
        for entry in entries:
            yield entry
            for part in ("block", "rescue", "always"):
                yield from inner(entry.get(part, []))

    return {
        task["name"]: task
        for task in inner(yaml.safe_load((ROLE / "tasks" / name).read_text(encoding="utf-8")))
    }


class Head:
    def __init__(self, folder):
        self.paths = {
            name: folder / name for name in ("training_image.json", "training_image.packages.json")
        }
        self.variables = trusted(
            yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
        )
        self.variables.update(
            __training_image_record=str(self.paths["training_image.json"]),
            training_image_base="base:2",
            __training_image_packages_record=str(self.paths["training_image.packages.json"]),
            item="base:1",
        )

    def value(self, template):
        return Templar(DataLoader(), self.variables).template(trusted(template))

    def asks(self, file, task):
        """Run image_info as a task does, on a host without Docker."""
        options = self.value(tasks(file)[task]["trainyard.gpu.image_info"])
        return run_module("image_info", dict(options, executable="/nowhere/docker"))

    def is_true(self, task):
        return self.value(
            trust_as_template("{{ (%s) | bool }}" % tasks("remove.yml")[task]["when"])
        )

    def removal(self, **records):
        """The options of placed_packages with these records, and whether the registry is
        unmasked.
        """
        for name, content in records.items():
            path = self.paths[
                "training_image.json" if name == "role" else "training_image.packages.json"
            ]
            path.write_text(json.dumps(content), encoding="utf-8")
        self.variables["__training_image_found"] = self.asks(
            "remove.yml", "Read the images of the host"
        )
        options = self.value(
            tasks("remove.yml")["Remove the packages installed by this role"][
                "trainyard.gpu.placed_packages"
            ]
        )
        assert (options["state"], options["record"]) == (
            "absent",
            str(self.paths["training_image.packages.json"]),
        )
        return (
            options["former_packages"],
            options["traces"],
            self.is_true("Unmask the packaged registry service"),
        )


@pytest.fixture(name="head")
def fixture_head(tmp_path):
    return Head(tmp_path)


def test_packages_in_the_record_of_an_earlier_release_are_removed(head):
    assert head.removal(role=FORMER) == (
        ["docker-registry", "libssl3"],
        ["user:docker-registry", "group:docker-registry"],
        True,
    )
    assert head.value(tasks("remove.yml")["Remove the recorded base images"]["loop"]) == ["base:1"]
    # openssl alone brings no account, and the service was not masked.
    assert head.removal(role={"packages": ["openssl"]}) == (["openssl"], [], False)


def test_packages_in_their_own_record_are_removed(head):
    assert head.removal() == ([], [], False)
    assert head.removal(
        role={"images": ["base:1"]}, packages={"packages": ["docker-registry"]}
    ) == ([], [], True)


@pytest.mark.parametrize(
    "missing, masked", [(["docker-registry", "openssl"], True), (["openssl"], False), ([], False)]
)
def test_the_service_of_a_package_that_was_there_is_not_masked(head, missing, masked):
    head.variables.update(
        __training_image_missing={"installed": missing}, ansible_search_path=[str(ROLE)]
    )
    install = tasks("start_registry.yml")
    files = head.value(
        install["Copy the registry script and mask the packaged service"][
            "trainyard.gpu.managed_files"
        ]["files"]
    )
    assert (
        "/etc/systemd/system/docker-registry.service" in [file["path"] for file in files]
    ) is masked
    assert head.value(trust_as_template("{{ %s }}" % install["Install the packages"]["when"])) is (
        missing != []
    )
    # What check mode finds missing is what is installed.
    assert install["Read which packages are missing"]["check_mode"] is True
    assert (
        install["Install the packages"]["trainyard.gpu.placed_packages"]
        == install["Read which packages are missing"]["trainyard.gpu.placed_packages"]
    )


@pytest.mark.parametrize(
    "former, kept, stays",
    [(FORMER, ["libssl3"], True), (FORMER, [], False), ({}, ["libssl3"], False)],
)
def test_the_record_of_kept_packages_stays(head, former, kept, stays):
    head.removal(role=former)
    head.variables.update(
        __training_image_uninstalled={"kept": kept}, item=str(head.paths["training_image.json"])
    )
    assert head.is_true("Remove the role's files") is not stays
    head.variables["item"] = "/var/lib/trainyard/image"
    assert head.is_true("Remove the role's files") is True


def test_an_image_is_added_to_the_record_of_an_earlier_release(head):
    head.paths["training_image.json"].write_text(json.dumps(FORMER), encoding="utf-8")
    head.variables["__training_image_base"] = head.asks(
        "build.yml", "Read the base image of the head"
    )
    [entry] = [
        file
        for file in tasks("get_base.yml")["Record that the base image was absent"][
            "trainyard.gpu.managed_files"
        ]["files"]
        if "content" in file
    ]
    assert json.loads(json.dumps(yaml.safe_load(head.value(entry["content"])))) == dict(
        FORMER, images=["base:1", "base:2"]
    )


@pytest.mark.parametrize(
    "file, task",
    [
        ("build.yml", "Read the base image of the head"),
        ("remove.yml", "Read the images of the host"),
    ],
)
def test_a_damaged_record_is_an_error_that_says_what_to_do(head, file, task):
    head.paths["training_image.json"].write_text('{"images": ["ba', encoding="utf-8")
    failed = head.asks(file, task)
    assert failed["failed"] is True
    assert (
        failed["msg"].startswith("%s is damaged" % head.paths["training_image.json"])
        and "Restore it from a backup, or remove it" in failed["msg"]
    )


def test_a_damaged_record_of_packages_fails_before_anything_is_removed(head):
    head.paths["training_image.packages.json"].write_text("[]", encoding="utf-8")
    assert (
        "a dictionary is expected" in head.asks("remove.yml", "Read the images of the host")["msg"]
    )
