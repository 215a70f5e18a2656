# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares a job with what the cluster has, and says in words why a job waits.

Data of P(_slurm) in, sentences out.

Slurm refuses most of this, too, in words of its own, or lets the job wait for ever.
"""

from __future__ import annotations

import difflib
import re

from _quantity import quantity

GIB = 1024
#: Limits of accounts by their names in Slurm.
TRES = {"gpus": "gres/gpu", "cpus": "cpu", "memory_mib": "mem"}


def names(entries, most=8):
    """Return names for a sentence, a few of them."""
    entries = list(entries)
    return (
        ", ".join(entries[:most])
        + (" and %d more" % (len(entries) - most) if len(entries) > most else "")
        if entries
        else "none"
    )


def near(word, known):
    found = difflib.get_close_matches(word, list(known), 1, 0.6)
    return "; did you mean %s?" % found[0] if found else ""


# --- accounts ---------------------------------------------------------------------------------------------------------------


def accounts_of(associations, person):
    """Return the accounts of a person, with the limits of each: C(account), C(gpus), C(cpus),
    C(memory_mib), C(person_gpus), C(max_jobs), C(max_submitted), C(max_minutes), C(qos). None means
    without limit. Of the controller also what the person has C(submitted).
    """
    found = {}
    for entry in associations:
        # One that a person was removed from stays while their jobs run, and accepts no more of
        # them.
        if entry["user"] == person and entry["max_submitted"] != 0:
            found[entry["account"]] = {
                "account": entry["account"],
                "gpus": None,
                "cpus": None,
                "memory_mib": None,
                "max_jobs": entry["max_jobs"],
                "max_submitted": entry["max_submitted"],
                "submitted": entry.get("submitted", {}).get("used"),
                "person_gpus": entry["group_tres"].get("gres/gpu"),
                "job_gpus": entry["job_tres"].get("gres/gpu"),
                "max_minutes": entry["max_minutes"],
                "qos": list(entry["qos"]),
            }
    parents = {entry["account"]: entry for entry in associations if not entry["user"]}
    for name, mine in found.items():
        # A limit of an account above counts, too.
        seen, account = set(), name
        while account in parents and account not in seen:
            seen.add(account)
            for key, tres in TRES.items():
                limit = parents[account]["group_tres"].get(tres)
                mine[key] = min(
                    (value for value in (mine[key], limit) if value is not None), default=None
                )
            minutes = parents[account]["max_minutes"]
            mine["max_minutes"] = min(
                (value for value in (mine["max_minutes"], minutes) if value is not None),
                default=None,
            )
            account = parents[account]["parent"]
    return [found[name] for name in sorted(found)]


_OF_PERSON = {"person_gpus_used": "gpus", "jobs_used": "jobs", "submitted_used": "submitted"}
_OF_ACCOUNT = {"gpus_used": "gpus", "cpus_used": "cpus", "memory_used_mib": "memory_mib"}


def used_of(entry: dict) -> dict:
    """Return what an account, or the person in it, uses of its limits.

    C(entry) is of P(_slurm.parse_usage).
    """
    keys = _OF_PERSON if entry["user"] else _OF_ACCOUNT
    return {key: entry[name]["used"] for key, name in keys.items()}


def times_of(partitions: list) -> dict:
    """Return the times of jobs in the partition of jobs that name none.

    C(partition_minutes) at most, and C(default_minutes). None means no limit.
    """
    partition = default_partition(partitions)
    if partition is None:
        return {"partition_minutes": None, "default_minutes": None}
    longest, usual = partition["max_minutes"], partition["default_minutes"]
    if usual is None:
        usual = longest
    return {"partition_minutes": longest, "default_minutes": usual}


def default_partition(partitions: list) -> dict | None:
    """Return the partition of jobs that name none."""
    if len(partitions) == 1:
        return partitions[0]
    return next((entry for entry in partitions if entry["default"]), None)


def _quota_problems(job: dict, mine: dict) -> list:
    """Return whether a job needs more GPUs than its account allows: the first limit that it
    exceeds.
    """
    requested = job["worker_count"] * job["worker_gpu"]
    for key, whose in (
        ("gpus", "account %s has" % mine["account"]),
        ("person_gpus", "each person of account %s has" % mine["account"]),
        ("job_gpus", "a job of account %s has" % mine["account"]),
    ):
        if mine[key] is not None and requested > mine[key]:
            return [
                "worker_gpu: the job needs %s (%s with %d each), but %s %d at most; use fewer"
                % (
                    quantity(requested, "GPU"),
                    quantity(job["worker_count"], "worker"),
                    job["worker_gpu"],
                    whose,
                    mine[key],
                )
            ]
    return []


def account_problems(job, accounts, person):
    if not accounts:
        return [
            (
                "workspace_id: %s has no account on this cluster; ask the operator to add you to a "
                "group in slurm_accounts"
            )
            % person
        ]
    known = {entry["account"]: entry for entry in accounts}
    if job["workspace_id"] and job["workspace_id"] not in known:
        return [
            "workspace_id: '%s' is not one of your accounts (%s)%s"
            % (job["workspace_id"], names(known), near(job["workspace_id"], known))
        ]
    mine = known.get(job["workspace_id"]) or (accounts[0] if len(accounts) == 1 else None)
    if not mine:
        return []
    problems = _quota_problems(job, mine) + size_problems(job, mine) + full_problems(mine)
    if job["max_minutes"] and mine["max_minutes"] and job["max_minutes"] > mine["max_minutes"]:
        problems.append(
            "max_minutes: %d is longer than account %s allows; use at most %d"
            % (job["max_minutes"], mine["account"], mine["max_minutes"])
        )
    if job["priority"] and mine["qos"] and job["priority"] not in mine["qos"]:
        problems.append(
            "priority: account %s cannot use '%s'; use one of %s"
            % (mine["account"], job["priority"], names(mine["qos"]))
        )
    return problems


def size_problems(job: dict, mine: dict) -> list:
    """Return why an account can never run the job because of its CPUs or memory."""
    workers, problems = job["worker_count"], []
    memory = job["worker_memory"] + (job["worker_shared_memory"] or 0)
    limits = (
        ("worker_cpu", "CPUs", job["worker_cpu"], mine["cpus"], 1),
        ("worker_memory", "GB", memory, mine["memory_mib"], GIB),
    )
    for key, unit, each, limit, size in limits:
        if limit is None or workers * each <= limit:
            continue
        needs = "the job needs %.4g %s (%s with %.4g each)" % (
            workers * each / size,
            "CPU" if unit == "CPUs" and workers * each == 1 else unit,
            quantity(workers, "worker"),
            each / size,
        )
        problems.append(
            "%s: %s, but account %s has %.4g at most; use less"
            % (key, needs, mine["account"], limit / size)
        )
    return problems


def full_problems(mine: dict) -> list:
    """Return why an account takes no more jobs of the person now."""
    used, limit = mine["submitted"], mine["max_submitted"]
    if used is None or limit is None or used < limit:
        return []
    jobs = quantity(used, "waiting and running job")
    found = "you have %s in account %s" % (jobs, mine["account"])
    return [
        "workspace_id: %s, which allows each person %d; wait until one ends, or stop one"
        % (found, limit)
    ]


# --- hosts ------------------------------------------------------------------------------------------------------------------


def gpus_of(node):
    return sum(entry["total"] for entry in node["gpus"])


def free(node):
    """Return what a new job could have of a node now."""
    if not node["available_for_jobs"]:
        return {"cpus": 0, "memory_mib": 0, "gpus": 0}
    return {
        "cpus": max(0, node["cpus"] - node["cpus_allocated"]),
        "memory_mib": max(0, node["memory_mib"] - node["memory_allocated_mib"]),
        "gpus": sum(max(0, entry["total"] - entry["used"]) for entry in node["gpus"]),
    }


def largest_worker(nodes: list) -> str:
    """Return in words what one worker can have now.

    GPUs without a free CPU or memory are of no use.
    """
    best, idle = None, []
    for node in nodes:
        left = free(node)
        if left["gpus"] and not (left["cpus"] and left["memory_mib"]):
            idle.append((node["name"], left))
            continue
        size = (left["gpus"], left["cpus"], left["memory_mib"])
        if left["cpus"] and left["memory_mib"] and (best is None or size > best[0]):
            best = (size, node["name"])
    words = "no worker can start now"
    if best:
        words = "a worker can have %s, %s and %.4g GB now, on %s" % (
            quantity(best[0][0], "GPU"),
            quantity(best[0][1], "CPU"),
            best[0][2] / GIB,
            best[1],
        )
    for name, left in idle[:8]:
        lacking = "CPU" if not left["cpus"] else "memory"
        gpus, verb = quantity(left["gpus"], "GPU"), "is" if left["gpus"] == 1 else "are"
        words += "\n%s of %s %s free, but no %s is" % (gpus, name, verb, lacking)
    return words


def free_classes(nodes: list) -> list:
    """Return the free GPUs of each model: C(name), C(gpus) and C(free).

    Those of hosts out of service, or without a free CPU, are not free.
    """
    found = {}
    for node in nodes:
        left = free(node)
        usable = left["cpus"] and left["memory_mib"]
        for entry in node["gpus"]:
            mine = found.setdefault(entry["model"] or "gpu", {"gpus": 0, "free": 0})
            mine["gpus"] += entry["total"]
            mine["free"] += max(0, entry["total"] - entry["used"]) if usable else 0
    return [dict(found[name], name=name) for name in sorted(found)]


def classes(nodes):
    return sorted({feature for node in nodes for feature in node["features"]})


def _time_problems(job, partition):
    """Return the problem that the job's longest time is above the partition's; 0 is no limit."""
    most = partition["max_minutes"] if partition else 0
    if not most or not job["max_minutes"] or job["max_minutes"] <= most:
        return []
    return [
        "max_minutes: %d is longer than partition %s allows; use at most %d"
        % (job["max_minutes"], partition["name"], most)
    ]


def _demands(job):
    """Return (key of the job, what a worker needs, what a node has of it, its noun) of each
    resource.
    """
    memory = job["worker_memory"] + (job["worker_shared_memory"] or 0)
    return (
        ("worker_gpu", job["worker_gpu"], gpus_of, "GPU"),
        ("worker_cpu", job["worker_cpu"], lambda node: node["cpus"], "CPU"),
        ("worker_memory", memory, lambda node: node["memory_mib"], None),
    )


def _worker_problems(job, known, where):
    """Return for each resource that no node has enough of it for one worker."""
    problems = []
    for key, needed, amount, noun in _demands(job):
        best = max(known, key=amount, default=None)
        most = amount(best) if best else 0
        if best is not None and needed <= most:
            continue
        if noun:
            shown = (quantity(needed, noun), quantity(most, noun))
        else:
            shown = (
                "%.4g GB with worker_shared_memory" % (needed / GIB),
                "%.4g GB" % (most / GIB),
            )
        problems.append(
            "%s: a worker needs %s, but the largest host %s has %s%s; use less"
            % (key, shown[0], where, shown[1], " (%s)" % best["name"] if best else "")
        )
    return problems


def _count_problems(job, known, where):
    """Return the problem that too few nodes are large enough: each worker has one of its own."""
    fit = [
        node
        for node in known
        if all(needed <= amount(node) for _key, needed, amount, _noun in _demands(job))
    ]
    if len(fit) >= job["worker_count"]:
        return []
    advice = "at most %s" % quantity(len(fit), "worker") if fit else "smaller workers"
    return [
        "worker_count: each worker has a host of its own, but %s %s %s large enough for one "
        "(%s) and the job has %s; "
        "use %s"
        % (
            quantity(len(fit), "host"),
            where,
            "is" if len(fit) == 1 else "are",
            names(node["name"] for node in fit),
            quantity(job["worker_count"], "worker"),
            advice,
        )
    ]


def host_problems(job, nodes, partitions):
    """Return why the job could never start, whatever else runs: no host is large enough, or too few
    are.
    """
    partition, where = default_partition(partitions), "of this cluster"
    known = [node for node in nodes if partition is None or node["name"] in partition["nodes"]]
    problems = _time_problems(job, partition)
    if job["host_class"]:
        if job["host_class"] not in classes(known):
            return problems + [
                "host_class: '%s' is not a class of hosts here; use one of %s%s"
                % (
                    job["host_class"],
                    names(classes(known)),
                    near(job["host_class"], classes(known)),
                )
            ]
        known = [node for node in known if job["host_class"] in node["features"]]
        where = "of class %s" % job["host_class"]
    problems += _worker_problems(job, known, where)
    return problems or _count_problems(job, known, where)


# --- images -----------------------------------------------------------------------------------------------------------------


#: Architectures as the kernel names them, and as images do.
ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "i686": "386",
    "loongarch64": "loong64",
}


def with_tag(image):
    return image if "@" in image or ":" in image.rpartition("/")[2] else image + ":latest"


def _offered_platforms(image: str, approved: list) -> list:
    """Return the platforms of an image of the site's registry. Empty if they are not known."""
    for entry in approved:
        name, digest = entry["name"], entry.get("digest")
        if with_tag(image) in (name, "%s@%s" % (re.sub(r":[^:/]+$", "", name), digest)):
            return entry.get("platforms") or []
    return []


