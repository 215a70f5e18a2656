"""Layers of the image are pushed and pulled while the image is built.

Nothing that these units print is taken for what the build and the final push print, and teardown
finds what they leave.
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROLE = Path(__file__).parents[4] / "roles/training_image"


def tasks(entries):
    for entry in entries:
        yield entry
        for part in ("block", "always"):
            yield from tasks(entry.get(part, []))


def units():
    """The options of each unit that the role starts."""
    for path in (ROLE / "tasks").glob("*.yml"):
        for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8")) or []):
            if "trainyard.gpu.transient_unit" in task:
                yield task["trainyard.gpu.transient_unit"]


def removal():
    """The tasks of teardown, by name."""
    text = (ROLE / "tasks/remove.yml").read_text(encoding="utf-8")
    return {task["name"]: task for task in yaml.safe_load(text)}


def test_the_digest_is_that_of_the_finished_image():
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    base, ours = "sha256:" + "b" * 64, "sha256:" + "a" * 64
    tail = [
        f"base: digest: {base} size: 5",
        f"0123abcd-packages: digest: {base} size: 7",
        "abc123: Pushed",
        f"0123abcd: digest: {ours} size: 9",
    ]
    values = {
        "training_image_name": "trainyard/training:0123abcd",
        "__training_image_push": {"tail": tail},
    }
    for name in ("__training_image_digest_line", "__training_image_pushed_digest"):
        values[name] = trust_as_template(variables[name])
    text = trust_as_template("{{ __training_image_pushed_digest }}")
    assert Templar(DataLoader(), values).template(text) == ours


def test_output_that_is_followed_has_a_log_of_its_own():
    followed, detached = set(), set()
    for unit in units():
        (detached if unit.get("detach") else followed).add(unit["log"])
    assert followed and detached and not followed & detached


def test_teardown_stops_every_unit():
    stopped = removal()["Stop running builds and transfers"]["loop"]
    assert sorted(stopped) == sorted({unit["name"] for unit in units()})


def test_teardown_finds_what_a_killed_play_leaves():
    """The names with which the hosts hold the image before it is complete."""
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    values = {
        "training_image_name": "trainyard/training:0123abcd",
        "__training_image_registry": "192.0.2.1:5443",
    }
    names = [
        "__training_image_candidate",
        "__training_image_packages",
        "__training_image_registry_reference",
        "__training_image_packages_reference",
    ]
    for name in names:
        values[name] = trust_as_template(variables[name])
    listed = removal()["Read the names of the collection's images"]["ansible.builtin.shell"]["cmd"]
    patterns = re.findall(r"reference='?([^' ]+)", listed)
    for name in names:
        text = trust_as_template("{{ %s }}" % name)
        repository = Templar(DataLoader(), values).template(text).rpartition(":")[0]
        assert any(fnmatch.fnmatchcase(repository, pattern) for pattern in patterns), name


def test_the_stages_of_the_build():
    """What the hosts pull early is the finished image without Horovod and what comes after it."""
    text = (ROLE / "files/Dockerfile").read_text(encoding="utf-8")
    stages = re.split(r"(?m)^FROM (\S+) AS (\S+)$", text)[1:]
    assert stages[0::3] == ["${BASE}", "packages"] and stages[1::3] == ["packages", "complete"]
    steps = [re.findall(r"steps\.py (\w+)$", part, re.MULTILINE) for part in stages[2::3]]
    assert steps == [["apt", "python", "nccl"], ["horovod", "finish"]]
    asked = {
        stage for unit in units() for stage in re.findall(r"/build', '(\w+)'", str(unit["command"]))
    }
    assert asked == set(stages[1::3])


def test_the_stage_is_passed_to_docker(tmp_path):
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    docker.chmod(0o755)
    called = subprocess.run(
        ["/bin/sh", ROLE / "files/build", "packages", "0123", "base:1", "ours:1", "a=1 2"],
        cwd=tmp_path,
        env=dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}"),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()
    options = dict(zip(called[3::2], called[4::2]))
    assert called[:3] == ["build", "--progress", "plain"] and called[-1] == "."
    assert options["--target"] == "packages" and options["--tag"] == "ours:1"
    assert options["--build-arg"] == "BASE=base:1"
    assert [called[i + 1] for i in range(len(called)) if called[i] == "--label"] == [
        "a=1 2",
        "trainyard.recipe=0123",
    ]
