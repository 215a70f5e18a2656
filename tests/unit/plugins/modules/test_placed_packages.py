"""placed_packages, run like in Ansible, with fake dpkg, apt and tar."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from scripted_tools import run_module, scripts

# What apt would do is what the state says: dependencies come along, conflicts go. A package's files
# are made and purged with it.
APT = """exec {python} - "$@" << 'END'
import json, os, sys
path = "{state}"
state = json.load(open(path))
words = [word for word in sys.argv[1:] if not word.startswith("-") and not word.startswith(("DPkg::", "Dpkg::"))]
state["calls"].append(sys.argv[1:])
names = ("NEEDRESTART_SUSPEND", "NEEDRESTART_MODE", "DEBIAN_FRONTEND")
state["suspended"].append(" ".join(os.environ.get(name, "-") for name in names))
def save():
    json.dump(state, open(path, "w"))
save()
if words[0] == "update":
    if state["locked"]:
        state["locked"] -= 1
        save()
        sys.exit("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)")
    sys.stderr.write(state.get("update", ""))
    sys.exit(0)
lines, after = [], dict(state["installed"])
for word in words[1:]:
    name, _, version = word.partition("=")
    name = state["real"].get(name, name)
    if words[0] == "install":
        known = state["known"].get(name, [])
        if not known or version and version not in known:
            sys.exit("E: Version '%s' for '%s' was not found" % (version, name))
        for each, wanted in [(name, version or known[0])] + [
                (other, state["known"][other][0]) for other in state["needs"].get(name, []) if other not in after or other in state["moves"].get(name, [])]:
            if after.get(each, {{}}).get("version") != wanted:
                former = " [%s]" % after[each]["version"] if each in after else ""
                lines.append("Inst %s%s (%s stable [amd64])" % (each, former, wanted))
                after[each] = {{"version": wanted, "held": after.get(each, {{}}).get("held", False)}}
        gone = [other for other in state["conflicts"].get(name, []) if other in after]
    else:
        gone = [name] + [other for other in after if name in state["needs"].get(other, [])]
    for other in gone:
        if after.pop(other, None):
            lines.append("%s %s [1]" % ("Purg" if "--purge" in sys.argv else "Remv", other))
print("\\n".join(lines))
if "--simulate" not in sys.argv:
    for name, files in state["files"].items():
        if name in after and name not in state["installed"]:
            for file in files:
                os.makedirs(os.path.dirname(file), exist_ok=True)
                if not os.path.exists(file):
                    open(file, "w").write("of the package\\n")
        if name not in after and name in state["installed"]:
            for file in files:
                if os.path.exists(file):
                    os.unlink(file)
    # What somebody else changes meanwhile.
    state["installed"] = {{name: after[name] for name in after if name not in state.get("dropped", [])}}
    save()
    sys.exit(state.get("error", 0))
END"""
DPKG = """exec {python} - "$@" << 'END'
import fnmatch, json, sys
state = json.load(open("{state}"))
if not sys.argv[4:]:
    for name in sorted(state["installed"]):
        offered = ["%s (= 1)" % each for each in state["real"] if state["real"][each] == name]
        print("%s\\t%s\\t%si \\t%s" % (name, state["installed"][name]["version"], "h" if state["installed"][name]["held"] else "i", ", ".join(["other"] + offered)))
for name in [name for pattern in sys.argv[4:] for name in sorted(state["installed"]) if fnmatch.fnmatchcase(name, pattern)]:
    print("%s\\t%s\\t%si " % (name, state["installed"][name]["version"], "h" if state["installed"][name]["held"] else "i"))
END"""
MARK = """exec {python} - "$@" << 'END'
import json, sys
state = json.load(open("{state}"))
for name in sys.argv[2:]:
    if name not in state["installed"]:
        sys.exit("E: Can't select installed nor candidate version from package %s" % name)
    state["installed"][name]["held"] = sys.argv[1] == "hold"
