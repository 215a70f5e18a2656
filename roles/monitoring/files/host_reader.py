# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""host_reader SETTINGS: writes the metrics of shares, certificates, processors, jobs and the kernel
log of this host, once. A timer starts it, as root.
"""

from __future__ import annotations

import glob
import json
import os
import re
import ssl
import subprocess
import sys

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files
import _gpu_numbers
import _host_health
import _job_watch
import _metrics
import _mountinfo

TARGET = "/var/lib/trainyard/metrics/host/host.prom"
#: Only for this boot, as the kernel log is.
COUNTS = "/run/trainyard/metrics.json"
#: Of the health program: errors that the kernel log has forgotten.
ERRORS = "/var/lib/trainyard/health.json"
BOOT = "/proc/sys/kernel/random/boot_id"
SECONDS = 10
GROUPS = "/sys/fs/cgroup"
#: Control groups of Slurm's jobs, and their line of /proc/PID/cgroup without the path: version 2,
#: and version 1.
OF_JOBS = (
    ("/system.slice/*slurmstepd.scope/job_*", "", "0::"),
    ("/slurm*/uid_*/job_*", "/cpuacct", "2:cpuacct:"),
    ("/slurm*/uid_*/job_*", "/memory", "1:memory:"),
)


def output(command: list[str], seconds: float = SECONDS) -> str | None:
    """Return the output of a command, None if it fails or does not end.

    It is not waited for: a process that asks a dead file server cannot be killed.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        text = child.communicate(timeout=seconds)[0].decode("utf-8", "replace")
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        child.kill()
        return None
    return text if child.returncode == 0 else None


def space(path: str, mounts: str) -> tuple[int, int] | None:
    """Return size and free bytes of a share, None if it is not mounted or does not answer in time.

    :param mounts: the text of /proc/self/mountinfo.
    """
    if path not in {mount["path"] for mount in _mountinfo.parse_mountinfo(mounts)}:
        return None
    text = output(["stat", "--file-system", "--format=%S %b %a", path]) or ""
    words = text.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return None
    size, blocks, free = (int(word) for word in words)
    return size * blocks, size * free


def end_of(path: str) -> float | None:
    """Return when a certificate ends, in seconds since 1970. None if there is none."""
    if not os.path.exists(path):
        return None
    text = output(["openssl", "x509", "-in", path, "-noout", "-enddate"]) or ""
    try:
        return float(ssl.cert_time_to_seconds(text.strip().partition("notAfter=")[2]))
    except ValueError:
        return None


def errors_family(log: str, counts: str = COUNTS) -> _metrics.Family:
    """Return the errors of GPUs in the kernel log, and keep their counts."""
    errors = _host_health.parse_gpu_errors(log)
    former = _files.read_json(counts)
    counted = _metrics.count_errors(former if isinstance(former, dict) else {}, errors)
    os.makedirs(os.path.dirname(counts), exist_ok=True)
    _files.write_private(counts, json.dumps(counted))
    cards = _gpu_numbers.by_address(_gpu_numbers.read_host({})["driver"])
    return _metrics.xid_family(errors, counted, cards)


def kernel_log() -> str | None:
    text = output(["dmesg"])
    if text is None:
        return None
    record = _files.read_json(ERRORS)
    boot = _files.read(BOOT).strip()
    return _host_health.with_record(record if isinstance(record, dict) else {}, boot, text)


def job_loads(root: str = GROUPS) -> dict[int, dict]:
    """Return what each job of Slurm uses on this host, as _job_watch.load_of does, by its
    number.
    """
    groups: dict[int, str] = {}
    for pattern, folder, line in OF_JOBS:
        for path in glob.glob(root + folder + pattern):
            number = re.search("/job_([0-9]{1,18})$", path)
            if number:
                job = int(number.group(1))
                group = line + path[len(root + folder) :]
                groups[job] = groups.get(job, "") + group + "\n"
    return {job: _job_watch.load_of(text, root) for job, text in groups.items()}


def families(settings: dict) -> list[_metrics.Family]:
    mounts = _files.read("/proc/self/mountinfo")
    ends = {path: end_of(path) for path in settings["certificates"]}
    known = {path: end for path, end in ends.items() if end is not None}
    expected = settings["gpus"]
    found = [
        *_metrics.share_families([(path, space(path, mounts)) for path in settings["shares"]]),
        _metrics.certificate_family(known),
        *_metrics.job_load_families(job_loads()),
        _metrics.cpu_family(_files.read("/proc/stat"), os.sysconf("SC_CLK_TCK")),
        _metrics.Family(
            "trainyard_host_gpus_expected",
            "gauge",
            "GPUs or NPUs that the host had when it was configured.",
            [({}, expected)] if expected else [],
        ),
    ]
    log = kernel_log() if expected else None
    return found if log is None else [*found, errors_family(log)]


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as stream:
        settings = json.load(stream)
    _metrics.write(TARGET, _metrics.render(families(settings)))


if __name__ == "__main__":
    main()
