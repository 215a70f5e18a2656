#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: placed_packages
short_description: Install packages in one transaction and record them
version_added: "0.2.0"
description:
  - Installs the missing packages of O(packages) in one apt transaction. Either all get the
    requested versions, or nothing changes.
  - Records in O(record) which packages the host did not have, which it had at other versions, and
    which of O(traces) existed before. O(state=absent) purges the new packages and removes their
    traces.
  - If the host already has everything as requested, apt is not run.
author:
  - trainyard maintainers (@trainyard)
options:
  packages:
    description:
      - Names, or V(name=version) with the exact version. Without a version, a name that an
        installed package provides is installed.
      - Required for O(state=present).
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) installs missing packages.
      - V(absent) removes the recorded packages, unless packages installed later need them. It needs
        no O(packages).
    type: str
    choices: [present, absent]
    default: present
  former_packages:
    description:
      - With O(state=absent), names of packages to remove besides those in O(record), such as those
        that an earlier release of the caller recorded elsewhere. O(traces) are theirs.
    type: list
    elements: str
    default: []
    version_added: "0.4.0"
  record:
    description:
      - Absolute path of the record. It is created with its parent folders before anything is
        installed.
      - Other modules may have keys of their own in the same file. They are left alone.
    type: path
    required: true
  notes:
    description:
      - Values to record as C(notes) before anything is installed, such as settings of the host that
        the packages change. The task file that removes the packages reads them from the record.
      - A value that an earlier run has recorded stays, because it is the state before the first
        run.
    type: dict
    default: {}
    version_added: "0.4.0"
  traces:
    description:
      - Absolute paths that the packages leave behind when they are purged, or remove although the
        host had them before; accounts as V(user:NAME) and V(group:NAME).
      - Below C(/etc), files that were changed or added by the site stay. Of a folder that existed
        there before, what it held then comes back. Of other paths that existed before all comes
        back.
    type: list
    elements: str
    default: []
  hold:
    description: Whether to hold the packages at their versions. A change of versions lifts the hold
      and sets it again in the same run.
    type: bool
    default: false
  hold_too:
    description: With O(hold), shell patterns of names of other installed packages to hold, such as
      dependencies.
    type: list
    elements: str
    default: []
  may_replace:
    description:
      - Shell patterns of names of packages that may be removed because of conflicts with
        O(packages), or changed to another version, even if they are held.
      - If other packages would have to change, the module fails before it changes anything.
    type: list
    elements: str
    default: []
  simulate:
    description:
      - Whether to change nothing and only return what apt would do, in RV(installed), RV(removed),
        RV(replaced) and RV(held), or with O(state=absent) in RV(removed), RV(kept) and
        RV(needed_by). The result is never C(changed).
      - Removals and holds are returned and not refused, whatever O(may_replace) is.
      - In check mode O(state=present) does not run apt and returns only the missing packages.
    type: bool
    default: false
    version_added: "0.4.0"
  update_cache:
    description: Whether to update apt's lists before an installation, also with O(simulate). Set it
      to false if a task shortly before has updated them.
    type: bool
    default: true
    version_added: "0.4.0"
  lock_timeout:
    description: Maximum time in seconds to wait for another run of apt or dpkg.
    type: int
    default: 600
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: full
    details:
      - Check mode does not run apt, because its lists may be missing or old.
  diff_mode:
    support: full
  platform:
    platforms: debian
seealso:
  - module: ansible.builtin.apt
"""

EXAMPLES = r"""
- name: Install the NFS server
  trainyard.gpu.placed_packages:
    packages: [nfs-kernel-server]
    record: /var/lib/trainyard/placed.d/nfs_server.packages.json
    traces: [/var/lib/nfs, /etc/exports, "user:statd"]

- name: Install NCCL at one version, and hold it
  trainyard.gpu.placed_packages:
    packages: [libnccl2=2.21.5-1+cuda12.4, libnccl-dev=2.21.5-1+cuda12.4]
    record: /var/lib/trainyard/placed.d/nccl.packages.json
    hold: true

- name: Check what the installation of a web server would remove or upgrade
  trainyard.gpu.placed_packages:
    packages: [nginx]
    record: /var/lib/trainyard/placed.d/site.packages.json
    simulate: true
  register: simulated

- name: Remove the installed packages
  trainyard.gpu.placed_packages:
    state: absent
    record: /var/lib/trainyard/placed.d/nfs_server.packages.json
