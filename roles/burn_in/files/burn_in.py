# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads all GPUs of a host at the same time, and checks each value that they compute, store and
copy. Without GPUs, ranks on the CPU do the same.

It runs in the training image with its PyTorch. The plan is JSON in TRAINYARD_BURN_IN: "seconds",
"folders" ({name: path} whose disk is measured), "ranks" (of a host without GPUs; 0 means one for
each two CPUs, at most 8), "leash" (end when the input does). The last line of the output is the
answer: "ranks" with "rates" (lists of GB/s and TFLOP/s) and "wrong" (numbers of wrong values) for
each, "host", "software" and "error". A process for each rank, so that a GPU that fails ends only
its own.

All numbers are integers that no precision rounds: the products of the matrices are known, and one
flipped bit is seen. Python 3.6, for old training images.
"""

import contextlib
import datetime
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

try:
    import torch

    NO_TORCH = ""
except ImportError as error:
    NO_TORCH = str(error)

# The product of the matrices below has only three values, n/5 times 10, 0 and -5. With n = 5 * 2^k
# each precision has them exactly.
PERIOD = 5
PRODUCTS = (10, 0, -5, -5, 0)
SIZES = {
    "cuda": {"float64": 2560, "float32": 5120, "tf32": 5120, "float16": 10240, "bfloat16": 10240},
    "cpu": {"float64": 640, "float32": 640},
}
# Smaller matrices, for GPUs with little memory.
LEAST_SIZE = 1280
# From this compute capability on, a GPU has the precision.
SINCE = {"tf32": (8, 0), "bfloat16": (8, 0), "float16": (5, 3)}
PATTERNS = (0, -1, 0x5555555555555555, -0x5555555555555556)
CHUNK_BYTES = {"cuda": 256 << 20, "cpu": 16 << 20}
# Of the free memory of a GPU, and bytes of a rank on a CPU.
MEMORY_SHARE, CPU_BYTES = 0.8, 64 << 20
# Of each measurement. Ten or more are needed for a judgement.
SLICE_SECONDS, ROUNDS = 2.0, 10
PAIR_BYTES, PAIR_REPEATS = 128 << 20, 3
RING_BYTES, RING_SECONDS = {"cuda": 256 << 20, "cpu": 4 << 20}, 180
DISK_BYTES = 256 << 20
MOST_RANKS = 8
SYSTEM_CPUS = "/sys/devices/system/cpu"
# Counters of errors of the host's memory, where the memory has ECC.
EDAC = "/sys/devices/system/edac/mc"
# Of the host's own memory: a share of what is free, and at most so many bytes, and so many for each
# second of the load.
HOST_SHARE, HOST_BYTES, HOST_BYTES_EACH_SECOND = 16, 1 << 30, 256 << 20
HOST_CHUNK, HOST_PATTERNS = 64 << 20, (0x00, 0xFF, 0x55, 0xAA)
# Both clocks follow a time server in the same way, unless it sets the time at once.
CLOCK_STEP_SECONDS = 1.0
# Drivers of CPUs that choose the clock themselves, also with governor powersave.
OWN_CLOCK = ("intel_pstate", "amd-pstate-epp")
#: The process that has started a rank.
STARTER = "TRAINYARD_BURN_IN_STARTER"


# --- a rank ---


def matrices(size, dtype, device):
    """Return two matrices of small integers, and their product."""
    row = torch.arange(size, device=device)
    left = (row[:, None] * 7 + row[None, :]) % PERIOD - 2
    right = (row[:, None] + row[None, :] * 3) % PERIOD - 2
    table = torch.tensor(PRODUCTS, device=device) * (size // PERIOD)
    product = table[(row[:, None] * 7 - row[None, :] * 3) % PERIOD]
    return left.to(dtype), right.to(dtype), product


class Device(object):
    """One GPU, or the CPU of a rank."""

    def __init__(self, kind):
        self.kind = kind
        self.device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
        self.rates, self.wrong = {}, {}

    def wait(self):
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def free_bytes(self):
        if self.kind == "cpu":
            return CPU_BYTES
        if hasattr(torch.cuda, "mem_get_info"):
            return torch.cuda.mem_get_info()[0]
        # PyTorch before 1.11: half of it, as others may have some.
        return torch.cuda.get_device_properties(self.device).total_memory // 2

    def precisions(self):
        if self.kind == "cpu":
            return list(SIZES["cpu"])
        has = torch.cuda.get_device_capability(self.device)
        return [name for name in SIZES["cuda"] if has >= SINCE.get(name, (0, 0))] + (
            ["int8"] if self.has_int8() else []
        )

    def has_int8(self):
        """PyTorch's product of int8 has no promise: it is used where it works."""
        try:
            small = torch.ones(64, 64, dtype=torch.int8, device=self.device)
            return int(torch._int_mm(small, small)[0, 0]) == 64
        except (AttributeError, RuntimeError):
            return False

    def repeat(self, work, seconds):
        """Return how often a work was done in some seconds, and in how many."""
        work()
        self.wait()
        begun, done, block = time.perf_counter(), 0, 1
        while True:
            for _time in range(block):
                work()
            self.wait()
            done += block
            spent = time.perf_counter() - begun
            if spent >= seconds:
                return done, spent
            # In larger blocks, so that the GPU does not wait for the host.
            block = max(1, min(1000, int((seconds - spent) * done / spent)))

    def note(self, test, rate, wrong):
        self.rates.setdefault(test, []).append(round(rate, 5))
        self.wrong[test] = self.wrong.get(test, 0) + int(wrong)

    def multiply(self, name, seconds):
        """Multiply matrices in a precision, and compare the product."""
        size = SIZES[self.kind].get(name, 10240)
        if self.kind == "cuda":
            # Both matrices, products, and the integers that they are made of.
            while size > LEAST_SIZE and 60 * size * size > self.free_bytes():
                size //= 2
        dtype = {"tf32": torch.float32}.get(name) or getattr(torch, name)
        left, right, product = matrices(size, dtype, self.device)
        if self.kind == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        multiply = torch._int_mm if name == "int8" else torch.matmul
        kept = []

        def work():
            kept[:] = [multiply(left, right)]

        done, spent = self.repeat(work, seconds)
        wrong = (kept[0].to(torch.float64) != product.to(torch.float64)).sum().item()
        self.note("matmul_" + name, done * 2.0 * size**3 / spent / 1e12, wrong)

    def chunks(self, count):
        words = CHUNK_BYTES[self.kind] // 8
        return [torch.empty(words, dtype=torch.int64, device=self.device) for _n in range(count)]

    def remember(self, seconds):
        """Write patterns to most of the memory, and read them: each pattern stands while the others
        are written elsewhere.
        """
        share = MEMORY_SHARE if self.kind == "cuda" else 1
        chunks = self.chunks(max(2, int(self.free_bytes() * share // CHUNK_BYTES[self.kind])))
        wrong = 0
        for turn in range(len(PATTERNS)):
            for number, chunk in enumerate(chunks):
                chunk.fill_(PATTERNS[(turn + number) % len(PATTERNS)])
            self.wait()
            for number, chunk in enumerate(chunks):
                wrong += (chunk != PATTERNS[(turn + number) % len(PATTERNS)]).sum().item()
        one, other = chunks[:2]
        one.copy_(torch.arange(one.numel(), device=self.device))
        done, spent = self.repeat(lambda: other.copy_(one), seconds)
        wrong += (one != other).sum().item()
        self.note("memory", done * 2.0 * CHUNK_BYTES[self.kind] / spent / 1e9, wrong)

    def exchange(self, seconds):
        """Copy to the GPU and back."""
        words = CHUNK_BYTES["cuda"] // 8
        source = torch.arange(words).pin_memory()
        back = torch.empty(words, dtype=torch.int64).pin_memory()
        there = self.chunks(1)[0]
        for test, work in (
            ("to_device", lambda: there.copy_(source, non_blocking=True)),
            ("from_device", lambda: back.copy_(there, non_blocking=True)),
        ):
            done, spent = self.repeat(work, seconds)
            self.note(test, done * float(CHUNK_BYTES["cuda"]) / spent / 1e9, 0)
        self.wrong["from_device"] += int((back != source).sum().item())

    def burn(self, seconds):
        tests = [
            lambda span, name=name: self.multiply(name, span) for name in self.precisions()
        ] + [self.remember]
        if self.kind == "cuda":
            tests.append(self.exchange)
        deadline = time.perf_counter() + seconds
        span = max(0.05, min(SLICE_SECONDS, seconds / float(ROUNDS * len(tests)) / 2))
        # The starter names itself: it may be gone before PyTorch is loaded.
        parent, rounds = int(os.environ.get(STARTER) or os.getppid()), 0
        while rounds < ROUNDS or time.perf_counter() < deadline:
            for test in tests:
                # The starter is gone, and with it who reads the answer. Twice the time: a device
                # far too slow.
                if os.getppid() != parent or time.perf_counter() > deadline + seconds + 60:
                    return
                test(span)
                if self.kind == "cuda":
                    torch.cuda.empty_cache()
            rounds += 1


def rank(kind, seconds):
    """Run one rank, and return what it found."""
    if kind == "cpu":
        torch.set_num_threads(1)
    device, error = Device(kind), ""
    try:
        device.burn(seconds)
    except RuntimeError as problem:
        error = (str(problem).strip().splitlines() or ["RuntimeError"])[0][:300]
    found = {"rates": device.rates, "wrong": device.wrong, "error": error}
    if kind == "cuda":
        found["model"] = torch.cuda.get_device_name(0)
    return found


def pairs(count):
    """Copy between all pairs of GPUs.

    Return for each GPU its rates with the others, and its wrong values.
    """
    found = [{"rates": [], "wrong": 0} for _number in range(count)]
    source = torch.arange(PAIR_BYTES // 8)
    for first in range(count):
        one = source.to(torch.device("cuda", first))
        for second in range(count):
            if first == second:
                continue
            other = torch.empty_like(one, device=torch.device("cuda", second))
            other.copy_(one)
            torch.cuda.synchronize(second)
            begun = time.perf_counter()
            for _time in range(PAIR_REPEATS):
                other.copy_(one)
            torch.cuda.synchronize(first)
            torch.cuda.synchronize(second)
            spent = time.perf_counter() - begun
            wrong = (other.cpu() != source).sum().item()
            for number in (first, second):
                found[number]["rates"].append(round(PAIR_REPEATS * PAIR_BYTES / spent / 1e9, 3))
                found[number]["wrong"] += int(wrong)
    return found


def ring(kind, number, count, path):
    """Add up the same integers on all ranks of the host several times.

    Return the bus bandwidths and the number of wrong sums of this rank.
    """
    # All GPUs are visible to each rank, because NCCL connects those that it sees.
    device = torch.device("cuda", number) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(number)
    limit = datetime.timedelta(seconds=RING_SECONDS // 2)
    torch.distributed.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method="file://" + path,
        rank=number,
        world_size=count,
        timeout=limit,
    )
    source = torch.arange(RING_BYTES[kind] // 4, dtype=torch.int32, device=device) % 1000
    found = {"rates": [], "wrong": 0}
    for turn in range(ROUNDS + 1):
        data = source * (number + 1)
        torch.distributed.barrier()
        begun = time.perf_counter()
        torch.distributed.all_reduce(data)
        if kind == "cuda":
            torch.cuda.synchronize(device)
        spent = time.perf_counter() - begun
        found["wrong"] += int((data != source * (count * (count + 1) // 2)).sum().item())
        # The first one connects the ranks.
        if turn:
            moved = 2.0 * (count - 1) / count * RING_BYTES[kind]
            found["rates"].append(round(moved / spent / 1e9, 4))
    return found


# --- the host ---


def read(path):
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def numbers(text):
    """Return the numbers of a list such as 0-3,8."""
    found = []
    for part in text.split(","):
        first, _dash, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def host_faults(system=SYSTEM_CPUS):
    """Return CPUs that are off, and CPUs that do not run as fast as they can."""
    faults = []
    off = sorted(set(numbers(read(system + "/present"))) - set(numbers(read(system + "/online"))))
    if off:
        faults.append(
            "%d CPUs are present but not online: %s" % (len(off), ", ".join(map(str, off[:8])))
        )
    slow = {}
    for path in glob.glob(system + "/cpu[0-9]*/cpufreq/scaling_governor"):
        governor, driver = read(path), read(os.path.dirname(path) + "/scaling_driver")
        if governor == "powersave" and driver not in OWN_CLOCK:
            slow[governor] = slow.get(governor, 0) + 1
    faults += ["the governor of %d CPUs is %s" % (count, name) for name, count in slow.items()]
    return faults


def free_memory(text):
    """Return the free bytes of the host, from the text of /proc/meminfo."""
    words = [line.split() for line in text.splitlines() if line.startswith("MemAvailable:")]
    return int(words[0][1]) << 10 if words else 0


def check_memory(size, chunk=HOST_CHUNK):
    """Return the number of wrong bytes of the host's memory: each pattern stands while the others
    are written elsewhere.
    """
    blocks = [bytes(bytearray([pattern])) * chunk for pattern in HOST_PATTERNS]
    kept = [bytearray(chunk) for _number in range(size // chunk)]
    wrong = 0
    for turn in range(len(blocks)):
        for number, memory in enumerate(kept):
            memory[:] = blocks[(turn + number) % len(blocks)]
        for number, memory in enumerate(kept):
            block = blocks[(turn + number) % len(blocks)]
            if memory != block:
                wrong += sum(one != other for one, other in zip(memory, block))
    return wrong


def memory_errors(root=EDAC):
    """Return the errors of the host's memory since the boot: corrected, and not corrected."""
    counts = []
    for name in ("ce_count", "ue_count"):
        texts = [read(path) for path in glob.glob(root + "/mc[0-9]*/" + name)]
        counts.append(sum(int(text) for text in texts if text.isdigit()))
    return counts


def clocks():
    """Return the time of the host and a time that nobody sets, in seconds."""
    return time.time(), time.monotonic()


def end_of_host(answer, errors, begun, now=None):
    """Add to the answer what the host's memory has counted since, and a step of its clock."""
    fresh = [now_ - then for then, now_ in zip(errors, memory_errors())]
    faults, remarks = answer["faults"], answer["remarks"]
    if fresh[1] > 0:
        faults.append("%d uncorrectable errors of the host's memory during the run" % fresh[1])
    if fresh[0] > 0:
        remarks.append("%d corrected errors of the host's memory during the run" % fresh[0])
    ended = now or clocks()
    step = (ended[0] - begun[0]) - (ended[1] - begun[1])
    if abs(step) > CLOCK_STEP_SECONDS:
        remarks.append("the clock of the host was set by %+.1f s during the run" % step)


def disk(path):
    """Return the GB/s of writing a file to the disk, and of reading it, and the number of wrong
    blocks. The file is removed.
    """
    block = bytes(bytearray(range(256))) * 16384
    name = os.path.join(path, ".trainyard-burn-in.%d" % os.getpid())
    count = DISK_BYTES // len(block)
    try:
        begun = time.perf_counter()
        with open(name, "wb") as stream:
            for _number in range(count):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
            written = time.perf_counter() - begun
            # Otherwise it would be read from the host's memory.
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begun, wrong = time.perf_counter(), 0
        with open(name, "rb") as stream:
            for _number in range(count):
                wrong += stream.read(len(block)) != block
        return DISK_BYTES / written / 1e9, DISK_BYTES / (time.perf_counter() - begun) / 1e9, wrong
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def host(folders, seconds=0):
    found = {"rates": {}, "wrong": {}, "faults": host_faults(), "model": cpu_model()}
    found["remarks"] = []
    free = free_memory(read("/proc/meminfo")) // HOST_SHARE
    size = min(free, HOST_BYTES, int(seconds * HOST_BYTES_EACH_SECOND))
    found["wrong"]["memory"] = check_memory(size)
    for name, path in sorted(folders.items()):
        try:
            written, loaded, wrong = disk(path)
        except OSError as error:
            found["faults"].append("the disk of %s: %s" % (name, error))
            continue
        found["rates"]["write_" + name] = [round(written, 4)]
        found["rates"]["read_" + name] = [round(loaded, 4)]
        found["wrong"]["read_" + name] = wrong
    return found


def cpu_model():
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return os.uname().machine


def gpus():
    """Return the UUIDs of the GPUs in the order of nvidia-smi.

    None without nvidia-smi. GPUs with MIG belong to several people and are left alone.
    """
    try:
        text = subprocess.check_output(
            ["nvidia-smi", "--query-gpu=uuid,mig.mode.current", "--format=csv,noheader"],
            stderr=subprocess.DEVNULL,
        ).decode(errors="replace")
    except (OSError, subprocess.CalledProcessError):
        return None
    rows = [line.split(", ") for line in text.splitlines() if line.startswith("GPU-")]
    return [row[0] for row in rows if row[-1].strip() != "Enabled"]


def start(arguments, environment):
    return subprocess.Popen(
        [sys.executable, "-B", os.path.abspath(__file__)] + arguments,
        env=dict(os.environ, **dict(environment, **{STARTER: str(os.getpid())})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def answer_of(process):
    """Return the answer of a process, or why it has none."""
    out, err = process.communicate()
    lines = out.decode(errors="replace").splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        messages = err.decode(errors="replace").strip().splitlines()
        return {
            "error": "it ended with code %s: %s"
            % (process.returncode, (messages or ["no message"])[-1][:300])
        }


def run_ring(kind, count, uuids):
    """Return the answers of all ranks of an all-reduce on this host.

    Empty if PyTorch cannot do it, or if there is one rank only.
    """
    if count < 2 or not getattr(torch, "distributed", None) or not torch.distributed.is_available():
        return []
    folder = tempfile.mkdtemp()
    try:
        words = [kind, str(count), os.path.join(folder, "meet")]
        processes = [start(["ring", str(n)] + words, visible(uuids)) for n in range(count)]
        # One that waits for another that has died.
        watch = threading.Timer(RING_SECONDS, lambda: [each.kill() for each in processes])
        watch.daemon = True
        watch.start()
        answers = [answer_of(process) for process in processes]
        watch.cancel()
        return answers
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def add_ring(answer, kind, rings):
    """Add the all-reduce to the answer: to each GPU, and to a host without, whose ranks
    share CPUs.
    """
    for entry, its in zip(answer["ranks"], rings):
        if "rates" not in its:
            answer["error"] = answer["error"] or "the all-reduce of this host: %s" % its["error"]
            continue
        place = entry if kind == "cuda" else answer["host"]
        place.setdefault("rates", {})["all_reduce"] = its["rates"]
        entry.setdefault("wrong", {})["all_reduce"] = its["wrong"]


def conduct(plan):
    uuids = gpus() if torch.cuda.is_available() else []
    if uuids is None:
        uuids = [str(number) for number in range(torch.cuda.device_count())]
    errors, begun = memory_errors(), clocks()
    answer = {
        "software": "torch %s, CUDA %s" % (torch.__version__, torch.version.cuda),
        "host": host(plan.get("folders") or {}, float(plan["seconds"])),
        "error": "",
    }
    between = []
    if len(uuids) > 1:
        reply = answer_of(start(["pairs", str(len(uuids))], visible(uuids)))
        between = reply.get("pairs") or []
        answer["error"] = reply.get("error", "")
    kind = "cuda" if uuids else "cpu"
    # Ansible may write numbers as texts.
    ranks = int(plan.get("ranks") or 0)
    count = len(uuids) or ranks or max(1, min(MOST_RANKS, (os.cpu_count() or 2) // 2))
    seconds = str(plan["seconds"])
    rings = run_ring(kind, count, uuids)
    processes = [
        start(
            ["rank", kind, seconds, str(number)],
            visible(uuids[number : number + 1]),
        )
        for number in range(count)
    ]
    answer["ranks"] = [
        rank_answer(process, number, uuids, answer["host"]["model"])
        for number, process in enumerate(processes)
    ]
    for reply, its in zip(answer["ranks"], between):
        reply.setdefault("rates", {})["peers"] = its["rates"]
        reply.setdefault("wrong", {})["peers"] = its["wrong"]
    add_ring(answer, kind, rings)
    end_of_host(answer["host"], errors, begun)
    return answer


def rank_answer(process, number, uuids, model):
    """Return the answer of a rank. On a CPU its model is that of the host."""
    if uuids:
        return dict(answer_of(process), index=number, kind="gpu", uuid=uuids[number])
    return dict(answer_of(process), index=number, kind="cpu", model=model)


def visible(uuids):
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def end_with_input():
    """End when the input does: who has started the program in this container is gone, and nobody
    reads the answer. The ranks end with it.
    """
    while sys.stdin.read(4096):
        pass
    os._exit(1)


def main():
    if NO_TORCH:
        raise SystemExit(
            "The burn-in needs PyTorch, which the training image lacks (%s)." % NO_TORCH
        )
    if sys.argv[1:2] == ["rank"]:
        print(json.dumps(rank(sys.argv[2], float(sys.argv[3]))))
    elif sys.argv[1:2] == ["ring"]:
        print(json.dumps(ring(sys.argv[3], int(sys.argv[2]), int(sys.argv[4]), sys.argv[5])))
    elif sys.argv[1:2] == ["pairs"]:
        print(json.dumps({"pairs": pairs(int(sys.argv[2]))}))
    else:
        plan = json.loads(os.environ["TRAINYARD_BURN_IN"])
        if plan.get("leash"):
            threading.Thread(target=end_with_input, daemon=True).start()
        print(json.dumps(conduct(plan)))


if __name__ == "__main__":
    sys.exit(main())
