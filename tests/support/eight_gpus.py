"""The answer to `nvidia-smi -q -x` of a host with eight GPUs: the longest of the fixtures, eight times, with ids of their own."""

from __future__ import annotations

import re
from pathlib import Path

LONGEST = Path(__file__).resolve().parents[1] / "fixtures/nvidia-smi-xml/rtx-4000-sff-ada-v13.xml"


def eight_gpus():
    text = LONGEST.read_bytes().decode("utf-8")
    begin, end = text.index("<gpu id="), text.index("</gpu>") + len("</gpu>")
    gpus = [
        text[begin:end]
        .replace("00000000:06:00.0", "00000000:%02X:00.0" % number)
        .replace("GPU-37037c3f", "GPU-%08x" % number)
        for number in range(8)
    ]
    return re.sub(
        "<attached_gpus>1<", "<attached_gpus>8<", text[:begin] + "\n".join(gpus) + text[end:]
    )
