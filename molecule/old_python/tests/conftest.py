"""Fixtures of this scenario's tests."""

from __future__ import annotations

from in_image import in_image

__all__ = ["in_image"]
