# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HealthCheckProgram of slurmd, as root: prints one line that begins with "trainyard:" if this host must not get jobs, and drains its node with it.

The exit code is 1 then. Without SLURMD_NODENAME, which slurmd sets, it only prints. A node that it has drained is resumed when the cause is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files
import _gpu_numbers
import _host_health
import _metrics
import _mountinfo
import _nft_table
import _nvidia_smi

CONFIG = "/etc/trainyard/job/config.json"
#: Why this program has drained the node. It is kept over a reboot, which ends most faults.
REASON = "/var/lib/trainyard/health.reason"
#: Errors of GPUs in the kernel's log, which forgets its oldest lines.
ERRORS = "/var/lib/trainyard/health.json"
BOOT = "/proc/sys/kernel/random/boot_id"
#: Written by an epilog that failed, as slurmd drains the node then.
HANDED_OVER = "/run/trainyard/health.reason"
#: One file for each job whose epilog has failed on this host: the ID of its user, and the reason.
FAILED = "/run/trainyard/epilog.failed"
#: Where epilogs put folders aside: beside them, for none can be moved to another file system.
RUNTIME, SHARED_FOLDERS = "/run/trainyard", ("/dev/shm", "/tmp", "/var/tmp")
STORAGE = "/var/lib/containers/trainyard"
EPILOG = "/usr/local/lib/trainyard/slurm/epilog"
#: Folder of role monitoring_host for the result of this program.
METRICS = "/var/lib/trainyard/metrics/health"
#: Program of role jupyterhub on hosts with instances: ends idle ones whose own process does not.
INSTANCES = "/usr/local/lib/trainyard/notebook/look"
#: Units that load a table of nftables, of roles job_container and jupyterhub.
UNITS = "/etc/systemd/system"
SHARE_SECONDS, TOOL_SECONDS, EPILOG_SECONDS = 5, 15, 2
GIB = 1 << 30
#: Checks of GPUs. What the second ones find may come to all hosts at once: from the room, a switch, or an upgrade.
HARD, SOFT = {"gpu-state", "gpu-ecc"}, {"gpu-fabric", "gpu-throttle"}
#: A smaller cluster has no mass to protect.
LEAST_NODES = 4
#: Reasons of verify and of upgrades, which begin with the same word.
OTHERS = ("trainyard: verify:", "trainyard: upgrade", "trainyard: burn-in")


def judge_gpus(expected, found):
    return (
        ""
        if found is None or found >= expected
        else "%d of %d GPUs are present" % (found, expected)
    )


def judge_kernel_log(text: str, gpus: list[dict] | tuple = (), driver: str = "") -> str:
    """Return the errors of the kernel log that drain, as check gpu-xid of verify judges them beside the state of the GPUs."""
    bad = [
        "%(kind)s %(code)d of %(device)s: %(cause)s" % error
        for error in _host_health.judged(_host_health.parse_gpu_errors(text), gpus, driver)
        if error["action"] == "drain"
    ]
    return ", ".join(bad[:2])


def judge_cards(gpus: list[dict], ids: set | None = None) -> str:
    """Return the problems of GPUs that drain, as the checks of verify judge them, or only those of some checks."""
    bad = [
        problem["evidence"]
        for gpu in gpus
        for problem in gpu["problems"]
        if problem["action"] == "drain" and (ids is None or problem["id"] in ids)
    ]
    return ", ".join(bad[:2])


def are_all_alike(gpus: list[dict]) -> bool:
    """Return whether nvidia-smi has a fault in place of the same values of all GPUs, as of a faulty driver, which all hosts get with an upgrade."""
    kinds = {tuple(sorted(gpu["faults"])) for gpu in gpus}
    return len(kinds) == 1 and kinds != {()}


def judge_driver(loaded, library):
    """Compare the loaded driver with the installed library: they differ after an upgrade without a reboot, and no program sees a GPU then."""
    return (
        "driver %s is loaded, and library %s is installed; reboot the host" % (loaded, library)
        if loaded and library and loaded != library
        else ""
    )


