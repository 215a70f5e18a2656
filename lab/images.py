"""Files that are slow to create and created once: the hosts' image, the base archive of the
training image, the folder of wheels.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable

import hosts
import machine
from process import LabError, run, say, stream

REPOSITORY = "trainyard-lab"
# Of role training_image and of the inventory of the lab.
BUILD_LOG = "/var/log/trainyard/training_image.log"
CONTAINER = "trainyard-training"
HOST_PACKAGES = (
    "ca-certificates dbus iproute2 kmod openssh-server procps python3 python3-apt sudo systemd "
    "systemd-sysv udev"
).split()
BASE_PACKAGES = (
    "ca-certificates g++ iproute2 make openssh-client openssh-server procps python3 "
    "python3-dev python3-pip sudo"
).split()
# Every host creates its own ssh keys and machine ID at its first start. apt's proxy belongs to this
# machine and not to a training image.
HOST_HOOKS = ['rm -f "$1"/etc/ssh/ssh_host_*', ': > "$1"/etc/machine-id']
# The job owns the Python of a training image, so pip may install into it.
BASE_HOOKS = [
    *HOST_HOOKS,
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED "$1"/etc/apt/apt.conf.d/99mmdebstrap',
]
# A server with its own kernel. The Docker engine needs the AppArmor tools if the kernel has
# AppArmor.
VIRTUAL_PACKAGES = [
    *HOST_PACKAGES,
    "apparmor",
    "e2fsprogs",
    "initramfs-tools",
    "acl",
]
# Of virtual hosts, by distribution: a small one that boots on virtual hardware.
KERNELS = {"debian": "linux-image-cloud-amd64", "ubuntu": "linux-image-virtual"}
# File with the keys of a distribution's archive, and its package by the distribution of this machine. Debian 12 has none for Ubuntu.
KEYRINGS = {
    "debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
KEYRING_PACKAGES = {
    ("debian", "debian"): "debian-archive-keyring",
    ("debian", "ubuntu"): "debian-archive-keyring",
    ("ubuntu", "debian"): "ubuntu-archive-keyring",
    ("ubuntu", "ubuntu"): "ubuntu-keyring",
}
# Where mmdebstrap names the archive itself, it takes main alone, in which Ubuntu has neither pip nor Docker.
COMPONENTS = {"debian": "main", "ubuntu": "main,restricted,universe,multiverse"}
# apt has package lists, as on a newly installed server.
VIRTUAL_OPTIONS = ["--skip=cleanup/apt/lists"]
VIRTUAL_DISK = "14G"
# The modules of Debian's package user-mode-linux.
UML_MODULES = pathlib.Path("/usr/lib/uml/modules")
# Runs before anything that needs a name, an address or a key. Each host has these on a small disk.
IDENTITY_SERVICE = """[Unit]
Description=Identity of a host of the lab
DefaultDependencies=no
After=local-fs.target systemd-tmpfiles-setup.service
Before=network-pre.target systemd-networkd.service systemd-hostnamed.service ssh.service sysinit.target
Wants=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/lab-identity

