# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures PyTorch's all-reduce over the hosts of a job: each host alone, all together, and, if
they are too slow, searches for the slow host or link.

One job does everything, because starting a job takes longer than a measurement. Every rank waits
for rank 0, which selects the ranks of each measurement. These form their own process group. Ranks
meet in torchrun's store and never in a group of all, so that a pair that cannot connect does not
stop the others. With GPUs the job uses NCCL's all-reduce with one rank per GPU. Without GPUs it
uses Gloo's with two ranks per host: both measure the host alone, and one takes part in measurements
over the network. Then all ranks work once more and are watched. The fabric's counters, the GPUs and
NCCL's log of its connections show whether the data took the expected path. The plan is in
TRAINYARD_BANDWIDTH (JSON in base64, because it passes through several shells). The answer is
bandwidth.json in TRAINYARD_JOB_DIR, which is rewritten after each round. Python 3.6, for old
training images. The collection's _bandwidth.py, _blame.py and _job_watch.py are in the same folder.
Horovod's job (horovod_all_reduce.py) and host_watch.py use the functions of this file without
PyTorch.
"""

import base64
import contextlib
import datetime
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import _bandwidth
import _blame
from _job_watch import (
    USAGE,
    card_counters,
    cards_of,
    counters,
    interface_card,
    losses,
    output,
    rdma_models,
    read,
)

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    NO_TORCH = ""
except ImportError as error:
    NO_TORCH = str(error)

# The values for the check of the sums repeat after this many elements. No float32 sum of them is
# rounded.
PATTERN = 7
# Without any other bound, a group below this bandwidth (GB/s) fails.
WORKS = 0.001
# Minimum time of one row, and maximum number of iterations between two readings of the clock.
ROW_SECONDS = 0.25
BLOCK = 100
# Time limit of a row. The rows of one run together may take twice as long. On a slow network the
# largest messages are skipped.
RUN_SECONDS = 5
# A rank that takes longer to join its group, or hangs in a collective, has failed. Between two of
# its own steps a rank waits for many steps of others.
CONNECT_SECONDS = 5
# Minimum watch time and, if nvidia-smi is slow, maximum watch time. nvidia-smi reports the last
# second or less.
WATCH_SECONDS = {"gloo": 0.5, "nccl": 2.5}
WATCH_MOST = 20
# Some network drivers update their counters once a second.
SETTLE_SECONDS = 1.5
# The amount of data is known for this algorithm. The other protocols also send flags.
RING = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
# NCCL has few kinds of connections, but many channels.
CONNECTIONS = 200
# The collection's _run_log.py, which is on the controller, reads these lines.
REMARKED, REMARKS = ("Got async", "GPU Direct RDMA Disabled"), 20
TIMEOUT = datetime.timedelta(seconds=30)
# A rail alone is measured in processes of its own, because NCCL chooses its cards once for a
# process. They get the task in this variable, and have so many seconds for the start of PyTorch,
# the connection and the rows.
TASK, TASK_SECONDS, ROWS = "TRAINYARD_BANDWIDTH_TASK", 120, "trainyard rows: "
STORE_TIMEOUT = datetime.timedelta(seconds=600)


# --- facts of the machine ---


def facts(with_gpus):
    """Return the hardware that can limit this host: its cards and its GPUs, the models of its RDMA
    devices, and whether its GPUs have P2P.
    """
    cards, interface = cards_of(os.environ, with_gpus)
    found = {"cards": cards, "gpus": [], "interface": interface}
    if not with_gpus:
        return found
    found["gpus"] = _bandwidth.gpus(
        output("nvidia-smi", "nvlink", "--status"),
        output(
            "nvidia-smi",
            "--query-gpu=pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,name",
            "--format=csv,noheader",
        ),
    )
    found["nics"] = rdma_models()
    found["p2p"] = _bandwidth.peer_to_peer(output("nvidia-smi", "topo", "-p2p", "r"))
    return found


def rails(cards, interfaces, sysfs="/sys"):
    """Return the cards that NCCL can use one at a time: name, model, whether it is RDMA, and the
    serial number, which is the GUID or the hardware address.

    C(cards) are those that carry the data, C(interfaces) the names of NCCL_SOCKET_IFNAME, which
    count where no RDMA device carries it. Several ports of a device are one card.
    """
    found = {}
    if not any(card["rdma"] for card in cards):
        names = [name for name in interfaces.lstrip("=").split(",") if name]
        cards = (
            [] if interfaces.startswith("^") else [interface_card(name, sysfs) for name in names]
        )
    for card in cards:
        folder, file = ("infiniband", "node_guid") if card["rdma"] else ("net", "address")
        serial = read(os.path.join(sysfs, "class", folder, card["name"], file))
        found[card["name"]] = {
            "name": card["name"],
            "rdma": card["rdma"],
            "model": card.get("model", ""),
            "serial": serial.replace(":", ""),
        }
    return [found[name] for name in sorted(found)]


def over_rail(rail):
    """Return the variables with which NCCL uses this card only."""
    if rail["rdma"]:
        return {"NCCL_IB_HCA": "=" + rail["name"]}
    return {"NCCL_SOCKET_IFNAME": "=" + rail["name"], "NCCL_IB_DISABLE": "1"}


def in_process(task, changes):
    """Return the rows that a process of its own measures, with these changes of the environment.

    RuntimeError with what it has printed last.
    """
    # Rank 0 would offer a store in place of using that of the job, and the log of NCCL is that of
    # the caller.
    known = dict(os.environ, RANK="1", NCCL_DEBUG="WARN", **changes)
    known.pop("NCCL_DEBUG_FILE", None)
    known[TASK] = json.dumps(task)
    done = subprocess.run(
        [sys.executable, "-B", os.path.abspath(__file__)],
        env=known,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TASK_SECONDS,
        check=False,
        universal_newlines=True,
    )
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    results = [line[len(ROWS) :] for line in lines if line.startswith(ROWS)]
    if done.returncode or not results:
        raise RuntimeError((lines or ["it ended with exit code %d" % done.returncode])[-1])
    return json.loads(results[-1])


def measure_task(task):
    """In a process of its own: measure the rows of a task, and print them."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    store = next(rendezvous("env://"))[0]
    store.set_timeout(TIMEOUT)
    dist.init_process_group(
        "nccl",
        store=dist.PrefixStore(task["key"], store),
        rank=task["place"],
        world_size=task["ranks"],
        timeout=TIMEOUT,
    )
    rows = all_reduce_rows(task["place"], task["ranks"], task["sizes"], device)
    print(ROWS + json.dumps(rows), flush=True)
    dist.destroy_process_group()


