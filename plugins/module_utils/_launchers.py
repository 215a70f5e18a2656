# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The launchers that start the ranks of a job: who starts them, and their command lines.

Pure functions.

Role train's runner, trainyard-launch and module nccl_all_reduce use the same table. It also runs in
training containers, so this is Python 3.6 with only the standard library.

A job is a dictionary. trainyard-run writes one for trainyard-launch, which has more keys.

    entries         for each host, in the order of the ranks, C(address) and C(slots)
    index, count    number of this host, and how many hosts there are
    ports           C(ssh) of the containers' sshd, and C(master) for the rendezvous
    job, step       identify the job for a dynamic rendezvous
    master_address  of the rendezvous, if it is not the address of the first host
    host_file       path of a file as P(host_text) returns it. Without one, mpirun gets the hosts as arguments, and horovodrun runs on this host only
    interface       name of the fabric interface, if it is the same on all hosts
    seconds         in which all ranks must connect, if there is such a limit
    version         of the launcher's package, if it is known
    environment     variables that the launcher must pass on to the ranks
    of_user         names of those variables that the user has set
    as_root         whether root starts the ranks in containers of the cluster, and this program decides how
"""

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

__all__ = [
    "EACH",
    "HEAD",
    "LAUNCHERS",
    "assignments",
    "connect_seconds",
    "first_rank",
    "host_text",
    "msrun",
    "open_mpi",
    "open_mpi_version",
    "slots",
]

#: Who starts a launcher: the first host, once for all hosts, or each host for its own ranks.
HEAD, EACH = "head", "each"
#: Seconds until all ranks have connected, if nothing else is set. They may load data before.
CONNECT_SECONDS = 600
#: Options of torchrun without a value.
TORCHRUN_FLAGS = ("standalone", "no-python", "run-path", "h", "help")
#: horovodrun's own time limit of a rank for its peers. It may be too short for loading a framework.
GLOO_SECONDS = 30

#: A job, as the beginning of this file describes it.
Job = Dict[str, Any]


def slots(job: Job) -> int:
    """Return the number of ranks."""
    return sum(entry["slots"] for entry in job["entries"])


def first_rank(job: Job, index: int) -> int:
    """Return the number of the first rank of a host. Those of all hosts before it come first."""
    return sum(entry["slots"] for entry in job["entries"][:index])


def connect_seconds(job: Job) -> int:
    """Return the seconds in which all ranks must connect."""
    return int(job.get("seconds") or CONNECT_SECONDS)


def host_text(entries: List[Dict[str, Any]]) -> str:
    """Return the text of a host file for horovodrun and mpirun. horovodrun's parser supports
    neither comments nor empty lines.
    """
    return "".join("%s slots=%d\n" % (entry["address"], entry["slots"]) for entry in entries)


def master(job: Job) -> str:
    """Return the address of the rendezvous."""
    return str(job.get("master_address") or job["entries"][0]["address"])


def release(version: Optional[str]) -> Optional[Tuple[int, int]]:
    """Return the first two numbers of a version, or None if it has none."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def assignments(environment: Mapping[str, str]) -> List[str]:
    """Return NAME=VALUE of each variable, sorted by name."""
    return ["%s=%s" % pair for pair in sorted(environment.items())]


# --- torchrun ---


def torch_launcher(version: Optional[str]) -> Tuple[List[str], bool]:
    """Return (launcher command, whether it has --rdzv_conf). torchrun exists since PyTorch 1.10,
    its module since 1.9.
    """
    found = release(version)
    if found is None or found >= (1, 10):
        return ["torchrun"], True
    if found >= (1, 9):
        return ["python3", "-m", "torch.distributed.run"], True
    # With --use_env the ranks get LOCAL_RANK in their environment, and their command gets no
    # additional argument.
    return ["python3", "-m", "torch.distributed.launch", "--use_env"], False


def torchrun_options(arguments: List[str]) -> List[Tuple[str, str]]:
    """Return the options of torchrun among the arguments, (name, value) of each.

    Those of the script, which come after its name, are not among them.
    """
    found, words = [], list(arguments)
    while words and words[0].startswith("-"):
        name, equal, value = words.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in ("m", "module"):
            break
        if not equal and name not in TORCHRUN_FLAGS and words:
            value = words.pop(0)
        found.append((name, value))
    return found