def _possible_hosts(job: dict, nodes: list, partitions: list) -> list:
    """Return the hosts of the default partition that have the class of a job."""
    partition = default_partition(partitions)
    known = [node for node in nodes if partition is None or node["name"] in partition["nodes"]]
    return [
        node for node in known if not job["host_class"] or job["host_class"] in node["features"]
    ]


def platform_problems(job, approved, nodes, partitions):
    """Return why no host of the job's class can run an image.

    C(approved) are the images of the site's registry, whose platforms are known.
    """
    offered = _offered_platforms(job["worker_image"], approved)
    known = _possible_hosts(job, nodes, partitions)
    # A host that has never registered has none.
    if not offered or not known or not all(node["architecture"] for node in known):
        return []
    requested = {
        "linux/" + ARCHITECTURES.get(node["architecture"], node["architecture"]) for node in known
    }
    if requested & {"/".join(platform.split("/")[:2]) for platform in offered}:
        return []
    where = "of class %s" % job["host_class"] if job["host_class"] else "of this cluster"
    return [
        "worker_image: '%s' is for %s, but the hosts %s need %s (%s); use an image for that"
        % (
            job["worker_image"],
            names(offered),
            where,
            names(sorted(requested)),
            names(node["name"] for node in known),
        )
    ]


def image_problems(job, images, registries):
    """Return why an image cannot be used.

    C(images) are the names of the catalogue, C(registries) those from which people may pull.
    """
    image = job["worker_image"]
    tagged = with_tag(image)
    if tagged in images or image in images or not images:
        return []
    if any(image.startswith(registry.rstrip("/") + "/") for registry in registries):
        return []
    allowed = " or one of a registry of this cluster (%s)" % names(registries) if registries else ""
    return [
        "worker_image: '%s' is not an image of this cluster; use one of %s%s%s"
        % (image, names(images), allowed, near(tagged, images))
    ]


