# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of the image build. Each RUN of the Dockerfile calls one, with its arguments in arguments.json.

Runs in the Python of the base image, 3.6 or newer. What the site adds is mounted at /etc/trainyard/site, where each file may be absent.
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
    """A step that can't be done. The message says what to do."""


# --- what the site adds ---


def site(name):
    """Path of a file of the site, or None where it has none of that name (the builder mounts nothing, and may have left an empty file before)."""
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
        found.update(dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"), ca))
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
    """Show what a compilation prints, without the compiler's command lines. If it fails, its last lines come in full."""
    print("+ " + " ".join(command), flush=True)
    last = collections.deque(maxlen=80)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            last.append(line)
            if len(line) <= 300:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
    if process.returncode:
        sys.stdout.buffer.write(b"----- the last lines in full:\n" + b"".join(last))
        sys.stdout.buffer.flush()
        raise subprocess.CalledProcessError(process.returncode, command)


# --- apt ---


def installed(package):
    """Version of a Debian package, or None."""
    done = subprocess.run(["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, check=False)
    status, _space, version = done.stdout.partition(" ")
    return version if done.returncode == 0 and status == "installed" else None


APT = "/etc/apt"
# What NVIDIA's cuda-repository-pin-600 says, by which its packages come before the distribution's of the same name.
VENDOR_PIN = "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"


def apt_lists(folder=APT):
    paths = [os.path.join(folder, "sources.list")] + sorted(glob.glob(os.path.join(folder, "sources.list.d", "*")))
    return [path for path in paths if path.endswith((".list", ".sources")) and os.path.isfile(path)]


def read_bytes(path):
    with open(path, "rb") as stream:
        return stream.read()


def write_or_remove(path, content):
    """None, or nothing but an empty list that isn't apt's main one, is no file."""
    if content is None:
        os.unlink(path)
    else:
        with open(path, "wb") as stream:
            stream.write(content)


def lists_without(unwanted, folder=APT):
    """[(path, content before, content without the unwanted entries or None, their URIs)] for the lists that have some."""
    import apt_sources
    architecture = answer(["dpkg", "--print-architecture"], r"^(\S+)") or ""
    found = []
    for path in apt_lists(folder):
        before = read_bytes(path)
        rest = apt_sources.without(path, before.decode("utf-8", "surrogateescape"), unwanted, architecture)
        if rest["gone"]:
            gone = rest["empty"] and os.path.basename(path) != "sources.list"
            found.append((path, before, None if gone else rest["text"].encode("utf-8", "surrogateescape"), rest["gone"]))
    return found


def keys_of(content):
    import openpgp
    try:
        return openpgp.keys(content)
    except openpgp.ParseError:
        return {}


def remove_retired(vendor, folder=APT):
    """Remove what of NVIDIA's former repositories and keys stops every apt-get update in this image, as role package_sources does on hosts.

    These are the withdrawn key, entries of places that are no more, and entries of CUDA's repository that no present key of NVIDIA's is trusted for.
    """
    current = set(vendor["fingerprints"])
    trusted = set()
    for path in [os.path.join(folder, "trusted.gpg")] + sorted(glob.glob(os.path.join(folder, "trusted.gpg.d", "*"))):
        if not path.endswith((".gpg", ".asc")) or not os.path.isfile(path):
            continue
        keys = keys_of(read_bytes(path))
        left = [key for fingerprint, key in keys.items() if fingerprint not in vendor["retired_keys"]]
        trusted.update(set(keys) - set(vendor["retired_keys"]))
        if len(left) < len(keys) and (not left or path.endswith(".gpg")):
            print("Removed NVIDIA's withdrawn key %s from %s." % (", ".join(sorted(set(keys) & set(vendor["retired_keys"]))), path), flush=True)
            write_or_remove(path, b"".join(left) or None)

    def retired(entry):
        if any(re.match(pattern + "$", entry["location"]) for pattern in vendor["former_places"]):
            return True
        if not any(re.match(pattern + "$", entry["location"]) for pattern in vendor["places"]):
            return False
        signed_by = entry["signed_by"]
        if "BEGIN PGP" in signed_by:
            keys = keys_of("\n".join("" if line.strip() == "." else line.strip() for line in signed_by.splitlines()).encode("ascii", "replace"))
        elif signed_by:
            keys = set()
            for path in re.split(r"[\s,]+", signed_by):
                keys.update(keys_of(read_bytes(path)) if os.path.isfile(path) else {path})
        else:
            keys = trusted
        return not current & set(keys)

    for path, _before, content, gone in lists_without(retired, folder):
        print("Removed %s from %s: no present key of NVIDIA's is trusted for it, and it would stop every apt-get update." % (", ".join(gone), path), flush=True)
        write_or_remove(path, content)


@contextlib.contextmanager
def apt(repositories=(), pin=""):
    """A function that runs apt-get with the site's settings; afterwards nothing of them, nor of what apt fetched, is left."""
    if not shutil.which("apt-get"):
        raise StepError("the base has no apt-get: use a base of Debian or Ubuntu, or one in which everything is installed already")
    temporary = tempfile.mkdtemp(prefix="trainyard-apt-")
    os.chmod(temporary, 0o755)  # apt fetches as user _apt
    placed, aside = [], []
    sources = "/etc/apt/sources.list.d"
    settings = ['Acquire::Retries "3";', 'APT::Install-Recommends "false";', 'Dpkg::Use-Pty "false";']
    if site("apt.conf"):
        with open(site("apt.conf")) as stream:
            settings.append(stream.read())
    if site("apt.sources"):
        # The site's repositories stand for those of the base, and ours are added to them.
        sources = temporary
        settings += ['Dir::Etc::SourceList "/dev/null";', 'Dir::Etc::SourceParts "%s";' % sources]
        with open(site("apt.sources")) as stream:
            text, keys = keys_as_files(stream.read(), temporary)
        for name, content in [("site.sources", text)] + keys:
            with open(os.path.join(temporary, name), "w") as stream:
                stream.write(content)
    with open(os.path.join(temporary, "apt.conf"), "w") as stream:
        stream.write("\n".join(settings) + "\n")

    def call(*arguments):
        run(["apt-get", "-c", os.path.join(temporary, "apt.conf"), "--quiet", "--yes"] + list(arguments), dict(os.environ, DEBIAN_FRONTEND="noninteractive"))

    try:
        if repositories and sources != temporary:
            # Of two entries for one repository that name different keys, apt refuses both, and everything else with them.
            places = repository_places(repositories)
            aside = lists_without(lambda entry: entry["location"] in places)
            for path, _before, content, gone in aside:
                print("Set %s of %s aside for this step: the build names the same repository with its own key." % (", ".join(gone), path), flush=True)
                write_or_remove(path, content)
        for number, repository in enumerate(repositories):
            key = os.path.join(temporary, "%d.%s" % (number, "gpg" if repository.get("keyring") else "asc"))
            path = os.path.join(sources, "trainyard-build-%d.sources" % number)
            placed.append(path)
            with open(key, "wb") as stream:
                stream.write(base64.b64decode(repository["keyring"]) if repository.get("keyring") else (repository["signed_by"].strip() + "\n").encode())
            with open(path, "w") as stream:
                stream.write(deb822(repository, key))
        if pin:
            placed.append("/etc/apt/preferences.d/trainyard-build-pin-600")
            with open(placed[-1], "w") as stream:
                stream.write(pin)
        if not os.path.exists("/usr/sbin/policy-rc.d"):
            # No service starts in a build.
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


def keys_as_files(text, folder):
    """Sources with each key that stands in them moved to a file: (sources, [(name, key)]). apt before 2.3 knows no key inside the deb822 text."""
    keys = []

    def move(found):
        key = "\n".join("" if line == " ." else line[1:] for line in found.group(1).splitlines()) + "\n"
        keys.append(("site-%d.asc" % len(keys), key))
        return "Signed-By: %s\n" % os.path.join(folder, keys[-1][0])

    return re.sub(r"(?m)^Signed-By:\n((?: .*\n)+)", move, text), keys


def repository_places(repositories):
    import apt_sources
    return {apt_sources.location(uri, suite) for repository in repositories for uri in repository["uris"] for suite in repository["suites"]}


def deb822(repository, key):
    words = [word for name in ("types", "uris", "suites", "components", "architectures") for word in repository.get(name) or []]
    # The format knows no quotes; a line break would begin another field.
    wrong = [word for word in words if not word or re.search(r"\s", word)]
    if wrong:
        raise StepError("a repository has %r: an empty word, or one with white space, cannot stand in apt's sources" % wrong[0])
    lines = ["Types: " + " ".join(repository.get("types") or ["deb"]), "URIs: " + " ".join(repository["uris"]), "Suites: " + " ".join(repository["suites"])]
    for field, name in (("Components", "components"), ("Architectures", "architectures")):
        if repository.get(name):
            lines.append(field + ": " + " ".join(repository[name]))
    return "\n".join(lines + ["Signed-By: " + key]) + "\n"


def step_apt(arguments):
    """Install the packages of commands that are missing, and the packages asked for by name."""
    if shutil.which("apt-get") and arguments.get("vendor"):
        remove_retired(arguments["vendor"])
    wanted = [package for command, packages in sorted(arguments["commands"].items()) if not shutil.which(command) for package in packages]
    wanted += [package for package in arguments["packages"] if not installed(package)]
    if subprocess.call([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        wanted.append("python3-pip")
    if wanted:
        with apt() as call:
            call("install", *wanted)
    else:
        print("Everything asked for is in the base already.")
    # They would be the same on every host; sshd gets each host's own from /etc/trainyard/ssh.
    for path in glob.glob("/etc/ssh/ssh_host_*"):
        os.unlink(path)


# --- Python packages ---

# Older ones know no wheels for manylinux_2_17 (cmake's, for example) and would compile these; before 10 there is no --no-build-isolation.
PIP_NEEDED = (20, 3)


def pip(*arguments, runner=run, **variables):
    # PIP_NO_CACHE_DIR: pip before 19 takes 1 for the name of a folder and fails; 0 turns the cache off in all of them.
    environment = dict(os.environ, PIP_BREAK_SYSTEM_PACKAGES="1", PIP_ROOT_USER_ACTION="ignore", PIP_DISABLE_PIP_VERSION_CHECK="1",
                       PIP_PROGRESS_BAR="off", PIP_NO_CACHE_DIR="0")
    environment.update(variables)
    runner([sys.executable, "-m", "pip"] + list(arguments), environment)


def pip_install(variable, packages, *options, **variables):
    """Install what a variable lists. If that fails, the message names the variable: its default may not fit the Python of this base."""
    try:
        pip("install", *(list(options) + wheels() + packages), **variables)
    except subprocess.CalledProcessError:
        raise StepError("%s: %s can't be installed for Python %d.%d of the base; pip's output above says why. Set %s to versions that have a release for this "
                        "Python, and make them available in the package index or the folder of wheels"
                        % ((variable, ", ".join(packages)) + sys.version_info[:2] + (variable,)))


def wheels():
    path = os.path.join(HERE, "wheels")
    return ["--find-links", path] if os.path.isdir(path) and os.listdir(path) else []


@contextlib.contextmanager
def newer_pip(packages):
    """Where the pip of the base is too old, another one stands before it for the time of a step. That of the base stays in the image."""
    found = answer([sys.executable, "-m", "pip", "--version"], r"^pip (\d+(?:\.\d+)*)")
    if not packages or not found or tuple(numbers(found)) >= PIP_NEEDED:
        yield
        return
    print("pip %s of the base is older than %s; another one is used for this step." % (found, ".".join(str(part) for part in PIP_NEEDED)), flush=True)
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
        print("No Python packages are asked for.")
        return
    with newer_pip(arguments["pip_packages"]):
        pip_install("training_image_python_packages", arguments["packages"])


# --- NCCL ---


def step_nccl(arguments):
    """Exactly this version of both packages, in one transaction: they must be equal."""
    version = arguments["version"]
    if not version:
        print("The NCCL of the base stays as it is%s." % (": " + arguments["why"] if arguments["why"] else ""))
        return
    print("NCCL %s: %s." % (version, arguments["why"]), flush=True)
    names = ["libnccl2", "libnccl-dev"]
    with open("/etc/apt/preferences.d/trainyard-nccl", "w") as stream:
        stream.write(arguments["preferences"])
    if any(installed(name) != version for name in names):
        with open(os.path.join(HERE, "repositories.json")) as stream:
            given = json.load(stream)
        repositories = [dict(each, signed_by=given["keys"].get(each["signed_by"], each["signed_by"])) for each in given["repositories"]]
        with apt(repositories + given["vendor"], VENDOR_PIN if given["vendor"] else "") as call:
            try:
                call("install", "--allow-downgrades", "--allow-change-held-packages", *["%s=%s" % (name, version) for name in names])
            except subprocess.CalledProcessError:
                subprocess.call(["apt-cache", "policy"] + names)
                places = "the repositories of the base and of training_image_apt_repositories"
                if given["vendor"]:
                    places = "NVIDIA's repository %s and those of the base" % given["vendor"][0]["uris"][0]
                raise StepError("training_image_nccl_version: %s (%s) can't be installed from %s; the lines above say which versions they have. Set "
                                "training_image_nccl_version to one of these" % (version, arguments["why"], places))
    for name in names:
        if installed(name) != version:
            raise StepError("training_image_nccl_version: %s is at %s, not at %s" % (name, installed(name), version))
    if not os.path.exists("/var/lib/dpkg/available"):
        # mmdebstrap makes none, and dpkg before 1.20 marks nothing without it.
        run(["dpkg", "--clear-avail"])
    run(["apt-mark", "hold"] + names)


# --- Horovod ---


def numbers(version):
    """The release part of a version as numbers: NGC's 2.6.0a0+df5bbc09d1 counts as 2.6.0, whose headers it has."""
    return [int(part) for part in re.match(r"v?(\d+(?:\.\d+)*)", version).group(1).split(".")]


def fits(version, specification):
    """Whether a version is in a range such as «>=2.1,<2.13»."""
    for clause in specification.split(","):
        relation, wanted = re.match(r"\s*(<=|>=|==|<|>)\s*([\d.]+)\s*$", clause).groups()
        left, right = numbers(version), numbers(wanted)
        length = max(len(left), len(right))
        left, right = left + [0] * (length - len(left)), right + [0] * (length - len(right))
        if not {"<=": left <= right, ">=": left >= right, "==": left == right, "<": left < right, ">": left > right}[relation]:
            return False
    return True


def applies(fix, versions):
    """All of a fix's conditions hold. What isn't there fits no range."""
    return all(versions.get(component) and fits(versions[component], specification) for component, specification in fix["when"].items())


def answer(command, pattern):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    except OSError:
        return None
    found = re.search(pattern, done.stdout)
    return found.group(1) if found else None


def distribution(names):
    """Version of the first of these Python distributions that is installed."""
    try:
        from importlib import metadata
    except ImportError:
        # Python 3.6 and 3.7; pkg_resources is setuptools', which need not be there (python3-pip of Ubuntu 18.04 comes without).
        return next((version for version in map(distribution_on_path, names) if version), None)
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def distribution_on_path(name):
    """Version of a Python distribution by its metadata in the folders of sys.path, or None."""
    wanted = re.sub(r"[-_.]+", "-", name).lower()
    for folder in sys.path:
        for path in glob.glob(os.path.join(glob.escape(folder or "."), "*.dist-info")) + glob.glob(os.path.join(glob.escape(folder or "."), "*.egg-info")):
            if re.sub(r"[-_.]+", "-", os.path.basename(path).rpartition(".")[0].partition("-")[0]).lower() != wanted:
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
    for path in (os.environ.get("HOROVOD_CUDA_HOME"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
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
        "tensorflow": distribution(["tensorflow", "tensorflow-cpu", "tensorflow-gpu", "nvidia-tensorflow"]),
        "cuda": answer([os.path.join(home, "bin", "nvcc"), "--version"], r"release (\d+\.\d+)") if home else None,
        "gcc": answer(["c++", "-dumpfullversion", "-dumpversion"], r"^(\d[\d.]*)"),
        "cmake": answer(["cmake", "--version"], r"version (\d[\d.]*)"),
    }


def apply_fixes(fixes, versions, source):
    """Change the source as the fixes say. Returns the variables that they set."""
    variables = {}
    for fix in fixes:
        if not applies(fix, versions):
            continue
        print("Source fix %s: %s (%s)" % (fix["name"], fix["reason"], ", ".join(fix["source"])), flush=True)
        variables.update(fix.get("environment") or {})
        for change in fix.get("replace") or []:
            path = os.path.join(source, change["file"])
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
            if change["from"] not in text:
                raise StepError("source fix %s: %s has no «%s». The fix was made for another source: correct its condition in training_image_source_fixes"
                                % (fix["name"], change["file"], change["from"]))
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text.replace(change["from"], change["to"]))
    return variables


def fetch_source(arguments, temporary):
    """The source archive, whose digest is right."""
    if arguments["url"]:
        path = os.path.join(temporary, "horovod.tar.gz")
        print("+ download " + arguments["url"], flush=True)
        with urllib.request.urlopen(arguments["url"], context=ssl.create_default_context(cafile=site("ca-bundle.crt"))) as response, open(path, "wb") as stream:
            shutil.copyfileobj(response, stream)
    else:
        folder = os.path.join(temporary, "download")
        pip("download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", folder, *(wheels() + ["horovod==" + arguments["version"]]))
        path = os.path.join(folder, os.listdir(folder)[0])
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != arguments["sha256"]:
        raise StepError("training_image_horovod_sha256: the source that was fetched has %s, not %s" % (digest.hexdigest(), arguments["sha256"]))
    with tarfile.open(path) as archive:
        # Its digest is the one asked for: what it holds is trusted.
        archive.extractall(temporary)
    return os.path.dirname(glob.glob(os.path.join(temporary, "*", "setup.py"))[0])


def stub_libraries(temporary):
    """Folder with the driver's libraries as the toolkit's stubs: in a build there is no driver, but what is linked to it must load."""
    home = cuda_home()
    folder = os.path.join(temporary, "stubs")
    os.makedirs(folder)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        for path in glob.glob(os.path.join(home, "lib64", "stubs", name)) + glob.glob(os.path.join(home, "targets", "*", "lib", "stubs", name)):
            if not os.path.exists(os.path.join(folder, name + ".1")):
                os.symlink(path, os.path.join(folder, name + ".1"))
    return folder


def step_horovod(arguments):
    if not arguments["compile"]:
        print("The Horovod of the base has what is required, or is not to be compiled: it stays as it is.")
        return
    missing = [package for command, package in (("c++", "g++"), ("make", "make")) if not shutil.which(command)]
    if sys.executable == "/usr/bin/python3" and not glob.glob("/usr/include/python%d.%d*/Python.h" % sys.version_info[:2]):
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
    # Before the tools: pip would take one of them (packaging) for installed, and it is gone when the image is done.
    dependencies = [package for package in arguments["dependencies"] if not distribution([re.split(r"[=<>!~\[; ]", package)[0]])]
    if dependencies:
        pip_install("training_image_horovod_dependencies", dependencies)

    # The build's tools are beside Python's packages, not among them: none is left in the image, and no version in it changes.
    tools = os.path.join(temporary, "tools")
    # A constraint of the base (NGC has one) is about its own packages.
    pip_install("training_image_horovod_build_packages", arguments["build_packages"], "--target", tools, PIP_CONSTRAINT="")
    with open(os.path.join(tools, "sitecustomize.py"), "w") as stream:
        # Without it setuptools' stand-in for distutils is not found by Python 3.12 and newer.
        stream.write("import os\nimport site\nsite.addsitedir(os.path.dirname(__file__))\n")
    os.environ["PYTHONPATH"] = os.pathsep.join([tools] + [path for path in [os.environ.get("PYTHONPATH")] if path])
    os.environ["PATH"] = os.path.join(tools, "bin") + os.pathsep + os.environ["PATH"]

    source = fetch_source(arguments, temporary)
    versions = find_versions(arguments["version"])
    print("Found: " + ", ".join("%s %s" % item for item in sorted(versions.items()) if item[1]), flush=True)
    variables = apply_fixes(arguments["fixes"], versions, source)
    variables.update(arguments["variables"])
    # Horovod's own default is 8, which is too much for the memory of a machine with few cores.
    variables.setdefault("MAKEFLAGS", "-j%d" % min(len(os.sched_getaffinity(0)), 8))
    if cuda_home():
        variables.setdefault("CUDA_HOME", cuda_home())
        variables["LD_LIBRARY_PATH"] = os.pathsep.join([path for path in [os.environ.get("LD_LIBRARY_PATH")] if path] + [stub_libraries(temporary)])
    for name in sorted(variables):
        print("%s=%s" % (name, variables[name]), flush=True)

    if distribution(["horovod"]):
        pip("uninstall", "--yes", "horovod")
    pip("install", "--verbose", "--no-deps", "--no-build-isolation", source, runner=run_noisy, PIP_CONSTRAINT="", **variables)


def nccl_header(variables):
    """Whether the compiler would find NCCL's header."""
    folders = ["/usr/include", "/usr/local/include"] + os.environ.get("CPATH", "").split(os.pathsep)
    folders += [os.path.join(home, "include") for home in (cuda_home(), variables.get("HOROVOD_NCCL_HOME"), os.environ.get("HOROVOD_NCCL_HOME")) if home]
    folders.append(variables.get("HOROVOD_NCCL_INCLUDE", ""))
    return any(folder and os.path.exists(os.path.join(folder, "nccl.h")) for folder in folders)


def torch_cuda():
    """The CUDA version that the installed PyTorch was built for; None for a CPU build, or without PyTorch."""
    found = importlib.util.find_spec("torch")
    if not found or not found.origin:
        return None
    with open(os.path.join(os.path.dirname(found.origin), "version.py")) as stream:
        version = re.search(r"""^cuda\b[^=]*=\s*['"]([\d.]+)""", stream.read(), re.MULTILINE)
    return version.group(1) if version else None


def os_release(path="/etc/os-release"):
    """C(id) and C(version_id) of the image's distribution, empty where it says none."""
    found = {"id": "", "version_id": ""}
    if os.path.exists(path):
        with open(path) as stream:
            for line in stream:
                key, _equals, value = line.strip().partition("=")
                if key.lower() in found:
                    found[key.lower()] = value.strip("\"'")
    return found


def step_probe(arguments):
    """What decides whether Horovod can be compiled on this base, as JSON. Changes nothing."""
    versions = find_versions(None)
    print(json.dumps({
        "versions": versions,
        "frameworks": {"pytorch": bool(versions["torch"]), "tensorflow": bool(versions["tensorflow"]), "mxnet": bool(importlib.util.find_spec("mxnet"))},
        "torch_cuda": torch_cuda(),
        "nccl_header": nccl_header(arguments["variables"]),
        "apt": bool(shutil.which("apt-get")),
        "mpirun": bool(shutil.which("mpirun")),
        "mpi_compiler": any(shutil.which(name) for name in ("mpicxx", "mpic++", "mpiCC")),
        "os": os_release(),
        "architecture": platform.machine(),
        "packages": {name: installed(name) for name in ("libnccl2", "libnccl-dev")} if shutil.which("dpkg-query") else {},
    }))


# --- what is ours ---


def step_finish(_arguments):
    # The builder leaves an empty file where it mounted one.
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
    # The probe comes through stdin, with nothing mounted.
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    if os.path.exists(os.path.join(HERE, "arguments.json")):
        with open(os.path.join(HERE, "arguments.json")) as stream:
            arguments = json.load(stream)
    use_site()
    try:
        {"apt": step_apt, "python": step_python, "nccl": step_nccl, "horovod": step_horovod, "probe": step_probe, "finish": step_finish}[step](arguments)
    except StepError as exc:
        sys.exit("trainyard: %s" % exc)
    except subprocess.CalledProcessError as exc:
        sys.exit("trainyard: step %s: «%s» ended with %s; its output is above" % (step, " ".join(exc.cmd), exc.returncode))


if __name__ == "__main__":
    main()
