# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""registry_login OWN AUTH: puts a person's login for the site's registry into their auth.json.

Logins for other registries stay.
"""

import json
import os
import sys


def merge(own, path):
    with open(own, encoding="utf-8") as stream:
        ours = json.load(stream)["auths"]
    try:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except FileNotFoundError:
        document = {}
    if all(document.get("auths", {}).get(registry) == entry for registry, entry in ours.items()):
        return
    document.setdefault("auths", {}).update(ours)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    unfinished = "%s.%d" % (path, os.getpid())
    with open(
        os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as stream:
        json.dump(document, stream, indent=1)
    os.rename(unfinished, path)


if __name__ == "__main__":
    try:
        merge(*sys.argv[1:])
    except (OSError, ValueError, AttributeError) as error:
        sys.exit(
            "The login for the registry of images was not stored: %s. Correct or remove %s"
            % (error, sys.argv[2])
        )
