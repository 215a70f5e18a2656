"""Fixtures of this scenario's tests."""

from __future__ import annotations

from role_again import role

__all__ = ["role"]
