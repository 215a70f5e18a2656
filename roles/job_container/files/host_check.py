# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""host-check SECONDS, as root: what the health program of this host finds, and what its devices
compute under load.

Program idle-checks of the scheduler's host starts it with sudo, in a job of Slurm's own user that
has the whole node. It prints one line of JSON with C(health), what
M(trainyard.gpu.burn_in_results#module) needs to judge the devices, and C(not_made) if the load
cannot run here. It ends with its job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files
import _host_health
import _nvidia_smi

CONFIG = "/etc/trainyard/job/config.json"
HEALTH = "/usr/local/lib/trainyard/slurm/health"
SERIAL = "/sys/class/dmi/id/product_serial"
#: Of the load. The program has its own start, the disks and the slowest device to wait for.
LEAST, MOST = 1, 600
TOOL_SECONDS, START_SECONDS = 60, 300


def output(command: list, seconds: float = TOOL_SECONDS) -> tuple[int, str]:
    """Return the exit code of a command and what it printed; 127 if it cannot be started, 124 if it
    did not end.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except OSError:
        return 127, ""
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stdout.decode(errors="replace")


def look_at_health() -> str:
    """Return what the health program finds. Without the variables of slurmd it drains nothing."""
    code, text = output([HEALTH])
    lines = [line for line in text.splitlines() if line.startswith("trainyard:")]
    if lines:
        return lines[0]
    return "" if code == 0 else "%s ends with exit code %d" % (HEALTH, code)


def look_at_cards() -> dict:
    """Return the GPUs as nvidia_smi_info does; empty if there are none, or if nvidia-smi does not
    answer. Then the health program says so.
    """
    code, text = output(["nvidia-smi", "-q", "-x"])
    if code != 0:
        return {}
    try:
        answer = _nvidia_smi.parse_query(text)
    except _nvidia_smi.ParseError:
        answer = None
    return {"gpus": answer.gpus, "driver_version": answer.driver_version} if answer else {}


def look_at_errors() -> list:
    return _host_health.parse_gpu_errors(output(["dmesg"])[1])


def why_not(check: dict) -> str:
    """Return why the load cannot run here. That is no fault of the hardware."""
    name = check.get("container") or ""
    code, text = output(["docker", "inspect", "--format", "{{.State.Running}}", name])
    if not name or code != 0 or text.strip() != "true":
        return "the training container does not run"
    code, _text = output(["docker", "exec", name, "test", "-r", check.get("program") or "-"])
    if code != 0:
        return "the container does not see %s; run scheduler.yml" % check.get("program")
    return ""


def load(check: dict, seconds: int) -> dict:
    """Run the load, and return its end as a task of Ansible does.

    It ends with this program, because its input does.
    """
    plan = {"seconds": seconds, "folders": {"local": "/var/tmp"}, "leash": True}
    command = ["docker", "exec", "--interactive", "--env", "TRAINYARD_BURN_IN=" + json.dumps(plan)]
    command += [check["container"], "python3", "-B", check["program"]]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    # Slurm asks a job to end before it kills it.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(1))
    # Not communicate(), which closes the input at once.
    signal.signal(signal.SIGALRM, lambda _number, _frame: child.stdin.close())
    signal.alarm(2 * seconds + START_SECONDS)
    text = child.stdout.read().decode(errors="replace")
    signal.alarm(0)
    return {"rc": child.wait(), "stdout_lines": text.splitlines()[-3:]}


def examine(config: dict, seconds: int) -> dict:
    check = config.get("check") or {}
    answer = {"health": look_at_health(), "not_made": why_not(check)}
    if answer["not_made"]:
        return answer
    before, errors = look_at_cards(), look_at_errors()
    run, after = load(check, seconds), look_at_cards()
    return dict(
        answer,
        run=run,
        serial=_files.read(SERIAL).strip(),
        # A slow nvidia-smi is no lost GPU. The health program sees those.
        before=before if after else {},
        after=after,
        errors_before=errors,
        errors_after=look_at_errors(),
    )


def main(words: list) -> int:
    if len(words) != 1 or not words[0].isdigit() or not LEAST <= int(words[0]) <= MOST:
        print("host-check: expected a number of seconds, %d to %d" % (LEAST, MOST), file=sys.stderr)
        return 2
    config = _files.read_json(CONFIG)
    print(json.dumps(examine(config if isinstance(config, dict) else {}, int(words[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