# --- why a job waits --------------------------------------------------------------------------------------------------------

#: Reasons of Slurm 21.08 to 25.05 in words. Those of limits have a grammar, see P(_limit_reason).
_WORDS = {
    "None": "it starts in a moment",
    "": "it starts in a moment",
    "Priority": "other jobs are before it",
    "Resources": "it is next, and waits until hosts are free",
    "Dependency": "it waits for another job (dependency)",
    "DependencyNeverSatisfied": "the job that it depends on has failed, so it never starts; stop it",
    "BeginTime": "it has a time before which it does not start, or was requeued a moment ago",
    "DeadLine": "it cannot end before its deadline any more, so it never starts; stop it",
    "JobHeldUser": "you have held it; `scontrol release ID` lets it start",
    "JobHeldAdmin": "an operator has held it",
    "JobHoldMaxRequeue": "Slurm holds it because it has failed to start several times; tell the operator",
    "PartitionTimeLimit": (
        "it asks for more time than the partition allows, so it never starts; stop it, and submit "
        "it with a smaller max_minutes"
    ),
    "PartitionNodeLimit": (
        "it has more workers than the partition allows, so it never starts; stop it, and submit it "
        "with a smaller worker_count"
    ),
    "PartitionConfig": (
        "the partition does not allow what it asks for; stop it, and submit it with smaller "
        "workers, or ask the operator"
    ),
    "PartitionDown": "the operator has closed the partition; running jobs go on",
    "PartitionInactive": "the operator has closed the partition",
    "BadConstraints": (
        "no host can ever fit it; stop it, and submit it with smaller workers or another host_class"
    ),
    "Constraints": (
        "no host that it can use now has what it asks for; `trainyard nodes` shows what the hosts "
        "have"
    ),
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": "its reservation does not exist any more; stop it",
    "ReservationInvalid": "its reservation is not valid any more; stop it",
    "JobArrayTaskLimit": "its job array has as many running tasks as it allows",
    "AssociationJobLimit": "your account has as many running jobs as it may have",
    "AssociationTimeLimit": "your account has used up its time; ask the operator",
    "AccountingPolicy": (
        "a limit of your account keeps it from starting; `trainyard quota` shows the limits"
    ),
    "AccountNotAllowed": (
        "its account may not use the partition; stop it, and submit it with another workspace_id"
    ),
    "InvalidAccount": (
        "its account does not exist any more; stop it, and submit it with another workspace_id"
    ),
    "InvalidQOS": (
        "its priority does not exist any more; stop it, and submit it with another priority"
    ),
    "QOSNotAllowed": (
        "its account or the partition does not allow its priority; stop it, and submit it with "
        "another priority"
    ),
    "QOSUsageThreshold": (
        "your account has used so much lately that its priority may not be used now; wait, or "
        "submit it with another priority"
    ),
    "QOSJobLimit": "there are as many running jobs of its priority as there may be",
    "QOSResourceLimit": "the jobs of its priority use all that they may use",
    "QOSTimeLimit": "the jobs of its priority have used up their time; ask the operator",
    "MaxMemPerLimit": (
        "it asks for more memory for each CPU or host than this cluster allows; stop it, and "
        "submit it with a smaller worker_memory"
    ),
    "Licenses": "it waits for a licence",
    "NodeDown": "a host that it needs is down",
    "FrontEndDown": "the host that starts jobs is down; tell the operator",
    "SchedDefer": (
        "it asks to start at once, which this cluster does not do; stop it, and submit it without "
        "--immediate"
    ),
    "FedJobLock": "the clusters of the federation agree on where it starts",
    "PowerNotAvail": "its hosts are switched off to save power",
    "PowerReserved": "the power that it needs is reserved for other jobs",
    "MaxPoweredUpNodes": (
        "as many hosts are switched on as this cluster allows; it starts when one of them is free"
    ),
    "MpiPortsBusy": (
        "the ports that it needs on its hosts are in use; it starts when another job there has "
        "ended"
    ),
    "BurstBufferResources": "it waits for space in the burst buffer",
    "BurstBufferStageIn": "its files are being copied into the burst buffer",
    "BurstBufferOperation": "the burst buffer has failed for it; tell the operator",
    "Cleaning": "it is being cleaned up after its last run",
    "Prolog": "the host is being prepared for it",
    # Of the run before, if it was queued again.
    "JobLaunchFailure": "its last start failed on the host; tell the operator",
    "SystemFailure": "its last run failed because of Slurm or a host; tell the operator",
    "NonZeroExitCode": "its last run failed with an exit code; its log has it",
    "RaisedSignal": "its last run was ended by a signal; its log may say why",
    "TimeLimit": "its last run took longer than its time limit",
    "InactiveLimit": "its last run was ended because it did nothing",
    "OutOfMemory": (
        "its last run needed more memory than it had; stop it, and submit it with a larger "
        "worker_memory"
    ),
}

