"""Who can log in to a training host: the decision, and what sshd's file of PAM then does with each
user.
"""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_ssh as ssh

# Debian 12, without its comments.
SSHD = """@include common-auth
account    required     pam_nologin.so
@include common-account
session [success=ok ignore=ignore module_unknown=ignore default=bad]        pam_selinux.so close
session    required     pam_loginuid.so
@include common-session
session    required     pam_limits.so
@include common-password
"""
COMMON = """# here are the per-package modules (the "Primary" block)
session\t[default=1]\t\t\tpam_permit.so
session\trequisite\t\t\tpam_deny.so
session\trequired\t\t\tpam_permit.so
session\t[success=1 default=ignore]\tpam_succeed_if.so quiet service in crond
session\toptional\tpam_systemd.so debug
session\toptional\tpam_mkhomedir.so
"""
USERS = {
    "root": (0, ()),
    "backup": (34, ()),
    "ops": (1500, ()),
    "chief": (1501, ("sudo",)),
    "anna": (2001, ()),
    "staffer": (2002, ("staff",)),
}


def reading(**more):
    found = {
        "hostname": "b",
        "login_user": "ops",
        "packages": {"libpam-slurm-adopt": "1", "libpam-slurm": "1"},
        "texts": {ssh.SSHD: SSHD, ssh.COMMON: COMMON},
    }
    return dict(found, **more)


def rule(host=None, training_only=True, cgroups=True, node_name="b", addresses=(), **people):
    host_in_cluster = ssh.Host(node_name, training_only, cgroups, addresses)
    return ssh.ssh_rule(host or reading(), host_in_cluster, ssh.People(**people))


def content(found, path=ssh.SSHD):
    return next(
        entry["content"]
        for step in found["steps"]
        for entry in step["files"]
        if entry["path"] == path
    )


def holds(words, user):
    """Whether the conditions of pam_succeed_if hold."""
    uid, groups = USERS[user]
    found = []
    while words:
        (left, operator, right), words = words[:3], words[3:]
        names = right.split(":")
        if operator in ("<", ">="):
            is_below = uid < int(right)
            found.append(is_below == (operator == "<"))
        elif operator.endswith("ingroup"):
            is_member = bool(set(groups) & set(names))
            found.append(is_member == (operator == "ingroup"))
        else:
            assert operator in ("in", "notin")
            found.append((user in names) == (operator == "in"))
        assert left == ("uid" if operator in ("<", ">=") else "user")
    return all(found)


def reached(text, kind, user):
    """The modules and files that a user reaches between our marks, in the order of the lines: as
    PAM follows the jumps.
    """
    lines = [line for line in text.splitlines() if line.startswith(kind + " ") or "include" in line]
    lines = [line for line in lines if not line.startswith("#")]
    found, index = [], 0
    while index < len(lines):
        line = lines[index]
        index += 1
        words = line.split()
        if "pam_succeed_if.so" in line:
            if holds(words[words.index("quiet") + 1 :], user):
                index += int(line.partition("success=")[2][0])
                assert index < len(lines), "a jump beyond the last line is an error for PAM"
        elif words[1] == "[default=1]":
            index += 1
        else:
            found.append(" ".join(words[2:] if words[0] == kind else words))
    return found


def test_who_needs_a_job():
    text = content(rule())
    needs_job = {
        user
        for user in USERS
        if any(module.startswith("pam_slurm_adopt.so") for module in reached(text, "account", user))
    }
    assert needs_job == {"anna", "staffer"}
    # A module before ours still counts, such as an account that has expired.
    assert all("@include common-account" in reached(text, "account", user) for user in USERS)
    text = content(rule(users=["anna"], groups=["staff"]))
    assert {
        user
        for user in USERS
        if any("pam_slurm_adopt" in module for module in reached(text, "account", user))
    } == {"chief"}


def test_without_groups():
    text = content(rule(groups=[]))
    assert {
        user
        for user in USERS
        if any("pam_slurm_adopt" in module for module in reached(text, "account", user))
    } == {"anna", "staffer", "chief"}
    assert "common-session" in reached(text, "session", "ops") and "trainyard-session" in reached(
        text, "session", "anna"
    )


def test_pam_systemd_does_not_move_people_out_of_the_job():
    text = content(rule())
    sessions = {
        user: {"common-session", "trainyard-session"} & set(reached(text, "session", user))
        for user in USERS
    }
    assert sessions == {
        user: {"trainyard-session" if user in ("anna", "staffer") else "common-session"}
        for user in USERS
    }
    ours = content(rule(), ssh.SESSION)
    assert "pam_systemd.so" not in ours and "pam_mkhomedir.so" in ours
    # The jump of the line before would otherwise skip another module.
    lines = COMMON.splitlines()
    assert [line for line in ours.splitlines() if line.startswith("session")][
        4
    ] == "session optional pam_permit.so"
    assert len([line for line in ours.splitlines() if line.startswith("session")]) == len(
        [line for line in lines if line.startswith("session")]
    )


def test_the_file_of_the_session_comes_first():
    steps = rule()["steps"]
    assert [[entry["path"] for entry in step["files"]] for step in steps] == [
        [ssh.SESSION],
        [ssh.SSHD],
    ]
    # A host without pam_systemd needs none.
    bare = rule(
        reading(
            texts={ssh.SSHD: SSHD, ssh.COMMON: "session required pam_unix.so\n", ssh.SESSION: "old"}
        )
    )
    assert [step["absent"] for step in bare["steps"]] == [
        [],
        [ssh.SESSION],
    ] and "substack" not in content(bare)


