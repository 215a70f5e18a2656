"""The machine of the lab: its packages, Docker engine, capabilities and package sources."""

import contextlib
import fcntl
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable

from process import LabError, run, say

# Capabilities that systemd and a nested Docker engine need. They are listed because --privileged
# and --cap-add ALL fail on a machine that lacks some. The numbers are those of the kernel
# (linux/capability.h).
CAPABILITIES = {
    "AUDIT_CONTROL": 30,
    "AUDIT_WRITE": 29,
    "DAC_READ_SEARCH": 2,
    "IPC_LOCK": 14,
    "LINUX_IMMUTABLE": 9,
    "MKNOD": 27,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYSLOG": 34,
    "SYS_ADMIN": 21,
    "SYS_BOOT": 22,
    "SYS_NICE": 23,
    "SYS_PTRACE": 19,
    "SYS_RESOURCE": 24,
}
# The training image is about 2 GB and stored three times: on the head, in the registry and on the
# other host. The build cache needs space, too.
FREE_GIB = 12
# systemd, dbus, logind and containerd of each host use inotify instances, and a user (all hosts are
# root) has few of them.
INOTIFY_PER_HOST = 10
# An engine answers within 2 s on a quiet machine. On one whose cores were busy, 60 s were not
# enough once.
START_SECONDS = 180
# dockerd gives its containerd 15 s and ends if it needs longer, on a machine whose cores are busy.
STARTS = 3
# dockerd and its containerd write their process numbers here. After a kill -9 the files stay. A
# later process with the same number then makes dockerd believe that an engine runs already: it
# ends, or waits for a containerd that does not exist.
PID_FILES = {
    "/var/run/docker.pid": "dockerd",
    "/var/run/docker/containerd/containerd.pid": "containerd",
}
# Names of the processes of virtual hosts.
VIRTUAL = ("qemu-system", "linux.uml")


def is_root():
    return os.geteuid() == 0


def os_release():
    return platform.freedesktop_os_release()


def runs_systemd():
    return os.path.isdir("/run/systemd/system")


def runs_virtual_machines():
    """Return whether a virtual machine of any lab runs, whose base disks must be kept."""
    return any(
        (command_of(path.name) or "").startswith(VIRTUAL)
        for path in pathlib.Path("/proc").glob("[0-9]*")
    )


def granted(bounding_set):
    """Return the names of CAPABILITIES in a bounding set (hexadecimal, as in /proc/self/status)."""
    bits = int(bounding_set, 16)
    return sorted(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)


def capabilities():
    status = pathlib.Path("/proc/self/status").read_text()
    return granted(re.search(r"^CapBnd:\s*(\w+)", status, re.MULTILINE).group(1))


# apt's lock is for one process. Builds and lab/setup run side by side, and each may need a package.
_APT = pathlib.Path(__file__).resolve().parent.parent / ".lab" / "apt"


