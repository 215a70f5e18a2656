"""Prints a snapshot of a host as JSON: packages, /etc, units, Docker objects, packet filter.

The tests compare two snapshots to check that teardown.yml removes only what the collection
installed.
"""

import hashlib
import json
import os
import re
import stat
import subprocess

# Rewritten by the system itself: caches, backups of account files, the list of mounts, logs of
# installations.
VOLATILE = {
    "/etc/ld.so.cache",
    "/etc/passwd-",
    "/etc/group-",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/subuid-",
    "/etc/subgid-",
    "/etc/mtab",
    "/var/log/dpkg.log",
    "/var/log/alternatives.log",
}
# Ansible's temporary folder of the ssh user, which Ansible cleans, and root's for long tasks. The
# name server of the lab's network has rules in each host, with ports that change at a restart of
# the host.
NOT_THE_HOST = re.compile(r"^(/home/ops/\.ansible|/root/\.ansible_async)|127\.0\.0\.11")
# Of the login that takes the snapshot, on hosts with pam_systemd.
LOGIN = re.compile(r"session-\w+\.scope|user(-runtime-dir)?@1000\.service")


def output(*command):
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            check=False,
        )
    except FileNotFoundError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def files(*roots):
    found = {}
    for root in roots:
        for folder, folders, names in os.walk(root):
            for name in folders + names:
                path = os.path.join(folder, name)
                state = os.lstat(path)
                what = "%04o %d:%d" % (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid)
                if stat.S_ISLNK(state.st_mode):
                    what = "-> " + os.readlink(path)
                elif stat.S_ISREG(state.st_mode):
                    with open(path, "rb") as opened:
                        what += " " + hashlib.sha256(opened.read()).hexdigest()[:16]
                if path not in VOLATILE and not NOT_THE_HOST.search(path):
                    found[path] = what
    return found


def docker():
    found = {}
    for kind, template in (
        ("image", "{{.Repository}}:{{.Tag}} {{.ID}}"),
        ("volume", "{{.Name}}"),
        ("network", "{{.Name}} {{.Driver}}"),
    ):
        for line in output("docker", kind, "ls", "--format", template):
            found["%s %s" % (kind, line)] = "present"
    for line in output(
        "docker", "container", "ls", "--all", "--format", "{{.Names}} {{.Image}} {{.ID}}|{{.State}}"
    ):
        name, _bar, state = line.partition("|")
        found["container " + name] = state
    return found


def lines(name, found):
    return {"%s %s" % (name, line): "present" for line in found}


print(
    json.dumps(
        {
            "packages": lines(
                "package",
                output(
                    "dpkg-query",
                    "--show",
                    "--showformat",
                    "${Package}:${Architecture} ${Version} ${db:Status-Abbrev}\n",
                ),
            ),
            "marks": lines("manually installed", output("apt-mark", "showmanual")),
            "files": files("/etc", "/root", "/home", "/usr/local", "/opt", "/srv"),
            "state": lines(
                "path",
                [
                    os.path.join(folder, name)
                    for folder in ("/var/lib", "/var/log", "/var/cache", "/data1")
                    for name in os.listdir(folder)
                    if os.path.join(folder, name) not in VOLATILE
                ],
            ),
            "accounts": lines("account", output("getent", "passwd") + output("getent", "group")),
            "units": lines(
                "unit",
                [
                    " ".join(line.split()[:2])
                    for line in output(
                        "systemctl", "list-unit-files", "--no-legend", "--no-pager", "--plain"
                    )
                    if not LOGIN.match(line)
                ],
            ),
            "running": lines(
                "running",
                [
                    line.split()[0]
                    for line in output(
                        "systemctl",
                        "list-units",
                        "--type=service,socket,timer",
                        "--state=active",
                        "--no-legend",
                        "--no-pager",
                        "--plain",
                    )
                    if not LOGIN.match(line)
                ],
            ),
            "docker": docker(),
            # A table whose chains accept everything counts as no table.
            "iptables": lines(
                "rule",
                [
                    re.sub(r"\[\d+:\d+\]", "", line).strip()
                    for line in output("iptables-save") + output("ip6tables-save")
                    if not re.match(r"#|\*|COMMIT$|:[A-Z]+ ACCEPT", line)
                    and not NOT_THE_HOST.search(line)
                ],
            ),
            "network": lines(
                "network",
                [name for name in os.listdir("/sys/class/net") if not name.startswith("veth")]
                + ["forwarding %s" % output("cat", "/proc/sys/net/ipv4/ip_forward")],
            ),
        },
        sort_keys=True,
        indent=1,
    )
)
