"""The vendor's repository that the scenarios use: apt itself judges it, in a root of its own;
nothing of this machine's changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import vendor_repository as vendor
import yaml
from ansible_collections.trainyard.gpu.plugins.module_utils import _gpu_stack as stack
from ansible_collections.trainyard.gpu.plugins.module_utils import _nvidia_smi as smi_parser

UBUNTU = Path(__file__).parents[1] / "fixtures/ubuntu"

# As published it counts 4 GPUs and describes one.
A100 = (
    (vendor.FIXTURES / "nvidia-smi-xml/a100-sxm4-v12.xml")
    .read_bytes()
    .replace(b"<attached_gpus>4<", b"<attached_gpus>1<")
)

# What the packages ask of every host.
ADDUSER = "Package: adduser\nStatus: install ok installed\nVersion: 3\nArchitecture: all\nMaintainer: x\nDescription: x\n"


class Apt:
    """apt with folders of its own, and the sources that a test gives it."""

    def __init__(self, root):
        self.root = root
        for folder in (
            "state/lists/partial",
            "cache/archives/partial",
            "etc/apt.conf.d",
            "etc/preferences.d",
            "etc/sources.list.d",
            "dpkg",
        ):
            (root / folder).mkdir(parents=True)
        (root / "dpkg/status").touch()
        # The machine's own settings, a proxy among them, have no say.
        self.settings = root / "apt.conf"
        self.settings.write_text(
            f'Dir "{root}";\nDir::State "{root}/state";\nDir::State::status "{root}/dpkg/status";\nDir::Cache "{root}/cache";\nDir::Etc "{root}/etc";\n'
            'Dir::Bin::methods "/usr/lib/apt/methods/";\nDir::Bin::solvers "/usr/lib/apt/solvers/";\nDir::Bin::planners "/usr/lib/apt/planners/";\n'
            'APT::Architecture "amd64";\nAPT::Architectures { "amd64"; };\nAPT::Sandbox::User "root";\n'
            'Acquire::http::Proxy "false";\nAcquire::Languages "none";\n',
            encoding="utf-8",
        )

    def run(self, *command):
        return subprocess.run(
            command,
            env={**os.environ, "APT_CONFIG": str(self.settings), "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def source(self, url, key):
        (self.root / "etc/sources.list").write_text(
            f"deb [signed-by={key}] {url} /\n", encoding="utf-8"
        )

    def update(self):
        return self.run("apt-get", "update", "--error-on=any")

    def plan(self, *packages):
        """What apt would unpack, by package; or why it won't."""
        done = self.run("apt-get", "install", "--simulate", "--no-install-recommends", *packages)
        return (
            dict(re.findall(r"^Inst (\S+) \((\S+) ?", done.stdout, re.MULTILINE))
            if done.returncode == 0
            else done.stdout
        )


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
    return vendor.make(tmp_path_factory.mktemp("vendor"))


def directory(folder, name):
    return vendor.place(folder, name)[0]


@pytest.fixture(name="apt")
def fixture_apt(tmp_path, folder):
    def made(name, url=None):
        found = Apt(tmp_path / name)
        found.source(url or f"file:{directory(folder, name)}", key(folder))
        assert found.update().returncode == 0, found.update().stdout
        return found

    return made


def key(folder):
    return directory(folder, "debian12") / "cuda-archive-keyring.gpg"


def test_what_apt_sees(apt):
    debian, ubuntu, toolkit = apt("debian12"), apt("ubuntu2204"), apt("container_toolkit")
    pairs = ubuntu.run("apt-cache", "madison", "libnccl2").stdout
    assert [line.split("|")[1].strip() for line in pairs.splitlines()][:3] == [
        "2.27.7-1+cuda13.0",
        "2.27.3-1+cuda12.9",
        "2.25.1-1+cuda12.8",
    ]
    assert (
        debian.run("apt-cache", "madison", "libnccl2").stdout == ""
        and debian.run("apt-cache", "madison", "nvidia-driver").stdout.count("\n") == 10
    )
    assert "release o=NVIDIA,l=NVIDIA CUDA" in debian.run("apt-cache", "policy").stdout
    # What is asked of others is only what every host has.
    asked = re.findall(
        r"Depends: (.*)",
        "".join(found.run("apt-cache", "unmet").stdout for found in (debian, ubuntu, toolkit)),
    )
    assert set(asked) == {"adduser"}