json.dump(state, open("{state}", "w"))
END"""
CACHE = """exec {python} - "$@" << 'END'
import json, sys
for name in sys.argv[2:]:
    for version in json.load(open("{state}"))["known"].get(name, []):
        print("%10s | %s | https://repository.example/ ./ Packages" % (name, version))
END"""
NCCL = ["2.26.2-1+cuda12.8", "2.21.5-1+cuda12.4", "2.21.5-1+cuda12.2", "2.10.3-1+cuda11.4"]


@pytest.fixture(name="host")
def fixture_host(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    script = scripts(tmp_path, monkeypatch)
    for name, body in (
        ("apt-get", APT),
        ("dpkg-query", DPKG),
        ("apt-mark", MARK),
        ("apt-cache", CACHE),
    ):
        script(name, body.format(python=sys.executable, state=path))
    script("tar", 'exec /bin/tar "$@"')

    class Host:
        record = tmp_path / "placed.d/role.packages.json"

        def __init__(self):
            self.write(
                installed={},
                known={"server": ["1.0"], "library": ["3"], "libnccl2": NCCL, "libnccl-dev": NCCL},
                needs={"server": ["library"]},
                conflicts={},
                moves={},
                real={},
                suspended=[],
                files={},
                locked=0,
                calls=[],
            )

        def write(self, **changes):
            state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            path.write_text(json.dumps(dict(state, **changes)), encoding="utf-8")

        def __getitem__(self, key):
            return json.loads(path.read_text(encoding="utf-8"))[key]

        def present(self, *packages, check=False, **options):
            return run_module(
                "placed_packages",
                dict(options, packages=list(packages), record=str(self.record)),
                check,
            )

        def absent(self, check=False, **options):
            return run_module(
                "placed_packages", dict(options, state="absent", record=str(self.record)), check
            )

    return Host()


def test_installs_once_and_takes_away_what_came(host):
    first = host.present("server")
    assert (first["changed"], first["installed"]) == (True, ["server", "library"])
    assert json.loads(host.record.read_text())["packages"] == ["server", "library"]
    host.write(calls=[])
    assert host.present("server")["changed"] is False and host["calls"] == []
    gone = host.absent()
    assert (gone["changed"], gone["removed"]) == (True, ["server", "library"])
    assert host["installed"] == {} and not host.record.exists()
    assert host.absent()["changed"] is False


def test_a_name_that_another_package_provides_is_there(host):
    """Ubuntu 24.04 has libpmix2 as libpmix2t64, which provides the name. apt-get takes it,
    dpkg-query does not know it.
    """
    host.write(real={"libpmix2": "libpmix2t64"}, known={"libpmix2t64": ["5.0.1"], "munge": ["0.5"]})
    first = host.present("munge", "libpmix2", hold=True)
    assert (first["changed"], first["installed"]) == (True, ["munge", "libpmix2t64"]), first
    record = json.loads(host.record.read_text())
    assert record["packages"] == ["munge", "libpmix2t64"] == record["held"]
    host.write(calls=[])
    assert host.present("munge", "libpmix2", hold=True)["changed"] is False and host["calls"] == []
    # A version is that of a package, and not of one that provides its name.
    refused = host.present("libpmix2=9")["msg"]
    assert "apt cannot install libpmix2=9, nothing was changed" in refused
    assert host.absent()["removed"] == ["munge", "libpmix2t64"] and host["installed"] == {}


def test_what_stays_after_a_check_that_failed_is_told(host):
    """Somebody else has removed a package meanwhile.

    What apt installed is recorded: the removal of the role finds it.
    """
    host.write(dropped=["server"])
    result = host.present("server")
    assert result["failed"] and "server is absent, not there" in result["msg"]
    assert "this is still there: library. It is recorded" in result["msg"]
    assert host.absent()["removed"] == ["library"] and host["installed"] == {}


def test_no_run_of_apt_restarts_services(host):
    """apt's hook of needrestart restarts services on Ubuntu 24.04, also that of the training
    container, and asks on 22.04.
    """
    host.present("server")
    host.absent()
    changing = [call for call in host["calls"] if "--assume-yes" in call]
    assert len(changing) == 2 and len(host["suspended"]) == len(host["calls"])
    assert set(host["suspended"]) == {"1 l noninteractive"}


def test_what_was_there_before_stays(host):
    host.write(installed={"library": {"version": "3", "held": False}})
    host.present("server")
    host.absent()
    assert list(host["installed"]) == ["library"]


def test_packages_that_others_need_stay_with_their_record(host):
    host.present("server")
    host.write(
        installed=dict(host["installed"], site={"version": "1", "held": False}),
        needs={"server": ["library"], "site": ["library"]},
    )
    kept = host.absent()
    assert (kept["changed"], kept["kept"], kept["needed_by"]) == (
        False,
        ["server", "library"],
        ["site"],
    )
    assert "server" in host["installed"] and host.record.exists()


def test_check_mode_changes_nothing_and_asks_no_repository(host):
    check = host.present("server", check=True)
    assert (check["changed"], check["installed"]) == (True, ["server"])
    assert host["calls"] == [] and not host.record.exists()
    host.present("server")
    assert host.absent(check=True)["removed"] == ["server", "library"]
    assert "server" in host["installed"] and host.record.exists()


def test_another_run_of_apt_is_waited_for(host):
    host.write(locked=1)
    assert host.present("server")["changed"] is True
    host.absent()
    host.write(locked=9)
    locked = host.present("server", lock_timeout=0)["msg"]
    assert (
        "Could not get lock" in locked
        and "Wait until the other apt or dpkg on this host has ended" in locked
    )


def test_lists_that_are_old_are_told(host):
    host.write(update="W: GPG error: https://mirror.example.org / InRelease: EXPKEYSIG\n")
    told = host.present("server")
    # As text or, in newer versions of ansible-core, within a structure.
    assert (
        told["changed"]
        and "apt-get update: GPG error: https://mirror.example.org / InRelease: EXPKEYSIG"
        in json.dumps(told["warnings"])
    )


def test_versions_in_one_transaction_held_and_changed_later(host):
    first = host.present("libnccl2=2.21.5-1+cuda12.4", "libnccl-dev=2.21.5-1+cuda12.4", hold=True)
    assert first["installed"] == ["libnccl2", "libnccl-dev"]
    assert [call for call in host["calls"] if "install" in call and "--simulate" not in call][0][
        -2:
    ] == ["libnccl2=2.21.5-1+cuda12.4", "libnccl-dev=2.21.5-1+cuda12.4"]
    assert host["installed"] == {
        name: {"version": "2.21.5-1+cuda12.4", "held": True} for name in ("libnccl2", "libnccl-dev")
    }
    assert (
        host.present("libnccl2=2.21.5-1+cuda12.4", "libnccl-dev=2.21.5-1+cuda12.4", hold=True)[
            "changed"
        ]
        is False
    )
    # Someone has lifted a hold: set again, without apt.
    host.write(
        installed=dict(host["installed"], libnccl2={"version": "2.21.5-1+cuda12.4", "held": False}),
        calls=[],
    )
    assert (
        host.present("libnccl2=2.21.5-1+cuda12.4", "libnccl-dev=2.21.5-1+cuda12.4", hold=True)[
            "changed"
        ]
        is True
    )
    assert host["installed"]["libnccl2"]["held"] and host["calls"] == []
    other = host.present("libnccl2=2.10.3-1+cuda11.4", "libnccl-dev=2.10.3-1+cuda11.4", hold=True)
    assert (
        other["diff"]["before"]
        == "libnccl-dev 2.21.5-1+cuda12.4 held\nlibnccl2 2.21.5-1+cuda12.4 held\n"
    )
    assert {package["version"] for package in host["installed"].values()} == {"2.10.3-1+cuda11.4"}
    host.absent()
    assert host["installed"] == {}


def test_what_comes_along_is_held_too(host):
    host.write(
        installed={"lib-b": {"version": "1", "held": False}},
        known={"server": ["1.0"], "lib-a": ["3"]},
        needs={"server": ["lib-a"]},
    )
    host.present("server", hold=True, hold_too=["lib-*"])
    assert {name for name, package in host["installed"].items() if package["held"]} == {
        "server",
        "lib-a",
        "lib-b",
    }
    assert host.present("server", hold=True, hold_too=["lib-*"])["changed"] is False
    host.absent()
    assert host["installed"] == {"lib-b": {"version": "1", "held": False}}


def test_a_version_that_no_repository_has_is_answered_with_the_nearest(host):
    failed = host.present("libnccl2=2.21.5-1+cuda12.6", "libnccl-dev=2.21.5-1+cuda12.6")
    assert (
        "available versions of libnccl2: 2.21.5-1+cuda12.4, 2.21.5-1+cuda12.2, 2.26.2-1+cuda12.8"
        in failed["msg"]
    )
    assert (
        "nothing was changed" in failed["msg"] and "Request an available version" in failed["msg"]
    )
    assert host["installed"] == {} and not host.record.exists()
    assert (
        "no repository of this host has nothing-like-it" in host.present("nothing-like-it")["msg"]
    )


def test_what_apt_would_remove_is_refused_unless_it_may_go(host):
    host.write(
        installed={"library-2": {"version": "2", "held": False}},
        conflicts={"server": ["library-2"]},
    )
    refused = host.present("server")
    assert (
        "apt would remove library-2" in refused["msg"]
        and list(host["installed"]) == ["library-2"]
        and not host.record.exists()
    )
    assert host.present("server", may_replace=["library-*"])["removed"] == ["library-2"]
    assert json.loads(host.record.read_text())["removed"] == ["library-2"]


def test_holds_are_ignored_only_for_may_replace(host):
    host.write(
        installed={
            "library": {"version": "2", "held": True},
            "library-2": {"version": "2", "held": True},
        },
        needs={"server": ["library"]},
        known=dict(host["known"], library=["3"]),
        conflicts={"server": ["library-2"]},
    )
    state = host["installed"]
    # The fake apt brings dependencies that are not there; this one is there, and would be moved.
    host.write(moves={"server": ["library"]})
    refused = host.present("server=1.0", may_replace=["library-2"])
    assert (
        "apt would change library, which are held; nothing was changed" in refused["msg"]
        and host["installed"] == state
    )
    assert host.present("server=1.0", may_replace=["library*"])["removed"] == ["library-2"]
    assert "--ignore-hold" in host["calls"][-1]
    host.write(calls=[])
    host.present("libnccl2=2.21.5-1+cuda12.4")
    assert not any("--ignore-hold" in call for call in host["calls"])


def test_simulation_returns_what_apt_would_do_and_changes_nothing(host):
    before = {
        "library": {"version": "2", "held": False},
        "library-2": {"version": "2", "held": True},
    }
    host.write(installed=before, conflicts={"server": ["library-2"]}, moves={"server": ["library"]})
    told = host.present("server", simulate=True, notes={"forwarding": False})
    # What present refuses is returned.
    assert {
        name: told[name] for name in ("changed", "installed", "removed", "replaced", "held")
    } == {
        "changed": False,
        "installed": ["server", "library"],
        "removed": ["library-2"],
        "replaced": {"library": "2"},
        "held": ["library-2"],
    }
    assert "diff" not in told and host["installed"] == before and not host.record.exists()
    assert [call[-1] for call in host["calls"]] == ["update", "server"] and "--simulate" in host[
        "calls"
    ][1]
    assert "apt would remove library-2" in host.present("server")["msg"]
    # Check mode runs no apt.
    host.write(calls=[])
    told = host.present("server", check=True, simulate=True)
    assert (told["changed"], told["installed"], told["removed"], host["calls"]) == (
        False,
        ["server"],
        [],
        [],
    )


def test_installation_returns_former_versions(host):
    host.write(
        installed={"library": {"version": "2", "held": False}}, moves={"server": ["library"]}
    )
    told = host.present("server")
    assert (told["installed"], told["replaced"], told["held"]) == (
        ["server", "library"],
        {"library": "2"},
        [],
    )


def test_simulated_removal(host):
    host.present("server")
    told = host.absent(simulate=True)
    assert (told["changed"], told["removed"], told["kept"], "diff" in told) == (
        False,
        ["server", "library"],
        [],
        False,
    )
    host.write(
        installed=dict(host["installed"], site={"version": "1", "held": False}),
        needs={"server": ["library"], "site": ["library"]},
    )
    told = host.absent(simulate=True)
    assert (told["changed"], told["kept"], told["needed_by"]) == (
        False,
        ["server", "library"],
        ["site"],
    )
    assert set(host["installed"]) == {"server", "library", "site"} and host.record.exists()


def test_lists_are_updated_unless_the_caller_has_updated_them(host):
    for options in ({"simulate": True}, {}):
        host.write(calls=[])
        host.present("server", update_cache=False, **options)
        assert not any("update" in call for call in host["calls"]) and len(host["calls"]) == (
            1 if options else 2
        )


def test_notes_of_the_first_run_stay(host):
    host.present("server", notes={"forwarding": False})
    host.present("libnccl2", notes={"forwarding": True, "group": True})
    assert json.loads(host.record.read_text())["notes"] == {"forwarding": False, "group": True}
    host.absent()
    assert not host.record.exists()


# As role docker_engine of release 0.2.0 wrote it, with a key of docker_daemon_config.
FORMER_RECORD = {
    "packages": ["server", "library"],
    "group": False,
    "forwarding": True,
    "daemon_config": {"placed": [], "former_text": "{}", "pending": False},
}


def test_record_of_an_earlier_release_is_honoured(host):
    host.present("server")
    host.record.write_text(json.dumps(FORMER_RECORD))
    host.write(installed=dict(host["installed"], site={"version": "1", "held": False}))
    gone = host.absent()
    assert (gone["changed"], gone["removed"], list(host["installed"])) == (
        True,
        ["server", "library"],
        ["site"],
    )
    others = {name: value for name, value in FORMER_RECORD.items() if name != "packages"}
    assert json.loads(host.record.read_text()) == others
    # Keys of others are no packages of ours.
    assert host.absent()["changed"] is False and json.loads(host.record.read_text()) == others


def test_record_of_an_earlier_release_is_continued(host):
    host.present("server")
    host.record.write_text(json.dumps(FORMER_RECORD))
    host.present("libnccl2", traces=["/nowhere"])
    record = json.loads(host.record.read_text())
    assert record["packages"] == ["server", "library", "libnccl2"]
    assert {name: record[name] for name in FORMER_RECORD if name != "packages"} == {
        name: FORMER_RECORD[name] for name in FORMER_RECORD if name != "packages"
    }
    assert host.absent()["removed"] == ["server", "library", "libnccl2"]


def test_former_version_is_noted(host):
    host.write(
        installed={
            "libnccl2": {"version": "2.10.3-1+cuda11.4", "held": False},
            "libnccl-dev": {"version": "2.10.3-1+cuda11.4", "held": False},
        }
    )
    host.present("libnccl2=2.21.5-1+cuda12.4", "libnccl-dev=2.21.5-1+cuda12.4")
    assert json.loads(host.record.read_text())["replaced"] == {
        "libnccl2": "2.10.3-1+cuda11.4",
        "libnccl-dev": "2.10.3-1+cuda11.4",
    }
    # They were the site's: not purged.
    host.absent()
    assert len(host["installed"]) == 2


def test_folders_that_are_left_behind_go_and_those_of_before_come_back(host, tmp_path):
    left, own = tmp_path / "var/left", tmp_path / "var/own"
    own.mkdir(parents=True)
    (own / "file").write_text("the site's\n")
    host.write(files={"server": [str(left / "state"), str(own / "file")]})
    host.present("server", traces=[str(left), str(own)])
    (left / "more").write_text("written meanwhile\n")
    assert json.loads(host.record.read_text())["existed"] == [str(own)]
    host.absent()
    assert not left.exists() and (own / "file").read_text() == "the site's\n"


def test_names_with_a_line_break_come_back(host, tmp_path):
    own = tmp_path / "var/own"
    (own / "empty folder").mkdir(parents=True)
    (own / "a\nfile").write_text("the site's\n")
    (own / "link").symlink_to("nowhere")
    host.write(files={"server": [str(own / "a\nfile")]})
    host.present("server", traces=[str(own)])
    host.absent()
    assert (own / "a\nfile").read_text() == "the site's\n"
    assert sorted(path.name for path in own.iterdir()) == ["a\nfile", "empty folder", "link"]


def test_of_a_folder_of_settings_only_what_it_held_before_comes_back(tmp_path):
    """As /etc/mysql, which the client's library brings, with a file of the site in it."""
    from ansible_collections.trainyard.gpu.plugins.modules import placed_packages

    etc = tmp_path / "etc"
    (etc / "conf.d").mkdir(parents=True)
    (etc / "conf.d/own").write_text("the site's\n")
    (etc / "link").symlink_to("conf.d")
    before = placed_packages.all_below(str(etc))
    assert before == [str(etc / name) for name in ("conf.d", "conf.d/own", "link")]
    for name in ("of the package", "changed"):
        (etc / name).write_text("later\n")
    record = {
        "existed": [str(etc), "user:mysql"],
        "contents": {str(etc): before + [str(etc / "gone")]},
    }
    assert (
        placed_packages.coming_back(record, [str(etc / "changed")])
        == [str(etc / "changed"), str(etc)] + before
    )
    # Rather than to lose something of the site.
    assert str(etc / "of the package") in placed_packages.coming_back({"existed": [str(etc)]}, [])
    assert (
        placed_packages.all_below(str(etc / "link"))
        == placed_packages.all_below(str(etc / "changed"))
        == []
    )


