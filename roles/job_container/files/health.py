# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HealthCheckProgram of slurmd, as root: prints one line that begins with "trainyard:" if this host
must not get jobs, and drains its node with it.

The exit code is 1 then. Without SLURMD_NODENAME, which slurmd sets, it only prints. A node that it
has drained is resumed when the cause is gone.
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
import _drains
import _fabric
import _files
import _gpu_numbers
import _gpu_users
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
#: Ports of the fabric at the last look.
PORTS = "/var/lib/trainyard/health.ports.json"
#: When and why this program has drained and resumed the node.
HISTORY = "/var/lib/trainyard/health.history.json"
#: Device numbers of GPUs that a prolog has found in use by a process of no job.
BUSY = "/run/trainyard/gpus.busy"
#: Written by an epilog that ended well.
ENDED = "/run/trainyard/epilog.ended"
#: Seconds after an epilog in which slurmd may still drain the node for a process of the job, or see
#: it end.
ENDED_SECONDS = 3600
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
#: nvidia-smi takes 6 to 15 s on hosts with 8 GPUs, and a slow one is not broken. slurmd gives this
#: program a minute.
SMI_SECONDS = 30
#: What role monitoring_host's reader of the GPUs has last read, if it is as young as so many
#: seconds.
DOCUMENT, FRESH_SECONDS = "/var/lib/trainyard/metrics/gpu/nvidia-smi.xml", 120
DOCUMENT_CHARACTERS = 16 << 20
GIB = 1 << 30
#: Checks of GPUs by what nvidia-smi says.
OF_CARDS = ("gpu-state", "gpu-ecc", "gpu-fabric", "gpu-throttle")
#: What sinfo prints for a node without one.
NO_REASON = ("", "none")
#: After a drain, until those of the same second are seen.
SETTLE_SECONDS = 1.1


def judge_gpus(expected, found):
    return (
        ""
        if found is None or found >= expected
        else "%d of %d GPUs are present" % (found, expected)
    )


def judge_kernel_log(text: str, gpus: list[dict] | tuple = (), driver: str = "") -> str:
    """Return the errors of the kernel log that drain, as check gpu-xid of verify judges them beside
    the state of the GPUs.
    """
    bad = [
        "%(kind)s %(code)d of %(device)s: %(cause)s" % error
        for error in _host_health.judged(_host_health.parse_gpu_errors(text), gpus, driver)
        if error["action"] == "drain"
    ]
    return ", ".join(bad[:2])


def judge_cards(gpus: list[dict], check: str) -> str:
    """Return the problems of GPUs that drain, as a check of verify judges them."""
    bad = [
        problem["evidence"]
        for gpu in gpus
        for problem in gpu["problems"]
        if problem["action"] == "drain" and problem["id"] == check
    ]
    return ", ".join(bad[:2])


def judge_driver(loaded, library):
    """Compare the loaded driver with the installed library: they differ after an upgrade without a
    reboot, and no program sees a GPU then.
    """
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


def output(command, seconds, environment=None):
    """Return the output of a command, or None if it failed or did not end.

    It is not waited for: a process that asks a dead file server cannot be killed.
    """
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


def fresh(path: str) -> str:
    """Return the text of a file that was written lately; empty if it is older.

    Another user writes it, so it may be anything.
    """
    try:
        age = time.time() - os.stat(path).st_mtime
        return _files.read_regular(path, DOCUMENT_CHARACTERS) if 0 <= age < FRESH_SECONDS else ""
    except OSError:
        return ""


def ask_cards(seconds: float) -> str | None:
    """Return what nvidia-smi says: of the metrics reader if it has just asked, as a call of its own
    takes seconds. None if it gives no answer.
    """
    text = fresh(DOCUMENT)
    if text:
        return text
    begun = time.monotonic()
    text = output(["nvidia-smi", "-q", "-x"], seconds)
    print("trainyard: nvidia-smi -q -x took %.1f s" % (time.monotonic() - begun), file=sys.stderr)
    return text


def read_cards(seconds: float = SMI_SECONDS) -> tuple[list[dict], str]:
    """Return the GPUs of a host whose driver is loaded, and why nvidia-smi does not describe all of
    them.
    """
    if not shutil.which("nvidia-smi"):
        return [], ""
    text = ask_cards(seconds)
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
    """Return the kernel's log, with the errors of GPUs that it has forgotten since this program has
    seen them.
    """
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
    """Check the number of GPUs, and that Slurm's list has none that is missing: after a boot they
    may have other numbers.
    """
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
    """Return why the epilog of a job still fails on this host: a process that could not be killed
    may have ended, as its file server answers again.
    """
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


