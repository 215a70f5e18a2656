"""Arguments for a module that a test calls in its own process, with each supported ansible-core."""

from __future__ import annotations

try:
    from ansible.module_utils.testing import patch_module_args
except ImportError:  # before ansible-core 2.18
    import contextlib
    import json

    from ansible.module_utils import basic

    @contextlib.contextmanager
    def patch_module_args(arguments):
        before = basic._ANSIBLE_ARGS
        basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
        try:
            yield
        finally:
            basic._ANSIBLE_ARGS = before


__all__ = ["patch_module_args"]
