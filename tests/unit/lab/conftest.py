from __future__ import annotations

import sys
from pathlib import Path

# The lab is a program, not a package: its modules lie beside lab.py.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lab"))
