# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets ssh into the container of a running job. `trainyard attach --stdio` starts it on the host of
a worker, by srun within the job.

    door serve FOLDER RANK         an sshd for one connection, on standard input and output; FOLDER has its host key and the keys of the person
    door session RANK              what it runs for each session: the shell, command or sftp of the person, in the container

There is no port. The sshd is the host's, so the image needs none. It runs as the person and in the
job: it can do what the job can, and it ends with it.
"""

import os
import re
import subprocess
import sys

sys.path.insert(0, "/usr/local/lib/trainyard/shared")
from _messages import Refused

#: Files that exist for a job only, made by the prolog, removed by the epilog.
RUNTIME = "/run/trainyard/jobs"
TRAINYARD_RUN = "/usr/local/bin/trainyard-run"
SHELL = ["sh", "-c", "if command -v bash > /dev/null; then exec bash -l; fi; exec sh -l"]
#: Where distributions have the two programs.
SSHD = ("/usr/sbin/sshd", "/sbin/sshd")
SFTP = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
)
NOT_STARTED = 125


# --- pure functions ---


def sshd_config(folder, program, job, rank, sftp):
    """Return the configuration of sshd.

    Forwarding reaches what the job reaches: its ports, and the sockets of its services.
    """
    lines = [
        'HostKey "%s/host_key"' % folder,
        'AuthorizedKeysFile "%s/authorized_keys"' % folder,
        "AuthenticationMethods publickey",
        "UsePAM no",
        # Its folder is the person's own, with mode 0700. The share above it may be writable for a
        # group.
        "StrictModes no",
        "PidFile none",
        "PermitRootLogin no",
        "PermitUserEnvironment no",
        "AllowTcpForwarding local",
        "AllowStreamLocalForwarding local",
        "GatewayPorts no",
        "AllowAgentForwarding no",
        "X11Forwarding no",
        "PermitTunnel no",
        "PrintMotd no",
        "PrintLastLog no",
        "LogLevel ERROR",
        "ClientAliveInterval 30",
        "SetEnv SLURM_JOB_ID=%s" % job,
        "ForceCommand %s session %s" % (program, rank),
    ]
    return "\n".join(lines + (["Subsystem sftp " + sftp] if sftp else [])) + "\n"


def session_command(requested, rank, inside):
    """Return what a session runs.

    C(requested) is the command of the client, or None for a shell, C(inside) whether the container has
    an sftp server.
    """
    enter = [TRAINYARD_RUN, "--enter=" + rank, "--"]
    if requested is None:
        return enter + SHELL
    if requested in SFTP:
        # Without one in the image, that of the host. It shows the share and the home, but not the
        # other files of the container.
        return enter + [inside] if inside else [requested]
    return enter + [
        "sh",
        "-c",
        'if command -v bash > /dev/null; then exec bash -c "$1"; fi; exec sh -c "$1"',
        "sh",
        requested,
    ]


# --- the host ---


def found(paths):
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def serve(folder, rank):
    job = os.environ.get("SLURM_JOB_ID") or ""
    sshd = found(SSHD)
    if not re.match(r"\d+$", job):
        raise Refused("this is not within a job of Slurm; use: trainyard attach --stdio ID")
    if not sshd:
        raise Refused(
            "host %s has no sshd; tell the operator to install openssh-server" % os.uname().nodename
        )
    if re.search(r'["\n]', folder):
        raise Refused("%r cannot be used in the configuration of sshd" % folder)
    config = "%s/%s/sshd_config.%s" % (RUNTIME, job, rank)
    text = sshd_config(folder, os.path.abspath(__file__), job, rank, found(SFTP))
    with open(
        os.open(
            config + ".%d" % os.getpid(),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW,
            0o600,
        ),
        "w",
        encoding="utf-8",
    ) as stream:
        stream.write(text)
    os.rename(config + ".%d" % os.getpid(), config)
    os.execv(sshd, [sshd, "-i", "-e", "-f", config])


def session(rank):
    requested = os.environ.get("SSH_ORIGINAL_COMMAND")
    inside = ""
    if requested in SFTP:
        look = [
            TRAINYARD_RUN,
            "--enter=" + rank,
            "--",
            "sh",
            "-c",
            "for path in %s; do test ! -x $path || { echo $path; break; }; done" % " ".join(SFTP),
        ]
        inside = (
            subprocess.run(look, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
            .stdout.decode("utf-8", "replace")
            .strip()
        )
    command = session_command(requested, rank, inside)
    os.execv(command[0], command)


def main(arguments):
    if len(arguments) == 3 and arguments[0] == "serve" and arguments[2].isdigit():
        return serve(arguments[1], arguments[2])
    if len(arguments) == 2 and arguments[0] == "session" and arguments[1].isdigit():
        return session(arguments[1])
    sys.stderr.write(__doc__)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (Refused, OSError) as problem:
        print("trainyard: %s" % problem, file=sys.stderr)
        sys.exit(NOT_STARTED)
