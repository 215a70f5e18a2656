"""The collection as it is built for Galaxy, and ansible-test sanity of it, with any release of
ansible-core.
"""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cpu_costs import COSTS

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

# ansible-test gets its pip from a script that it downloads from a host of its own. A stand-in with
# a wheel of that pip needs only a package index. It unpacks the wheel, which takes a fiftieth of
# what ensurepip and an update of its pip take, in each of ten environments.
GET_PIP = """\
import sysconfig
import zipfile

with zipfile.ZipFile(%r) as wheel:
    wheel.extractall(sysconfig.get_path("purelib"))
"""


def run(*command, cwd=ROOT, env=None):
    # Behind the scenario that takes longest, which runs beside them.
    with subprocess.Popen(
        ["nice", "--adjustment", "5", *(str(part) for part in command)],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        output = process.stdout.read()
        tool = command[2] if command[1] == "-m" else Path(command[0]).name
        code = COSTS.waited_for(process, tool)
    if code:
        pytest.fail(
            "%s: exit code %d\n%s" % (command[0], code, output[-12000:]),
            pytrace=False,
        )
    return output


def build(folder):
    """What Galaxy gets, and therefore checks."""
    run(BIN / "ansible-galaxy", "collection", "build", "--output-path", folder)
    return next(folder.glob("*.tar.gz"))


def unpack(artifact, folder):
    """Unpack it outside of this repository, where ansible-test takes namespace and name from the
    path.
    """
    copy = folder / "ansible_collections/trainyard/gpu"
    copy.mkdir(parents=True)
    with tarfile.open(artifact) as opened:
        opened.extractall(copy)
    return copy


def pip_settings():
    """ansible-test drops PIP_* variables and, with a home of its own, the user's pip.conf: say the
    same in a file.
    """
    settings = configparser.RawConfigParser()
    settings["global"] = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        name, _equals, value = line.partition("=")
        settings["global"][name.rpartition(".")[2]] = ast.literal_eval(value)
    return settings


def sanity(folder, artifact, python=Path(sys.executable)):
    """Run ansible-test sanity with the ansible-core of this Python."""
    copy = unpack(artifact, folder)

    # Its virtual environments are slow to make; they live with what else the tests keep.
    home = ROOT / ".cache/ansible-test"
    (home / ".config/pip").mkdir(parents=True, exist_ok=True)
    with open(home / ".config/pip/pip.conf", "w", encoding="utf-8") as pip_conf:
        pip_settings().write(pip_conf)
    cache = home / ".ansible/test/cache"
    cache.mkdir(parents=True, exist_ok=True)
    source = run(python, "-c", "import ansible_test; print(ansible_test.__path__[0])").strip()
    wanted = re.findall(
        r"\bpip='([0-9.]+)'",
        Path(source, "_internal/python_requirements.py").read_text(encoding="utf-8"),
    )
    assert wanted, "this ansible-test names its pip elsewhere"
    for version in wanted:
        wheel = cache / ("pip-%s-py3-none-any.whl" % version)
        if not wheel.exists():
            run(
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                cache,
                "pip==" + version,
            )
        (cache / ("get_pip_%s.py" % version.replace(".", "_"))).write_text(
            GET_PIP % str(wheel), encoding="utf-8"
        )

    release = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    environment = dict(
        os.environ, HOME=str(home), PATH="%s:%s" % (Path(python).parent, os.environ["PATH"])
    )
    output = run(
        Path(python).parent / "ansible-test",
        "sanity",
        "--local",
        "--python",
        release,
        "--color",
        "no",
        cwd=copy,
        env=environment,
    )
    assert "All targets skipped" not in output
    assert not (ROOT / "tests/sanity").exists(), "an ignore file buys nothing: mend the finding"
    return output
