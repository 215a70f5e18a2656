"""Where programs on hosts find the modules of role host_library, for programs that a test starts in
a process of their own.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: As in pyproject.toml. On hosts it is one folder.
FOLDERS = [
    str(ROOT / folder)
    for folder in ("roles/host_library/files", "roles/train/files", "plugins/module_utils")
]
