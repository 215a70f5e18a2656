# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan of role image_relay: the site's registry with its rights, the images to relay, and what the
hosts get. Pure functions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._image_relay import auth_document
from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import bad_names
from ansible_collections.trainyard.gpu.plugins.plugin_utils._job_container_plan import (
    OF_PODMAN,
    image_name,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._placed_files import (
    Difference,
    ManagedFile,
    difference,
    managed_file,
    managed_folder,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import (
    IMAGE_RELAY,
    reading_faults,
)

if TYPE_CHECKING:
    # Module typing has these from Python 3.11, and a controller may run Python 3.10.
    from typing_extensions import NotRequired

__all__ = [
    "auth_document",
    "client_plan",
    "drift",
    "former_registry",
    "host_plan",
    "images_plan",
    "removal",
]

FOLDER = "/etc/trainyard/registry"
CONFIG, PROXY, POLICY = FOLDER + "/config.yml", FOLDER + "/nginx.conf", FOLDER + "/policy.json"
STORAGE_CONF, SETTINGS, HTPASSWD = (
    FOLDER + "/storage.conf",
    FOLDER + "/relay.json",
    FOLDER + "/htpasswd",
)
TOKENS = FOLDER + "/tokens.json"
# As module own_certificate names them.
TLS = FOLDER + "/tls"
TLS_CERTIFICATE, TLS_KEY = TLS + "/registry.pem", TLS + "/registry.key"
PEOPLE = FOLDER + "/people"
LIBRARY = "/usr/local/lib/trainyard/image_relay"
PROGRAM, LOGIN = LIBRARY + "/relay", LIBRARY + "/registry_login"
#: Role host_library has it now.
FORMER_MODULE = LIBRARY + "/_image_relay.py"
CATALOGUE, PROFILE = "/etc/trainyard/images.json", "/etc/profile.d/trainyard-registry.sh"
PLAIN_CONF = "/etc/containers/registries.conf.d/trainyard-registry.conf"
CERTIFICATES = ("/etc/containers/certs.d", "/etc/docker/certs.d")
SYSTEMD = "/etc/systemd/system"
# Only its user and root can enter the folder, so nobody else on the host reaches the registry
# behind nginx.
RUN, USER = "/run/trainyard-image-registry", "docker-registry"
SOCKET = RUN + "/registry.sock"
PROXY_RUN = "/run/trainyard-image-proxy"
# Where people list their own repositories if images are private, and how other reading is refused.
# roles/job_container/files/_registry.py has both, too.
OWN, PRIVATE = "/own", "images of other groups are private"
DENIED = '{"errors":[{"code":"DENIED","message":"%s"}]}'
SERVICES = ("trainyard-image-registry.service", "trainyard-image-proxy.service")
TIMERS = ("trainyard-image-tidy.timer", "trainyard-image-room.timer")
ONESHOTS = ("trainyard-image-tidy.service", "trainyard-image-room.service")
UNITS = SERVICES + ONESHOTS + TIMERS
# The account that writes the approved images.
RELAY = "trainyard-relay"
TOOLS, SERVERS = ("skopeo", "buildah", "ca-certificates"), ("docker-registry", "nginx", "openssl")
# Services that the packages would start, with rules of their own.
PACKAGED = {"docker-registry": "docker-registry.service", "nginx": "nginx.service"}
# Of an image that is completed: what is added if it is missing. A change makes new images of all of
# them.
RECIPE = {"version": 1, "adds": ["openssh-server", "sudo", "ipykernel"]}
HEADING = "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n"
GIB = 1 << 30


class Requested(TypedDict):
    """The requested registry: C(__image_relay_requested) of the role.

    Sizes are in GiB, and C(programs) are contents by name.

    C(people) are IDs by name, C(users) as C(shared_storage_users) and C(accounts) as
    C(slurm_accounts). C(registry) is empty if the role installs one.
    """

    host: str
    registry: str
    address: str
    port: int
    certificate: str
    key: str
    folder: str
    storage: str
    max_gib: int
    person_gib: int
    max_layer_gib: int
    free_gib: int
    keep_days: int
    tidy_time: str
    images: list[dict[str, Any]]
    plain_http: list[str]
    people: dict[str, int]
    private: NotRequired[bool]
    users: list[dict[str, Any]]
    accounts: list[dict[str, Any]]
    has_jobs: bool
    job_registries: list[str]
    programs: dict[str, str]


class Record(TypedDict, total=False):
    """What a host had before, and the folders and names that the role has used.

    C(masked) are units of packages that the role has kept from starting.
    """

    storage: list[str]
    registries: list[str]
    cni: bool
    masked: list[str]


class Certificate(TypedDict, total=False):
    """Names and addresses of the certificate that the role creates. Empty if it creates none."""

    names: list[str]
    addresses: list[str]


class Request(TypedDict):
    """An image as module image_relay_info reads it: its name, its source, whether that is an
    archive, and the name of its copy.
    """

    name: str
    source: str
    is_archive: bool
    target: str


class Relayed(TypedDict):
    """An image to relay: C(what) is copy, complete or record, C(digest) that of the source, and
    C(recipe) the checksum of the additions.
    """

    name: str
    what: str
    source: str
    is_archive: bool
    digest: str
    target: str
    recipe: str


class ServerPlan(TypedDict):
    """What the registry's host gets."""

    packages: list[str]
    lacks_packages: list[str]
    masked: list[ManagedFile]
    files: list[ManagedFile]
    record: Record
    record_text: str
    problems: list[str]
    registry: str
    images: list[Request]
    certificate: Certificate


class ImagesPlan(TypedDict):
    """The images to relay, what is wrong with others, which stay although their source does not
    answer, and the text of the catalogue.
    """

    todo: list[Relayed]
    problems: list[str]
    kept: list[str]
    catalogue: str


class ClientPlan(TypedDict):
    """What each host of the cluster gets. C(logins) are files whose content is not shown."""

    files: list[ManagedFile]
    logins: list[ManagedFile]
    record: Record
    absent: list[str]


class Former(TypedDict):
    """What a host has of a registry that is no longer configured there: units, paths to remove, and
    folders of images.
    """

    units: list[str]
    absent: list[str]
    storage: list[str]


class Removal(TypedDict):
    """What teardown removes: paths, after the packages folders that are empty then, links that mask
    units, folders of images, and units.
    """

    placed: bool
    absent: list[str]
    empty: list[str]
    unmask: list[str]
    storage: list[str]
    units: list[str]


class Access(TypedDict):
    """PEM text of the registry's authority, or nothing, and the secrets of people by name."""

    ca: str
    logins: dict[str, str]


def registry_name(requested: Requested) -> str:
    """Return how names of images in the registry begin."""
    return requested["registry"] or "%s:%s" % (requested["address"], requested["port"])


def reference(requested: Requested, name: str) -> str:
    """Return the full name of an approved image in the registry."""
    return "%s/%s/%s" % (registry_name(requested), requested["folder"], name)


def recipe_of(image: dict[str, Any]) -> str:
    """Return what identifies the additions to an image, empty for an image that is copied
    as it is.
    """
    return (
        hashlib.sha256(json.dumps(RECIPE, sort_keys=True).encode("utf-8")).hexdigest()
        if image.get("complete")
        else ""
    )


# --- the registry on its host -----------------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    """Return a path as nginx reads it. The rules of the role allow no other characters in paths."""
    if not re.fullmatch(r"[A-Za-z0-9/._@+-]+", text.replace("$remote_user", "")):
        raise ValueError(
            (
                "'%s' has characters that a path of nginx cannot have; use letters, digits and . _ "
                "@ + -"
            )
            % text
        )
    return '"%s"' % text


def readers(requested: Requested) -> dict[str, list[str]]:
    """Return who may read the images of each person: the members of a group or of an account of
    Slurm that the person belongs to.
    """
    circles = [set(entry.get("members") or []) for entry in requested["accounts"]]
    by_group: dict[str, set[str]] = {}
    for user in requested["users"]:
        for group in user.get("groups") or []:
            by_group.setdefault(group, set()).add(user["name"])
    circles += by_group.values()
    people = set(requested["people"])
    found = {}
    for name in people:
        theirs = set().union(*(circle for circle in circles if name in circle))
        found[name] = sorted(theirs & people | {name})
    return found


def _one_of(names: Iterable[str]) -> str:
    return "(%s)" % "|".join(re.escape(name) for name in names)


def _private_rules(requested: Requested) -> list[str]:
    """Return the lines of nginx's map that decide who reads, if images of people are private.

    The registry would link a layer of another repository into the own one (mount=, from=), which is
    reading, too. What is written in an unusual way in such a request is refused.
    """
    readable: dict[str, list[str]] = {name: [] for name in requested["people"]}
    of_person = readers(requested)
    for owner, names in of_person.items():
        for name in names:
            readable[name].append(owner)
    lines = ['    "~^POST [^?]*[?]([^=&;]*=[^&;]*[&;])*[^=&;]*%[^=&;]*(=|&|;|$)" 1;']
    for name in sorted(requested["people"]):
        allowed = _one_of([requested["folder"]] + sorted(readable[name]))
        lines.append(
            '    "~^POST %s [^?]*[?](.*[&;])?from=(?!%s(/|%%2[Ff]))" 1;'
            % (re.escape(name), allowed)
        )
    lines += [
        '    "~^(GET|HEAD)  " 0;',
        '    "~^(GET|HEAD) %s " 0;' % RELAY,
        r'    "~^(GET|HEAD) [^ ]+ /v2/([?]|$)" 0;',
        '    "~^(GET|HEAD) [^ ]+ /v2/%s/" 0;' % re.escape(requested["folder"]),
    ]
    for name in sorted(requested["people"]):
        lines.append(
            '    "~^(GET|HEAD) %s /v2/%s/" 0;' % (_one_of(of_person[name]), re.escape(name))
        )
        lines.append(
            '    "~^GET %s %s/%s/([a-z0-9][a-z0-9._-]*/)*$" 0;'
            % (re.escape(name), OWN, re.escape(name))
        )
    return lines + ['    "~^(GET|HEAD) " private;']


def _own_location(requested: Requested) -> list[str]:
    """Return the location that lists a person's own repositories.

    The registry's own list has the names of all people's.
    """
    return [
        "    location %s/ {" % OWN,
        "      if ($trainyard_refused) { return 403 '%s'; }"
        % DENIED
        % "people list their own repositories only",
        '      auth_basic "images of the cluster"; auth_basic_user_file %s;' % HTPASSWD,
        "      alias %s; autoindex on; autoindex_format json;"
        % _quoted(requested["storage"] + "/registry/docker/registry/v2/repositories/"),
        "    }",
    ]


def registry_config(requested: Requested) -> str:
    """Return the configuration of docker-registry. JSON is YAML, with all values quoted."""
    return (
        json.dumps(
            {
                "version": 0.1,
                "log": {"level": "warn", "accesslog": {"disabled": True}},
                "storage": {
                    "filesystem": {"rootdirectory": requested["storage"] + "/registry"},
                    "delete": {"enabled": True},
                    "maintenance": {
                        "uploadpurging": {
                            "enabled": True,
                            "age": "24h",
                            "interval": "24h",
                            "dryrun": False,
                        }
                    },
                },
                "http": {"net": "unix", "addr": SOCKET, "relativeurls": True},
            },
            indent=2,
            sort_keys=True,
        )
        + "\n"
    )


def proxy_config(requested: Requested, checksum: str) -> str:
    """Return nginx's configuration.

    It is the only way to the registry, and decides who may write where.

    The rules read the request as the registry gets it, so a path that two programs could read in
    two ways is refused. The checksum of the site's certificate is in it, so that a renewed
    certificate is a change.
    """
    certificate, key = (
        (requested["certificate"], requested["key"])
        if requested["certificate"]
        else (TLS_CERTIFICATE, TLS_KEY)
    )
    is_private = requested.get("private")
    lines = [
        HEADING + ("# Certificate %s.\n" % checksum if checksum else "") + "user %s;" % USER,
        "worker_processes auto;",
        "pid %s/pid;" % PROXY_RUN,
        "error_log stderr warn;",
        "events { worker_connections 1024; }",
        "http {",
        "  server_tokens off; default_type application/json; log_not_found off;",
        "  log_format trainyard '$remote_addr $remote_user $status $request_method $uri';",
        "  map $request_method $trainyard_logged { GET 0; HEAD 0; default 1; }",
        (
            "  access_log syslog:server=unix:/dev/log,tag=trainyard_registry,nohostname trainyard "
            "if=$trainyard_logged;"
        ),
        (
            "  # 1 refuses. People write below their own name, the relay writes the approved "
            "images, and all of them read. Names without a login come as empty,"
        ),
        "  # and auth_basic refuses them.",
        '  map "$request_method $remote_user $request_uri" $trainyard_refused {',
        "    default 1;",
        *(_private_rules(requested) if is_private else ['    "~^(GET|HEAD) " 0;']),
        '    "~^(POST|PUT|PATCH|DELETE)  " 0;',
        '    "~^(POST|PUT|PATCH|DELETE) %s /v2/%s/" 0;' % (RELAY, re.escape(requested["folder"])),
    ]
    lines += [
        '    "~^(POST|PUT|PATCH|DELETE) %s /v2/%s/" 0;' % (re.escape(name), re.escape(name))
        for name in sorted(requested["people"])
    ]
    lines += [
        "  }",
        "  map $request_uri $trainyard_odd {",
        "    default 1;",
        r'    "~/\.{1,2}(/|\?|$)" 1;',
        r'    "~^/v2/([A-Za-z0-9._:-]+/)*[A-Za-z0-9._:-]*(\?[^#]*)?$" 0;',
        "  }",
        (
            "  # The registry would also read mount= and from= in a form in the body, which no "
            "rule sees. Nothing that clients send by POST is a form."
        ),
        (
            "  map $request_method $trainyard_type { POST application/octet-stream; default "
            "$http_content_type; }"
        ),
        "  # Each request checks a password. A pull of an image has one or two for each layer.",
        "  limit_req_zone $binary_remote_addr zone=trainyard:1m rate=50r/s; limit_req_status 429;",
        "  server {",
        "    limit_req zone=trainyard burst=500 nodelay;",
        "    listen %d ssl;" % requested["port"],
        "    ssl_certificate %s; ssl_certificate_key %s;" % (_quoted(certificate), _quoted(key)),
        "    ssl_protocols TLSv1.2 TLSv1.3;",
        "    client_max_body_size %dg; client_body_timeout 300s; client_body_temp_path %s/body;"
        % (requested["max_layer_gib"], PROXY_RUN),
        "".join(
            "    %s_temp_path %s/%s;" % (name, PROXY_RUN, name)
            for name in ("proxy", "fastcgi", "uwsgi", "scgi")
        ),
        '    add_header Docker-Distribution-Api-Version "registry/2.0" always;',
        "    location / { return 404; }",
        "    # What `trainyard quota` shows.",
        "    location = /trainyard/space {",
        '      auth_basic "images of the cluster"; auth_basic_user_file %s;' % HTPASSWD,
        "      root %s; try_files /$remote_user.json =404;"
        % _quoted(requested["storage"] + "/space"),
        "    }",
        *(_own_location(requested) if is_private else []),
        "    location /v2/ {",
        "      if ($trainyard_odd) { return 400 '%s'; }"
        % DENIED
        % "the path has characters that names of images do not have",
        *(
            ["      if ($trainyard_refused = private) { return 403 '%s'; }" % DENIED % PRIVATE]
            if is_private
            else []
        ),
        "      if ($trainyard_refused) { return 403 '%s'; }"
        % DENIED
        % "people write below their own name only: use /<your name>/ in the name of the image",
        '      set $trainyard_over "$request_method";',
        '      if (-f %s) { set $trainyard_over "${trainyard_over} over"; }'
        % _quoted(requested["storage"] + "/space/$remote_user.full"),
        "      if ($trainyard_over ~ \"^(POST|PUT|PATCH) over$\") { return 403 '%s'; }"
        % DENIED
        % (
            "your images use more than the %d GiB that each person has here "
            "(image_relay_person_gib): delete images of yours, and push again after the "
            "nightly "
            "removal" % requested["person_gib"]
        ),
        '      set $trainyard_full "";',
        "      if ($request_method ~ ^(POST|PUT|PATCH)$) { set $trainyard_full write; }",
        '      if (-f %s) { set $trainyard_full "${trainyard_full} full"; }'
        % _quoted(requested["storage"] + "/full"),
        "      if ($trainyard_full = \"write full\") { return 403 '%s'; }"
        % DENIED
        % "the registry is full: delete images of yours, or tell the operator",
        '      auth_basic "images of the cluster"; auth_basic_user_file %s;' % HTPASSWD,
        "      proxy_pass http://unix:%s:;" % SOCKET,
        (
            "      proxy_http_version 1.1; proxy_request_buffering off; proxy_buffering off; "
            "proxy_read_timeout 900s; proxy_send_timeout 900s;"
        ),
        (
            "      proxy_set_header Host $http_host; proxy_set_header X-Forwarded-Proto https; "
            'proxy_set_header Authorization "";'
        ),
        "      proxy_set_header Content-Type $trainyard_type;",
        "    }",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _unit(description: str, *lines: str) -> str:
    return HEADING + "[Unit]\nDescription=%s\n" % description + "\n".join(lines) + "\n"


def _note_loaded(directive: str, unit: str, run: str, *paths: str) -> str:
    """Return the line of a unit that writes the checksums of what the service is about to load, for
    module image_relay_info.

    Otherwise, a restart that is due would be lost if the run stops before it. The user of the
    service writes the file, because root must not write into the folder of another user. A
    certificate of the site has its checksum in nginx.conf, so the role's own may be missing.
    """
    return "%s=-/bin/sh -c 'sha256sum %s > %s/loaded 2> /dev/null'" % (
        directive,
        " ".join(("%s/%s" % (SYSTEMD, unit),) + paths),
        run,
    )


def units(requested: Requested) -> dict[str, str]:
    """Return the content of the units by name."""
    storage = requested["storage"]
    settings = '"%s"' % SETTINGS
    return {
        SERVICES[0]: _unit(
            "Registry of images of the cluster, reached through trainyard-image-proxy.service only",
            "RequiresMountsFor=%s" % storage,
            "[Service]",
            "User=%s" % USER,
            "UMask=0077",
            "RuntimeDirectory=%s" % RUN.rpartition("/")[2],
            "RuntimeDirectoryMode=0700",
            # After the package came back, the user may have another ID.
            (
                'ExecStartPre=+/bin/sh -c \'test "$$(stat --format=%%%%U %s/registry/docker)" = '
                "%s || exec chown --recursive %s: %s/registry'"
            )
            % (storage, USER, USER, storage),
            "ExecStartPre=/bin/rm --force %s" % SOCKET,
            _note_loaded("ExecStartPre", SERVICES[0], RUN, CONFIG),
            "ExecStart=/usr/bin/docker-registry serve %s" % CONFIG,
            "Restart=on-failure",
            "RestartSec=2",
            "NoNewPrivileges=true",
            "ProtectSystem=strict",
            "ReadWritePaths=%s/registry" % storage,
            "ProtectHome=true",
            "PrivateTmp=true",
            "PrivateDevices=true",
            "RestrictAddressFamilies=AF_UNIX",
            "[Install]",
            "WantedBy=multi-user.target",
        ),
        SERVICES[1]: _unit(
            "TLS, logins and rights of the registry of images",
            "Wants=%s network-online.target" % SERVICES[0],
            "After=%s network-online.target" % SERVICES[0],
            "[Service]",
            "RuntimeDirectory=%s" % PROXY_RUN.rpartition("/")[2],
            "RuntimeDirectoryMode=0711",
            "ExecStartPre=/usr/sbin/nginx -q -t -c %s" % PROXY,
            _note_loaded("ExecStartPre", SERVICES[1], PROXY_RUN, PROXY, TLS_CERTIFICATE),
            "ExecStart=/usr/sbin/nginx -c %s -g 'daemon off;'" % PROXY,
            # With a configuration that is wrong the reload fails, and the former one stays in use.
            "ExecReload=/usr/sbin/nginx -q -t -c %s" % PROXY,
            _note_loaded("ExecReload", SERVICES[1], PROXY_RUN, PROXY, TLS_CERTIFICATE),
            "ExecReload=/bin/kill -HUP $MAINPID",
            "Restart=on-failure",
            "RestartSec=2",
            "NoNewPrivileges=true",
            "ProtectHome=true",
            "PrivateTmp=true",
            "[Install]",
            "WantedBy=multi-user.target",
        ),
        "trainyard-image-tidy.service": _unit(
            "Removal of old tags and of unused content of the registry",
            "[Service]",
            "Type=oneshot",
            "ExecStart=%s tidy %s" % (PROGRAM, settings),
        ),
        "trainyard-image-room.service": _unit(
            "Size limits of the registry",
            "[Service]",
            "Type=oneshot",
            "ExecStart=%s room %s" % (PROGRAM, settings),
        ),
        TIMERS[0]: _unit(
            "Nightly removal of old tags and of unused content of the registry",
            "[Timer]",
            "OnCalendar=*-*-* %s:00" % requested["tidy_time"],
            "Persistent=true",
            "[Install]",
            "WantedBy=timers.target",
        ),
        TIMERS[1]: _unit(
            "Size limits of the registry, each minute",
            "[Timer]",
            "OnBootSec=60",
            "OnUnitActiveSec=60",
            "[Install]",
            "WantedBy=timers.target",
        ),
    }


def settings(requested: Requested) -> dict[str, Any]:
    """Return what the programs on the registry's host know.

    The tags of C(images) never are too old, whether or not they were relayed already.
    """
    return {
        "storage": requested["storage"],
        "folder": requested["folder"],
        "config": CONFIG,
        "socket": SOCKET,
        "user": USER,
        "service": SERVICES[0],
        "images": sorted(image_name(image["name"]) for image in requested["images"]),
        "keep_days": requested["keep_days"],
        "max_bytes": requested["max_gib"] * GIB,
        "free_bytes": requested["free_gib"] * GIB,
        "people": sorted(requested["people"]),
        "person_bytes": requested["person_gib"] * GIB,
    }


def policy(requested: Requested) -> str:
    """Return the policy of the relay's own copies: the registries of its images and files, whatever
    the host's own policy is.
    """
    accept = [{"type": "insecureAcceptAnything"}]
    return (
        json.dumps(
            {
                "default": [{"type": "reject"}],
                "transports": dict(
                    {
                        name: {"": accept}
                        for name in (
                            "docker-archive",
                            "oci-archive",
                            "containers-storage",
                            "dir",
                            "oci",
                        )
                    },
                    docker={
                        name: accept
                        for name in sorted(
                            {registry_name(requested)}
                            | {
                                source_registry(image)
                                for image in requested["images"]
                                if image.get("source")
                            }
                        )
                    },
                ),
            },
            indent=2,
            sort_keys=True,
        )
        + "\n"
    )


def source_registry(image: dict[str, Any]) -> str:
    """Return the registry from which an image comes."""
    return str(image["source"]).partition("/")[0]


def storage_conf(requested: Requested) -> str:
    """Return the stores of the images that are completed or read, apart from those of the host."""
    return (
        HEADING
        + (
            '[storage]\ndriver = "overlay"\nrunroot = "/run/trainyard/image_relay/store"\n'
            'graphroot = "%s/work"\n'
        )
        % requested["storage"]
    )


def server_files(requested: Requested, checksum: str) -> list[ManagedFile]:
    """Return the folders and files of the registry's host."""
    entries = [
        managed_folder(path)
        for path in ("/etc/trainyard", FOLDER, "/usr/local/lib/trainyard", LIBRARY)
    ]
    entries += [
        managed_folder(requested["storage"]),
        managed_folder(requested["storage"] + "/work", "0700"),
    ]
    entries += [
        managed_file(PROGRAM, requested["programs"]["relay"], "0755"),
        {"path": FORMER_MODULE, "state": "absent"},
        managed_file(POLICY, policy(requested)),
        managed_file(STORAGE_CONF, storage_conf(requested)),
        managed_file(SETTINGS, json.dumps(settings(requested), indent=2, sort_keys=True) + "\n"),
    ]
    if not requested["registry"]:
        entries += [
            managed_folder(requested["storage"] + "/registry", "0700", owner=USER),
            managed_folder(requested["storage"] + "/space", "0750", group=USER),
            managed_file(CONFIG, registry_config(requested)),
            managed_file(PROXY, proxy_config(requested, checksum)),
        ]
        entries += [
            managed_file("%s/%s" % (SYSTEMD, name), content)
            for name, content in sorted(units(requested).items())
        ]
    return entries


def record_of(found: dict[str, Any], requested: Requested, packages: list[str]) -> Record:
    """Return the undo record of the registry's host: what it had, and the folders and names that
    the role has used.
    """
    former: Record = found["record"]
    # Units that the packages would start. The site may have the package, or the mask.
    masked = {
        unit
        for name, unit in PACKAGED.items()
        if name in packages and name not in found["packages"] and not found["masked"].get(unit)
    }
    return {
        "storage": sorted(set(former.get("storage") or []) | {requested["storage"]}),
        "registries": sorted(set(former.get("registries") or []) | {registry_name(requested)}),
        "cni": former.get("cni", found["cni"]),
        "masked": sorted(set(former.get("masked") or []) | masked),
    }


def problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return what makes the registry impossible, before anything changes."""
    texts = reading_faults(requested["host"], found, IMAGE_RELAY)
    if found["storage_type"] == "overlay" and any(
        image.get("complete") for image in requested["images"]
    ):
        texts.append(
            (
                "image_relay_storage: '%s' is on overlay, on which images cannot be unpacked; "
                "mount a disk or a volume there"
            )
            % requested["storage"]
        )
    if found["strange"] and requested["storage"] not in (found["record"].get("storage") or []):
        texts.append(
            (
                "image_relay_storage: '%s' has '%s', which this role did not create; use an empty "
                "folder"
            )
            % (requested["storage"], found["strange"][0])
        )
    if not requested["registry"] and found["port_taken"] and not found["proxy_active"]:
        texts.append(
            "image_relay_port: another program of the host listens on port %d; use a free port"
            % requested["port"]
        )
    if not requested["registry"] and requested["certificate"]:
        texts += [
            "%s: '%s' does not exist on %s; copy it there, or correct the path"
            % (name, path, requested["host"])
            for name, path in (
                ("image_relay_certificate", requested["certificate"]),
                ("image_relay_key", requested["key"]),
            )
            if path in found["missing"]
        ]
    return texts


def input_problems(requested: Requested) -> list[str]:
    """Return what is wrong with the variables together."""
    texts, registry = [], registry_name(requested)
    if requested["folder"] in requested["people"]:
        texts.append(
            (
                "image_relay_folder: '%s' is the name of a person, who could write there; use "
                "another name"
            )
            % requested["folder"]
        )
    if RELAY in requested["people"]:
        texts.append(
            (
                "shared_storage_users: '%s' is the account of the relay; use another name for the "
                "person"
            )
            % RELAY
        )
    names = [image_name(image["name"]) for image in requested["images"]]
    texts += [
        "image_relay_images: '%s' is there twice; give each image a name of its own" % name
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    for image in requested["images"]:
        if bool(image.get("source")) == bool(image.get("archive")):
            texts.append(
                "image_relay_images: '%s' needs either source or archive; set one of them"
                % image["name"]
            )
        elif (
            image.get("source")
            and source_registry(image) == registry
            and image["source"].startswith(reference(requested, ""))
        ):
            texts.append(
                (
                    "image_relay_images: the source of '%s' is an approved image itself; name the "
                    "registry that it comes from"
                )
                % image["name"]
            )
    if requested["has_jobs"] and not any(
        (reference(requested, "") + "/").startswith(name.rstrip("/") + "/")
        for name in requested["job_registries"]
    ):
        texts.append(
            "job_container_registries: '%s' is missing, so jobs could not use the images; add it"
            % registry
        )
    return texts


def certificate_names(requested: Requested) -> Certificate:
    """Return the names and addresses of the certificate that the role creates, empty if it creates
    none.
    """
    if requested["registry"] or requested["certificate"]:
        return {}
    found = [requested["address"]] + [
        name for name in (requested["host"], "localhost") if not bad_names([name], [])
    ]
    addresses = [name for name in found if not bad_names([], [name])]
    return {"names": sorted(set(found) - set(addresses)), "addresses": addresses[:1]}


def numbers(requested: Requested) -> Requested:
    """Return the request with numbers, which ansible-core before 2.19 makes texts of."""
    return {
        **requested,
        "port": int(requested["port"]),
        "max_gib": int(requested["max_gib"]),
        "person_gib": int(requested["person_gib"]),
        "max_layer_gib": int(requested["max_layer_gib"]),
        "free_gib": int(requested["free_gib"]),
        "keep_days": int(requested["keep_days"]),
    }


def host_plan(found: dict[str, Any], requested: Requested) -> ServerPlan:
    """Return the plan of the registry's host, and what is wrong before anything changes.

    C(found) is a result of M(trainyard.gpu.image_relay_info), C(requested) the request, as role
    image_relay makes it from its variables.

    Returns C(packages), C(lacks_packages), C(masked), links that keep services of packages from
    starting, C(files), the undo C(record) and its C(record_text), C(problems) with the variable and
    what to do, C(registry), how names of images in it begin, C(certificate), C(names) and
    C(addresses) for M(trainyard.gpu.own_certificate), empty if the site has one, and the C(images).
    """
    requested = numbers(requested)
    packages = list(TOOLS if requested["registry"] else TOOLS + SERVERS)
    record = record_of(found, requested, packages)
    return {
        "packages": packages,
        "lacks_packages": [name for name in packages if name not in found["packages"]],
        "masked": [
            {"path": "%s/%s" % (SYSTEMD, unit), "state": "link", "src": "/dev/null"}
            for unit in record["masked"]
        ],
        "files": server_files(requested, found["certificate_checksum"]),
        "record": record,
        "record_text": json.dumps(record, indent=2, sort_keys=True) + "\n",
        "problems": input_problems(requested) + problems(found, requested),
        "registry": registry_name(requested),
        "images": requests(requested),
        "certificate": certificate_names(requested),
    }


# --- the images -------------------------------------------------------------------------------------------------------------


def image_state(
    image: dict[str, Any], found: dict[str, Any], former: dict[str, Any]
) -> tuple[str, str]:
    """Return (what to do, problem) of an image: '', C(record), C(copy) or C(complete)."""
    source, there, recipe, requested = (
        found["source"],
        found["there"],
        recipe_of(image),
        image.get("source") or image["archive"],
    )
    is_ours = bool(former) and there["digest"] == former["digest"] and former["recipe"] == recipe
    if source["error"] or there["error"]:
        return "", source["error"] or there["error"]
    if is_ours and former["source_digest"] == source["digest"]:
        # The same content from another source: the catalogue has to name it, and a later run in
        # which it does not answer has to know it.
        return ("" if former["source"] == requested else "record"), ""
    if not recipe and there["digest"] and there["digest"] == source["digest"]:
        return "record", ""
    return ("complete" if recipe else "copy"), ""


def requests(requested: Requested) -> list[Request]:
    """Return the images as the module reads them."""
    return [
        {
            "name": image_name(image["name"]),
            "source": image.get("source") or image.get("archive") or "",
            "is_archive": not image.get("source"),
            "target": reference(requested, image_name(image["name"])),
        }
        for image in requested["images"]
    ]


def images_plan(found: dict[str, Any], requested: Requested) -> ImagesPlan:
    """Compare the digests of images at their sources and in the registry.

    Return which of them to copy or to complete.

    C(found) is a result of M(trainyard.gpu.image_relay_info), C(requested) the request, as role
    image_relay makes it from its variables. It has C(images) and C(relayed). Returns C(todo), whose
    C(what) is copy, complete or record, C(problems), C(kept), relayed images whose source does not
    answer now, and the C(catalogue).

    A source that does not answer is a problem only if the image is not there yet, so that a site
    can give up its internet access later.
    """
    todo: list[Relayed] = []
    texts: list[str] = []
    kept: list[str] = []
    for image in requested["images"]:
        name = image_name(image["name"])
        source = image.get("source") or image["archive"]
        read = found["images"].get(name) or {
            "source": {"digest": "", "error": ""},
            "there": {"digest": "", "error": ""},
        }
        former = found["relayed"].get(name) or {}
        what, problem = image_state(image, read, former)
        if (
            problem
            and not read["there"]["error"]
            and former
            and former["digest"] == read["there"]["digest"]
            and former["source"] == source
        ):
            kept.append("%s: %s" % (name, problem))
        elif problem:
            texts.append(
                "image_relay_images: '%s' of %s: %s"
                % (source if read["source"]["error"] else reference(requested, name), name, problem)
            )
        elif what:
            todo.append(
                {
                    "name": name,
                    "what": what,
                    "source": source,
                    "is_archive": not image.get("source"),
                    "digest": read["source"]["digest"],
                    "target": reference(requested, name),
                    "recipe": recipe_of(image),
                }
            )
    return {
        "todo": todo,
        "problems": texts,
        "kept": kept,
        "catalogue": catalogue(found, requested, todo),
    }


#: What the catalogue says about a relayed image.
CATALOGUED = (
    "digest",
    "frameworks",
    "versions",
    "platforms",
    "source",
    "source_digest",
    "date",
    "recipe",
    "added",
)


def catalogue(found: dict[str, Any], requested: Requested, todo: list[Relayed]) -> str:
    """Return the catalogue of approved images: those that are there, and the names of those that
    this run will relay.
    """
    coming = {entry["name"] for entry in todo}
    entries = []
    for image in requested["images"]:
        name = image_name(image["name"])
        relayed = found["relayed"].get(name)
        if name in coming:
            entries.append({"name": reference(requested, name), "digest": "not relayed yet"})
        elif relayed:
            known = {key: relayed[key] for key in CATALOGUED}
            entries.append({"name": reference(requested, name), **known})
    document = {"registry": registry_name(requested), "images": entries}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


# --- all hosts --------------------------------------------------------------------------------------------------------------

# After su, the folder is missing or somebody else's. The mark tells that nothing has changed, so
# that Python is not started in each shell.
PROFILE_TEXT = (
    HEADING
    + """# The login for the registry of images, where podman, skopeo and buildah look for it. Logins for other registries stay.
if [ -O "${XDG_RUNTIME_DIR-}" ] && [ -r "%(people)s/$(id -un).json" ]; then
    (
        umask 077
        own=%(people)s/$(id -un).json auth=$XDG_RUNTIME_DIR/containers/auth.json mark=$XDG_RUNTIME_DIR/containers/.trainyard
        if [ ! -e "$auth" ] || [ ! -e "$mark" ] || [ "$own" -nt "$mark" ] || [ "$auth" -nt "$mark" ]; then
            %(program)s "$own" "$auth" && : > "$mark"
        fi
    )
fi
"""
    % {"people": PEOPLE, "program": LOGIN}
)


def login_document(registry: str, auth: str) -> str:
    """Return the file with a person's login for podman."""
    return json.dumps({"auths": {registry: {"auth": auth}}}) + "\n"


def client_plan(found: dict[str, Any], requested: Requested, access: Access) -> ClientPlan:
    """Return what each host of the cluster gets: the certificate of the registry and the logins of
    people.

    C(found) is a result of M(trainyard.gpu.image_relay_info), C(requested) the request, as role
    image_relay makes it from its variables. C(access): C(ca), the certificate of the authority, and
    C(logins) by name, as M(trainyard.gpu.image_relay_logins) returns them.

    Returns C(files) and secret C(logins) for M(trainyard.gpu.managed_files), C(absent) paths, and
    the undo C(record) of a host without the registry.
    """
    requested = numbers(requested)
    registry = registry_name(requested)
    files = [managed_folder("/etc/trainyard"), managed_folder(FOLDER)]
    if access["ca"]:
        for base in CERTIFICATES:
            files += [
                managed_folder(base.rpartition("/")[0]),
                managed_folder(base),
                managed_folder("%s/%s" % (base, registry)),
                managed_file("%s/%s/ca.crt" % (base, registry), access["ca"]),
            ]
    absent = [
        path for path in found["certificates"] if path not in {entry["path"] for entry in files}
    ]
    if registry in requested["plain_http"]:
        files += [
            managed_folder("/etc/containers"),
            managed_folder("/etc/containers/registries.conf.d"),
            managed_file(
                PLAIN_CONF, HEADING + '[[registry]]\nlocation = "%s"\ninsecure = true\n' % registry
            ),
        ]
    else:
        absent.append(PLAIN_CONF)
    logins: list[ManagedFile] = []
    if not requested["registry"]:
        files += [
            managed_folder("/usr/local/lib/trainyard"),
            managed_folder(LIBRARY),
            managed_file(LOGIN, requested["programs"]["registry_login"], "0755"),
            managed_file(PROFILE, PROFILE_TEXT),
        ]
        logins = [managed_folder(PEOPLE, "0711")] + [
            managed_file(
                "%s/%s.json" % (PEOPLE, name),
                login_document(registry, access["logins"].get(name, "")),
                "0400",
                owner=str(uid),
            )
            for name, uid in sorted(requested["people"].items())
        ]
    else:
        absent += [PROFILE, LOGIN]
    placed = {entry["path"] for entry in logins}
    former: Record = found["record"]
    registries = sorted(set(former.get("registries") or []) | {registry})
    record: Record = {"storage": [], "masked": [], **former, "registries": registries}
    return {
        "files": files,
        "logins": logins,
        "record": record,
        "absent": absent
        + [
            "%s/%s" % (PEOPLE, name)
            for name in found["people"]
            if "%s/%s" % (PEOPLE, name) not in placed
        ],
    }


def _untrusted(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return the folders of certificates that lack the registry's authority.

    A certificate of the site may be trusted already.
    """
    if requested["registry"] or requested["certificate"]:
        return []
    paths = ["%s/%s/ca.crt" % (base, registry_name(requested)) for base in CERTIFICATES]
    return [
        difference(path, "the authority of the registry", "missing")
        for path in paths
        if path not in found["certificates"]
    ]


def _other_logins(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return the logins of people that are missing, or that should not be there."""
    people: set[str] = set()
    if not requested["registry"]:
        people = {name + ".json" for name in requested["people"]}
    differences = []
    for name in sorted(people ^ set(found["people"])):
        states = ("present", "absent") if name in people else ("absent", "present")
        differences.append(difference("login of " + name[: -len(".json")], *states))
    return differences


def _of_registry_host(requested: Requested, now: dict[str, Any]) -> list[Difference]:
    """Return how the registry's host differs.

    C(now) is what it has, and the paths of files that differ.
    """
    server, plan = now["server"], host_plan(now["server"], requested)
    differences = [difference(name, "installed", "absent") for name in plan["lacks_packages"]]
    differences += [difference(path, "as planned", "differs") for path in now["changed_paths"]]
    differences += [
        difference(path, "loaded by its service", "changed since then")
        for path in server["not_loaded"]
    ]
    if not requested["registry"] and not server["proxy_active"]:
        differences.append(difference(SERVICES[1], "running", "stopped"))
    names = [image_name(image["name"]) for image in requested["images"]]
    differences += [
        difference(reference(requested, name), "relayed", "absent")
        for name in names
        if name not in server["relayed"]
    ]
    return differences + [
        difference("registry of images", "a plan without problems", text)
        for text in plan["problems"]
    ]


def drift(
    found: dict[str, Any], requested: Requested, now: dict[str, Any], host: str
) -> list[Difference]:
    """Return how a host differs from its plan, each with C(what), C(asked) and C(found).

    No registry is asked: a newer image outside is no difference.

    C(now) is empty, or what the registry's host has and the paths of files that differ.
    """
    requested = numbers(requested)
    registry, record = registry_name(requested), found["record"]
    if not record:
        return [difference("registry of images", registry, "role image_relay has not run here")]
    known = record.get("registries") or []
    differences: list[Difference] = []
    if registry not in known:
        differences.append(difference("registry of images", registry, ", ".join(known) or "none"))
    differences += _untrusted(found, requested)
    left = former_registry(found, requested, host)["units"]
    if left:
        differences.append(difference("former registry of images", "absent", ", ".join(left)))
    differences += _other_logins(found, requested)
    if now and host == requested["host"]:
        differences += _of_registry_host(requested, now)
    return differences


def _tls_files() -> list[str]:
    return [
        "%s/%s%s" % (TLS, name, end)
        for name in ("registry", "ca")
        for end in (".pem", ".key", ".pem.new", ".key.new")
    ] + [TLS]


def _units_of(found: dict[str, Any]) -> list[str]:
    """Return the units of a host in the order in which they are stopped.

    A removal of old tags that is running would start the registry again.
    """
    return [name for name in TIMERS + ONESHOTS + SERVICES[::-1] if name in found["units"]]


def _unit_files() -> list[str]:
    return ["%s/%s" % (SYSTEMD, name) for name in UNITS] + [
        "/var/lib/systemd/timers/stamp-" + TIMERS[0]
    ]


def former_registry(found: dict[str, Any], requested: Requested, host: str) -> Former:
    """Return what a host has of a registry that is no longer configured there.

    The units go last: they tell that something is left.

    Returns C(units) to stop, C(absent), paths to remove, folders only if they are empty, and
    C(storage), folders in which images stay. All are empty if nothing is left. Images, packages and
    the undo record are not in it.
    """
    is_planned = host == requested["host"] and not requested["registry"]
    if is_planned or not _units_of(found):
        return {"units": [], "absent": [], "storage": []}
    absent = [HTPASSWD, TOKENS, CONFIG, PROXY] + _tls_files()
    if host != requested["host"]:
        absent += [POLICY, STORAGE_CONF, SETTINGS, PROGRAM, FORMER_MODULE]
    return {
        "units": _units_of(found),
        "absent": absent + _unit_files(),
        "storage": found["record"].get("storage") or [],
    }


def removal(found: dict[str, Any]) -> Removal:
    """Return what a host has of the role: whether anything is C(placed), C(units) to stop,
    C(absent), paths to remove, folders only if they are empty, C(empty), files and folders of
    packages, to remove after the packages, C(unmask), links that mask services, and C(storage),
    folders of registries.
    """
    record = found["record"]
    absent = ["%s/%s" % (PEOPLE, name) for name in found["people"]] + [
        PEOPLE,
        CATALOGUE,
        PROFILE,
        PLAIN_CONF,
    ]
    for registry in record.get("registries") or []:
        for base in CERTIFICATES:
            absent += ["%s/%s/ca.crt" % (base, registry), "%s/%s" % (base, registry)]
    absent += list(CERTIFICATES) + [
        "/etc/containers/registries.conf.d",
        "/etc/containers",
        "/etc/docker",
    ]
    absent += [CONFIG, PROXY, POLICY, STORAGE_CONF, SETTINGS, HTPASSWD, TOKENS]
    absent += _tls_files() + [FOLDER] + _unit_files()
    absent += [PROGRAM, FORMER_MODULE, LOGIN, LIBRARY, "/usr/local/lib/trainyard"]
    # After the packages, which do not remove them.
    empty = (
        (list(OF_PODMAN) if record.get("cni") is False else [])
        + list(CERTIFICATES)
        + [PLAIN_CONF.rpartition("/")[0], "/etc/containers", "/etc/docker"]
    )
    return {
        "placed": bool(record),
        "absent": absent + ["/etc/trainyard"],
        "empty": empty,
        "unmask": ["%s/%s" % (SYSTEMD, unit) for unit in record.get("masked") or []],
        "storage": record.get("storage") or [],
        "units": _units_of(found),
    }
