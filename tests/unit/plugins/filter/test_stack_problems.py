"""Problems of a host's GPU stack, and the table of many hosts."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import problems as stack_problems
from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import table

GOOD = {
    "packages": {"libnccl2": {"version": "2.21.5-1+cuda12.4", "held": True, "broken": False}},
    "library": "550.54.15",
    "record": {},
    "reboot_required_reason": "",
    "will_break_on_next_boot": "",
}
ASKED = {"libnccl2": "2.21.5-1+cuda12.4", "nvidia-docker2": "absent"}


def test_a_host_as_requested_has_no_problems():
    assert stack_problems(GOOD, ASKED) == []
    assert stack_problems(GOOD, {}) == []


def test_each_thing_that_may_be_wrong():
    packages = {
        "libnccl2": {"version": "2.21.5-1+cuda12.4", "held": False, "broken": False},
        "nvidia-driver": {"version": "550.54.15-1", "held": True, "broken": True},
    }
    answer = {
        "packages": packages,
        "library": "550.54.15",
        "reboot_required_reason": "the loaded one is older",
        "will_break_on_next_boot": "kernel 6.2 has none",
    }
    assert stack_problems(answer, dict(ASKED, **{"nvidia-driver": 570})) == [
        {"what": "nvidia-driver", "asked": "570", "found": "550.54.15-1"},
        {"what": "libnccl2", "asked": "2.21.5-1+cuda12.4, held", "found": "not held"},
        {"what": "nvidia-driver", "asked": "installed whole", "found": "550.54.15-1, broken off"},
        {"what": "driver", "asked": "the one on disk", "found": "the loaded one is older"},
        {"what": "next boot", "asked": "a driver that works", "found": "kernel 6.2 has none"},
    ]


def test_driver_by_its_library_and_by_the_packages_that_are_noted():
    assert stack_problems(GOOD, {}, "550") == stack_problems(GOOD, {}, "550.54.15-1") == []
    assert stack_problems(GOOD, {}, 570) == [
        {"what": "driver", "asked": "570", "found": "550.54.15"}
    ]
    assert stack_problems(dict(GOOD, library=""), {}, "550") == [
        {"what": "driver", "asked": "550", "found": "absent"}
    ]
    noted = dict(
        GOOD, record={"packages": {"libnccl2": "2.21.5-1+cuda12.4", "nvidia-smi": "550.54.15-1"}}
    )
    assert stack_problems(noted, {}) == [
        {"what": "nvidia-smi", "asked": "550.54.15-1", "found": "absent"}
    ]


def test_table_has_every_host():
    hosts = [
        {"name": "server-a", "asked": 4, "problems": []},
        {
            "name": "server-b",
            "asked": 4,
            "problems": [{"what": "libnccl2", "asked": "2.21.5", "found": "absent"}],
        },
        {"name": "c", "asked": 0, "problems": None},
    ]
    assert table(hosts).splitlines()[0] == "host      what      asked       found"
    assert table(hosts).splitlines()[1:] == [
        "server-a  -         4 packages  as configured",
        "server-b  libnccl2  2.21.5      absent",
        "c         -         -           did not answer",
    ]


def test_table_says_what_was_compared():
    """The words "0 packages as configured" were all that it said with a stranger's key on
    the host.
    """
    host = {
        "name": "a",
        "asked": 0,
        "problems": [],
        "compared": ["people", "keys of the container"],
    }
    (line,) = table([host]).splitlines()[1:]
    assert line.endswith("0 packages  as configured: people, keys of the container")
