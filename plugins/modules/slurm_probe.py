#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_probe
short_description: Run a small job of a person on each node of Slurm
version_added: "0.4.0"
description:
  - Submits one job per node as a person, all at once, and waits for them. Each job has one GPU if
    the node has any.
  - A job is good if it ran on its node as that person, has exactly its own GPU, and can write to
    the share.
  - A second task of each job, without GPUs, container and with little memory, tries to open GPUs,
    to get more memory, and to read folders of other jobs.
  - All jobs have ended when the task ends. Jobs that did not end in time are cancelled. Those of an
    earlier run that was killed are cancelled, too, and Slurm itself removes them after some
    minutes.
  - Run it once, on the scheduler, for all nodes.
  - The task fails only if Slurm does not answer or refuses the preparation. What the jobs say is in
    RV(probes).
author:
  - trainyard maintainers (@trainyard)
options:
  nodes:
    description: Names of the nodes. One that Slurm does not know, or that starts no jobs, is
      V(not_made).
    type: list
    elements: str
    required: true
  person:
    description: Login name of the person, who needs an account on this host and on the nodes.
    type: str
    required: true
  account:
    description: Account of Slurm that is charged.
    type: str
    required: true
  program:
    description: The job in Python, C(files/probe.py) of role C(verify).
    type: str
    required: true
  image:
    description: Image in which C(trainyard-run) starts the task of the job. If empty, the task has
      no container.
    type: str
    default: ""
  folder:
    description: Folder of the person on the share. A temporary folder is created in it. If empty,
      the share is not used.
    type: str
    default: ""
  job_folders:
    description: Folders on the nodes in which each job has a folder of its own, closed to other
      people.
    type: list
    elements: path
    default: []
    version_added: "0.4.0"
  reservation:
    description:
      - Reservation of the nodes. The person may use it until the task ends. If empty, the jobs wait
        like any other.
      - With a reservation, nodes that are drained with a reason that begins with C(trainyard:) are
        resumed for the probe, and drained again for the same reason. Without one, they are
        V(not_made).
    type: str
    default: ""
  timeout:
    description: Seconds in which the jobs have to end, 10 or more. Slurm's commands before and
      after have 30 s more.
    type: int
    default: 120
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: none
    details: The task is skipped.
  diff_mode:
    support: none
seealso:
  - module: trainyard.gpu.slurm_reservation
requirements:
  - C(sbatch), C(squeue), C(scancel) and C(scontrol), as root
  - C(python3) on the nodes, and in O(image)
"""

EXAMPLES = r"""
- name: Run a job of a person on each node
  trainyard.gpu.slurm_probe:
    nodes: [gpu01, gpu02]
    person: anna
    account: vision
    program: "{{ lookup('ansible.builtin.file', 'probe.py') }}"
    folder: /data1/share/user/anna
    reservation: trainyard-verify
  run_once: true
  register: probe
"""

RETURN = r"""
probes:
  description: What the job of each node says, in the order of O(nodes).
  type: list
  elements: dict
  returned: success
  contains:
    node:
      description: Name of the node.
      type: str
    job:
      description: Number of the job, or null if there is none.
      type: int
    verdict:
      description: V(pass), V(fail), or V(not_made) if the node is not the reason.
      type: str
    found:
      description: What was found.
      type: str
      sample: job 4711 of anna ran
    isolation:
      description:
        - What the task without GPUs says, with C(verdict) and C(found) as above. C(of_limits) is
          V(true) if nothing failed but the limits of memory and GPUs.
      type: dict
seconds:
  description: Seconds until all jobs had said what they had to say.
  type: int
  returned: success
