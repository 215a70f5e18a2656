"""Truncated, mixed up and invented outputs of the GPU stack: a parser either rejects the text or
returns exactly its content.

nvidia-smi's parser has its own such test, over whole documents (test__nvidia_smi.py).
"""

from __future__ import annotations

import gc
import re
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import (
    _all_reduce,
    _apt_sources,
    _bandwidth,
    _docker_engine,
    _driver,
    _gpu_stack,
    _horovod,
    _host,
    _host_health,
    _infiniband,
    _mountinfo,
    _nfs,
    _nvidia_smi,
    _openpgp,
    _own_name,
    _packages,
    _pem,
    _slurm,
    _ssh_mesh,
    _transient_unit,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat, _signatures

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
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22)  Wed Feb\n",
    ],
    _gpu_stack.parse_dkms_status: [
        "nvidia/535.183.01, 6.1.0-18-amd64, x86_64: installed (WARNING! Diff between built and installed module!)\n"
        "nvidia, 470.103.01, 5.4.0-99-generic, x86_64: built\nnvidia/570.124.06: added\n"
    ],
    _gpu_stack.parse_nvcc: [
        path.read_text(encoding="utf-8") for path in sorted(NVCC.glob("*.txt"))
    ],
    _gpu_stack.parse_packages: [
        "nvidia-smi\t535.183.01-1~deb12u1\thi \tDebian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>\tutils\tlibc6 (>= 2.14)\n"
        "libnccl2:amd64\t2.21.5-1+cuda12.4\tii \tcudatools <cudatools@nvidia.com>\tlibs\t\nold\t\tun \t\t\t\n"
    ],
    _gpu_stack.parse_policy: [
        "nvidia-smi:\n  Installed: (none)\n  Candidate: 535.183.01-1~deb12u1\n  Version table:\n     535.183.01-1~deb12u1 500\n"
        "libnccl2:\n  Installed: 2.21.5-1+cuda12.4\n  Candidate: 2.21.5-1+cuda12.4\n"
    ],
    _gpu_stack.parse_module_name: [
        "insmod /lib/modules/6.1.0-18-amd64/kernel/i2c-core.ko \ninstall modprobe -i nvidia-current $CMDLINE_OPTS \n"
    ],
    _gpu_stack.parse_modinfo: ["535.183.01\n"],
    _gpu_stack.parse_library_path: [
        "2 libs found\n\tlibnvidia-ml.so.1 (libc6) => /usr/lib32/libnvidia-ml.so.1\n\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/libnvidia-ml.so.1\n"
    ],
    _gpu_stack.parse_nccl_header: [
        "#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 15\n"
    ],
    _driver.parse_nvidia_detect: [
        "Checking driver support for PCI ID [10de:2330]\nYour card is supported by the default drivers.\nIt is recommended to install the\n"
        "    nvidia-tesla-470-driver\npackage.\n"
    ],
    _driver.parse_ubuntu_drivers: [
        "nvidia-driver-535-server, (kernel modules provided by linux-modules-nvidia-535-server-generic)\n",
        "vendor   : NVIDIA Corporation\ndriver   : nvidia-driver-550 - third-party non-free\n"
        "driver   : nvidia-driver-535-server - distro non-free recommended\n",
    ],
    _driver.parse_simulated_versions: [SIMULATED],
    _packages.parse_simulation: [SIMULATED],
    _packages.parse_installed: [STATES],
    _packages.parse_states: [STATES],
    _packages.parse_madison: [
        " nvidia-smi | 570.172.08-1 | https://mirror.example/compute/cuda/repos/debian12/x86_64  Packages\n"
        " nvidia-smi | 535.261.03-1 | http://mirror.example/debian bookworm/non-free amd64 Packages\n"
        " nvidia-smi | 535.261.03-1 | http://mirror.example/debian bookworm/non-free Sources\n"
    ],
    _docker_engine.tool_version: ["Docker version 20.10.24+dfsg1, build 297e128\n"],
    _docker_engine.parse_daemon_config: [
        '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}, "features": {"cdi": true}}\n'
    ],
}
REFUSALS = (_gpu_stack.ParseError, _packages.ParseError, _docker_engine.ParseError)
PARSERS = pytest.mark.parametrize(
    "parser",
    list(ANSWERS),
    ids=lambda parser: "%s.%s" % (parser.__module__.rpartition(".")[2], parser.__name__),
)


