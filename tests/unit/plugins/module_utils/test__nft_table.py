# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of nftables in the kernel, compared with their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _nft_table

PLANNED = """table inet trainyard_jobs
delete table inet trainyard_jobs
table inet trainyard_jobs {
  chain refuse {
    meta l4proto tcp reject with tcp reset
    reject
  }
  chain people {
    th dport { 12345 } accept
    th dport vmap { 10340-10359 : goto refuse, 12360-12379 : goto refuse }
    tcp flags & (fin | syn | rst | ack) == syn tcp dport 10000-29999 goto refuse
  }
  chain from_port {
  }
  chain output {
    type filter hook output priority filter - 10; policy accept;
    meta skuid { 0-999, 65534 } accept
  }
}
"""
#: As nft 1.0.6 prints it. 0.9 prints the priority as a number.
LISTED = """table inet trainyard_jobs {
\tchain refuse {
\t\tmeta l4proto tcp reject with tcp reset
\t\treject
\t}

\tchain people {
\t\tth dport 12345 accept
\t\tth dport vmap { 10340-10359 : goto refuse, 12360-12379 : goto refuse }
\t\ttcp flags syn / fin,syn,rst,ack tcp dport 10000-29999 goto refuse
\t}

\tchain from_port {
\t}

\tchain output {
\t\ttype filter hook output priority -10; policy accept;
\t\tmeta skuid { 0-999, 65534 } accept
\t}
}
"""
#: After nft flush table.
EMPTIED = "\n".join(
    line for line in LISTED.splitlines() if not line.startswith("\t\t") or "hook" in line
)


def without(part: str) -> str:
    """The table after somebody has removed the lines with this text."""
    return "\n".join(line for line in LISTED.splitlines() if part not in line)


def test_a_table_in_the_words_of_nft() -> None:
    assert _nft_table.fault_of(PLANNED, LISTED) == ""


@pytest.mark.parametrize(
    "listed, said",
    [
        ("", "not loaded"),
        ("table inet trainyard_jobs {\n}\n", "not loaded"),
        (EMPTIED, "chain output is changed"),
        (without("vmap"), "chain people is changed"),
        (without("from_port"), "chain from_port is changed"),
        (without("hook"), "chain output is changed"),
        (LISTED.replace("hook output", "hook input"), "chain output is changed"),
        (LISTED.replace("policy accept", "policy drop"), "chain output is changed"),
        (LISTED.replace("\t\tmeta skuid", "\t\taccept\n\t\tmeta skuid"), "chain output is changed"),
        (LISTED.replace("chain refuse", "chain at_17"), "chain at_17 is changed"),
    ],
)
def test_a_table_that_lacks_something(listed: str, said: str) -> None:
    assert _nft_table.fault_of(PLANNED, listed) == said


def test_a_table_of_unknown_origin() -> None:
    """A boot removes the file and the table. A table without its file is of an older release."""
    assert _nft_table.fault_of("", LISTED) == "loaded from an unknown file"


def test_a_job_that_begins_meanwhile_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its prolog changes the table first, and then the file."""
    path = tmp_path / "table.nft"
    path.write_text(PLANNED.replace("    reject\n", ""))
    asked: list[list[str]] = []

    def output(arguments: list[str]) -> str:
        asked.append(arguments)
        path.write_text(PLANNED)
        return LISTED

    monkeypatch.setattr(_nft_table, "_PAUSE", 0)
    monkeypatch.setitem(_nft_table.TABLES, _nft_table.JOBS, ("inet trainyard_jobs", str(path)))
    assert _nft_table.settled_fault(_nft_table.JOBS, output) == ""
    assert asked == [["list", "table", "inet", "trainyard_jobs"]] * 2
