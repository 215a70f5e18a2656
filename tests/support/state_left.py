"""What teardown leaves: the state of each host, as molecule/cluster/snapshot.py reads it, is
compared with the one before the first run.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

SNAPSHOT = Path(__file__).resolve().parents[2] / "molecule/cluster/snapshot.py"


def in_container(host, script):
    """The output of a program on a host that is a container."""
    with open(script, encoding="utf-8") as text:
        return subprocess.run(
            ["docker", "exec", "--interactive", host, "python3", "-"],
            stdin=text,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout


def differences(before, after):
    """What differs in two states, with both values. C(after) may have more sections."""
    found = {}
    for section in before:
        for name in sorted(set(before[section]) | set(after[section])):
            was, now = before[section].get(name), after[section].get(name)
            if was != now:
                found["%s: %s" % (section, name)] = "was %s, is %s" % (was, now)
    return found


def state_left(hosts, folder, run=in_container):
    """What differs on the hosts from the states in the folder.

    C(run) runs a program on a host and returns its output.
    """
    found = {}
    for host in hosts:
        before = json.loads((folder / ("before-%s.json" % host)).read_text(encoding="utf-8"))
        for what, told in differences(before, json.loads(run(host, SNAPSHOT))).items():
            found["%s: %s" % (host, what)] = told
    return found
