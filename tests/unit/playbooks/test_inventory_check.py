"""The playbook that judges the input: nothing can make it do nothing, and it works once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

# They run playbooks, which takes seconds each.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
GOOD = """\
---
cluster:
  hosts:
    server-a: {ansible_host: 192.0.2.11}
    server-b: {ansible_host: 192.0.2.12}
"""


def play(folder, inventory, *arguments, playbook="playbooks/inventory_check.yml"):
    path = folder / "hosts.yml"
    path.write_text(inventory, encoding="utf-8")
    return subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(path),
            str(playbook),
            *arguments,
        ],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=dict(os.environ, ANSIBLE_NOCOLOR="1"),
    )


@pytest.mark.parametrize(
    "inventory, arguments",
    [
        ("---\n{}\n", []),
        (GOOD.replace("cluster:", "servers:"), []),
        (GOOD.replace("cluster:", "servers:"), ["--limit", "server-b"]),
        (GOOD, ["--limit", "server-b", "--extra-vars", "cluster_ssh_port=0"]),
        (GOOD.replace("192.0.2.11}", "192.0.2.11, cluster_ssh_port: 0}"), ["--limit", "server-b"]),
        (GOOD, ["--tags", "docker_engine", "--extra-vars", "cluster_ssh_port=0"]),
        (GOOD, ["--check", "--extra-vars", "cluster_ssh_port=0"]),
    ],
    ids=[
        "empty inventory",
        "no cluster",
        "no cluster, limit",
        "limit",
        "limit to the other host",
        "tags",
        "check mode",
    ],
)
def test_nothing_makes_it_do_nothing(tmp_path, inventory, arguments):
    done = play(tmp_path, inventory, *arguments)
    assert done.returncode == 2, done.stdout
    assert "BLOCK input-range" in done.stdout or "BLOCK inventory-no-cluster" in done.stdout


def readme_inventory():
    return re.search(
        r"```yaml\n(cluster:\n.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    ).group(1)


def getting_started():
    """The whole inventories of docs/getting-started.md, and that of README with each of the
    settings that the page shows.
    """
    blocks = re.findall(
        r"```yaml\n(.*?)```",
        (ROOT / "docs/getting-started.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(blocks) == 6
    for block in blocks:
        inventory = yaml.safe_load(readme_inventory())
        if block.startswith("cluster:"):
            inventory = yaml.safe_load(block)
        else:
            inventory["cluster"]["vars"].update(yaml.safe_load(block))
        yield yaml.safe_dump(inventory)


def checked(inventory, *arguments):
    """Run playbook inventory_check from the checkout."""
    program = str(Path(sys.executable).parent / "ansible-playbook")
    return subprocess.run(
        [program, "-i", str(inventory), "playbooks/inventory_check.yml", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=dict(os.environ, ANSIBLE_NOCOLOR="1"),
    )


@pytest.mark.parametrize(
    "inventory",
    [readme_inventory(), ROOT / "inventories/example_infiniband", *getting_started()],
    ids=[
        "README",
        "example_infiniband",
        *[
            "getting-started: %s" % name
            for name in ("NAS", "fabric", "H100", "RTX 4090", "V100", "one server")
        ],
    ],
)
def test_inventories_that_are_shown_to_users_are_good(tmp_path, inventory):
    if isinstance(inventory, str):
        (tmp_path / "hosts.yml").write_text(inventory, encoding="utf-8")
        inventory = tmp_path / "hosts.yml"
    done = checked(inventory)
    assert done.returncode == 0, done.stdout
    assert "WARN" not in done.stdout
    assert re.search(
        r"The input is valid: [1-9][0-9]* hosts? and [1-9][0-9]* variables? set by the inventory were checked\.",
        done.stdout,
    )


OLD = ROOT / "tests/fixtures/old_inventories"
#: What the run says about inventories of earlier releases, which are accepted as they are unless
#: they are listed here.
REFUSED = {
    "2bc6b6c-every_variable.yml": ("training_container_begin_check",),
    "2bc6b6c-lab_slurm.yml": ("slurm_accept_login_on_gpu_hosts",),
}


@pytest.mark.parametrize("name", sorted(path.name for path in OLD.glob("*.yml")))
def test_inventories_of_earlier_releases_are_good_or_told_what_to_change(name):
    """Those of 0.2.0, and of commit 2bc6b6c, from which sites may have installed Slurm and
    the hub.
    """
    # The lab makes this file with its hosts.
    key = "ansible_ssh_private_key_file=/root/.ssh/id_ed25519"
    done = checked(OLD / name, "--extra-vars", key)
    told = REFUSED.get(name, ())
    assert done.returncode == (2 if told else 0), done.stdout
    blocked = re.findall(r"^ *BLOCK (\S+)", done.stdout, re.MULTILINE)
    assert len(blocked) == len(told), done.stdout
    for words in told:
        assert words in done.stdout


def test_it_works_once_for_a_run_of_many_playbooks(tmp_path):
    playbook = tmp_path / "twice.yml"
    imported = "- ansible.builtin.import_playbook: %s/playbooks/inventory_check.yml\n" % ROOT
    playbook.write_text("---\n" + imported * 2, encoding="utf-8")
    done = play(tmp_path, GOOD, playbook=playbook)
    assert done.returncode == 0, done.stdout
    assert (
        "localhost                  : ok=2    changed=0    unreachable=0    failed=0    skipped=0"
        in done.stdout
    )
    assert done.stdout.count("PLAY [") == 2 and done.stdout.count("TASK [Check the inventory") == 1
