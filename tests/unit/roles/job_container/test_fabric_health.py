"""Ports of the fabric in the health program: trees like /sys, and what happens between two
looks.
"""

from __future__ import annotations

import json

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _fabric

START = 1.7e9


class Host:
    """The ports of a host, and the memory of its health program, which a file of JSON keeps."""

    def __init__(self, folder):
        self.folder, self.now, self.kept, self.boot = folder, START, None, "boot-1"
        #: What drivers count, by interface.
        self.statistics = {}

    def port(self, name="mlx5_0", state="4: ACTIVE", layer="InfiniBand", **counters):
        own = self.folder / name / "ports/1"
        (own / "counters").mkdir(parents=True, exist_ok=True)
        (own / "state").write_text(state + "\n", encoding="ascii")
        (own / "link_layer").write_text(layer + "\n", encoding="ascii")
        values = dict({"symbol_error": 0, "link_error_recovery": 0, "link_downed": 0}, **counters)
        (own / "hw_counters").mkdir(exist_ok=True)
        for counter, value in values.items():
            (own / _fabric.place_of(counter) / counter).write_text("%d\n" % value, encoding="ascii")

    def look(self, seconds=300):
        self.now += seconds
        ports = _fabric.read_ports(
            str(self.folder), statistics=lambda interface: self.statistics.get(interface, "")
        )
        found, kept = _fabric.judge(self.kept, ports, self.boot, self.now)
        self.kept = json.loads(json.dumps(kept))
        return found


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return Host(tmp_path)


def test_a_healthy_port_whose_counters_have_a_past(host):
    """Errors of the installation, of months ago."""
    host.port(symbol_error=65535, link_downed=17, link_error_recovery=255)
    assert host.look() == [] and host.look() == [] and host.look() == []


@pytest.mark.parametrize("counter", _fabric.REMARKED)
def test_what_is_worth_a_line_of_the_log(host, counter):
    """Once, and without a drain, until an hour has passed without it."""
    limit, told = _fabric.REMARKED[counter][0] * 300, []
    values = [0, limit, 2 * limit + 1, 4 * limit, *[4 * limit] * 12, 6 * limit]
    for value in values:
        host.port(**{counter: value})
        assert host.look() == []
        told.append(host.kept["remarks"])
    line = "%s of mlx5_0/1: %d in 300 s"
    assert told[2] == [line % (counter, limit + 1)] and told[-1] == [line % (counter, 2 * limit)]
    assert [each for each in told if each] == [told[2], told[-1]]


def test_losses_of_flow_control_are_lines_of_the_log(host):
    """Of an interface of RoCE: discards by their rate, and each pause storm.

    Pauses alone are no fault, and neither are those of months ago.
    """
    host.port("rocep1s0", layer="Ethernet")
    changes = host.folder / "rocep1s0/device/net/ens1/carrier_changes"
    changes.parent.mkdir(parents=True)
    changes.write_text("2\n", encoding="ascii")

    def remarks(discards, storms, pauses=0):
        row = "     rx_prio3_pause: %d\n     rx_prio3_discards: %d\n     tx_pause_storm_error_events: %d\n"
        host.statistics["ens1"] = row % (pauses, discards, storms)
        assert host.look() == []
        return host.kept["remarks"]

    assert remarks(900000, 7) == [] and remarks(900000, 7, 10**9) == []
    assert remarks(930000, 7) == []
    assert remarks(960001, 8) == [
        "pfc_discards of rocep1s0/1: 30001 in 300 s",
        "pfc_storms of rocep1s0/1: 1 in 300 s",
    ]
    # Told once.
    assert remarks(990100, 9) == []


def test_what_verify_says_of_ports(host):
    """What drains, and for an hour what was worth a line of the log. Nothing is kept."""
    host.port("mlx5_0")
    host.port("mlx5_1", port_rcv_errors=0)
    assert not _fabric.has_looked(None, "boot-1") and not _fabric.has_looked([], "boot-1")
    assert host.look() == [] and host.look() == []
    assert _fabric.has_looked(host.kept, "boot-1") and not _fabric.has_looked(host.kept, "boot-2")
    host.port("mlx5_0", symbol_error=121, link_downed=3)
    host.port("mlx5_1", port_rcv_errors=3001)

    def told(seconds=300):
        return _fabric.problems(
            host.kept, _fabric.read_ports(str(host.folder)), host.boot, host.now + seconds
        )

    found = [
        {"check": "ib-flaps", "text": "mlx5_0/1 went down 3 times or more in 12 h", "drains": True},
        {
            "check": "ib-counters",
            "text": "symbol_error of mlx5_0/1: more than 120 in 3600 s",
            "drains": True,
        },
        {
            "check": "ib-counters",
            "text": "port_rcv_errors of mlx5_1/1: more than 10 in 1 s",
            "drains": False,
        },
    ]
    assert told() == found and told() == found
    # The health program has told the line of the log meanwhile.
    assert len(host.look()) == 2 and host.look() != [] and host.kept["remarks"] == []
    assert told() == found
    assert [each["check"] for each in told(4000)] == ["ib-flaps"]