# What the parsers call it; all else is the tools'.
OWN = {
    "module",
    "version",
    "kernel",
    "arch",
    "state",
    "differs",
    "open",
    "release",
    "installed",
    "removed",
    "replaced",
    "candidate",
    "status",
    "held",
    "broken",
    "by_nvidia",
    "automatic",
    "uri",
    "suite",
    "location",
    "signed_by",
}


def read(parser, text):
    """What the parser says, or None where it says that it can't read the text."""
    try:
        return parser(text)
    except REFUSALS:
        return None


def words(said):
    """All texts in an answer: names, versions, paths."""
    if isinstance(said, dict):
        return [
            word
            for key, value in said.items()
            for word in [key] * (value not in ("", None, False)) + words(value)
        ]
    if isinstance(said, (list, tuple)):
        return [word for value in said for word in words(value)]
    return [said] if isinstance(said, str) else []


@st.composite
def spoiled(draw, texts):
    """An answer of which some is missing, stands twice or in another place, or is something
    else.
    """
    text = draw(st.sampled_from(texts))
    for _turn in range(draw(st.integers(1, 3))):
        first, last = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        at = draw(st.integers(0, len(text)))
        put = draw(
            st.sampled_from(
                ["", text[first:last], "\n", "\t", " ", ": ", "²", "\x00", "\u2028", "9" * 5]
            )
            | st.text(max_size=8)
        )
        text = draw(
            st.sampled_from(
                [text[:first] + text[last:], text[:at] + put + text[at:], text[first:last]]
            )
        )
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
            assert said is None or all(
                "#define NCCL_" in text and " " + number in text
                for number in said.split(".")
                if said
            )
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
            assert [
                word
                for word in words(said)
                if word not in whole and word not in words(parser(text))
            ] == [], text[:end]


@STEADY
@given(
    st.binary()
    | st.builds(
        lambda head, body: head + body,
        st.sampled_from([b"\x99\x01\x0d\x04", b"\xc6\x33\x04", b"\x98\x33\x06"]),
        st.binary(),
    )
)
def test_keyrings(content):
    assert isinstance(_gpu_stack.holds_old_key(content), bool)
    try:
        found = _openpgp.keys(content)
    except _openpgp.ParseError:
        return
    assert found and all(
        re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", name) and part in content
        for name, part in found.items()
    )


def test_a_key_of_more_bytes_than_one_can_have():
    with pytest.raises(_openpgp.ParseError):
        _openpgp.keys(b"\xc6\xff\x00\x01\x00\x05\x04" + bytes(65540))


@STEADY
@given(
    st.sampled_from(["a.list", "a.sources"]),
    st.text() | spoiled([SOURCES, LIST]),
    st.sampled_from(["mirror.example/debian", "other.example/debian"]),
)
def test_sources_without_a_repository_are_the_others(path, text, unwanted):
    there = _apt_sources.entries(path, text)
    left = _apt_sources.without(path, text, lambda entry: entry["location"] == unwanted)
    rest = [entry for entry in there if entry["location"] != unwanted]
    assert _apt_sources.entries(path, left["text"]) == rest
    assert left["empty"] == (rest == []) and bool(left["gone"]) == (rest != there)
    assert left["text"] == text or left["gone"]
    assert [
        word
        for word in words([dict(entry, location="") for entry in there])
        if word not in text and word not in OWN
    ] == []


@STEADY
@given(st.sampled_from(["a.list", "a.sources"]), st.text() | spoiled([SOURCES, LIST]))
def test_components_that_were_added_are_not_lacking(path, text):
    files = {path: text}
    files["z.sources"] = _driver.lacking_components(files, "bookworm", ["contrib", "non-free"])
    assert _driver.lacking_components(files, "bookworm", ["contrib", "non-free"]) == ""


@STEADY
@given(
    st.lists(
        st.text("0123²٣.-+a", max_size=8) | st.from_regex(r"\A\d\.\d{1,2}\.\d-\d{1,2}(-\w+)?\Z")
    ),
    st.text() | st.from_regex(r"\AGRUB_DEFAULT=.*\Z"),
)
def test_kernels(kernels, settings_of_grub):
    assert _gpu_stack.next_kernel(kernels) in kernels + [""]
    assert _gpu_stack.grub_default(settings_of_grub, "") in settings_of_grub