def test_two_of_one_pair_or_none(apt):
    ubuntu = apt("ubuntu2204")
    pair = {"libnccl2": "2.21.5-1+cuda12.4", "libnccl-dev": "2.21.5-1+cuda12.4"}
    assert ubuntu.plan(*("%s=%s" % entry for entry in pair.items())) == {
        name: version for name, version in pair.items()
    }
    assert "libnccl-dev : Depends: libnccl2 (= 2.21.5-1+cuda12.4)" in ubuntu.plan(
        "libnccl2=2.27.7-1+cuda13.0", "libnccl-dev=2.21.5-1+cuda12.4"
    )
    assert "libnccl-dev : Depends: libnccl2 (= 2.21.5-1+cuda12.4)" in ubuntu.plan(
        "libnccl-dev=2.21.5-1+cuda12.4"
    )
    # Without a version, the one for the newest CUDA is taken.
    assert ubuntu.plan("libnccl2") == {"libnccl2": "2.27.7-1+cuda13.0"}


def test_a_driver_that_is_not_the_newest(apt):
    """Its own version alone is not enough, as people find out on NVIDIA's: apt takes the newest of
    what it depends on, and gives up.
    """
    debian = apt("debian12")
    assert "nvidia-driver-libs (= 550.54.15-1)" in debian.plan("nvidia-driver=550.54.15-1")
    (debian.root / "etc/preferences.d/pin").write_text(
        "Package: *nvidia* *cuda*\nPin: version 550.54.15-1\nPin-Priority: 1001\n", encoding="utf-8"
    )
    planned = debian.plan("cuda-drivers-550")
    assert {"nvidia-driver", "nvidia-kernel-dkms", "libnvidia-ml1", "libcuda1"} < set(
        planned
    ) and set(planned.values()) == {"550.54.15-1"}
    # libcuda1 only recommends it.
    assert "nvidia-smi" not in planned
    assert "nvidia-kernel-open-dkms" not in planned and "nvidia-kernel-dkms" not in debian.plan(
        "nvidia-open"
    )
    assert "Conflicts: nvidia-kernel-" in debian.plan(
        "nvidia-kernel-open-dkms", "nvidia-kernel-dkms"
    )


@pytest.mark.parametrize(
    "name, newest", [("debian12", "590.48.01-1"), ("ubuntu2204", "590.48.01-1ubuntu1")]
)
def test_a_pinning_package_locks_a_branch(folder, apt, tmp_path, name, newest):
    found = apt(name)
    (found.root / "dpkg/status").write_text(ADDUSER, encoding="utf-8")
    assert set(found.plan("cuda-drivers").values()) == {newest}
    (package,) = directory(folder, name).glob("nvidia-driver-pinning-570_570.172.08-*")
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "unpacked"], check=True)
    (preferences,) = (tmp_path / "unpacked/etc/apt/preferences.d").iterdir()
    preferences.rename(found.root / "etc/preferences.d" / preferences.name)
    planned = found.plan("cuda-drivers-570")
    assert planned and {version.split("-")[0] for version in planned.values()} == {"570.172.08"}, (
        planned
    )


@pytest.mark.parametrize("name", ["debian12", "ubuntu2204"])
def test_every_driver_is_whole(folder, apt, name):
    """With all of its packages at its version, each of the driver's versions can be installed."""
    found = apt(name)
    family = next(
        entry
        for entry in vendor.load()["families"]
        if entry["name"] == {"debian12": "driver", "ubuntu2204": "driver_ubuntu"}[name]
    )
    for version in family["versions"]:
        controls = [control for control, _files, _scripts in vendor.packages(family, version)]
        names = {
            vendor.field(control, "Package"): vendor.field(control, "Version")
            for control in controls
        }
        asked = {
            key: value
            for key, value in names.items()
            if "open" not in key
            and not key.startswith(("cuda-drivers", "nvidia-driver-pinning", "nvlink5"))
        }
        (found.root / "dpkg/status").write_text(ADDUSER, encoding="utf-8")
        planned = found.plan(*("%s=%s" % entry for entry in asked.items()))
        assert isinstance(planned, dict) and set(planned) == set(asked), planned


