# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of the image build.

Each RUN of the Dockerfile calls one, with its arguments in arguments.json.

Runs in the Python of the base image, 3.6 or newer. The files of the site are mounted at
/etc/trainyard/site. Each of them may be absent.
"""

import base64
import collections
import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.request

HERE = "/run/trainyard"
SITE = "/etc/trainyard/site"
LIBRARY = "/usr/local/lib/trainyard"


class StepError(Exception):
    """A step that failed. The message says what to do."""


# --- files of the site ---


def site(name):
    """Return the path of a file of the site, or None if it does not exist or is empty (an earlier
    mount of the builder leaves an empty file).
    """
    path = os.path.join(SITE, name)
    return path if os.path.isfile(path) and os.path.getsize(path) else None


def site_environment(text, ca, pip_conf):
    """Variables for pip and downloads: the site's proxies, CA and index."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and key.lower().endswith("_proxy"):
            found[key] = value.strip("\"'")
    if ca:
        found.update(
            dict.fromkeys(
                (
                    "PIP_CERT",
                    "SSL_CERT_FILE",
                    "REQUESTS_CA_BUNDLE",
                    "CURL_CA_BUNDLE",
                    "GIT_SSL_CAINFO",
                ),
                ca,
            )
        )
    if pip_conf:
        found["PIP_CONFIG_FILE"] = pip_conf
    return found


def use_site():
    path = site("environment")
    text = ""
    if path:
        with open(path) as stream:
            text = stream.read()
    os.environ.update(site_environment(text, site("ca-bundle.crt"), site("pip.conf")))


def run(command, environment=None):
    print("+ " + " ".join(command), flush=True)
    subprocess.check_call(command, env=environment)


def run_noisy(command, environment):
    """Show the output of a compilation without the long command lines of the compiler.

    After a failure, show the last lines in full.
    """
    print("+ " + " ".join(command), flush=True)
    last = collections.deque(maxlen=80)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout:
            last.append(line)
            if len(line) <= 300:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
    if process.returncode:
        sys.stdout.buffer.write(b"----- last lines in full:\n" + b"".join(last))
        sys.stdout.buffer.flush()
        raise subprocess.CalledProcessError(process.returncode, command)


# --- apt ---


def installed(package):
    """Version of a Debian package, or None."""
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
        check=False,
    )
    status, _space, version = done.stdout.partition(" ")
    return version if done.returncode == 0 and status == "installed" else None


APT = "/etc/apt"
# The content of NVIDIA's cuda-repository-pin-600, which prefers its packages over those of the
# distribution.
VENDOR_PIN = "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"


def apt_lists(folder=APT):
    paths = [os.path.join(folder, "sources.list")] + sorted(
        glob.glob(os.path.join(folder, "sources.list.d", "*"))
    )
    return [path for path in paths if path.endswith((".list", ".sources")) and os.path.isfile(path)]


def read_bytes(path):
    with open(path, "rb") as stream:
        return stream.read()


def write_or_remove(path, content):
    """Write the content, or remove the file if the content is None."""
    if content is None:
        os.unlink(path)
    else:
        with open(path, "wb") as stream:
            stream.write(content)


def lists_without(unwanted, folder=APT):
    """Return [(path, old content, content without the unwanted entries or None, their URIs)] for
    the lists that have such entries.
    """
    import apt_sources

    architecture = answer(["dpkg", "--print-architecture"], r"^(\S+)") or ""
    found = []
    for path in apt_lists(folder):
        before = read_bytes(path)
        rest = apt_sources.without(
            path, before.decode("utf-8", "surrogateescape"), unwanted, architecture
        )
        if rest["gone"]:
            gone = rest["empty"] and os.path.basename(path) != "sources.list"
            found.append(
                (
                    path,
                    before,
                    None if gone else rest["text"].encode("utf-8", "surrogateescape"),
                    rest["gone"],
                )
            )
    return found


def keys_of(content):
    import openpgp

    try:
        return openpgp.keys(content)
    except openpgp.ParseError:
        return {}