[Install]
WantedBy=sysinit.target
"""
IDENTITY_SCRIPT = """#!/bin/sh
set -eu
mkdir -p /run/lab-identity
mount -o ro LABEL=lab-identity /run/lab-identity
cd /run/lab-identity
cp hosts resolv.conf hostname /etc/
hostname "$(cat hostname)"
install -m 0644 lab.network /etc/systemd/network/lab.network
install -m 0600 ssh_host_*_key /etc/ssh/
install -m 0644 ssh_host_*_key.pub /etc/ssh/
install -d -m 0700 -o ops -g ops /home/ops/.ssh
install -m 0600 -o ops -g ops authorized_keys /home/ops/.ssh/authorized_keys
cd /
umount /run/lab-identity
# Disks that not every host has. Here and not in fstab, where a device that an emulated machine is slow to find would be given up.
if device=$(blkid -L lab-data); then mount -o usrquota,grpquota "$device" /data1; fi
if device=$(blkid -L lab-docker); then mkdir -p /var/lib/docker; mount "$device" /var/lib/docker; fi
"""
VIRTUAL_FSTAB = "LABEL=lab-root / ext4 errors=remount-ro 0 1\n"
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13", "jammy": "3.10", "noble": "3.12"}
DISTRIBUTION_OF = {"bookworm": "debian", "trixie": "debian", "jammy": "ubuntu", "noble": "ubuntu"}


def release() -> str:
    """Return the codename of the distribution of the images: LAB_RELEASE, which lab.py --release
    sets, or that of this machine.
    """
    asked = os.environ.get("LAB_RELEASE", "")
    codename = asked or machine.os_release().get("VERSION_CODENAME", "")
    if codename in PYTHON_OF:
        return codename
    if asked:
        raise LabError(
            (
                f"--release '{asked}' is not a release that the lab supports: use one of "
                f"{', '.join(PYTHON_OF)}"
            )
        )
    raise LabError(
        f"this machine is '{machine.os_release().get('PRETTY_NAME')}'. The lab builds its "
        "images from this machine's package sources and supports the "
        f"Debian and Ubuntu releases {', '.join(PYTHON_OF)}. Run it on one of these, or set "
        "one with LAB_RELEASE if this machine has mmdebstrap"
    )


def sources_of(codename: str, own: str, read: Callable[[str], list]) -> list[tuple[bool, str]]:
    """Return the apt sources for images of a release on a machine of the release own.

    Another release of the same distribution has the machine's own sources with its name. For
    another distribution, mmdebstrap knows the archive: no sources. read: returns the machine's
    sources of a release.
    """
    found = read(codename)
    if found or codename == own or DISTRIBUTION_OF.get(own) != DISTRIBUTION_OF[codename]:
        return found
    return [(is_deb822, re.sub(rf"\b{own}\b", codename, entry)) for is_deb822, entry in read(own)]


def install_keys(distribution: str, own: str) -> None:
    """Install the keys of a distribution's archive on this machine, whose distribution is own."""
    path = pathlib.Path(KEYRINGS[distribution])
    if path.exists():
        return
    try:
        machine.install(KEYRING_PACKAGES[distribution, own])
    except LabError as problem:
        raise LabError(
            f"{problem}\nThis machine has no keys of the archive of {distribution.capitalize()}: copy {path} from a machine that has the file, "
            "or leave out LAB_RELEASE and set LAB_IMAGE to an image of that release with systemd"
        ) from None


class Recipe:
    """A file system built by mmdebstrap, named after a hash of its inputs."""

    def __init__(self, name, packages, hooks, options=()):
        self.name = name
        self.codename = release()
        own = machine.os_release().get("VERSION_CODENAME", "")
        self.distribution = DISTRIBUTION_OF[self.codename]
        self.own = DISTRIBUTION_OF.get(own, self.distribution)
        self.sources = sources_of(self.codename, own, machine.read_apt_sources)
        components = [] if self.sources else ["--components=" + COMPONENTS[self.distribution]]
        self.options = [
            "--variant=minbase",
            "--include=" + ",".join(packages),
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            *(f"--aptopt={proxy}" for proxy in machine.apt_proxies()),
            *(f"--customize-hook={hook}" for hook in hooks),
            *components,
            *options,
        ]
        digest = hashlib.sha256(
            repr((self.codename, self.sources, self.options)).encode()
        ).hexdigest()
        self.image = f"{REPOSITORY}/{name}:{digest[:12]}"

    def make(self, target, log):
        """Write the file system to target, a tar file. target exists only if it is complete."""
        if target.exists():
            return
        # mmdebstrap knows Ubuntu's newer releases from distro-info-data, and finds the key of an archive with gpg.
        machine.install("mmdebstrap", "distro-info-data", "gpg")
        install_keys(self.distribution, self.own)
        # Of its own, because two are built side by side.
        scratch = target.parent / "tmp" / self.name
        remove_scratch(scratch)
        scratch.mkdir(parents=True)
        mirrors = []
        for number, (is_deb822, entry) in enumerate(self.sources):
            mirror = scratch / f"{number}.{'sources' if is_deb822 else 'list'}"
            mirror.write_text(entry + "\n")
            mirrors.append(str(mirror))
        unfinished = scratch / "root.tar"
        say(f"building {self.image} with mmdebstrap ({self.codename})")
        status = stream(
            ["mmdebstrap", *self.options, self.codename, str(unfinished), *mirrors],
            log,
            {"TMPDIR": str(scratch)},
            label=self.name,
        )
        if status != 0:
            raise LabError(f"step: mmdebstrap of {self.image} ended with {status}\nlog: {log}")
        unfinished.rename(target)
        remove_scratch(scratch)


def side_by_side(*builds):
    """Run builds at the same time and return their results in this order.

    If one fails, its error is raised when the others have ended.
    """
    with concurrent.futures.ThreadPoolExecutor(len(builds)) as pool:
        return [build.result() for build in [pool.submit(build) for build in builds]]


def remove_scratch(scratch):
    """Remove the files of a killed mmdebstrap.

    It may take some seconds to end and writes until then.
    """
    for _ in range(30):
        # Mounts first, so that nothing is removed through a mounted /proc or /dev.
        mounts = [
            line.split()[4]
            for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        ]
        for mount in sorted(
            (mount for mount in mounts if mount.startswith(f"{scratch.resolve()}/")), reverse=True
        ):
            run("umount", "--lazy", mount)
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            return
        time.sleep(1)
    raise LabError(
        f"{scratch} could not be removed: check whether mmdebstrap still runs, and stop it"
    )


