"""The answer to `nvidia-smi -q -x` of a host with eight GPUs: the longest of the fixtures, eight
times, with ids of their own.

As a program, it prints that of a host with GPUs of the given device numbers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = Path(__file__).resolve().parents[1] / "fixtures/nvidia-smi-xml/rtx-4000-sff-ada-v13.xml"


def eight_gpus():
    return some_gpus([0] * 8)


def some_gpus(minors, busy=()):
    """The same of a host with GPUs of these device numbers, in the order of their addresses.

    Those in C(busy) have a use of 97 %, the others of 0 %.
    """
    text = LONGEST.read_bytes().decode("utf-8")
    begin, end = text.index("<gpu id="), text.index("</gpu>") + len("</gpu>")
    gpus = [
        text[begin:end]
        .replace("00000000:06:00.0", "00000000:%02X:00.0" % number)
        .replace("GPU-37037c3f", "GPU-%08x" % number)
        .replace("<minor_number>0<", "<minor_number>%d<" % minor)
        .replace("<gpu_util>0 %<", "<gpu_util>%d %%<" % (97 * (minor in busy)))
        for number, minor in enumerate(minors)
    ]
    return re.sub(
        "<attached_gpus>1<",
        "<attached_gpus>%d<" % len(gpus),
        text[:begin] + "\n".join(gpus) + text[end:],
    )


if __name__ == "__main__":
    print(some_gpus([int(word) for word in sys.argv[1:]]))
