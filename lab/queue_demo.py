"""Jobs of three people in the queue of `make lab-slurm`: one waits for the quota of its group.

Then one of them trains on all hosts, in containers.
"""

import pathlib
import re
import time

from process import LabError, run

# Of each host.
GPUS = 2
# In this order: the two GPUs of group vision are in use when ben's job comes.
JOBS = (("anna", 2), ("ben", 1), ("carla", 1))
# The state that each job is expected to reach before the next one is submitted.
SUBMITTED = {
    "anna": ("RUNNING", "None"),
    "ben": ("PENDING", "AssocGrpGRES"),
    "carla": ("RUNNING", "None"),
}
WAIT = 120
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "roles/train/files/examples"
# Of person `TRAINS`, whose group has a quota that lets this job start.
TRAINS = "carla"
TRAINED = ("digits_torchrun.py", "example_tools.py")
TRAIN = (
    "srun --nodes={nodes} --ntasks-per-node=1 --gpus-per-node=1 --time=10 trainyard-run {image} -- "
    "trainyard-launch torchrun digits_torchrun.py"
)
# A group has the CPUs of its GPUs, and Slurm compares CPUs first. With fewer CPUs for each GPU, a
# job waits for GPUs alone.
CPUS_PER_GPU = 2
#: Asks Prometheus as root, with the certificate of its client. The hosts have no curl.
MEASURED = """
import json, ssl, urllib.request
folder = "/etc/trainyard/monitoring/tls"
context = ssl.create_default_context(cafile=folder + "/ca.pem")
context.load_cert_chain(folder + "/client.pem", folder + "/client.key")
url = "https://localhost:9090/api/v1/query?query=up%7Bjob%3D%22host%22%7D==1"
with urllib.request.urlopen(url, timeout=20, context=context) as answer:
    rows = json.load(answer)["data"]["result"]
print("\\n".join(sorted(row["metric"]["instance"] for row in rows)))
"""
COMMAND = 'echo "$USER has GPUs $CUDA_VISIBLE_DEVICES of $(hostname)"; sleep 45'


def ssh(lab, person, host=None):
    """Return the command that logs a person in."""
    address = lab.hosts[host or next(iter(lab.hosts))]
    return [
        "ssh",
        "-i",
        str(lab.key),
        "-o",
        f"UserKnownHostsFile={lab.known_hosts}",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "IdentitiesOnly=yes",
        f"{person}@{address}",
    ]


def parse_queue(text):
    """Return the lines of squeue and sacct, whose fields are separated by bars, as lists of
    words.
    """
    return [line.split("|") for line in text.splitlines() if line.strip()]


def run_jobs(lab, tell):
    """Submit a job of each person, and wait until all have ended.

    Returns the queue while one job waits, and the jobs as they ended.
    """
    head = next(iter(lab.hosts))
    numbers, queue = {}, []
    for person, gpus in JOBS:
        submitted = run(
            *ssh(lab, person),
            (
                f"sbatch --parsable --job-name=demo --gpus={gpus} --cpus-per-gpu={CPUS_PER_GPU} "
                f"--time=5 --output=%x-%j.log --wrap='{COMMAND}'"
            ),
        ).stdout.strip()
        if not re.fullmatch(r"[0-9]+", submitted):
            raise LabError(
                (
                    f"host: {head}\nstep: sbatch of {person} printed '{submitted}', expected the "
                    "number of the job"
                )
            )
        numbers[submitted] = person
        expected = SUBMITTED[person]
        deadline = time.monotonic() + WAIT
        while True:
            queue = parse_queue(
                lab.on(
                    head, "squeue", "--noheader", "--sort=i", "--format=%i|%u|%a|%T|%r|%N"
                ).stdout
            )
            now = next(((row[3], row[4]) for row in queue if row[0] == submitted), ("gone", ""))
            if now == expected:
                break
            if time.monotonic() > deadline:
                raise LabError(
                    (
                        f"host: {head}\nstep: job {submitted} of {person} is {now[0]} ({now[1]}), "
                        f"expected {expected[0]} ({expected[1]})"
                    )
                )
            time.sleep(1)
        tell(
            f"job {submitted} of {person}: {expected[0].lower()}"
            + (f", {expected[1]}" if expected[1] != "None" else "")
        )
    waiting = queue
    deadline = time.monotonic() + WAIT
    while parse_queue(lab.on(head, "squeue", "--noheader", "--format=%i").stdout):
        if time.monotonic() > deadline:
            raise LabError(
                (
                    f"host: {head}\nstep: jobs are still in the queue {WAIT} s after the last one "
                    "was submitted"
                )
            )
        time.sleep(1)
    ended = parse_queue(
        lab.on(
            head,
            "sacct",
            "--allocations",
            "--noheader",
            "--parsable2",
            "--format=JobID,User,Account,State,ExitCode,NodeList",
            "--jobs",
            ",".join(numbers),
        ).stdout
    )
    return waiting, ended


def measured_hosts(lab):
    """Wait until Prometheus reads all hosts, and return their names."""
    head = next(iter(lab.hosts))
    deadline = time.monotonic() + WAIT
    while True:
        # It fails while Prometheus starts.
        found = lab.on(head, "python3", "-c", MEASURED, check=False).stdout.split()
        if found == sorted(lab.hosts):
            return found
        if time.monotonic() > deadline:
            raise LabError(
                (
                    f"host: {head}\nstep: Prometheus reads {', '.join(found) or 'no host'}, "
                    f"expected {', '.join(lab.hosts)}"
                )
            )
        time.sleep(1)


def train(lab, image, tell):
    """Train an example on all hosts as a person would: copy the program to the share, and start it
    in containers. Returns the accuracy as text.
    """
    head = next(iter(lab.hosts))
    folder = f"/data1/share/user/{TRAINS}"
    options = ssh(lab, TRAINS)[1:-1]
    run(
        "scp",
        "-q",
        *options,
        *(str(EXAMPLES / name) for name in TRAINED),
        f"{TRAINS}@{lab.hosts[head]}:{folder}/",
    )
    command = TRAIN.format(nodes=len(lab.hosts), image=image)
    tell(f"{TRAINS}: {command}")
    printed = run(*ssh(lab, TRAINS), f"cd {folder} && {command}").stdout
    found = re.findall(r"test accuracy ([0-9.]+)$", printed, re.MULTILINE)
    if not found:
        raise LabError(f"host: {head}\nstep: the job of {TRAINS} printed no accuracy:\n{printed}")
    return found[-1]
