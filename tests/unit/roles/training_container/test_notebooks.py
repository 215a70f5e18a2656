# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checkout of notebooks, with the git of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[4] / "roles/training_container/files/notebooks"
AUTHOR = {
    "GIT_AUTHOR_NAME": "anna",
    "GIT_AUTHOR_EMAIL": "anna@example.org",
    "GIT_COMMITTER_NAME": "anna",
    "GIT_COMMITTER_EMAIL": "anna@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


class Host:
    def __init__(self, folder):
        self.folder, self.source = folder / "host", folder / "source"
        self.tree, self.repository = self.folder / "tree", self.folder / "repository"
        self.url = "file://%s" % self.source
        self.git("init", "--quiet", "--initial-branch=main", str(self.source), folder=folder)
        text = SCRIPT.read_text(encoding="utf-8")
        assert "/var/lib/trainyard/notebooks" in text
        self.script = text.replace("/var/lib/trainyard/notebooks", str(self.folder))

    def git(self, *arguments, folder=None):
        return subprocess.run(
            ["git", *arguments],
            cwd=folder or self.source,
            check=True,
            capture_output=True,
            text=True,
            env=dict(os.environ, **AUTHOR),
        ).stdout.strip()

    def commit(self, **files):
        for name, text in files.items():
            (self.source / name).write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=one more")
        return self.git("rev-parse", "HEAD")

    def run(self, *arguments, **more):
        return subprocess.run(
            ["/bin/sh", "-s", *arguments],
            input=self.script,
            check=False,
            capture_output=True,
            text=True,
            env=dict(os.environ, **AUTHOR, **more),
        )

    def checkout(self, revision, url=None):
        return self.run("checkout", url or self.url, revision)

    def content(self):
        return {path.name: path.read_text(encoding="utf-8") for path in self.tree.iterdir()}


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return Host(tmp_path)


def test_a_revision_and_the_next_one(host):
    first = host.commit(a="one", b="two")
    second = host.commit(a="three")
    assert host.checkout(first).returncode == 0 and host.content() == {"a": "one", "b": "two"}
    assert (host.repository / "HEAD").read_text(encoding="utf-8").strip() == first
    assert host.checkout(first).returncode == 0
    # A file of a person, and a change that the next revision does not concern, stay.
    (host.tree / "mine").write_text("mine", encoding="utf-8")
    (host.tree / "b").write_text("changed", encoding="utf-8")
    assert host.checkout(second).returncode == 0 and host.content() == {
        "a": "three",
        "b": "changed",
        "mine": "mine",
    }
    third = host.commit(b="four")
    refused = host.checkout(third)
    assert (
        refused.returncode == 1
        and "'%s' would overwrite the changes above in %s" % (third, host.tree) in refused.stderr
    )
    assert (
        host.content()["b"] == "changed"
        and (host.repository / "HEAD").read_text(encoding="utf-8").strip() == second
    )
    # The branch of the source moves, and the former one can still be had.
    (host.tree / "b").write_text("two", encoding="utf-8")
    assert (
        host.checkout(third).returncode == 0
        and host.content()["b"] == "four"
        and host.checkout(first).returncode == 0
    )


def test_a_deleted_tree_is_restored(host):
    revision = host.commit(a="one")
    host.checkout(revision)
    (host.tree / "a").unlink()
    host.tree.rmdir()
    assert host.checkout(revision).returncode == 0 and host.content() == {"a": "one"}


def test_the_tree_has_nothing_that_git_obeys(host, tmp_path):
    """The container's users can write there."""
    revision, other = host.commit(a="one"), host.commit(a="two")
    host.checkout(revision)
    assert not (host.tree / ".git").exists()
    hooks = host.tree / ".git/hooks"
    hooks.mkdir(parents=True)
    (host.tree / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (host.tree / ".git/config").write_text(
        "[core]\nfsmonitor = touch %s/obeyed\n" % tmp_path, encoding="utf-8"
    )
    (host.tree / ".gitattributes").write_text("* filter=evil\n", encoding="utf-8")
    for name in ("post-checkout", "post-index-change"):
        (hooks / name).write_text("#!/bin/sh\ntouch %s/obeyed\n" % tmp_path, encoding="utf-8")
        (hooks / name).chmod(0o755)
    assert (
        host.checkout(other).returncode == 0
        and (host.tree / "a").read_text(encoding="utf-8") == "two"
    )
    assert host.run("remove").returncode == 0 and not (tmp_path / "obeyed").exists()


@pytest.mark.parametrize(
    "url, revision, problem",
    [
        ("file:///nowhere", "0" * 40, "'file:///nowhere' cannot be fetched"),
        (None, "0" * 40, "has no commit '0000"),
    ],
)
def test_what_cannot_be_had(host, url, revision, problem):
    host.commit(a="one")
    refused = host.checkout(revision, url)
    assert (
        refused.returncode == 1
        and "training_container_notebooks: " in refused.stderr
        and problem in refused.stderr
    )


def test_removal_keeps_the_work_of_people(host):
    revision = host.commit(a="one")
    host.checkout(revision)
    (host.tree / "mine").write_text("mine", encoding="utf-8")
    assert (
        host.run("remove").stdout == "Kept %s, which has changes\n" % host.tree
        and host.content()["mine"] == "mine"
    )
    (host.tree / "mine").unlink()
    assert host.run("remove").stdout == "" and not host.folder.exists()
    assert host.run("remove").returncode == 0