@STEADY
@given(
    st.text() | st.from_regex(r"\A(\d:)?\d{3}\.\d{2,3}(\.\d\d)?(-\d[\w~+.]*)?\Z"),
    st.text(max_size=6) | st.from_regex(r"\A\d{3}(\.\d{1,3})*\Z"),
)
def test_versions_of_packages(version, asked):
    number = _gpu_stack.upstream(version)
    assert number in version and _driver.branch_of(version) in version
    assert _packages.nearest_versions(asked, [version, number]) in (
        [version, number],
        [number, version],
    )
    if _driver.fits(version, asked) and asked and version != asked:
        assert number and _gpu_stack.version_key(number)[
            : len(_gpu_stack.version_key(asked))
        ] == _gpu_stack.version_key(asked)


@STEADY
@given(
    st.text() | st.from_regex(r"\A2\.\d{1,2}(\.\d)?(-1\+cuda1[123]\.\d)?\Z"),
    st.text(max_size=5) | st.from_regex(r"\A1[123](\.\d)?\Z"),
)
def test_pairs_of_nccl_are_builds_that_are_known(release, cuda):
    resolver = _compat.Compatibility(_compat.load_facts())
    builds = [row["deb_version"] for row in resolver.facts["nccl"]["debs"]]
    try:
        pair = resolver.nccl_pair(release, cuda)
    except _gpu_stack.ParseError:
        return
    assert pair["version"] in builds + ["", release] and set(pair["nearest"]) <= set(builds)
    assert not pair["known"] or pair["version"] in builds


# --- lines that never end ---------------------------------------------------------------------------------------------------------

FIXTURES = NVCC.parent
A_PROCESS = (
    "<nvidia_smi_log><gpu id='0'><uuid>a</uuid><processes><process_info><pid>7</pid><process_name>x</process_name></process_info></processes></gpu>"
    "</nvidia_smi_log>"
)
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQENBF\n-----END PGP PUBLIC KEY BLOCK-----\n"


def fixture(name):
    return (FIXTURES / name).read_text(encoding="utf-8")


