# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Manages files, directories and links of a host, for module managed_files and for the files of a
unit.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile

from typing import Any, Dict, Sequence

#: The options of an entry of module managed_files, all of them, with their values.
Entry = Dict[str, Any]
ENTRY: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["file", "directory", "link", "absent"], "default": "file"},
    "content": {"type": "str"},
    "src": {"type": "path"},
    "mode": {"type": "str"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "replace": {"type": "bool", "default": True},
    "create": {"type": "bool", "default": True},
    "leave_filled": {"type": "bool", "default": False},
    "validate": {"type": "str"},
}
NEW_MODE = {"file": "0644", "directory": "0755"}


def read(path: str) -> bytes | None:
    """Bytes of a file, None if it does not exist."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def has_default_access_list(path: str) -> bool:
    """Return whether what is created in a folder gets its permissions from an access list."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_default"))
    except OSError:  # There is none, or the file system knows none.
        return False


def shown(content: bytes | None) -> str:
    """Text for a diff. A file that is not UTF-8 text is described instead of printed."""
    if content is None:
        return ""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return f"(binary, {len(content)} bytes)\n"


class ManagedFiles:
    """Brings files, directories and links of the host to the requested state, all or none of the
    files with new content.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.changed_paths: list[str] = []
        self.diff: list[dict[str, str]] = []
        self.staging: str | None = None

    def fail(self, entry: Entry, message: str) -> None:
        """Fail the module because of an entry."""
        self.module.fail_json(msg=f"{entry['path']}: {message}", changed_paths=self.changed_paths)

    def check_entry(self, entry: Entry) -> None:
        """Fail the module if options of an entry contradict each other."""
        if not os.path.isabs(entry["path"]):
            self.fail(entry, "path is not absolute; give one that begins with /")
        given = [name for name in ("content", "src") if entry[name] is not None]
        if entry["state"] == "file" and len(given) != 1:
            self.fail(entry, "a file needs content or src, and not both; set one of them")
        if entry["state"] == "link" and given != ["src"]:
            self.fail(entry, "a link needs src and no content; set src to its target")
        if entry["state"] in ("directory", "absent") and given:
            self.fail(entry, f"state {entry['state']} takes neither content nor src; remove them")

    def requested(self, entry: Entry) -> bytes:
        """The bytes of a file entry. In check mode, another task may only create its source."""
        if entry["content"] is not None:
            content: str = entry["content"]
            return content.encode("utf-8")
        source = read(entry["src"])
        if source is None and not self.module.check_mode:
            self.fail(
                entry,
                f"src '{entry['src']}' does not exist on this host; create it, or correct the path",
            )
        return source or b""

    def new_content(self, entry: Entry) -> bytes | None:
        """New bytes of a file entry, None if its content is not changed."""
        new = self.requested(entry)
        if os.path.isdir(entry["path"]):
            self.fail(entry, "is a directory, but a file is expected; remove or rename it")
        old = read(entry["path"])
        if (
            old is not None
            and (not entry["replace"] or old == new)
            and not os.path.islink(entry["path"])
        ):
            return None
        self.note(entry, shown(old), shown(new))
        return new

    def note(self, entry: Entry, before: str, after: str) -> None:
        """Report a change, with both sides of the diff."""
        self.changed_paths.append(entry["path"])
        self.diff.append(
            {
                "before_header": entry["path"],
                "after_header": entry["path"],
                "before": before,
                "after": after,
            }
        )

    def stage(self, entry: Entry, content: bytes) -> str | None:
        """Write new content into a private folder and validate it there, so that nothing is changed
        if it is rejected.
        """
        if self.module.check_mode:
            return None
        handle, path = tempfile.mkstemp(dir=self.staging)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        if entry["validate"]:
            if "%s" not in entry["validate"]:
                self.fail(
                    entry,
                    (
                        f"validate: '{entry['validate']}' does not contain %s; write %s in place "
                        "of the file to check"
                    ),
                )
            argv = [part.replace("%s", path) for part in shlex.split(entry["validate"])]
            rc, out, err = self.module.run_command(argv)
            if rc != 0:
                self.fail(
                    entry,
                    f"'{' '.join(argv)}' rejected the new content (exit status {rc}) and "
                    "nothing was changed: "
                    f"{(err or out).strip()}",
                )
        return path

    def attributes(self, entry: Entry, is_new: bool) -> None:
        """Set mode and owner, and report it unless the entry has changed anyway."""
        path = entry["path"]
        mode = entry["mode"] or (NEW_MODE.get(entry["state"]) if is_new else None)
        changed = False
        if entry["state"] != "link" and mode is not None:
            changed = self.module.set_mode_if_different(path, mode, changed)
        changed = self.module.set_owner_if_different(path, entry["owner"], changed)
        changed = self.module.set_group_if_different(path, entry["group"], changed)
        if changed and path not in self.changed_paths:
            self.note(
                entry,
                "(mode or owner differ)\n",
                f"mode={mode} owner={entry['owner']} group={entry['group']}\n",
            )

    def remove(self, entry: Entry) -> None:
        """Remove a file, a link or an empty folder."""
        path = entry["path"]
        if not os.path.lexists(path):
            return
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        names = sorted(os.listdir(path)) if is_folder else []
        # In check mode, files that an earlier entry removes still exist.
        left = [name for name in names if os.path.join(path, name) not in self.changed_paths]
        if left and entry["leave_filled"]:
            return
        if left:
            self.fail(
                entry,
                (
                    f"is not empty: it still contains {', '.join(left[:5])}; remove them, or set "
                    "leave_filled"
                ),
            )
        kind = "link" if os.path.islink(path) else "directory" if is_folder else "file"
        self.note(entry, f"{kind}\n", "absent\n")
        if self.module.check_mode:
            return
        if is_folder:
            os.rmdir(path)
        else:
            os.unlink(path)

    def directory(self, entry: Entry) -> None:
        """Create a folder."""
        path = entry["path"]
        is_new = not os.path.isdir(path)
        if is_new:
            if os.path.lexists(path):
                self.fail(
                    entry, "is not a directory, but a directory is expected; remove or rename it"
                )
            self.note(entry, "absent\n", "directory\n")
            if not self.module.check_mode:
                os.makedirs(path)
        # A mode would restrict the permissions from the parent's default access list.
        self.attributes(entry, is_new and not has_default_access_list(path))

    def link(self, entry: Entry) -> None:
        """Create a link, or lead it to another target."""
        path, target = entry["path"], entry["src"]
        old = os.readlink(path) if os.path.islink(path) else None
        if old is None and os.path.lexists(path):
            self.fail(entry, "is not a link, but a link is expected; remove or rename it")
        if old != target:
            self.note(entry, f"{old or 'absent'}\n", f"{target}\n")
            if not self.module.check_mode:
                temporary = f"{path}.trainyard-new"
                if os.path.lexists(temporary):
                    os.unlink(temporary)
                os.symlink(target, temporary)
                os.rename(temporary, path)
        self.attributes(entry, False)

    def file(self, entry: Entry, staged: str | None) -> None:
        """Put a file with new content in its place, and set owner and mode."""
        is_new = not os.path.lexists(entry["path"])
        if staged:
            # If the path is a link, the link itself is replaced and not its target.
            if os.path.islink(entry["path"]):
                os.unlink(entry["path"])
            # Set the mode before the rename, so that a secret is never readable by others.
            mode = entry["mode"] or (NEW_MODE["file"] if is_new else "0600")
            os.chmod(staged, int(mode, 8))
            self.module.atomic_move(staged, entry["path"])
        self.attributes(entry, is_new)

    def stage_all(self, entries: Sequence[Entry]) -> dict[int, str | None]:
        """Return the path of the new content of each file that changes, by the number of
        its entry.
        """
        staged = {}
        for number, entry in enumerate(entries):
            if entry["state"] == "file":
                content = self.new_content(entry)
                if content is not None:
                    staged[number] = self.stage(entry, content)
        return staged

    def run(self, entries: Sequence[Entry]) -> None:
        """Bring all entries to their state. Nothing is changed if one of them is not valid."""
        for entry in entries:
            self.check_entry(entry)
        entries = [entry for entry in entries if entry["create"] or os.path.lexists(entry["path"])]
        self.staging = tempfile.mkdtemp(dir=self.module.tmpdir)
        try:
            staged = self.stage_all(entries)
            for number, entry in enumerate(entries):
                if entry["state"] == "file":
                    self.file(entry, staged.get(number))
                elif entry["state"] == "directory":
                    self.directory(entry)
                elif entry["state"] == "link":
                    self.link(entry)
                else:
                    self.remove(entry)
        except OSError as error:
            self.module.fail_json(
                msg=f"{error.filename}: {error.strerror}. Correct it on this host (a full or "
                "read-only file system, an immutable file), and "
                "run this again",
                changed_paths=self.changed_paths,
            )
        finally:
            shutil.rmtree(self.staging, ignore_errors=True)
