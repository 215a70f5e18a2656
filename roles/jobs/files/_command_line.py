# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of trainyard: its subcommands and options, and how it ends.

Exit codes are those of the command.
"""

from __future__ import annotations


import argparse
import errno
import json
import os
import re
import sys
import textwrap
from typing import NoReturn

import _job_file
import _job_limits
from _commands import (
    attach,
    explain,
    images,
    list_jobs,
    login,
    logs,
    month_usage,
    nodes,
    quota,
    show,
    stop,
    tensorboard,
    why,
)
from _messages import Refused
from _output import GOOD, NO_ANSWER, REFUSED, printable
from _overview import complete, overview
from _slurm_client import NoAnswer, sentence
from _submit import clone, submit

EPILOG = """examples:
  trainyard submit job.yml                 submit the job of a file
  trainyard submit - < job.params          the same from standard input
  trainyard                                your jobs, free GPUs and quota at a glance
  trainyard list --state failed            your failed jobs of the last day
  trainyard logs -f 12                     follow the log of job 12
  trainyard why 12                         why job 12 waits, or why it failed
  trainyard explain train.log              what the messages in a log mean
"""
#: Errors of an output that is full or closed.
OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
FILE = [
    ("file", {"metavar": "FILE", "help": "job file, key=value lines or YAML; - is standard input"})
]
ID = [("id", {"metavar": "ID", "help": "number of a job"})]
IDS = [("id", {"metavar": "ID", "nargs": "+", "help": "number of a job, one or several"})]
CHANGES = [
    (
        "--set",
        {
            "metavar": "KEY=VALUE",
            "action": "append",
            "default": [],
            "help": "change a value of the file, can be repeated",
        },
    ),
    (
        "--dry-run",
        {"action": "store_true", "help": "print the script for sbatch, and submit nothing"},
    ),
]
RANK = [
    (
        "--rank",
        {"metavar": "N", "type": int, "default": None, "help": "worker N instead of the whole job"},
    )
]


def key_lines():
    """Return the keys of a job file for the help of `submit`."""
    lines = ["", "", "keys of a job file:"]
    for key in _job_file.TABLE:
        default = ""
        if key.default is None:
            default = " Required."
        elif key.default:
            default = " Default: %s." % key.default
        text = "%s. %s.%s" % (key.doc.replace("`", ""), sentence(key.accepts.allowed), default)
        lines.append(
            textwrap.fill(
                text, 100, initial_indent="  %-22s" % key.name, subsequent_indent=" " * 24
            )
        )
    return "\n".join(lines)


#: Name: function, what it does, an example, its arguments.
SUBCOMMANDS = {
    "submit": (
        submit,
        "submit the job of a file",
        "trainyard submit job.yml --set worker_gpu=2",
        FILE + CHANGES,
    ),
    "list": (
        list_jobs,
        "list your jobs of the last day",
        "trainyard list --state failed --since 7d --name bert",
        [
            ("--all", {"action": "store_true", "help": "jobs of the last year"}),
            (
                "--state",
                {
                    "metavar": "STATE",
                    "help": (
                        "only jobs in this state, such as running or failed; several with commas"
                    ),
                },
            ),
            (
                "--since",
                {
                    "metavar": "TIME",
                    "help": (
                        "jobs of the last 30m, 12h, 7d or 2w, or since a date such as 2026-01-31"
                    ),
                },
            ),
            (
                "--name",
                {
                    "metavar": "TEXT",
                    "help": "only jobs with this text in their name; * and ? match",
                },
            ),
            (
                "--watch",
                {
                    "metavar": "SECONDS",
                    "type": int,
                    "nargs": "?",
                    "const": 5,
                    "help": "show the list again and again, each 5 seconds if none are given",
                },
            ),
        ],
    ),
    "show": (show, "show jobs: state, hosts, times, result", "trainyard show 12", IDS),
    "logs": (
        logs,
        "print the log of a job",
        "trainyard logs -f 12 --rank 1",
        ID
        + [
            (
                "--follow",
                "-f",
                {
                    "action": "store_true",
                    "help": "go on until the job has ended; the exit code is 1 if it failed",
                },
            ),
            (
                "--tail",
                {
                    "metavar": "LINES",
                    "type": int,
                    "default": None,
                    "help": "only the last lines; with --follow, go on from there",
                },
            ),
        ]
        + RANK,
    ),
    "stop": (stop, "stop jobs", "trainyard stop 12 13", IDS),
    "clone": (
        clone,
        "submit a job once more",
        "trainyard clone 12 --set max_minutes=60",
        ID + CHANGES,
    ),
    "attach": (
        attach,
        "enter the container of a running job",
        "trainyard attach 12 --rank 1 -- nvidia-smi",
        ID
        + [
            (
                "--rank",
                {"metavar": "N", "type": int, "default": 0, "help": "worker N (default: 0)"},
            ),
            (
                "--root",
                {
                    "action": "store_true",
                    "help": (
                        "as root of the container, which only instances of the hub have; for "
                        "apt-get"
                    ),
                },
            ),
            (
                "--stdio",
                {
                    "action": "store_true",
                    "help": (
                        "speak the protocol of ssh, for ProxyCommand; `trainyard show` has the "
                        "whole command"
                    ),
                },
            ),
        ],
    ),
    "tensorboard": (
        tensorboard,
        "start TensorBoard on a folder, as a job",
        "trainyard tensorboard ~/logs",
        [
            (
                "folder",
                {"metavar": "DIR", "help": "folder with the logs of TensorBoard, on the share"},
            )
        ]
        + CHANGES,
    ),
    "why": (why, "say why jobs wait or failed", "trainyard why 12", IDS),
    "explain": (
        explain,
        "say what the messages in a log mean",
        "trainyard explain train.log",
        [
            (
                "file",
                {
                    "metavar": "FILE",
                    "nargs": "?",
                    "default": "-",
                    "help": "log of any job; - is standard input (default)",
                },
            )
        ],
    ),
    "quota": (quota, "list your accounts, their limits, and what they use", "trainyard quota", []),
    "usage": (
        month_usage,
        "list the GPU hours of a month, and their use",
        "trainyard usage --month 2026-11",
        [
            (
                "--month",
                {
                    "metavar": "YYYY-MM",
                    "default": "",
                    "help": "another month than the present one, in UTC",
                },
            ),
            (
                "--account",
                {
                    "metavar": "NAME",
                    "default": "",
                    "help": "jobs of one account; operators see all people",
                },
            ),
            ("--csv", {"action": "store_true", "help": "print CSV"}),
        ],
    ),
    "nodes": (
        nodes,
        "list hosts: what is free, why one is out of service",
        "trainyard nodes --history",
        [("--history", {"action": "store_true", "help": "when hosts were out of service"})],
    ),
    "images": (images, "list the images of this cluster", "trainyard images", []),
    "login": (login, "print a login link for the browser", "trainyard login", []),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the command: one line, what is meant, and where the help
    is.
    """

    def error(self, message: str) -> NoReturn:
        words = message
        unknown = re.match("unrecognized arguments: (--[a-z-]+)", message)
        if unknown:
            words += _job_limits.near(unknown.group(1), self.options_of(sys.argv[1:2]))
        raise Refused("%s; see: %s --help" % (words, self.prog))

    def options_of(self, names: list) -> list:
        """Return the options of a subcommand."""
        if names and names[0] in SUBCOMMANDS:
            return options_of(names[0])
        return []