def test_a_failed_adoption_is_a_refusal():
    assert "pam_slurm_adopt.so action_adopt_failure=deny action_generic_failure=deny\n" in content(
        rule()
    )
    assert (
        content(rule(node_name="gpu-b")).count("action_generic_failure=deny nodename=gpu-b\n") == 1
    )


def test_without_control_groups():
    found = rule(cgroups=False)
    assert (
        found["rule"] == "slurm"
        and "account required pam_slurm.so no_sys_info\n" in content(found)
        and "substack" not in content(found)
    )
    found = rule(cgroups=False, node_name="gpu-b")
    assert found["rule"] == "none" and "host name 'b'" in found["why"]


@pytest.mark.parametrize(
    "host, more, why",
    [
        (reading(texts={}), {}, "no sshd"),
        (reading(), {"needs_job": False}, "slurm_ssh_needs_job is false"),
        (reading(), {"training_only": False}, "people log in there"),
        (reading(packages={}), {}, "package libpam-slurm-adopt is not installed"),
        (
            reading(packages={"libpam-slurm-adopt": "1"}),
            {"cgroups": False},
            "package libpam-slurm is not installed",
        ),
        (
            reading(texts={ssh.SSHD: "account required pam_unix.so\n"}),
            {},
            "no line '@include common-account'",
        ),
        (reading(texts={ssh.SSHD: SSHD + "# \ufffd\n"}), {}, "not UTF-8"),
        (reading(login_user="DOMAIN\\ops"), {}, "the name 'DOMAIN\\ops'"),
        (reading(), {"groups": ["domain users"]}, "the name 'domain users'"),
    ],
)
def test_no_rule(host, more, why):
    found = rule(host, **more)
    assert found["rule"] == "none" and why in found["why"] and found["steps"] == []


def written(host, found):
    """The reading of a host after the steps."""
    texts = dict(host["texts"])
    for step in found["steps"]:
        for path in step["absent"]:
            texts.pop(path, None)
        texts.update({entry["path"]: entry["content"] for entry in step["files"]})
    return dict(host, texts=texts)


@pytest.mark.parametrize("cgroups", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        SSHD,
        SSHD.rstrip("\n"),
        SSHD.replace("@include common-session", "@include\tcommon-session  "),
        "\n" + SSHD,
    ],
)
def test_it_is_restored_exactly(cgroups, text):
    host = reading(texts={ssh.SSHD: text, ssh.COMMON: COMMON})
    found = rule(host, cgroups=cgroups)
    later = written(host, found)
    assert ssh.lacking(found, host) and not ssh.lacking(rule(later, cgroups=cgroups), later)
    assert written(later, {"steps": ssh.removal(later)})["texts"] == host["texts"]
    # sshd's file names the other one, which is removed after it.
    assert [bool(step["files"]) for step in ssh.removal(later)] == [True, False][: 1 + cgroups]
    # A host that becomes a login host.
    assert rule(later, training_only=False)["steps"] == ssh.removal(later)


def test_lines_that_others_have_changed_meanwhile_stay():
    host = reading()
    later = written(host, rule(host))
    later["texts"][ssh.SSHD] = later["texts"][ssh.SSHD].replace(
        "pam_limits.so", "pam_limits.so debug"
    )
    assert ssh.original(later["texts"][ssh.SSHD]) == SSHD.replace(
        "pam_limits.so", "pam_limits.so debug"
    )


def test_a_user_who_ran_ansible_once_does_not_stay_exempt():
    host = reading()
    later = dict(written(host, rule(host)), login_user="second")
    text = content(rule(later))
    assert "user in root:second\n" in text and "user notin root:second " in text
    assert ssh.lacking(rule(later), later) and rule(later)["dropped"] == ["ops"]
    assert rule(later, users=["ops"])["dropped"] == [] and "user in root:second:ops\n" in content(
        rule(later, users=["ops"])
    )
    # A connection without a login tells nothing about who logs in.
    unknown = dict(later, login_user="")
    assert rule(unknown)["dropped"] == [] and not ssh.lacking(rule(unknown), unknown)


@pytest.mark.parametrize(
    "version, expected",
    [("1:9.2p1-2+deb12u7", False), ("1:9.8p1-1", True), ("1:10.0p1-7+deb13u1", True), ("", False)],
)
def test_refused_people_do_not_block_their_login_host(version, expected):
    host = reading(packages=dict(reading()["packages"], **{"openssh-server": version}))
    found = rule(host, addresses=["10.0.0.1", "fd00::1"])
    first = found["steps"][0]["files"][0]
    assert (first["path"] == ssh.DROP_IN) == expected
    assert not expected or first["content"].endswith(
        "\nPerSourcePenaltyExemptList 10.0.0.1,fd00::1\n"
    )
    # Removed after the rule that lets logins fail.
    later = written(host, found)
    assert [step["absent"] for step in ssh.removal(later)] == [[], [ssh.SESSION]] + [
        [ssh.DROP_IN]
    ] * expected
    assert written(later, {"steps": ssh.removal(later)})["texts"] == host["texts"]


def test_a_changed_common_session_is_followed():
    host = reading()
    later = written(host, rule(host))
    later["texts"][ssh.COMMON] += "session optional pam_umask.so\n"
    assert ssh.lacking(rule(later), later) and "pam_umask" in content(rule(later), ssh.SESSION)


def test_the_new_file_is_tried_for_those_who_need_no_job():
    entry = rule(users=["monitor"])["steps"][-1]["files"][0]
    assert entry["validate"].startswith("/usr/bin/python3 -c '") and entry["validate"].endswith(
        "' %s root ops monitor"
    )
    assert entry["validate"].count("'") == 2 and entry["validate"].count("%s") == 1
    compile(ssh.CHECK, "check", "exec")