def has_own_rendezvous(arguments: List[str]) -> bool:
    """Return whether the user has chosen a rendezvous, or a number of hosts that changes, which
    static rendezvous does not have.
    """
    options = torchrun_options(arguments)
    return any(
        name.startswith("rdzv") or name == "nnodes" and ":" in value for name, value in options
    )


def torchrun(job: Job, arguments: List[str]) -> List[str]:
    """Return the command. torchrun takes the last of several equal options, so those of the user
    win.

    The hosts of a job are known, so the rendezvous is static: the one of c10d keeps pickled objects
    in a store, which everybody who reaches its port can replace. All versions accept underscores in
    options, only newer ones accept dashes.
    """
    first = job["entries"][0]
    port = job["ports"]["master"]
    launcher, has_rendezvous = torch_launcher(job.get("version"))
    command = launcher + [
        "--nnodes=%d" % job["count"],
        "--nproc_per_node=%d" % job["entries"][job["index"]]["slots"],
    ]
    if has_own_rendezvous(arguments):
        command += [
            "--rdzv_backend=c10d",
            "--rdzv_id=%s.%s" % (job["job"], job["step"]),
            "--rdzv_endpoint=%s:%d" % (first["address"], port),
            "--rdzv_conf=is_host=%d" % (job["index"] == 0),
        ]
        return command + arguments
    command += [
        "--node_rank=%d" % job["index"],
        "--master_addr=%s" % master(job),
        "--master_port=%d" % port,
    ]
    if job.get("seconds") and has_rendezvous:
        command.append("--rdzv_conf=timeout=%d" % job["seconds"])
    return command + arguments


# --- horovodrun ---


def interface_option(version: Optional[str]) -> str:
    """Return horovodrun's option for one interface.

    The plural exists since 0.25.0. All versions since 0.19.0 accept the singular.
    """
    is_new = (release(version) or (0, 0)) >= (0, 25)
    return "--network-interfaces" if is_new else "--network-interface"


def horovodrun(job: Job, arguments: List[str]) -> List[str]:
    """Return the command. horovodrun overrides NCCL_SOCKET_IFNAME and other variables of its
    environment, so the ranks get them once more behind it.
    """
    command = ["horovodrun", "-np", str(slots(job))]
    if job.get("host_file"):
        command += ["-hostfile", job["host_file"], "-p", str(job["ports"]["ssh"])]
    else:
        command += ["-H", "localhost:%d" % slots(job)]
    if job.get("seconds"):
        # The cache of an hour has hosts that have changed since.
        command += ["--disable-cache", "--start-timeout", str(job["seconds"])]
    # On one host horovodrun accepts only the loopback interface.
    if job["count"] > 1 and job.get("interface"):
        command += [interface_option(job.get("version")), job["interface"]]
    if job.get("controller", "auto") != "auto":
        command.append("--" + job["controller"])
    again = {
        name: value
        for name, value in job.get("environment", {}).items()
        if name.startswith("NCCL_") or name in job.get("of_user", ())
    }
    return command + (["env"] + assignments(again) if again else []) + arguments


def horovodrun_environment(job: Job) -> Dict[str, str]:
    """Return the variables of horovodrun: how long a rank waits for its peers."""
    return {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(GLOO_SECONDS, connect_seconds(job)))}


# --- mpirun of Open MPI ---


def mpirun(job: Job, arguments: List[str]) -> List[str]:
    """Return the command. Without -np there is one rank per slot of the host file."""
    command = [job.get("mpirun") or "mpirun"]
    if job.get("as_root"):
        command += ["--allow-run-as-root", "-np", str(slots(job))]
    if job.get("host_file"):
        command += ["--hostfile", job["host_file"]]
    else:
        hosts = ("%s:%d" % (entry["address"], entry["slots"]) for entry in job["entries"])
        command += ["-H", ",".join(hosts)]
    if job.get("as_root"):
        command += _as_root(job)
    for name, value in sorted(job.get("environment", {}).items()):
        command += ["-x", "%s=%s" % (name, value)]
    return command + arguments


