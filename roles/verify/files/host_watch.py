# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watches a host while all_reduce_perf runs, which does not do this itself: the counters of the fabric's cards, and the utilization of the GPUs.

    host_watch.py begin SECONDS    prints the host's cards, GPUs and counters, and starts to watch the GPUs, for at most SECONDS
    host_watch.py end              prints the counters again, and the highest utilization of each GPU since then

Each prints one JSON document. all_reduce.py, _bandwidth.py, _blame.py and _job_watch.py are in the same folder. Python 3.6, for old training images.
"""

import json
import os
import socket
import subprocess
import sys
import threading

import _bandwidth
import all_reduce
from _job_watch import card_counters, counters, losses

#: One process that repeats the query, because starting nvidia-smi takes longer than a query, and a short run must not fall between two queries.
LOOK = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu",
    "--format=csv,noheader,nounits",
    "-lms",
    "200",
)
#: Address of the watching process, in the abstract namespace, which needs no file.
ADDRESS = "\0trainyard-verify-host-watch"
#: Time limit for its answer.
ANSWER_SECONDS = 10


def answer():
    """Return the observations of the watching process and end it. Empty if there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(ADDRESS)
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        except OSError:
            return ""


def look(seconds):
    """Watch the GPUs until the answer is requested, at most for this many seconds."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(ADDRESS)
        listener.listen(1)
        listener.settimeout(seconds)
        smi = subprocess.Popen(
            LOOK, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True
        )
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(smi.stdout), daemon=True)
        reader.start()
        try:
            connection, _address = listener.accept()
        except socket.timeout:
            return
        finally:
            smi.terminate()
            reader.join(ANSWER_SECONDS / 2)
    # The address is free again, so that another watcher can start.
    with connection:
        connection.sendall("".join(lines).encode())


def begin(seconds):
    # Ends the watcher of an aborted run.
    answer()
    told = all_reduce.facts(True)
    subprocess.Popen(
        [sys.executable, "-B", os.path.abspath(__file__), "look", str(seconds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Data sent before is little compared with the run, so there is no need to wait for slow counters.
    cards = told["cards"]
    return dict(told, counters=counters(cards), by_card=card_counters(cards), lost=losses(cards))


def end():
    cards, _interface = all_reduce.cards_of(os.environ, True)
    told = {"cards": cards, "counters": all_reduce.settled(cards), "peaks": []}
    told["by_card"], told["lost"] = card_counters(cards), losses(cards)
    try:
        told["peaks"] = _bandwidth.peaks(answer())
    except _bandwidth.ParseError as error:
        print("nvidia-smi: %s" % error, file=sys.stderr)
    return told


def main():
    if sys.argv[1] == "look":
        look(float(sys.argv[2]))
    else:
        print(json.dumps(begin(sys.argv[2]) if sys.argv[1] == "begin" else end()))


if __name__ == "__main__":
    sys.exit(main())
