"""A checksum in capital letters is the same one: roles compare it in lower case, and it makes no
other image.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROLES = Path(__file__).parents[3] / "roles"
DIGITS = "0123456789ABCDEF" * 4
ENGINE = {
    "__docker_engine_files": [],
    "__docker_engine_found": {"files": {}},
    "docker_engine_repository_key": "",
    "__docker_engine_keyring": "key",
    "__docker_engine_plan": {
        "has_repository": True,
        "refusal": "",
        "lacks_packages": False,
        "needs_configuring": False,
        "cannot_build": False,
        "pinned": [],
    },
    "__docker_engine_environment_file": "environment",
    "__docker_engine_drop_in": "drop-in",
}


@pytest.mark.parametrize(
    "role, path, values",
    [
        ("nccl", ["__nccl_build", "checksum"], {"nccl_checksum": "sha256:" + DIGITS}),
        (
            "nccl_tests",
            ["__nccl_tests_build", "checksum"],
            {"nccl_tests_checksum": "sha256:" + DIGITS},
        ),
        (
            "docker_engine",
            ["__docker_engine_file_plan"],
            dict(ENGINE, docker_engine_repository_key_checksum="sha256:" + DIGITS),
        ),
        (
            "training_image",
            ["__training_image_recipe_without_nccl_tests", "horovod_sha256"],
            {"training_image_horovod_sha256": DIGITS},
        ),
        (
            "training_image",
            ["__training_image_horovod_arguments", "sha256"],
            {"training_image_horovod_sha256": DIGITS},
        ),
        (
            "training_image",
            ["__training_image_recipe_of_nccl_tests", "nccl_tests"],
            {
                "training_image_nccl_tests_tag": "v2",
                "training_image_nccl_tests_checksum": "sha256:" + DIGITS,
            },
        ),
        (
            "training_image",
            ["__training_image_nccl_tests_arguments", "checksum"],
            {"training_image_nccl_tests_checksum": "sha256:" + DIGITS},
        ),
    ],
)
def test_the_digits_are_compared_in_lower_case(role, path, values):
    text = yaml.safe_load((ROLES / role / "vars/main.yml").read_text(encoding="utf-8"))
    for key in path:
        text = text[key]
    told = str(Templar(DataLoader(), values).template(trust_as_template(text)))
    assert DIGITS.lower() in told and DIGITS not in told