def remove_withdrawn_keys(withdrawn, folder):
    """Remove withdrawn keys from apt's common keyrings. Return the fingerprints that are left."""
    trusted = set()
    for path in [os.path.join(folder, "trusted.gpg")] + sorted(
        glob.glob(os.path.join(folder, "trusted.gpg.d", "*"))
    ):
        if not path.endswith((".gpg", ".asc")) or not os.path.isfile(path):
            continue
        keys = keys_of(read_bytes(path))
        left = [key for fingerprint, key in keys.items() if fingerprint not in withdrawn]
        trusted.update(set(keys) - withdrawn)
        if len(left) < len(keys) and (not left or path.endswith(".gpg")):
            print(
                "Removed NVIDIA's withdrawn key %s from %s."
                % (", ".join(sorted(set(keys) & withdrawn)), path),
                flush=True,
            )
            write_or_remove(path, b"".join(left) or None)
    return trusted


def keys_for(signed_by, trusted):
    """Return the fingerprints that an entry of apt accepts, by its option signed-by."""
    if "BEGIN PGP" in signed_by:
        lines = [indented_line(" " + line.strip()) for line in signed_by.splitlines()]
        return set(keys_of("\n".join(lines).encode("ascii", "replace")))
    if not signed_by:
        return trusted
    keys = set()
    for path in re.split(r"[\s,]+", signed_by):
        keys.update(keys_of(read_bytes(path)) if os.path.isfile(path) else {path})
    return keys


def remove_retired(vendor, folder=APT):
    """Remove NVIDIA's former repositories and keys that break every apt-get update in this image,
    as role package_sources does on hosts.

    These are the withdrawn key, entries of places that no longer exist, and entries of CUDA's
    repository for which no current NVIDIA key is trusted.
    """
    current = set(vendor["fingerprints"])
    trusted = remove_withdrawn_keys(set(vendor["retired_keys"]), folder)

    def is_at(entry, patterns):
        return any(re.match(pattern + "$", entry["location"]) for pattern in patterns)

    def retired(entry):
        if is_at(entry, vendor["former_places"]):
            return True
        return is_at(entry, vendor["places"]) and not current & keys_for(
            entry["signed_by"], trusted
        )

    for path, _before, content, gone in lists_without(retired, folder):
        print(
            (
                "Removed %s from %s: no current NVIDIA key is trusted for it, and it would break "
                "every apt-get update."
            )
            % (", ".join(gone), path),
            flush=True,
        )
        write_or_remove(path, content)


def apt_settings(temporary):
    """Write apt.conf with the site's settings to a folder.

    Return the folder of the sources that apt reads.
    """
    sources = "/etc/apt/sources.list.d"
    settings = [
        'Acquire::Retries "3";',
        'APT::Install-Recommends "false";',
        'Dpkg::Use-Pty "false";',
    ]
    if site("apt.conf"):
        with open(site("apt.conf")) as stream:
            settings.append(stream.read())
    if site("apt.sources"):
        # The site's repositories replace those of the base. The repositories of this step are
        # added.
        sources = temporary
        settings += ['Dir::Etc::SourceList "/dev/null";', 'Dir::Etc::SourceParts "%s";' % sources]
        with open(site("apt.sources")) as stream:
            text, keys = keys_as_files(stream.read(), temporary)
        for name, content in [("site.sources", text)] + keys:
            with open(os.path.join(temporary, name), "w") as stream:
                stream.write(content)
    with open(os.path.join(temporary, "apt.conf"), "w") as stream:
        stream.write("\n".join(settings) + "\n")
    return sources


def write_key(repository, number, folder):
    """Write the key of a repository to a folder, and return its path."""
    if repository.get("keyring"):
        path, content = "%d.gpg", base64.b64decode(repository["keyring"])
    else:
        path, content = "%d.asc", (repository["signed_by"].strip() + "\n").encode()
    path = os.path.join(folder, path % number)
    with open(path, "wb") as stream:
        stream.write(content)
    return path