#: Resources as reasons of limits name them: in words, and the key of a job file that asks for them.
_RESOURCES = {
    "BB": ("burst buffer space", ""),
    "Billing": ("billing units", ""),
    "Cpu": ("CPUs", "worker_cpu"),
    "Energy": ("energy", ""),
    "GRES": ("GPUs", "worker_gpu"),
    "Jobs": ("running jobs", ""),
    "License": ("licences", ""),
    "Mem": ("memory", "worker_memory"),
    "Memory": ("memory", "worker_memory"),
    "Node": ("hosts", "worker_count"),
    "SubmitJob": ("waiting and running jobs", ""),
    "SubmitJobs": ("waiting and running jobs", ""),
    "Unknown": ("of a resource", ""),
    "Wall": ("time", "max_minutes"),
    "WallDuration": ("time", "max_minutes"),
}
_LIMIT_REASON = re.compile(
    r"(?P<of>Assoc|QOS)?(?P<kind>Grp|Max|Min)(?P<what>%s)(?P<time>RunMinutes|RunMins|Minutes)?"
    r"(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
    % "|".join(sorted(_RESOURCES, key=len, reverse=True)),
    re.IGNORECASE,
)
_BY_LOWER = {name.lower(): words for name, words in _RESOURCES.items()}
_AGAIN = "so it never starts; stop it, and submit it with %s"


