# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the helper of the hub as a person, and kills it when its time is over: as_person PERSON

The hub runs it by sudo as root. sudo lists the people that it may name. A person can stop the
helper (SIGSTOP), but not this process. sudo itself would not do: it stops together with the command
that it runs, and its command_timeout does not count then.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys

HELPER = "/usr/local/lib/trainyard/hub/instance"
#: Seconds: more than the helper's own limit, less than that of the hub.
SECONDS = 140


def become(account: pwd.struct_passwd) -> None:
    """Give up the rights of root for those of an account."""
    os.setsid()
    os.initgroups(account.pw_name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def environment_of(account: pwd.struct_passwd) -> dict[str, str]:
    """Return the environment of a helper: what sudo has kept, with the names of the person."""
    kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    return dict(
        kept,
        HOME=account.pw_dir,
        USER=account.pw_name,
        LOGNAME=account.pw_name,
        SHELL=account.pw_shell or "/bin/sh",
    )


def start(command: list[str], account: pwd.struct_passwd) -> int:
    """Start a command as an account. Return its process."""
    child = os.fork()
    if child:
        return child
    try:
        become(account)
        os.execve(command[0], command, environment_of(account))
    except BaseException as error:
        os.write(2, ("as_person: %s: %s\n" % (command[0], error)).encode())
    finally:
        # Nothing of this program goes on in the child.
        os._exit(1)


def wait(child: int, seconds: int) -> int:
    """Wait for a process, and kill it after some seconds, also if it is stopped.

    Return its exit code, 128 and the signal if one has ended it.
    """
    signal.signal(signal.SIGALRM, lambda _number, _frame: os.kill(child, signal.SIGKILL))
    signal.alarm(seconds)
    # It stays a zombie until the timer is off, so no other process can get its number.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    signal.alarm(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def main(arguments: list[str]) -> int:
    """Run the helper as the person that the arguments name."""
    (person,) = arguments
    account = pwd.getpwnam(person)
    if account.pw_uid == 0:
        sys.exit("as_person: %s is root" % person)
    return wait(start([HELPER], account), SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