@contextlib.contextmanager
def apt(repositories=(), pin=""):
    """Yield a function that runs apt-get with the site's settings.

    Afterwards the settings and apt's downloads are removed.
    """
    if not shutil.which("apt-get"):
        raise StepError(
            (
                "the base has no apt-get: use a base of Debian or Ubuntu, or one with all packages "
                "installed"
            )
        )
    temporary = tempfile.mkdtemp(prefix="trainyard-apt-")
    os.chmod(temporary, 0o755)  # apt downloads as user _apt
    placed, aside = [], []
    sources = apt_settings(temporary)

    def call(*arguments):
        run(
            ["apt-get", "-c", os.path.join(temporary, "apt.conf"), "--quiet", "--yes"]
            + list(arguments),
            dict(os.environ, DEBIAN_FRONTEND="noninteractive"),
        )

    try:
        if repositories and sources != temporary:
            # If two entries for one repository have different keys, apt rejects both, and
            # everything else.
            places = repository_places(repositories)
            aside = lists_without(lambda entry: entry["location"] in places)
            for path, _before, content, gone in aside:
                print(
                    (
                        "Disabled %s in %s for this step: the build uses the same repository with "
                        "another key."
                    )
                    % (", ".join(gone), path),
                    flush=True,
                )
                write_or_remove(path, content)
        for number, repository in enumerate(repositories):
            path = os.path.join(sources, "trainyard-build-%d.sources" % number)
            placed.append(path)
            key = write_key(repository, number, temporary)
            with open(path, "w") as stream:
                stream.write(deb822(repository, key))
        if pin:
            placed.append("/etc/apt/preferences.d/trainyard-build-pin-600")
            with open(placed[-1], "w") as stream:
                stream.write(pin)
        if not os.path.exists("/usr/sbin/policy-rc.d"):
            # Prevents the start of services in the build.
            placed.append("/usr/sbin/policy-rc.d")
            with open("/usr/sbin/policy-rc.d", "w") as stream:
                stream.write("#!/bin/sh\nexit 101\n")
            os.chmod("/usr/sbin/policy-rc.d", 0o755)
        call("update")
        yield call
    finally:
        for path in placed:
            os.unlink(path)
        for path, before, _content, _gone in aside:
            write_or_remove(path, before)
        shutil.rmtree(temporary)
        shutil.rmtree("/var/lib/apt/lists", ignore_errors=True)
        os.makedirs("/var/lib/apt/lists/partial")
        for path in glob.glob("/var/cache/apt/*.bin") + glob.glob("/var/cache/apt/archives/*.deb"):
            os.unlink(path)


def indented_line(line):
    """Return the text of a line that a space indents. In deb822 a dot stands for an empty line."""
    return "" if line == " ." else line[1:]


def keys_as_files(text, folder):
    """Move the keys in the sources to files and return (sources, [(name, key)]). apt before 2.3
    does not support keys in the deb822 text.
    """
    keys = []

    def move(found):
        lines = [indented_line(line) for line in found.group(1).splitlines()]
        keys.append(("site-%d.asc" % len(keys), "\n".join(lines) + "\n"))
        return "Signed-By: %s\n" % os.path.join(folder, keys[-1][0])

    return re.sub(r"(?m)^Signed-By:\n((?: .*\n)+)", move, text), keys


def repository_places(repositories):
    import apt_sources

    return {
        apt_sources.location(uri, suite)
        for repository in repositories
        for uri in repository["uris"]
        for suite in repository["suites"]
    }


def deb822(repository, key):
    words = [
        word
        for name in ("types", "uris", "suites", "components", "architectures")
        for word in repository.get(name) or []
    ]
    # The format has no quotes, and a line break would start another field.
    wrong = [word for word in words if not word or re.search(r"\s", word)]
    if wrong:
        raise StepError(
            (
                "a repository has %r: words in apt's sources must not be empty or contain white "
                "space. Correct the repository"
            )
            % wrong[0]
        )
    lines = [
        "Types: " + " ".join(repository.get("types") or ["deb"]),
        "URIs: " + " ".join(repository["uris"]),
        "Suites: " + " ".join(repository["suites"]),
    ]
    for field, name in (("Components", "components"), ("Architectures", "architectures")):
        if repository.get(name):
            lines.append(field + ": " + " ".join(repository[name]))
    return "\n".join(lines + ["Signed-By: " + key]) + "\n"


