# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's registry of images (role image_relay), as a person uses it: which images may be
pulled, which ones the person has saved, and what it refuses.

Role jobs has it on login hosts, too.
"""

import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from typing import Any, Dict, Iterable, List, Optional, Tuple

#: Files of role image_relay: the login of each person, which only that person can read, and the
#: authority of the registry.
LOGINS, CERTIFICATES = "/etc/trainyard/registry/people", "/etc/containers/certs.d"
#: Seconds for one answer, and for a whole list.
SECONDS, LIST_SECONDS = 3, 5
PAGE = 1000
#: Of role image_relay, too: where a person's own repositories are listed if images are private, and
#: how the list of all is refused then.
OWN, PRIVATE = "/own", "images of other groups are private"
#: What `trainyard-run --save` appends to a name.
DATE = re.compile(r"\d{8}-\d{6}")


class RegistryError(Exception):
    """The registry does not do what it was asked for.

    The message is for the person, without an advice. C(status) is that of HTTP, 0 without an
    answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


# --- pure functions ---


def registry_of(image: str) -> str:
    """Return the registry in the name of an image, or an empty text for a name without one."""
    first, slash, _rest = image.partition("/")
    return first if slash and re.search(r"[.:]|^localhost$", first) else ""


def is_allowed(image: str, registries: Iterable[str]) -> bool:
    """Return whether people may use an image that is in no store.

    C(registries) are beginnings of names that the site allows.
    """
    return bool(registry_of(image)) and any(
        image.startswith(registry.rstrip("/") + "/") for registry in registries
    )


