# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watches a host while all_reduce_perf runs, which does not do this itself: the counters of the
fabric's cards, and the utilization of the GPUs.

    host_watch.py begin SECONDS [MINUTES FOLDER WORKER HOST...]
                           prints the host's cards, GPUs and counters, and starts to watch the GPUs, for at most SECONDS
    host_watch.py end      prints the counters again, and the highest utilization of each GPU since then

With MINUTES, it also watches whether the ranks on several hosts make progress. The name of FOLDER,
which all hosts share, is the ID of the run. WORKER is the place of this host among the HOSTs. On
the first host C(begin) prints a port for NCCL's RAS, and C(end) where the ranks waited, in one
sentence, if nothing has happened for so many minutes, or the run came near its time limit. hang.txt
in FOLDER has what the hosts have collected.

Each prints one JSON document. all_reduce.py, _bandwidth.py, _blame.py, _job_hang.py and
_job_watch.py are in the same folder. Python 3.6, for old training images.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import _bandwidth
import _job_hang
import all_reduce
from _job_watch import WORK, card_counters, counters, losses, output

#: One process that repeats the query, because starting nvidia-smi takes longer than a query, and a
#: short run must not fall between two queries.
LOOK = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu",
    "--format=csv,noheader,nounits",
    "-lms",
    "200",
)
#: Address of the watching process, in the abstract namespace, which needs no file.
ADDRESS = "\0trainyard-verify-host-watch"
#: Seconds that it has to start in.
START_SECONDS = 5
#: Time limit for its answer, and its most bytes.
ANSWER_SECONDS, MOST_ANSWER = 10, 1 << 24
#: Begins the sentence about ranks that wait, after what nvidia-smi has printed.
WAITED = "\ntrainyard: "
#: Seconds between two looks for a question of the first host.
QUESTION_SECONDS = 2


def is_own(connection):
    """Return whether the other side is a process of the same user.

    The container has the network of the host, where everybody can take the address.
    """
    form = "3i"
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    return struct.unpack(form, peer)[1] == os.getuid()


def answer():
    """Return the observations of the watching process and end it. Empty if there is none."""
    deadline, parts, size = time.monotonic() + ANSWER_SECONDS, [], 0
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(ADDRESS)
            while is_own(connection) and size < MOST_ANSWER and time.monotonic() < deadline:
                part = connection.recv(1 << 16)
                if not part:
                    return b"".join(parts).decode("utf-8", "replace")
                parts.append(part)
                size += len(part)
        except OSError:
            pass
    return ""


