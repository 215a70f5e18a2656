"""Values of daemon.json that dockerd 20.10.24 accepts silently: each was tested with a real
daemon.
"""

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._daemon_values import value_findings

OLD, NEW = [20, 10, 24], [28, 5, 1]
# With these dockerd starts, and containers do.
GOOD = [
    {},
    {"debug": True},
    {"log-level": ""},
    {"log-level": "WARN"},
    {"log-level": "trace"},
    {"log-level": None},
    {"bip": None},
    {"bip": ""},
    {"storage-driver": ""},
    {"storage-driver": "vfs"},
    {"storage-driver": "overlay2", "storage-opts": ["overlay2.override_kernel_check=true"]},
    {"storage-driver": "rexray/ebs:0.11"},
    {"storage-driver": "overlayfs", "features": {"containerd-snapshotter": True}},
    {"storage-opts": ["dm.basesize=10G"]},
    {"log-driver": "journald"},
    {"log-driver": "none", "log-opts": {"max-size": "1m"}},
    {
        "log-opts": {
            "mode": "non-blocking",
            "max-buffer-size": "4m",
            "labels-regex": "x",
            "tag": "x",
            "env": "x",
            "max-file": "3",
            "max-size": "10m",
            "compress": "true",
        }
    },
    {"log-driver": "syslog", "log-opts": {"syslog-address": "udp://1.2.3.4:514"}},
    {"bip": "10.9.0.1/24", "fixed-cidr": "10.9.0.0/25"},
    {"fixed-cidr": "10.9.0.5/24"},
    {"ipv6": True, "fixed-cidr-v6": "fd00::/64"},
    {"mtu": 0},
    {"mtu": 1450},
    {"mtu": 9000},
    {"exec-opts": ["native.cgroupdriver=systemd"], "cgroup-parent": "x.slice"},
    {"cgroup-parent": "x"},
    {"icc": False},
    {"iptables": False},
    {"registry-mirrors": ["https://mirror.example", "http://10.0.0.1:5000/"]},
    {"insecure-registries": ["10.0.0.0/8", "x:5000", "[::1]:5000", "registry.example"]},
    {"default-address-pools": []},
    {
        "default-address-pools": [
            {"base": "10.0.0.0/8", "size": 24},
            {"base": "172.26.0.5/16", "size": 16},
        ]
    },
    {
        "hosts": [
            "unix:///run/docker.sock",
            "fd://",
            "tcp://127.0.0.1:2376",
            "tcp://",
            "127.0.0.1",
            "",
        ]
    },
    {"metrics-addr": "127.0.0.1:9323"},
    {"oom-score-adjust": -500},
    {
        "default-ulimits": {
            "memlock": {"Name": "memlock", "Hard": -1, "Soft": -1},
            "nofile": {"Name": "nofile", "Hard": 64, "Soft": 32},
        }
    },
    # Names that the engine passes on to the kernel, though its client does not have them.
    {"default-ulimits": {"as": {"Name": "as", "Hard": -1, "Soft": -1}}},
    {"default-ulimits": {"NOFILE": {"Name": "NOFILE", "Hard": 64, "Soft": 64}}},
    {"default-ulimits": {"Locks": {"Name": "Locks", "Hard": 64, "Soft": 64}}},
    {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}},
    {"data-root": "/data/docker"},
    {"bridge": "none"},
    {"bridge": "br0"},
    {"seccomp-profile": "/etc/docker/seccomp.json"},
    {"userns-remap": "default"},
    {"userns-remap": "anna:anna"},
    # Of another type: dockerd says so itself.
    {"bip": 7},
    {"mtu": "1500"},
    {"log-opts": []},
    {"hosts": "x"},
    {"ipv6": "yes"},
    {"mtu": True},
]
# Its start fails.
FAILING = [
    ({"log-level": "loud"}, "log-level: 'loud' is not a level"),
    ({"storage-driver": "foo"}, "storage-driver: 'foo' is not a storage driver"),
    ({"storage-opts": ["foo=bar"]}, "storage-opts: 'foo' is not an option of any storage driver"),
    ({"storage-opts": ["foo"]}, "'foo' is not of the form name=value"),
    (
        {"storage-driver": "overlay2", "storage-opts": ["dm.basesize=10G"]},
        "'dm.basesize' is not an option of storage driver overlay2",
    ),
    (
        {"storage-driver": "overlay2", "storage-opts": ["overlay2.override_kernel_check=x"]},
        "must be true or false",
    ),
    ({"log-opts": {"nope": "x"}}, "log-opts: 'nope' is not an option of log driver json-file"),
    (
        {"log-driver": "journald", "log-opts": {"max-size": "10m"}},
        "'max-size' is not an option of log driver journald",
    ),
    (
        {"log-driver": "local", "log-opts": {"tag": "x"}},
        "'tag' is not an option of log driver local",
    ),
    ({"log-opts": {"mode": "nope"}}, "mode 'nope' must be blocking or non-blocking"),
    ({"bip": "x"}, "bip: 'x' is not an address with its prefix, such as 172.26.0.1/16"),
    ({"bip": "172.17.0.1"}, "'172.17.0.1' is not an address"),
    ({"bip": "300.1.1.1/16"}, "'300.1.1.1/16' is not"),
    (
        {"bip": "172.17.0.0/16"},
        "is the network's own address; use one of its hosts' addresses, such as 172.17.0.1/16",
    ),
    ({"bip": "10.9.0.255/24"}, "is the network's own address"),
    ({"bip": "10.9.0.1/32"}, "leaves no addresses"),
    ({"bip": "10.9.0.1/24", "bridge": "none"}, "it and bridge exclude each other"),
    ({"fixed-cidr": "x"}, "fixed-cidr: 'x' is not an IPv4 network"),
    ({"fixed-cidr": "10.0.0.0/33"}, "is not an IPv4 network"),
    ({"fixed-cidr": "fd00::/64"}, "IPv4"),
    ({"ipv6": True, "fixed-cidr-v6": "x"}, "fixed-cidr-v6: 'x' is not an IPv6 network"),
    ({"ipv6": True}, "ipv6: the default bridge needs fixed-cidr-v6"),
    ({"default-address-pools": [{"base": "x", "size": 24}]}, "base 'x' is not a network"),
    ({"default-address-pools": [{"base": "10.0.0.0/8", "size": 4}]}, "size 4 must be from 8 to 32"),
    ({"default-address-pools": [{"base": "10.0.0.0/8"}]}, "size 0"),
    (
        {"default-address-pools": [{"base": "10.0.0.0/8", "size": 33}]},
        "size 33 must be from 8 to 32",
    ),
    ({"default-address-pools": ["x"]}, "base 'None'"),
    ({"mtu": -1}, "mtu: -1 is below 0"),
    ({"exec-opts": ["native.cgroupdriver=foo"]}, "'foo' must be systemd or cgroupfs"),
    (
        {"exec-opts": ["native.cgroupdriver=systemd"], "cgroup-parent": "x"},
        "cgroup-parent 'x' must end with .slice",
    ),
    ({"icc": False, "iptables": False}, "icc: it cannot be false while iptables is false"),
    ({"registry-mirrors": ["x"]}, "registry-mirrors: number 1 does not begin with https://"),
    ({"registry-mirrors": ["https://a", "ftp://x"]}, "number 2 does not begin"),
    ({"registry-mirrors": ["https://x/path?q"]}, "more than a host"),
    ({"registry-mirrors": ["https://x/v2"]}, "more than a host and a port: '/v2'"),
    ({"registry-mirrors": ["https://anna:secret@x"]}, "number 1 has credentials in it"),
    ({"insecure-registries": ["a b"]}, "insecure-registries: 'a b' is not a host"),
    ({"insecure-registries": ["x:99999"]}, "is not a host"),
    ({"insecure-registries": ["-x"]}, "is not a host"),
    ({"insecure-registries": [""]}, "is not a host"),
    ({"insecure-registries": ["x/y"]}, "is not a host"),
    ({"allow-nondistributable-artifacts": ["a b"]}, "is not a host"),
    ({"hosts": ["foo://x"]}, "hosts: 'foo://x' must begin with unix://"),
    ({"hosts": ["x y"]}, "is not an address"),
    ({"hosts": ["tcp://127.0.0.1:x"]}, "is not an address"),
    ({"metrics-addr": "x"}, "metrics-addr: 'x' is not an address"),
    ({"oom-score-adjust": 5000}, "5000 is not from -1000 to 1000"),
    ({"seccomp-profile": "/nope"}, "seccomp-profile: there is no file '/nope'"),
    ({"seccomp-profile": "unconfined"}, "there is no file 'unconfined'"),
    ({"bridge": "nobridge"}, "bridge: there is no interface 'nobridge'"),
    ({"userns-remap": "nope"}, "userns-remap: there is no user 'nope'"),
]
# It starts; containers do not, or nothing of it is used.
WARNING = [
    ({"log-driver": "nope"}, "log-driver: 'nope' is not a log driver of Docker"),
    ({"log-opts": {"max-size": "x"}}, "max-size 'x' is not a size"),
    ({"log-driver": "local", "log-opts": {"max-size": "x"}}, "max-size 'x' is not a size"),
    ({"log-opts": {"max-file": "0", "max-size": "1m"}}, "max-file '0'"),
    ({"log-opts": {"compress": "maybe"}}, "compress 'maybe' must be true or false"),
    ({"log-opts": {"compress": "true"}}, "compress needs max-size"),
    ({"mtu": 1}, "mtu: 1 is not from 68 to 65535"),
    ({"mtu": 70000}, "70000 is not from 68"),
    ({"exec-opts": ["foo=bar"]}, "'foo=bar' has no effect"),
    ({"exec-opts": ["foo"]}, "'foo' has no effect"),
    (
        {"insecure-registries": ["http://u:secret@x"]},
        "'http://x' must be a host and a port without",
    ),
    (
        {"default-ulimits": {"nope": {"Name": "nope", "Hard": 1, "Soft": 1}}},
        "'nope' is not a limit",
    ),
    (
        {"default-ulimits": {"ofile": {"Name": "ofile", "Hard": 64, "Soft": 64}}},
        "'ofile' is not a limit",
    ),
    (
        {"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1, "Soft": 2}}},
        "soft limit of 2 above its hard limit of 1",
    ),
    ({"runtimes": {"x": {}}}, "runtimes: 'x' has no path"),
    ({"data-root": "docker"}, "data-root: 'docker' is not an absolute path"),
    ({"fixed-cidr-v6": "x"}, "fixed-cidr-v6: 'x' is not an IPv6 network"),
    ({"ipv6": True, "fixed-cidr-v6": "10.0.0.0/8"}, "is not an IPv6 network"),
]


def exists(path):
    return path in ("/etc/docker/seccomp.json", "/sys/class/net/br0")


def found(options, version=tuple(OLD)):
    return value_findings(options, version, exists, lambda name: name == "anna")


@pytest.mark.parametrize("options", GOOD)
def test_valid_values_have_no_findings(options):
    assert found(options) == []


@pytest.mark.parametrize(
    "severity, options, text",
    [("fail", *case) for case in FAILING] + [("warn", *case) for case in WARNING],
)
def test_what_dockerd_stumbles_over(severity, options, text):
    (finding,) = found(options)
    assert finding[0] == severity and text in finding[1] and finding[1].partition(":")[0] in options
    assert "secret" not in finding[1]


def test_what_differs_by_version():
    assert (
        found({"ipv6": True}, NEW)
        == found({"seccomp-profile": "unconfined"}, NEW)
        == found({"storage-driver": "overlayfs"}, [29, 1])
        == []
    )
    # The version is not known.
    assert [severity for severity, _text in found({"ipv6": True}, ())] == ["warn"] and found(
        {"seccomp-profile": "builtin"}, ()
    ) == []


def test_several_findings_in_one_file():
    assert [
        severity for severity, _text in found({"log-driver": "nope", "bip": "x", "mtu": 1})
    ] == ["warn", "fail", "warn"]


@pytest.mark.parametrize(
    "options",
    [
        {"storage-driver": ["overlay2"], "storage-opts": ["overlay2.size=1G"]},
        {"log-driver": {"type": "local"}, "log-opts": {"max-size": "10m"}},
        {"features": ["buildkit"], "storage-driver": "overlay2"},
    ],
)
def test_an_option_of_another_type_is_left_to_dockerd(options):
    """What it rejects itself is no reason for the judges of other options to end with an error."""
    assert value_findings(options) == []