def step_apt(arguments):
    """Install the packages of missing commands, and the requested packages."""
    if shutil.which("apt-get") and arguments.get("vendor"):
        remove_retired(arguments["vendor"])
    requested = [
        package
        for command, packages in sorted(arguments["commands"].items())
        if not shutil.which(command)
        for package in packages
    ]
    requested += [package for package in arguments["packages"] if not installed(package)]
    if subprocess.call(
        [sys.executable, "-m", "pip", "--version"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):
        requested.append("python3-pip")
    if requested:
        with apt() as call:
            call("install", *requested)
    else:
        print("The base already has all requested packages.")
    # They would be the same on every host. sshd uses each host's own keys in /etc/trainyard/ssh.
    for path in glob.glob("/etc/ssh/ssh_host_*"):
        os.unlink(path)


# --- Python packages ---

# Older versions do not support wheels for manylinux_2_17 (such as cmake's) and would compile them.
# Versions before 10 have no --no-build-isolation.
PIP_NEEDED = (20, 3)


def pip(*arguments, runner=run, **variables):
    # PIP_NO_CACHE_DIR: pip before 19 reads 1 as the name of a folder and fails. 0 disables the
    # cache in all versions.
    environment = dict(
        os.environ,
        PIP_BREAK_SYSTEM_PACKAGES="1",
        PIP_ROOT_USER_ACTION="ignore",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_PROGRESS_BAR="off",
        PIP_NO_CACHE_DIR="0",
    )
    environment.update(variables)
    runner([sys.executable, "-m", "pip"] + list(arguments), environment)


def pip_install(variable, packages, *options, **variables):
    """Install the packages of a variable.

    After a failure the message names the variable, because its default may not suit the Python of
    this base.
    """
    try:
        pip("install", *(list(options) + wheels() + packages), **variables)
    except subprocess.CalledProcessError:
        raise StepError(
            "%s: %s could not be installed for Python %d.%d of the base. See pip's output "
            "above. Set %s to versions with a release for this "
            "Python, and provide them in the package index or the folder of wheels"
            % ((variable, ", ".join(packages)) + sys.version_info[:2] + (variable,))
        ) from None


def wheels():
    path = os.path.join(HERE, "wheels")
    return ["--find-links", path] if os.path.isdir(path) and os.listdir(path) else []


@contextlib.contextmanager
def newer_pip(packages):
    """If the pip of the base is too old, use a newer one during a step.

    The image keeps the pip of the base.
    """
    found = answer([sys.executable, "-m", "pip", "--version"], r"^pip (\d+(?:\.\d+)*)")
    if not packages or not found or tuple(numbers(found)) >= PIP_NEEDED:
        yield
        return
    print(
        "pip %s of the base is older than %s. This step uses a newer one."
        % (found, ".".join(str(part) for part in PIP_NEEDED)),
        flush=True,
    )
    folder = tempfile.mkdtemp(prefix="trainyard-pip-")
    before = os.environ.get("PYTHONPATH")
    try:
        pip_install("training_image_pip_packages", packages, "--target", folder, PIP_CONSTRAINT="")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder] + [path for path in [before] if path])
        yield
    finally:
        os.environ.pop("PYTHONPATH", None)
        if before is not None:
            os.environ["PYTHONPATH"] = before
        shutil.rmtree(folder)


def step_python(arguments):
    if not arguments["packages"]:
        print("No Python packages are requested.")
        return
    with newer_pip(arguments["pip_packages"]):
        pip_install("training_image_python_packages", arguments["packages"])


# --- NCCL ---