def test_files_of_the_site_do_not_become_those_of_packages():
    from ansible_collections.trainyard.gpu.plugins.modules.placed_packages import placed_files

    assert placed_files({}, {"/etc/own": "1"}, {"/etc/own": "1", "/etc/new": "2"}) == {
        "/etc/new": "2"
    }
    # A later installation: one file was added by the site, one was changed, one is of the packages,
    # which change another one.
    former = {"/etc/new": "2", "/etc/changed": "3", "/etc/updated": "4", "/etc/gone": "5"}
    before = {"/etc/new": "2", "/etc/changed": "site", "/etc/updated": "4", "/etc/added": "6"}
    assert placed_files(former, before, dict(before, **{"/etc/updated": "7"})) == {
        "/etc/new": "2",
        "/etc/changed": "3",
        "/etc/updated": "7",
    }


def test_checksums_are_recorded_also_if_apt_fails(host):
    """The next run would else take the files for the site's."""
    host.write(error="E: Sub-process /usr/bin/dpkg returned an error code (1)")
    assert "apt-get install server failed: E: Sub-process" in host.present("server")["msg"]
    assert json.loads(host.record.read_text())["placed"] == {}


def test_settings_of_before_are_not_told_as_added():
    from ansible_collections.trainyard.gpu.plugins.modules.placed_packages import changed_settings

    record = {
        "existed": ["/etc/exports", "/etc/mysql", "user:mysql"],
        "contents": {"/etc/exports": [], "/etc/mysql": ["/etc/mysql/own"]},
        "placed": {"/etc/mysql/placed": "1", "/etc/mysql/changed": "2"},
    }
    now = {
        "/etc/exports": "3",
        "/etc/mysql/own": "4",
        "/etc/mysql/placed": "1",
        "/etc/mysql/changed": "5",
        "/etc/mysql/added": "6",
    }
    assert changed_settings(record, now) == ["/etc/mysql/added", "/etc/mysql/changed"]


