# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""idle-checks SETTINGS, as root on the scheduler's host: checks idle nodes whose last check is
older than some days, and nodes before they return to service.

A timer starts it. The check is a job of the lowest priority that has the whole node, so it begins
on idle nodes only, and other jobs preempt it. SETTINGS is JSON with C(days), C(seconds) of the load
and C(priority), the QOS of the job. Results lie below C(STATE), one file for each device.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _burn_in
import _drains
import _files
import _messages

STATE = "/var/lib/trainyard/idle_checks"
CHECK = "/usr/local/lib/trainyard/slurm/host-check"
JOB = "trainyard-idle-check"
SINFO = ["sinfo", "--noheader", "--all", "--Node", "--format=%N|%T|%P|%H|%E"]
AS_SLURM = ["runuser", "--user", "slurm", "--"]
#: Nodes that are checked at once: one of so many, and one at least.
SHARE = 10
#: A node that was not checked, because its job did not begin or was preempted, is tried again after
#: so many seconds. One that waits to return, sooner.
AGAIN = {"tried": 3600, "probed": 600}
#: Seconds for a command of Slurm, for the start of a job on an idle node, and beside the load for
#: its start and its end.
TOOL_SECONDS, IMMEDIATE, BESIDE = 60, 60, 600
PROBE_SECONDS = 5
DAY = 24 * 3600