def judge_space(free, limits):
    """Return what is wrong with the free bytes of folders, of which each has a limit in GiB."""
    short = [
        "%s has %.1f GiB free, less than %g" % (path, free[path] / float(GIB), limit)
        for path, limit in sorted(limits.items())
        if path in free and free[path] < limit * GIB
    ]
    return ", ".join(short)


def line(problems):
    """Return the reason: one line, as Slurm's tables have no room for more."""
    text = "; ".join(problem for problem in problems if problem)
    # Names of processes and files are chosen by people, and the reason is shown on terminals.
    text = re.sub(r"\s+", " ", text)
    strange = {letter for letter in text if not letter.isprintable()}
    text = text.translate({ord(letter): "?" for letter in strange})
    return ("trainyard: " + text)[:200] if text else ""


def output(command, seconds, environment=None):
    """Return the output of a command, or None if it failed or did not end. It is not waited for: a process that asks a dead file server cannot be killed."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    except OSError:
        return None
    try:
        text = child.communicate(timeout=seconds)[0].decode(errors="replace")
        return text if child.returncode == 0 else None
    except subprocess.TimeoutExpired:
        child.kill()
        return None


def read_cards(seconds: float = TOOL_SECONDS) -> tuple[list[dict], str]:
    """Return the GPUs of a host whose driver is loaded, and why nvidia-smi does not describe all of them."""
    if not shutil.which("nvidia-smi"):
        return [], ""
    text = output(["nvidia-smi", "-q", "-x"], seconds)
    if text is None:
        return [], "nvidia-smi fails, or gives no answer within %d s" % seconds
    lost = ["GPU %(bus_id)s: %(error)s" % gpu for gpu in _nvidia_smi.lost_gpus(text)]
    try:
        answer = _nvidia_smi.parse_query(text)
    except _nvidia_smi.ParseError as error:
        # A driver whose document is new must not drain all hosts. verify reports it.
        print("trainyard: nvidia-smi -q -x: %s" % error, file=sys.stderr)
        answer = None
    return answer.gpus if answer else [], ", ".join(lost[:2])


def read_kernel_log() -> str:
    """Return the kernel's log, with the errors of GPUs that it has forgotten since this program has seen them."""
    former = _files.read_json(ERRORS)
    text, record = _host_health.remember(
        former if isinstance(former, dict) else {},
        _files.read(BOOT).strip(),
        output(["dmesg"], TOOL_SECONDS) or "",
    )
    os.makedirs(os.path.dirname(ERRORS), exist_ok=True)
    _files.write_private(ERRORS, json.dumps(record))
    return text


def count_gpus(config):
    """Return the number of GPUs: of the driver if it is loaded, else of the device nodes."""
    loaded = glob.glob("/proc/driver/nvidia/gpus/*")
    return (
        len(loaded)
        if loaded
        else len(glob.glob((config.get("nodes") or "/dev/nvidia%d").replace("%d", "[0-9]*")))
    )


def judge_devices(expected, kinds):
    """Check the number of GPUs, and that Slurm's list has none that is missing: after a boot they may have other numbers."""
    short = judge_gpus(expected, count_gpus(kinds))
    if short or not kinds:
        return short
    return _gpu_numbers.list_fault(kinds, _gpu_numbers.read_host(kinds), only_missing=True)


def library_version():
    names = [
        os.path.basename(path)
        for path in glob.glob("/usr/lib/*/libnvidia-ml.so.*.*")
        + glob.glob("/usr/lib64/libnvidia-ml.so.*.*")
    ]
    return names[0].partition(".so.")[2] if names else ""


def judge_share(path, seconds=SHARE_SECONDS):
    """Check a mounted share in a process of its own, which may hang."""
    if not path:
        return ""
    if output(["stat", "--file-system", "--format=%T", path], seconds) is None:
        return "%s does not answer within %d seconds" % (path, seconds)
    return ""


