# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's notation of an NCCL build's version: 2.8.4-1+cuda11.0.

One parser for hosts and images; any revision is accepted.
"""

from __future__ import annotations

import re

from typing import NamedTuple

__all__ = ["NcclBuild"]

_RELEASE = r"\d{1,2}\.\d{1,3}\.\d{1,3}"
_BUILD = re.compile(r"(%s)-(\d{1,2})\+cuda(\d{1,2}\.\d{1,2})" % _RELEASE, re.ASCII)


class NcclBuild(NamedTuple):
    """C(release) 2.8.4, C(revision) 1 and C(cuda) 11.0, the CUDA that it is built for."""

    release: str
    revision: int
    cuda: str

    @classmethod
    def parse(cls, text: str) -> NcclBuild | None:
        """The build in a text; None for other text, such as a release alone (2.8.4)."""
        found = _BUILD.fullmatch(text)
        return cls(found.group(1), int(found.group(2)), found.group(3)) if found else None

    @staticmethod
    def is_release(text: str) -> bool:
        """Whether a text is a release alone, 2.8.4, which is valid for any CUDA."""
        return re.fullmatch(_RELEASE, text, re.ASCII) is not None

    @property
    def cuda_major(self) -> int:
        """11 of 11.0."""
        return int(self.cuda.partition(".")[0])

    def __str__(self) -> str:
        return "%s-%d+cuda%s" % self
