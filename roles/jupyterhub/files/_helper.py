# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the helper of the hub as a person."""

from __future__ import annotations

import asyncio
import json
import logging

HELPER = "/usr/local/lib/trainyard/hub/instance"
#: Seconds in which the helper has to answer. Slurm's own commands have 60.
PATIENCE = 150


async def ask(person, request):
    """Return the answer to a request. Nothing of it is in arguments, which everybody can read."""
    child = await asyncio.create_subprocess_exec(
        "/usr/bin/sudo", "--non-interactive", "--user=" + person, "--", HELPER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, cwd="/")
    try:
        out, errors = await asyncio.wait_for(child.communicate(json.dumps(request).encode()), PATIENCE)
    except asyncio.TimeoutError:
        return {"error": "Slurm does not answer", "no_answer": True}
    try:
        return json.loads(out)
    except ValueError:
        logging.getLogger("trainyard").error("%s: %s", HELPER, errors.decode("utf-8", "replace")[-2000:])
        return {"error": "the hub cannot act for %s; tell the operator to run playbook workbench" % person, "no_answer": False}