def test_what_a_purge_leaves_in_a_folder_of_before(tmp_path):
    from ansible_collections.trainyard.gpu.plugins.modules.placed_packages import left_settings

    for name in ("own", "written by a script", "kept"):
        (tmp_path / name).write_text("")
    paths = [str(tmp_path / name) for name in ("own", "written by a script", "kept", "purged")]
    record = {
        "placed": dict.fromkeys(paths + [str(tmp_path) + "2/of another"], "1"),
        "contents": {str(tmp_path): paths[:1]},
    }
    assert left_settings(record, [str(tmp_path / "kept")]) == [
        str(tmp_path / "written by a script")
    ]
    # Everything in a folder that did not exist before is removed with it.
    assert left_settings({"placed": record["placed"]}, []) == []


def test_packages_that_an_earlier_release_recorded_elsewhere(host, tmp_path):
    """They are removed together with those of the record, and stay together with them."""
    left = tmp_path / "var/left"
    host.write(
        installed={"library": {"version": "3", "held": False}},
        files={"server": [str(left / "state")]},
    )
    host.present("server")
    former = {"former_packages": ["library", "gone"], "traces": [str(left)]}
    host.write(
        installed=dict(host["installed"], site={"version": "1", "held": False}),
        needs={"server": ["library"], "site": ["library"]},
    )
    kept = host.absent(**former)
    assert (kept["changed"], kept["kept"], kept["needed_by"]) == (
        False,
        ["server", "library"],
        ["site"],
    )
    host.write(installed={name: host["installed"][name] for name in ("library", "server")})
    assert (
        host.absent(check=True, **former)["removed"] == ["server", "library"]
        and left.exists()
        and list(host["installed"]) == ["library", "server"]
    )
    gone = host.absent(**former)
    assert (
        gone["changed"],
        gone["removed"],
        host["installed"],
        left.exists(),
        host.record.exists(),
    ) == (True, ["server", "library"], {}, False, False)
    host.write(calls=[])
    assert host.absent(**former)["changed"] is False and host["calls"] == []
    # As after an interrupted run.
    left.mkdir()
    assert host.absent(**former)["changed"] is True and not left.exists() and host["calls"] == []
    # Without a record, only these.
    host.write(
        installed={
            "library": {"version": "3", "held": False},
            "server": {"version": "1.0", "held": False},
        }
    )
    assert host.absent(former_packages=["server"])["removed"] == ["server"] and list(
        host["installed"]
    ) == ["library"]