def settled(cards):
    """Return the counters once they no longer change.

    Those of a virtual interface are always current, because its kernel counts.
    """
    if any(card["line"] for card in cards):
        time.sleep(SETTLE_SECONDS)
    return counters(cards)


class Look(threading.Thread):
    """Return the utilization of the host's GPUs one second from now."""

    def __init__(self):
        super(Look, self).__init__(daemon=True)
        self.gpus = []

    def run(self):
        time.sleep(1)
        try:
            self.gpus = [gpu[0] for gpu in _bandwidth.usage(output(*USAGE))]
        except _bandwidth.ParseError as error:
            print("nvidia-smi: %s" % error, flush=True)


def nccl_log():
    """Return the file for NCCL's log of its connections, which would be thousands of lines on the
    terminal.
    """
    # It is open as long as the caller reads it.
    log = tempfile.NamedTemporaryFile(prefix="trainyard-nccl-")
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=log.name)
    os.environ.pop("NCCL_DEBUG_SUBSYS", None)
    return log


def lines_since(log, since_byte):
    """Return the lines of NCCL's log from this position on."""
    with open(log.name, encoding="utf-8", errors="replace") as stream:
        stream.seek(since_byte)
        return stream.read().splitlines()


def connections(log, since_byte):
    """Return the distinct texts after " via " in NCCL's log from this position on.

    Empty without a log.
    """
    return sorted(
        {
            line[line.index(" via ") :].rstrip()
            for line in lines_since(log, since_byte)
            if " via " in line
        }
        if log
        else []
    )[:CONNECTIONS]


def remarked(log, since_byte):
    """Return the lines of NCCL's log from this position on that report a fault of a port or a
    detour of the data, each once.
    """
    lines = lines_since(log, since_byte) if log else []
    return sorted(
        {line.strip()[:1000] for line in lines if any(word in line for word in REMARKED)}
    )[:REMARKS]


