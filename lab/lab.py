#!/usr/bin/env python3
"""Creates and removes the lab's hosts on this machine, and runs the playbooks on them: see
lab/README.md.
"""

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
import machine
import queue_demo
import report
from hosts import SHARE, Lab, labs_of, other_labs
from machine import Engine
from process import LabError, heartbeat, say, stream
from virtual import VirtualLab, build_storage, in_use

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".lab" / "cache"
COMMITTED = ROOT / "inventories" / "lab"
COMMITTED_SLURM = ROOT / "inventories" / "lab_slurm"
COMMITTED_VIRTUAL = ROOT / "inventories" / "lab_virtual"
BUILDER_SUBNET = "172.30.75.0/24"


@contextlib.contextmanager
def only_one(state, wait=False):
    """Hold the lock of a folder.

    Stops a leftover run whose make was killed. Waits for another running one, or fails.
    """
    state.mkdir(parents=True, exist_ok=True)
    with open(state / "lock", "a+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder, parent = ([int(word) for word in lock.read().split()] + [0, 0])[:2]
                # Without a number the holder has just started, so the file is read again.
                if holder and parent != _parent_of(holder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(holder, signal.SIGTERM)
                elif holder and not wait:
                    raise LabError(
                        f"another run is using {state} (process {holder}): wait for it, or stop it"
                    ) from None
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


def tools_and_wheels(options: argparse.Namespace, log: pathlib.Path) -> pathlib.Path:
    """Install the Python tools if make asks for it, and download the wheels of the training image
    with them. Returns the folder of wheels.
    """
    if options.setup and stream(["make", "--silent", ".venv/complete"], log) != 0:
        raise LabError(f"step: lab/setup failed\nlog: {log}")
    return images.with_horovod(images.wheels(ROOT, CACHE, log), CACHE)


def prepare(options):
    """Prepare what all labs on this machine share: engine, images, wheels and the inventory's file
    about this machine. Returns the engine and the base of the hosts: an image name, or the system
    of the virtual machines.
    """
    if options.virtual and not machine.is_root():
        raise LabError(
            (
                "virtual hosts need root on this machine, for their network and disks: run make "
                "lab-vm as root"
            )
        )
    engine = Engine(CACHE)
    with only_one(CACHE, wait=True):
        log, log_of_base, log_of_tools = (
            log_file(ROOT / ".lab", stage) for stage in ("prepare", "prepare-base", "prepare-tools")
        )

        def engine_and_images():
            engine.ensure()
            return images.side_by_side(
                lambda: images.host_image(engine, CACHE, log),
                lambda: images.training_base(engine, CACHE, log_of_base),
            )

        wheels, (host, (base, archive)) = images.side_by_side(
            lambda: tools_and_wheels(options, log_of_tools), engine_and_images
        )
        for path in inventory.machine_files(ROOT):
            inventory.write(
                path, inventory.to_yaml(inventory.machine_variables(ROOT, base, archive, wheels))
            )
        system = (
            images.virtual_system(CACHE, log_file(ROOT / ".lab", "virtual"))
            if options.virtual
            else None
        )
    return engine, system or options.image or host


def bring_up(options, committed=COMMITTED, job_gpus=0):
    engine, image = prepare(options)
    lab = Lab(engine, options.name, options.subnet, options.state, options.hosts, job_gpus)
    lab.check_owner()
    if in_use(options.state):
        raise LabError(
            (
                f"the lab {lab.name} already runs virtual hosts with the same addresses: run make "
                "lab-down first"
            )
        )
    lab.up(image)
    return lab, inventory_of(options, lab, committed)


def bring_up_virtual(options):
    engine, system = prepare(options)
    lab = VirtualLab(engine, options.name, options.subnet, options.state, options.hosts)
    lab.check_owner()
    lab.check_free()
    if options.qemu:
        system["uml"] = None
    lab.up(system, training_storage(engine, options) if options.trains else None)
    return lab, inventory_of(options, lab, COMMITTED_VIRTUAL)


def inventory_of(options, lab, committed):
    folder = options.inventory or (
        committed
        if lab.name == "lab" and options.hosts == 2
        else ROOT / "inventories" / f"{lab.name}_{options.hosts}"
    )
    if folder != committed:
        inventory.write_inventory(ROOT, folder, lab, committed)
    return folder


def training_storage(engine, options):
    """Build a disk with the training image, on a temporary container host, where compilers are
    fast.
    """
    target = CACHE / f"docker-{images.recipe_digest(ROOT)}.ext4"
    if target.exists():
        return target
    if not machine.runs_virtual_machines():
        for stale in CACHE.glob("docker-*.ext4"):
            stale.unlink()
    say("building the training image on a container host")
    state = options.state / "builder"
    builder = Lab(engine, f"{options.name}-builder", BUILDER_SUBNET, state, 1)
    try:
        builder.up(images.host_image(engine, CACHE, log_file(ROOT / ".lab", "prepare")))
        folder = state / "inventory"
        inventory.write_inventory(ROOT, folder, builder, COMMITTED)
        playbook("playbooks/gpu_stack.yml", folder, options.state)
        playbook(
            "playbooks/training_environment.yml", folder, options.state, "--tags", "training_image"
        )
        say("creating a disk with the training image")
        build_storage(builder, next(iter(builder.hosts)), target)
    finally:
        builder.down()
        shutil.rmtree(state, ignore_errors=True)
    return target


def up(options):
    with only_one(options.state):
        (bring_up_virtual if options.virtual else bring_up)(options)


def playbook(name, folder, state, *arguments):
    """Run a playbook as a user would. Its output goes to the terminal and to a log."""
    log = log_file(state, pathlib.Path(name).stem)
    say(
        (
            f"ansible-playbook {' '.join([name, '-i', str(folder.relative_to(ROOT)), *arguments])} "
            f" (log {log})"
        )
    )
    binaries = ROOT / ".venv" / "bin"
    environment = {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    if sys.stdout.isatty():
        environment["ANSIBLE_FORCE_COLOR"] = "1"
    os.chdir(ROOT)
    status = stream(
        [str(binaries / "ansible-playbook"), name, "-i", str(folder), *arguments], log, environment
    )
    if status != 0:
        raise LabError(report.failure_text(name, status, log.read_text(errors="replace"), log))


def read_result(lab, since):
    """Return result.json of the newest job on the share that ended since the given time."""
    head = next(iter(lab.hosts))
    newest = (
        f"find {SHARE}/.trainyard/jobs -name result.json -newermt @{since:.0f} -printf '%T@ %p\\n' "
        "| sort -n | tail -n 1 | cut -d' ' -f2- | xargs --no-run-if-empty cat"
    )
    text = lab.on(head, "sh", "-c", newest).stdout
    if not text:
        raise LabError(
            (
                f"host: {head}\nstep: summary: train.yml wrote no result.json below "
                f"{SHARE}/.trainyard/jobs"
            )
        )
    return json.loads(text)


def timer(seconds):
    """Return a function that calls another one and adds its seconds under the name of a stage."""

    def timed(stage, action, *arguments):
        begun = time.monotonic()
        value = action(*arguments)
        seconds[stage] = time.monotonic() - begun
        return value

    return timed


def share(options):
    """Bring up a cluster that groups share, with metrics and the command trainyard, and run a job
    of each person.
    """
    seconds = {}
    timed = timer(seconds)
    with only_one(options.state):
        lab, folder = timed("lab", bring_up, options, COMMITTED_SLURM, queue_demo.GPUS)
        timed("site.yml", playbook, "site.yml", folder, options.state)
        images.keep_horovod(lab, CACHE)
        timed("metrics", playbook, "playbooks/monitoring.yml", folder, options.state)
        measured = timed("scrape", queue_demo.measured_hosts, lab)
        say(f"Prometheus reads {', '.join(measured)}")
        waiting, ended = timed("jobs", queue_demo.run_jobs, lab, say)
        image = lab.on(
            next(iter(lab.hosts)),
            "docker",
            "inspect",
            "--format",
            "{{.Config.Image}}",
            images.CONTAINER,
        ).stdout.strip()
        accuracy = timed("training", queue_demo.train, lab, image, say)
        logins = ["  " + " ".join(queue_demo.ssh(lab, person)) for person, _gpus in queue_demo.JOBS]
        print(
            report.queue_summary(lab.hosts, waiting, ended, accuracy, logins, seconds), flush=True
        )


def whole_way(options):
    seconds = {}
    timed = timer(seconds)
    options.trains = options.virtual
    with only_one(options.state):
        lab, folder = timed("lab", bring_up_virtual if options.virtual else bring_up, options)
        timed("site.yml", playbook, "site.yml", folder, options.state)
        if not options.virtual:
            images.keep_horovod(lab, CACHE)
        begun = time.time()
        timed("train.yml", playbook, "playbooks/train.yml", folder, options.state)
        result = read_result(lab, begun)
        head = next(iter(lab.hosts))
        image = lab.on(
            head, "docker", "inspect", "--format", "{{.Config.Image}} {{.Image}}", images.CONTAINER
        ).stdout.strip()
        build_table = lab.on(
            head, "docker", "exec", images.CONTAINER, "horovodrun", "--check-build"
        ).stdout
        print(report.summary(lab.hosts, image, build_table, result, seconds), flush=True)


def keep_compiled(options: argparse.Namespace) -> None:
    engine = Engine(CACHE)
    if not engine.reachable():
        raise LabError("no Docker engine answers, so there are no hosts whose Horovod can be kept")
    images.keep_horovod(Lab(engine, options.name, options.subnet, options.state), CACHE)


def down(options):
    engine = Engine(CACHE)
    with only_one(options.state):
        if engine.started_by_lab() and not engine.reachable():
            engine.ensure()
        others = remove_hosts(engine, options)
        # The inventories that HOSTS= created. A user's own inventories are in the same folder.
        for folder in (ROOT / "inventories").glob(f"{options.name}_*"):
            if folder.name.rpartition("_")[2].isdigit():
                shutil.rmtree(folder)
        if others:
            say(f"images, wheels and keys are kept for running labs: {', '.join(others)}")
        elif options.keep:
            say(f"images, wheels and {CACHE} are kept (--keep)")
        else:
            remove_shared(engine)
        remove_state(options.state, others)
    say("down")


def remove_hosts(engine, options):
    """Remove the hosts of a lab, and return the names of the other labs."""
    if not engine.reachable():
        VirtualLab(engine, options.name, options.subnet, options.state).remove_machines()
        say("no Docker engine answers, so there are no containers to remove")
        return []
    kind = VirtualLab if in_use(options.state) else Lab
    lab = kind(engine, options.name, options.subnet, options.state)
    lab.check_owner()
    lab.down()
    # The builder of a run that was killed while it built the training image for virtual hosts.
    builder = options.state / "builder"
    Lab(engine, f"{options.name}-builder", BUILDER_SUBNET, builder, 1).down()
    return other_labs(engine, options.name)


def remove_shared(engine):
    """Remove what all labs share: images, the engine, its cache, and the files of the machine."""
    if engine.reachable():
        images.remove_images(engine)
    engine.stop()
    with only_one(CACHE, wait=True):
        images.remove_scratch(CACHE / "tmp")
        shutil.rmtree(CACHE)
    for path in inventory.machine_files(ROOT):
        path.unlink(missing_ok=True)


def remove_state(state, others):
    """Remove the folder of a lab without the cache and, if there are other labs, their folders."""
    for entry in state.iterdir():
        is_other = bool(others) and entry.is_dir() and (entry / "lock").exists()
        if entry == CACHE or entry.name == "lock" or is_other:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (state / "lock").unlink()
    with contextlib.suppress(OSError):
        state.rmdir()


def down_all(options):
    """Remove every lab of this checkout, including those of the tests, and then what they
    shared.
    """
    engine = Engine(CACHE)
    if engine.reachable():
        for name, state in labs_of(engine, ROOT):
            down(argparse.Namespace(name=name, subnet=options.subnet, state=state, keep=True))
        # The images of scenarios, unless one is running.
        if not engine.docker(
            "ps", "--all", "--quiet", "--filter", "label=trainyard.molecule"
        ).stdout.strip():
            images.remove_images(engine, "trainyard-molecule")
    down(options)


def shell(options):
    engine = Engine(CACHE)
    if in_use(options.state):
        hosts = [path.name for path in (options.state / "hosts").iterdir()]
        lab = VirtualLab(engine, options.name, options.subnet, options.state, len(hosts))
    elif engine.reachable():
        lab = Lab(engine, options.name, options.subnet, options.state)
        hosts = lab.containers()
    else:
        hosts = []
    if options.host not in hosts:
        raise LabError(
            f"there is no host '{options.host}'"
            + (f". The hosts are {', '.join(sorted(hosts))}" if hosts else ": run make lab")
        )
    command = lab.login(options.host)
    os.execvp(command[0], command)


def power(options):
    """Switch a virtual host on, or off without a shutdown. Does not wait for it."""
    engine = Engine(CACHE)
    if not in_use(options.state):
        raise LabError(f"{options.state} has no virtual hosts: run make lab-vm")
    engine.ensure()
    lab = VirtualLab(
        engine,
        options.name,
        options.subnet,
        options.state,
        len(list((options.state / "hosts").iterdir())),
    )
    if options.host not in lab.hosts:
        raise LabError(f"there is no host '{options.host}'. The hosts are {', '.join(lab.hosts)}")
    if options.switch == "off":
        lab.cut_power(options.host)
    else:
        lab.attach(images.virtual_system(CACHE, log_file(ROOT / ".lab", "virtual"))).start(
            options.host
        )


def main():
    parser = argparse.ArgumentParser(prog="lab/lab.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, action, text):
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(action=action)
        added.add_argument(
            "--name",
            default="lab",
            help="prefix of the hosts' names (lab-a, lab-b) and of the lab's Docker objects",
        )
        added.add_argument(
            "--subnet",
            default="172.30.77.0/24",
            help="addresses of the lab's network; the first host has the eleventh",
        )
        added.add_argument(
            "--state",
            type=lambda path: pathlib.Path(path).resolve(),
            default=ROOT / ".lab",
            help="folder of the lab's keys and logs",
        )
        return added

    for name, action, text in (
        (
            "prepare",
            prepare,
            (
                "Prepare a Docker engine, the hosts' image, the base archive of the training image "
                "and the wheels."
            ),
        ),
        ("up", up, "Create and start the hosts."),
        (
            "run",
            whole_way,
            "Create the hosts, run site.yml and train.yml on them, and print a summary.",
        ),
        (
            "share",
            share,
            (
                "Create the hosts, run site.yml with Slurm on them, and run a job of each of three "
                "people."
            ),
        ),
    ):
        added = command(name, action, text)
        added.add_argument(
            "--hosts",
            type=int,
            choices=range(2, 10),
            default=2,
            metavar="N",
            help="number of hosts, 2 to 9",
        )
        added.add_argument(
            "--image",
            default="",
            help="image with systemd for the hosts, instead of the one built by the lab",
        )
        added.add_argument(
            "--release",
            default="",
            choices=["", *images.PYTHON_OF],
            metavar="CODENAME",
            help="release of the hosts and of the training image (default: this machine's): %s"
            % ", ".join(images.PYTHON_OF),
        )
        added.add_argument(
            "--setup",
            action="store_true",
            help="install the Python tools into .venv first, beside the images",
        )
        added.add_argument(
            "--virtual",
            action="store_true",
            help="use virtual machines with their own kernels as hosts",
        )
        added.add_argument(
            "--qemu",
            action="store_true",
            help="with --virtual: use QEMU instead of User-mode Linux, which has no nftables",
        )
        added.add_argument(
            "--trains",
            action="store_true",
            help="with --virtual: create hosts that already have the training image",
        )
        added.add_argument(
            "--inventory",
            type=lambda path: pathlib.Path(path).resolve(),
            help="folder for an inventory of these hosts",
        )
    added = command("down", down, "Remove the hosts and everything that belongs to them.")
    added.add_argument(
        "--keep",
        action="store_true",
        help="keep what is slow to create: images, base archive, wheels, a started engine",
    )
    command(
        "keep", keep_compiled, "Keep the Horovod of these hosts for builds from the same inputs."
    )
    command("down-all", down_all, "Remove all labs of this checkout.").set_defaults(keep=False)
    added = command("shell", shell, "Open a shell on a host.")
    added.add_argument("host", nargs="?", default="lab-a")

    added = command("power", power, "Switch a virtual host on, or off without a shutdown.")
    added.add_argument("switch", choices=["on", "off"])
    added.add_argument("host")

    options = parser.parse_args()
    # Of this process and of those that it starts.
    if getattr(options, "release", ""):
        os.environ["LAB_RELEASE"] = options.release
    try:
        with heartbeat():
            options.action(options)
    except LabError as problem:
        print(f"\nlab: failed\n{problem}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print(
            "\nlab: interrupted. make lab continues from here, make lab-down removes the lab.",
            file=sys.stderr,
            flush=True,
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
