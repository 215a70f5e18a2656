"""The registry of this scenario, and people who push to it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from types import SimpleNamespace

import pytest
import testinfra
from left_to_acceptance import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]

ROOT = os.environ.get("MOLECULE_PROJECT_DIRECTORY") or os.getcwd()


class Site:
    relay, other = hosts = ("image-relay-a", "image-relay-b")
    registry, outside, plain = "172.30.106.21:5000", "172.30.106.22:5443", "172.30.106.22:5080"

    def on(self, host, command, check=True):
        """A shell command on a host as root."""
        done = testinfra.get_host(
            "ansible://" + host, ansible_inventory=os.environ["MOLECULE_INVENTORY_FILE"], sudo=True
        ).run(command)
        assert not check or done.rc == 0, "%s: %s: exit code %d\n%s%s" % (
            host,
            command,
            done.rc,
            done.stdout,
            done.stderr,
        )
        return SimpleNamespace(code=done.rc, out=done.stdout, text=done.stdout + done.stderr)

    def as_person(self, person, command, host=None, check=True):
        return self.on(
            host or self.relay,
            "cd /home/%s && su %s -c %s" % (person, person, shlex.quote(command)),
            check,
        )

    def skopeo(self, person, *words, host=None, check=True):
        """skopeo with the login of a person, who only has the own file."""
        auth = "--authfile=/etc/trainyard/registry/people/%s.json" % person
        return self.as_person(
            person,
            shlex.join(["skopeo", words[0], *([auth] if person != "nobody" else []), *words[1:]]),
            host,
            check,
        )

    def login_shell(self, person, command, host):
        """A command in a login shell, as ssh starts one, with the folder of the session."""
        return self.on(
            host,
            "su - %s -c %s"
            % (
                person,
                shlex.quote(
                    "XDG_RUNTIME_DIR=/run/user/$(id -u) bash -lc %s" % shlex.quote(command)
                ),
            ),
        )

    def push(self, person, name, check=True, host=None):
        return self.skopeo(
            person,
            "copy",
            "--quiet",
            "--insecure-policy",
            "docker-archive:/srv/small.tar",
            "docker://%s/%s" % (self.registry, name),
            check=check,
            host=host,
        )

    def digest(self, name, person="alice"):
        return self.on(
            self.relay,
            "skopeo inspect --raw --authfile=/etc/trainyard/registry/people/%s.json docker://%s/%s | sha256sum"
            % (person, self.registry, name),
        ).out.split()[0]

    def http(self, method, path, login=None, host=None, content=("", "")):
        """The status of a request that is sent as it stands.

        The login is a person or name:password. The content is the kind of a Content-Type, and the
        body.
        """
        kind, body = content
        if login and ":" not in login:
            login = (
                '$(python3 -c \'import base64, json; found = json.load(open("/etc/trainyard/registry/people/%s.json"))["auths"]; '
                'print(base64.b64decode(list(found.values())[0]["auth"]).decode())\')' % login
            )
        program = (
            "import base64, http.client, ssl, sys\n"
            "connection = http.client.HTTPSConnection('172.30.106.21', 5000, context=ssl.create_default_context(cafile='/etc/containers/certs.d/%s/ca.crt'))\n"
            "headers = {'Authorization': 'Basic ' + base64.b64encode(sys.argv[3].encode()).decode()} if sys.argv[3] else {}\n"
            "connection.putrequest(sys.argv[1], sys.argv[2], skip_host=False)\n"
            "[connection.putheader(*pair) for pair in headers.items()]\n"
            "body = %r\n"
            "connection.putheader('Content-Length', str(len(body)))\n"
            "[connection.putheader('Content-Type', kind) for kind in [%r] if kind]\n"
            "connection.endheaders(body)\n"
            "print(connection.getresponse().status)\n" % (self.registry, body.encode(), kind)
        )
        return int(
            self.on(
                host or self.relay,
                'python3 -c %s %s %s "%s"'
                % (shlex.quote(program), method, shlex.quote(path), login or ""),
            ).out
        )

    def secrets(self):
        """Write all passwords, and what logins are made of, to a file for grep, and return its
        path. No command line has one: sudo would log it.
        """
        program = (
            "import base64, json, os\n"
            "logins = json.load(open('/etc/trainyard/registry/tokens.json'))\n"
            "logins['puller'] = '-'.join(['word', 'of', 'outside'])\n"
            "found = list(logins.values()) + [base64.b64encode(('%s:%s' % pair).encode()).decode() for pair in logins.items()]\n"
            "open(os.open('/data1/share/secrets', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'w').write('\\n'.join(found) + '\\n')\n"
            "print(len(found))\n"
        )
        # All hosts mount the folder.
        assert int(self.on(self.relay, "python3 -c %s" % shlex.quote(program)).out) == 8
        return "/data1/share/secrets"

    def catalogue(self):
        return {
            entry["name"].rpartition("/site/")[2]: entry
            for entry in json.loads(self.on(self.relay, "cat /etc/trainyard/images.json").out)[
                "images"
            ]
        }

    def role(self, tasks="main", check=False, **variables):
        """The role once more on all hosts, with other values of variables."""
        playbook = os.path.join(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"], "again.yml")
        include = {
            "name": "Apply the role",
            "ansible.builtin.include_role": {
                "name": "trainyard.gpu.image_relay",
                "tasks_from": tasks,
            },
        }
        with open(playbook, "w", encoding="utf-8") as stream:
            json.dump(
                [
                    {
                        "name": "Again",
                        "hosts": "cluster",
                        "gather_facts": False,
                        "become": True,
                        "any_errors_fatal": True,
                        "tasks": [include],
                    }
                ],
                stream,
            )
        command = [
            "ansible-playbook",
            "--inventory",
            os.environ["MOLECULE_INVENTORY_FILE"],
            playbook,
            "--extra-vars",
            json.dumps(variables),
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=dict(os.environ, ANSIBLE_NOCOLOR="1", ANSIBLE_FORCE_COLOR="0"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            check=False,
        )
        print(done.stdout)
        assert not check or done.returncode == 0, done.stdout[-6000:]
        recap = done.stdout.rpartition("PLAY RECAP")[2]
        return SimpleNamespace(
            code=done.returncode,
            text=" ".join(done.stdout.split()),
            changed=[int(count) for count in re.findall(r"changed=(\d+)", recap)],
        )


@pytest.fixture(scope="session")
def site():
    found = Site()
    for host in found.hosts:
        found.on(host, "install -m 0644 /data1/share/small.tar /srv/small.tar")
    return found