def step_nccl(arguments):
    """Install exactly this version of both packages in one transaction, because the versions must
    be equal.
    """
    version = arguments["version"]
    if not version:
        print(
            "The NCCL of the base is kept%s."
            % (": " + arguments["why"] if arguments["why"] else "")
        )
        return
    print("NCCL %s: %s." % (version, arguments["why"]), flush=True)
    names = ["libnccl2", "libnccl-dev"]
    with open("/etc/apt/preferences.d/trainyard-nccl", "w") as stream:
        stream.write(arguments["preferences"])
    if any(installed(name) != version for name in names):
        with open(os.path.join(HERE, "repositories.json")) as stream:
            given = json.load(stream)
        repositories = [
            dict(each, signed_by=given["keys"].get(each["signed_by"], each["signed_by"]))
            for each in given["repositories"]
        ]
        with apt(repositories + given["vendor"], VENDOR_PIN if given["vendor"] else "") as call:
            try:
                call(
                    "install",
                    "--allow-downgrades",
                    "--allow-change-held-packages",
                    *["%s=%s" % (name, version) for name in names],
                )
            except subprocess.CalledProcessError:
                subprocess.call(["apt-cache", "policy"] + names)
                places = "the repositories of the base and of training_image_apt_repositories"
                if given["vendor"]:
                    places = (
                        "NVIDIA's repository %s and those of the base"
                        % given["vendor"][0]["uris"][0]
                    )
                raise StepError(
                    "training_image_nccl_version: %s (%s) could not be installed from %s. The "
                    "lines above list the available versions. Set "
                    "training_image_nccl_version to one of these"
                    % (version, arguments["why"], places)
                ) from None
    for name in names:
        if installed(name) != version:
            raise StepError(
                "training_image_nccl_version: the installed version of %s is %s, expected %s"
                % (name, installed(name), version)
            )
    if not os.path.exists("/var/lib/dpkg/available"):
        # mmdebstrap does not create it, and dpkg before 1.20 cannot hold packages without it.
        run(["dpkg", "--clear-avail"])
    run(["apt-mark", "hold"] + names)


# --- Horovod ---


def numbers(version):
    """Return the release part of a version as numbers.

    NGC's 2.6.0a0+df5bbc09d1 counts as 2.6.0, because it has the same headers.
    """
    return [int(part) for part in re.match(r"v?(\d+(?:\.\d+)*)", version).group(1).split(".")]


def fits(version, specification):
    """Return whether a version is in a range such as ">=2.1,<2.13"."""
    for clause in specification.split(","):
        relation, bound = re.match(r"\s*(<=|>=|==|<|>)\s*([\d.]+)\s*$", clause).groups()
        left, right = numbers(version), numbers(bound)
        length = max(len(left), len(right))
        left, right = left + [0] * (length - len(left)), right + [0] * (length - len(right))
        if not {
            "<=": left <= right,
            ">=": left >= right,
            "==": left == right,
            "<": left < right,
            ">": left > right,
        }[relation]:
            return False
    return True


def applies(fix, versions):
    """Return whether all conditions of a fix are met. A missing component matches no range."""
    return all(
        versions.get(component) and fits(versions[component], specification)
        for component, specification in fix["when"].items()
    )


def answer(command, pattern):
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            check=False,
        )
    except OSError:
        return None
    found = re.search(pattern, done.stdout)
    return found.group(1) if found else None


def distribution(names):
    """Return the version of the first installed one of these Python distributions."""
    try:
        from importlib import metadata
    except ImportError:
        # Python 3.6 and 3.7. pkg_resources needs setuptools, which may be missing (python3-pip of
        # Ubuntu 18.04 does not install it).
        return next((version for version in map(distribution_on_path, names) if version), None)
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def distribution_on_path(name):
    """Return the version of a Python distribution from its metadata in the folders of sys.path, or
    None.
    """
    requested = re.sub(r"[-_.]+", "-", name).lower()
    for folder in sys.path:
        for path in glob.glob(os.path.join(glob.escape(folder or "."), "*.dist-info")) + glob.glob(
            os.path.join(glob.escape(folder or "."), "*.egg-info")
        ):
            if (
                re.sub(
                    r"[-_.]+", "-", os.path.basename(path).rpartition(".")[0].partition("-")[0]
                ).lower()
                != requested
            ):
                continue
            for text in (os.path.join(path, "METADATA"), os.path.join(path, "PKG-INFO"), path):
                if os.path.isfile(text):
                    with open(text, encoding="utf-8", errors="replace") as stream:
                        version = re.search(r"^Version: *(\S+)", stream.read(), re.MULTILINE)
                    if version:
                        return version.group(1)
    return None


