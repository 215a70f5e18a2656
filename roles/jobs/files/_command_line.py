# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of trainyard: its subcommands and options, and how it ends. Exit codes are those of the command."""

from __future__ import annotations


import argparse
import json
import os
import sys
import textwrap

import _job_file
from _commands import (
    attach,
    explain,
    images,
    list_jobs,
    login,
    logs,
    nodes,
    quota,
    show,
    stop,
    tensorboard,
    why,
)
from _messages import Refused
from _output import GOOD, NO_ANSWER, REFUSED, printable
from _slurm_client import NoAnswer, sentence
from _submit import clone, submit

EPILOG = """examples:
  trainyard submit job.yml                 submit the job of a file
  trainyard submit - < job.params          the same from standard input
  trainyard list                           your jobs
  trainyard logs -f 12                     follow the log of job 12
  trainyard why 12                         why job 12 waits, or why it failed
  trainyard explain train.log              what the messages in a log mean
"""
FILE = [
    ("file", {"metavar": "FILE", "help": "job file, key=value lines or YAML; - is standard input"})
]
ID = [("id", {"metavar": "ID", "help": "number of a job"})]
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
        "trainyard list --all",
        [("--all", {"action": "store_true", "help": "jobs of the last year"})],
    ),
    "show": (show, "show a job: state, hosts, times, result", "trainyard show 12", ID),
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
            )
        ]
        + RANK,
    ),
    "stop": (stop, "stop a job", "trainyard stop 12", ID),
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
                    "help": "as root of the container, which only instances of the hub have; for apt-get",
                },
            ),
            (
                "--stdio",
                {
                    "action": "store_true",
                    "help": "speak the protocol of ssh, for ProxyCommand; `trainyard show` has the whole command",
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
    "why": (why, "say why a job waits or failed", "trainyard why 12", ID),
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
    "nodes": (
        nodes,
        "list the hosts, what is free on them now, and why one is out of service",
        "trainyard nodes --history",
        [("--history", {"action": "store_true", "help": "when hosts were out of service"})],
    ),
    "images": (images, "list the images of this cluster", "trainyard images", []),
    "login": (login, "print a login link for the browser", "trainyard login", []),
}


def parser():
    whole = argparse.ArgumentParser(
        prog="trainyard",
        usage="trainyard SUBCOMMAND [ARGUMENT...]",
        description="Jobs from files, on top of Slurm.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # A name that is at least as long as the longest subcommand and its indent, which argparse forgets when it computes the columns.
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


def main(argv):
    command = []
    if argv[:1] == ["attach"] and "--" in argv:
        at = argv.index("--")
        argv, command = argv[:at], argv[at + 1 :]
    options = parser().parse_args(argv)
    options.command = command
    try:
        return options.function(options)
    except Refused as error:
        code, text = REFUSED, str(error)
    except NoAnswer as error:
        code, text = NO_ANSWER, str(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # As of `trainyard list | head`. Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return GOOD
    except OSError as error:
        code, text = (
            REFUSED,
            "%s: %s" % (error.filename or "the operating system", error.strerror or error),
        )
    if options.json:
        print(json.dumps({"error": text, "exit_code": code}, indent=2, sort_keys=True))
    else:
        for line in text.split("\n"):
            print("trainyard: " + printable(line), file=sys.stderr)
    return code
