"""The base image is pushed while the image is built and pushed.

Nothing that it prints is taken for what they print.
"""

from __future__ import annotations

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


def test_the_digest_is_that_of_the_finished_image():
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    base, ours = "sha256:" + "b" * 64, "sha256:" + "a" * 64
    tail = [f"base: digest: {base} size: 5", "abc123: Pushed", f"0123abcd: digest: {ours} size: 9"]
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
    for path in (ROLE / "tasks").glob("*.yml"):
        for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8")) or []):
            unit = task.get("trainyard.gpu.transient_unit")
            if unit:
                (detached if unit.get("detach") else followed).add(unit["log"])
    assert followed and detached and not followed & detached