def asked_by_own(listener, seconds):
    """Return the connection of the one who requests the answer, None if no process of the same user
    has within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _address = listener.accept()
        except socket.timeout:
            return None
        if is_own(connection):
            return connection
        connection.close()
    return None


class Run(object):
    """A run on several hosts, of which this is one: whether it makes progress, and where its ranks
    wait if not. C(said) has the sentence, once it is known.
    """

    def __init__(self, minutes, folder, worker, hosts):
        self.minutes, self.folder, self.worker, self.hosts = minutes, folder, worker, hosts
        self.job = os.path.basename(folder)
        self.ended, self.message = threading.Event(), ""

    def clean(self):
        """Remove what an earlier run has left."""
        answers = [_job_hang.ANSWER % worker for worker in range(len(self.hosts))]
        for name in [_job_hang.FILE, _job_hang.ASKED] + answers:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, name))

    def start(self, seconds):
        """Answer the first host until the run has ended, and on the first host watch the run, whose
        time limit is in so many seconds.
        """
        threading.Thread(target=self.answer, daemon=True).start()
        if self.worker == 0:
            threading.Thread(target=self.watch, args=(seconds,), daemon=True).start()

    def answer(self):
        while not self.ended.wait(QUESTION_SECONDS):
            _job_hang.answer(self.folder, self.job, self.worker)

    def watch(self, seconds):
        """Ask all hosts once: when this host has done nothing for too long, or as late as all can
        answer before the time limit.
        """
        cards, _interface = all_reduce.cards_of(os.environ, True)
        begun = time.monotonic()
        progress = _job_hang.Progress(self.minutes, begun)
        # Half of the time of a short run is for the run.
        left = min(seconds / 2, _job_hang.ANSWER_SECONDS + ANSWER_SECONDS)
        hangs, now = False, begun
        while not hangs and now - begun < seconds - left:
            if self.ended.wait(min(_job_hang.MINUTE, seconds - left - (now - begun))):
                return
            now = time.monotonic()
            # What the ranks print is not known here.
            hangs = progress.look(now, 0, [seen(cards)])
        idle = int(now - progress.since) // _job_hang.MINUTE
        since = "%d s before its time limit" % left
        if hangs:
            since = "no work of the GPUs of host %s and no bytes on its network for %d minute%s" % (
                self.hosts[0],
                idle,
                "" if idle == 1 else "s",
            )
        answers = _job_hang.ask(self.folder, self.hosts, left - min(left / 2, ANSWER_SECONDS))
        message = _job_hang.tell(self.folder, answers)
        self.message = "%s: %s. See %s/%s" % (since, message, self.folder, _job_hang.FILE)


def seen(cards):
    """Return the use of the host's GPUs, and the bytes that its cards have moved, as
    P(_job_hang.Progress) takes them.
    """
    sent, received = counters(cards) or (None, None)
    try:
        gpus = _bandwidth.usage(output(*WORK), 4)
    except _bandwidth.ParseError:
        gpus = []
    return {"now": gpus, "sent_bytes": sent, "received_bytes": received}


def run_of(arguments):
    """Return the run that the arguments name, None without them."""
    if not arguments:
        return None
    return Run(int(arguments[0]), arguments[1], int(arguments[2]), arguments[3:])


def look(seconds, run=None):
    """Watch the GPUs, and a run on several hosts, until the answer is requested, at most for this
    many seconds.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(ADDRESS)
        listener.listen(1)
        lines, smi, reader = [], None, None
        # A container without nvidia-smi has ranks that wait, too.
        with contextlib.suppress(OSError):
            smi = subprocess.Popen(
                LOOK, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True
            )
            reader = threading.Thread(target=lambda: lines.extend(smi.stdout), daemon=True)
            reader.start()
        if run:
            run.start(seconds)
        try:
            connection = asked_by_own(listener, seconds)
        finally:
            if smi:
                smi.terminate()
                reader.join(ANSWER_SECONDS / 2)
    if not connection:
        return
    # The address is free again, so that another watcher can start.
    with connection:
        text = WAITED + run.message if run and run.message else ""
        connection.sendall(("".join(lines) + text).encode())


def begin(seconds, *arguments):
    # Ends the watcher of an aborted run.
    answer()
    found = all_reduce.facts(True)
    run = run_of(arguments)
    if run and run.worker == 0:
        run.clean()
        found["ras_port"] = free_port()
    subprocess.Popen(
        [sys.executable, "-B", os.path.abspath(__file__), "look", seconds] + list(arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for_watcher()
    # Data sent before is little compared with the run, so there is no need to wait for slow
    # counters.
    cards = found["cards"]
    return dict(found, counters=counters(cards), by_card=card_counters(cards), lost=losses(cards))


def wait_for_watcher():
    """Wait until the watcher listens: a run that ends at once must find it."""
    name, deadline = "@" + ADDRESS[1:] + "\n", time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as stream:
            if name in stream.read():
                return
        time.sleep(0.02)


def free_port():
    """Return a port of this host that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end():
    cards, _interface = all_reduce.cards_of(os.environ, True)
    found = {"cards": cards, "counters": all_reduce.settled(cards), "peaks": []}
    found["by_card"], found["lost"] = card_counters(cards), losses(cards)
    used, _mark, message = answer().partition(WAITED)
    if message:
        found["waited"] = message
    try:
        found["peaks"] = _bandwidth.peaks(used)
    except _bandwidth.ParseError as error:
        print("nvidia-smi: %s" % error, file=sys.stderr)
    return found


def main():
    if sys.argv[1] == "look":
        look(float(sys.argv[2]), run_of(sys.argv[3:]))
    else:
        print(json.dumps(begin(*sys.argv[2:]) if sys.argv[1] == "begin" else end()))


if __name__ == "__main__":
    sys.exit(main())