def test_a_driver_for_ubuntu_is_as_nvidia_has_it(folder, apt):
    """Maintainers, packages of their own from 580 on, and the fabric of B200, which needs the open
    module.
    """
    family = next(entry for entry in vendor.load()["families"] if entry["name"] == "driver_ubuntu")

    def maintainers(version):
        return {
            vendor.field(control, "Package"): vendor.field(control, "Maintainer").split(" <")[0]
            for control, _files, _scripts in vendor.packages(family, version)
        }

    old, new = maintainers("570.172.08-0ubuntu1"), maintainers("580.95.05-0ubuntu1")
    for found, branch in ((old, "570"), (new, "580")):
        assert found["nvidia-driver-" + branch] == "Ubuntu Core Developers"
        assert found["libnvidia-compute-" + branch] == "Ubuntu Core Developers"
        assert found["cuda-drivers-" + branch] == found["nvidia-open-" + branch] == "cudatools"
    assert "nvidia-fabricmanager-570" in old and "nvidia-persistenced" not in old
    own = {"nvidia-persistenced", "nvidia-firmware-580", "libnvidia-gpucomp-580"}
    assert own | {"nvidia-fabricmanager"} < set(new) and "nvidia-fabricmanager-580" not in new
    planned = apt("ubuntu2204").plan("nvidia-open-580", "nvlink5-580")
    assert isinstance(planned, dict) and {"nvidia-fabricmanager", "nvlsm"} < set(planned), planned
    # What nvlink5-580 really depends on has these names, among others.
    shown = (UBUNTU / "apt-show-nvlink5-580-cuda-repository-noble.txt").read_text(encoding="utf-8")
    real = set(re.findall(r"[:|,] *\n? *([a-z][a-z0-9-]+)", shown.partition("Depends")[2]))
    (nvlink5,) = [
        control
        for control, _files, _scripts in vendor.packages(family, "580.95.05-0ubuntu1")
        if vendor.field(control, "Package") == "nvlink5-580"
    ]
    ours = {each.split()[0] for each in vendor.field(nvlink5, "Depends").split(", ")}
    assert ours < real and "libnvidia-nscq" in real


def test_the_origin_of_a_driver_by_apt_itself(folder, apt, tmp_path):
    """A host with both repositories: the same names, the same maintainer, two origins.

    A branch of the archive is empty.
    """
    archive = tmp_path / "archive"
    archive.mkdir()
    paragraph = (
        "Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>\n"
        "Section: %s\n%sFilename: pool/%s.deb\nSize: 1\nSHA256: %064d\nDescription: NVIDIA driver support binaries\n"
    )
    empty, full = "570.211.01-0ubuntu1.24.04.1", "580.126.20-0ubuntu0.24.04.2"
    rows = [
        ("nvidia-utils-570", empty, "restricted/oldlibs", "Depends: nvidia-utils-580\n"),
        ("nvidia-utils-580", full, "restricted/libs", ""),
    ]
    stanzas = [paragraph % (*row, row[0], number) for number, row in enumerate(rows)]
    vendor.write_index(folder, archive, stanzas, "Ubuntu", "Ubuntu")
    found = apt("ubuntu2404")
    with open(found.root / "etc/sources.list", "a", encoding="utf-8") as stream:
        stream.write(f"deb [signed-by={key(folder)}] file:{archive} /\n")
    update = found.update()
    assert update.returncode == 0, update.stdout
    names = ["nvidia-utils-570", "nvidia-utils-580", "cuda-drivers-580"]
    offers = stack.parse_origins(found.run("apt-cache", "madison", *names).stdout)
    assert offers["nvidia-utils-580", full] == {"distribution"}
    assert offers["nvidia-utils-580", "580.126.20-1ubuntu1"] == {"nvidia_repository"}
    assert offers["nvidia-utils-570", "570.172.08-0ubuntu1"] == {"nvidia_repository"}
    shown = found.run("apt-cache", "show", *names).stdout
    assert stack.parse_transitional(shown) == {("nvidia-utils-570", empty): "nvidia-utils-580"}


def test_the_toolkit_s_four_can_be_mixed(apt):
    """As the compatibility data say of what is older than 1.18: two of them at a version leave the
    others at the newest.
    """
    toolkit = apt("container_toolkit")
    assert "nvidia-container-toolkit-base (= 1.17.7-1)" in toolkit.plan(
        "nvidia-container-toolkit=1.17.7-1"
    )
    assert toolkit.plan(
        "nvidia-container-toolkit=1.17.7-1", "nvidia-container-toolkit-base=1.17.7-1"
    ) == {
        "nvidia-container-toolkit": "1.17.7-1",
        "nvidia-container-toolkit-base": "1.17.7-1",
        "libnvidia-container-tools": "1.17.8-1",
        "libnvidia-container1": "1.17.8-1",
    }


def test_several_cudas_side_by_side(apt):
    planned = apt("debian12").plan(
        "cuda-toolkit-11-8", "cuda-toolkit-12-4", "cuda-toolkit-12-6", "cudnn9-cuda-12"
    )
    assert (
        planned["cuda-nvcc-11-8"] == "11.8.89-1"
        and planned["cuda-nvcc-12-4"] == "12.4.131-1"
        and planned["libcudnn9-cuda-12"] == "9.10.2.21-1"
    )


# --- the key and the mirror -----------------------------------------------------------------------------------------------