def _limit_reason(reason: str, account: str, priority: str) -> str:
    """Return a reason that names a limit in words, such as AssocGrpGRESRunMinutes.

    Empty if it does not.
    """
    match = _LIMIT_REASON.fullmatch(reason)
    if not match:
        return ""
    kind, minutes, per = match.group("kind"), match.group("time") or "", match.group("per") or ""
    what, key = _BY_LOWER[match.group("what").lower()]
    whose = "group %s" % account
    if match.group("of") != "Assoc":
        whose = "priority %s" % (priority or "of the job")
    amount = "minutes of " + what if minutes else what
    if kind == "Min":
        return _least_words(whose, what, key)
    if kind == "Grp":
        return _group_words(whose, amount, minutes)
    if per in ("User", "Account") or what.endswith("jobs"):
        return _share_words(whose, amount, minutes, account if per == "Account" else "")
    fewer = "a smaller " + (key or "request") + (" or max_minutes" if minutes else "")
    return _most_words(whose, amount, per, fewer)


def _share_words(whose: str, amount: str, minutes: str, group: str) -> str:
    """Return the words for what one person, or one C(group) if it is named, can have at once."""
    if minutes == "RunMins":
        jobs_of, one = ("the group's", "group") if group else ("your", "person")
        return (
            "%s running jobs hold all the %s that %s allows one %s; it starts when they have "
            "run for longer, or with a smaller max_minutes"
        ) % (jobs_of, amount, whose, one)
    if group:
        return (
            "group %s has all the %s that %s allows one group; it starts when another job of "
            "the group has ended"
        ) % (
            group,
            amount,
            whose,
        )
    return (
        "you have all the %s that %s allows one person; it starts when another job of yours "
        "has ended"
    ) % (
        amount,
        whose,
    )