def judge_busy(kinds: dict, runtime: str = RUNTIME) -> str:
    """Return the processes of no job that still use a GPU which a prolog has refused."""
    refused = _files.read_json(BUSY)
    devices = refused.get("devices") if isinstance(refused, dict) else None
    if not isinstance(devices, list):
        return ""
    try:
        living = set(os.listdir(runtime + "/jobs"))
    except FileNotFoundError:
        living = set()
    pattern = kinds.get("nodes") or _gpu_numbers.NODES
    # Here a full look may take its time.
    found = _gpu_users.strangers(devices, pattern, living, seconds=TOOL_SECONDS)
    if not found:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(BUSY)
    return _gpu_users.message(found)


def judge_fabric() -> list[tuple[str, str]]:
    """Return the faults of the fabric's ports since the last look, one entry for each check."""
    ports = _fabric.read_ports()
    if not ports and not os.path.exists(PORTS):
        return []
    former = _files.read_json(PORTS)
    boot = _files.read(BOOT).strip()
    found, kept = _fabric.judge(former, ports, boot, time.time())
    os.makedirs(os.path.dirname(PORTS), exist_ok=True)
    _files.write_private(PORTS, json.dumps(kept))
    for text in kept.get("remarks") or []:
        print("trainyard: %s" % text, file=sys.stderr)
        log("daemon.warning", text)
    texts = {"ib-ports": [], "ib-flaps": [], "ib-counters": []}
    for check, text in found:
        texts[check].append(text)
    return [(check, ", ".join(each[:2])) for check, each in texts.items()]


def release_job() -> None:
    """Let the job start elsewhere that a prolog has refused for a busy GPU: Slurm holds it, as
    another job might fail on each node.
    """
    refused = _files.read_json(BUSY)
    job = str(refused.get("job") or "") if isinstance(refused, dict) else ""
    if not job.isdigit() or output(["scontrol", "release", job], TOOL_SECONDS) is None:
        return
    _files.write_private(BUSY, json.dumps(dict(refused, job="")))


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
    free_gib = health.get("free_gib") or {}
    found = [
        ("gpu-count", judge_devices(health.get("gpus", 0), config.get("gpus") or {})),
        ("gpu-xid", judge_kernel_log(kernel, gpus, version)),
        ("gpu-state", unread),
        *((check, judge_cards(gpus, check)) for check in OF_CARDS),
        ("alloc-gpus-busy", judge_busy(config.get("gpus") or {})),
        *judge_fabric(),
        ("driver-library", judge_driver(version, library_version())),
        ("share", missing or judge_share(share)),
        ("free-space", judge_space(free_space(free_gib), free_gib)),
        ("epilog", unfinished()),
        ("firewall", restore_tables()),
    ]
    report(found)
    return [(check, text) for check, text in found if text]


def report(checks: list[tuple[str, str]], folder: str = METRICS) -> None:
    """Write the result of each check, and what the history has of drains, for the metrics of the
    host, if it has some.
    """
    if not os.path.isdir(folder):
        return
    families = [_metrics.health_family(checks), _metrics.drains_family(history(), time.time())]
    try:
        _metrics.write(folder + "/health.prom", _metrics.render(families))
    except OSError as error:
        print("trainyard: %s: %s" % (folder, error), file=sys.stderr)


def nodes_shown() -> str:
    """Return all nodes with the times and reasons of their drains, for the breaker."""
    command = ["sinfo", "--noheader", "--Node", "--format=%N|%H|%E"]
    return output(command, TOOL_SECONDS) or ""


def log(priority: str, text: str) -> None:
    output(["logger", "--tag=trainyard-health", "--priority=" + priority, text], TOOL_SECONDS)


def hold_back(found: list[tuple[str, str]]) -> None:
    """Say that the breaker keeps the node in service, in the log of the host and in the node's
    history.
    """
    text = "not drained, as a third of the nodes are already: %s. Run verify.yml" % "; ".join(
        "%s: %s" % pair for pair in found
    )
    print("trainyard: %s" % text)
    log("daemon.err", text)
    note("held", found, "")


def history() -> list[dict]:
    former = _files.read_json(HISTORY)
    return _drains.read_history(former if isinstance(former, list) else [])