def agreed(begun, agree):
    """Return the seconds that the slowest rank has needed."""
    return agree(time.perf_counter() - begun)


def work_for_a_while(work, agree, look, with_gpus):
    """Work until there is enough to be seen, and with GPUs until all ranks have looked at them.

    Return how often.
    """
    done, spent, block = 0, 0.0, 1
    begun = time.perf_counter()
    while spent < WATCH_SECONDS["nccl" if with_gpus else "gloo"] or (
        with_gpus and spent < WATCH_MOST and agree(float(bool(look and look.is_alive())))
    ):
        work(block)
        done += block
        spent = agreed(begun, agree)
        block = max(1, min(BLOCK, int(ROW_SECONDS * done / spent)))
    return done


def watch(work, agree, cards, with_gpus):
    """What is to be seen while this rank and the others work: the host's counters and GPUs, which
    the first of its ranks looks at (the others have no cards).

    C(work) makes as many all-reduces as it is told and waits for them. C(agree) returns one number
    for all ranks, above 0 if that of any rank is, when all of them have called it.
    """

    # Connects. No rank starts before all have read their counters.
    work(1)
    agreed(time.perf_counter(), agree)
    before, each_before = settled(cards or []), card_counters(cards or [])
    agreed(time.perf_counter(), agree)
    look = Look() if with_gpus and cards is not None else None
    if look:
        look.start()
    done = work_for_a_while(work, agree, look, with_gpus)
    after, each_after = settled(cards or []), card_counters(cards or [])
    grown = [now - then for now, then in zip(after, before)] if before and after else [None, None]
    return {
        "iterations": done,
        "first": cards is not None,
        "sent_bytes": grown[0],
        "received_bytes": grown[1],
        "by_card": _bandwidth.moved_by_card(each_before, each_after),
        "gpus": look.gpus if look else [],
    }


def watched(size, hosts, answers, error=""):
    """Return the observations of all ranks by host.

    C(hosts) has the host of each rank, C(answers) the results of P(watch) there, and C(via).
    """
    found = {"ranks": len(hosts), "size_bytes": size, "iterations": 0, "error": error, "hosts": {}}
    for name, seen in zip(hosts, answers if not error else []):
        host = found["hosts"].setdefault(name, {"ranks": 0, "via": []})
        host["ranks"] += 1
        host["via"] = sorted(set(host["via"] + seen["via"]))
        found["iterations"] = seen["iterations"]
        if seen["first"]:
            keys = ("sent_bytes", "received_bytes", "by_card", "gpus")
            host.update({key: seen[key] for key in keys})
    return found


# --- the collective ---


@contextlib.contextmanager
def environment(changes):
    """NCCL reads these variables when it creates a communicator."""
    former = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def pattern(count, addend, device):
    return (torch.arange(count, device=device) % PATTERN + addend).to(torch.float32)


def slowest(seconds, device):
    """Return the seconds of the slowest rank, so that all ranks continue in the same way."""
    longest = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return longest.item()


