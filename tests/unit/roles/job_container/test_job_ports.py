# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of jobs: the blocks of a job, the table that opens them, and what stays of them.

Whether the table refuses a second person, scenario job_container shows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from shared_modules import FOLDERS

FILES = Path(__file__).resolve().parents[4] / "roles" / "job_container" / "files"


def load():
    spec = importlib.util.spec_from_file_location("_job_ports", FILES / "_job_ports.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ports = load()
ME = os.getuid()
KERNEL = (32768, 60999)
NEW = "tcp flags & (fin | syn | rst | ack) == syn"


def config(**changes):
    return dict(
        {
            "enabled": True,
            "host": "a",
            "hosts": {
                "a": ["10.0.0.1", "10.1.0.1"],
                "b": ["10.0.0.2", "fd00::2"],
                "front": ["10.0.0.3"],
            },
            "training": ["a", "b"],
            "login": ["front"],
            "open": [12345],
        },
        **changes,
    )


def job(number, hosts=("a",), uids=((2101, 2101),), blocks=None):
    blocks = ports.candidates(number)[:3] if blocks is None else blocks
    return {
        "job": str(number),
        "uids": [list(pair) for pair in uids],
        "hosts": list(hosts),
        "blocks": blocks,
    }


def chains(jobs=(), kernel=KERNEL, **changes):
    """The rules of each chain."""
    found, name = {}, ""
    for line in ports.table(config(**changes), list(jobs), kernel).splitlines()[3:]:
        if line.startswith("  chain "):
            name = line.split()[1]
            found[name] = []
        elif line.startswith("    "):
            found[name].append(line.strip())
    return found


# --- blocks ---


def test_the_blocks_of_a_job_are_known_from_its_number():
    assert ports.candidates("17") == ports.candidates(17)
    assert ports.ports_of(ports.candidates("17")[0]) == [10340, 10359]
    for number in (1, 996, 997, 123456, 67043327):
        blocks = ports.candidates(number)
        assert len(set(blocks)) == ports.CANDIDATES
        assert all(10000 <= port <= 29999 for block in blocks for port in ports.ports_of(block))
    row = [block for number in range(5000, 5100) for block in ports.candidates(number)]
    assert len(row) - len(set(row)) < 20, "jobs in a row are in nobody's way"


def test_jobs_with_the_same_first_block_do_not_share_it():
    """On one host, whatever the first one has."""
    first = job(17)
    taken = ports.claim("1014", ["a"], [first], [])
    assert ports.candidates("1014")[0] == ports.candidates("17")[0]
    assert len(taken) == ports.CLAIMS and not set(taken) & set(first["blocks"])


def test_a_block_of_a_job_elsewhere_is_not_taken_here():
    """On b the first job has the block, on a a third one had it when the first one began."""
    shared = ports.candidates("17")[0]
    first = job(17, ["a", "b"], blocks=ports.candidates("17")[1:4])
    assert shared not in ports.claim("1014", ["a", "b"], [first], [])
    assert shared in ports.claim("1014", ["a"], [first], []), (
        "with one host in common, each end can tell them apart"
    )


def test_open_ports_belong_to_no_job():
    block = (12345 - 10000) // ports.BLOCK
    assert block in ports.candidates(block) and block not in ports.claim(block, ["a"], [], [12345])
    assert ports.claim("17", ["a"], [job(1, blocks=ports.candidates("17"))], []) == []


@pytest.mark.parametrize(
    "environment, hosts",
    [
        ({"SLURM_JOB_NODELIST": "a,b"}, ["a", "b"]),
        ({"SLURM_NODELIST": "b"}, ["a", "b"]),
        ({}, ["a"]),
        ({"SLURM_NODELIST": "a,elsewhere"}, ["a"]),
        ({"SLURM_NODELIST": "a[1-"}, ["a"]),
    ],
)
def test_the_hosts_of_a_job(environment, hosts):
    assert ports.hosts_of_job(environment, "a", config()["hosts"]) == hosts


def test_node_lists():
    assert ports.expand_nodes("n[01-03,7],x,r[1-2]c[1-2]") == [
        "n01",
        "n02",
        "n03",
        "n7",
        "x",
        "r1c1",
        "r1c2",
        "r2c1",
        "r2c2",
    ]
    assert ports.expand_nodes("") == [] and ports.expand_nodes("a[x-y]") == []


# --- the table ---


def test_a_table_without_jobs_is_closed():
    found = chains()
    assert found["here"] == ["goto refuse"] and found["elsewhere"] == ["goto refuse"]
    assert found["local_port"] == ["meta l4proto udp accept", "goto here"]
    assert found["at_port"][-1] == "goto refuse" and found["refuse"] == [
        "meta l4proto tcp reject with tcp reset",
        "reject",
    ]
    assert ports.table(config(), [], KERNEL).startswith(
        "table inet trainyard_jobs\ndelete table inet trainyard_jobs\n"
    ), "replaced in one step"


def test_the_ports_of_a_job_are_its_persons():
    found = chains([job(17, ["a", "b"], [(2101, 2101), (340590592, 340656127)])])
    people = "meta skuid { 2101-2101, 340590592-340656127 }"
    assert found["to_17"] == [
        people + ' oifname "lo" accept',
        people + " ip daddr { 10.0.0.1, 10.0.0.2, 10.1.0.1 } accept",
        people + " ip6 daddr { fd00::2 } accept",
        "goto refuse",
    ]
    assert found["at_17"] == [
        "ip saddr { 10.0.0.1, 10.0.0.2, 10.1.0.1 } ip daddr { 10.0.0.1, 10.1.0.1 } accept",
        "goto refuse",
    ]
    assert found["from_17"] == [people + " accept", "drop"], (
        "one who has taken its port answers nobody"
    )
    blocks = [
        "%d-%d : goto to_17" % tuple(ports.ports_of(block)) for block in ports.candidates("17")[:3]
    ]
    assert (
        found["local_port"][0]
        == found["remote_port"][0]
        == "th dport vmap { %s }" % ", ".join(blocks)
    )


def test_a_host_without_jobs_judges_its_people_only():
    found = chains(host="front")
    assert "input" not in found and found["to_port"] == [
        "ip daddr { 10.0.0.1, 10.0.0.2, 10.1.0.1 } goto remote_port",
        "ip6 daddr { fd00::2 } goto remote_port",
    ]
    assert found["to_kernel_port"] == [
        "ip daddr { 10.0.0.1, 10.0.0.2, 10.1.0.1 } goto elsewhere",
        "ip6 daddr { fd00::2 } goto elsewhere",
    ]


def test_a_training_host_for_logins_keeps_ports_of_the_kernel_open():
    """srun and sessions listen on them."""
    found = chains(host="a", login=["a"])
    assert found["here"] == ["accept"] and found["to_kernel_port"] == [
        "ip daddr { 10.0.0.2 } goto elsewhere",
        "ip6 daddr { fd00::2 } goto elsewhere",
    ]
    assert (
        not [rule for rule in found["input"] if "32768" in rule] and "at_kernel_port" not in found
    )


def test_a_host_accepts_connections_at_the_addresses_that_other_hosts_know():
    """Their tables judge people by these. Others are those of a link and of unknown networks."""
    hosts = {"a": ["10.0.0.1", "fd00::1"], "b": ["10.0.0.2", "fd00::2"]}
    found = chains([job(17, ["a", "b"])], hosts=hosts)
    pair = [
        "ip saddr { 10.0.0.1, 10.0.0.2 } ip daddr { 10.0.0.1 } accept",
        "ip6 saddr { fd00::1, fd00::2 } ip6 daddr { fd00::1 } accept",
        "goto refuse",
    ]
    assert found["at_17"] == pair and found["at_port"][-3:] == pair
    assert found["at_kernel_port"] == [
        "th dport { 12345 } accept",
        "th sport < 1024 accept",
        "ip daddr { 10.0.0.1 } accept",
        "ip6 daddr { fd00::1 } accept",
        "goto refuse",
    ]
    assert found["input"][-1] == NEW + " tcp dport 32768-60999 goto at_kernel_port"
    unknown = chains([job(17)], hosts={"b": ["10.0.0.2"]})
    assert unknown["at_17"] == ["goto refuse"] and unknown["at_kernel_port"][-2:] == [
        "th sport < 1024 accept",
        "goto refuse",
    ]


def test_all_but_accounts_of_the_system_are_judged():
    """A socket that the kernel opens for a person, as with AF_SMC, has no ID."""
    assert chains()["output"][1:] == [
        "meta skuid { 0-999, 64030, 65534 } accept",
        "meta l4proto { tcp, udp } th sport >= 1024 goto people",
        "meta l4proto { tcp, udp } meta skuid != 4294967295 goto people",
    ]


def test_a_job_without_ports_changes_no_map():
    found = chains([job(17, blocks=[])])
    assert "to_17" in found and found["local_port"] == ["meta l4proto udp accept", "goto here"]
    assert found["here"] == ["meta skuid { 2101-2101 } accept", "goto refuse"]


@pytest.mark.parametrize(
    "text, found",
    [
        ("32768\t60999\n", (32768, 60999)),
        ("1024 65535", (30000, 65535)),
        ("9000 12000", (30000, 30000)),
    ],
)
def test_ports_of_the_kernel(text, found):
    assert ports.kernel_ports(text) == found


# --- state ---


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Folders of jobs and state, and nft's stand-in, which keeps what it was given."""
    nft = tmp_path / "nft"
    nft.write_text(
        "#!/bin/sh\ntest ! -e %s/broken || { echo 'Error: no netlink' >&2; exit 1; }\ncp \"$2\" %s/loaded\n"
        % (tmp_path, tmp_path),
        encoding="ascii",
    )
    nft.chmod(0o755)
    monkeypatch.setattr(ports, "NFT", str(nft))
    (tmp_path / "jobs").mkdir()
    return tmp_path


def begin(place, number, **environment):
    (place / "jobs" / str(number)).mkdir(exist_ok=True)
    ports.open_ports(
        str(number), ME, environment, config(), str(place / "state"), str(place / "jobs")
    )


def end(place, number):
    ports.close_ports(str(number), config(), str(place / "state"), str(place / "jobs"))


def test_ports_open_with_the_job_and_close_with_it(place):
    begin(place, 17, SLURM_JOB_NODELIST="a,b")
    begin(place, 1014)
    noted = json.loads((place / "state" / "17.json").read_text())
    assert (
        noted["ports"][0] == [10340, 10359]
        and noted["hosts"] == ["a", "b"]
        and noted["uids"][0] == [ME, ME]
    )
    assert (place / "state" / "17.json").stat().st_mode & 0o777 == 0o644, (
        "trainyard-run reads it as the person"
    )
    loaded = (place / "loaded").read_text()
    assert "chain to_17 {" in loaded and "chain to_1014 {" in loaded
    end(place, 17)
    assert (
        "17 {" not in (place / "loaded").read_text()
        and "chain to_1014 {" in (place / "loaded").read_text()
    )
    end(place, 17)
    end(place, 1014)
    assert (place / "loaded").read_text() == ports.table(
        config(),
        [],
        ports.kernel_ports(ports._files.read("/proc/sys/net/ipv4/ip_local_port_range")),
    )
    assert (place / "state" / "table.nft").read_text() == (place / "loaded").read_text()


def test_a_failure_leaves_them_closed(place):
    (place / "broken").touch()
    with pytest.raises(
        OSError,
        match="nft: Error: no netlink; repair nftables on this host, or set job_container_firewall to false",
    ):
        begin(place, 17)
    assert not (place / "state" / "17.json").exists()
    assert not (place / "state" / "table.nft").exists(), "the kernel has another one"


def test_a_job_whose_epilog_never_ran_keeps_nothing(place):
    begin(place, 17)
    (place / "jobs" / "17").rmdir()
    begin(place, 1014)
    assert "to_17" not in (place / "loaded").read_text()
    assert json.loads((place / "state" / "1014.json").read_text())["ports"][0] == [10340, 10359]


def test_jobs_from_before_the_program_get_ports(place):
    (place / "jobs" / "16").mkdir()
    begin(place, 17)
    assert (
        json.loads((place / "state" / "16.json").read_text())["hosts"] == ["a", "b"]
        and "chain to_16 {" in (place / "loaded").read_text()
    )


def test_a_job_has_ports_without_the_firewall_too(place):
    (place / "jobs" / "17").mkdir()
    ports.open_ports("17", ME, {}, config(enabled=False), str(place / "state"), str(place / "jobs"))
    assert (place / "state" / "17.json").exists() and not (place / "loaded").exists()


def test_the_unit_loads_the_jobs_that_live(place, monkeypatch, capsys):
    begin(place, 17)
    (place / "loaded").unlink()
    monkeypatch.setattr(ports, "STATE", str(place / "state"))
    monkeypatch.setattr(ports, "JOBS", str(place / "jobs"))
    monkeypatch.setattr(ports, "read_config", config)
    assert ports.main() == 0 and "chain to_17 {" in (place / "loaded").read_text()
    monkeypatch.setattr(ports, "read_config", lambda: None)
    assert (
        ports.main() == 1
        and "/etc/trainyard/job/ports.json is missing; run playbook scheduler"
        in capsys.readouterr().err
    )


def test_it_loads_no_slow_module():
    """Prolog and epilog of each job load it."""
    code = (
        "import sys; sys.dont_write_bytecode = True; sys.path[:0] = %r; import _job_ports; print('subprocess' in sys.modules)"
        % [str(FILES), *FOLDERS]
    )
    assert (
        os.popen("%s -E -s -S -c '%s'" % (sys.executable, code.replace("'", '"'))).read()
        == "False\n"
    )