"""

import json
import os
import pwd
import re
import signal
import time
import uuid

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm_probe as probe
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_commands import NoAnswer, Slurm
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import run_tool

PATH = "/usr/local/bin:/usr/bin:/bin"
# Seconds for the end of the jobs: Slurm kills a job 30 s after it has asked it to end, and the
# epilog follows.
END = 90
# Seconds for Slurm's commands, beside the time for the jobs.
COMMANDS = 30
FOLDER = ".trainyard-probe."


class Probes:
    def __init__(self, module):
        self.module, self.slurm = module, Slurm(module)
        self.seconds, self.reservation = module.params["timeout"], module.params["reservation"]
        self.slurm.deadline += COMMANDS
        try:
            entry = pwd.getpwnam(module.params["person"])
        except KeyError:
            module.fail_json(
                msg=(
                    "person: '%s' has no account on this host. Run playbook people, or name a "
                    "person who has one"
                )
                % module.params["person"]
            )
        self.person = {
            "name": entry.pw_name,
            "uid": entry.pw_uid,
            "gid": entry.pw_gid,
            "home": entry.pw_dir,
        }
        self.token = uuid.uuid4().hex
        self.folder = (
            os.path.join(module.params["folder"], FOLDER + self.token)
            if module.params["folder"]
            else ""
        )
        self.resumed, self.jobs, self.refused, self.nodes = {}, {}, {}, {}

    def as_person(self, command, **environment):
        """Run a command as the person, in the environment of a login."""
        values = dict(
            {
                "PATH": PATH,
                "HOME": self.person["home"],
                "USER": self.person["name"],
                "LOGNAME": self.person["name"],
                "LC_ALL": "C",
            },
            **environment,
        )
        values.update(
            {
                name: os.environ[name]
                for name in ("SLURM_CONF", "SLURM_CONF_SERVER")
                if name in os.environ
            }
        )
        words = (
            ["runuser", "--user", self.person["name"], "--", "env", "-i"]
            + ["%s=%s" % pair for pair in sorted(values.items())]
            + command
        )
        return run_tool(self.module, words, max(1, int(self.slurm.deadline - time.monotonic())))

    # --- before -----------------------------------------------------------------------------------------------------------------

    def read_nodes(self):
        return {node["name"]: node for node in self.slurm.read(_slurm.NODES, _slurm.parse_nodes)}

    def requests(self):
        """Return the request of each node."""
        contained = bool(self.module.params["image"]) or probe.constrains_devices(
            self.slurm.run(_slurm.CONFIG)
        )
        nodes = self.read_nodes()
        partitions = self.slurm.read(_slurm.PARTITIONS, _slurm.parse_partitions)
        found = []
        for name in self.module.params["nodes"]:
            node = nodes.get(name)
            if node is None:
                found.append({"node": name, "problem": "the scheduler has no node of this name"})
                continue
            request = probe.request(node, partitions, self.module.params["account"], contained)
            # In a reservation only the probe can start there.
            drained = (
                self.reservation and "drain" in node["states"] and _slurm.is_ours(node["reason"])
            )
            problem = probe.unavailable(
                dict(node, states=[state for state in node["states"] if state != "drain"])
                if drained
                else node
            )
            if drained and not problem and not request["problem"]:
                self.resumed[name] = node["reason"]
            found.append(dict(request, problem=request["problem"] or problem))
        return found

    def prepare(self):
        self.slurm.run(["scancel", "--name=" + probe.NAME, "--user=" + self.person["name"]])
        if self.reservation:
            try:
                self.slurm.run(
                    [
                        "scontrol",
                        "update",
                        "reservationname=" + self.reservation,
                        "users+=" + self.person["name"],
                    ]
                )
            except NoAnswer as error:
                if "Invalid account" not in str(error):
                    raise
                self.module.fail_json(
                    msg=(
                        "person: '%s' is in no account of Slurm. Run playbook people, or name a "
                        "person who is in one"
                    )
                    % self.person["name"]
                )
        if self.resumed:
            self.slurm.run(
                ["scontrol", "update", "nodename=" + ",".join(self.resumed), "state=resume"]
            )
        if self.folder:
            script = 'rm -rf -- "$1"*; umask 077; mkdir -- "$2" && printf %s "$3" > "$2/token"'
            run = self.as_person(
                [
                    "sh",
                    "-c",
                    script,
                    "sh",
                    os.path.join(self.module.params["folder"], FOLDER),
                    self.folder,
                    self.token,
                ]
            )
            if run.rc != 0:
                self.module.fail_json(
                    msg=(
                        "%s cannot create a folder in '%s' on this host: %s. Check shared-storage "
                        "and the owner of the folder"
                    )
                    % (
                        self.person["name"],
                        self.module.params["folder"],
                        (run.stderr or run.evidence).strip(),
                    )
                )

    def submit(self, requests):
        program = self.module.params["program"]
        for request in requests:
            if request["problem"]:
                continue
            words = {
                "all_devices": probe.ALL_DEVICES,
                "job_folders": self.module.params["job_folders"],
                "folder": self.folder,
                "token": self.token,
                "node": request["node"],
                "image": self.module.params["image"],
                "seconds": self.seconds,
            }
            command = probe.submission(
                request, self.module.params["account"], self.reservation, self.seconds
            )
            run = self.as_person(
                command, TRAINYARD_PROBE=json.dumps(words), TRAINYARD_PROBE_PROGRAM=program
            )
            number = re.search(r"^([0-9]+)(;|$)", run.stdout, re.MULTILINE)
            if run.rc == 0 and number:
                self.jobs[request["node"]] = int(number.group(1))
            else:
                self.refused[request["node"]] = (
                    run.stderr or run.evidence or run.stdout or "no message"
                )

    # --- the wait ---------------------------------------------------------------------------------------------------------------

    def read(self):
        """Return our jobs by their number, with those that have ended."""
        mark = "|%s|" % uuid.uuid4().hex
        command = _slurm.jobs_command(mark) + [
            "--states=all",
            "--name=" + probe.NAME,
            "--user=" + self.person["name"],
        ]
        return {
            job["id"]: job
            for job in self.slurm.read(command, lambda text: _slurm.parse_jobs(text, mark))
        }

    def wait(self):
        """Wait until all jobs have a result or have ended.

        Returns the last state that was seen of each.
        """
        seen, begun, pause = {}, time.monotonic(), 0.5
        self.slurm.deadline = begun + self.seconds + COMMANDS
        while True:
            seen.update(self.read())
            waiting = [
                number
                for number in self.jobs.values()
                if number not in seen or not probe.has_ended(seen[number])
            ]
            if not waiting or time.monotonic() - begun >= self.seconds:
                return seen, int(time.monotonic() - begun)
            time.sleep(pause)
            pause = min(2.0, pause * 1.3)

    # --- after ------------------------------------------------------------------------------------------------------------------

    def clean(self):
        """End all jobs, and undo the preparation.

        Returns the nodes whose job does not end. Each step is tried, whatever failed before.
        """
        self.slurm.deadline = time.monotonic() + END + COMMANDS
        left, problems = {}, []

        def attempt(function, *arguments):
            try:
                return function(*arguments)
            except NoAnswer as error:
                problems.append(error)
                return None

        attempt(
            self.slurm.run, ["scancel", "--name=" + probe.NAME, "--user=" + self.person["name"]]
        )
        deadline = time.monotonic() + END
        while True:
            states = {
                number: job["state"]
                for number, job in (attempt(self.read) or {}).items()
                if probe.is_active(job["state"])
            }
            left = {node: states[number] for node, number in self.jobs.items() if number in states}
            if not states or problems or time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        # slurmd ends the job before it tells slurmctld to drain the node, so they are read as late
        # as possible.
        self.nodes = attempt(self.read_nodes) or {}
        # Each node with its own reason.
        for node, reason in self.resumed.items():
            attempt(
                self.slurm.run,
                ["scontrol", "update", "nodename=" + node, "state=drain", "reason=" + reason],
            )
        if self.reservation:
            attempt(
                self.slurm.run,
                [
                    "scontrol",
                    "update",
                    "reservationname=" + self.reservation,
                    "users-=" + self.person["name"],
                ],
            )
        if self.folder:
            self.as_person(["rm", "-rf", "--", self.folder])
        if problems:
            raise problems[0]
        return left

    def run(self):
        try:
            requests = self.requests()
            try:
                self.prepare()
                self.submit(requests)
                seen, seconds = self.wait()
            finally:
                left = self.clean()
        except NoAnswer as error:
            self.module.fail_json(msg=str(error), cause=error.cause)
        probes = []
        for request in requests:
            node = request["node"]
            found = probe.outcome(
                request,
                seen.get(self.jobs.get(node)),
                self.refused.get(node, ""),
                self.person,
                self.seconds,
                self.nodes.get(node),
            )
            found["isolation"] = probe.isolation(
                request, seen.get(self.jobs.get(node)), found["found"]
            )
            if node in left:
                found.update(
                    verdict="fail",
                    found="%s; the job does not end (%s)" % (found["found"], left[node]),
                )
            probes.append(found)
        self.module.exit_json(changed=False, probes=probes, seconds=seconds)


def stop(number, dummy):
    # An exception, so that the jobs are cancelled.
    raise SystemExit("signal %d" % number)


def main():
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str", "required": True},
            "person": {"type": "str", "required": True},
            "account": {"type": "str", "required": True},
            "program": {"type": "str", "required": True},
            "image": {"type": "str", "default": ""},
            "folder": {"type": "str", "default": ""},
            "job_folders": {"type": "list", "elements": "path", "default": []},
            "reservation": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 120},
        },
    )
    for what, words in (
        ("nodes", module.params["nodes"]),
        ("person", [module.params["person"]]),
        ("account", [module.params["account"]]),
        ("reservation", [module.params["reservation"]]),
    ):
        for word in words:
            # Brackets and commas would address other nodes too. A first dash would be an option.
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", word) and (
                what != "reservation" or word
            ):
                module.fail_json(
                    msg="%s: '%s' is not valid; use letters, digits, '-', '.' and '_'"
                    % (what, word)
                )
    if module.params["folder"] and not module.params["folder"].startswith("/"):
        module.fail_json(
            msg="folder: '%s' is not an absolute path; give one that begins with /"
            % module.params["folder"]
        )
    if module.params["timeout"] < 10:
        module.fail_json(msg="timeout: %d is too low; use 10 or more" % module.params["timeout"])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    Probes(module).run()


if __name__ == "__main__":
    main()
