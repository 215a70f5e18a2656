"""What GitHub runs: every step is a script of .ci/, the jobs cover all tests, and the steps that
can run here are run here.

CONTRIBUTING.md names the steps that have run on GitHub only, or nowhere yet.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCRIPTS = sorted(path for path in (ROOT / ".ci").iterdir() if path.is_file())
RELEASES = {"bookworm", "trixie", "jammy", "noble"}
# What a step may be without a script of its own.
PLAIN = (
    "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends ca-certificates git python3 python3-venv",
    "make .venv/complete",
)
# Heavy, or they need what only GitHub has: the real archives, KVM, gh, a Galaxy token.
ELSEWHERE = {"run", "lab", "archives", "runner_host", "open_issue"}


def jobs():
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            yield "%s: %s" % (path.name, name), job


def steps():
    return [(name, step) for name, job in jobs() for step in job["steps"]]


def commands():
    """Script and arguments of each step that runs something."""
    for name, step in steps():
        text = step.get("run", "").strip()
        if text and text not in PLAIN:
            words = shlex.split(re.sub(r"\$\{\{(.*?)\}\}", "VALUE", text))
            at = next((number for number, word in enumerate(words) if ".ci/" in word), None)
            yield (
                name,
                text,
                (words[at].partition(".ci/")[2], *words[at + 1 :]) if at is not None else (),
            )


def test_every_step_is_a_script():
    scripts = {path.name for path in SCRIPTS}
    for name, text, command in commands():
        assert command and command[0] in scripts, "%s: not a script of .ci/: %s" % (name, text)
        assert "\n" not in text, "%s: more than one command: %s" % (name, text)


def test_every_script_is_used():
    used = {command[0] for _name, _text, command in commands()}
    called = {name for path in SCRIPTS for name in re.findall(r"\.ci/([\w.]+)", path.read_text())}
    assert {path.name for path in SCRIPTS} <= used | called


def test_actions_are_named_by_their_commit():
    found = [step["uses"] for _name, step in steps() if "uses" in step]
    assert found != []
    for action in found:
        assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", action), action


def test_jobs_end_and_may_only_read():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
    for name, job in jobs():
        assert job.get("timeout-minutes", 6) <= 120, name
        assert set(job.get("permissions", {}).values()) <= {"read", "write"}


def matrix(workflow_job):
    path, _, name = workflow_job.partition(": ")
    workflow = yaml.safe_load((ROOT / ".github/workflows" / path).read_text(encoding="utf-8"))
    return workflow["jobs"][name]["strategy"]["matrix"]


def test_the_groups_of_scenarios_are_all_of_ci():
    text = (ROOT / "tests/scenarios/test_scenarios.py").read_text(encoding="utf-8")
    acceptance = ast.literal_eval(re.search(r"^ACCEPTANCE = (\{.*?\})", text, re.M | re.S).group(1))
    found = " ".join(matrix("test.yml: scenarios")["names"]).split()
    all_of_them = {path.parent.name for path in ROOT.glob("molecule/*/molecule.yml")}
    assert len(found) == len(set(found)) and set(found) == all_of_them - acceptance


def test_hosts_of_all_supported_releases():
    assert set(matrix("test.yml: hosts")["release"]) == RELEASES
    assert set(matrix("test.yml: virtual")["release"]) == {"jammy", "noble"}
    images = matrix("test.yml: archives")["image"]
    assert images == ["ubuntu:22.04", "ubuntu:24.04"]


def test_no_test_of_make_test_is_left_out():
    """The parts of .ci/run select by the same markers as the Makefile."""
    text = (ROOT / ".ci/run").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m 'slow and not acceptance and not scenario'" in text
    assert "-m 'not acceptance and not scenario and not slow'" in makefile
    parts = {command[1] for _name, _text, command in commands() if command[0] == "run"}
    assert parts == {"fast", "slow", "scenarios"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_read(script):
    assert script.stat().st_mode & 0o111, "not executable"
    if script.read_text(encoding="utf-8").startswith("#!/bin/sh"):
        subprocess.run(["sh", "-n", script], check=True)


def test_what_cannot_run_here_is_named_in_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in ELSEWHERE - {"run"}:
        assert "`.ci/%s`" % name in text, name


@pytest.mark.slow
def test_the_release_is_built_and_its_playbook_runs():
    """As release.yml does, without a tag: nothing is published."""
    done = subprocess.run(
        [ROOT / ".ci/release"], cwd="/", text=True, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its playbook inventory_check runs" in done.stdout


def test_a_tag_of_another_version_is_not_published():
    done = subprocess.run(
        [ROOT / ".ci/release", "v99.0.0"], text=True, check=False, capture_output=True
    )
    assert done.returncode == 1 and "the tag is 'v99.0.0', and galaxy.yml has" in done.stderr


def test_an_unknown_part_of_the_tests_is_refused():
    done = subprocess.run([ROOT / ".ci/run", "half"], text=True, check=False, capture_output=True)
    assert done.returncode == 2 and "unknown part 'half'" in done.stderr


GH = """#!/bin/sh
echo "$@" >> %(log)s
case "$2" in list) echo "%(number)s" ;; esac
"""


@pytest.mark.parametrize(
    "number, command", [("", "issue create --title"), ("12", "issue comment 12 ")]
)
def test_the_differences_become_one_issue(tmp_path, number, command):
    (tmp_path / "found").mkdir()
    (tmp_path / "found/noble").write_text("noble: munge: not in the archive\n")
    (tmp_path / "gh").write_text(GH % {"log": tmp_path / "log", "number": number})
    (tmp_path / "gh").chmod(0o755)
    path = {"PATH": "%s:/usr/bin:/bin" % tmp_path}
    subprocess.run([ROOT / ".ci/open_issue", tmp_path / "found"], env=path, check=True)
    assert command in (tmp_path / "log").read_text().splitlines()[-1]


@pytest.mark.slow
def test_the_inventory_of_a_runner_is_valid(tmp_path):
    """As the job has it, with the names of the programs in its log.

    The input is checked by the playbook with which its first one begins.
    """
    for name in ("make", "ansible", "ansible-playbook"):
        (tmp_path / name).write_text(
            "#!/bin/sh\necho %s $@ >> %s/log\ncp $2 %s/hosts.yml || true\n"
            % (name, tmp_path, tmp_path)
        )
        (tmp_path / name).chmod(0o755)
    script = (ROOT / ".ci/runner_host").read_text()
    for there, here in (
        ('cd "$(dirname "$0")/.."', "cd %s" % ROOT),
        ("mkdir -p /data1/share", "true"),
        ("$PWD/.venv/bin", str(tmp_path)),
    ):
        assert there in script
        script = script.replace(there, here)
    (tmp_path / "runner_host").write_text(script)
    path = {"PATH": "%s:/usr/sbin:/usr/bin:/sbin:/bin" % tmp_path}
    subprocess.run(["sh", tmp_path / "runner_host"], env=path, check=True)
    log = (tmp_path / "log").read_text()
    assert [word for word in log.split() if word.startswith("playbooks/")] == [
        "playbooks/preflight.yml",
        "playbooks/gpu_stack.yml",
    ]
    playbook = [ROOT / ".venv/bin/ansible-playbook", "-i", tmp_path / "hosts.yml"]
    done = subprocess.run(
        [*playbook, "playbooks/inventory_check.yml"],
        cwd=ROOT,
        text=True,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout
    assert "The input is valid: 1 host" in done.stdout


APT = """#!/bin/sh
case "$*" in
update*) test -e %(folder)s/sources.list.d/docker.list && cp %(folder)s/docker %(folder)s/targets ;;
indextargets*) cat %(folder)s/targets ;;
*--simulate*uidmap*) echo "E: uidmap has unmet dependencies" >&2; exit 100 ;;
*--simulate*nvlink5*) echo "E: nvlink5-580 has unmet dependencies" >&2; exit 100 ;;
esac
exit 0
"""
HELPER = """#!/bin/sh
case "$1" in
download-file) echo "$2" > "$3" ;;
*) exec /usr/lib/apt/apt-helper "$@" ;;
esac
"""
CUDA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"


def test_differences_of_an_archive_are_reported(tmp_path):
    """As in a container of Ubuntu, with an apt-get of the test's that cannot install two
    packages.
    """
    index = tmp_path / "index"
    index.write_text("Package: munge\nVersion: 1\nSection: misc\nMaintainer: x\nDescription: x\n")
    ubuntu = "main http://archive.ubuntu.com/ubuntu/ %s\n" % index
    (tmp_path / "targets").write_text(ubuntu)
    vendors = (CUDA, "https://nvidia.github.io/libnvidia-container/x", "https://docker.com/")
    (tmp_path / "docker").write_text("".join("x %s %s\n" % (uri, index) for uri in vendors))
    (tmp_path / "sources.list.d").mkdir()
    for name, text in (("apt-get", APT % {"folder": tmp_path}), ("helper", HELPER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "os").write_text("VERSION_CODENAME=noble\n")
    script = (ROOT / ".ci/archives").read_text()
    for there, here in (
        ('cd "$(dirname "$0")/.."', "cd %s" % ROOT),
        ("/etc/os-release", tmp_path / "os"),
        ("/etc/apt/keyrings", tmp_path / "keyrings"),
        ("/etc/apt/sources.list.d", tmp_path / "sources.list.d"),
        ("/usr/lib/apt/apt-helper", tmp_path / "helper"),
    ):
        assert there in script
        script = script.replace(there, str(here))
    (tmp_path / "archives").write_text(script)
    report = tmp_path / "report"
    done = subprocess.run(
        ["sh", tmp_path / "archives", report],
        env={
            "PATH": "%s:%s:/usr/bin:/bin" % (tmp_path, ROOT / ".venv/bin"),
            "TMPDIR": str(tmp_path),
        },
        text=True,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 1, done.stderr
    text = report.read_text()
    assert "noble: munge: component 'main', expected 'universe'" in text
    assert "noble: libpmix2t64: not in the archive" in text
    assert "noble: apt-get cannot install uidmap:\n    E: uidmap has unmet dependencies" in text
    assert "noble: nvidia-utils-580: no version 580 in the archive" in text
    assert "noble: nvidia-container-toolkit: no version 1 in the archive" in text
    assert "noble: docker-ce: not in the archive" in text
    assert "noble: apt-get cannot install nvlink5-580:\n    E: nvlink5-580 has unmet" in text
    assert (tmp_path / "keyrings/cuda.asc").read_text() == CUDA + "3bf863cc.pub\n"
    lines = (tmp_path / "sources.list.d/docker.list").read_text()
    assert lines.startswith("deb [arch=amd64 signed-by=") and lines.endswith("noble stable\n")
    # Nothing is left beside the report.
    assert sorted(path.name for path in tmp_path.glob("report*")) == ["report"]