def note(event: str, found: list[tuple[str, str]], reason: str, goes_on: bool = False) -> None:
    """Add an event to the history.

    One that is held back again and again is one event, and so is a drain that goes on for other
    reasons (C(goes_on)).
    """
    former = history()
    checks = list(dict.fromkeys(check for check, _text in found))
    if event == "held" and former and former[-1]["event"] == event:
        return
    entry = {
        "time": int(time.time()),
        "event": event,
        "checks": checks,
        "new": _drains.new_checks(former if goes_on else [], found),
        "class": _drains.class_of(found),
        "reason": reason,
    }
    os.makedirs(os.path.dirname(HISTORY), exist_ok=True)
    _files.write_private(HISTORY, json.dumps(_drains.with_event(former, entry)))


def update(node: str, *change: str) -> bool:
    return output(["scontrol", "update", "nodename=%s" % node, *change], TOOL_SECONDS) is not None


def reason_shown(node: str) -> str | None:
    """Return the reason of the node in Slurm; None if Slurm does not answer."""
    shown = output(["sinfo", "--noheader", "--nodes=%s" % node, "--format=%E"], TOOL_SECONDS)
    return None if shown is None else shown.strip()


def remember(reason: str) -> None:
    os.makedirs(os.path.dirname(REASON), exist_ok=True)
    with open(REASON, "w", encoding="utf-8") as stream:
        stream.write(reason)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(HANDED_OVER)


def take_out(node: str, found: list[tuple[str, str]], former: str) -> None:
    """Drain the node, unless too many are drained already."""
    reason = _drains.line(found)
    may_hold = not former and _drains.is_held(found)
    if may_hold and _drains.is_over(node, nodes_shown()):
        hold_back(found)
        return
    if not update(node, "state=drain", "reason=%s" % reason):
        return
    if may_hold:
        time.sleep(SETTLE_SECONDS)
        if _drains.is_over(node, nodes_shown()) and update(node, "state=resume"):
            hold_back(found)
            return
    remember(reason)
    note("drain", found, reason, bool(former))


def bring_back(node: str, former: str, probes: bool) -> None:
    """Resume a node whose faults have ended, unless somebody else has drained it since, or it was
    drained too often.

    If the site has checks of idle nodes (C(probes)), they try a job before they resume it.
    """
    shown = reason_shown(node)
    if shown is None:
        return
    if shown != former:
        remember("")
        if shown in NO_REASON:
            # Verify, a person or a probe has resumed it. The next drain is a new one.
            note("resume", [], former)
        return
    if former.startswith((_drains.STAYS, _drains.PROBE)):
        return
    often = _drains.too_often(history(), time.time())
    if often:
        reason = _drains.stays_out(often)
        if update(node, "state=drain", "reason=%s" % reason):
            remember(reason)
    elif probes and former.startswith(_drains.PREFIX) and _drains.is_of_hardware(history()):
        reason = _drains.waits_for_probe(former)
        if update(node, "state=drain", "reason=%s" % reason):
            remember(reason)
    elif update(node, "state=resume"):
        remember("")
        note("resume", [], former)


def has_ended_lately(path: str) -> bool:
    """Return whether an epilog has ended well in the last hour."""
    try:
        return time.time() - os.stat(path).st_mtime < ENDED_SECONDS
    except FileNotFoundError:
        return False


def drain(node: str, found: list[tuple[str, str]], probes: bool = False) -> None:
    """Drain or resume the node, only when the reason has changed, so that a good check asks nothing
    of the controller.
    """
    reason = _drains.line(found)
    former = _files.read(REASON).strip() or _files.read(HANDED_OVER).strip()
    if reason and reason != former:
        take_out(node, found, former)
    elif former and not reason:
        bring_back(node, former, probes)
    elif not former and not reason and has_ended_lately(ENDED):
        # The epilog has ended all processes of the job that slurmd could not end.
        shown = reason_shown(node)
        if (shown or "").startswith(_drains.KILL_FAILED) and update(node, "state=resume"):
            note("resume", [], shown)


def main():
    try:
        config = json.loads(_files.read(CONFIG) or "{}")
    except ValueError as error:
        config = {}
        print("trainyard: %s: %s" % (CONFIG, error), file=sys.stderr)
    found = problems(config)
    if found:
        print(_drains.line(found))
    node = os.environ.get("SLURMD_NODENAME")
    if node:
        drain(node, found, bool(config.get("check")))
        if any(check == "alloc-gpus-busy" for check, _text in found):
            release_job()
        if os.path.exists(INSTANCES):
            output([INSTANCES], TOOL_SECONDS)
        storage = config.get("storage") or STORAGE
        own = [storage + "/jobs", storage + "/people", RUNTIME + "/jobs"]
        # At last: it may take all of its time, and nothing waits for it.
        remove_rest(own + list(SHARED_FOLDERS))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