def login_of(text: str) -> Tuple[str, str]:
    """Return the registry of a login file, and the value of HTTP's Authorization.

    The file has the form of podman's auth.json, with one registry.
    """
    try:
        ((registry, entry),) = json.loads(text)["auths"].items()
        if not entry["auth"] or re.search(r"[^A-Za-z0-9+/=]", entry["auth"]):
            raise ValueError
        return registry, "Basic " + entry["auth"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RegistryError("your login for the registry is damaged") from None


def newest_first(names: Iterable[str]) -> List[str]:
    """Return names of images, the newest first. Names without a date come after them, in order."""

    def date(name: str) -> str:
        tag = name.rpartition(":")[2]
        return tag if DATE.fullmatch(tag) else ""

    return sorted(sorted(names), key=date, reverse=True)


def said_by(body: str) -> str:
    """Return the message in the answer of a registry, or an empty text."""
    try:
        return "; ".join(str(error["message"]) for error in json.loads(body)["errors"])[:300]
    except (ValueError, KeyError, TypeError):
        return ""


def next_page(link: Optional[str]) -> str:
    """Return the path of the next page of a list, from the header Link. Empty at the end."""
    found = re.match(r'<(?:https?://[^/]+)?(/[^>]*)>;\s*rel="?next"?', link or "")
    return found.group(1) if found else ""


# --- the registry ---


def read_login(person: str) -> Tuple[str, str]:
    """Return the registry and the authorization of a person. RegistryError says why there
    is none.
    """
    path = "%s/%s.json" % (LOGINS, person)
    try:
        with open(path, encoding="utf-8") as stream:
            return login_of(stream.read())
    except FileNotFoundError:
        # The folder can be entered, but not listed.
        if os.path.isdir(LOGINS):
            raise RegistryError(
                "%s has no login for the registry of this cluster" % person
            ) from None
        raise RegistryError("this cluster has no registry in which people have images") from None
    except OSError as error:
        raise RegistryError("%s cannot be read: %s" % (path, error.strerror)) from None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """The login is for one host, and urllib would send it to others."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


class Registry:
    """The registry with the login of one person."""

    def __init__(self, name: str, authorization: str) -> None:
        self.name, self.authorization = name, authorization
        context = ssl.create_default_context()
        authority = "%s/%s/ca.crt" % (CERTIFICATES, name)
        if os.path.exists(authority):
            try:
                context.load_verify_locations(authority)
            except OSError as error:
                raise RegistryError(
                    "%s cannot be read: %s" % (authority, error.strerror or error)
                ) from None
        # A proxy for other networks has no way to it.
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            NoRedirect(),
        )

    def ask(self, method: str, path: str, seconds: float = SECONDS) -> Tuple[str, Message]:
        """Return the body and the headers of an answer."""
        request = urllib.request.Request(
            urllib.parse.urljoin("https://%s/" % self.name, path),
            method=method,
            data=b"" if method == "POST" else None,
            headers={"Authorization": self.authorization},
        )
        try:
            # Not to another host: the login is for this one.
            if urllib.parse.urlsplit(request.full_url)[:2] != ("https", self.name):
                raise RegistryError("the registry %s leads to another host" % self.name)
            with self.opener.open(request, timeout=seconds) as answer:
                return answer.read().decode("utf-8", "replace"), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                text = said_by(error.read().decode("utf-8", "replace"))
            if error.code == 401:
                text = "it does not accept your login"
            raise RegistryError(
                "the registry %s refuses it: %s"
                % (self.name, text or "HTTP status %d" % error.code),
                error.code,
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RegistryError(
                "the registry %s does not answer: %s"
                % (self.name, getattr(reason, "strerror", None) or reason)
            ) from None

    def check_write(self, repository: str) -> None:
        """Raise RegistryError if the person cannot push to a repository now: the login, the rights,
        the room. Nothing of it stays.
        """
        _body, headers = self.ask("POST", "/v2/%s/blobs/uploads/" % repository)
        self.ask("DELETE", headers["Location"])

    def repositories_of(self, person: str, deadline: float) -> List[str]:
        """Return the names of the repositories of a person.

        If images are private, the list of all is refused, and there is one of the person's own.
        """
        found, path = [], "/v2/_catalog?n=%d" % PAGE
        while path:
            try:
                body, headers = self.ask(
                    "GET", path, max(0.1, min(SECONDS, deadline - time.monotonic()))
                )
            except RegistryError as error:
                if PRIVATE in str(error):
                    return self.own_repositories(person, deadline)
                raise
            found += [
                name for name in self.read(body, "repositories") if name.startswith(person + "/")
            ]
            path = next_page(headers["Link"])
        return found

    def own_repositories(self, person: str, deadline: float) -> List[str]:
        """Return the names of a person's repositories, from the folders that role image_relay
        lists.

        A repository has a folder _manifests.
        """
        found, waiting = [], [person]
        while waiting:
            folder = waiting.pop()
            self.check_time(deadline)
            try:
                body, _headers = self.ask(
                    "GET",
                    "%s/%s/" % (OWN, folder),
                    max(0.1, min(SECONDS, deadline - time.monotonic())),
                )
            except RegistryError as error:
                # The person has none.
                if error.status == 404:
                    continue
                raise
            try:
                names = [
                    str(entry["name"]) for entry in json.loads(body) if entry["type"] == "directory"
                ]
            except (ValueError, KeyError, TypeError):
                raise RegistryError(
                    "the registry %s answers with something else" % self.name
                ) from None
            if "_manifests" in names:
                found.append(folder)
            waiting += ["%s/%s" % (folder, name) for name in names if not name.startswith("_")]
        return sorted(found)

    def images_of(self, person: str) -> List[str]:
        """Return the full names of the images of a person, the newest first."""
        deadline, found = time.monotonic() + LIST_SECONDS, []
        repositories = self.repositories_of(person, deadline)
        for repository in repositories:
            self.check_time(deadline)
            # Those whose images were removed stay in the catalogue.
            try:
                tags = self.read(self.ask("GET", "/v2/%s/tags/list" % repository)[0], "tags")
            except RegistryError as error:
                if "name unknown" not in str(error).lower() and "not known" not in str(error):
                    raise
                continue
            found += ["%s/%s:%s" % (self.name, repository, tag) for tag in tags]
        return newest_first(found)

    def check_time(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise RegistryError(
                "the registry %s needs more than %d s for a list" % (self.name, LIST_SECONDS)
            )

    def read(self, body: str, key: str) -> List[str]:
        try:
            return [str(name) for name in json.loads(body)[key] or []]
        except (ValueError, KeyError, TypeError):
            raise RegistryError("the registry %s answers with something else" % self.name) from None


def space(person: str) -> Dict[str, Optional[int]]:
    """Return how much of the registry a person uses and may use, in MiB. No limit is None."""
    registry = Registry(*read_login(person))
    body, _headers = registry.ask("GET", "/trainyard/space")
    try:
        found = json.loads(body)
        limit = found["limit_mib"]
        return {
            "registry_used_mib": int(found["used_mib"]),
            "registry_mib": None if limit is None else int(limit),
        }
    except (ValueError, KeyError, TypeError):
        raise RegistryError("the registry %s answers with something else" % registry.name) from None


def saved_images(person: str) -> List[str]:
    """Return the names of the images that a person has in the registry of the site, the newest
    first.
    """
    return Registry(*read_login(person)).images_of(person)