def since(begun, device):
    """Return the elapsed seconds of the slowest rank, after all queued operations have finished."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return slowest(time.perf_counter() - begun, device)


def measures_next(elapsed, iteration):
    """Return whether the next row is measured, with messages four times as large.

    C(iteration) is the time of one now, C(elapsed) that of all rows, in seconds.

    The first messages of a group connect its ranks, and any machine pauses now and then. That alone
    must not leave only small messages, as their latency would be judged in place of the bandwidth.
    So the time of the next row counts by itself, and the elapsed time has a higher limit.
    """
    following = ROW_SECONDS + 8 * iteration
    return following <= RUN_SECONDS and elapsed + following <= 2 * RUN_SECONDS


def all_reduce_rows(place, ranks, sizes, device):
    """Return a row for each size. Large sizes are skipped if they would take too long."""
    rows = []
    run_begun = time.perf_counter()
    for size in sizes:
        count = size // 4
        buffer = pattern(count, place + 1, device)
        # Checks the sum, warms up, and determines the number of iterations.
        begun = time.perf_counter()
        dist.all_reduce(buffer)
        block = int(ROW_SECONDS / since(begun, device))
        expected = pattern(count, 0, device) * ranks + ranks * (ranks + 1) / 2.0
        wrong = torch.tensor(
            [(buffer != expected).sum().item()], dtype=torch.float64, device=device
        )
        dist.all_reduce(wrong)
        buffer.zero_()
        done, spent = 0, 0.0
        begun = time.perf_counter()
        # For the complete time, because a throttled CPU runs at full speed for a part of each tenth
        # of a second.
        while spent < ROW_SECONDS:
            block = max(1, min(BLOCK, block))
            for _iteration in range(block):
                dist.all_reduce(buffer)
            done += block
            spent = since(begun, device)
            block = int((ROW_SECONDS - spent) * done / spent)
        rows.append(_bandwidth.row(size, spent / done, ranks, int(wrong.item())))
        if not measures_next(since(run_begun, device), spent / done):
            break
    return rows


class Rank(object):
    def __init__(self, plan):
        self.plan = plan
        self.device = (
            torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.set_num_threads(1)
        self.backend = "nccl" if self.device.type == "cuda" else "gloo"
        # The cards of the host, and its counters of lost data at the start, on the first of its
        # ranks.
        self.cards, self.lost = None, None
        self.log = None
        if self.backend == "nccl":
            self.log = nccl_log()
        self.store, self.rank, self.world = next(rendezvous("env://"))
        self.store.set_timeout(STORE_TIMEOUT)
        with socket.socket(
            socket.AF_INET6 if ":" in os.environ["MASTER_ADDR"] else socket.AF_INET,
            socket.SOCK_DGRAM,
        ) as way:
            # The address in the network on which the ranks meet. This sends nothing.
            way.connect((os.environ["MASTER_ADDR"], 9))
            self.address = way.getsockname()[0]
        places = [(host["name"], slot) for host in plan["hosts"] for slot in range(host["slots"])]
        self.host_of = [name for name, _slot in places]
        self.ranks_of = {
            host["name"]: [
                rank for rank, (name, _slot) in enumerate(places) if name == host["name"]
            ]
            for host in plan["hosts"]
        }

    def put(self, key, value):
        self.store.set(key, json.dumps(value))

    def get(self, key):
        return json.loads(self.store.get(key).decode())

    def closed_ways(self, number, ranks):
        """Return the failed connections of the group, one for each pair of hosts.

        Gloo tries for minutes and does not report the pair.
        """
        hosts = list(dict.fromkeys(self.host_of[rank] for rank in ranks))
        firsts = [next(rank for rank in ranks if self.host_of[rank] == host) for host in hosts]
        # Combined by one rank, so that every rank reads the store, which is one process, only once.
        together = "closed/%d/of/%d" % (number, firsts[0])
        if self.rank not in firsts:
            return self.get(together)
        with socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET) as listener:
            listener.bind((self.address, 0))
            listener.listen(len(firsts))
            self.put("way/%d/%d" % (number, self.rank), listener.getsockname()[:2])
            closed = []
            for peer in firsts[firsts.index(self.rank) + 1 :]:
                try:
                    socket.create_connection(
                        tuple(self.get("way/%d/%d" % (number, peer))), CONNECT_SECONDS
                    ).close()
                except OSError as error:
                    closed.append(
                        "%s cannot connect to %s: %s"
                        % (self.host_of[self.rank], self.host_of[peer], error)
                    )
            self.put("closed/%d/%d" % (number, self.rank), closed)
            if self.rank == firsts[0]:
                self.put(
                    together,
                    [each for rank in firsts for each in self.get("closed/%d/%d" % (number, rank))],
                )
            # The rank listens until all have tried.
            return self.get(together)

    def watch(self, size):
        buffer = torch.zeros(size // 4, dtype=torch.float32, device=self.device)

        def work(count):
            for _iteration in range(count):
                dist.all_reduce(buffer)
            if self.device.type == "cuda":
                torch.cuda.synchronize()

        return watch(
            work, lambda value: slowest(value, self.device), self.cards, self.backend == "nccl"
        )

    def measure(self, number, group):
        """Run this rank's part of step `number` and return its answer."""
        answer = {"rows": [], "error": ""}
        begun = time.perf_counter()
        logged = os.path.getsize(self.log.name) if self.log else 0
        try:
            closed = self.closed_ways(number, group["ranks"])
            if closed:
                raise RuntimeError(closed[0])
            # A separate store, so that the next group does not find data of a failed one.
            store = dist.PrefixStore("group/%d/%d" % (number, group["ranks"][0]), self.store)
            with environment(RING if group["watch"] else {}):
                dist.init_process_group(
                    self.backend,
                    store=store,
                    rank=group["ranks"].index(self.rank),
                    world_size=len(group["ranks"]),
                    timeout=TIMEOUT,
                )
                if group["watch"]:
                    answer["watched"] = self.watch(group["sizes"][0])
                    answer["watched"]["via"] = connections(self.log, logged)
                else:
                    answer["rows"] = all_reduce_rows(
                        group["ranks"].index(self.rank),
                        len(group["ranks"]),
                        group["sizes"],
                        self.device,
                    )
                    answer["via"] = connections(self.log, logged)
        except (RuntimeError, ValueError, OSError) as error:
            answer["error"] = (
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            )
            if self.log:
                print(
                    "\n".join(
                        [line for line in lines_since(self.log, logged) if "NCCL WARN" in line][
                            -10:
                        ]
                    ),
                    flush=True,
                )
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        answer["seconds"] = round(time.perf_counter() - begun, 2)
        answer["remarked"] = remarked(self.log, logged)
        if self.lost:
            answer["lost"] = {
                self.host_of[self.rank]: _bandwidth.grown(self.lost, losses(self.cards))
            }
        self.put("answer/%d/%d" % (number, self.rank), answer)

    def measure_rail(self, number, group):
        """Run this rank's part of step `number`, over one card of each host, in a process of its
        own.
        """
        answer = {"rows": [], "error": ""}
        begun = time.perf_counter()
        task = {
            "key": "group/%d/%d" % (number, group["ranks"][0]),
            "place": group["ranks"].index(self.rank),
            "ranks": len(group["ranks"]),
            "sizes": group["sizes"],
        }
        try:
            answer["rows"] = in_process(task, over_rail(group["rail"]))
        except subprocess.TimeoutExpired:
            answer["error"] = "it did not end within %d s" % TASK_SECONDS
        except (OSError, RuntimeError, ValueError) as error:
            answer["error"] = str(error)
        answer["seconds"] = round(time.perf_counter() - begun, 2)
        self.put("answer/%d/%d" % (number, self.rank), answer)

    def take_part(self, number):
        """Run this rank's part of step `number`. Return False at the end."""
        groups = self.get("step/%d" % number)
        for group in groups:
            if self.rank in group["ranks"]:
                measure = self.measure_rail if group.get("rail") else self.measure
                measure(number, group)
        return bool(groups)

    def follow(self):
        number = 0
        while self.take_part(number):
            number += 1
        # The host of rank 0 may have the store, so rank 0 ends last.
        self.put("left/%d" % self.rank, True)