def _as_root(job: Job) -> List[str]:
    """Return the options for containers of the cluster, whose ranks communicate through NCCL or
    Horovod.
    """
    counts = {entry["slots"] for entry in job["entries"]}
    # Open MPI 5 counts no slots for a host named by one of its addresses (openpmix/prrte#2258), so
    # the number of processes per node is explicit.
    each = "ppr:%d:node" % counts.pop() if len(counts) == 1 else "slot"
    options = ["--bind-to", "none", "--map-by", each + ":OVERSUBSCRIBE"]
    options += ["--mca", "plm_rsh_args", "-p %d" % job["ports"]["ssh"]]
    # MPI is only needed for the startup of the ranks. TCP is more robust for that than the fabric
    # adapters.
    options += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
    # Containers may not read each other's memory. Open MPI 4 writes a line for each message before
    # it takes another way.
    options += ["--mca", "btl_vader_single_copy_mechanism", "none"]
    network = job.get("mpi_network")
    if network:
        options += ["--mca", "btl_tcp_if_include", network]
        options += ["--mca", "oob_tcp_if_include", network]
    return options


def mpirun_environment(_job: Job) -> Dict[str, str]:
    """Return the variables of mpirun."""
    # A Horovod without MPI then ends at once, and does not train one model for each rank.
    return {"HOROVOD_CONTROLLER": "mpi"}


def open_mpi(ssh: str, network: str = "", fabric: str = "") -> Dict[str, str]:
    """Return options of Open MPI as variables, so that arguments of the user win over them.

    C(ssh) is the program that connects to the other hosts.

    Open MPI 4 and earlier have OMPI_MCA, and 5 has PRTE_MCA for its daemons.
    """
    options = {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": ssh,
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": ssh,
    }
    if network:
        options.update(OMPI_MCA_oob_tcp_if_include=network, PRTE_MCA_prte_if_include=network)
    if fabric:
        options["OMPI_MCA_btl_tcp_if_include"] = fabric
    return options


def open_mpi_version(text: str) -> Optional[str]:
    """Return the version in the output of C(mpirun --version), or None if it is not Open MPI's."""
    found = re.match(r"mpi(?:run|exec) \(Open MPI\) (\S+)", text)
    return found.group(1) if found else None


# --- MindSpore ---


def mindspore(job: Job, arguments: List[str]) -> List[str]:
    """Return the command that starts the ranks of one host. trainyard-launch sees in the container
    whether there is msrun.
    """
    return ["python3", job["program"], "mindspore", "--"] + arguments


def mindspore_environment(job: Job) -> Dict[str, str]:
    """Return the variables of trainyard-launch: the job's description."""
    return {"TRAINYARD_LAUNCH_JOB": job["description"]}


def msrun(job: Job, folder: str, program: List[str]) -> List[str]:
    """Return the command. C(program) starts a rank, and on the first host also the scheduler."""
    # Without join it does not look at the workers. Its other defaults are one port for all jobs,
    # and eight workers.
    return [
        "msrun",
        "--worker_num=%d" % slots(job),
        "--local_worker_num=%d" % job["entries"][job["index"]]["slots"],
        "--master_addr=%s" % master(job),
        "--master_port=%d" % job["ports"]["master"],
        "--node_rank=%d" % job["index"],
        "--log_dir=%s/msrun" % folder,
        "--join=True",
        "--cluster_time_out=%d" % connect_seconds(job),
    ] + program


def no_variables(_job: Job) -> Dict[str, str]:
    """Return no variables, for launchers that need none."""
    return {}


class Launcher(NamedTuple):
    """command(job, arguments) returns the command line, environment(job) the variables of the
    launcher itself. starts says who starts it.

    package is the Python package whose version decides about its options. before are words before a
    command that is not a Python script. rank says whether the launcher itself starts the command of
    a rank, so that the caller puts rank.py before it.
    """

    command: Callable[[Job, List[str]], List[str]]
    environment: Callable[[Job], Dict[str, str]]
    starts: str
    package: str
    before: List[str]
    rank: bool


LAUNCHERS = {
    "horovodrun": Launcher(horovodrun, horovodrun_environment, HEAD, "horovod", [], True),
    "torchrun": Launcher(torchrun, no_variables, EACH, "torch", ["--no_python"], True),
    "mpirun": Launcher(mpirun, mpirun_environment, HEAD, "", [], True),
    "mindspore": Launcher(mindspore, mindspore_environment, EACH, "mindspore", [], False),
}
