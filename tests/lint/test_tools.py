"""The linters of the trade, each as one test. None has a skip or an ignore file."""

from __future__ import annotations

import concurrent.futures
import os
import re
import sys

import pytest
from built_collection import BIN, ROOT, build, run, sanity, unpack


PACKAGES = ("plugin_utils", "module_utils")
#: What programs on hosts share, besides module_utils.
HOST_MODULES = (
    "roles/host_library/files/_registry.py",
    "roles/job_container/files/_drains.py",
    "roles/train/files/_job_hang.py",
    "roles/train/files/_job_result.py",
    "roles/train/files/_job_watch.py",
    "roles/training_image/files/rank.py",
)


def with_tools(**variables):
    return dict(os.environ, PATH="%s:%s" % (BIN, os.environ["PATH"]), **variables)


def ruff(_folder, _artifact):
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")


def mypy(folder, _artifact):
    """The types of what all modules and programs share, for the Python of pyproject.toml."""
    packages = ["ansible_collections.trainyard.gpu.plugins." + name for name in PACKAGES]
    # .dev has a link to this checkout. mypy reads what the collection imports from the environment
    # of the tests.
    strict(folder, ".dev", *(word for package in packages for word in ("--package", package)))
    # On a host, these modules and module_utils are in one folder.
    folders = dict.fromkeys(os.path.dirname(path) for path in HOST_MODULES)
    strict(folder, ":".join([".dev", "plugins/module_utils", *folders]), *HOST_MODULES)


def strict(folder, search_path, *files):
    run(
        BIN / "mypy",
        *("--cache-dir", folder / "cache", "--python-executable", sys.executable),
        *files,
        env=with_tools(MYPYPATH=search_path),
    )


def yamllint(_folder, _artifact):
    run(BIN / "yamllint", "--strict", ".")


def ansible_lint(_folder, _artifact, *options):
    """The collection itself.

    The playbooks of scenarios and tests take as long again, most of it for the start of
    ansible-playbook for each.
    """
    run(
        BIN / "ansible-lint",
        *("--offline", "--strict", "--nocolor", "--profile", "production"),
        *options or ["--exclude", "molecule/", "tests/"],
    )


def ansible_lint_of_the_tests(folder, artifact):
    ansible_lint(folder, artifact, "--project-dir", ".")


def changelog(folder, _artifact):
    run(BIN / "antsibull-changelog", "lint")
    run(BIN / "antsibull-changelog", "generate", "--output", folder / "CHANGELOG.md")
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") == (
        folder / "CHANGELOG.md"
    ).read_text(encoding="utf-8"), "antsibull-changelog generate"


def antsibull_docs(folder, artifact, *options):
    """The documentation of all plugins and roles, its markup and its references to the collections
    that galaxy.yml depends on.
    """
    run(
        BIN / "antsibull-docs",
        "lint-collection-docs",
        "--plugin-docs",
        "--validate-collection-refs",
        "dependent",
        *options or ["--skip-rstcheck"],
        unpack(artifact.result(), folder),
        cwd=folder,
        env=with_tools(),
    )


def antsibull_docs_pages(folder, artifact):
    """The same, and the pages that are generated from it: they take three quarters of the time, and
    are right if the markup is.
    """
    antsibull_docs(folder, artifact, "--no-skip-rstcheck")


def galaxy_importer(folder, artifact, ansible_doc=False):
    """Without what the other tools here do: ansible-lint and ansible-test, and ansible-doc, which
    antsibull-docs calls for all plugins at once.
    """
    (folder / "galaxy-importer.cfg").write_text(
        "[galaxy-importer]\nrun_ansible_doc = %s\nrun_ansible_lint = False\nrun_ansible_test = False\n"
        "ansible_local_tmp = %s\ntmp_root_dir = %s\n" % (ansible_doc, folder, folder),
        encoding="utf-8",
    )
    output = run(
        sys.executable,
        "-m",
        "galaxy_importer.main",
        artifact.result(),
        cwd=folder,
        env=with_tools(GALAXY_IMPORTER_CONFIG=str(folder / "galaxy-importer.cfg")),
    )
    assert "Importer processing completed successfully" in output
    assert re.findall(r"^(?:WARNING|ERROR|CRITICAL): .*", output, re.MULTILINE) == []


def galaxy_importer_with_ansible_doc(folder, artifact):
    """As Galaxy runs it: ansible-doc finds this collection alone.

    It is started for each type of plugin.
    """
    galaxy_importer(folder, artifact, ansible_doc=True)


def ansible_test_sanity(folder, artifact):
    sanity(folder, artifact.result())


# The slow ones first: each runs on one core, so they run beside each other.
TOOLS = [
    ansible_test_sanity,
    ansible_lint,
    antsibull_docs,
    yamllint,
    mypy,
    ruff,
    changelog,
    galaxy_importer,
]
# make lint runs them too.
HEAVY = [ansible_lint_of_the_tests, antsibull_docs_pages, galaxy_importer_with_ansible_doc]
MARKS = {ansible_test_sanity: pytest.mark.slow, **{tool: pytest.mark.acceptance for tool in HEAVY}}


@pytest.fixture(name="finished", scope="module")
def fixture_finished(request, tmp_path_factory):
    # Those that -k or -m leaves out do not run unseen: sanity keeps a core busy for minutes.
    asked = [
        item.callspec.params["tool"]
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_tool"
    ]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        artifact = pool.submit(build, tmp_path_factory.mktemp("artifact"))
        yield {
            tool: pool.submit(tool, tmp_path_factory.mktemp(tool.__name__), artifact)
            for tool in TOOLS + HEAVY
            if tool in asked
        }


@pytest.mark.parametrize(
    "tool",
    [pytest.param(tool, marks=MARKS.get(tool, ())) for tool in TOOLS + HEAVY],
    ids=lambda tool: tool.__name__,
)
def test_tool(tool, finished):
    finished[tool].result()