def cuda_home():
    """Folder of the CUDA toolkit, or None."""
    for path in (
        os.environ.get("HOROVOD_CUDA_HOME"),
        os.environ.get("CUDA_HOME"),
        "/usr/local/cuda",
    ):
        if path and os.path.exists(os.path.join(path, "bin", "nvcc")):
            return path
    nvcc = shutil.which("nvcc")
    return os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) if nvcc else None


def find_versions(horovod):
    home = cuda_home()
    return {
        "horovod": horovod,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "torch": distribution(["torch"]),
        "tensorflow": distribution(
            ["tensorflow", "tensorflow-cpu", "tensorflow-gpu", "nvidia-tensorflow"]
        ),
        "cuda": answer([os.path.join(home, "bin", "nvcc"), "--version"], r"release (\d+\.\d+)")
        if home
        else None,
        "gcc": answer(["c++", "-dumpfullversion", "-dumpversion"], r"^(\d[\d.]*)"),
        "cmake": answer(["cmake", "--version"], r"version (\d[\d.]*)"),
    }


def apply_fixes(fixes, versions, source):
    """Apply the fixes to the source and return the variables that they set."""
    variables = {}
    for fix in fixes:
        if not applies(fix, versions):
            continue
        print(
            "Source fix %s: %s (%s)" % (fix["name"], fix["reason"], ", ".join(fix["source"])),
            flush=True,
        )
        variables.update(fix.get("environment") or {})
        for change in fix.get("replace") or []:
            path = os.path.join(source, change["file"])
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
            if change["from"] not in text:
                raise StepError(
                    (
                        "source fix %s: %s does not contain '%s'. The fix is for another source: "
                        "correct its condition in training_image_source_fixes"
                    )
                    % (fix["name"], change["file"], change["from"])
                )
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text.replace(change["from"], change["to"]))
    return variables


def fetch_source(arguments, temporary):
    """Download and unpack the source archive after checking its digest."""
    if arguments["url"]:
        path = os.path.join(temporary, "horovod.tar.gz")
        print("+ download " + arguments["url"], flush=True)
        with urllib.request.urlopen(
            arguments["url"], context=ssl.create_default_context(cafile=site("ca-bundle.crt"))
        ) as response, open(path, "wb") as stream:
            shutil.copyfileobj(response, stream)
    else:
        folder = os.path.join(temporary, "download")
        pip(
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
            "--dest",
            folder,
            *(wheels() + ["horovod==" + arguments["version"]]),
        )
        path = os.path.join(folder, os.listdir(folder)[0])
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != arguments["sha256"]:
        raise StepError(
            (
                "training_image_horovod_sha256: the downloaded source has '%s', expected '%s'. "
                "Check the version and the digest"
            )
            % (digest.hexdigest(), arguments["sha256"])
        )
    with tarfile.open(path) as archive:
        # The digest matches, so the content is trusted.
        archive.extractall(temporary)
    return os.path.dirname(glob.glob(os.path.join(temporary, "*", "setup.py"))[0])


def stub_libraries(temporary):
    """Create a folder with the toolkit's stubs of the driver libraries.

    A build has no driver, but programs linked to it must load.
    """
    home = cuda_home()
    folder = os.path.join(temporary, "stubs")
    os.makedirs(folder)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        for path in glob.glob(os.path.join(home, "lib64", "stubs", name)) + glob.glob(
            os.path.join(home, "targets", "*", "lib", "stubs", name)
        ):
            if not os.path.exists(os.path.join(folder, name + ".1")):
                os.symlink(path, os.path.join(folder, name + ".1"))
    return folder


