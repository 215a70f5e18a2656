from __future__ import annotations

from role_again import playbook, role

__all__ = ["playbook", "role"]
