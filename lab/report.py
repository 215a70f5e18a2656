"""The final output of a run: the summary, or the place of the failure."""

import re

from process import LabError

# Two ranks reach 0.97 on the digits. The limit has a margin.
LEAST_ACCURACY = 0.95

_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(.*?)\] \**$")
# A finding names its hosts, because the failed task ran once for all.
_BLOCKED = re.compile(r"^BLOCK [\w-]+: (.+)$")
_FAILED = re.compile(r"^(?:fatal|failed): \[([^\]]+?)(?: -> [^\]]*)?\](?:: (UNREACHABLE!))?")


def failures(log):
    """Return (host, step) of every failure in ansible-playbook's output that was not rescued later,
    each once and in order.
    """
    found, task, blamed = [], "start of the playbook", []
    for line in log.splitlines():
        begun = _TASK.match(line)
        blocked = _BLOCKED.match(line)
        failed = _FAILED.match(line)
        if begun:
            task, blamed = begun.group(1), []
        elif blocked:
            blamed += blocked.group(1).split(", ")
        elif failed:
            step = f"{task} (unreachable)" if failed.group(2) == "UNREACHABLE!" else task
            found += [
                (host, step)
                for host in dict.fromkeys(blamed or [failed.group(1)])
                if (host, step) not in found
            ]
        elif line == "...ignoring" and found:
            found.pop()
    return found


def failure_text(stage, status, log_text, log):
    places = failures(log_text)
    lines = [f"host: {host}\nstep: {step}" for host, step in places] or [
        f"step: {stage}: no host failed. See the last lines above"
    ]
    return "\n".join([*lines, f"{stage} ended with exit code {status}", f"log: {log}"])


def summary(hosts, image, build_table, result, seconds):
    """Return the summary of a finished run."""
    metrics = result["metrics"]
    if not {"loss", "accuracy"} <= metrics.keys():
        raise LabError(
            (
                f"step: summary: job {result['job_id']} reports no loss and accuracy, only: "
                f"{', '.join(metrics) or 'nothing'}"
            )
        )
    if metrics["accuracy"] < LEAST_ACCURACY:
        raise LabError(
            (
                f"step: summary: job {result['job_id']} ended with a low accuracy: "
                f"{metrics['accuracy']:.4f}, expected at least {LEAST_ACCURACY}"
            )
        )
    lines = [
        "",
        f"image   {image}",
        "",
        build_table.strip(),
        "",
        "rank  host      slot  exit code  parameters",
    ]
    for rank in sorted(result["ranks"], key=lambda rank: rank["rank"]):
        lines.append(
            (
                f"{rank['rank']:>4}  {rank['host']:<8}  {rank['slot']:>4}  {rank['exit_code']:>9}  "
                f"{rank['checksum']}"
            )
        )
    lines += ["", *(f"{name:<10}{metrics[name]:.4f}" for name in ("loss", "accuracy")), ""]
    lines += [
        "stage       seconds",
        *(f"{stage:<10}{spent:>9.0f}" for stage, spent in seconds.items()),
    ]
    lines += [f"  {stage:<18}{spent:>7.1f}" for stage, spent in result["seconds"].items()]
    last = (
        f"lab: ok hosts={len(hosts)} ranks={result['world_size']} "
        f"accuracy={metrics['accuracy']:.2f} seconds={sum(seconds.values()):.0f}"
    )
    return "\n".join(
        [
            f"hosts   {', '.join(f'{host} {address}' for host, address in hosts.items())}",
            *lines[1:],
            "",
            last,
        ]
    )


def queue_summary(hosts, waiting, ended, accuracy, logins, seconds):
    """Return the summary of a lab with a queue.

    C(waiting) are the jobs while one waits, C(ended) the jobs at the end, C(accuracy) what the
    training in containers printed, C(logins) the command by person.
    """
    bad = [row for row in ended if row[3] != "COMPLETED"]
    if bad or len(ended) != len(waiting):
        found = "; ".join(" ".join(row) for row in ended) or "no job"
        raise LabError(
            f"step: jobs: sacct reports: {found}. Expected {len(waiting)} jobs with state COMPLETED"
        )
    reasons = [row[4] for row in waiting if row[3] == "PENDING"]
    lines = [
        f"hosts   {', '.join(f'{host} {address}' for host, address in hosts.items())}",
        "",
        "The queue while a job waited for the quota of its group:",
        "",
    ]
    lines += _table([("job", "person", "account", "state", "reason", "host"), *waiting])
    lines += [
        "",
        "The jobs at the end:",
        "",
        *_table([("job", "person", "account", "state", "exit code", "host"), *ended]),
    ]
    lines += ["", f"A job in containers then trained on all hosts: accuracy {accuracy}."]
    lines += [
        "",
        "Log in as one of the people. docs/shared-cluster.md has your first job in five minutes:",
        "",
        *logins,
        "",
        (
            "With jupyterhub_enabled, notebooks of all people of the lab have one host name, so a "
            "page of one person can act as another who opens it."
        ),
        (
            "The lab accepts this (jupyterhub_accept_shared_origin). A cluster with "
            "jupyterhub_subdomains does not: see docs/shared-cluster.md."
        ),
        "",
    ]
    lines += [
        "stage       seconds",
        *(f"{stage:<10}{spent:>9.0f}" for stage, spent in seconds.items()),
    ]
    last = (
        f"lab: ok hosts={len(hosts)} jobs={len(ended)} waited={len(reasons)} accuracy={accuracy} "
        f"seconds={sum(seconds.values()):.0f}"
    )
    return "\n".join(["", *lines, "", last])


def _table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows
    ]
