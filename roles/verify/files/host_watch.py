# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host shows while all_reduce_perf runs, which does not look itself: the counters of its fabric's cards, and the use of its GPUs.

    host_watch.py begin SECONDS    prints the host's cards, GPUs and counters, and starts to look at the GPUs, for SECONDS at most
    host_watch.py end              prints the counters again, and the highest use of each GPU since

Each prints one JSON document. all_reduce.py, _bandwidth.py, _blame.py and _job_watch.py lie beside this file. Python 3.6: old training images have nothing
newer.
"""

import json
import os
import socket
import subprocess
import sys
import threading

import _bandwidth
import all_reduce
from _job_watch import counters

#: Again and again in one process: to start nvidia-smi costs more than to look, and a short run must not fall between two looks.
LOOK = ("nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200")
#: Where the process that looks can be reached. In the abstract namespace, which leaves no file.
ADDRESS = "\0trainyard-verify-host-watch"
#: What it takes at most to answer.
ANSWER_SECONDS = 10


def answer():
    """What the process that looks has seen, which ends it; nothing where there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(ADDRESS)
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        except OSError:
            return ""


def look(seconds):
    """Look at the GPUs until somebody asks for the answer, or for that many seconds."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(ADDRESS)
        listener.listen(1)
        listener.settimeout(seconds)
        smi = subprocess.Popen(LOOK, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
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
    # One that an aborted run has left.
    answer()
    told = all_reduce.facts(True)
    subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "look", str(seconds)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL, start_new_session=True)
    # What was sent before is little beside the run: no need to wait until slow counters show it.
    return dict(told, counters=counters(told["cards"]))


def end():
    cards, _interface = all_reduce.cards_of(os.environ, True)
    told = {"cards": cards, "counters": all_reduce.settled(cards), "peaks": []}
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