def exists(engine, image):
    return bool(engine.docker("images", "--quiet", image).stdout.strip())


def host_image(engine, cache, log):
    """Build the image of the lab's hosts: a minimal distribution with systemd, sshd and Python,
    like a newly installed server. Its archive is kept, so that an engine without images gets it
    without a build (.github/workflows/test.yml).
    """
    recipe = Recipe("host", HOST_PACKAGES, HOST_HOOKS)
    archive = archive_of(recipe, cache)
    if not exists(engine, recipe.image):
        recipe.make(archive, log)
        engine.docker("import", "--change", "ENV LANG=C.UTF-8", str(archive), recipe.image)
    engine.docker("tag", recipe.image, f"{REPOSITORY}/host:latest")
    return recipe.image


def archive_of(recipe: Recipe, cache: pathlib.Path) -> pathlib.Path:
    """Return the path of the archive of a recipe, after those of its former inputs are removed."""
    archive = cache / f"{recipe.name}-{recipe.image.rpartition(':')[2]}.tar"
    for stale in set(cache.glob(f"{recipe.name}-*.tar")) - {archive}:
        stale.unlink()
    return archive


def virtual_system(cache, log):
    """Build kernel, initrd and disk of the virtual hosts, {kernel, initrd, disk, uml}: the same
    minimal distribution with a kernel. uml is User-mode Linux, whose modules are also on the disk,
    or None if the distribution of this machine does not have it.
    """
    packages = [*VIRTUAL_PACKAGES, KERNELS[DISTRIBUTION_OF[release()]]]
    recipe = Recipe("virtual", packages, HOST_HOOKS, VIRTUAL_OPTIONS)
    machine.install("qemu-system-x86", "qemu-utils", "iproute2", "e2fsprogs")
    machine.install_if_known("user-mode-linux")
    modules = sorted(UML_MODULES.glob("*"))
    parts = (
        recipe.image,
        IDENTITY_SERVICE,
        IDENTITY_SCRIPT,
        VIRTUAL_FSTAB,
        VIRTUAL_DISK,
        [path.name for path in modules],
    )
    target = cache / f"virtual-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    uml = shutil.which("linux.uml") if modules else None
    system = {
        "kernel": target / "vmlinuz",
        "initrd": target / "initrd.img",
        "disk": target / "disk.ext4",
        "uml": uml,
    }
    if target.exists():
        return system
    if not machine.runs_virtual_machines():
        for stale in cache.glob("virtual-*"):
            shutil.rmtree(stale)
    archive, root, unfinished = (
        cache / "virtual.tar",
        cache / "virtual.root",
        cache / "virtual.unfinished",
    )
    recipe.make(archive, log)
    for folder in (root, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    run(
        "tar",
        "--extract",
        "--numeric-owner",
        "--xattrs",
        "--xattrs-include=*",
        "--file",
        str(archive),
        "--directory",
        str(root),
    )
    for name, pattern in (("vmlinuz", "vmlinuz-*"), ("initrd.img", "initrd.img-*")):
        shutil.copy(next((root / "boot").glob(pattern)), unfinished / name)
    for path in modules:
        shutil.copytree(path, root / "lib/modules" / path.name)
    make_virtual(root, unfinished / "disk.ext4")
    shutil.rmtree(root)
    archive.unlink()
    unfinished.rename(target)
    return system


def make_virtual(root, disk):
    """Create a disk from a root file system, for hosts that get their name, address and keys when
    they boot.
    """
    (root / "usr/local/sbin/lab-identity").write_text(IDENTITY_SCRIPT)
    (root / "usr/local/sbin/lab-identity").chmod(0o755)
    (root / "etc/systemd/system/lab-identity.service").write_text(IDENTITY_SERVICE)
    (root / "etc/fstab").write_text(VIRTUAL_FSTAB)
    (root / "data1").mkdir(exist_ok=True)
    (root / "etc/sudoers.d/ops").write_text("ops ALL=(ALL) NOPASSWD: ALL\n")
    (root / "etc/sudoers.d/ops").chmod(0o440)
    script = (
        "id ops > /dev/null 2>&1 || useradd --create-home --shell /bin/bash ops; systemctl "
        "--quiet enable lab-identity systemd-networkd ssh; "
        "systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer "
        "e2scrub_all.timer fstrim.timer"
    )
    run("chroot", str(root), "sh", "-euc", script)
    run("mkfs.ext4", "-q", "-F", "-L", "lab-root", "-d", str(root), str(disk), VIRTUAL_DISK)


def training_base(engine, cache, log):
    """Build the base of the training image as a Docker archive, (image name, path), as used by a
    site without a registry.
    """
    recipe = Recipe("training-base", BASE_PACKAGES, BASE_HOOKS)
    target = archive_of(recipe, cache)
    if not target.exists():
        archive = cache / "training-base.root.tar"
        archive.unlink(missing_ok=True)
        recipe.make(archive, log)
        engine.docker(
            "import",
            "--change",
            "ENV LANG=C.UTF-8",
            "--change",
            'CMD ["bash"]',
            str(archive),
            recipe.image,
        )
        unfinished = target.with_suffix(".unfinished")
        engine.docker("save", "--output", str(unfinished), recipe.image)
        unfinished.rename(target)
        engine.docker("rmi", recipe.image)
        archive.unlink()
    return recipe.image, target


def wheels(root, cache, log):
    """Download the wheels of lab/wheels.txt into a folder, with this machine's pip settings."""
    requirements = root / "lab" / "wheels.txt"
    target = cache / f"wheels-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    if target.exists():
        return target
    unfinished = cache / "wheels.unfinished"
    for stale in (unfinished, *cache.glob("wheels-*")):
        shutil.rmtree(stale, ignore_errors=True)
    say(f"downloading the wheels of {requirements.relative_to(root)}")
    pip = [
        str(root / ".venv/bin/pip"),
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]
    pip += [
        "--python-version",
        PYTHON_OF[release()],
        "--dest",
        str(unfinished),
        "--requirement",
        str(requirements),
    ]
    if stream(pip, log) != 0:
        raise LabError(
            f"step: a wheel of {requirements} could not be downloaded: the package index of "
            "this machine has no CPU build of that version. "
            "Set PIP_EXTRA_INDEX_URL to an index of CPU wheels (PyTorch's own, or your site's "
            "mirror of it), "
            f"or PIP_FIND_LINKS to a folder with the wheel for Python {PYTHON_OF[release()]}, "
            f"and run make lab again.\nlog: {log}"
        )
    unfinished.rename(target)
    return target


def with_horovod(target: pathlib.Path, cache: pathlib.Path) -> pathlib.Path:
    """Put Horovod's wheels into the folder of wheels.

    The build takes one that is of the same inputs, instead of compiling for minutes.
    """
    kept = {path.name: path for path in (cache / "horovod").glob("horovod-*.whl")}
    for stale in target.glob("horovod-*.whl"):
        if stale.name not in kept:
            stale.unlink()
    for name, path in kept.items():
        if not (target / name).exists():
            (target / name).hardlink_to(path)
    return target


def keep_horovod(lab: hosts.Lab, cache: pathlib.Path) -> None:
    """Copy the Horovod that the build on the first host has compiled into the cache, as a wheel
    that is named after its inputs.
    """
    head = next(iter(lab.hosts))
    log = lab.on(head, "cat", BUILD_LOG, check=False).stdout
    tags = re.findall(r"Inputs of the compilation: (\w+)", log)
    folder = cache / "horovod"
    if not tags or list(folder.glob(f"horovod-*-{tags[-1]}-*.whl")):
        return
    inspect = ["docker", "inspect", "--format", "{{.Config.Image}}", CONTAINER]
    image = lab.on(head, *inspect).stdout.strip()
    program = (pathlib.Path(__file__).parent / "wheel_of_horovod.py").read_text()
    there = "/var/tmp/trainyard-horovod"
    lab.on(head, "rm", "--recursive", "--force", there)
    run = ["docker", "run", "--rm", "--network=none", f"--volume={there}:{there}"]
    lab.on(head, *run, "--entrypoint=python3", image, "-c", program, tags[-1], there)
    unfinished = cache / "horovod.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    lab.engine.docker("cp", f"{head}:{there}", str(unfinished))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    lab.on(head, "rm", "--recursive", there)


def recipe_digest(root):
    """Return a hash of the sources of the lab's training image: its role, the inventory's
    variables, base and wheels.
    """
    digest = hashlib.sha256()
    files = [
        path
        for folder in ("roles/training_image", "inventories/lab/group_vars")
        for path in (root / folder).rglob("*")
        if path.is_file()
    ]
    for path in sorted(
        [
            *files,
            root / "lab/wheels.txt",
            root / "plugins/module_utils/_recipe.py",
            root / "plugins/plugin_utils/_image_plan.py",
        ]
    ):
        if path.name != "README.md":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def remove_images(engine, repository=REPOSITORY):
    """Remove the images of the lab or of the scenarios."""
    names = engine.docker(
        "images", "--format", "{{.Repository}}:{{.Tag}}", f"{repository}/*"
    ).stdout.split()
    if names:
        say(f"removing images {' '.join(names)}")
        engine.docker("rmi", "--force", *names)