def test_a_key_that_has_expired(tmp_path):
    made = vendor.make(tmp_path / "vendor", expired_key=True, only=["nccl"])
    found = Apt(tmp_path / "apt")
    found.source("file:%s" % directory(made, "ubuntu2204"), key(made))
    done = found.update()
    assert (
        done.returncode == 100
        and "EXPKEYSIG" in done.stdout
        and found.run("apt-cache", "madison", "libnccl2").stdout == ""
    )


def test_another_key_and_another_index(tmp_path, folder):
    made = vendor.make(tmp_path / "vendor", only=["nccl"])
    found = Apt(tmp_path / "apt")
    found.source("file:%s" % directory(made, "ubuntu2204"), key(folder))
    assert "NO_PUBKEY" in found.update().stdout
    found.source("file:%s" % directory(made, "ubuntu2204"), key(made))
    index = directory(made, "ubuntu2204") / "Packages"
    for path in (index, index.with_name("Packages.gz")):
        path.write_bytes(path.read_bytes() + b"x")
    assert found.update().returncode == 100


def test_the_keyring_package(folder, tmp_path):
    for name, version, pinned in [("debian12", "1.1-1", False), ("ubuntu2004", "1.0-1", True)]:
        package = directory(folder, name) / ("cuda-keyring_%s_all.deb" % version)
        subprocess.run(["dpkg-deb", "--extract", package, tmp_path / name], check=True)
        assert (
            tmp_path / name / "usr/share/keyrings/cuda-archive-keyring.gpg"
        ).read_bytes() == key(folder).read_bytes()
        assert (tmp_path / name / ("etc/apt/sources.list.d/cuda-%s-x86_64.list" % name)).read_text(
            encoding="utf-8"
        ) == (
            "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] https://developer.download.nvidia.com/compute/cuda/repos/%s/x86_64/ /\n"
            % name
        )
        assert (
            tmp_path / name / "etc/apt/preferences.d/cuda-repository-pin-600"
        ).exists() is pinned
        said = json.loads((folder / "vendor.json").read_text(encoding="utf-8"))
        assert (
            said["sha256"][str(package.relative_to(folder))]
            == hashlib.sha256(package.read_bytes()).hexdigest()
        )
    assert not (directory(folder, "ubuntu2404") / "cuda-keyring_1.0-1_all.deb").exists()
    assert re.fullmatch("[0-9A-F]{40}", said["fingerprint"])


def test_versions_that_come_and_go(tmp_path):
    made = vendor.make(tmp_path / "vendor", only=["nccl", "toolkit"])
    found = Apt(tmp_path / "apt")
    found.source("file:%s" % directory(made, "ubuntu2204"), key(made))
    assert found.update().returncode == 0 and found.plan("libnccl2") == {
        "libnccl2": "2.27.7-1+cuda13.0"
    }
    vendor.publish(made, "ubuntu2204", "nccl", "2.28.9-1+cuda13.0")
    assert found.update().returncode == 0 and found.plan("libnccl2") == {
        "libnccl2": "2.28.9-1+cuda13.0"
    }
    vendor.withdraw(made, "ubuntu2204", "libnccl*", "*+cuda13.0")
    assert found.update().returncode == 0 and found.plan("libnccl-dev") == {
        name: "2.27.3-1+cuda12.9" for name in ("libnccl2", "libnccl-dev")
    }
    with pytest.raises(ValueError):
        vendor.withdraw(made, "ubuntu2204", "libnccl2", "2.28.9-1+cuda13.0")
    with pytest.raises(ValueError):
        vendor.publish(made, "debian12", "nccl", "2.28.9-1+cuda13.0")


def test_a_mirror_that_goes_away_in_the_middle(folder, tmp_path):
    with vendor.serve(folder) as mirror:
        found = Apt(tmp_path / "apt")
        found.source("%s/%s/amd64" % (mirror.url, vendor.TOOLKIT), key(folder))
        assert found.update().returncode == 0
        four = [
            "nvidia-container-toolkit",
            "nvidia-container-toolkit-base",
            "libnvidia-container-tools",
            "libnvidia-container1",
        ]
        # Of four packages it hands out two.
        mirror.gone_after = len(mirror.asked) + 2
        done = found.run(
            "apt-get", "install", "--yes", "--download-only", "-o", "Acquire::Retries=0", *four
        )
        assert done.returncode == 100 and "Failed to fetch" in done.stdout
        mirror.gone_after = None
        assert found.run("apt-get", "install", "--yes", "--download-only", *four).returncode == 0


# --- what the packages bring ----------------------------------------------------------------------------------------------


@pytest.fixture(name="unpacked")
def fixture_unpacked(folder, tmp_path):
    def unpack(name, *packages):
        for package in packages:
            (found,) = directory(folder, name).glob(package)
            subprocess.run(["dpkg-deb", "--extract", found, tmp_path / "unpacked"], check=True)
        return tmp_path / "unpacked"

    return unpack