@contextlib.contextmanager
def _apt():
    """Hold the lock of apt in this checkout, which lab/setup takes, too."""
    _APT.parent.mkdir(exist_ok=True)
    with open(_APT, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(*packages):
    """Install the Debian packages that are missing."""
    with _apt():
        missing = []
        for package in packages:
            state = run(
                "dpkg-query", "--show", "--showformat=${db:Status-Status}", package, check=False
            )
            if state.stdout != "installed":
                missing.append(package)
        if not missing:
            return
        if not is_root():
            raise LabError(
                (
                    f"packages are missing: {' '.join(missing)}. Install them, or run make lab as "
                    "root once."
                )
            )
        say(f"installing {' '.join(missing)}")
        run("apt-get", "update", "-qq")
        run(
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "install",
            "-qq",
            "-y",
            "--no-install-recommends",
            *missing,
        )


def install_if_known(package):
    """Install a package if the distribution has it."""
    if run("apt-cache", "show", "--quiet=0", package, check=False).stdout:
        install(package)


def check_inotify(hosts):
    """Fail if there are too few inotify instances, because systemd in a host would then exit
    without a visible message.
    """
    limit = int(pathlib.Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    used = 0
    for descriptors in pathlib.Path("/proc").glob("[0-9]*/fd"):
        # Processes may end while they are counted, and those of other users cannot be read.
        with contextlib.suppress(OSError):
            if descriptors.stat().st_uid == 0:
                used += sum(
                    os.readlink(descriptor) == "anon_inode:inotify"
                    for descriptor in descriptors.iterdir()
                )
    if used + hosts * INOTIFY_PER_HOST > limit:
        raise LabError(
            f"fs.inotify.max_user_instances is {limit}, of which root uses {used}, and {hosts} "
            f"more hosts need {hosts * INOTIFY_PER_HOST}: "
            "run sysctl fs.inotify.max_user_instances=1024"
        )


# Origins of the archives of a distribution, as their Release files name them. Third parties use the
# names of its suites, too.
DISTRIBUTIONS = {"Debian", "Debian Backports", "Ubuntu", "UbuntuESM", "UbuntuESMApps"}
MIRROR_LIST = "mirror+file:"


def apt_sources(
    texts: list[tuple[str, bool]], codename: str, origins: dict[str, str] | None = None
) -> list[tuple[bool, str]]:
    """Return the entries for one release in the machine's apt sources as (is_deb822, text), without
    suites of third parties.

    texts: contents of files and whether they are deb822. origins: by URI, the Origin that apt has
    read there. An entry of an unknown origin is kept.
    """
    kept = []
    for text, is_deb822 in texts:
        entries = stanzas(text) if is_deb822 else one_line_entries(text)
        for entry, suites, uris in entries:
            is_of_release = any(belongs(suite, codename) for suite in suites)
            if is_of_release and not is_foreign(uris, origins or {}):
                kept.append((is_deb822, entry))
    return kept


#: The text of an entry of apt's sources, its suites, and its URIs.
Entry = tuple[str, list[str], list[str]]


def belongs(suite: str, codename: str) -> bool:
    """Return whether a suite is one of a release."""
    return suite == codename or suite.startswith((codename + "-", codename + "/"))


def is_foreign(uris: list[str], origins: dict[str, str]) -> bool:
    """Return whether all known origins of the URIs are third parties."""
    found = {origins.get(uri.rstrip("/")) for uri in uris} - {None}
    return found != set() and not found & DISTRIBUTIONS


def stanzas(text: str) -> list[Entry]:
    """Return the entries for packages of a deb822 file that are in use."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if line.strip() and not line.startswith("#")]
        fields = {}
        for line in lines:
            if not line[0].isspace():
                key, _colon, value = line.partition(":")
                fields[key.lower()] = value.split()
        if fields.get("enabled") != ["no"] and "deb" in fields.get("types", []):
            found.append(("\n".join(lines), fields.get("suites", []), fields.get("uris", [])))
    return found


def one_line_entries(text: str) -> list[Entry]:
    """Return the entries for packages of a file with one entry in each line."""
    found = []
    for line in text.splitlines():
        words = re.sub(r"\[.*?\]", "", line).split()
        if len(words) > 2 and words[0] == "deb":
            found.append((line.strip(), [words[2]], [words[1]]))
    return found


def first_mirror(text: str) -> str:
    """Return the URL that apt prefers of a list of mirrors: the one with the lowest priority
    number, else the first.
    """
    found = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            priorities = [word[9:] for word in words[1:] if word.startswith("priority:")]
            found.append((int(priorities[0]) if priorities else 2**32, words[0]))
    if not found:
        raise LabError("the list of mirrors is empty: add the URL of a mirror to it")
    return min(found, key=lambda entry: entry[0])[1]


def without_mirror_lists(
    sources: list[tuple[bool, str]], read: Callable[[str], str]
) -> list[tuple[bool, str]]:
    """Return apt sources with a URL in place of each file of mirrors, which exists on this machine
    only. read: returns the text of such a file.
    """
    return [
        (
            is_deb822,
            re.sub(
                re.escape(MIRROR_LIST) + r"(\S+)",
                lambda found: first_mirror(read(found.group(1))),
                text,
            ),
        )
        for is_deb822, text in sources
    ]


def origins_of(text: str) -> dict[str, str]:
    """Return the origins by URI from lines of apt-get indextargets."""
    pairs = (line.split("\t") for line in text.splitlines() if line.count("\t") == 1)
    return {uri.rstrip("/"): origin for uri, origin in pairs if origin}


def read_apt_sources(codename: str) -> list[tuple[bool, str]]:
    """Return this machine's apt sources of a release, which a host can use as they are."""
    files = [
        pathlib.Path("/etc/apt/sources.list"),
        *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*")),
    ]
    texts = [
        (file.read_text(), file.suffix == ".sources")
        for file in files
        if file.is_file() and file.suffix in (".list", ".sources")
    ]
    told = run("apt-get", "indextargets", "--format", "$(REPO_URI)\t$(ORIGIN)", check=False).stdout
    kept = apt_sources(texts, codename, origins_of(told))
    return without_mirror_lists(kept, lambda path: pathlib.Path(path).read_text())


def apt_proxies():
    """Return apt's own proxy settings as options, because they are not in the environment."""
    dump = run("apt-config", "dump", "Acquire").stdout
    return [
        line.rstrip(";") + ";"
        for line in dump.splitlines()
        if re.match(r'Acquire::https?::Proxy "[^"]+"', line)
    ]


class Engine:
    """The machine's Docker engine: the running one, or one that the lab installs, starts
    and stops.
    """

    def __init__(self, cache):
        self.record = cache / "engine.json"
        self.log = cache / "dockerd.log"
        self.client = None

    def _find_client(self):
        """Return the first docker in PATH that works with the engine, because a client may be too
        new or too old for it.
        """
        for folder in os.get_exec_path():
            candidate = os.path.join(folder, "docker")
            if (
                os.access(candidate, os.X_OK)
                and run(
                    candidate, "info", "--format", "{{.ServerVersion}}", check=False
                ).stdout.strip()
            ):
                return candidate
        return None

    def reachable(self):
        self.client = self.client or self._find_client()
        return self.client is not None

    def docker(self, *arguments, **options):
        return run(self.client, *arguments, **options)

    def info(self, field):
        return self.docker("info", "--format", "{{%s}}" % field).stdout.strip()

    def ensure(self):
        """Start an engine unless one runs, and check that it can run the lab's hosts."""
        if not self.reachable():
            self._start()
        if "rootless" in self.info(".SecurityOptions"):
            raise LabError(
                (
                    "the Docker engine runs rootless, but the lab's hosts need one that runs as "
                    "root: check DOCKER_HOST"
                )
            )
        root = self.info(".DockerRootDir")
        if os.path.isdir(root):
            free = shutil.disk_usage(root).free / 2**30
            if free < FREE_GIB:
                raise LabError(
                    (
                        f"{root} has {free:.1f} GiB free, but the lab needs {FREE_GIB} GiB: free "
                        "space, or set another data-root for the Docker engine"
                    )
                )

    def _start(self):
        if os.environ.get("DOCKER_HOST"):
            raise LabError(
                (
                    f"no Docker engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}: start "
                    "that engine, or unset DOCKER_HOST"
                )
            )
        if not is_root():
            raise LabError(
                (
                    "no Docker engine answers. Start one that this user may use, or run make lab "
                    "as root, which installs and starts one."
                )
            )
        if not shutil.which("dockerd"):
            install("docker.io", "iptables")
            if self.reachable():
                self._remember(systemd=True)
                return
        self.record.parent.mkdir(parents=True, exist_ok=True)
        if runs_systemd():
            say("starting the Docker engine (systemctl start docker)")
            self._remember(systemd=True)
            run("systemctl", "start", "docker")
            if not self._answers():
                raise LabError(
                    (
                        f"the Docker engine did not answer within {START_SECONDS} s: see "
                        "journalctl -u docker"
                    )
                )
            return
        say(
            f"starting a Docker engine (no systemd here: dockerd in the background, log {self.log})"
        )
        for _ in range(STARTS):
            for file, name in PID_FILES.items():
                remove_stale_pid(pathlib.Path(file), name)
            with open(self.log, "ab") as log:
                daemon = subprocess.Popen(
                    ["dockerd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._remember(pid=daemon.pid)
            if self._answers(daemon):
                return
            if daemon.poll() is None:
                raise LabError(
                    (
                        f"the Docker engine did not answer within {START_SECONDS} s. The end of "
                        f"its log, {self.log}:\n{self._end_of_log()}"
                    )
                )
        raise LabError(
            (
                f"dockerd ended {STARTS} times, with exit code {daemon.returncode}. The end of its "
                f"log, {self.log}:\n{self._end_of_log()}"
            )
        )

    def _answers(self, daemon=None):
        """Wait until the engine answers, but not for a daemon that has ended."""
        for _ in range(2 * START_SECONDS):
            if self.reachable():
                return True
            if daemon and daemon.poll() is not None:
                return False
            time.sleep(0.5)
        return False

    def _end_of_log(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])

    def _remember(self, **how):
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self.record.write_text(json.dumps(how))

    def started_by_lab(self):
        return self.record.exists()

    def stop(self):
        """Stop the engine if the lab started it and no container runs on it. The packages
        are kept.
        """
        if not self.started_by_lab():
            return
        running = self.docker("ps", "--format", "{{.Names}}").stdout.split() if self.client else []
        if running:
            say(
                (
                    "the Docker engine that the lab started keeps running, because other "
                    f"containers run on it: {', '.join(running)}"
                )
            )
            self.record.unlink()
            return
        how = json.loads(self.record.read_text())
        say(
            (
                "stopping the Docker engine that the lab started (to remove its packages: apt-get "
                "purge docker.io)"
            )
        )
        if how.get("systemd"):
            run(
                "systemctl",
                "stop",
                "docker.socket",
                "docker.service",
                "containerd.service",
                check=False,
            )
        elif command_of(how["pid"]) == "dockerd":
            os.kill(how["pid"], 15)
            for _ in range(60):
                if command_of(how["pid"]) != "dockerd":
                    break
                time.sleep(0.5)
        self.record.unlink()
        self.client = None


def remove_stale_pid(file, name):
    """Remove a file with the number of a process that no longer runs under this name."""
    try:
        pid = file.read_text().strip()
    except OSError:
        return
    if command_of(pid) != name:
        file.unlink()


def command_of(pid):
    """Return the name of a running process. A zombie is not running."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    name, state = re.search(r"^Name:\s*(.*)\n(?:.*\n)*?State:\s*(\w)", status).groups()
    return None if state == "Z" else name
