"""Program dump-accounting of role slurm_controller, with stand-ins for MariaDB's programs."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "roles/slurm_controller/files/dump-accounting"
MARIADB = """#!/bin/sh
exit "${DOWN:-0}"
"""
DUMP = """#!/bin/sh
echo "$@"
echo "CREATE TABLE x;"
test -n "${CUT:-}" || echo "-- Dump completed on 2026-11-26"
"""


@pytest.fixture(name="dump")
def _dump(tmp_path):
    programs, folder = tmp_path / "bin", tmp_path / "dumps"
    programs.mkdir()
    for name, text in (("mariadb", MARIADB), ("mariadb-dump", DUMP)):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)

    def run(kind, keep=2, packages=(), **environment):
        done = subprocess.run(
            ["sh", str(PROGRAM), kind, str(keep), str(folder)],
            input="".join("%s\n" % name for name in packages),
            text=True,
            env=dict(os.environ, PATH="%s:%s" % (programs, os.environ["PATH"]), **environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
        )
        return (
            done.returncode,
            done.stderr,
            sorted(path.name for path in folder.iterdir()) if folder.exists() else [],
        )

    return run, folder


def test_a_dump_is_whole_and_for_root_only(dump):
    run, folder = dump
    code, _errors, names = run("nightly")
    assert (
        code == 0
        and len(names) == 1
        and names[0].startswith("nightly-")
        and names[0].endswith("Z.sql.gz")
    )
    assert (
        folder / names[0]
    ).stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    with gzip.open(folder / names[0], "rt") as told:
        assert told.readline().split() == [
            "--single-transaction",
            "--quick",
            "--databases",
            "slurm_acct_db",
        ]


def test_the_last_dumps_of_a_kind_are_kept(dump):
    run, folder = dump
    run("nightly")
    for name in (
        "nightly-2020-01-01T00-00-00Z.sql.gz",
        "nightly-2020-01-02T00-00-00Z.sql.gz",
        "upgrade-2020-01-01T00-00-00Z.sql.gz",
        "of-the-site",
    ):
        (folder / name).touch()
    names = run("nightly", keep=2)[2]
    assert {"of-the-site", "upgrade-2020-01-01T00-00-00Z.sql.gz"} < set(names)
    assert (
        "nightly-2020-01-01T00-00-00Z.sql.gz" not in names
        and len([name for name in names if name.startswith("nightly-")]) == 2
    )


def test_a_dump_that_was_cut_fails_and_replaces_nothing(dump):
    run, _folder = dump
    before = run("nightly")[2]
    code, errors, names = run("nightly", CUT="1")
    assert code != 0 and "the dump of slurm_acct_db is not complete" in errors and names == before


@pytest.mark.parametrize(
    "packages, expected",
    [
        (["/var/cache/apt/archives/hello_2.10-3_amd64.deb"], 0),
        (["/var/cache/apt/archives/libpam-slurm-adopt_22.05.8-4_amd64.deb"], 0),
        (
            [
                "/x/hello_2.10-3_amd64.deb",
                "/x/slurmdbd_22.05.8-4%2bdeb12u3_amd64.deb",
                "/x/zlib_1_amd64.deb",
            ],
            1,
        ),
        (["/x/slurm-wlm-mysql-plugin_24.11.5-4_amd64.deb"], 1),
        (["/x/mariadb-server_1%3a10.11.14-0%2bdeb12u2_amd64.deb"], 1),
        (["/x/mariadb-server-core-10.6_1%3a10.6_amd64.deb"], 1),
        ([], 0),
    ],
)
def test_apt_dumps_before_slurm_or_mariadb_change(dump, packages, expected):
    code, _errors, names = dump[0]("upgrade", packages=packages)
    assert (code, len(names)) == (0, expected)


def test_an_upgrade_goes_on_only_without_a_database_or_with_a_dump(dump):
    packages = ["/x/mariadb-server_1_amd64.deb"]
    code, errors, names = dump[0]("upgrade", packages=packages, DOWN="1")
    assert code == 0 and "MariaDB does not run" in errors and names == []
    assert dump[0]("upgrade", packages=packages, CUT="1")[0] != 0