def print_blame(verdict):
    for entry in verdict["blame"]:
        line = "%s %s: %s" % (entry["kind"], ", ".join(entry["names"]), entry["evidence"])
        print(line, flush=True)


def is_bad_alone(run):
    """Return whether a host alone is slower than its peers, or computes wrong values."""
    if run["passed"]:
        return False
    return run["expected"]["bound"] == "peers" or bool(_bandwidth.wrong_values(run["rows"]))


def trusted_busbw(run):
    """Return the bandwidth of a run in GB/s, 0 with wrong values."""
    if _bandwidth.wrong_values(run["rows"]):
        return 0.0
    return run["judged_busbw_gb_s"] or 0.0


class Conductor(Rank):
    """Rank 0: selects the measurements, checks and writes the results."""

    def __init__(self, plan):
        super(Conductor, self).__init__(plan)
        self.number = 0
        self.begun = time.perf_counter()
        self.runs = {}
        # Groups with wrong sums, once for each time.
        self.wrong = []
        self.watched = {}
        # Lost data of each host since the start.
        self.lost_of = {}
        # Lines of NCCL's log by host.
        self.remarked_on = {}
        self.facts = {}
        self.earlier = plan["history"].get(self.backend, {})
        self.hosts = [host["name"] for host in plan["hosts"]]
        # Whether each pair of hosts was measured.
        self.has_pairs = False
        # Measurements over one card of each host.
        self.by_rail = []

    def ask(self, requested, watch=False, rail=None):
        """Measure groups in parallel: {name: (ranks, sizes)} to {name: answer}.

        A watched measurement has one size, one over a rail only its card.
        """
        more = {"rail": rail} if rail else {}
        groups = [
            dict(more, ranks=ranks, sizes=sizes, watch=watch) for ranks, sizes in requested.values()
        ]
        self.put("step/%d" % self.number, groups)
        self.take_part(self.number)
        found = {}
        for name, (ranks, _sizes) in requested.items():
            # Wait for all of them, because a working rank cannot take part in the next step.
            answers = [self.get("answer/%d/%d" % (self.number, rank)) for rank in ranks]
            for rank, answer in zip(ranks, answers):
                self.lost_of.update(answer.get("lost", {}))
                self.remarked_on.setdefault(self.host_of[rank], set()).update(
                    answer.get("remarked", [])
                )
            found[name] = dict(
                answers[0],
                error=next((answer["error"] for answer in answers if answer["error"]), ""),
                watched=[answer.get("watched") for answer in answers],
                via=[text for answer in answers for text in answer.get("via", [])],
            )
        self.number += 1
        return found

    def ranks(self, hosts):
        """Return all ranks of a host if it is alone or has GPUs.

        Otherwise one, because two would share the host's CPU and card.
        """
        count = None if len(hosts) == 1 or self.backend == "nccl" else 1
        return [rank for host in hosts for rank in self.ranks_of[host][:count]]

    def run_of(self, group, answer):
        """Return the run of a group of hosts as the first of its ranks has told it."""
        run = {
            "id": self.name(group),
            "hosts": list(group),
            "ranks": len(self.ranks(group)),
            "rows": answer["rows"],
            "seconds": answer["seconds"],
            "errors": [answer["error"]] if answer["error"] else [],
            "transports": _bandwidth.transports("\n".join(answer.get("via", []))),
        }
        if len(group) > 1:
            names = {card["name"] for host in group for card in self.facts[host]["cards"]}
            cards = sorted(names) or ["an unknown interface"]
            library = "NCCL" if self.backend == "nccl" else "TCP"
            run["transports"] = ["%s over %s" % (library, ", ".join(cards))]
        return run

    def measure_groups(self, groups, sizes):
        """Measure groups of hosts in parallel into self.runs.

        The better of two measurements counts. Return their bandwidth.
        """
        answers = self.ask({self.name(group): (self.ranks(group), sizes) for group in groups})
        found = {}
        for group in groups:
            name, answer = self.name(group), answers[self.name(group)]
            run = self.run_of(group, answer)
            busbw, wrong = (
                _bandwidth.judged_busbw(run["rows"]),
                _bandwidth.wrong_values(run["rows"]),
            )
            self.runs[name] = _bandwidth.better(self.runs[name], run) if name in self.runs else run
            if wrong:
                self.wrong.append(group)
            # Groups with wrong sums are treated like slow groups.
            found[group] = None if run["errors"] or wrong else busbw
            message = answer["error"] or "%.3f GB/s%s" % (
                busbw or 0,
                ", %d wrong values" % wrong if wrong else "",
            )
            print("%-40s %s" % (name, message), flush=True)
        self.write({"blame": [], "suspect": [], "note": _bandwidth.BROKE_OFF, "rounds": 0})
        return found

    def watch_all(self):
        """Let all ranks work once more, as fast as before, and watch them."""
        name = self.name(self.hosts)
        run = self.runs.get(name)
        if (
            run is None
            or run["errors"]
            or not run["rows"]
            or (len(self.hosts) < 2 and self.backend == "gloo")
        ):
            return
        ranks = self.ranks(self.hosts)
        size = _bandwidth.watched_size(
            max(row["size_bytes"] for row in run["rows"]), self.backend, len(ranks)
        )
        answer = self.ask({name: (ranks, [size])}, watch=True)[name]
        self.watched = watched(
            size, [self.host_of[rank] for rank in ranks], answer["watched"], answer["error"]
        )
        print(
            "%-40s %s"
            % ("watched", answer["error"] or "%d x %d bytes" % (self.watched["iterations"], size)),
            flush=True,
        )

    def name(self, group):
        group = list(group)
        if len(group) == 1:
            return "host:%s" % group[0]
        if group == self.hosts:
            return "cluster"
        return "%s:%s" % ("pair" if len(group) == 2 else "group", ",".join(group))

    def judged(self):
        return _bandwidth.judge_runs(
            list(self.runs.values()), self.facts, self.backend, self.plan["asked"], self.earlier
        )

    def write(self, verdict):
        found = {
            "collective": self.backend,
            "runs": self.judged(),
            "watched": self.watched,
            "lost": self.lost_of,
            "nccl_lines": {host: sorted(lines) for host, lines in self.remarked_on.items()},
            "facts": self.facts,
            "pairs": self.has_pairs,
            "blame": verdict["blame"],
            "suspect": verdict["suspect"],
            "note": verdict["note"],
            "rounds": verdict["rounds"],
            "seconds": round(time.perf_counter() - self.begun, 2),
        }
        if self.by_rail:
            found["rails"] = self.by_rail
        write_answer(found)
        return found

    def measure_alone(self, sizes):
        """Measure each host with several ranks, so many at once as the plan says; 0 is all
        of them.
        """
        at_once = self.plan["at_once"]
        alone = [(host,) for host in self.hosts if len(self.ranks_of[host]) > 1]
        while alone:
            now, alone = alone[: at_once or None], alone[at_once:] if at_once else []
            self.measure_groups(now, sizes)

    def search_if_bad(self, sizes):
        """Return the verdict: whom to blame if the hosts together, or a host alone, are not
        good.
        """
        runs = {run["id"]: run for run in self.judged()}
        alone = {run["hosts"][0]: run for run in runs.values() if len(run["hosts"]) == 1}
        bad_alone = any(is_bad_alone(run) for run in alone.values())
        if "cluster" not in runs or (runs["cluster"]["passed"] and not bad_alone):
            return {"blame": [], "suspect": [], "note": "", "rounds": 0}
        required = runs["cluster"]["expected"]["required_gb_s"] or WORKS
        verdict = self.search(
            required,
            {host: trusted_busbw(run) for host, run in alone.items()},
            sizes[-2:-1],
            {host: run["errors"][0] for host, run in alone.items() if run["errors"]},
        )
        self.tell_wrong(verdict)
        return verdict

    def lead(self):
        self.facts = {host: self.get("facts/%s" % host) for host in self.hosts}
        sizes = _bandwidth.sizes(int(self.plan["largest"][self.backend]))
        self.measure_alone(sizes)
        if len(self.hosts) > 1:
            self.measure_groups([tuple(self.hosts)], sizes)
        self.watch_all()
        verdict = self.search_if_bad(sizes)
        if self.plan.get("pairs"):
            self.measure_pairs(sizes[-2:-1])
            self.measure_rails(sizes[-2:-1])
        found = self.write(verdict)
        print_blame(verdict)
        self.end()
        return found

    def measure_pairs(self, sizes):
        """Measure each pair of hosts once.

        Two hosts are the cluster, and the search may have measured some.
        """
        if len(self.hosts) < 3:
            return
        at_once = self.plan["at_once"]
        for pairs in _blame.circle(self.hosts):
            pairs = [pair for pair in map(self.in_order, pairs) if self.name(pair) not in self.runs]
            while pairs:
                now, pairs = pairs[: at_once or None], pairs[at_once:] if at_once else []
                self.measure_groups(now, sizes)
        self.has_pairs = True

    def shared_rails(self):
        """Return the cards that all hosts have, if they have several.

        Cards are cabled by their names: NCCL connects those of the same one.
        """
        named = [
            {rail["name"]: rail for rail in self.facts[host].get("rails") or []}
            for host in self.hosts
        ]
        shared = set(named[0]).intersection(*named[1:])
        return [named[0][name] for name in sorted(shared)] if len(shared) > 1 else []

    def measure_rails(self, sizes):
        """Measure each card alone, between two hosts at a time.

        Each host has two partners, if there are as many: one may be slow itself.
        """
        if len(self.hosts) < 2 or self.backend != "nccl":
            return
        at_once = self.plan["at_once"]
        for rail in self.shared_rails():
            for pairs in _blame.circle(self.hosts)[:2]:
                pairs = [self.in_order(pair) for pair in pairs]
                while pairs:
                    now, pairs = pairs[: at_once or None], pairs[at_once:] if at_once else []
                    self.measure_on(rail, now, sizes)

    def measure_on(self, rail, pairs, sizes):
        """Measure pairs of hosts in parallel over one card of each."""
        names = {pair: "rail:%s:%s" % (rail["name"], ",".join(pair)) for pair in pairs}
        requested = {names[pair]: (self.ranks(pair), sizes) for pair in pairs}
        answers = self.ask(requested, rail=rail)
        for pair in pairs:
            answer = answers[names[pair]]
            busbw = _bandwidth.judged_busbw(answer["rows"])
            self.by_rail.append(
                {
                    "card": rail["name"],
                    "hosts": list(pair),
                    "busbw_gb_s": busbw,
                    "wrong": _bandwidth.wrong_values(answer["rows"]),
                    "error": answer["error"],
                }
            )
            message = answer["error"] or "%.3f GB/s" % (busbw or 0)
            print("%-40s %s" % (names[pair], message), flush=True)

    def in_order(self, group):
        return tuple(sorted(group, key=self.hosts.index))

    def tell_wrong(self, verdict):
        """Add the hosts with wrong sums to the verdict. In the search they only have no
        bandwidth.
        """
        for entry in verdict["blame"]:
            count = len([group for group in self.wrong if set(entry["names"]) <= set(group)])
            if count:
                entry["evidence"] += "; the sums were wrong in %d measurements with it" % count
        if self.wrong and not verdict["blame"]:
            verdict["note"] = (
                "the sums were wrong in %s: memory, a link or a card that sometimes changes data"
                % ", ".join(sorted(set(self.name(group) for group in self.wrong)))
            )

    def search(self, required, alone, sizes, errors):
        search = _blame.search(
            self.hosts,
            required,
            alone,
            self.plan["at_once"],
            self.plan["asked"]["peer_fraction"],
            errors,
        )
        answers = None
        while True:
            try:
                groups = search.send(answers)
            except StopIteration as done:
                return done.value
            answers = self.measure_groups(groups, sizes)

    def end(self):
        self.put("step/%d" % self.number, [])
        for rank in range(1, self.world):
            self.get("left/%d" % rank)