def _least_words(whose: str, what: str, key: str) -> str:
    """Return the words for what a job has to ask for at least.

    C(key) of a job file asks for it, if there is one.
    """
    more = "a larger %s or another priority" % key if key else "another priority"
    less = "fewer" if what.endswith("s") else "less"
    return "it asks for %s %s than %s requires, %s" % (less, what, whose, _AGAIN % more)


def _most_words(whose: str, amount: str, per: str, fewer: str) -> str:
    """Return the words for what a job can ask for at most, on each host if C(per) is C(Node)."""
    place = "host" if per == "Node" else "job"
    return "it asks for more %s than %s allows one %s, %s" % (amount, whose, place, _AGAIN % fewer)


def _group_words(whose: str, amount: str, minutes: str) -> str:
    """Return the words for a limit of all jobs of a group or a priority together."""
    if minutes == "Minutes" or amount == "time":
        return "the jobs of %s have used up the %s that they may use; ask the operator" % (
            whose,
            amount,
        )
    if minutes:
        return (
            "the running jobs of %s hold all the %s that they may have; it starts when they "
            "have run for longer, or with a smaller max_minutes"
        ) % (
            whose,
            amount,
        )
    return "%s has all the %s that it may have; it starts when another of its jobs has ended" % (
        whose,
        amount,
    )


#: Reasons of Slurm, the limit in P(_slurm.parse_usage), and how it is named.
_GROUP_LIMITS = (
    (r"AssocGrpCpu(?!.*Min)", "cpus", "CPUs", 1),
    (r"AssocGrpMem(?!.*Min)", "memory_mib", "GB of memory", GIB),
    (r"AssocGrpJobs", "jobs", "running jobs", 1),
    (
        r"Assoc(?:Grp|iationGroup)(?:GRES|TRES)(?!.*Min)|AssociationResourceLimit",
        "gpus",
        "GPUs",
        1,
    ),
)


