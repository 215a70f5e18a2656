# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files with the public keys of people on a login host, and the drop-in with which its sshd
reads them, for module shared_accounts.
"""

from __future__ import annotations

import glob
import grp
import os
import shutil
import tempfile

from typing import Any, Dict, Iterable, List, Mapping, Sequence

from ansible_collections.trainyard.gpu.plugins.module_utils._accounts import find_user
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._managed_files import (
    ENTRY,
    Entry,
    ManagedFiles,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._public_keys import public_key_fault
from ansible_collections.trainyard.gpu.plugins.module_utils._sshd_people import (
    Effective,
    config_with,
    drop_in,
    files_of_keys,
    hinders,
    includes,
    is_judged_by_user,
    lost_quotes,
    parse_effective,
)

END = ".keys"
# A connection for Match blocks. They cannot all be known: one for another address is not seen.
CONNECTION = "host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22"


#: Lines of public keys, and names of groups, by user.
Keys = Dict[str, List[str]]
Groups = Mapping[str, List[str]]
_ROOT = {"owner": "root", "group": "root"}


def entry(path: str, **options: object) -> Entry:
    """Return an entry for ManagedFiles: the options that are given, and the defaults of the
    others.
    """
    defaults = {name: option.get("default") for name, option in ENTRY.items()}
    return {**defaults, "path": path, **options}


class PeopleKeys:
    """plan() judges and changes nothing; write() follows when the accounts exist."""

    def __init__(self, module: Any, folder: str, config: str, drop_in_path: str) -> None:
        self.module, self.folder, self.config, self.drop_in = module, folder, config, drop_in_path
        self.files = ManagedFiles(module)
        self.entries: list[Entry] = []
        self.pid_file = ""
        # The real path of each file that sshd judges.
        self.staged: dict[str, str] = {}
        self.path = os.path.join(folder, "%u" + END)

    def plan(self, keys: Keys, groups: Groups) -> None:
        """Judge the keys of each user, and plan their files.

        Fails the module if sshd would not accept them.
        """
        self._refuse_invalid(keys, groups)
        keys = {name: lines for name, lines in keys.items() if lines}
        needed, text = self._ask_sshd(sorted(keys), groups) if keys else (False, "")
        # sshd stops to read the files before they are removed, and begins when they exist.
        self.entries = [] if needed else [entry(self.drop_in, state="absent")]
        for name in self._present():
            if name[: -len(END)] not in keys:
                self.entries.append(entry(os.path.join(self.folder, name), state="absent"))
        self.entries += self._files_of(keys) if keys else self._without_folders()
        if needed:
            self.entries.append(
                entry(self.drop_in, state="file", content=text, mode="0644", **_ROOT)
            )

    def _refuse_invalid(self, keys: Keys, groups: Groups) -> None:
        """Fail the module if somebody has no account, or a line is no public key."""
        unknown = sorted(set(keys).difference(groups))
        if unknown:
            self.module.fail_json(
                msg="keys: %s not among users; add the user, or remove the keys"
                % ", ".join(unknown)
            )
        for name in sorted(keys):
            for number, line in enumerate(keys[name], 1):
                if public_key_fault(line):
                    self.module.fail_json(
                        msg="%s, key %d: %s. Give one line of a file such as ~/.ssh/id_ed25519.pub"
                        % (name, number, public_key_fault(line))
                    )

    def _without_folders(self) -> list[Entry]:
        """Return the entries that remove our folders."""
        if not os.path.isdir(self.folder):
            return []
        # The parent folder belongs to several roles, so it is only removed together with ours.
        folders = (self.folder, os.path.dirname(self.folder))
        return [entry(path, state="absent", leave_filled=True) for path in folders]

    def _files_of(self, keys: Keys) -> list[Entry]:
        """Return the entries of the folders and of the files with keys."""
        # sshd reads the files as the user who logs in.
        entries = [
            entry(path, state="directory", mode="0755", **_ROOT)
            for path in (os.path.dirname(self.folder), self.folder)
        ]
        for name in sorted(keys):
            path = os.path.join(self.folder, name + END)
            text = "".join(line + "\n" for line in keys[name])
            entries.append(entry(path, state="file", content=text, mode="0644", **_ROOT))
        return entries

    def write(self) -> str:
        """Return the unit of sshd that must be reloaded, empty if none."""
        self.files.run(self.entries)
        if self.drop_in not in self.files.changed_paths and not self._is_newer():
            return ""
        systemctl = self.module.get_bin_path("systemctl")
        # A unit that does not run, as with socket activation, reads the file when it starts.
        for unit in ("ssh.service", "sshd.service") if systemctl else ():
            if self.module.run_command([systemctl, "is-active", "--quiet", unit])[0] == 0:
                return unit
        return ""

    def _present(self) -> list[str]:
        """Return the names of our files with keys."""
        if not os.path.isdir(self.folder):
            return []
        return sorted(name for name in os.listdir(self.folder) if name.endswith(END))

    def _is_newer(self) -> bool:
        """Whether an earlier run ended between the file and the reload. sshd writes its pid file
        each time it reads its configuration.
        """
        return (
            bool(self.pid_file)
            and os.path.exists(self.pid_file)
            and os.path.exists(self.drop_in)
            and os.stat(self.drop_in).st_ctime > os.stat(self.pid_file).st_mtime
        )

    def _ask_sshd(self, names: Sequence[str], groups: Groups) -> tuple[bool, str]:
        """Return (whether the drop-in is needed, its text) after sshd has judged the whole
        configuration with it.
        """
        sshd = self.module.get_bin_path("sshd")
        if not sshd or not os.path.exists(self.config):
            self.module.fail_json(
                msg="this host is among shared_storage_login_hosts and has no sshd, so nobody can "
                "log in: install openssh-server, or set "
                "shared_storage_login_hosts to other hosts"
            )
        text = read_text(self.config)
        texts = self._texts(text)
        staging = tempfile.mkdtemp(dir=self.module.tmpdir)
        try:
            config, part = (
                os.path.join(staging, "sshd_config"),
                os.path.join(staging, "people.conf"),
            )
            self.staged = {config: self.config, part: self.drop_in}
            base = self._effective(sshd, config, config_with(text, glob.glob, self.drop_in)[0])
            self.pid_file = base.get("pidfile", [""])[0]
            # The site can name the files itself, where the drop-in cannot help.
            if self.path in base.get("authorizedkeysfile", []):
                self._judge(sshd, config, base, names, groups, texts)
                return False, ""
            content = drop_in(files_of_keys(base, self.path))
            with open(part, "w", encoding="utf-8") as file:
                file.write(content)
            staged, is_included = config_with(text, glob.glob, self.drop_in, part)
            if not is_included:
                self._refuse(
                    (
                        "it includes %s not at all, or only in a Match block. Add 'Include "
                        "%s/*.conf' as its first line"
                    )
                    % (self.drop_in, os.path.dirname(self.drop_in))
                )
            if lost_quotes(texts):
                self._refuse(
                    (
                        "AuthorizedKeysFile has a name with a blank, which sshd -T prints without "
                        "quotes"
                    )
                )
            self._judge(sshd, config, self._effective(sshd, config, staged), names, groups, texts)
            return True, content
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _texts(self, text: str, depth: int = 0) -> list[str]:
        """The texts of a configuration and of all files that it includes, without ours."""
        found = [text]
        for pattern in includes(text) if depth < 16 else []:
            for path in sorted(glob.glob(pattern)):
                found += self._texts(read_text(path), depth + 1) if path != self.drop_in else []
        return found

    def _effective(
        self, sshd: str, path: str, text: str = "", user: str = ""
    ) -> dict[str, list[str]]:
        """What sshd says about a configuration; it fails the module if sshd rejects it."""
        if text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        command = [sshd, "-T", "-f", path] + (
            ["-C", "user=%s,%s" % (user, CONNECTION)] if user else []
        )
        rc, out, err = self.module.run_command(command)
        missing = (
            err.strip().rpartition("Missing privilege separation directory: ")[2]
            if "Missing privilege separation directory" in err
            else ""
        )
        if rc != 0 and missing.startswith("/run/"):
            # The unit of sshd makes it, and does not run.
            os.mkdir(missing, 0o755)
            try:
                rc, out, err = self.module.run_command(command)
            finally:
                os.rmdir(missing)
        if rc != 0:
            message = " ".join((err or out).split())
            for staged, real in self.staged.items():
                message = message.replace(staged, real)
            self.module.fail_json(
                msg=(
                    "sshd rejects its configuration on this host, and nothing was changed: %s. "
                    "Correct it, until sshd -t accepts it"
                )
                % message
            )
        return parse_effective(out)

    def _judge(
        self,
        sshd: str,
        config: str,
        effective: Effective,
        names: Sequence[str],
        groups: Groups,
        texts: Iterable[str],
    ) -> None:
        """Fail the module if sshd would not accept the key of one of these users."""
        reason = hinders(effective, self.path)
        if reason:
            self._refuse(reason)
        by_user = is_judged_by_user(texts)
        reasons: dict[str, list[str]] = {}
        for name in names:
            its = self._effective(sshd, config, user=name) if by_user else effective
            reason = hinders(its, self.path, name, groups[name] + self._host_groups(name))
            if reason:
                reasons.setdefault(reason, []).append(name)
        if reasons:
            texts = ["for %s %s" % (", ".join(each), reason) for reason, each in reasons.items()]
            self._refuse("; ".join(texts))

    @staticmethod
    def _host_groups(name: str) -> list[str]:
        """Return the names of a user's groups on this host, empty without an account."""
        user = find_user(name)
        if not user:
            return []
        numbers = os.getgrouplist(name, user.pw_gid)
        return [group.gr_name for group in grp.getgrall() if group.gr_gid in numbers]

    def _refuse(self, reason: str) -> None:
        """Fail the module with what keeps people out."""
        self.module.fail_json(
            msg="%s: sshd would not accept the public_keys of shared_storage_users: %s. Nothing "
            "was changed. Correct the configuration of "
            "sshd (AuthorizedKeysFile needs %s), set shared_storage_login_hosts to other "
            "hosts, or remove the keys" % (self.config, reason, self.path)
        )