def options_of(name: str) -> list:
    """Return the long options of a subcommand."""
    found = []
    for argument in SUBCOMMANDS[name][3]:
        found += [word for word in argument[:-1] if word.startswith("--")]
    return found + ["--json", "--help"]


def parser():
    whole = Parser(
        prog="trainyard",
        usage="trainyard SUBCOMMAND [ARGUMENT...]",
        description="Jobs from files, on top of Slurm.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # A name that is at least as long as the longest subcommand and its indent, which argparse
    # forgets when it computes the columns.
    subparsers = whole.add_subparsers(
        dest="subcommand", metavar="SUBCOMMAND [ARGUMENT...]", prog="trainyard", required=True
    )
    for name, (function, text, example, arguments) in SUBCOMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog="example:\n  " + example + (key_lines() if name == "submit" else ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for argument in arguments:
            sub.add_argument(*argument[:-1], **argument[-1])
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(function=function)
    return whole


def parsed(argv: list) -> argparse.Namespace:
    """Return the options of a command line. Refused if it has faults."""
    command = []
    if argv[:1] == ["attach"] and "--" in argv:
        at = argv.index("--")
        argv, command = argv[:at], argv[at + 1 :]
    if not argv or argv == ["--json"]:
        return argparse.Namespace(function=overview, json=bool(argv))
    if argv[0] == "complete":
        # For the shell, which passes what its person has typed.
        return argparse.Namespace(function=complete, json=False, words=argv[1:])
    if not argv[0].startswith("-") and argv[0] not in SUBCOMMANDS:
        raise Refused(
            "there is no subcommand '%.40s'%s; see: trainyard --help"
            % (argv[0], _job_limits.near(argv[0], SUBCOMMANDS))
        )
    options = parser().parse_args(argv)
    options.command = command
    return options


def main(argv):
    """Run a command line, and return its exit code.

    Nothing is left in the output, which may be closed or full.
    """
    if sys.stdout is None:
        # A shell has closed it (>&-). What is printed goes nowhere.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    try:
        code = run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # As of `trainyard list | head`.
        code, text = GOOD, ""
    except OSError as error:
        code, text = REFUSED, "standard output: %s" % (error.strerror or error)
    # Python would write once more at its end, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if text:
        print("trainyard: " + printable(text), file=sys.stderr)
    return code


def run(argv: list) -> int:
    """Run a command line, and print its error if it has one."""
    is_json = "--json" in argv
    try:
        options = parsed(argv)
        is_json = options.json
        return options.function(options)
    except Refused as error:
        code, text = REFUSED, str(error)
    except NoAnswer as error:
        code, text = NO_ANSWER, str(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None and error.errno in OF_OUTPUT:
            raise
        who = error.filename or "the operating system"
        code, text = REFUSED, "%s: %s" % (who, error.strerror or error)
    if is_json:
        print(json.dumps({"error": text, "exit_code": code}, indent=2, sort_keys=True))
    else:
        for line in text.split("\n"):
            print("trainyard: " + printable(line), file=sys.stderr)
    return code
