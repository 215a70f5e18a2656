# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions of the server of an instance beside JupyterLab: the folders that TensorBoard may show, and the page of the instance. Data in, data out."""

from __future__ import annotations

import html
import os
import re

STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:60em}pre{background:#f4f4f4;padding:1em;overflow:auto}input{width:30em;padding:.3em}"
    "button{padding:.3em 1em}input[type=checkbox]{width:auto}.problem{color:#a00}"
)
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
    """Return the state of a save that has ended, from the exit code and the output of trainyard-run."""
    text = re.sub(r"^trainyard-run: ", "", last_line(printed))
    return {"state": "failed" if code else "saved", "name": name, "text": text}


def save_parts(found, base, xsrf, is_private):
    """Return the part of the page with the save. C(found) is its state."""
    readers = "The people of your groups" if is_private else "Everybody on the cluster"
    parts = [
        "<h2>Save as image</h2><p>The image has what you have installed in the container, such as packages of pip and apt. It does not have your home, "
        "the share and /tmp. You can choose it when you start an instance, and use it in jobs. %s can read it.</p>"
        % readers
    ]
    if found["state"] == "running":
        parts.append(
            '<p id="save">Saving %s. It can take some minutes.</p>' % html.escape(found["name"])
        )
    elif found["state"]:
        parts.append(
            '<p id="save"%s>%s</p>'
            % (' class="problem"' * (found["state"] == "failed"), html.escape(found["text"]))
        )
    parts.append(
        '<form method="post" action="%strainyard/save">%s<label for="name">Name</label> <input id="name" name="name" value="%s" maxlength="64" '
        'placeholder="my-tools" required> <button type="submit"%s>Save</button><br><label><input type="checkbox" name="stop" value="1"> '
        "Stop the instance after a good save</label></form>"
        % (
            html.escape(base),
            xsrf,
            html.escape(found["name"]),
            " disabled" * (found["state"] == "running"),
        )
    )
    return parts


def root_parts(base, xsrf):
    return [
        "<h2>Root</h2><p>In a terminal as root you can install packages with apt-get. Files that it writes to your home or the share are yours.</p>"
        '<form method="post" action="%strainyard/root">%s<button type="submit">Open a terminal as root</button></form>'
        % (html.escape(base), xsrf)
    ]


# --- the page ---------------------------------------------------------------------------------------------------------------


def editor_lines(ssh, person):
    """Return the lines of ~/.ssh/config for an editor. C(ssh) is the command of the instance, which has the same ProxyCommand for one job."""
    proxy = re.search(r"ProxyCommand=(ssh \S+ trainyard attach --stdio) \d+", ssh)
    return (
        "Host job-*\n  User %s\n  HostKeyAlias jobs-of-%s\n  ProxyCommand %s %%n\n"
        % (person, person, proxy.group(1))
        if proxy
        else ""
    )


def page(instance, person, base, xsrf, shown="", problem="", found=None, note=""):
    """Return the page of an instance.

    :param instance: C(name), C(job), C(ssh), the command of the person's own computer, and C(private_images): whether only the person's groups read them.
    :param shown: the folder that TensorBoard shows, or an empty text.
    :param found: the state of the last save.
    :param note: what was done.
    """
    found = found or NOTHING_SAVED
    parts = [
        "<h1>%s</h1>" % html.escape(instance["name"]),
        '<p><a href="%slab">JupyterLab</a></p>' % html.escape(base),
    ]
    parts += ['<p class="problem">%s</p>' % html.escape(problem)] if problem else []
    parts += ['<p id="note">%s</p>' % html.escape(note)] if note else []
    parts.append("<h2>TensorBoard</h2>")
    parts += (
        [
            '<p>It shows <code>%s</code>: <a href="%stensorboard/">open it</a>.</p>'
            % (html.escape(shown), html.escape(base))
        ]
        if shown
        else []
    )
    parts.append(
        '<form method="post" action="%strainyard/tensorboard">%s<label for="folder">Folder with logs</label> '
        '<input id="folder" name="folder" value="%s" placeholder="~/logs"> <button type="submit">Show</button></form>'
        % (html.escape(base), xsrf, html.escape(shown))
    )
    if instance.get("ssh"):
        parts.append(
            '<h2>ssh</h2><p>Type this on your own computer:</p><pre id="ssh">%s</pre><p>For VS Code Remote and other editors, add these lines to '
            "<code>~/.ssh/config</code>, and connect to <code>job-%s</code>:</p><pre>%s</pre>"
            % (
                html.escape(instance["ssh"]),
                html.escape(instance["job"]),
                html.escape(editor_lines(instance["ssh"], person)),
            )
        )
    parts += save_parts(found, base, xsrf, instance.get("private_images", False))
    parts += root_parts(base, xsrf)
    # The address is that of the page, and not the one of a form.
    reload = (
        '<meta http-equiv="refresh" content="%d;url=%strainyard/">'
        % (RELOAD_SECONDS, html.escape(base))
        if found["state"] == "running"
        else ""
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">%s<title>%s</title><style>%s</style></head><body>%s</body></html>'
        % (reload, html.escape(instance["name"]), STYLE, "".join(parts))
    )