def build_tag(arguments: dict, versions: dict, variables: dict) -> str:
    """Return a hash of what the compilation depends on, in the form of a wheel's build tag.

    Packages of the image count, for their headers and libraries.
    """
    packages = ""
    if shutil.which("dpkg-query"):
        packages = subprocess.check_output(["dpkg-query", "--show"], universal_newlines=True)
    distributions = {
        os.path.basename(path)
        for folder in sys.path
        for path in glob.glob(os.path.join(glob.escape(folder or "."), "*.dist-info"))
    }
    environment = {name: os.environ[name] for name in os.environ if name.startswith("HOROVOD_")}
    inputs = [
        [arguments[name] for name in ("version", "sha256", "fixes", "build_packages")],
        [versions, variables, environment],
        [platform.machine(), packages, sorted(distributions)],
    ]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode())
    return "0" + digest.hexdigest()[:16]


def install_compiled(tag: str) -> bool:
    """Install the wheel of these inputs from the site's folder of wheels, and return whether there
    is one. The lab keeps Horovod's (lab/images.py).
    """
    for path in glob.glob(os.path.join(HERE, "wheels", "horovod-*-%s-*.whl" % tag)):
        print("Horovod was compiled from the same inputs before: " + path, flush=True)
        try:
            pip("install", "--no-deps", "--no-index", path, PIP_CONSTRAINT="")
        except subprocess.CalledProcessError:
            print("It could not be installed, so Horovod is compiled.", flush=True)
        else:
            return True
    return False


def step_horovod(arguments):
    if not arguments["compile"]:
        print(
            (
                "The Horovod of the base is kept: it has all required features, or must not be "
                "compiled."
            )
        )
        return
    missing = [
        package
        for command, package in (("c++", "g++"), ("make", "make"))
        if not shutil.which(command)
    ]
    if sys.executable == "/usr/bin/python3" and not glob.glob(
        "/usr/include/python%d.%d*/Python.h" % sys.version_info[:2]
    ):
        missing.append("python3-dev")
    if missing:
        with apt() as call:
            call("install", *missing)
    temporary = tempfile.mkdtemp(prefix="trainyard-horovod-")
    try:
        with newer_pip(arguments["pip_packages"]):
            compile_horovod(arguments, temporary)
    finally:
        shutil.rmtree(temporary)


def compile_horovod(arguments, temporary):
    # Before the tools, because pip would use one of them (packaging) as installed, and it is not
    # part of the finished image.
    dependencies = [
        package
        for package in arguments["dependencies"]
        if not distribution([re.split(r"[=<>!~\[; ]", package)[0]])
    ]
    if dependencies:
        pip_install("training_image_horovod_dependencies", dependencies)

    # The build tools are in a separate folder, so that none is left in the image and no installed
    # version changes.
    tools = os.path.join(temporary, "tools")
    # Constraints of the base (NGC has them) are for its own packages.
    pip_install(
        "training_image_horovod_build_packages",
        arguments["build_packages"],
        "--target",
        tools,
        PIP_CONSTRAINT="",
    )
    with open(os.path.join(tools, "sitecustomize.py"), "w") as stream:
        # Without this, Python 3.12 and newer do not find setuptools' replacement for distutils.
        stream.write("import os\nimport site\nsite.addsitedir(os.path.dirname(__file__))\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [tools] + [path for path in [os.environ.get("PYTHONPATH")] if path]
    )
    os.environ["PATH"] = os.path.join(tools, "bin") + os.pathsep + os.environ["PATH"]

    source = fetch_source(arguments, temporary)
    versions = find_versions(arguments["version"])
    print(
        "Found: " + ", ".join("%s %s" % item for item in sorted(versions.items()) if item[1]),
        flush=True,
    )
    variables = apply_fixes(arguments["fixes"], versions, source)
    variables.update(arguments["variables"])
    tag = build_tag(arguments, versions, variables)
    print("Inputs of the compilation: " + tag, flush=True)
    # Horovod's default is 8, which needs too much memory on a machine with few cores.
    variables.setdefault("MAKEFLAGS", "-j%d" % min(len(os.sched_getaffinity(0)), 8))
    if cuda_home():
        variables.setdefault("CUDA_HOME", cuda_home())
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(
            [path for path in [os.environ.get("LD_LIBRARY_PATH")] if path]
            + [stub_libraries(temporary)]
        )
    for name in sorted(variables):
        print("%s=%s" % (name, variables[name]), flush=True)

    if distribution(["horovod"]):
        pip("uninstall", "--yes", "horovod")
    if install_compiled(tag):
        return
    pip(
        "install",
        "--verbose",
        "--no-deps",
        "--no-build-isolation",
        source,
        runner=run_noisy,
        PIP_CONSTRAINT="",
        **variables,
    )


