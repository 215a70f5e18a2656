#!/usr/bin/env python3
"""Brings the lab's hosts up and down on this machine, and runs the whole way on them: see lab/README.md."""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import shutil
import signal
import sys
import time

import images
import inventory
import report
from hosts import SHARE, Lab, labs_of, other_labs
from machine import Engine
from process import LabError, say, stream

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".lab" / "cache"
COMMITTED = ROOT / "inventories" / "lab"
CONTAINER = "trainyard-training"


@contextlib.contextmanager
def only_one(state, wait=False):
    """Hold a folder's lock; what is left of a run whose make was killed is ended first, a living run is waited for or respected."""
    state.mkdir(parents=True, exist_ok=True)
    with open(state / "lock", "a+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder, parent = ([int(word) for word in lock.read().split()] + [0, 0])[:2]
                # Without a number the holder has just begun: it is asked again.
                if holder and parent != _parent_of(holder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(holder, signal.SIGTERM)
                elif holder and not wait:
                    raise LabError(f"another run is at work on {state} (process {holder}): wait for it, or end it")
                time.sleep(0.5)
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()} {os.getppid()}")
        lock.flush()
        yield


def _parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def log_file(state, stage):
    folder = state / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%SZ}-{stage}.log"


def prepare(options):
    """Have all that every lab on this machine shares: engine, images, wheels, the inventory's file about this machine."""
    engine = Engine(CACHE)
    with only_one(CACHE, wait=True):
        log = log_file(ROOT / ".lab", "prepare")
        wheels = images.wheels(ROOT, CACHE, log)  # first: what may have to be set by hand is said before the slow parts
        engine.ensure()
        host = images.host_image(engine, CACHE, log)
        base, archive = images.training_base(engine, CACHE, log)
        inventory.write(inventory.machine_file(ROOT), inventory.to_yaml(inventory.machine_variables(ROOT, base, archive, wheels)))
    return engine, options.image or host


def bring_up(options):
    engine, image = prepare(options)
    lab = Lab(engine, options.name, options.subnet, options.state, options.hosts)
    lab.check_owner()
    lab.up(image)
    folder = options.inventory or (COMMITTED if lab.name == "lab" and options.hosts == 2 else ROOT / "inventories" / f"{lab.name}_{options.hosts}")
    if folder != COMMITTED:
        inventory.write_inventory(ROOT, folder, lab)
    return lab, folder


def up(options):
    with only_one(options.state):
        bring_up(options)