def test_a_port_without_a_cable_is_no_fault(host):
    host.port()
    host.port("mlx5_1", state="1: DOWN")
    assert host.look() == [] and host.look() == []


def test_a_port_that_goes_down(host):
    host.port()
    assert host.look() == []
    host.port(state="1: DOWN", link_downed=1)
    assert host.look(60) == []
    assert host.look(120) == []
    assert host.look(180) == [("ib-ports", "mlx5_0/1 is down")]
    # The same words, as each change is a new reason in Slurm.
    assert host.look() == [("ib-ports", "mlx5_0/1 is down")]
    host.port(link_downed=1)
    assert host.look() == []


def test_a_card_that_is_gone(host):
    host.port()
    assert host.look() == []
    for path in sorted((host.folder / "mlx5_0").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert host.look() == [] and host.look() == [("ib-ports", "mlx5_0/1 is down")]


def test_after_a_boot_nothing_is_known(host):
    host.port()
    assert host.look() == []
    host.boot = "boot-2"
    host.port(state="1: DOWN", symbol_error=100000)
    assert host.look() == [] and host.look() == []


def test_a_link_that_flaps(host):
    host.port()
    host.look()
    for number in (1, 2):
        host.port(link_downed=number)
        assert host.look() == []
    host.port(link_downed=3)
    told = [("ib-flaps", "mlx5_0/1 went down 3 times or more in 12 h")]
    assert host.look() == told and host.look(3600) == told
    # Half a day without one.
    assert host.look(12 * 3600) == []


def test_a_roce_port_flaps_by_its_carrier(host):
    host.port("rocep1s0", layer="Ethernet")
    changes = host.folder / "rocep1s0/device/net/ens1/carrier_changes"
    changes.parent.mkdir(parents=True)
    # Up at the boot.
    changes.write_text("2\n", encoding="ascii")
    assert host.look() == []
    changes.write_text("8\n", encoding="ascii")
    assert [check for check, _text in host.look()] == ["ib-flaps"]


@pytest.mark.parametrize(
    "counter, events, seconds, is_fault",
    [
        # 120 an hour: NVSentinel.
        ("symbol_error", 100, 300, False),
        ("symbol_error", 130, 300, True),
        ("symbol_error", 200, 7200, False),
        ("symbol_error", 300, 7200, True),
        ("link_error_recovery", 20, 300, False),
        ("link_error_recovery", 30, 300, True),
        # Two looks at almost the same time say nothing about a rate.
        ("symbol_error", 130, 5, False),
    ],
)
def test_errors_by_their_rate(host, counter, events, seconds, is_fault):
    host.port()
    host.look()
    host.port(**{counter: events})
    found = host.look(seconds)
    assert bool(found) is is_fault
    if is_fault:
        assert found[0][0] == "ib-counters" and counter in found[0][1]
        # It ends an hour after the last one.
        assert host.look(1800) == found and host.look(1900) == []


def test_a_counter_that_was_reset(host):
    host.port(symbol_error=5000)
    host.look()
    host.port(symbol_error=3)
    assert host.look() == []


@pytest.mark.parametrize(
    "kept",
    [
        None,
        [],
        {},
        {"boot": "boot-1"},
        {"boot": "boot-1", "ports": {"mlx5_0/1": {"flaps": ["x"], "bad": {}}}},
        {"boot": "boot-1", "ports": {"mlx5_0/1": 3}},
        {"boot": "boot-1", "ports": {"mlx5_0/1": {"flaps": 7, "down": "x", "bad": 7}}},
    ],
)
@pytest.mark.parametrize("state", ["4: ACTIVE", "1: DOWN"])
def test_a_damaged_memory_is_begun_anew(host, kept, state):
    host.kept = kept
    host.port(state=state)
    assert host.look() == [] and host.look() == []
