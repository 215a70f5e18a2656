# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When an instance is idle, and what follows. Times in seconds in, a verdict out."""

from __future__ import annotations

#: Signs of use of an instance. It is idle if all of them are quiet.
SOURCES = ("kernels", "terminals", "ssh", "http", "gpus", "save")
IDLE = "kernels, terminals, ssh, the browser and GPUs are quiet"
IDLE_GPUS = "its GPUs are not used"


def looked(last, found, now):
    """Return when each source was last in use.

    :param last: the same of the look before.
    :param found: by source: True if it is in use, False if it is not, the time of its last use, or None if that is not known. Then it counts as in use:
        an instance is not stopped for a tool that fails.
    """
    moments = {}
    for name in SOURCES:
        value = found.get(name)
        moment = now if value is None or value is True else 0 if value is False else min(value, now)
        moments[name] = max(last.get(name, 0), moment)
    return moments


def rules(limits, has_gpus):
    """Return seconds, sources and words of each rule that is on."""
    found = [
        (limits.get("seconds", 0), SOURCES, IDLE),
        (limits.get("gpu_seconds", 0) if has_gpus else 0, ("gpus", "save"), IDLE_GPUS),
    ]
    return [rule for rule in found if rule[0]]


def judge(began, last, now, limits, has_gpus, warned):
    """Return V(active), V(warn) or V(stop), with the reason in words.

    :param began: start of the instance.
    :param limits: C(seconds) and C(gpu_seconds), 0 for never, and C(warning), the seconds between warning and stop.
    :param warned: time of the warning, or None. Without one nothing is stopped, however long it has been quiet: the host may have slept.
    """
    left = [
        (seconds - (now - max([began] + [last.get(name, 0) for name in names])), words)
        for seconds, names, words in rules(limits, has_gpus)
    ]
    if not left:
        return "active", ""
    rest, words = min(left)
    if rest > limits["warning"]:
        return "active", ""
    if warned is not None and rest <= 0 and now - warned >= limits["warning"]:
        return "stop", "This instance stops: %s." % words
    rest = max(rest, limits["warning"] - (now - (now if warned is None else warned)))
    minutes = max(1, round(rest / 60))
    return (
        "warn",
        "This instance stops in %d %s: %s. Run something in it, or open its page again, to keep it."
        % (minutes, "minute" if minutes == 1 else "minutes", words),
    )


def login_words(made, now, limits):
    """Return a warning shortly before the login of a page ends, or an empty text.

    :param made: when the cookie of the page was made, or None if that is not known.
    """
    left = 0 if made is None else made + limits["login"] - now
    if not 0 < left <= limits["warning"]:
        return ""
    minutes = max(1, round(left / 60))
    return "Your login on this page ends in %d %s. Save your files, then load the page again." % (
        minutes,
        "minute" if minutes == 1 else "minutes",
    )
