"""What this scenario's tests share."""

from __future__ import annotations

from role_again import role

__all__ = ["role"]
