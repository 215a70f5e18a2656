"""What hosts say of their GPU stack, cut, mixed up and made up: a parser says that it can't read it, or says what stands there, and never anything else.

nvidia-smi's parser has its own such test, over whole documents (test__nvidia_smi.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _apt_sources, _docker_engine, _driver, _gpu_stack, _openpgp, _packages
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

# The same ones in every run, and none that fails because the machine is busy.
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=150)
NVCC = Path(__file__).parents[3] / "fixtures/nvcc"
SOURCES = """Types: deb
# comment
URIs: http://mirror.example/debian http://other.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb deb-src
URIs: https://nvidia.example/compute/cuda/repos/debian12/x86_64/
Suites: /
Signed-By: /usr/share/keyrings/nvidia.gpg
"""
LIST = """# deb http://off.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] http://mirror.example/debian bookworm main # here
deb http://mirror.example/debian bookworm-security main contrib
"""
SIMULATED = """Reading package lists...
Remv nvidia-kernel-dkms [550.54.15-1]
Inst libnvidia-ml1:amd64 [550.54.15-1] (570.172.08-1 NVIDIA:1.0 [amd64])
Inst nvidia-smi (570.172.08-1 NVIDIA:1.0 [amd64]) []
Conf nvidia-smi (570.172.08-1 NVIDIA:1.0 [amd64])
"""
STATES = "nvidia-smi\t570.172.08-1\thi \nlibnvidia-ml1:amd64\t570.172.08-1\tiU \nold\t\tun \nbash\t5.2.15-2+b7\tii \n"
# By parser, answers of the tool as it prints them.
ANSWERS = {
    _gpu_stack.parse_nvrm: [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 00:04:01 UTC 2024\nGCC version:  gcc version 12.2.0\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22)  Wed Feb\n"],
    _gpu_stack.parse_dkms_status: [
        "nvidia/535.183.01, 6.1.0-18-amd64, x86_64: installed (WARNING! Diff between built and installed module!)\n"
        "nvidia, 470.103.01, 5.4.0-99-generic, x86_64: built\nnvidia/570.124.06: added\n"],
    _gpu_stack.parse_nvcc: [path.read_text(encoding="utf-8") for path in sorted(NVCC.glob("*.txt"))],
    _gpu_stack.parse_packages: [
        "nvidia-smi\t535.183.01-1~deb12u1\thi \tDebian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>\n"
        "libnccl2:amd64\t2.21.5-1+cuda12.4\tii \tcudatools <cudatools@nvidia.com>\nold\t\tun \t\n"],
    _gpu_stack.parse_policy: [
        "nvidia-smi:\n  Installed: (none)\n  Candidate: 535.183.01-1~deb12u1\n  Version table:\n     535.183.01-1~deb12u1 500\n"
        "libnccl2:\n  Installed: 2.21.5-1+cuda12.4\n  Candidate: 2.21.5-1+cuda12.4\n"],
    _gpu_stack.parse_module_name: ["insmod /lib/modules/6.1.0-18-amd64/kernel/i2c-core.ko \ninstall modprobe -i nvidia-current $CMDLINE_OPTS \n"],
    _gpu_stack.parse_modinfo: ["535.183.01\n"],
    _gpu_stack.parse_library_path: [
        "2 libs found\n\tlibnvidia-ml.so.1 (libc6) => /usr/lib32/libnvidia-ml.so.1\n\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/libnvidia-ml.so.1\n"],
    _gpu_stack.parse_nccl_header: ["#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 15\n"],
    _driver.parse_nvidia_detect: [
        "Checking driver support for PCI ID [10de:2330]\nYour card is supported by the default drivers.\nIt is recommended to install the\n"
        "    nvidia-tesla-470-driver\npackage.\n"],
    _driver.parse_ubuntu_drivers: [
        "nvidia-driver-535-server, (kernel modules provided by linux-modules-nvidia-535-server-generic)\n",
        "vendor   : NVIDIA Corporation\ndriver   : nvidia-driver-550 - third-party non-free\n"
        "driver   : nvidia-driver-535-server - distro non-free recommended\n"],
    _driver.parse_simulated_versions: [SIMULATED],
    _packages.parse_simulation: [SIMULATED],
    _packages.parse_installed: [STATES],
    _packages.parse_states: [STATES],
    _packages.parse_madison: [
        " nvidia-smi | 570.172.08-1 | https://mirror.example/compute/cuda/repos/debian12/x86_64  Packages\n"
        " nvidia-smi | 535.261.03-1 | http://mirror.example/debian bookworm/non-free amd64 Packages\n"
        " nvidia-smi | 535.261.03-1 | http://mirror.example/debian bookworm/non-free Sources\n"],
    _docker_engine.tool_version: ["Docker version 20.10.24+dfsg1, build 297e128\n"],
    _docker_engine.parse_daemon_config: ['{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}, "features": {"cdi": true}}\n'],
}
REFUSALS = (_gpu_stack.ParseError, _packages.ParseError, _docker_engine.ParseError)
PARSERS = pytest.mark.parametrize("parser", list(ANSWERS), ids=lambda parser: "%s.%s" % (parser.__module__.rpartition(".")[2], parser.__name__))


# What the parsers call it; all else is the tools'.
OWN = {"module", "version", "kernel", "arch", "state", "differs", "open", "release", "installed", "removed", "replaced", "candidate", "status", "held",
       "broken", "by_nvidia", "automatic", "uri", "suite", "location", "signed_by"}


def read(parser, text):
    """What the parser says, or None where it says that it can't read the text."""
    try:
        return parser(text)
    except REFUSALS:
        return None