def say(*command, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "LC_ALL": "C", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_nvidia_smi_replays_what_a_test_puts_there(unpacked, tmp_path):
    smi = unpacked("debian12", "nvidia-smi_550.54.15-1_*") / "usr/bin/nvidia-smi"
    fixtures = {"VENDOR_FIXTURES": str(tmp_path)}
    answers = tmp_path / "nvidia-smi"
    answers.mkdir()
    # Without anything it is honest.
    code, text = say(smi, "-q", "-x", **fixtures)
    assert code == 9 and smi_parser.why_no_answer(code, text, "")[0] == "driver_not_loaded"
    (answers / "xml").write_bytes(A100)
    code, text = say(smi, "-q", "-x", **fixtures)
    parsed = smi_parser.parse_query(text)
    assert (
        code == 0
        and parsed.driver_version == "550.54.15"
        and parsed.cuda_version == "12.4"
        and parsed.gpus
    )
    gpu = parsed.gpus[0]
    assert say(smi, "-L", **fixtures)[1].splitlines()[0] == "GPU 0: %s (UUID: %s)" % (
        gpu["name"],
        gpu["uuid"],
    )
    assert (
        say(smi, "--query-gpu=index,name,driver_version", "--format=csv,noheader", **fixtures)[
            1
        ].splitlines()[0]
        == "0, %s, 550.54.15" % gpu["name"]
    )
    assert say(smi, "--query-gpu=nonsense", "--format=csv", **fixtures)[0] == 2
    assert "Enabled persistence mode for GPU" in say(smi, "-pm", "1", **fixtures)[1]
    assert smi_parser.parse_query(say(smi, "-q", "-x", **fixtures)[1]).gpus[0]["persistence_mode"]
    assert (
        "DRIVER version      : 550.54.15" in say(smi, "--version", **fixtures)[1]
        and say(smi, "--nonsense", **fixtures)[0] == 1
    )
    # After an upgrade without a reboot.
    (answers / "loaded").write_text("535.183.01\n", encoding="utf-8")
    code, text = say(smi, "-q", "-x", **fixtures)
    assert (
        code == 18
        and smi_parser.why_no_answer(code, text, "")[0] == "driver_library_mismatch"
        and "NVML library version: 550.54" in text
    )
    (answers / "fail-550.54.15").write_bytes(
        (vendor.FIXTURES / "nvidia-smi-fail/no-devices.txt").read_bytes()
    )
    (answers / "status").write_text("6\n", encoding="utf-8")
    code, text = say(smi, **fixtures)
    assert code == 6 and smi_parser.why_no_answer(code, text, "")[0] == "no_devices"


def test_the_loader_takes_the_libraries(unpacked, tmp_path):
    root = unpacked("debian12", "libnvidia-ml1_550.54.15-1_*", "libcuda1_580.95.05-1_*")
    (root / "etc").mkdir()
    (root / "etc/ld.so.conf").write_text("/usr/lib/x86_64-linux-gnu\n", encoding="utf-8")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)
    cache = subprocess.run(
        ["/sbin/ldconfig", "-r", root, "-p"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert (
        "libnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1" in cache
        and "libcuda.so.1 (libc6,x86-64)" in cache
    )
    assert (
        stack.library_version(os.path.realpath(root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"))
        == "550.54.15"
    )


def test_nvcc_and_headers(unpacked):
    root = unpacked(
        "debian12", "cuda-nvcc-12-4_12.4.131-1_*", "cuda-nvcc-12-6_*", "cuda-nvcc-11-8_*"
    )
    for series, version in [("11.8", "11.8.89"), ("12.4", "12.4.131"), ("12.6", "12.6.85")]:
        code, text = say(root / ("usr/local/cuda-%s/bin/nvcc" % series), "--version")
        assert code == 0 and stack.parse_nvcc(text) == {"release": series, "version": version}
    header = unpacked("ubuntu2204", "libnccl-dev_2.21.5-1+cuda12.4_*") / "usr/include/nccl.h"
    assert stack.parse_nccl_header(header.read_text(encoding="utf-8")) == "2.21.5"


def test_nvidia_ctk(unpacked, tmp_path):
    ctk = (
        unpacked("container_toolkit", "nvidia-container-toolkit-base_1.17.7-1_*")
        / "usr/bin/nvidia-ctk"
    )
    config = tmp_path / "docker/daemon.json"
    assert say(ctk, "--version") == (0, "NVIDIA Container Toolkit CLI version 1.17.7\n")
    code, text = say(
        ctk, "runtime", "configure", "--runtime=docker", "--config=%s" % config, "--dry-run"
    )
    assert code == 0 and "nvidia-container-runtime" in text and not config.exists()
    config.parent.mkdir()
    config.write_text(
        '{"data-root": "/srv/docker", "runtimes": {"other": {"path": "/usr/bin/other"}}, "features": {"buildkit": true}}',
        encoding="utf-8",
    )
    code, text = say(
        ctk, "runtime", "configure", "--runtime=docker", "--config=%s" % config, "--set-as-default"
    )
    assert code == 0 and "It is recommended that docker daemon be restarted." in text
    assert json.loads(config.read_text(encoding="utf-8")) == {
        "data-root": "/srv/docker",
        "default-runtime": "nvidia",
        "features": {"buildkit": True},
        "runtimes": {
            "nvidia": {"args": [], "path": "nvidia-container-runtime"},
            "other": {"path": "/usr/bin/other"},
        },
    }
    assert (
        say(
            ctk, "runtime", "configure", "--runtime=docker", "--config=%s" % config, "--cdi.enabled"
        )[0]
        == 0
    )
    # The vendor's own loss, see vendor/programs/nvidia-ctk.
    assert json.loads(config.read_text(encoding="utf-8"))["features"] == {"cdi": True}
    config.write_text("{", encoding="utf-8")
    assert (
        say(ctk, "runtime", "configure", "--config=%s" % config)[0] == 1
        and config.read_text(encoding="utf-8") == "{"
    )
    code, text = say(ctk, "runtime", "configure", "--nonsense")
    assert code == 1 and "flag provided but not defined: -nonsense" in text
    assert (
        say(ctk, "cdi", "generate", "--output=%s" % (tmp_path / "nvidia.yaml"))[0] == 1
        and not (tmp_path / "nvidia.yaml").exists()
    )
    assert say(
        ctk,
        "--quiet",
        "config",
        "--config-file=%s" % (tmp_path / "runtime/config.toml"),
        "--in-place",
    ) == (0, "")
    assert 'mode = "auto"' in (tmp_path / "runtime/config.toml").read_text(encoding="utf-8")


def test_a_specification_of_devices(unpacked, tmp_path):
    ctk = (
        unpacked("container_toolkit", "nvidia-container-toolkit-base_1.17.7-1_*")
        / "usr/bin/nvidia-ctk"
    )
    # In place of the machine's: a loader that knows the driver.
    (tmp_path / "ldconfig").write_text(
        "#!/bin/sh\necho '	libnvidia-ml.so.1 (libc6,x86-64) => /lib/libnvidia-ml.so.550.54.15'\n",
        encoding="utf-8",
    )
    (tmp_path / "ldconfig").chmod(0o755)
    ctk.write_text(
        ctk.read_text(encoding="utf-8").replace("/sbin/ldconfig", str(tmp_path / "ldconfig")),
        encoding="utf-8",
    )
    (tmp_path / "nvidia-smi").mkdir()
    (tmp_path / "nvidia-smi/xml").write_bytes(A100)
    path = tmp_path / "cdi/nvidia.yaml"
    code, text = say(ctk, "cdi", "generate", "--output=%s" % path, VENDOR_FIXTURES=str(tmp_path))
    assert code == 0, text
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert spec["kind"] == "nvidia.com/gpu" and spec["devices"][-1]["name"] == "all"
    assert spec["containerEdits"]["mounts"][0]["hostPath"] == os.path.realpath(
        "/lib/libnvidia-ml.so.550.54.15"
    )
    code, text = say(ctk, "--quiet", "cdi", "list", "--spec-dir=%s" % path.parent)
    assert (
        code == 0
        and "nvidia.com/gpu=all" in text.splitlines()
        and "nvidia.com/gpu=0" in text.splitlines()
    )


# --- self-extracting files ------------------------------------------------------------------------------------------------


class Host:
    """A folder in place of /."""

    def __init__(self, root):
        self.root = root
        root.mkdir()
        self.log = root / "var/log/nvidia-installer.log"

    def headers(self):
        (self.root / "lib/modules" / os.uname().release / "build").mkdir(parents=True)

    def run(self, *command):
        return say("sh", *command, VENDOR_ROOT=str(self.root))


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return Host(tmp_path / "host")


def test_the_driver_s_file_about_itself(folder, host, tmp_path):
    path = folder / "runfiles/NVIDIA-Linux-x86_64-550.54.15.run"
    assert (path.parent / (path.name + ".sha256sum")).read_text(encoding="utf-8").split()[
        0
    ] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (
        host.run(path, "--check") == (0, "Verifying archive integrity... \nOK\n")
        and "550.54.15" in host.run(path, "--info")[1]
    )
    cut = tmp_path / path.name
    cut.write_bytes(path.read_bytes()[:-40])
    assert (
        host.run(cut, "--check")[0] == host.run(cut, "--silent")[0] == 1 and not host.log.exists()
    )
    done = subprocess.run(["sh", path, "-x"], cwd=tmp_path, check=False)
    assert (
        done.returncode == 0
        and (tmp_path / "NVIDIA-Linux-x86_64-550.54.15/nvidia-installer").exists()
    )


@pytest.mark.parametrize(
    "version, arguments",
    [
        ("550.54.15", ["--nonsense"]),
        ("550.54.15", ["--silent", "--kernel-module-type=open"]),
        ("550.54.15", ["-M", "open"]),
        ("550.54.15", ["now"]),
        ("580.95.05", ["--kernel-module-type=both"]),
        ("580.95.05", ["--log-file-name"]),
        ("470.103.01", ["--no-rebuild-initramfs"]),
        ("550.54.15", ["--no-silent"]),
    ],
)
def test_options_that_a_version_does_not_know(folder, host, version, arguments):
    host.headers()
    code, text = host.run(folder / ("runfiles/NVIDIA-Linux-x86_64-%s.run" % version), *arguments)
    assert (
        code == 1
        and "ERROR: Invalid commandline" in text
        and not host.log.exists()
        and not (host.root / "usr").exists()
    )


def test_the_driver_installed_and_taken_away_by_its_file(folder, host):
    path = folder / "runfiles/NVIDIA-Linux-x86_64-580.95.05.run"
    code, text = host.run(path, "--silent")
    assert (
        code == 1
        and "Unable to find the kernel source tree" in text
        and "kernel source tree" in host.log.read_text(encoding="utf-8")
    )
    host.headers()
    assert host.run(
        path,
        "--silent",
        "--no-questions",
        "--ui=none",
        "--dkms",
        "-M",
        "open",
        "--no-rebuild-initramfs",
    ) == (0, "")
    assert "-M\n    open" in host.log.read_text(
        encoding="utf-8"
    ) and "Kernel module type: open" in host.log.read_text(encoding="utf-8")
    assert (
        host.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    ).resolve().name == "libnvidia-ml.so.580.95.05"
    assert host.run(host.root / "usr/bin/nvidia-smi", "-L")[0] == 9
    # Another version takes the first one's place.
    assert (
        host.run(
            folder / "runfiles/NVIDIA-Linux-x86_64-550.54.15.run", "--silent", "-m=kernel-open"
        )[0]
        == 0
    )
    assert (
        not (host.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05").exists()
        and "550.54.15" in host.run(path, "--driver-info")[1]
    )
    assert (
        host.run(host.root / "usr/bin/nvidia-uninstall", "--silent")[0] == 0
        and host.run(path, "--uninstall", "--silent")[0] == 1
    )
    assert [found for found in (host.root / "usr").glob("**/*") if not found.is_dir()] == []


def test_the_driver_s_file_stops_where_another_driver_is(folder, host):
    path = folder / "runfiles/NVIDIA-Linux-x86_64-580.95.05.run"
    host.headers()
    (host.root / "sys/module/nouveau").mkdir(parents=True)
    assert "Nouveau kernel driver is currently in use" in host.run(path, "--silent")[1]
    (host.root / "sys/module/nouveau").rename(host.root / "sys/module/nvidia")
    assert "appears to be already loaded" in host.run(path, "--silent")[1]
    (host.root / "usr/lib/nvidia").mkdir(parents=True)
    (host.root / "usr/lib/nvidia/alternate-install-present").write_text(
        "nvidia-driver-550\n", encoding="utf-8"
    )
    code, text = host.run(path, "--silent", "--allow-installation-with-running-driver")
    assert code == 1 and "installed previously using a different installer" in text
    assert (
        host.run(
            path,
            "--silent",
            "--allow-installation-with-running-driver",
            "--no-check-for-alternate-installs",
        )[0]
        == 0
    )


def test_cuda_by_its_file(folder, host):
    path = folder / "runfiles/cuda_11.4.4_470.82.01_linux.run"
    code, text = host.run(path, "--silent", "--toolkit", "--nonsense")
    assert code == 1 and "--nonsense" in text and not (host.root / "usr").exists()
    # Source 004's own line.
    code, text = host.run(path, "--toolkit", "--samples", "--silent", "--override")
    assert (
        code == 0
        and "Toolkit:  Installed in /usr/local/cuda-11.4/" in text
        and "Incomplete installation" in text
    )
    assert stack.parse_nvcc(host.run(host.root / "usr/local/cuda-11.4/bin/nvcc", "-V")[1]) == {
        "release": "11.4",
        "version": "11.4.152",
    }
    assert (
        os.readlink(host.root / "usr/local/cuda") == "/usr/local/cuda-11.4"
        and (host.root / "var/log/cuda-installer.log").exists()
    )
    assert (
        host.run(host.root / "usr/local/cuda-11.4/bin/cuda-uninstaller", "--silent")[0] == 0
        and not (host.root / "usr/local/cuda-11.4").exists()
    )
    assert (
        host.run(path, "--silent", "--toolkit", "--override", "--toolkitpath=/opt/cuda")[0] == 0
        and (host.root / "opt/cuda/bin/nvcc").exists()
    )


def test_cuda_s_file_wants_a_compiler_and_passes_the_driver_s_failure_on(folder, host, tmp_path):
    path = folder / "runfiles/cuda_12.4.1_550.54.15_linux.run"
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in (
        "sh",
        "tail",
        "md5sum",
        "cut",
        "mktemp",
        "tar",
        "gzip",
        "rm",
        "mkdir",
        "dirname",
        "basename",
        "cat",
        "cp",
        "find",
        "sed",
        "ln",
    ):
        (tools / name).symlink_to(
            "/usr/bin/%s" % name if os.path.exists("/usr/bin/%s" % name) else "/bin/%s" % name
        )
    code, text = say(
        "sh", path, "--silent", "--toolkit", VENDOR_ROOT=str(host.root), PATH=str(tools)
    )
    assert code == 1 and "Failed to verify gcc version" in text
    code, text = host.run(path, "--silent", "--driver")
    log = (host.root / "var/log/cuda-installer.log").read_text(encoding="utf-8")
    assert (
        code == 1 and "Installation failed" in text and "Install of driver component failed" in log
    )


# --- the data -------------------------------------------------------------------------------------------------------------


def test_every_package_says_where_it_was_read():
    data = vendor.load()
    keys = {
        "DEBPKG",
        "UBUPKG",
        "KEYPKG",
        "CTKPKG",
        "LIBCTKPKG",
        "NCCLPKG",
        "APTLOG",
        "CUDALIST",
        "CUDACACHE",
        "GDCPR",
        "DRVGUIDE",
        "COMPAT",
    }
    for family in data["families"]:
        for package in family["packages"]:
            assert keys & set(re.findall(r"[A-Z]+", package["read"])) or re.search(
                "not read|recalled|excerpt", package["read"]
            ), package["name"]
        assert set(family["directories"]) <= {entry["name"] for entry in data["directories"]}


def test_programs_are_whole():
    """Every program of every package, with what is put in: no name without a value, and sh reads it
    to its end.
    """
    seen = set()
    for family in vendor.load()["families"]:
        for _control, files, scripts in vendor.packages(family, family["versions"][0]):
            texts = [
                content
                for content, mode in (entry for entry in files.values() if isinstance(entry, tuple))
                if mode == 0o755
            ]
            for text in texts + [
                script.encode() for name, script in scripts.items() if name != "triggers"
            ]:
                if text.startswith(b"#!/bin/sh") and text not in seen:
                    seen.add(text)
                    subprocess.run(["sh", "-n"], input=text, check=True)
    assert len(seen) > 10


def test_nccl_only_where_the_facts_have_it(folder):
    facts = yaml.safe_load(
        (Path(vendor.__file__).parents[2] / "plugins/plugin_utils/compat/nccl.yml").read_text(
            encoding="utf-8"
        )
    )
    known = {row["deb_version"]: set(row["dirs"]) for row in facts["nccl"]["debs"]}
    found = {}
    for entry in vendor.load()["directories"]:
        for text in vendor.read_index(directory(folder, entry["name"])):
            if vendor.field(text, "Package").startswith("libnccl"):
                found.setdefault(vendor.field(text, "Version"), set()).add(entry["name"])
    assert (
        found
        and all(known[version] & places for version, places in found.items())
        and not any("debian12" in places for places in found.values())
    )


def test_by_the_command_line(tmp_path, capsys):
    assert vendor.main(["make", str(tmp_path), "--only", "toolkit"]) == 0
    assert vendor.main(["publish", str(tmp_path), "container_toolkit", "toolkit", "1.17.9-1"]) == 0
    assert vendor.main(["withdraw", str(tmp_path), "container_toolkit", "*", "1.16.2-1"]) == 0
    versions = {
        vendor.field(text, "Version")
        for text in vendor.read_index(directory(tmp_path, "container_toolkit"))
    }
    assert versions == {"1.17.6-1", "1.17.7-1", "1.17.8-1", "1.17.9-1"}
    with pytest.raises(SystemExit):
        vendor.main(["make", str(tmp_path), "--only", "nonsense"])
    assert "invalid choice" in capsys.readouterr().err