def test_traces_alone_are_not_removed(host, tmp_path):
    (tmp_path / "own").mkdir()
    assert (
        host.absent(traces=[str(tmp_path / "own")])["changed"] is False
        and (tmp_path / "own").exists()
    )


def test_a_record_that_was_cut_is_no_reason_to_forget(host):
    host.record.parent.mkdir()
    host.record.write_text('{"packages": ["ser')
    assert "is damaged" in host.absent()["msg"]


def test_settings_that_the_site_has_changed_or_added_stay(tmp_path, monkeypatch):
    """Below /etc, which is a temporary folder here."""
    from ansible_collections.trainyard.gpu.plugins.modules import placed_packages

    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("as-placed", "changed"):
        (etc / name).write_text("of the package\n")
    placed = placed_packages.checksums(placed_packages.files_below([str(etc)]))
    (etc / "changed").write_text("of the site\n")
    (etc / "added").write_text("of the site\n")
    now = placed_packages.checksums(placed_packages.files_below([str(etc)]))
    assert [
        Path(path).name
        for path in placed_packages.changed_settings({"existed": [], "placed": placed}, now)
    ] == ["added", "changed"]
    assert placed_packages.settings(["/etc/nfs.conf", "/var/lib/nfs", "user:statd"]) == [
        "/etc/nfs.conf"
    ]


def test_accounts_that_packages_leave_behind(monkeypatch):
    from ansible_collections.trainyard.gpu.plugins.modules import placed_packages

    assert [
        placed_packages.exists(trace)
        for trace in ("user:root", "group:root", "user:of-nobody", "group:of-nobody")
    ] == [True, True, False, False]
    said = []
    monkeypatch.setattr(placed_packages.Host, "must", lambda self, *command: said.append(command))
    for trace in ("user:statd", "group:rdma"):
        placed_packages.Host.remove(object.__new__(placed_packages.Host), trace)
    assert said == [("userdel", "statd"), ("groupdel", "rdma")]
