# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the helper of the hub as a person.

A person controls what runs in their name, so time, size and number of answers have limits.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging

#: Becomes the person, and runs the helper C(instance).
HELPER = "/usr/local/lib/trainyard/hub/as_person"
#: Seconds in which the helper has to answer. Slurm's own commands have 60. The helper ends before
#: this time, and as_person kills one that does not.
PATIENCE = 150
#: Maximum number of running helpers of a person and of all people, and of waiting requests of a
#: person. Others are refused.
AT_A_TIME, OF_ALL, WAITING = 4, 32, 40
#: Exit code of a helper that as_person has killed: its time was over.
KILLED = 137
NO_ANSWER = "Slurm does not answer"
#: Bytes of an answer, and those of its error output that the log gets.
MAX_ANSWER, MAX_ERRORS = 8 << 20, 2000
#: Requests that change something. Only these are logged, because the hub requests the state of each
#: instance all the time.
LOGGED = ("start", "stop", "submit", "clone", "stop_job", "node")

log = logging.getLogger("trainyard")
log.setLevel(logging.INFO)
log.addHandler(logging.StreamHandler())
log.propagate = False


class Turns:
    """Limits how many helpers run at a time, per person and in all.

    A turn ends with the helper, even if the client has left before.
    """

    def __init__(self, at_a_time=AT_A_TIME, of_all=OF_ALL, waiting=WAITING):
        self.at_a_time, self.waiting = at_a_time, waiting
        self.all = asyncio.Semaphore(of_all)
        self.people, self.count = {}, collections.Counter()

    def enter(self, person):
        """Take a place in the queue. Return whether there is one."""
        if self.count[person] >= self.at_a_time + self.waiting:
            return False
        self.count[person] += 1
        return True

    def leave(self, person):
        self.count[person] -= 1
        if not self.count[person]:
            del self.count[person]
            self.people.pop(person, None)

    @contextlib.asynccontextmanager
    async def of(self, person):
        """Wait until it is the person's turn, after enter()."""
        try:
            async with self.people.setdefault(person, asyncio.Semaphore(self.at_a_time)), self.all:
                yield
        finally:
            self.leave(person)


turns = Turns()
#: The event loop keeps no reference to its tasks.
tasks = set()


def busy(person):
    return {
        "error": "%s has %d requests in progress; wait for their answers, then try again"
        % (person, turns.at_a_time + turns.waiting),
        "no_answer": True,
        "busy": True,
    }


def code_of(answer):
    """Return the HTTP status for an answer that is an error."""
    return 429 if answer.get("busy") else 503 if answer["no_answer"] else 400


async def ask(person, request):
    """Return the answer to a request. It is not passed in arguments, which everybody can read."""
    if not turns.enter(person):
        return busy(person)
    answer = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(in_turn(person, json.dumps(request).encode(), answer))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    found = await answer
    if request["action"] in LOGGED:
        message = line(found.get("error") or found.get("job") or "done")
        if request["action"] == "node":
            what = [line(request.get(key)) for key in ("do", "node", "reason")]
            log.info("%s of host %s by %s (%s): %s", what[0], what[1], person, what[2], message)
        else:
            what = line(request.get("job") or request.get("name") or "a job")
            log.info("%s: %s of %s: %s", request["action"], what, person, message)
    return found


def line(value):
    """Return a text of a person as a part of a line of the log."""
    shown = ""
    for character in str(value)[:300]:
        if not character.isprintable():
            character = "?"
        shown += character
    return shown


async def in_turn(person, data, answer):
    """Run the helper when it is the person's turn, and give its answer. The turn lasts until the helper has ended."""
    try:
        async with turns.of(person):
            child = await asyncio.create_subprocess_exec(
                "/usr/bin/sudo",
                "--non-interactive",
                "--",
                HELPER,
                person,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd="/",
            )
            try:
                found = await asyncio.wait_for(talk(child, person, data), PATIENCE)
            except asyncio.TimeoutError:
                found = {"error": NO_ANSWER, "no_answer": True}
            give(answer, found)
            # The hub cannot end it, because it runs as the person. A person who keeps it running
            # has fewer turns.
            await child.wait()
    except OSError as error:
        log.error("%s: %s", HELPER, error)
    finally:
        give(
            answer, {"error": "the hub cannot run its helper; tell the operator", "no_answer": True}
        )


def give(answer, found):
    # It may have one, and who asked may have gone.
    if not answer.done():
        answer.set_result(found)


async def talk(child, person, data):
    """Send a request to a helper, and return its answer."""
    with contextlib.suppress(ConnectionError):
        child.stdin.write(data)
        await child.stdin.drain()
    child.stdin.close()
    out, errors = await asyncio.gather(
        limited(child.stdout, MAX_ANSWER), limited(child.stderr, MAX_ERRORS)
    )
    if len(out) > MAX_ANSWER:
        return {
            "error": "the answer for %s is larger than %d MiB" % (person, MAX_ANSWER >> 20),
            "no_answer": False,
        }
    found = answer_of(out)
    if found is None and await child.wait() == KILLED:
        return {"error": NO_ANSWER, "no_answer": True}
    if found is None:
        log.error("%s as %s: %s", HELPER, person, errors[-MAX_ERRORS:].decode("utf-8", "replace"))
        return {
            "error": "the hub cannot act for %s; tell the operator to run playbook workbench"
            % person,
            "no_answer": False,
        }
    return found


async def limited(stream, most):
    """Return the data of a stream, at least one byte more than C(most) if it is longer. The rest is read and dropped, so that the writer can end."""
    found = b""
    while True:
        part = await stream.read(1 << 16)
        if not part:
            return found
        if len(found) <= most:
            found += part


def answer_of(text):
    """Return the answer as a dict, whose error has all keys.

    None if it is no answer: the person may have changed the helper while it ran.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if "error" in found:
        return {"error": str(found["error"])[:10000], "no_answer": found.get("no_answer") is True}
    return found
