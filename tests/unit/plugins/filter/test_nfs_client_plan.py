"""Filters of role nfs_client: what a host mounts, what differs there, and conflicts."""

from __future__ import annotations

import hashlib

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._nfs_client_plan import (
    decide_nfs_client_plan,
    nfs_mounts,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import QuoteError

MEMBERS = [{"name": "a", "address": "10.0.0.11"}, {"name": "b", "address": "10.0.0.12"}]
SHARE = {"server": "a", "path": "/data1/share"}
TARGET, SOURCE, UNIT = (
    "/data1/share",
    "10.0.0.11:/data1/share",
    "/etc/systemd/system/data1-share.mount",
)
OPTIONS = ["_netdev", "nofail", "hard", "nosuid", "nodev", "vers=4", "retry=10080"]


def plan(found=None, mounts=(SHARE,), unit="mount", host="b", **more):
    return decide_nfs_client_plan(
        {
            "first": found or {},
            "waited": more.pop("waited", {}),
            "last": more.pop("now", {}),
        },
        {
            "mounts": nfs_mounts(mounts, host, MEMBERS, ["hard"], "4", 1),
            "unit": unit,
            **more,
        },
    )


def state(name="mounted", target=TARGET, **more):
    return dict(
        {
            "target": target,
            "state": name,
            "error": "",
            "source": SOURCE,
            "type": "nfs4",
            "options": [],
            "differences": [],
            "exists": True,
            "entries": [],
            "configured_in": "",
            "unit_enabled": ["mount"],
        },
        **more,
    )


def placed(unit="mount", target=TARGET, source=SOURCE, options=()):
    return {
        "target": target,
        "source": source,
        "unit": unit,
        "units": ["data1-share.mount"],
        "files": [UNIT],
        "options": list(options),
    }


def host(*mounts, placed=(), unit="mount", reload_needed=False):
    """What nfs_mount_info returns for a host that has the unit files of the share."""
    files = {
        file["path"]: hashlib.sha256(file["content"].encode()).hexdigest()
        for file in plan(unit=unit)["files"]
    }
    return {
        "available": True,
        "mounts": list(mounts),
        "placed": list(placed),
        "in_use": False,
        "files": files,
        "reload_needed": reload_needed,
    }


def test_a_member_is_mounted_by_its_address_and_not_by_itself():
    mounts = [{"server": "a", "path": "/data1/share/"}]
    assert nfs_mounts(mounts, "a", MEMBERS) == []
    mount = nfs_mounts(mounts, "b", MEMBERS, ["hard"], "4", 1)[0]
    assert (mount["source"], mount["target"], mount["unit"]) == (
        "10.0.0.11:/data1/share",
        "/data1/share",
        "data1-share.mount",
    )
    assert mount["options"] == [
        "_netdev",
        "nofail",
        "hard",
        "nosuid",
        "nodev",
        "vers=4",
        "retry=10080",
    ]
    # By its address it is the same host.
    assert nfs_mounts([{"server": "10.0.0.12", "path": "/x"}], "b", MEMBERS) == []


def test_a_server_outside_keeps_its_name_and_its_options():
    mount = nfs_mounts(
        [
            {
                "server": "fd00::5",
                "path": "/",
                "target": "/data1",
                "options": ["nfsvers=4.1", "nconnect=8", "bg"],
            }
        ],
        "b",
        MEMBERS,
        ["hard"],
        "4",
        2,
    )[0]
    assert (mount["source"], mount["target"]) == ("[fd00::5]:/", "/data1")
    assert mount["options"] == [
        "_netdev",
        "nofail",
        "nfsvers=4.1",
        "nconnect=8",
        "bg",
        "nosuid",
        "nodev",
    ]


@pytest.mark.parametrize(
    "hosts, nconnect, options, shown",
    [
        (4, 0, ["hard"], []),
        (5, 0, ["hard"], ["nconnect=4"]),
        (64, 1, ["hard"], []),
        (64, 0, ["hard", "nconnect=2"], ["nconnect=2"]),
        (64, 0, ["rdma"], []),
    ],
)
def test_connections_by_the_number_of_hosts(hosts, nconnect, options, shown):
    """A small cluster keeps one.

    A mount in use keeps what it has, because jobs have files open there.
    """
    members = [{"name": "h%d" % number, "address": "10.0.1.%d" % number} for number in range(hosts)]
    mounts = nfs_mounts([{"server": "h0", "path": "/x"}], "h1", members, options, "4", nconnect)
    told = [option for option in mounts[0]["options"] if option.startswith("nconnect")]
    assert told == shown
    found = decide_nfs_client_plan({}, {"mounts": mounts, "unit": "mount"})
    asked = [option for option in found["question"][0]["options"] if option.startswith("nconnect")]
    assert asked == [option for option in shown if option in options]
    assert ("nconnect=4" in found["files"][0]["content"]) == ("nconnect=4" in shown)


def test_a_path_is_written_as_the_kernel_shows_it():
    mount = nfs_mounts([{"server": "nas", "path": "//vol/./a/", "target": "/data1/"}], "b")[0]
    assert (mount["source"], mount["target"], mount["unit"]) == (
        "nas:/vol/a",
        "/data1",
        "data1.mount",
    )


def test_a_version_in_the_options_goes_before():
    for option in ("vers=4.1", "nfsvers=3", "v4.2", "v3"):
        assert nfs_mounts([{"server": "nas", "path": "/x"}], "b", [], ["hard", option], "4")[0][
            "options"
        ] == ["_netdev", "nofail", "hard", option, "nosuid", "nodev", "retry=10080"]
    assert (
        "vers=4"
        in nfs_mounts([{"server": "nas", "path": "/x"}], "b", [], ["hard", "minorversion=1"], "4")[
            0
        ]["options"]
    )


def test_what_people_write_gives_no_rights_unless_the_site_wants_it():
    for options, added in (
        (["hard"], ["nosuid", "nodev"]),
        (["nodev", "nosuid"], []),
        (["suid"], ["nodev"]),
        (["dev", "suid"], []),
    ):
        (mount,) = nfs_mounts([dict(SHARE, options=options)], "b", MEMBERS)
        assert mount["options"] == ["_netdev", "nofail"] + options + added + ["retry=10080"]


def test_nosuid_is_added_to_a_mount_in_use():
    told = plan(host(state("differs", differences=["nosuid", "nodev"])))
    assert told["tightened"] == [{"target": TARGET, "options": ["nosuid", "nodev"]}]
    assert [unit["state"] for unit in told["units"]] == ["started"] and not told["as_requested"]
    told = plan(host(state("differs", differences=["nosuid", "vers=4"])))
    assert told["tightened"] == [] and [unit["state"] for unit in told["units"]] == ["restarted"]
    # A mount of the site is corrected by the site.
    told = plan(host(state("differs", differences=["nosuid"], configured_in="/etc/fstab")))
    assert told["tightened"] == [] and "without nosuid: correct and mount it" in told["problems"][0]


def test_before_the_host_is_read():
    told = plan()
    assert told["question"] == [{"target": TARGET, "source": SOURCE, "options": OPTIONS}]
    assert [file["path"] for file in told["files"]] == [UNIT]
    assert (told["leaving"], told["problems"], told["hanging"], told["as_requested"]) == (
        [],
        [],
        [],
        False,
    )
    # The server does not mount its own export.
    assert plan(host="a")["question"] == []


@pytest.mark.parametrize(
    "unit, names, installed",
    [
        ("mount", ["data1-share.mount"], [True]),
        ("automount", ["data1-share.mount", "data1-share.automount"], [False, True]),
        ("fstab", [], []),
    ],
)
def test_unit_files(unit, names, installed):
    files = plan(unit=unit)["files"]
    assert [file["path"] for file in files] == ["/etc/systemd/system/" + name for name in names]
    assert [
        file["content"].endswith("\n\n[Install]\nWantedBy=remote-fs.target\n") for file in files
    ] == installed
    for file in files:
        assert file["content"].startswith(
            "# Placed by trainyard.gpu.nfs_client.\n[Unit]\nDescription=Shared folder /data1/share"
        )
        assert "\nWhere=/data1/share\n" in file["content"]
    if files:
        assert (
            "\nWhat=10.0.0.11:/data1/share\n" in files[0]["content"]
            and "\nOptions=%s\n" % ",".join(OPTIONS) in files[0]["content"]
        )
        assert "\nTimeoutSec=infinity\n" in files[0]["content"]


def test_a_value_that_a_unit_cannot_have_is_refused():
    with pytest.raises(QuoteError, match="cannot be written as systemd_line"):
        plan(mounts=[dict(SHARE, path="/data1/share\\")])


def test_nothing_to_do():
    whole = host(state(), placed=[placed()])
    assert (
        plan(whole)["as_requested"] and plan(whole)["points"] == [] and plan(whole)["leaving"] == []
    )
    for other in (
        host(state("absent")),
        host(state("differs", differences=["vers=4"])),
        host(state(), reload_needed=True),
        host(state(unit_enabled=[])),
        host(state(unit_enabled=["automount"])),
        dict(whole, files={}),
        dict(whole, files={UNIT: "0" * 64}),
    ):
        assert not plan(other)["as_requested"], other
    assert plan(host(state(unit_enabled=["automount"]), unit="automount"), unit="automount")[
        "as_requested"
    ]
    assert not plan(host(state(unit_enabled=["mount"]), unit="automount"), unit="automount")[
        "as_requested"
    ]
    # Only the site's own mount: neither a file nor a line of the role is compared.
    assert plan(dict(host(state(configured_in="/etc/fstab")), files={}))["as_requested"]


def test_a_line_in_fstab_has_these_options():
    markers = ["x-trainyard.placed", "x-systemd.mount-timeout=infinity"]
    right = host(state(), placed=[placed("fstab", options=OPTIONS + markers)])
    told = plan(right, unit="fstab")
    assert told["as_requested"] and [
        (line["target"], line["source"], line["options"]) for line in told["lines"]
    ] == [(TARGET, SOURCE, OPTIONS + markers)]
    for lines in (
        [],
        [placed("fstab", options=OPTIONS)],
        [placed("fstab", options=["ro"] + markers)],
    ):
        assert not plan(host(state(), placed=lines), unit="fstab")["as_requested"]
    assert plan(right)["lines"] == []


@pytest.mark.parametrize(
    "left, mounts, unit",
    [
        (placed(target="/data2"), [SHARE], "mount"),
        (placed(), [], "mount"),
        (placed(), [SHARE], "automount"),
        (placed("fstab"), [SHARE], "mount"),
        (placed(source="nas:/data1/share"), [SHARE], "mount"),
    ],
)
def test_mounts_that_are_no_longer_configured(left, mounts, unit):
    assert plan(host(placed=[left]), mounts, unit)["leaving"] == [left]
    assert plan(host(placed=[placed()]))["leaving"] == []


@pytest.mark.parametrize(
    "mount, problem",
    [
        (
            state("other", source="/dev/sdb1", type="ext4"),
            "/dev/sdb1 (ext4) is already mounted at /data1/share: unmount it, or set another target",
        ),
        (
            state("absent", configured_in="/etc/fstab"),
            "/etc/fstab has /data1/share, but nothing is mounted there: correct and mount it, or remove it there, so that this role mounts it",
        ),
        (
            state("stale", configured_in="/etc/fstab"),
            "/etc/fstab has /data1/share, but the mount is stale: ",
        ),
        (
            state("differs", configured_in="/etc/fstab", differences=["hard", "vers=4"]),
            "/etc/fstab has /data1/share, but without hard, vers=4: ",
        ),
        (
            state(configured_in="/etc/fstab", unit_enabled=[]),
            "/etc/fstab has /data1/share, but not at boot: ",
        ),
        (
            state("absent", entries=["a", "b"]),
            "/data1/share is not empty (a, b), and a mount would hide these files: move them",
        ),
        (
            state("absent", error="[Errno 20] Not a directory"),
            "/data1/share is not a folder ([Errno 20] Not a directory): remove or rename it",
        ),
    ],
)
def test_conflicts(mount, problem):
    problems = plan(host(mount))["problems"]
    assert len(problems) == 1 and problems[0].startswith(problem)


@pytest.mark.parametrize(
    "mount",
    [
        state(),
        state("absent"),
        state("stale"),
        state("differs", differences=["hard"]),
        state("hangs"),
        state("hangs", configured_in="/etc/fstab"),
        state(configured_in="/etc/fstab"),
        state("absent", error="systemd: failed"),
        state("absent", exists=False, error="x"),
    ],
)
def test_no_conflict(mount):
    assert plan(host(mount))["problems"] == []


def test_a_source_that_the_role_itself_replaces_is_no_conflict():
    former = placed(source="nas:/vol")
    mounts = host(state("other", source="nas:/vol"), placed=[former])
    assert plan(mounts)["problems"] == [] and plan(mounts)["points"] == [
        {"path": TARGET, "immutable": True}
    ]
    # The site's line hides it: this is still a conflict.
    assert plan(
        host(state("other", source="nas:/vol", configured_in="/etc/fstab"), placed=[former])
    )["problems"][0].startswith("/etc/fstab has /data1/share, but nas:/vol is mounted there: ")


def test_the_sites_own_mount_is_left_alone():
    told = plan(
        host(state(configured_in="/etc/fstab"), state(target="/data2")),
        [SHARE, dict(SHARE, target="/data2")],
    )
    assert [file["path"] for file in told["files"]] == [UNIT, "/etc/systemd/system/data2.mount"]
    assert [file["path"] for file in told["our_files"]] == ["/etc/systemd/system/data2.mount"]
    assert told["units"] == [{"target": "/data2", "name": "data2.mount", "state": "started"}]


@pytest.mark.parametrize(
    "unit, name",
    [
        ("mount", "data1-share.mount"),
        ("fstab", "data1-share.mount"),
        ("automount", "data1-share.automount"),
    ],
)
def test_units_that_are_started(unit, name):
    assert plan(host(state("absent")), unit=unit)["units"] == [
        {"target": TARGET, "name": name, "state": "started"}
    ]


def test_a_mount_that_differs_is_mounted_again():
    assert plan(host(state("differs", differences=["hard"])))["units"][0]["state"] == "restarted"
    # It does not answer in time, but its options are right.
    assert plan(host(state("differs")))["units"][0]["state"] == "started"


def test_stale_mounts():
    told = plan(host(state("stale")))
    assert (told["detached"], told["units"][0]["state"], told["points"]) == (
        [TARGET],
        "started",
        [{"path": TARGET, "immutable": True}],
    )
    # The container may mount a folder of the root itself.
    top = [dict(SHARE, target="/data1")]
    told = plan(host(state("stale", target="/data1")), top)
    assert (told["detached"], told["units"][0]["state"]) == ([], "restarted")
    # Its server answered while the role waited.
    told = plan(host(state("hangs")), waited={"mounts": [state("stale")]})
    assert (told["hanging"], told["detached"], told["points"]) == (
        [{"target": TARGET, "source": SOURCE, "options": OPTIONS}],
        [TARGET],
        [],
    )


@pytest.mark.parametrize(
    "mount, text",
    [
        (
            state("absent", error="systemd: exit-code"),
            "'/data1/share' is not mounted as requested after 120 s: nothing is mounted (systemd: exit-code).",
        ),
        (
            state("hangs"),
            "'/data1/share' is not mounted as requested after 120 s: the server does not answer.",
        ),
        (
            state("stale"),
            "'/data1/share' is not mounted as requested after 120 s: the file handle is stale.",
        ),
        (
            state("differs", differences=["vers=4.2", "hard"]),
            "'/data1/share' is not mounted as requested after 120 s: these options are missing: vers=4.2, hard.",
        ),
        (
            state("other", source="nas:/x"),
            "'/data1/share' is not mounted as requested after 120 s: the source is nas:/x.",
        ),
    ],
)
def test_what_is_reported_after_the_changes(mount, text):
    assert plan(timeout=120, now={"mounts": [state(target="/data2"), mount]})["wrong"] == [text]
    assert plan(timeout=120, now={"mounts": [state()]})["wrong"] == []
    # A skipped task.
    assert plan(timeout=120, now={"skipped": True})["wrong"] == []


def test_a_result_of_other_mounts_is_tolerated():
    """The role may run twice in a play, and its variables are evaluated before it reads the host
    again.
    """
    told = plan(host(state("absent", target="/elsewhere")))
    assert (
        not told["as_requested"] and told["points"] == [] and told["units"][0]["state"] == "started"
    )