def unmounted(path, text):
    """Return a problem if a share is not a mount, from the text of /proc/self/mountinfo."""
    points = {mount["path"] for mount in _mountinfo.parse_mountinfo(text)}
    return "" if not path or path in points else "%s is not mounted" % path


def free_space(paths):
    found = {}
    for path in paths:
        try:
            status = os.statvfs(path)
            found[path] = status.f_bavail * status.f_frsize
        except OSError:
            found[path] = 0
    return found


def run_epilog(job, uid):
    """Run the epilog of a job again. Without an error it removes its file."""
    output(
        [EPILOG],
        TOOL_SECONDS,
        dict(
            os.environ,
            SLURM_JOB_ID=job,
            SLURM_JOB_UID=uid,
            TRAINYARD_EPILOG_SECONDS=str(EPILOG_SECONDS),
        ),
    )


def was_left(path: str) -> bool:
    """Return whether an epilog that has ended left its note. One that still runs holds it."""
    try:
        with open(path, "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def unfinished(folder=FAILED, again=run_epilog):
    """Return why the epilog of a job still fails on this host: a process that could not be killed may have ended, as its file server answers again."""
    try:
        jobs = sorted(os.listdir(folder), key=lambda name: (len(name), name))
    except OSError:
        return ""
    for job in jobs:
        path = os.path.join(folder, job)
        if not was_left(path):
            continue
        again(job, _files.read(path).partition("\n")[0])
        reason = _files.read(path).partition("\n")[2].strip()
        # slurmd gives this program a minute, and one reason is enough.
        if reason:
            return reason
    return ""


def remove_rest(parents: list) -> None:
    """Remove what epilogs have put aside and could not remove in their time.

    Their time also ends if the host loses its power. slurmd gives the health program a minute, so
    the next one goes on with what is left.
    """
    deadline = time.monotonic() + TOOL_SECONDS
    for parent in parents:
        for path in glob.glob(parent + "/.trainyard-removed.*"):
            try:
                owner = os.lstat(path).st_uid
            except FileNotFoundError:
                # The epilog has ended meanwhile.
                continue
            # Names of people's own folders may look alike.
            seconds = deadline - time.monotonic()
            if owner == 0 and seconds > 0:
                command = ["rm", "--recursive", "--force", "--one-file-system", "--", path]
                output(command, seconds)


def lost_tables(units: list[str]) -> list[str]:
    """Return the units whose table is missing, or lacks rules."""
    return [unit for unit in units if _nft_table.settled_fault(unit, list_table)]


def list_table(arguments: list[str]) -> str:
    return output(["/usr/sbin/nft", *arguments], TOOL_SECONDS) or ""


def restore_tables() -> str:
    """Load tables again that C(nft flush ruleset) has removed, and tell those that stay away."""
    units = [unit for unit in _nft_table.TABLES if os.path.exists(os.path.join(UNITS, unit))]
    lost = lost_tables(units)
    if not lost:
        return ""
    output(["systemctl", "reload-or-restart", *lost], TOOL_SECONDS)
    lost = lost_tables(lost)
    return "no firewall: %s does not load its table" % ", ".join(lost) if lost else ""


def problems(config):
    health = config.get("health") or {}
    share = health.get("share") or ""
    missing = unmounted(share, _files.read("/proc/self/mountinfo"))
    loaded = re.search(
        r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", _files.read("/proc/driver/nvidia/version")
    )
    version = loaded.group(1) if loaded else ""
    gpus, unread = read_cards() if loaded else ([], "")
    kernel = read_kernel_log() if loaded else ""
    soft = SOFT | {"gpu-state"} if are_all_alike(gpus) else SOFT
    free_gib = health.get("free_gib") or {}
    found = [
        ("gpu-count", judge_devices(health.get("gpus", 0), config.get("gpus") or {})),
        ("gpu-xid", judge_kernel_log(kernel, gpus, version)),
        ("gpu-state", unread),
        ("gpu-state", judge_cards(gpus, HARD - soft)),
        ("driver-library", judge_driver(version, library_version())),
        ("share", missing or judge_share(share)),
        ("free-space", judge_space(free_space(free_gib), free_gib)),
        ("epilog", unfinished()),
        ("firewall", restore_tables()),
    ]
    hot = judge_cards(gpus, soft)
    report([*found, ("gpu-soft", hot)])
    return without_mass_drain([problem for _check, problem in found if problem], hot)


def report(checks: list[tuple[str, str]], folder: str = METRICS) -> None:
    """Write the result of each check for the metrics of the host, if it has some."""
    if not os.path.isdir(folder):
        return
    try:
        _metrics.write(folder + "/health.prom", _metrics.render([_metrics.health_family(checks)]))
    except OSError as error:
        print("trainyard: %s: %s" % (folder, error), file=sys.stderr)


def is_everywhere(node: str, shown: str) -> bool:
    """Return whether this program has drained half of the nodes already. C(shown) has a node and its reason in each line, as sinfo prints them."""
    reasons = dict(line.split("|", 1) for line in shown.splitlines() if "|" in line)
    ours = [
        name
        for name, reason in reasons.items()
        if name != node and reason.startswith("trainyard: ") and not reason.startswith(OTHERS)
    ]
    return len(reasons) >= LEAST_NODES and 2 * (len(ours) + 1) > len(reasons)


def without_mass_drain(hard: list[str], soft: str) -> list[str]:
    """Return the problems that drain. Those that one cause, or a wrong rule, brings to all hosts at once do not drain more than half of the nodes."""
    node = os.environ.get("SLURMD_NODENAME")
    if not soft or hard or not node or _files.read(REASON).strip():
        return [*hard, soft]
    command = ["sinfo", "--noheader", "--Node", "--format=%N|%E"]
    if not is_everywhere(node, output(command, TOOL_SECONDS) or ""):
        return [soft]
    text = "not drained, as half of the nodes are already: %s. Run verify.yml" % soft
    print("trainyard: %s" % text)
    output(["logger", "--tag=trainyard-health", "--priority=daemon.err", text], TOOL_SECONDS)
    return []


def drain(node, reason):
    """Drain or resume the node, only when the reason has changed, so that a good check asks nothing of the controller."""
    former = _files.read(REASON).strip() or _files.read(HANDED_OVER).strip()
    if reason == former:
        return
    if reason:
        change = ["state=drain", "reason=%s" % reason]
    else:
        # Someone else may have drained the node since.
        shown = output(["sinfo", "--noheader", "--nodes=%s" % node, "--format=%E"], TOOL_SECONDS)
        change = ["state=resume"] if (shown or "").strip() == former else []
    if (
        change
        and output(["scontrol", "update", "nodename=%s" % node] + change, TOOL_SECONDS) is None
    ):
        return
    with open(REASON, "w", encoding="utf-8") as stream:
        stream.write(reason)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(HANDED_OVER)


def main():
    try:
        config = json.loads(_files.read(CONFIG) or "{}")
    except ValueError as error:
        config = {}
        print("trainyard: %s: %s" % (CONFIG, error), file=sys.stderr)
    reason = line(problems(config))
    if reason:
        print(reason)
    node = os.environ.get("SLURMD_NODENAME")
    if node:
        os.makedirs(os.path.dirname(REASON), exist_ok=True)
        drain(node, reason)
        if os.path.exists(INSTANCES):
            output([INSTANCES], TOOL_SECONDS)
        storage = config.get("storage") or STORAGE
        own = [storage + "/jobs", storage + "/people", RUNTIME + "/jobs"]
        # At last: it may take all of its time, and nothing waits for it.
        remove_rest(own + list(SHARED_FOLDERS))
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
