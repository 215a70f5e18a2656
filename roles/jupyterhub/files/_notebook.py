# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions of the server of an instance beside JupyterLab: the folders that TensorBoard may show,
and the page of the instance. Data in, data out.
"""

from __future__ import annotations

import os
import re

import jinja2
from markupsafe import Markup

#: Seconds after which the page of a running save loads again.
RELOAD_SECONDS = 3
NOTHING_SAVED = {"state": "", "name": "", "text": ""}


# --- TensorBoard ------------------------------------------------------------------------------------------------------------


def folder_of(text, home):
    """Return the path that a person has typed. A path without / at its beginning is in the home."""
    text = text.strip()
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return os.path.normpath(os.path.join(home, text))


def is_within(path, folders):
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def folder_problem(path, found, uid, folders):
    """Return why TensorBoard does not show a folder, or an empty text.

    :param path: without links.
    :param found: C(error), the text of an error or None; C(is_folder), C(readable), C(uid) and C(owner) of the folder.
    :param folders: those that the container has, too.
    """
    if re.search(r"[\x00-\x1f\x7f]", path):
        return "the name of a folder has no line breaks"
    if not is_within(path, folders):
        return "%s is not in %s, which the container has" % (path, " or ".join(folders))
    if found.get("error"):
        return "%s cannot be opened: %s" % (path, found["error"])
    if not found["is_folder"]:
        return "%s is not a folder" % path
    # Folders of a group belong to root. The file system decides whether the person may read them.
    if found["uid"] not in (uid, 0):
        return "%s belongs to %s; TensorBoard shows folders of yours and of your groups" % (
            path,
            found["owner"],
        )
    return "" if found["readable"] else "you may not read %s" % path


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


# --- saved images -----------------------------------------------------------------------------------------------------------


def saved(name, code, printed):
    """Return the state of a save that has ended, from the exit code and the output of
    trainyard-run.
    """
    text = re.sub(r"^trainyard-run: ", "", last_line(printed))
    return {"state": "failed" if code else "saved", "name": name, "text": text}


# --- the page ---------------------------------------------------------------------------------------------------------------


def editor_lines(ssh, person):
    """Return the lines of ~/.ssh/config for an editor.

    C(ssh) is the command of the instance, which has the same ProxyCommand for one job.
    """
    proxy = re.search(r"ProxyCommand=(ssh \S+ trainyard attach --stdio) \d+", ssh)
    return (
        "Host job-*\n  User %s\n  HostKeyAlias jobs-of-%s\n  ProxyCommand %s %%n\n"
        % (person, person, proxy.group(1))
        if proxy
        else ""
    )


#: The template beside this file. Every text in it is quoted.
TEMPLATE = jinja2.Environment(
    autoescape=True,
    loader=jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__))),
    trim_blocks=True,
    lstrip_blocks=True,
).get_template("page_instance.html")


def page(instance: dict, base: str, xsrf: str, **values: object) -> str:
    """Return the page of an instance.

    :param instance: C(name), C(job), C(person), C(ssh), the command of the person's own computer, and C(private_images): whether only the person's groups read
        them.
    :param base: begin of the addresses of the instance.
    :param xsrf: the field of forms that Jupyter makes, as HTML.
    :param values: C(shown), the folder that TensorBoard shows, C(folder), one to show, C(problem), C(note), what was done, and C(found), the state of the last
        save.
    """
    private = instance.get("private_images", False)
    return TEMPLATE.render(
        instance=instance,
        base=base,
        xsrf=Markup(xsrf),
        editor=editor_lines(instance.get("ssh") or "", instance.get("person") or ""),
        readers="The people of your groups" if private else "Everybody on the cluster",
        reload_seconds=RELOAD_SECONDS,
        **dict(values, found=values.get("found") or NOTHING_SAVED),
    )