def playbook(name, folder, state):
    """Run a playbook as a user would; its output goes to the terminal and to a log."""
    log = log_file(state, pathlib.Path(name).stem)
    say(f"ansible-playbook {name} -i {folder.relative_to(ROOT)}  (log {log})")
    binaries = ROOT / ".venv" / "bin"
    environment = {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    if sys.stdout.isatty():
        environment["ANSIBLE_FORCE_COLOR"] = "1"
    os.chdir(ROOT)
    status = stream([str(binaries / "ansible-playbook"), name, "-i", str(folder)], log, environment)
    if status != 0:
        raise LabError(report.failure_text(name, status, log.read_text(errors="replace"), log))


def read_result(lab, since):
    """result.json of the newest job on the share that has ended since a time."""
    head = next(iter(lab.hosts))
    newest = f"find {SHARE}/.trainyard/jobs -name result.json -newermt @{since:.0f} -printf '%T@ %p\\n' | sort -n | tail -n 1 | cut -d' ' -f2- | xargs --no-run-if-empty cat"
    text = lab.engine.docker("exec", head, "sh", "-c", newest).stdout
    if not text:
        raise LabError(f"host: {head}\nstep: summary: train.yml has left no result.json under {SHARE}/.trainyard/jobs")
    return json.loads(text)


def whole_way(options):
    seconds = {}

    def timed(stage, action, *arguments):
        begun = time.monotonic()
        value = action(*arguments)
        seconds[stage] = time.monotonic() - begun
        return value

    with only_one(options.state):
        lab, folder = timed("lab", bring_up, options)
        timed("site.yml", playbook, "site.yml", folder, options.state)
        begun = time.time()
        timed("train.yml", playbook, "playbooks/train.yml", folder, options.state)
        result = read_result(lab, begun)
        docker_on_head = ("exec", next(iter(lab.hosts)), "docker")
        image = lab.engine.docker(*docker_on_head, "inspect", "--format", "{{.Config.Image}} {{.Image}}", CONTAINER).stdout.strip()
        build_table = lab.engine.docker(*docker_on_head, "exec", CONTAINER, "horovodrun", "--check-build").stdout
        print(report.summary(lab.hosts, image, build_table, result, seconds), flush=True)


def down(options):
    engine = Engine(CACHE)
    with only_one(options.state):
        if engine.started_by_lab() and not engine.reachable():
            engine.ensure()
        others = []
        if engine.reachable():
            lab = Lab(engine, options.name, options.subnet, options.state)
            lab.check_owner()
            lab.down()
            others = other_labs(engine, options.name)
        else:
            say("no Docker engine answers: there is nothing of the lab in one")
        # As many hosts as HOSTS= has asked for; a user's own inventories lie beside them.
        for folder in (ROOT / "inventories").glob(f"{options.name}_*"):
            if folder.name.rpartition("_")[2].isdigit():
                shutil.rmtree(folder)
        if others:
            say(f"images, wheels and keys of labs that are up stay: {', '.join(others)}")
        elif options.keep:
            say(f"images, wheels and {CACHE} stay (--keep)")
        else:
            if engine.reachable():
                images.remove_images(engine)
            engine.stop()
            with only_one(CACHE, wait=True):
                images.remove_scratch(CACHE / "tmp")
                shutil.rmtree(CACHE)
            inventory.machine_file(ROOT).unlink(missing_ok=True)
        for entry in options.state.iterdir():
            if entry != CACHE and entry.name != "lock" and not (others and entry.is_dir() and (entry / "lock").exists()):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        (options.state / "lock").unlink()
        with contextlib.suppress(OSError):
            options.state.rmdir()
    say("down")


def down_all(options):
    """Remove every lab that this checkout has brought up (the tests have one too), then all that they shared."""
    engine = Engine(CACHE)
    if engine.reachable():
        for name, state in labs_of(engine, ROOT):
            down(argparse.Namespace(name=name, subnet=options.subnet, state=state, keep=True))
        # Of scenarios, unless one is running.
        if not engine.docker("ps", "--all", "--quiet", "--filter", "label=trainyard.molecule").stdout.strip():
            images.remove_images(engine, "trainyard-molecule")
    down(options)


def shell(options):
    engine = Engine(CACHE)
    if not engine.reachable() or options.host not in (hosts := Lab(engine, options.name, options.subnet, options.state).containers()):
        raise LabError(f"there is no host {options.host}" + (f"; there are {', '.join(hosts)}" if engine.reachable() and hosts else ": run make lab"))
    os.execv(engine.client, [engine.client, "exec", "--interactive", "--tty", "--user", "ops", "--workdir", "/home/ops", options.host, "bash", "--login"])


def main():
    parser = argparse.ArgumentParser(prog="lab/lab.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, action, text):
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(action=action)
        added.add_argument("--name", default="lab", help="prefix of the hosts' names (lab-a, lab-b) and of the lab's Docker objects")
        added.add_argument("--subnet", default="172.30.77.0/24", help="addresses of the lab's network; the first host has the eleventh")
        added.add_argument("--state", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / ".lab", help="folder of the lab's keys and logs")
        return added

    for name, action, text in (
        ("prepare", prepare, "Have a Docker engine, the hosts' image, the base archive of the training image and the wheels."),
        ("up", up, "Bring the hosts up."),
        ("run", whole_way, "Bring the hosts up, run site.yml and train.yml on them, print a summary."),
    ):
        added = command(name, action, text)
        added.add_argument("--hosts", type=int, choices=range(2, 10), default=2, metavar="N", help="how many hosts, 2 to 9")
        added.add_argument("--image", default="", help="an image with systemd for the hosts, instead of the one that is built here")
        added.add_argument("--inventory", type=lambda path: pathlib.Path(path).resolve(), help="folder for an inventory of these hosts")
    added = command("down", down, "Remove the hosts and all that belongs to them.")
    added.add_argument("--keep", action="store_true", help="keep what is slow to make: images, base archive, wheels, a started engine")
    command("down-all", down_all, "Remove all labs of this checkout.").set_defaults(keep=False)
    added = command("shell", shell, "Open a shell on a host.")
    added.add_argument("host", nargs="?", default="lab-a")

    options = parser.parse_args()
    try:
        options.action(options)
    except LabError as problem:
        print(f"\nlab: failed\n{problem}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nlab: interrupted. make lab goes on from here, make lab-down removes it.", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