"""

RETURN = r"""
installed:
  description: Packages that apt installed or changed to another version, including dependencies. In
    check mode the missing packages of O(packages).
  returned: success
  type: list
  elements: str
removed:
  description: Packages that apt removed.
  returned: success
  type: list
  elements: str
replaced:
  description: Former versions of packages that apt changed to another version, by name.
  returned: success
  type: dict
  version_added: "0.4.0"
  sample: {runc: 1.1.5+ds1-1}
held:
  description: With O(simulate), packages of RV(removed) and RV(replaced) that are held.
  returned: success
  type: list
  elements: str
  version_added: "0.4.0"
kept:
  description: With O(state=absent), recorded packages that stay because other packages need them.
  returned: success
  type: list
  elements: str
needed_by:
  description: With O(state=absent), the packages that need RV(kept).
  returned: success
  type: list
  elements: str
kept_files:
  description: With O(state=absent), files below C(/etc) that stay because they were changed or
    added after the installation.
  returned: success
  type: list
  elements: str
"""

import fnmatch
import grp
import os
import pwd
import re
import shutil
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _packages
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import checksums, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import parse_mountinfo
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

# Keep the site's configuration files without an interactive question.
QUIETLY = [
    "--quiet",
    "--assume-yes",
    "--option",
    "Dpkg::Options::=--force-confdef",
    "--option",
    "Dpkg::Options::=--force-confold",
]
ENVIRONMENT = dict(_packages.APT_ENVIRONMENT, LC_ALL="C")
# Lock of the lists, which DPkg::Lock::Timeout does not wait for.
LISTS_LOCKED = re.compile(r"Could not get lock \S*/lists/lock")


# Keys of the record that this module writes.
KEYS = (
    "packages",
    "replaced",
    "held",
    "traces",
    "existed",
    "contents",
    "removed",
    "placed",
    "notes",
)
# Database and removal command of each kind.
ACCOUNTS = {"user": (pwd.getpwnam, "userdel"), "group": (grp.getgrnam, "groupdel")}


def files_below(paths):
    """All files of paths, which are files or folders."""
    for path in paths:
        if os.path.isfile(path) and not os.path.islink(path):
            yield path
        for folder, _folders, names in os.walk(path):
            for name in sorted(names):
                if not os.path.islink(os.path.join(folder, name)):
                    yield os.path.join(folder, name)


def all_below(folder):
    """Paths of all that is in a folder. Nothing if it is a file or a link."""
    return (
        sorted(
            os.path.join(parent, name)
            for parent, folders, names in os.walk(folder)
            for name in folders + names
        )
        if not os.path.islink(folder)
        else []
    )


def account(trace):
    """Kind and name of an account; None for a path."""
    kind, _colon, name = trace.partition(":")
    return (kind, name) if kind in ACCOUNTS else None


def exists(trace):
    if not account(trace):
        return os.path.lexists(trace)
    kind, name = account(trace)
    try:
        ACCOUNTS[kind][0](name)
    except KeyError:
        return False
    return True


def left(record):
    """The traces that exist and did not exist before."""
    return [trace for trace in record["traces"] if trace not in record["existed"] and exists(trace)]


def of_before(record):
    """Paths that existed before the packages.

    Records of earlier releases do not have the contents of folders.
    """
    return set(record["existed"]).union(*record.get("contents", {}).values())


def coming_back(record, kept_files):
    """Paths that a purge may remove and that were there before, or are kept."""
    contents = record.get("contents", {})
    before = []
    for trace in record["existed"]:
        if not account(trace):
            before += [trace] + (contents[trace] if trace in contents else all_below(trace))
    return [path for path in unique(kept_files + before) if os.path.lexists(path)]


def placed_files(former, before, after):
    """Checksums of the files of settings that the packages have placed, from those recorded, and
    those found before and after an installation.
    """
    found = {path: total for path, total in after.items() if path not in before}
    # One that the site has changed stays different from what is recorded.
    for path, total in former.items():
        if path in after:
            found[path] = after[path] if before.get(path) == total else total
    return found


def changed_settings(record, now):
    """Files of settings that were changed or added since the installation.

    Those of before come back, too, and are no news. C(now): their checksums.
    """
    before = of_before(record)
    placed = record.get("placed", {})
    return sorted(
        path for path, total in now.items() if placed.get(path) != total and path not in before
    )


def left_settings(record, kept_files):
    """Files of settings in folders of before that the packages have placed, and a purge does not
    remove, such as /etc/mysql/debian.cnf.
    """
    contents = record.get("contents", {})
    return [
        path
        for path in record.get("placed", {})
        for trace in contents
        if path.startswith(trace + "/")
        and path not in contents[trace]
        and path not in kept_files
        and os.path.lexists(path)
    ]


def settings(traces):
    return [trace for trace in traces if trace.startswith("/etc/")]


def lacking(packages, there):
    """Return the requested packages that are not there in their version."""
    return [
        package
        for package in packages
        for name, version in [_packages.split_package(package)]
        if name not in there or version and there[name]["version"] != version
    ]


def expected(before, requested, hold):
    """Return the state of the packages after their installation.

    C(requested) are versions by name, empty for any.
    """
    after = dict(before)
    for name, version in requested.items():
        former = before.get(name, {}).get("version", "(apt's candidate)")
        after[name] = {"version": version or former, "held": hold}
    return after


class Host:
    def __init__(self, module):
        self.module = module
        self.file = Record(module, module.params["record"])
        self.is_dry = module.check_mode or module.params["simulate"]
        self.result = {
            "changed": False,
            "installed": [],
            "removed": [],
            "replaced": {},
            "held": [],
            "kept": [],
            "needed_by": [],
            "kept_files": [],
        }

    # The tools

    def run(self, *command):
        return self.module.run_command(
            [self.module.get_bin_path(command[0], required=True)] + list(command[1:]),
            environ_update=ENVIRONMENT,
            expand_user_and_vars=False,
        )

    def apt(self, *arguments):
        timeout = self.module.params["lock_timeout"]
        return self.run("apt-get", "--option", "DPkg::Lock::Timeout=%d" % timeout, *arguments)

    def installed(self, names):
        if not names:
            return {}
        return _packages.parse_installed(
            self.run(
                "dpkg-query",
                "--show",
                "--showformat",
                "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n",
                *names,
            )[1]
        )

    def there(self, requested: dict[str, str]) -> dict[str, dict]:
        """State of the requested packages.

        A name without a version may be that of a package which an installed one provides.
        """
        found = self.installed(requested)
        virtual = [name for name, version in requested.items() if not version and name not in found]
        if virtual:
            shown_all = self.run("dpkg-query", "--show", "--showformat", _packages.PROVIDES_FORMAT)[
                1
            ]
            found.update(_packages.parse_provided(shown_all, virtual))
        return found

    def update(self):
        if not self.module.params["update_cache"]:
            return
        deadline = time.monotonic() + self.module.params["lock_timeout"]
        while True:
            rc, _stdout, stderr = self.apt("--quiet", "update")
            if not rc:
                # If apt has older lists, it continues with them after an error of a mirror or a
                # key.
                for line in stderr.splitlines():
                    if line.startswith("W: "):
                        self.module.warn("apt-get update: %s" % line[3:])
                return
            if not LISTS_LOCKED.search(stderr) or time.monotonic() > deadline:
                self.module.fail_json(
                    msg="apt-get update failed: %s\n%s"
                    % (
                        last_lines(stderr),
                        (
                            (
                                "Wait until the other apt or dpkg on this host has ended, or raise "
                                "lock_timeout, and run this again"
                            )
                            if LISTS_LOCKED.search(stderr)
                            else (
                                "Correct the repository, its key or the proxy on this host until "
                                "apt-get update succeeds, and run this again"
                            )
                        ),
                    )
                )
            time.sleep(1)

    # Present

    def install(self):
        """Install, hold and record the requested packages, as far as they lack it."""
        packages, hold = self.module.params["packages"], self.module.params["hold"]
        requested = dict(_packages.split_package(package) for package in packages)
        before = self.there(requested)
        missing = lacking(packages, before)
        loose = [name for name in requested if hold and not before.get(name, {}).get("held")]
        if not missing and not loose:
            return
        self.result.update(
            changed=True, installed=[_packages.split_package(package)[0] for package in missing]
        )
        self.result["diff"] = {
            "before": shown(before, hold),
            "after": shown(expected(before, requested, hold), hold),
        }
        if self.is_dry:
            if missing and not self.module.check_mode:
                self.simulate(missing)
            return
        former = self.file.read()
        record = self.begun(former)
        if missing:
            self.install_missing(requested, missing, former, record)
        if loose or hold and missing:
            self.hold(requested, loose, record)
        self.file.write(record)

    def simulate(self, missing):
        """Tell what apt would do."""
        self.update()
        self.result.update(self.simulation(missing, self.module.params["may_replace"]))
        self.result["held"] = self.held(self.result["removed"] + list(self.result["replaced"]))

    def begun(self, former):
        """Return the record with the state before the first run.

        C(former) is that of earlier runs of this module, whose state counts.
        """
        traces, notes = self.module.params["traces"], self.module.params["notes"]
        known = former.get("traces", [])
        existed = [trace for trace in traces if trace not in known and exists(trace)]
        contents = {trace: all_below(trace) for trace in settings(existed)}
        record = dict(
            former,
            packages=former.get("packages", []),
            replaced=former.get("replaced", {}),
            held=former.get("held", []),
            traces=unique(known + traces),
            existed=unique(former.get("existed", []) + existed),
            contents=dict(contents, **former.get("contents", {})),
        )
        if notes:
            record["notes"] = dict(notes, **former.get("notes", {}))
        return record

    def install_missing(self, requested, missing, former, record):
        """Install packages, and fill C(record). C(former) is the record of earlier runs."""
        may_replace = self.module.params["may_replace"]
        files = self.files_before(former, record)
        self.update()
        plan = self.accepted(missing, may_replace)
        ours = record["packages"]
        record["packages"] = unique(
            ours + [name for name in plan["installed"] if name not in plan["replaced"]]
        )
        record["replaced"] = dict(
            {name: version for name, version in plan["replaced"].items() if name not in ours},
            **record["replaced"],
        )
        record["removed"] = unique(
            former.get("removed", []) + [name for name in plan["removed"] if name not in ours]
        )
        # Before a package is installed.
        self.file.write(record)
        rc, stdout, stderr = self.apt(
            *QUIETLY,
            "--no-install-recommends",
            *self.changing(missing, may_replace),
            "install",
            *missing,
        )
        # Of all packages, because several may share a configuration file. Also if apt failed,
        # because the next run would take the files for the site's.
        record["placed"] = placed_files(
            former.get("placed", {}), files, checksums(files_below(settings(record["traces"])))
        )
        self.file.write(record)
        if rc:
            self.module.fail_json(
                msg="apt-get install %s failed: %s\nCorrect what apt names. If a package is half "
                "installed, run 'dpkg --configure "
                "--pending' on the host. Then run this again"
                % (" ".join(missing), last_lines(stderr or stdout)),
                stdout=stdout,
                stderr=stderr,
            )
        self.result.update(plan)
        self.check(requested, plan)

    @staticmethod
    def files_before(former, record):
        """Return the checksums of the files of settings before an installation.

        Without checksums an earlier run was interrupted in its first installation: what has
        appeared since then is of the packages.
        """
        if "placed" in former:
            return checksums(files_below(settings(record["traces"])))
        return dict.fromkeys(of_before(record), "")

    def hold(self, requested, loose, record):
        """Hold the requested packages, C(loose) are not held, and those of hold_too.

        Fill C(record).
        """
        # apt-mark holds no name that another package provides.
        now = self.there(requested)
        real = {name: now.get(name, {}).get("package", name) for name in requested}
        others = self.installed(self.module.params["hold_too"])
        record["held"] = unique(
            record["held"]
            + [real[name] for name in loose]
            + [
                name
                for name, package in sorted(others.items())
                if not package["held"] and name not in real.values()
            ]
        )
        rc, stdout, stderr = self.run(
            "apt-mark", "hold", *unique(list(real.values()) + sorted(others))
        )
        if rc:
            self.module.fail_json(
                msg=(
                    "apt-mark hold failed: %s\nThe packages are installed, but not held. Correct "
                    "what apt-mark names, and run this again"
                )
                % last_lines(stderr or stdout)
            )

    def check(self, requested, plan):
        """Fail if a requested package is not there after apt's success.

        A rollback would act against what changed it; the record has what was installed.
        """
        found = self.there(requested)
        wrong = [
            "%s is %s, not %s"
            % (name, found.get(name, {}).get("version", "absent"), version or "there")
            for name, version in requested.items()
            if name not in found or version and found[name]["version"] != version
        ]
        if wrong:
            stays = ", ".join(sorted(self.installed(plan["installed"]))) or "nothing"
            self.module.fail_json(
                msg="apt-get succeeded, but %s. Of what it installed, this is still there: %s. It "
                "is recorded, and the removal of the role removes it. "
                "Find with 'apt-cache policy' and in /var/log/apt/history.log on the host what "
                "changed the packages again" % (", ".join(wrong), stays)
            )

    @staticmethod
    def changing(packages, may_replace):
        """A version may be older than the installed one, and that one held.

        Apt finds no solution around held packages unless it ignores holds.
        """
        options = (
            ["--allow-change-held-packages", "--allow-downgrades"]
            if any("=" in package for package in packages)
            else []
        )
        return options + (["--ignore-hold", "--allow-change-held-packages"] if may_replace else [])

    def simulation(self, missing, may_replace):
        rc, stdout, stderr = self.apt(
            "--simulate",
            "--no-install-recommends",
            *self.changing(missing, may_replace),
            "install",
            *missing,
        )
        if rc:
            self.module.fail_json(
                msg="apt cannot install %s, nothing was changed: %s%s\nRequest an available "
                "version, add a repository that has it, or "
                "resolve the conflict that apt names"
                % (" ".join(missing), last_lines(stderr or stdout), self.offer(missing))
            )
        return _packages.parse_simulation(stdout)

    def held(self, names):
        return [name for name, package in sorted(self.installed(names).items()) if package["held"]]

    def accepted(self, missing, may_replace):
        """What apt would do. Fails if it would change packages that it must not change."""
        plan = self.simulation(missing, may_replace)
        refused = [
            name
            for name in plan["removed"]
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in may_replace)
        ]
        if refused:
            self.module.fail_json(
                msg=(
                    "to install %s apt would remove %s; nothing was changed: remove them first if "
                    "they are not needed"
                )
                % (" ".join(missing), ", ".join(refused))
            )
        # Holds are ignored only for may_replace. Other holds are kept.
        requested = [_packages.split_package(package)[0] for package in missing]
        moved = [
            name
            for name in plan["replaced"]
            if name not in requested
            and not any(fnmatch.fnmatchcase(name, pattern) for pattern in may_replace)
        ]
        held = self.held(moved)
        if held:
            self.module.fail_json(
                msg="to install %s apt would change %s, which are held; nothing was changed: lift "
                "the holds (apt-mark unhold) if "
                "they may change" % (" ".join(missing), ", ".join(held))
            )
        return plan

    def offer(self, missing):
        """Available versions instead of one that apt does not know."""
        requested = dict(_packages.split_package(package) for package in missing)
        known = _packages.parse_madison(self.run("apt-cache", "madison", *requested)[1])
        offers = []
        for name, version in requested.items():
            if not known.get(name):
                offers.append("no repository of this host has %s" % name)
            elif version and version not in known[name]:
                offers.append(
                    "available versions of %s: %s"
                    % (name, ", ".join(_packages.nearest_versions(version, known[name])))
                )
        return "; " + "; ".join(offers) if offers else ""

    # Absent

    def held_of(self, record):
        """Return the packages that the role has put on hold and that are on hold."""
        names = record.get("held", [])
        return [name for name in names if self.installed([name]).get(name, {}).get("held")]

    def uninstall(self, former_packages, traces):
        found = self.file.read()
        record = dict(
            found,
            packages=unique(found.get("packages", []) + former_packages),
            traces=unique(found.get("traces", []) + (traces if former_packages else [])),
            existed=found.get("existed", []),
        )
        there = self.installed(record["packages"])
        names = [name for name in record["packages"] if name in there]
        # An interrupted run may have left traces of former_packages.
        if not set(KEYS) & set(found) and not names and not left(record):
            return
        needed = self.needed_by(names)
        if needed:
            self.result.update(kept=names, needed_by=needed)
            return
        self.result.update(changed=True, removed=names)
        self.result["kept_files"] = changed_settings(
            record, checksums(files_below(settings(record["traces"])))
        )
        self.result["diff"] = {"before": shown(there, False), "after": shown({}, False)}
        if self.is_dry:
            return
        held = self.held_of(record)
        if held:
            self.run("apt-mark", "unhold", *held)
        if names or former_packages:
            self.purge(names, record)
        self.file.write({key: value for key, value in found.items() if key not in KEYS})

    def needed_by(self, names):
        """Return the packages that need these, and that apt would remove with them."""
        if not names:
            return []
        rc, stdout, stderr = self.apt(
            "--simulate", "--purge", "--allow-change-held-packages", "remove", *names
        )
        if rc:
            self.module.fail_json(
                msg="apt cannot remove %s, nothing was changed: %s\nRepair the packages that apt "
                "names ('apt-get --fix-broken install'), "
                "and run this again" % (" ".join(names), last_lines(stderr or stdout))
            )
        removed = _packages.parse_simulation(stdout)["removed"]
        return [name for name in removed if name not in names]

    def purge(self, names, record):
        """A purge also removes files that the site had before the package was installed, or has
        changed or added since then.
        """
        work = tempfile.mkdtemp(prefix="trainyard-kept.")
        try:
            kept = os.path.join(work, "kept.tar")
            listing = os.path.join(work, "paths")
            with open(listing, "wb") as stream:
                stream.write(
                    b"".join(
                        os.fsencode(path) + b"\0"
                        for path in coming_back(record, self.result["kept_files"])
                    )
                )
            self.must(
                "tar",
                "--create",
                "--absolute-names",
                "--no-recursion",
                "--file",
                kept,
                "--null",
                "--files-from",
                listing,
            )
            rc, stdout, stderr = (
                self.apt(*QUIETLY, "--allow-change-held-packages", "--purge", "remove", *names)
                if names
                else (0, "", "")
            )
            if rc:
                self.module.fail_json(
                    msg="apt-get remove %s failed: %s\nCorrect what apt names, and run this again"
                    % (" ".join(names), last_lines(stderr or stdout))
                )
            for trace in left(record):
                # One may have removed another, as userdel removes the group of its account.
                if exists(trace):
                    self.remove(trace)
            for path in left_settings(record, self.result["kept_files"]):
                # A package that stays may have it, too.
                if self.run("dpkg-query", "--search", path)[0]:
                    os.unlink(path)
            self.must(
                "tar", "--extract", "--absolute-names", "--preserve-permissions", "--file", kept
            )
        finally:
            shutil.rmtree(work)

    def must(self, *command):
        rc, stdout, stderr = self.run(*command)
        if rc:
            self.module.fail_json(
                msg="%s failed: %s\nCorrect what it names, such as a full disk, and run this again"
                % (command[0], last_lines(stderr or stdout))
            )

    def remove(self, trace):
        if account(trace):
            kind, name = account(trace)
            self.must(ACCOUNTS[kind][1], name)
            return
        # Such as rpc_pipefs below /var/lib/nfs.
        for mount in reversed(parse_mountinfo(read_text("/proc/self/mountinfo"))):
            if (mount["path"] + "/").startswith(trace + "/"):
                self.must("umount", mount["path"])
        if os.path.isdir(trace) and not os.path.islink(trace):
            shutil.rmtree(trace)
        else:
            os.unlink(trace)


def unique(names):
    return list(dict.fromkeys(names))


def shown(packages, hold):
    lines = []
    for name in sorted(packages):
        held = " held" if hold and packages[name]["held"] else ""
        lines.append("%s %s%s\n" % (name, packages[name]["version"], held))
    return "".join(lines)


def last_lines(text, count=8):
    return "\n".join([line for line in text.strip().splitlines() if line.strip()][-count:])


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "former_packages": {"type": "list", "elements": "str", "default": []},
            "record": {"type": "path", "required": True},
            "notes": {"type": "dict", "default": {}},
            "traces": {"type": "list", "elements": "str", "default": []},
            "hold": {"type": "bool", "default": False},
            "hold_too": {"type": "list", "elements": "str", "default": []},
            "may_replace": {"type": "list", "elements": "str", "default": []},
            "simulate": {"type": "bool", "default": False},
            "update_cache": {"type": "bool", "default": True},
            "lock_timeout": {"type": "int", "default": 600},
        },
        required_if=[("state", "present", ["packages"])],
        supports_check_mode=True,
    )
    host = Host(module)
    try:
        if module.params["state"] == "present":
            host.install()
        else:
            host.uninstall(module.params["former_packages"], module.params["traces"])
    except _packages.ParseError as error:
        module.fail_json(
            msg="the output of apt and dpkg cannot be parsed: %s. Run 'dpkg --audit' on the host, "
            "and repair what it lists. If it lists nothing, "
            "report the line as a fault of the collection" % error
        )
    if module.params["simulate"]:
        host.result["changed"] = False
        host.result.pop("diff", None)
    module.exit_json(**host.result)


if __name__ == "__main__":
    main()