def usage_words(usage: list, account: str, key: str, unit: str, size: int) -> str:
    """Return how much of a limit an account or the person uses, empty if that is not known.

    Both may have a limit. The one with less left is the one that counts. C(usage) is from
    P(_slurm.parse_usage).
    """
    known = [entry for entry in usage if entry["account"] == account]
    known = [entry for entry in known if entry[key]["limit"] is not None]
    if not known:
        return ""
    entry = min(known, key=lambda each: each[key]["limit"] - each[key]["used"])
    used, limit = entry[key]["used"] / size, entry[key]["limit"] / size
    if entry["user"]:
        return "you use %.4g of your %.4g %s in group %s" % (used, limit, unit, account)
    return "group %s uses %.4g of its %.4g %s" % (account, used, limit, unit)


def used_up(usage: list, account: str) -> str:
    """Return the words about the GPUs of an account that uses all of them, empty if some are left.

    A job that exceeds several quotas has the first one as its reason, and Slurm compares CPUs and
    memory before GPUs.
    """
    for entry in usage:
        gpus = entry["gpus"]
        if entry["account"] == account and not entry["user"] and gpus["limit"] is not None:
            if gpus["used"] >= gpus["limit"]:
                return usage_words(usage, account, "gpus", "GPUs", 1) + ", and "
    return ""


def job_count_words(reason: str, usage: list, account: str) -> str:
    """Return which limit of jobs of one person a job waits for, or an empty text."""
    limit, used, what = "max_jobs", "jobs", "running"
    if "Submit" in reason:
        limit, used, what = "max_submitted", "submitted", "waiting and running"
    for entry in usage:
        if entry["account"] == account and entry["user"] and entry[limit] is not None:
            return "you have %s in group %s, which allows each person %d" % (
                quantity(entry[used]["used"], "%s job" % what),
                account,
                entry[limit],
            )
    return ""


def limit_words(reason: str, usage: list, account: str) -> str:
    """Return which limit of an account or of the person a job waits for, or an empty text."""
    if re.match(r"AssocMax(?:Submit)?Jobs?Limit|AssociationJobLimit", reason):
        words = _WORDS["AssociationJobLimit"]
        if "Submit" in reason:
            words = words.replace("running", "waiting and running")
        return job_count_words(reason, usage, account) or words
    for pattern, key, unit, size in _GROUP_LIMITS:
        words = usage_words(usage, account, key, unit, size) if re.search(pattern, reason) else ""
        if words and key in ("cpus", "memory_mib"):
            words = used_up(usage, account) + words
        if words:
            return words
    return ""


def place(queue: list, number: str) -> dict | None:
    """Return the place of a job among those that wait for the same partition: C(place), C(queued)
    and the reason of the first one.

    None if it is not in the queue, which P(_slurm_metrics.waiting) describes.
    """
    mine = next((entry for entry in queue if str(entry.get("id")) == number), None)
    if mine is None:
        return None
    same = [entry for entry in queue if entry.get("partition") == mine.get("partition")]
    return {
        "place": same.index(mine) + 1,
        "queued": len(same),
        "first_reason": str(same[0].get("reason") or ""),
    }


def quota_left(job: dict, usage: list, accounts: list) -> tuple | None:
    """Return the group of a job, its GPUs in use and its limit.

    None if the group has no limit, or is not known.

    C(usage) is of P(_slurm.parse_usage), C(accounts) of P(accounts_of).
    """
    name = job["workspace_id"] or (accounts[0]["account"] if len(accounts) == 1 else "")
    for entry in usage:
        used, limit = entry["gpus"]["used"], entry["gpus"]["limit"]
        if entry["account"] == name and not entry["user"] and limit is not None:
            return name, used, limit
    return None


def exceeds_quota(job: dict, usage: list, accounts: list) -> bool:
    """Return whether the group of a job has too few GPUs left, so that the job waits however many
    are free. Slurm's --test-only does not look at quotas.
    """
    requested, quota = job["worker_count"] * job["worker_gpu"], quota_left(job, usage, accounts)
    return bool(requested and quota) and quota[1] + requested > quota[2]


def cost(job: dict, usage: list, accounts: list) -> str:
    """Return in words what a job takes of the GPUs of its group."""
    requested, quota = job["worker_count"] * job["worker_gpu"], quota_left(job, usage, accounts)
    if not requested:
        return "it asks for no GPU"
    words = "it asks for %s" % quantity(requested, "GPU")
    if not quota:
        return words
    name, used, limit = quota
    if exceeds_quota(job, usage, accounts):
        return words + ", but group %s uses %d of its %d now, so it waits" % (name, used, limit)
    return words + ", with which group %s uses %d of its %d" % (name, used + requested, limit)


