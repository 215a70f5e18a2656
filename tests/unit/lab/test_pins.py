from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import images
import yaml

ROOT = Path(__file__).resolve().parents[3]


def test_wheels_are_those_that_the_image_asks_for():
    wheels = [
        line
        for line in (ROOT / "lab/wheels.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    variables = yaml.safe_load(
        (ROOT / "inventories/lab/group_vars/cluster/training_image.yml").read_text()
    )
    assert set(wheels) <= set(variables["training_image_python_packages"])


def test_the_base_has_the_sshd_that_jobs_come_in_by():
    assert {"openssh-server", "openssh-client", "g++", "python3-pip"} <= set(images.BASE_PACKAGES)


def test_every_package_of_the_set_up_is_pinned():
    def pins(text):
        return {
            (re.sub(r"[-_.]+", "-", name).lower(), version)
            for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
        }

    installed = subprocess.run(
        [sys.executable, "-m", "pip", "freeze"], check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    assert pins(installed) == pins((ROOT / "requirements.txt").read_text())
