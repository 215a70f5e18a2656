"""Jobs without Slurm: what slurmd does around a task, on the host."""

from __future__ import annotations

import shlex

STORAGE = "/var/lib/trainyard/containers"
UIDS = {"alice": 2101, "bob": 2102}


class Job:
    def __init__(self, host, number, person="alice", gpus="0", **variables):
        self.host, self.number, self.person = host, number, person
        self.variables = dict(
            {
                "SLURM_JOB_ID": number,
                "SLURM_JOB_UID": UIDS[person],
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "0",
                # Of prolog and epilog, and of the task.
                "SLURM_JOB_GPUS": gpus,
                "SLURM_STEP_GPUS": gpus,
                "SLURM_MEM_PER_NODE": "256",
            },
            **variables,
        )

    def __enter__(self):
        self.host.run_expect([0], self.as_root("prolog"))
        return self

    def __exit__(self, *_error):
        self.host.run_expect([0], self.as_root("epilog"))

    def words(self):
        return " ".join("%s=%s" % pair for pair in self.variables.items())

    def as_root(self, program):
        return "env %s /usr/local/lib/trainyard/slurm/%s" % (self.words(), program)

    def as_person(self, command, image="site/tools:1", options=""):
        """The line that starts a command in a container, as the person."""
        return (
            "cd / && setpriv --reuid={p} --regid={p} --init-groups env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/{p} USER={p} {v} "
            "trainyard-run {o} {i} -- sh -c {c}".format(
                p=self.person, v=self.words(), o=options, i=image, c=shlex.quote(command)
            )
        )

    def run(self, command, **more):
        return self.host.run(self.as_person(command, **more))

    def begin(self, command):
        """Start a command that runs in the background, and wait for its container."""
        self.host.run_expect(
            [0], "(%s) > /srv/output 2>&1 < /dev/null & sleep 0.1" % self.as_person(command)
        )
        pid = "/run/trainyard/jobs/%s/task.0.0/pid" % self.number
        self.host.run_expect(
            [0],
            "for i in $(seq 150); do test -s %s && exit 0; sleep 0.1; done; cat /srv/output; exit 1"
            % pid,
        )
        return self.host.check_output("cat %s" % pid)


def left(host):
    """What is left of alice's and bob's jobs: processes, files and mounts."""
    return host.check_output(
        "pgrep --list-full --uid alice,bob | cut -c1-150; find /tmp /var/tmp /dev/shm /run/trainyard/jobs /run/user %s/jobs -mindepth 1 "
        "\\( -user alice -o -user bob \\) ; grep fuse-overlay /proc/mounts || true" % STORAGE
    )
