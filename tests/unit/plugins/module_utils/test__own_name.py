"""The hostname in /etc/hosts: moved to its address, and restored exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils._own_name import (
    BEGIN,
    END,
    with_own_name,
    without_own_name,
)

DEBIAN = """\
127.0.0.1\tlocalhost
127.0.1.1\tserver-a.example.org\tserver-a

# The following lines are desirable for IPv6 capable hosts
::1     localhost ip6-localhost ip6-loopback
10.0.0.12 server-b
"""


def lines(text):
    """What counts for a resolver."""
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_debian_s_line():
    told = with_own_name(DEBIAN, "server-a", "10.0.0.11")
    assert lines(told) == [
        ["127.0.0.1", "localhost"],
        ["10.0.0.11", "server-a.example.org", "server-a"],
        ["::1", "localhost", "ip6-localhost", "ip6-loopback"],
        ["10.0.0.12", "server-b"],
    ]
    assert with_own_name(told, "server-a", "10.0.0.11") == told
    assert without_own_name(told) == DEBIAN
    # With another address, and as another host.
    assert ["10.1.0.11", "server-a.example.org", "server-a"] in lines(
        with_own_name(told, "server-a", "10.1.0.11")
    )
    assert with_own_name(told, "server-c", "10.0.0.13") == DEBIAN


@pytest.mark.parametrize(
    "text, expected",
    [
        ("127.0.0.1 localhost server-a", [["127.0.0.1", "localhost"], ["10.0.0.11", "server-a"]]),
        ("::1 server-a # by hand\n", [["10.0.0.11", "server-a"]]),
        ("127.0.1.1 server-a server-ab\n", [["127.0.1.1", "server-ab"], ["10.0.0.11", "server-a"]]),
    ],
)
def test_what_else_the_line_has_stays(text, expected):
    told = with_own_name(text, "server-a", "10.0.0.11")
    assert lines(told) == expected
    assert without_own_name(told) == text


@pytest.mark.parametrize(
    "text, hostname",
    [
        ("10.0.0.99 server-a\n", "server-a"),
        ("#127.0.1.1 server-a\n", "server-a"),
        ("127.0.1.1 server-ab\n", "server-a"),
        ("127.0.0.1 localhost localhost.localdomain\n", "localhost"),
        ("127.0.0.1", "server-a"),
        ("", "server-a"),
    ],
)
def test_what_is_left_alone(text, hostname):
    assert with_own_name(text, hostname, "10.0.0.11") == text


def test_the_name_with_its_domain_is_the_host_s_own():
    assert lines(
        with_own_name(
            "127.0.1.1 server-a.example.org server-a\n", "server-a.example.org", "10.0.0.11"
        )
    ) == [["10.0.0.11", "server-a.example.org", "server-a"]]


def test_lines_whose_end_somebody_has_taken_away():
    broken = with_own_name(DEBIAN, "server-a", "10.0.0.11").replace(END + "\n", "")
    assert without_own_name(broken) == broken


WORDS = st.sampled_from(
    [
        "127.0.0.1",
        "127.0.1.1",
        "::1",
        "10.0.0.12",
        "server-a",
        "server-a.example.org",
        "localhost",
        "#",
        "\t",
        BEGIN,
        END,
        "#= 127.0.1.1 x",
    ]
)


@given(st.lists(st.lists(WORDS, max_size=5).map(" ".join), max_size=6).map("\n".join))
def test_arbitrary_files_are_restored_exactly(text):
    told = with_own_name(text, "server-a", "10.0.0.11")
    assert with_own_name(told, "server-a", "10.0.0.11") == told
    if BEGIN not in text.splitlines():
        assert without_own_name(told) == text
        assert not [
            line
            for line in lines(told.replace("#", "\n#"))
            if line[0].startswith("127.") and "server-a" in line[1:]
        ]