def nccl_header(variables):
    """Return whether the compiler would find NCCL's header."""
    folders = ["/usr/include", "/usr/local/include"] + os.environ.get("CPATH", "").split(os.pathsep)
    folders += [
        os.path.join(home, "include")
        for home in (
            cuda_home(),
            variables.get("HOROVOD_NCCL_HOME"),
            os.environ.get("HOROVOD_NCCL_HOME"),
        )
        if home
    ]
    folders.append(variables.get("HOROVOD_NCCL_INCLUDE", ""))
    return any(folder and os.path.exists(os.path.join(folder, "nccl.h")) for folder in folders)


def torch_cuda():
    """Return the CUDA version of the installed PyTorch, or None for a CPU build or without
    PyTorch.
    """
    found = importlib.util.find_spec("torch")
    if not found or not found.origin:
        return None
    with open(os.path.join(os.path.dirname(found.origin), "version.py")) as stream:
        version = re.search(r"""^cuda\b[^=]*=\s*['"]([\d.]+)""", stream.read(), re.MULTILINE)
    return version.group(1) if version else None


def os_release(path="/etc/os-release"):
    """Return C(id) and C(version_id) of the image's distribution, empty if unknown."""
    found = {"id": "", "version_id": ""}
    if os.path.exists(path):
        with open(path) as stream:
            for line in stream:
                key, _equals, value = line.strip().partition("=")
                if key.lower() in found:
                    found[key.lower()] = value.strip("\"'")
    return found


def step_probe(arguments):
    """Print as JSON what determines whether Horovod can be compiled on this base. Changes
    nothing.
    """
    versions = find_versions(None)
    print(
        json.dumps(
            {
                "versions": versions,
                "frameworks": {
                    "pytorch": bool(versions["torch"]),
                    "tensorflow": bool(versions["tensorflow"]),
                    "mxnet": bool(importlib.util.find_spec("mxnet")),
                },
                "torch_cuda": torch_cuda(),
                "nccl_header": nccl_header(arguments["variables"]),
                "apt": bool(shutil.which("apt-get")),
                "mpirun": bool(shutil.which("mpirun")),
                "mpi_compiler": any(shutil.which(name) for name in ("mpicxx", "mpic++", "mpiCC")),
                "os": os_release(),
                "architecture": platform.machine(),
                "packages": {name: installed(name) for name in ("libnccl2", "libnccl-dev")}
                if shutil.which("dpkg-query")
                else {},
            }
        )
    )


# --- the collection's files ---


def step_finish(_arguments):
    # The builder leaves an empty file for each mount.
    shutil.rmtree(SITE, ignore_errors=True)
    source = os.path.join(HERE, "ours")
    for folder, _folders, names in os.walk(source):
        for name in names:
            target = os.path.join(LIBRARY, os.path.relpath(os.path.join(folder, name), source))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(os.path.join(folder, name), target)
            os.chmod(target, 0o755)


def main():
    step = sys.argv[1]
    # The probe is passed through stdin, without mounts.
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    if os.path.exists(os.path.join(HERE, "arguments.json")):
        with open(os.path.join(HERE, "arguments.json")) as stream:
            arguments = json.load(stream)
    use_site()
    try:
        {
            "apt": step_apt,
            "python": step_python,
            "nccl": step_nccl,
            "horovod": step_horovod,
            "probe": step_probe,
            "finish": step_finish,
        }[step](arguments)
    except StepError as exc:
        sys.exit("trainyard: %s" % exc)
    except subprocess.CalledProcessError as exc:
        sys.exit(
            "trainyard: step %s: '%s' ended with %s. Its output is above"
            % (step, " ".join(exc.cmd), exc.returncode)
        )


if __name__ == "__main__":
    main()