def output(command: list) -> str | None:
    """Return the output of a command, or None if it failed or did not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        tell("%s: %s" % (command[0], error))
        return None
    if done.returncode != 0:
        tell("%s: %s" % (command[0], done.stderr.decode(errors="replace").strip()[-300:]))
        return None
    return done.stdout.decode(errors="replace")


def tell(text: str) -> None:
    """Write a line to the log of the unit. Names of processes and of hosts are data."""
    print("trainyard: %s" % _messages.printable(text), flush=True)


# --- pure functions ---


def parse_nodes(text: str) -> dict[str, dict]:
    """Return C(state), C(partition) and C(reason) of each node.

    Of several partitions it is the first.
    """
    nodes = {}
    for line in text.splitlines():
        words = line.split("|", 4)
        if len(words) != 5 or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", words[0]):
            continue
        nodes.setdefault(
            words[0],
            {
                "state": words[1],
                "partition": words[2].rstrip("*"),
                "since": words[3],
                "reason": words[4],
            },
        )
    return nodes


def batch(nodes: dict, known: dict, days: int, now: float) -> tuple[list, list]:
    """Return the nodes to probe before they return to service, and the idle ones whose last check
    is too old, both together at most a tenth of all.
    """
    room = max(1, len(nodes) // SHARE)
    waiting = [name for name in nodes if nodes[name]["reason"].startswith(_drains.PROBE)]
    probes = [
        name
        for name in sorted(waiting, key=lambda name: nodes[name]["since"])
        # Only one that runs no job any more, and was not tried a moment ago.
        if nodes[name]["state"].startswith("drained") and may_try(known.get(name), "probed", now)
    ][:room]
    due = [
        name
        for name in sorted(nodes, key=lambda name: (checked(known.get(name)), name))
        if nodes[name]["state"] == "idle"
        and now - checked(known.get(name)) >= days * DAY
        and may_try(known.get(name), "tried", now)
    ]
    return probes, due[: room - len(probes)] if days > 0 else []


def checked(entry: object) -> float:
    value = entry.get("checked") if isinstance(entry, dict) else None
    return value if isinstance(value, (int, float)) else 0


def may_try(entry: object, what: str, now: float) -> bool:
    last = entry.get(what) if isinstance(entry, dict) else None
    return not isinstance(last, (int, float)) or not 0 <= now - last < AGAIN[what]


def job(node: str, partition: str, settings: dict, seconds: int, reservation: str = "") -> list:
    """Return the command of a check. It ends at once if the node is not free."""
    minutes = -(-(2 * seconds + BESIDE) // 60)
    words = [
        "--account=" + settings["account"],
        "--qos=" + settings["priority"],
        "--partition=" + partition,
        "--job-name=" + JOB,
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=" + node,
        "--exclusive",
        "--immediate=%d" % IMMEDIATE,
        "--time=%d" % minutes,
        "--chdir=/",
        "--input=none",
        "--quiet",
    ]
    words += ["--reservation=" + reservation] if reservation else []
    return [*AS_SLURM, "srun", *words, "sudo", "--non-interactive", CHECK, str(seconds)]


def judge(answers: dict, filed: dict, ignored: tuple = ()) -> tuple[dict, list]:
    """Return for each node why it must not run jobs, C(bad), or why nothing is known, C(not_made),
    and the judged devices. C(ignored) are checks that do not count.
    """
    with_ranks = {name: answer for name, answer in answers.items() if has_ranks(answer)}
    judged = _burn_in.judge(_burn_in.of_hosts(with_ranks), filed, lambda _model: {})
    found = {}
    for name, answer in answers.items():
        health = str(answer.get("health") or "") if isinstance(answer, dict) else ""
        bad = [
            "%s: %s" % (check["id"], check["found"])
            for check in judged["checks"]
            if check["host"] == name and check["verdict"] == "fail" and check["id"] not in ignored
        ]
        why = "" if name in with_ranks else why_nothing(answer)
        found[name] = {"bad": "; ".join(bad), "health": health, "not_made": why}
    return found, judged["devices"]


def has_ranks(answer: object) -> bool:
    """Return whether the load has run.

    An image without PyTorch and a container that is stopped are no fault of the hardware.
    """
    run = answer.get("run") if isinstance(answer, dict) else None
    return isinstance(run, dict) and bool(_burn_in.answer_of(run).get("ranks"))


def why_nothing(answer: object) -> str:
    if not isinstance(answer, dict):
        return "the job did not begin, or was preempted"
    run = answer.get("run")
    error = _burn_in.answer_of(run).get("error") if isinstance(run, dict) else ""
    return str(answer.get("not_made") or error or "the node gave no answer")


def is_held(nodes: dict, more: int) -> bool:
    """Return whether so many drains more would take out more than a third of the nodes: then the
    fault is rather in the check.
    """
    out = [name for name in nodes if nodes[name]["reason"].startswith(_drains.PREFIX)]
    return len(nodes) >= _drains.LEAST_NODES and len(out) + more > len(nodes) // _drains.MOST_OUT


# --- what is done ---


def read_filed() -> dict[str, dict]:
    """Return the documents of earlier results by serial number."""
    found = {}
    for name in sorted(os.listdir(STATE)):
        document = _burn_in.read_document(_files.read_json(os.path.join(STATE, name)))
        if document:
            found[document["serial"]] = document
    return found


def file_results(devices: list, filed: dict, now: float) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    for device in devices:
        document = _burn_in.with_result(filed.get(device["serial"]), device, stamp)
        path = os.path.join(STATE, _burn_in.file_name(device["serial"]))
        _files.write_private(path, json.dumps(document, indent=1) + "\n")


def run_jobs(commands: dict[str, list], seconds: int) -> dict:
    """Run the jobs side by side. Return the answer of each node, None of one without."""
    children = {
        name: subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name, command in commands.items()
    }
    deadline = time.monotonic() + IMMEDIATE + 2 * seconds + BESIDE
    answers = {}
    for name, child in children.items():
        try:
            out, err = child.communicate(timeout=max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.terminate()
            out, err = child.communicate()
        answers[name] = parse_answer(out.decode(errors="replace"))
        if answers[name] is None:
            tell("%s: %s" % (name, err.decode(errors="replace").strip()[-300:]))
    return answers


def parse_answer(text: str) -> object:
    """Return the last line of the output of a job as data; None if it is none."""
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError, RecursionError):
        return None


def update(node: str, *change: str) -> bool:
    return output(["scontrol", "update", "nodename=" + node, *change]) is not None


def drain(node: str, text: str) -> bool:
    reason = _drains.line([("verify", text)])
    tell("%s is drained: %s" % (node, reason))
    return update(node, "state=drain", "reason=" + reason)


def check_idle(names: list, nodes: dict, settings: dict) -> dict:
    """Check idle nodes, and drain those at fault. Return what was found of each."""
    seconds = settings["seconds"]
    commands = {name: job(name, nodes[name]["partition"], settings, seconds) for name in names}
    filed = read_filed()
    results = {serial: document["results"] for serial, document in filed.items()}
    found, devices = judge(run_jobs(commands, seconds), results)
    file_results(devices, filed, time.time())
    for name in names:
        bad = found[name]["bad"]
        if bad and is_held(nodes, 1):
            tell("%s is not drained, as a third of the nodes are already: %s" % (name, bad))
        elif bad:
            nodes[name]["reason"] = _drains.PREFIX
            drain(name, bad)
    return found


def reservation_of(node: str) -> str:
    return "trainyard-probe-" + node


def probe(node: str, nodes: dict, settings: dict) -> dict:
    """Let a job run on a drained node while nobody else can use it. Return what was found.

    A good node stays in service. Otherwise it is drained again before the reservation ends.
    """
    name, former = reservation_of(node), nodes[node]["reason"]
    create = ["scontrol", "create", "reservation", "reservationname=" + name, "nodes=" + node]
    create += ["starttime=now", "duration=30", "flags=maint,ignore_jobs", "users=slurm"]
    if output(create) is None:
        return {"bad": "", "health": "", "not_made": "the node cannot be reserved"}
    try:
        if not update(node, "state=resume"):
            return {"bad": "", "health": "", "not_made": "the node cannot be resumed"}
        command = job(node, nodes[node]["partition"], settings, PROBE_SECONDS, name)
        # Cold devices are faster than in a check of a minute, so their speed is neither judged nor
        # filed.
        try:
            found = judge(run_jobs({node: command}, PROBE_SECONDS), {}, (_burn_in.SPEED,))[0][node]
        except BaseException:
            # Nothing is known of the node, which is in service now.
            update(node, "state=drain", "reason=" + former)
            raise
        bad = found["bad"] or found["health"]
        if bad:
            drain(node, "probe before the return to service: " + bad)
        elif found["not_made"].startswith("the job"):
            # Slurm could not start it, which is what the probe is for.
            update(node, "state=drain", "reason=" + former)
        else:
            tell("%s is in service again after: %s" % (node, former))
        return found
    finally:
        output(["scontrol", "delete", "reservationname=" + name])


def end_former(nodes: dict) -> None:
    """Drain the nodes of a run that was killed in the middle of a probe, and remove its
    reservations.
    """
    text = output(["scontrol", "--oneliner", "show", "reservations"]) or ""
    for name in re.findall(r"^ReservationName=(\S+)", text, re.MULTILINE):
        node = name[len(reservation_of("")) :]
        if name.startswith(reservation_of("")) and node in nodes:
            update(node, "state=drain", "reason=%sit was interrupted" % _drains.PROBE)
            output(["scontrol", "delete", "reservationname=" + name])


def read_known(path: str) -> dict[str, dict]:
    """Return what is known of each node. The file may be damaged."""
    known = _files.read_json(path)
    known = known if isinstance(known, dict) else {}
    return {name: entry for name, entry in known.items() if isinstance(entry, dict)}


def main(words: list) -> int:
    settings = json.loads(words[0])
    os.makedirs(STATE, mode=0o750, exist_ok=True)
    text = output(SINFO)
    if text is None:
        return 1
    end_former(parse_nodes(text))
    nodes = parse_nodes(output(SINFO) or "")
    place = os.path.join(STATE, "nodes")
    known = read_known(place)
    begun = time.time()
    probes, due = batch(nodes, known, settings["days"], begun)
    found = {name: probe(name, nodes, settings) for name in probes}
    found.update(check_idle(due, nodes, settings) if due else {})
    for name, its in found.items():
        entry = dict(known.get(name) or {}, **its, **{"tried" if name in due else "probed": begun})
        # A container that is stopped is tried again, too. A probe is short, and no check.
        is_made = name in due and not its["not_made"]
        known[name] = dict(entry, checked=begun) if is_made else entry
        tell("%s: %s" % (name, its["bad"] or its["not_made"] or its["health"] or "good"))
    kept = {name: entry for name, entry in known.items() if name in nodes}
    _files.write_private(place, json.dumps(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