def _away_words(nodes: list) -> str:
    """Return the words for hosts that are out of service, with the reason of each."""
    away = [node for node in nodes if not node["available_for_jobs"]]
    shown = ["%s (%s)" % (node["name"], away_reason(node)) for node in away]
    return "hosts that it needs are out of service or reserved%s" % (
        ": " + names(shown, 4) if shown else ""
    )


def away_reason(node: dict) -> str:
    """Return why a host is out of service: what the operator or Slurm has written, or else its
    states.
    """
    return node["reason"] or ", ".join(node["states"]).replace("_", " ")


def why(job, usage, nodes):
    """Return the reason why a job waits, in words.

    C(job) is of P(_slurm.parse_jobs), or has the same keys C(reason), C(account) and C(qos) or
    C(priority).
    """
    # Commands differ in whether a sentence has spaces or underscores. "ReqNodeNotAvail,
    # UnavailableNodes:a" begins with the reason.
    reason = (job["reason"] or "").replace("_", " ").strip()
    word = reason.partition(",")[0].strip()
    words = limit_words(word, usage, job["account"])
    if words:
        return words
    priority = job.get("qos") or job.get("priority") or ""
    words = _limit_reason(word, job["account"], priority if isinstance(priority, str) else "")
    if words:
        return "%s (%s)" % (words, word)
    if word == "AssociationResourceLimit" or re.match("Assoc(?:iation)?Gr(?:ou)?p", word):
        return "group %s uses all that it may use (%s)" % (job["account"], word)
    if word == "ReqNodeNotAvail" or reason.lower().startswith("nodes required for job"):
        return _away_words(nodes)
    if word in _WORDS:
        return _WORDS[word]
    if "held" in reason.lower():
        return "Slurm holds it after a failed start (%s); tell the operator" % reason
    return reason


# --- whether a job that runs makes progress -----------------------------------------------------------------------------------

#: Seconds without output after which a job may hang, and between two workers of which one fell
#: silent first.
QUIET_SECONDS, APART_SECONDS = 600, 60
#: Percent from which a GPU counts as used, as in P(_job_watch).
IN_USE = 5


def _lasted(seconds: float) -> str:
    if seconds < 120:
        return "%d s" % seconds
    return "%d minutes" % (seconds // 60) if seconds < 7200 else "%.1f hours" % (seconds / 3600)


def is_quiet(workers: list) -> bool:
    """Return whether no worker of a job has printed anything for so long that it may hang.

    C(workers) is as for P(progress).
    """
    known = [each["quiet"] for each in workers if each["quiet"] is not None]
    return bool(known) and min(known) >= QUIET_SECONDS


def progress(job: str, workers: list, percents: list) -> str:
    """Return what is known of the progress of a job that runs, in words; empty if nothing is.

    C(workers) has C(worker), C(host) and C(quiet), the seconds since its log has grown, None if it
    has no log. C(percents) is the use of each GPU now, None where it is not known.
    """
    known = [each for each in workers if each["quiet"] is not None]
    if not known:
        return ""
    last = min(known, key=lambda each: each["quiet"])
    first = max(known, key=lambda each: each["quiet"])
    if not is_quiet(workers):
        return "worker %d printed something %s ago" % (last["worker"], _lasted(last["quiet"]))
    words = ["no worker has printed anything for %s" % _lasted(last["quiet"])]
    if first["quiet"] - last["quiet"] >= APART_SECONDS:
        words.append(
            "worker %d on %s has been silent for longest, %s"
            % (first["worker"], first["host"], _lasted(first["quiet"]))
        )
    used = [percent for percent in percents if percent is not None]
    if used and max(used) >= IN_USE:
        # The kernel of a collective waits on the GPU, and uses it meanwhile.
        words.append(
            "its GPUs are used (%d %% at most), as they also are in a collective" % max(used)
        )
    elif used:
        words.append("its GPUs are not used")
    else:
        words.append("the use of its GPUs is not known")
    return (
        "it may hang: %s. See `trainyard logs %s --rank %d`; `trainyard attach %s --rank %d`, "
        "and there py-spy dump, shows where a process waits"
    ) % (
        ", ".join(words),
        job,
        first["worker"],
        job,
        first["worker"],
    )
