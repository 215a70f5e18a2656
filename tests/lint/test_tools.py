"""The linters of the trade, each as one test. None has a skip or an ignore file."""

from __future__ import annotations

import ast
import concurrent.futures
import configparser
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

# ansible-test gets its pip from a script that it downloads from a host of its own. A stand-in with the pip that comes
# with Python needs only a package index.
GET_PIP = '''\
import subprocess
import sys

subprocess.check_call([sys.executable, "-m", "ensurepip"])
packages = [argument for argument in sys.argv[1:] if argument not in ("--no-setuptools", "--no-wheel")]
subprocess.check_call([sys.executable, "-m", "pip", "install", *packages])
'''


def run(*command, cwd=ROOT, env=None):
    # Behind the scenario that takes longest, which runs beside them.
    done = subprocess.run(["nice", "--adjustment", "5", *(str(part) for part in command)], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        pytest.fail("%s: exit code %d\n%s" % (command[0], done.returncode, done.stdout[-12000:]), pytrace=False)
    return done.stdout


def build(folder):
    """What Galaxy gets, and therefore checks."""
    run(BIN / "ansible-galaxy", "collection", "build", "--output-path", folder)
    return next(folder.glob("*.tar.gz"))


def unpack(artifact, folder):
    """Unpack it outside of this repository, where ansible-test takes namespace and name from the path."""
    copy = folder / "ansible_collections/trainyard/gpu"
    copy.mkdir(parents=True)
    with tarfile.open(artifact.result()) as opened:
        opened.extractall(copy)
    return copy


def with_tools(**variables):
    return dict(os.environ, PATH="%s:%s" % (BIN, os.environ["PATH"]), **variables)


def yamllint(_folder, _artifact):
    run(BIN / "yamllint", "--strict", ".")


def ansible_lint(_folder, _artifact):
    run(BIN / "ansible-lint", "--offline", "--strict", "--nocolor", "--profile", "production")


def changelog(folder, _artifact):
    run(BIN / "antsibull-changelog", "lint")
    run(BIN / "antsibull-changelog", "generate", "--output", folder / "CHANGELOG.md")
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") == (folder / "CHANGELOG.md").read_text(encoding="utf-8"), "antsibull-changelog generate"


def pip_settings():
    """ansible-test drops PIP_* variables and, with a home of its own, the user's pip.conf: say the same in a file."""
    settings = configparser.RawConfigParser()
    settings["global"] = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        name, _equals, value = line.partition("=")
        settings["global"][name.rpartition(".")[2]] = ast.literal_eval(value)
    return settings


def antsibull_docs(folder, artifact, *options):
    """The documentation of all plugins and roles, its markup and its references to the collections that galaxy.yml depends on."""
    run(BIN / "antsibull-docs", "lint-collection-docs", "--plugin-docs", "--validate-collection-refs", "dependent", *options or ["--skip-rstcheck"],
        unpack(artifact, folder), cwd=folder, env=with_tools())


def antsibull_docs_pages(folder, artifact):
    """The same, and the pages that are generated from it: they take three quarters of the time, and are right if the markup is."""
    antsibull_docs(folder, artifact, "--no-skip-rstcheck")


def galaxy_importer(folder, artifact, ansible_doc=False):
    """Without what the other tools here do: ansible-lint and ansible-test, and ansible-doc, which antsibull-docs calls for all plugins at once."""
    (folder / "galaxy-importer.cfg").write_text("[galaxy-importer]\nrun_ansible_doc = %s\nrun_ansible_lint = False\nrun_ansible_test = False\n"
                                                "ansible_local_tmp = %s\ntmp_root_dir = %s\n" % (ansible_doc, folder, folder), encoding="utf-8")
    output = run(sys.executable, "-m", "galaxy_importer.main", artifact.result(), cwd=folder,
                 env=with_tools(GALAXY_IMPORTER_CONFIG=str(folder / "galaxy-importer.cfg")))
    assert "Importer processing completed successfully" in output
    assert re.findall(r"^(?:WARNING|ERROR|CRITICAL): .*", output, re.MULTILINE) == []


def galaxy_importer_with_ansible_doc(folder, artifact):
    """As Galaxy runs it: ansible-doc finds this collection alone. It is started for each type of plugin."""
    galaxy_importer(folder, artifact, ansible_doc=True)


def ansible_test_sanity(folder, artifact):
    copy = unpack(artifact, folder)

    # Its virtual environments are slow to make; they live with what else the tests keep.
    home = ROOT / ".cache/ansible-test"
    (home / ".config/pip").mkdir(parents=True, exist_ok=True)
    with open(home / ".config/pip/pip.conf", "w", encoding="utf-8") as pip_conf:
        pip_settings().write(pip_conf)
    cache = home / ".ansible/test/cache"
    cache.mkdir(parents=True, exist_ok=True)
    source = run(sys.executable, "-c", "import ansible_test; print(ansible_test.__path__[0])").strip()
    wanted = re.findall(r"\bpip='([0-9.]+)'", Path(source, "_internal/python_requirements.py").read_text(encoding="utf-8"))
    assert wanted, "this ansible-test names its pip elsewhere"
    for version in wanted:
        (cache / ("get_pip_%s.py" % version.replace(".", "_"))).write_text(GET_PIP, encoding="utf-8")

    python = "%d.%d" % sys.version_info[:2]
    output = run(BIN / "ansible-test", "sanity", "--local", "--python", python, "--color", "no", cwd=copy, env=with_tools(HOME=str(home)))
    assert "All targets skipped" not in output
    assert not (ROOT / "tests/sanity").exists(), "an ignore file buys nothing: mend the finding"


# The slow ones first: each runs on one core, so they run beside each other.
TOOLS = [ansible_test_sanity, ansible_lint, antsibull_docs, yamllint, changelog, galaxy_importer]
# make lint runs them too.
HEAVY = [antsibull_docs_pages, galaxy_importer_with_ansible_doc]


@pytest.fixture(name="finished", scope="module")
def fixture_finished(request, tmp_path_factory):
    # Those that -k or -m leaves out do not run unseen: sanity keeps a core busy for minutes.
    asked = [item.callspec.params["tool"] for item in request.session.items if getattr(item, "originalname", "") == "test_tool"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        artifact = pool.submit(build, tmp_path_factory.mktemp("artifact"))
        yield {tool: pool.submit(tool, tmp_path_factory.mktemp(tool.__name__), artifact) for tool in TOOLS + HEAVY if tool in asked}


@pytest.mark.parametrize("tool", TOOLS + [pytest.param(tool, marks=pytest.mark.acceptance) for tool in HEAVY], ids=lambda tool: tool.__name__)
def test_tool(tool, finished):
    finished[tool].result()