def read_plan():
    return json.loads(base64.b64decode(os.environ["TRAINYARD_BANDWIDTH"]).decode())


def write_answer(found):
    path = os.path.join(os.environ["TRAINYARD_JOB_DIR"], "bandwidth.json")
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(found, stream, indent=1, sort_keys=True)
    os.rename(path + ".new", path)


def report_metrics(found):
    """Write the report that the job's runner adds to result.json."""
    if "TRAINYARD_RANK_REPORT" in os.environ:
        whole = [run["judged_busbw_gb_s"] for run in found["runs"] if run["id"] == "cluster"]
        with open(os.environ["TRAINYARD_RANK_REPORT"], "w", encoding="utf-8") as stream:
            json.dump({"metrics": {"busbw_gb_s": whole[0] if whole else None}}, stream)


def main():
    if NO_TORCH:
        raise SystemExit(
            "The bandwidth job needs PyTorch, which the training image lacks (%s)." % NO_TORCH
        )
    if TASK in os.environ:
        measure_task(json.loads(os.environ[TASK]))
        return
    plan = read_plan()
    agent = (Conductor if os.environ["RANK"] == "0" else Rank)(plan)
    host = next(name for name, ranks in agent.ranks_of.items() if agent.rank in ranks)
    if agent.ranks_of[host][0] == agent.rank:
        found = facts(agent.backend == "nccl")
        agent.cards, agent.lost = found["cards"], losses(found["cards"])
        if plan.get("pairs"):
            found["rails"] = rails(found["cards"], os.environ.get("NCCL_SOCKET_IFNAME", ""))
        agent.put("facts/%s" % host, found)
    if agent.rank:
        agent.follow()
        return
    report_metrics(agent.lead())


if __name__ == "__main__":
    sys.exit(main())