# By name: parser and an answer that it reads.
OF_LINES = dict(
    {
        "%s.%s" % (parser.__module__.rpartition(".")[2], parser.__name__): (parser, texts[0])
        for parser, texts in ANSWERS.items()
    },
    **{
        "nvidia_smi": (_nvidia_smi.parse_query, A_PROCESS),
        "nvidia_smi, lost": (
            _nvidia_smi.lost_gpus,
            fixture("nvidia-smi-fail/handle-gpu-lost-double-blank.txt"),
        ),
        "nvidia_smi, why": (
            lambda text: _nvidia_smi.why_no_answer(1, text, text),
            fixture("nvidia-smi-fail/no-devices.txt"),
        ),
        "horovod": (
            _horovod.parse_check_build,
            fixture("horovod/cb-0.28.1-pytorch-mpi-gloo-nccl.txt"),
        ),
        "horovod, why": (
            lambda text: _horovod.why_no_table(1, text, text),
            fixture("horovod/err-gloo-not-built.txt"),
        ),
        "horovod, imports": (
            lambda text: _horovod.split_imports(text, ["pytorch"]),
            "trainyard: import horovod.torch: bad\n",
        ),
        "ibstat": (_infiniband.parse_ibstat, fixture("ib/ibstat-mlx4-books.txt")),
        "ibv_devinfo": (_infiniband.parse_ibv_devinfo, fixture("ib/ibv_devinfo-roce-blanks.txt")),
        "ibstatus": (_infiniband.parse_ibstatus, fixture("ib/ibstatus-a100-9.txt")),
        "ibdev2netdev": (_infiniband.parse_ibdev2netdev, fixture("ib/ibdev2netdev-mlx4.txt")),
        "modules": (
            lambda text: _infiniband.module_states(["a"], [], text, text),
            "kernel/drivers/net/mlx5_core.ko.xz: kernel/a.ko.xz\n",
        ),
        "mountinfo": (
            _mountinfo.parse_mountinfo,
            "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n",
        ),
        "exports": (
            _nfs.parse_exports,
            '/srv "a b" 10.0.0.1(rw,sync) *.x(ro) # c\n/data\\040x 10.0.0.0/24(rw)\n',
        ),
        "nfs versions": (_nfs.parse_versions, "-2 +3 +4 +4.1 +4.2\n"),
        "ufw": (
            lambda text: _nfs.allowed_by_ufw(text, "10.0.0.1", 2049),
            "Status: active\n\n2049/tcp (v6)  ALLOW IN  10.0.0.0/24\n",
        ),
        "os-release": (_host.parse_os_release, "NAME=\"Debian\"\nID='debian'\nX=y\n"),
        "ip": (_host.parse_ip_addresses, '[{"ifname": "eth0", "addr_info": []}]'),
        "meminfo": (_host.memory_mib, "MemTotal:       100 kB\n"),
        "cgroup": (_host.container_ids, "0::/system.slice/docker-%s.scope\n" % ("a" * 64)),
        "kernel log": (
            _host_health.parse_gpu_errors,
            "[  12.345] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n",
        ),
        "chronyc": (_host_health.parse_chronyc, "Leap status     : Normal\n"),
        "signatures": (
            _signatures.explain,
            fixture("all_reduce_perf/fail-sophia-nccl-system-error-1rank.txt"),
        ),
        "all_reduce_perf": (
            _all_reduce.answer,
            fixture("all_reduce_perf/efa-2xt4-tagged-nccl-info.txt"),
        ),
        "transports (watched)": (
            _all_reduce.transports,
            "a:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1\n",
        ),
        "bandwidth": (
            lambda text: (
                _bandwidth.gpus(text, text),
                _bandwidth.usage(text),
                _bandwidth.peaks(text),
            ),
            "GPU 0: A (UUID: GPU-1)\n\t Link 0: 25 GB/s\n4, 16\n",
        ),
        "pem": (
            lambda text: _pem.certificates(text, False),
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        ),
        "pem, body": (
            lambda text: _pem.certificates("-----BEGIN CERTIFICATE-----" + text, False),
            "MIIB\n",
        ),
        "keyring": (lambda text: _openpgp.keys(text.encode()), KEY),
        "old key": (lambda text: _gpu_stack.holds_old_key(text.encode()), KEY),
        "apt list": (lambda text: _apt_sources.without("a.list", text, bool), LIST),
        "apt sources": (lambda text: _apt_sources.without("a.sources", text, bool), SOURCES),
        "apt components": (
            lambda text: _driver.lacking_components({"a.sources": text}, "bookworm", ["contrib"]),
            SOURCES,
        ),
        "apt preferences": (
            lambda text: _gpu_stack.driver_pinned({}, {"a": text}),
            "Package: nvidia-*\nPin: version 535.*\n\nPackage: *\nPin: release a=x\n",
        ),
        "grub": (
            lambda text: _gpu_stack.grub_default(text, text),
            'GRUB_DEFAULT="Advanced>gnulinux-6.1.0-18-amd64-advanced-1"\n',
        ),
        "version": (
            lambda text: (
                _gpu_stack.upstream(text),
                _driver.branch_of(text),
                _driver.is_driver(text),
                _docker_engine.upstream_version(text),
            ),
            "1:535.183.01-1~deb12u1",
        ),
        "docker journal": (
            _docker_engine.failure_reason,
            "level=fatal msg=x\nunable to configure the Docker daemon\n",
        ),
        "ssh": (
            lambda text: _ssh_mesh.judge_login("a", 255, text),
            "Host key verification failed. SHA256:abcd\n",
        ),
        "record": (_ssh_mesh.parse_record, '{"hosts": []}'),
        "output": (
            lambda text: _transient_unit.take_lines(_transient_unit.clean(text.encode()).encode()),
            "a\x1b[1mb\x1b]0;title\x07c\n",
        ),
        "slurm nodes": (_slurm.parse_nodes, fixture("slurm/22.05/nodes-drained.txt")),
        "slurm partitions": (_slurm.parse_partitions, fixture("slurm/24.11/partitions.txt")),
        "slurm reservations": (_slurm.parse_reservations, fixture("slurm/24.11/reservations.txt")),
        "slurm config": (
            _slurm.parse_config,
            "ClusterName             = a\nSLURM_VERSION           = 1\nSlurmctld(primary) at h is UP\n",
        ),
        "slurm jobs": (
            lambda text: _slurm.parse_jobs(text, "|7b1f9c42e0d85a36|"),
            fixture("slurm/24.11/jobs.txt"),
        ),
        "slurm finished": (
            lambda text: _slurm.parse_finished(text, "|7b1f9c42e0d85a36|"),
            fixture("slurm/24.11/finished.txt"),
        ),
        "slurm associations": (_slurm.parse_associations, fixture("slurm/24.11/associations.txt")),
        "slurm qos": (_slurm.parse_qos, fixture("slurm/24.11/qos.txt")),
        "slurm hosts": (_slurm.expand_hosts, "n[01-03,7],head\n"),
        "slurm tres": (
            lambda text: _slurm.parse_tres(text.strip()),
            "cpu=8,mem=4000M,gres/gpu=4\n",
        ),
        "slurm gres": (lambda text: _slurm.parse_gres(text.strip()), "gpu:h100:4(S:0-1),mps:100\n"),
        "slurm reason": (_slurm.reason_of, "trainyard: a b\n"),
        "slurm, why": (
            lambda text: (
                _slurm.why_no_answer(1, text, text),
                _slurm.credential_fault(text),
                _slurm.controllers_of(text),
            ),
            fixture("slurm/24.11/error-nomunge-config.txt")
            + "STATUS:          Success (0)\nSlurmctldHost=a(b)\n",
        ),
        "hosts": (
            lambda text: _own_name.with_own_name(text, "h", "10.0.0.1"),
            "127.0.1.1 h h.x # c\n",
        ),
    },
)
# What made one of them slow once, by its name.
SLOW_ONCE = [
    ("nvidia_smi", "<nvidia_smi_log>"),
    ("nvidia_smi", "<nvidia_smi_log>\n"),
    ("nvidia_smi", "<!DOCTYPE "),
    ("nvidia_smi", "<process_name></process_name>"),
    ("nvidia_smi", "<process_name>"),
    ("nvidia_smi", "<gpu id='1'></gpu>"),
    ("nvidia_smi, lost", "<nvidia_smi_log>"),
    ("horovod", "1"),
    ("horovod", "[ ] a "),
    ("horovod", "a."),
    ("horovod, why", "."),
    ("horovod, why", "a."),
    ("pem, body", " "),
    ("pem", "-----BEGIN A-----"),
    ("version", "nvidia-"),
    ("signatures", "failure "),
    ("signatures", "ibv_"),
    ("signatures", "ibv_a "),
    ("signatures", "Got completion from peer "),
    ("signatures", "srun: error: "),
    ("all_reduce_perf", "nranks 1 "),
    ("all_reduce_perf", "failure "),
    ("all_reduce_perf", "1 1 float "),
    ("record", '{"a":'),
    ("ip", "["),
    ("hosts", "127.0.1.1 h x "),
    ("all_reduce_perf", '{"a":'),
]


