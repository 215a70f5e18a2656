# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of jobs: which blocks a job gets, and nftables' table that opens them to its person only.

Prolog and epilog import it. The unit of the firewall runs it: `_job_ports.py load` builds the
table from the jobs that live on this host, so that a flush of all tables loses nothing.
"""

import contextlib
import fcntl
import json
import os
import pwd
import sys

sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files

CONFIG = "/etc/trainyard/job/ports.json"
#: One file per job of this host. trainyard-run reads it.
STATE = "/run/trainyard/ports"
JOBS = "/run/trainyard/jobs"
NFT = "/usr/sbin/nft"
TABLE = "inet trainyard_jobs"
#: The ports of jobs, and the blocks in them. The number of blocks is a prime.
FIRST_PORT, LAST_PORT, BLOCK, BLOCKS = 10000, 29999, 20, 997
#: Blocks that a job may get, and how many of them it gets on a host.
CANDIDATES, CLAIMS = 8, 3
#: IDs of the system's accounts, Debian's of slurm and nobody among them. All others are judged.
SYSTEM = "0-999, 64030, 65534"
#: The one ID that no process has.
NO_ID = (1 << 32) - 1
NEW = "tcp flags & (fin | syn | rst | ack) == syn"
ANSWER = "tcp flags & (syn | ack) == syn | ack"


def is_of_the_system(uid: int) -> bool:
    """Return whether a job is no person's.

    Role train keeps hosts free with jobs of Slurm's own user. They have no processes on the hosts,
    but the user has: slurmctld and slurmdbd. Root has jobs only until Slurm refuses them.
    """
    try:
        return uid == 0 or pwd.getpwuid(uid).pw_name == "slurm"
    except KeyError:
        return False


# --- pure functions ---


def subordinate(name, uid, text):
    """Return the ranges (first, end) of a user's subordinate IDs, from the text of /etc/subuid."""
    found = []
    for line in text.splitlines():
        fields = line.split(":")
        if (
            len(fields) == 3
            and fields[0] in (name, str(uid))
            and fields[1].isdigit()
            and fields[2].isdigit()
        ):
            found.append((int(fields[1]), int(fields[1]) + int(fields[2])))
    return found


def candidates(job):
    """Return the blocks that a job may get, by its number alone.

    Jobs with the same first block have other ones after it, and those of a hundred jobs in a row
    are all different.
    """
    number = int(job)
    stride = 101 + number // BLOCKS % 25
    return [(number + place * stride) % BLOCKS for place in range(CANDIDATES)]


def ports_of(block):
    first = FIRST_PORT + block * BLOCK
    return [first, first + BLOCK - 1]