def words(said):
    """All texts in an answer: names, versions, paths."""
    if isinstance(said, dict):
        return [word for key, value in said.items() for word in [key] * (value not in ("", None, False)) + words(value)]
    if isinstance(said, (list, tuple)):
        return [word for value in said for word in words(value)]
    return [said] if isinstance(said, str) else []


@st.composite
def spoiled(draw, texts):
    """An answer of which some is missing, stands twice or in another place, or is something else."""
    text = draw(st.sampled_from(texts))
    for _turn in range(draw(st.integers(1, 3))):
        first, last = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        at = draw(st.integers(0, len(text)))
        put = draw(st.sampled_from(["", text[first:last], "\n", "\t", " ", ": ", "²", "\x00", "\u2028", "9" * 5]) | st.text(max_size=8))
        text = draw(st.sampled_from([text[:first] + text[last:], text[:at] + put + text[at:], text[first:last]]))
    return text


@PARSERS
def test_what_is_said_stands_in_the_text(parser):

    @STEADY
    @given(st.text() | spoiled(ANSWERS[parser]))
    def judge(text):
        said = read(parser, text)
        if parser is _docker_engine.parse_daemon_config:
            assert said is None or isinstance(said, dict)
        elif parser is _gpu_stack.parse_nccl_header:
            assert said is None or all("#define NCCL_" in text and " " + number in text for number in said.split(".") if said)
        else:
            assert [word for word in words(said) if word not in text and word not in OWN] == []

    judge()


@PARSERS
def test_half_an_answer_is_none_or_a_part_of_it(parser):
    """As of a tool that was killed: what it still said is said, never half a word of it."""
    for text in ANSWERS[parser]:
        # What may stand in an answer, so that a version that was cut isn't taken for another.
        whole = set(re.split(r"[\s\[\](),]+", text)) | set(words(parser(text)))
        assert words(parser(text)) != []
        for end in range(len(text)):
            said = read(parser, text[:end])
            assert [word for word in words(said) if word not in whole and word not in words(parser(text))] == [], text[:end]


@STEADY
@given(st.binary() | st.builds(lambda head, body: head + body, st.sampled_from([b"\x99\x01\x0d\x04", b"\xc6\x33\x04", b"\x98\x33\x06"]), st.binary()))
def test_keyrings(content):
    assert isinstance(_gpu_stack.holds_old_key(content), bool)
    try:
        found = _openpgp.keys(content)
    except _openpgp.ParseError:
        return
    assert found and all(re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", name) and part in content for name, part in found.items())


def test_a_key_of_more_bytes_than_one_can_have():
    with pytest.raises(_openpgp.ParseError):
        _openpgp.keys(b"\xc6\xff\x00\x01\x00\x05\x04" + bytes(65540))


@STEADY
@given(st.sampled_from(["a.list", "a.sources"]), st.text() | spoiled([SOURCES, LIST]), st.sampled_from(["mirror.example/debian", "other.example/debian"]))
def test_sources_without_a_repository_are_the_others(path, text, unwanted):
    there = _apt_sources.entries(path, text)
    left = _apt_sources.without(path, text, lambda entry: entry["location"] == unwanted)
    rest = [entry for entry in there if entry["location"] != unwanted]
    assert _apt_sources.entries(path, left["text"]) == rest
    assert left["empty"] == (rest == []) and bool(left["gone"]) == (rest != there)
    assert left["text"] == text or left["gone"]
    assert [word for word in words([dict(entry, location="") for entry in there]) if word not in text and word not in OWN] == []


@STEADY
@given(st.sampled_from(["a.list", "a.sources"]), st.text() | spoiled([SOURCES, LIST]))
def test_components_that_were_added_are_not_lacking(path, text):
    files = {path: text}
    files["z.sources"] = _driver.lacking_components(files, "bookworm", ["contrib", "non-free"])
    assert _driver.lacking_components(files, "bookworm", ["contrib", "non-free"]) == ""


@STEADY
@given(st.lists(st.text("0123²٣.-+a", max_size=8) | st.from_regex(r"\A\d\.\d{1,2}\.\d-\d{1,2}(-\w+)?\Z")), st.text() | st.from_regex(r"\AGRUB_DEFAULT=.*\Z"))
def test_kernels(kernels, settings_of_grub):
    assert _gpu_stack.next_kernel(kernels) in kernels + [""]
    assert _gpu_stack.grub_default(settings_of_grub, "") in settings_of_grub


@STEADY
@given(st.text() | st.from_regex(r"\A(\d:)?\d{3}\.\d{2,3}(\.\d\d)?(-\d[\w~+.]*)?\Z"), st.text(max_size=6) | st.from_regex(r"\A\d{3}(\.\d{1,3})*\Z"))
def test_versions_of_packages(version, asked):
    number = _gpu_stack.upstream(version)
    assert number in version and _driver.branch_of(version) in version
    assert _packages.nearest_versions(asked, [version, number]) in ([version, number], [number, version])
    if _driver.fits(version, asked) and asked and version != asked:
        assert number and _gpu_stack.version_key(number)[:len(_gpu_stack.version_key(asked))] == _gpu_stack.version_key(asked)


@STEADY
@given(st.text() | st.from_regex(r"\A2\.\d{1,2}(\.\d)?(-1\+cuda1[123]\.\d)?\Z"), st.text(max_size=5) | st.from_regex(r"\A1[123](\.\d)?\Z"))
def test_pairs_of_nccl_are_builds_that_are_known(release, cuda):
    resolver = _compat.Compatibility(_compat.load_facts())
    builds = [row["deb_version"] for row in resolver.facts["nccl"]["debs"]]
    try:
        pair = resolver.nccl_pair(release, cuda)
    except _gpu_stack.ParseError:
        return
    assert pair["version"] in builds + ["", release] and set(pair["nearest"]) <= set(builds)
    assert not pair["known"] or pair["version"] in builds