class _TooSlow(Exception):
    """The time is up."""


def within(seconds, parser, text):
    """Call the parser, and give it so much of a processor's time: what else the machine does is no
    matter.
    """

    def end(*_args):
        raise _TooSlow

    # What the other tests have left in memory is not searched for garbage on the parser's time.
    gc.freeze()
    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        parser(text)
    except ValueError:
        # Each module's ParseError is one.
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        gc.unfreeze()


@pytest.mark.parametrize("name, word", SLOW_ONCE)
def test_a_megabyte_in_a_line_takes_less_than_a_second(name, word):
    within(1, OF_LINES[name][0], (word * (10**6 // len(word) + 1))[: 10**6])


@pytest.mark.parametrize("name", list(OF_LINES))
def test_no_line_takes_longer_than_its_length(name):
    """A quarter of a megabyte: what goes back and forth in a line takes minutes for it, what
    doesn't takes milliseconds.
    """
    parser, text = OF_LINES[name]
    line = max(text[:2000].split("\n"), key=len)
    middle = len(line) // 2
    for word in (" ", "1", "a.", "[", line[:12], line + " "):
        filled = (word * (250000 // len(word) + 1))[:250000]
        for hostile in (filled, line[:middle] + filled + line[middle:]):
            within(
                0.25, parser, text.replace(line, hostile, 1) if len(text) < 5000 else hostile + "\n"
            )