def claim(job, hosts, others, open_ports):
    """Return the blocks of a job on this host: those that no other job has here.

    With another job it may share a second host, on which the other one has a block that was
    taken here when it began. Neither end could tell the two jobs apart in such a block.
    """
    taken = {(port - FIRST_PORT) // BLOCK for port in open_ports}
    for other in others:
        taken |= set(other["blocks"])
        if len(set(hosts) & set(other["hosts"])) > 1:
            taken |= set(candidates(other["job"]))
    return [block for block in candidates(job) if block not in taken][:CLAIMS]


def hosts_of_job(environment, own, known):
    """Return the hosts of a job that the cluster knows. Without a list it is this host."""
    text = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
    named = [name for name in expand_nodes(text) if name in known]
    return sorted(set(named) | {own})


def expand_nodes(text):
    """Return the names of a node list such as a[01-03,7],b. Of a list in another form, none."""
    names = [""]
    found = []
    depth = 0
    inner = ""
    for character in text + ",":
        if character == "[" and depth == 0:
            depth, inner = 1, ""
        elif character == "]" and depth == 1:
            depth = 0
            names = [name + number for name in names for number in _numbers(inner)]
        elif depth:
            inner += character
        elif character == ",":
            found += names
            names = [""]
        else:
            names = [name + character for name in names]
    return [name for name in found if name]


def _numbers(text):
    found = []
    for part in text.split(","):
        first, _dash, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers = range(int(first), int(last or first) + 1)
            found += ["%0*d" % (len(first), number) for number in numbers]
    return found


def kernel_ports(text):
    """Return the first and last port that the kernel chooses, above those of jobs."""
    first, last = (int(word) for word in text.split())
    return max(first, LAST_PORT + 1), max(last, LAST_PORT + 1)


def _of_family(addresses):
    """Return (ip or ip6, its addresses as a set of nft) of each family that has some."""
    found = {"ip": [], "ip6": []}
    for address in addresses:
        found["ip6" if ":" in address else "ip"].append(address)
    return [(kind, "{ %s }" % ", ".join(sorted(set(some)))) for kind, some in found.items() if some]


def _addresses(names, config):
    return [address for name in names for address in config["hosts"].get(name, [])]


def _people(jobs):
    ranges = sorted({tuple(pair) for job in jobs for pair in job["uids"]})
    return "meta skuid { %s }" % ", ".join("%d-%d" % pair for pair in ranges)


def _blocks(jobs, key, prefix):
    """Return the rule that leads the ports of each block to a chain of its job."""
    found = [
        "%d-%d : goto %s_%s" % (tuple(ports_of(block)) + (prefix, job["job"]))
        for job in jobs
        for block in job["blocks"]
    ]
    return ["th %s vmap { %s }" % (key, ", ".join(found))] if found else []


def _output_of_job(job, config):
    """Return the chains for what leaves this host to, and from, the ports of a job."""
    people = _people([job])
    inside = [people + ' oifname "lo" accept']
    inside += [
        "%s %s daddr %s accept" % (people, kind, some)
        for kind, some in _of_family(_addresses(job["hosts"], config))
    ]
    return [
        ("to_" + job["job"], inside + ["goto refuse"]),
        ("from_" + job["job"], [people + " accept", "drop"]),
    ]


def _output(config, jobs, kernel):
    """Return the chains that judge new connections of people of this host to training hosts."""
    open_ports = "{ %s }" % ", ".join(map(str, sorted(config["open"])))
    training = _of_family(_addresses(config["training"], config))
    # On a login host srun and the sessions of people listen on such ports.
    guarded = [name for name in config["training"] if name not in config["login"]]
    jobs_here = [_people(jobs) + " accept"] if jobs else []
    elsewhere = [
        "%s %s daddr %s accept" % (_people([job]), kind, some)
        for job in jobs
        for kind, some in _of_family(_addresses(job["hosts"], config))
    ]
    ports = "%d-%d" % (FIRST_PORT, LAST_PORT)
    chains = [("refuse", ["meta l4proto tcp reject with tcp reset", "reject"])]
    for job in jobs:
        chains += _output_of_job(job, config)
    is_login = config["host"] in config["login"]
    chains += [
        ("here", ["accept"] if is_login else jobs_here + ["goto refuse"]),
        ("elsewhere", elsewhere + ["goto refuse"]),
        ("local_port", _blocks(jobs, "dport", "to") + ["meta l4proto udp accept", "goto here"]),
        (
            "remote_port",
            _blocks(jobs, "dport", "to") + ["meta l4proto udp accept", "goto elsewhere"],
        ),
        (
            "to_port",
            (['oifname "lo" goto local_port'] if config["host"] in config["training"] else [])
            + ["%s daddr %s goto remote_port" % pair for pair in training],
        ),
        (
            "to_kernel_port",
            (['oifname "lo" goto here'] if config["host"] in guarded else [])
            + [
                "%s daddr %s goto elsewhere" % pair
                for pair in _of_family(_addresses(guarded, config))
            ],
        ),
        ("from_port", _blocks(jobs, "sport", "from")),
        (
            "people",
            [
                "th dport %s accept" % open_ports,
                "%s tcp dport %s goto to_port" % (NEW, ports),
                "udp dport %s goto to_port" % ports,
                "%s tcp dport %d-%d goto to_kernel_port" % ((NEW,) + tuple(kernel)),
                # A process that has taken a port of another person's job answers nobody.
                "%s tcp sport %s goto from_port" % (ANSWER, ports),
                "udp sport %s goto from_port" % ports,
            ],
        ),
        (
            "output",
            [
                "type filter hook output priority filter - 10; policy accept;",
                "meta skuid { %s } accept" % SYSTEM,
                # Sockets of the kernel have no ID, also those that it opens for a person (AF_SMC).
                # Those of NFS have a port that people cannot have.
                "meta l4proto { tcp, udp } th sport >= 1024 goto people",
                "meta l4proto { tcp, udp } meta skuid != %d goto people" % NO_ID,
            ],
        ),
    ]
    return chains


def _own(config):
    """Return the addresses by which other hosts know this one, as C(_of_family) has them.

    Tables of other hosts judge their people by these addresses only. This host may have more: of a
    link, of a network that the inventory does not know, and those that many hosts have.
    """
    return _of_family(_addresses([config["host"]], config))


def _from(addresses, config):
    """Return the rules that accept what comes from these addresses to a known one of this host."""
    own = dict(_own(config))
    return [
        "%s saddr %s %s daddr %s accept" % (kind, some, kind, own[kind])
        for kind, some in _of_family(addresses)
        if kind in own
    ]


def _input(config, jobs, kernel):
    """Return the chains that judge new connections to this host.

    Who has made them is judged where they come from, if that host knows the address.
    """
    chains = []
    for job in jobs:
        chains.append(
            ("at_" + job["job"], _from(_addresses(job["hosts"], config), config) + ["goto refuse"])
        )
    # Launchers of root, such as horovodrun, choose any port. People are judged where they come
    # from.
    cluster = [address for some in config["hosts"].values() for address in some]
    ports = "%d-%d" % (FIRST_PORT, LAST_PORT)
    open_ports = "th dport { %s } accept" % ", ".join(map(str, sorted(config["open"])))
    chains.append(
        (
            "at_port",
            [open_ports]
            + _blocks(jobs, "dport", "at")
            # Others are used by nobody, or by resolvers.
            + ["meta l4proto udp accept"]
            + _from(cluster, config)
            + ["goto refuse"],
        )
    )
    rules = [
        "type filter hook input priority filter - 10; policy accept;",
        'iifname "lo" accept',
        "%s tcp dport %s goto at_port" % (NEW, ports),
        # Answers of servers for names and time come from a port that people cannot have.
        "udp sport >= 1024 udp dport %s goto at_port" % ports,
    ]
    if config["host"] not in config["login"]:
        # A file server calls its clients back from a port that people cannot have.
        chains.append(
            (
                "at_kernel_port",
                [open_ports, "th sport < 1024 accept"]
                + ["%s daddr %s accept" % pair for pair in _own(config)]
                + ["goto refuse"],
            )
        )
        rules.append("%s tcp dport %d-%d goto at_kernel_port" % ((NEW,) + tuple(kernel)))
    return chains + [("input", rules)]


def table(config, jobs, kernel):
    """Return the text for nft that replaces the table at once: there is no moment without it."""
    jobs = sorted(jobs, key=lambda job: int(job["job"]))
    chains = _output(config, jobs, kernel)
    if config["host"] in config["training"]:
        chains += _input(config, jobs, kernel)
    lines = ["table " + TABLE, "delete table " + TABLE, "table %s {" % TABLE]
    for name, rules in chains:
        lines += ["  chain %s {" % name] + ["    " + rule for rule in rules] + ["  }"]
    return "\n".join(lines + ["}", ""])


# --- the host ---


@contextlib.contextmanager
def alone(state):
    """Let one program at a time change state and table."""
    os.makedirs(state, mode=0o755, exist_ok=True)
    with open(state + "/lock", "a", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def live_jobs(state, jobs):
    """Return what is noted of the jobs of this host. A job without its folder has ended."""
    found = []
    for name in os.listdir(state):
        number, _dot, kind = name.partition(".")
        if kind == "json" and os.path.isdir("%s/%s" % (jobs, number)):
            found.append(_files.load_json("%s/%s" % (state, name)))
    return found


def adopt(config, state, jobs):
    """Once, note the jobs that began before this host had the program. Their hosts are not
    known.
    """
    mark = state + "/adopted"
    if os.path.exists(mark):
        return
    with open(mark, "w", encoding="ascii"):
        pass
    for number in sorted(os.listdir(jobs)) if os.path.isdir(jobs) else []:
        if number.isdigit():
            uid = os.lstat("%s/%s" % (jobs, number)).st_uid
            note(number, uid, sorted(config["training"]), config, state, jobs)


def note(job, uid, hosts, config, state, jobs):
    """Write which blocks a job has here, and who its processes are."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    uids = [[uid, uid]] + [
        [first, end - 1] for first, end in subordinate(name, uid, _files.read("/etc/subuid"))
    ]
    others = [other for other in live_jobs(state, jobs) if other["job"] != job]
    blocks = claim(job, hosts, others, config["open"])
    entry = {
        "job": job,
        "uids": uids,
        "hosts": hosts,
        "blocks": blocks,
        "ports": [ports_of(block) for block in blocks],
    }
    path = "%s/%s.json" % (state, job)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(entry, stream)
    os.chmod(path + ".new", 0o644)
    os.rename(path + ".new", path)


def load(config, state, jobs):
    """Replace the table by one for the jobs that live here."""
    if not config["enabled"]:
        return
    path, error_path = state + "/table.nft.new", state + "/table.error"
    kernel = kernel_ports(_files.read("/proc/sys/net/ipv4/ip_local_port_range"))
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(table(config, live_jobs(state, jobs), kernel))
    # Module subprocess takes longer to load than nft runs.
    opened = (os.POSIX_SPAWN_OPEN, 2, error_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    child = os.posix_spawn(
        NFT, ["nft", "--file", path], {"PATH": "/usr/sbin:/usr/bin"}, file_actions=[opened]
    )
    if os.waitpid(child, 0)[1]:
        lines = (_files.read(error_path).strip() or "it was killed").splitlines()
        raise OSError(
            (
                "the firewall of jobs cannot be loaded: nft: %s; repair nftables on this host, or "
                "set job_container_firewall to false"
            )
            % lines[0]
        )
    # What the kernel has now. Module host_health_info and the health program compare the two.
    os.rename(path, state + "/table.nft")


def read_config(path=CONFIG):
    return _files.load_json(path, None)


def open_ports(job, uid, environment, config=None, state=STATE, jobs=JOBS):
    """Give a job its ports on this host. If it fails, they stay closed, and the job must
    not start.
    """
    config = config or read_config()
    if not config:
        return
    with alone(state):
        adopt(config, state, jobs)
        note(
            job,
            uid,
            hosts_of_job(environment, config["host"], config["hosts"]),
            config,
            state,
            jobs,
        )
        try:
            load(config, state, jobs)
        except OSError:
            os.unlink("%s/%s.json" % (state, job))
            raise


def close_ports(job, config=None, state=STATE, jobs=JOBS):
    """Close the ports of a job whose processes have ended."""
    config = config or read_config()
    path = "%s/%s.json" % (state, job)
    if not config or not os.path.exists(path):
        return
    with alone(state):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        load(config, state, jobs)


def main():
    config = read_config()
    try:
        if config is None:
            raise OSError("%s is missing; run playbook scheduler" % CONFIG)
        with alone(STATE):
            adopt(config, STATE, JOBS)
            load(config, STATE, JOBS)
    except OSError as problem:
        print("trainyard: %s" % problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
