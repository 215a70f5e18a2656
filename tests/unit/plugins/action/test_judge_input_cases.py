"""Hundreds of invalid inputs, each rejected with the name of its variable, and unusual valid ones,
all accepted. One process, real templates.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import yaml
from judged_input import campaign

from ansible_collections.trainyard.gpu.plugins.action import judge_input

FOLDER = __file__.rpartition("/")[0]
SHA = "sha256:" + "0" * 64
ARMOR = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDMEZ\n-----END PGP PUBLIC KEY BLOCK-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture(name="campaign", scope="module")
def _campaign():
    with campaign() as made:
        yield made


def bad(name, *values, **others):
    """Return one case for each value; others are set beside it."""
    return [(dict(others, **{name: value}), name) for value in values]


SYSTEM = [
    "/",
    "//",
    "/etc",
    "//etc",
    "/./etc",
    "/etc/",
    "/etc/.",
    "/usr",
    "/usr/../etc",
    "/usr/local",
    "/./usr/",
    "/bin",
    "/sbin",
    "/lib64",
    "/boot",
    "/dev",
    "/dev/shm",
    "/proc",
    "/sys/fs",
    "/root",
    "/root/.ssh",
    "/run/x",
    "/tmp",
    "/var/lib/docker",
    "/var/log",
    "//var//lib//x",
    "/var",
    "etc",
    "~/x",
    "",
    "/data/../etc",
    "/data1\n/etc",
    "/data1 *(rw)\n/x",
    "/snap/x",
]
URLS = [
    "https://ops:hunter2@m.example/x",
    "ftp://m.example/x",
    "m.example/x",
    "https://",
    "https:///x",
    "https://m.example:99999/x",
    "https://m.example/x\nTrusted: yes",
    "https://m .example/x",
    'https://m.example/$(id)"',
    "https://-m.example/x",
    ["https://m.example/x"],
    {"a": "b"},
    1.5,
    True,
    "https://m.example/\u2028x",
]
TEXTS = [
    ["x"],
    {"a": "b"},
    3.10,
    True,
    datetime.date(2026, 1, 1),
    "a\nb",
    "a\x00b",
    "a\x1b[31m",
    "a\u2028b",
]
CHECKSUMS = [
    "md5:1",
    "0" * 64,
    SHA + "0",
    SHA.upper(),
    "sha256:" + "g" * 64,
    SHA + "\n",
    [SHA],
    "sha256:" + "\u0661" * 64,
]
NUMBERS = [
    "x",
    "1x",
    1.5,
    True,
    [1],
    {"a": 1},
    -1,
    10**30,
    "10**3",
    "\u0663",
    float("inf"),
    float("nan"),
    "",
    "1 ",
]
TIMEOUTS = [
    "cuda_toolkit_timeout",
    "nccl_timeout",
    "nccl_tests_timeout",
    "nfs_client_timeout",
    "preflight_timeout",
    "shared_storage_timeout",
    "training_image_timeout",
    "job_container_timeout",
    "image_relay_timeout",
    "training_sshd_timeout",
    "verify_timeout",
    "verify_bandwidth_timeout",
    "nvidia_driver_reboot_timeout",
    "train_start_timeout",
]
TREE = {"of": "users"}
NOTEBOOKS = {"repository": "https://git.example.org/notebooks.git", "revision": "0123456789" * 4}
SSH_KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfWBWeD+lmc81HJ9lxOQA+NHp50RTLc67//Lm0MyXzY anna@laptop"
)
REPOSITORY = {
    "uris": ["https://m.example/debian"],
    "suites": ["stable"],
    "components": ["main"],
    "signed_by": ARMOR,
}
FIX = {"name": "ours", "reason": "why", "source": ["issue"], "when": {"torch": ">=2"}}
RUNFILE = {
    "version": "11.4.4",
    "url": "https://m.example/cuda_11.4.4_470.82.01_linux.run",
    "checksum": SHA,
}

# Formats without quotes: sources and preferences of apt, exports, known_hosts, limits.conf, lists
# of modules and of the loader's folders. | is white space.
WITHOUT_QUOTES = (
    ("docker_engine_repository_url", "https://m.example/|debian"),
    ("docker_engine_version", "28.5.1-1~|x"),
    ("nccl_version", "2.21.5-1+cuda12.4|"),
    ("nccl_prefix", "/usr/local/nccl|x"),
    ("package_sources_nvidia_cuda_url", "https://m.example/|cuda"),
    ("infiniband_memlock", "1024|2048"),
    ("package_sources_nvidia_container_url", "https://m.example/|x"),
    ("package_sources_pip_index_url", "https://m.example/|x"),
    ("package_sources_pip_extra_index_urls", ["https://m.example/|x"]),
    ("nfs_server_clients", ["10.0.0.1|10.0.0.2"]),
    ("nfs_server_options", ["rw|sync"]),
    ("nfs_server_exports", [{"path": "/data1/share|x"}]),
    ("nfs_server_exports", [{"path": "/data1/share", "clients": ["10.0.0.1|x"]}]),
    ("nfs_server_exports", [{"path": "/data1/share", "options": ["rw|x"]}]),
    ("package_sources_name_servers", ["10.0.0.53|10.0.0.54"]),
    ("cluster_ssh_port", "12345|1"),
    ("cluster_address", "10.0.0.1|x"),
    ("training_container_name", "a|b"),
    ("cuda_toolkit_mpi_home", "/usr/mpi|x"),
    ("package_sources_no_proxy", ["a.example|b"]),
    ("docker_engine_no_proxy", ["a.example|b"]),
    ("nfs_client_options", ["hard|x"]),
) + tuple(
    (name, [{**REPOSITORY, key: [value]}])
    for name in ("package_sources_apt_repositories", "training_image_apt_repositories")
    for key, value in (
        ("uris", "https://m.example/|x"),
        ("suites", "a|b"),
        ("components", "a|b"),
        ("architectures", "amd64|x"),
        ("types", "deb|x"),
    )
)


def with_space(value, space):
    """Return a value with this in the place of |."""
    if isinstance(value, dict):
        return {key: with_space(inner, space) for key, inner in value.items()}
    return (
        [with_space(inner, space) for inner in value]
        if isinstance(value, list)
        else value.replace("|", space)
    )


# What is used once for all hosts: a task with run_once takes the first host's.
ONCE = {
    "train_command": "x",
    "train_environment": {"A": "b"},
    "train_workdir": "/x",
    "train_timeout": 5,
    "train_start_timeout": 7,
    "train_master_port": 29511,
    "train_controller": "gloo",
    "train_backend": "direct",
    "train_queue_options": ["--qos=high", "--exclusive"],
    "train_job_id": "x",
    "train_detach": True,
    "train_remove_share_data": True,
    "train_horovod_examples_version": "0.28.1",
    "verify_fail_on": "warn",
    "verify_report_dir": "/x",
    "verify_required": ["gpu-ecc"],
    "verify_overrule": {"gpu-xid": "skip"},
    "verify_measure_bandwidth": False,
    "verify_bandwidth_tool": "torch",
    "verify_bandwidth_at_once": 3,
    "verify_bandwidth_fraction": 0.6,
    "verify_bandwidth_min_gb_s": 4,
    "verify_bandwidth_peer_fraction": 0.5,
    "verify_bandwidth_drop_percent": 33,
    "verify_bandwidth_history": __file__,
    "verify_bandwidth_history_packs": 3,
    "verify_bandwidth_bytes": {"gloo": 65536, "nccl": 1048576},
    "verify_bandwidth_timeout": 1000,
    "training_image_registry_login": {
        "registry": "nvcr.io",
        "username": "u",
        "password": "hunter2",
    },
    "training_image_apt_repositories": [REPOSITORY],
    "training_image_horovod_url": "https://m.example/h.tar.gz",
    "preflight_overrule": {"drv-branch-eol": "skip"},
    "preflight_rules_files": [
        FOLDER.partition("/tests/")[0] + "/roles/preflight/meta/host_rules.yml"
    ],
    "preflight_image_facts": {"cuda": "12.6"},
    "preflight_compat_facts": FOLDER.partition("/tests/")[0]
    + "/plugins/plugin_utils/compat/cuda.yml",
    "package_sources_wheels_dir": FOLDER,
}

# A hub with two people.
HUB_OF_TWO = {
    "cluster_scheduler": "slurm",
    "slurm_accept_login_on_gpu_hosts": True,
    "jupyterhub_enabled": True,
    "shared_storage_users": [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": 2002}],
}
HUB = {
    "cluster_scheduler": "slurm",
    "slurm_accept_login_on_gpu_hosts": True,
    "jupyterhub_enabled": True,
}
TWO_ACCOUNTS = [{"name": "vision", "members": ["anna"]}, {"name": "language", "members": ["ben"]}]
ONE_ACCOUNT_OF_TWO = [{"name": "vision", "members": ["anna", "ben"]}]

# What harms a host if it passes.
HARMFUL = (
    [
        case
        for name, value in WITHOUT_QUOTES
        for space in (" ", "\n", "\t", "\r", "\u00a0", "\u2028")
        for case in bad(name, with_space(value, space))
    ]
    + bad(
        "nfs_client_mounts",
        *[
            [{"server": "nas", "path": path, "target": "/data1/x"}]
            for path in ("/export\\", "/a\\040b", "/export ")
        ],
    )
    + [case for path in SYSTEM for case in bad("nfs_server_exports", [{"path": path}])]
    + [
        case
        for path in SYSTEM
        for case in bad(
            "nfs_client_mounts",
            [{"server": "nas", "path": "/export", "target": path}]
            if path
            else [{"server": "nas", "path": path}],
        )
    ]
    + [
        case
        for path in SYSTEM
        for case in bad("nfs_client_mounts", [{"server": "nas", "path": path}])
    ]
    + [
        case
        for path in SYSTEM + ["/opt/x", "/home/x", "/home"]
        for case in bad("cluster_share_path", path)
    ]
    + [case for path in SYSTEM for case in bad("shared_storage_trees", [dict(TREE, path=path)])]
    + [
        case
        for path in ["/proc", "//sys", "/dev", "/etc", "/usr/", "/./lib", "/bin", "/", "x"]
        for case in bad("training_container_mounts", [{"source": "/data", "target": path}])
    ]
    + bad(
        "cuda_toolkit_mpi_home",
        "/usr/$(touch /tmp/x)",
        "/usr/mpi; x",
        "/usr/`id`",
        "/a b",
        "/a'b",
        '/a"b',
        "/a\\b",
        "/a*",
        "/a\nb",
        "mpi",
        "/a&b",
        "/a|b",
    )
    + bad("nccl_cuda_home", "/usr/$(id)", "/a;b")
    + bad("nccl_tests_prefix", "/usr/`id`", "/a b")
    + bad("cluster_share_path", "/data1/a b", "/data1/a'b", "/data1/$x", "/a:b", "/a%b")
    + bad("train_workdir", "/x;id", "/x\n", "x", "")
    + bad("preflight_image_path", "/etc", "/", "//usr", "x", "/proc/docker")
    + [
        case
        for value in [
            "http://p:3128\n",
            "p:3128",
            "http://p:0",
            "http://p:99999",
            "http://p x",
            'http://p:3128/"x',
            "socks5://p",
            "http://p:3128/path",
            ["http://p"],
        ]
        for name in ("package_sources_http_proxy", "docker_engine_https_proxy")
        for case in bad(name, value)
    ]
    + bad(
        "package_sources_no_proxy",
        ["a.example\nLD_PRELOAD=/x"],
        ["a b"],
        ["a,b"],
        ["a;b"],
        ["http://a"],
        "a.example",
        [["a"]],
        [{"a": 1}],
    )
    + bad("docker_engine_no_proxy", ["a\nb"], ['a"b'])
    + bad(
        "nfs_client_options",
        ["hard\n"],
        ["hard,soft"],
        ["a b"],
        ["rsize=1 x"],
        [["hard"]],
        [1.5],
        ["x=$(id)"],
    )
    + bad("nfs_server_options", ["rw\n"], ["rw,sync"], ["rw)"], ["anonuid=1\n"], ["fsid=x"])
    + bad(
        "nfs_server_clients",
        ["*"],
        ["10.0.0.0/99"],
        ["999.1.1.1"],
        [":::::"],
        ["0.0.0.0/0"],
        ["::/0"],
        ["10.0.0.5/24"],
        ["a b"],
        ["a(rw)"],
        ["a\nb"],
        ["-a"],
        ["10.0.0.1/33"],
        ["2001:db8::1/64"],
        [""],
        [["a"]],
        ["a/24"],
    )
    + bad(
        "train_environment",
        {"A\n": "x"},
        {"A": "x\ny"},
        {"1A": "x"},
        {"A B": "x"},
        {"A": ["x"]},
        {"A": {"b": 1}},
        {"A=B": "x"},
        {"\u0391": "x"},
        ["A=B"],
        "A=B",
    )
    + bad("training_container_environment", {"A": "x\ny"}, {"A-B": "x"}, {"": "x"})
    + bad("training_image_build_variables", {"A": "x\x00y"}, {"A B": "x"})
    + bad("training_container_name", "a b", "-a", "a\n", "a" * 300, "../x", "a/b", "", "a;b", ["a"])
    + bad(
        "training_container_image",
        "ubuntu latest",
        "--privileged",
        "a\nb",
        "https://x/y",
        "ubuntu:",
    )
    + bad(
        "training_container_devices", ["/etc/shadow"], ["/"], ["x"], ["/dev/../etc"], ["/dev/a b"]
    )
    + bad(
        "training_image_horovod_build_packages",
        ["--index-url=https://x"],
        ["cmake"],
        ["-r x"],
        ["cmake==1\n--x"],
    )
    + bad("training_image_horovod_dependencies", ["--extra-index-url=x"], ["cffi @ https://x"])
    + bad(
        "training_image_python_packages",
        ["numpy"],
        ["--x"],
        ["numpy==1;x"],
        ["numpy>=1"],
        ["numpy==1 --x"],
    )
    + bad("training_image_apt_packages", ["vim;id"], ["-o=x"], ["Vim"], ["vim\n"], ["a"], ["vim="])
    + bad(
        "training_image_source_fixes",
        *[
            [dict(FIX, replace=[{"file": file, "from": "a", "to": "b"}])]
            for file in ("../../etc/passwd", "/etc/passwd", "a/../../b", "", "a b")
        ],
    )
    + bad(
        "nccl_tests_make_variables",
        {"-f /etc/passwd": "x"},
        {"A": "x\ny"},
        {"MPI": "1"},
        {"A": ["x"]},
        {"A;B": "x"},
    )
    + bad(
        "package_sources_apt_repositories",
        *[
            [dict(REPOSITORY, uris=[url])]
            for url in (
                "https://m.example\nTrusted: yes",
                "[mirror]",
                "https://m.example x",
                "x",
                "",
            )
        ],
        [dict(REPOSITORY, suites=["a b"])],
        [dict(REPOSITORY, suites=["a\nTrusted: yes"])],
        [dict(REPOSITORY, components=["main contrib"])],
        [dict(REPOSITORY, suites=[])],
        [dict(REPOSITORY, components=[])],
        [dict(REPOSITORY, signed_by="/nowhere.gpg")],
        [dict(REPOSITORY, types=["rpm"])],
        [dict(REPOSITORY, architectures=["amd64]"])],
        [dict(REPOSITORY, uris=[])],
        [{"uris": ["https://x"]}],
        [dict(REPOSITORY, key="x")],
    )
    + bad(
        "training_image_apt_repositories",
        [dict(REPOSITORY, suites=["x"], components=[])],
        [dict(REPOSITORY, uris=["x\ny"])],
        [dict(REPOSITORY, signed_by="x")],
    )
    + [
        ({"hosts": (name, "server-b")}, "inventory_hostname")
        for name in (
            "a b",
            "a,b",
            "a;b",
            "a\nb",
            "*",
            "../../x",
            "-oProxyCommand=x",
            "a" * 300,
            "a" * 64,
            "999.1.1.1",
            "a..b",
            "a\u00e4",
            "$(id)",
            "a'b",
            "Server-b",
            "localhost",
            "a:b",
            "a#",
        )
    ]
)

HARMFUL += (
    bad(
        "docker_engine_daemon_options",
        {"hosts": ["tcp://0.0.0.0:2375"]},
        {"hosts": ["unix:///x", "tcp://0.0.0.0:2376"], "tls": True},
        {"hosts": [":2375"], "tlsverify": False},
        {"graph": "/etc"},
        {"exec-root": "/etc"},
        {"pidfile": "/etc/passwd"},
    )
    + bad("training_image_pip_packages", ["--index-url=https://x"], ["pip"], "pip==24.0")
    + bad(
        "docker_engine_daemon_options",
        {"data-root": "/etc"},
        {"data-root": "//usr"},
        {"data-root": "docker"},
        {"data-root": "/var/lib"},
    )
    + bad(
        "training_container_mounts",
        *[
            [{"source": path, "target": "/x"}]
            for path in ("/", "/etc", "//usr/", "/boot/efi", "/root/.ssh", "/./var", "/sys/x", "x")
        ],
        [{"source": "/data", "target": "/data1/share/"}],
    )
    + bad("nccl_tests_prefix", "/etc", "//usr", "/bin/x", "/var/lib/x")
    + bad("package_sources_wheels_dir", "/", "//", "x")
    + bad(
        "shared_storage_users",
        *[[{"name": name, "uid": 2001}] for name in ("root", "sshd", "systemd-network")],
    )
    + bad(
        "shared_storage_groups", [{"name": "sudo", "gid": 2001}], [{"name": "docker", "gid": 2001}]
    )
    + [
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [dict(RUNFILE, arguments=["--%s=%s" % (option, path)])],
            },
            "cuda_toolkit_runfiles",
        )
        for option, path in (
            ("samplespath", "/etc"),
            ("librarypath", "//usr/lib"),
            ("defaultroot", "/data/../etc"),
            ("tmpdir", "/boot"),
            ("samplespath", "/./etc"),
        )
    ]
)

REFUSED = (
    bad(
        "training_image_python_packages",
        ["numpy==latest"],
        ["numpy==1.2", "NumPy==1.3"],
        ["numpy==1.2.x"],
    )
    + bad(
        "training_image_horovod_build_packages",
        ["cmake==3.31.6 ; foo"],
        ["cmake==3.31.6", "cmake==3.28.4"],
        ["cmake==3.31.6;"],
    )
    + bad("training_image_horovod_dependencies", ["cffi==1.15.1; python_version<3.7"])
    + bad("training_image_pip_packages", ["pip==24.0", "pip==23.0"])
    + bad(
        "training_image_source_fixes",
        [dict(FIX, when={})],
        [dict(FIX, replace=[{"file": "a", "from": "", "to": "b"}])],
        [FIX, dict(FIX, reason="other")],
        [dict(FIX, environment={"A B": "hunter2"})],
        [dict(FIX, environment={"A": ["hunter2"]})],
    )
    +
    # pip itself passes over them with a warning only.
    bad("package_sources_pip_index_url", "http://pypi.example.org/simple")
    + bad("package_sources_pip_extra_index_urls", ["http://pypi.example.org/simple"])
    + bad(
        "training_image_base_archive",
        "-x",
        "../x",
        "x.tar",
        "/a/../b",
        training_image_base_archive_on_head=True,
    )
    + bad(
        "training_sshd_options",
        {"RevokedKeys": "/x"},
        {"MaxSessions": 0},
        {"MaxStartups": 0},
        {"HostKeyAlgorithms": "ssh-rsa"},
        {"maxauthtries": "0"},
        {"PubkeyAcceptedAlgorithms": ["rsa-sha2-512"]},
        {"Ciphers": "aes128-cbc"},
    )
    + bad(
        "docker_engine_daemon_options",
        {"log-drivr": "x"},
        {"live-restore": "maybe"},
        {"live-restore": "true"},
        {"mtu": "x"},
        {"dns": ["999.1.1.1"]},
        {"data-root": None},
        {"log-opts": {"max-file": 3, "splunk-token": "hunter2"}},
        {"log-level": "loud"},
        {"bip": "x"},
        {"registry-mirror": ["https://x"]},
        {"hosts": "unix:///x"},
        {"live_restore": True},
        {"log.opts": {"a": "b"}},
    )
    + bad(
        "package_sources_ca_certificates",
        [
            CERTIFICATE.replace("CERTIFICATE", "RSA PRIVATE KEY").replace("MIIB", "MIIEhunter2")
            + CERTIFICATE
        ],
        ["/etc/passwd"],
        [CERTIFICATE.replace("MIIB", "!!!")],
        [CERTIFICATE.replace("MIIB", "")],
        [CERTIFICATE + CERTIFICATE[:40]],
    )
    + bad(
        "docker_engine_repository_key",
        ARMOR.replace("mDMEZ", ""),
        ARMOR.replace("PUBLIC", "PRIVATE") + ARMOR,
        "/etc/passwd",
        CERTIFICATE,
    )
    + bad(
        "slurm_packages_source",
        *[
            dict(REPOSITORY, **wrong)
            for wrong in (
                {"uris": []},
                {"uris": ["x"]},
                {"uris": ["https://m.example\nTrusted: yes"]},
                {"suites": []},
                {"suites": ["a b"]},
                {"components": []},
                {"components": ["a\nb"]},
                {"signed_by": ""},
                {"signed_by": "/etc/passwd"},
                {"trusted": True},
            )
        ],
        {"uris": ["https://apt.example.org"], "suites": ["jammy"], "components": ["main"]},
    )
    + bad(
        "package_sources_apt_repositories",
        [dict(REPOSITORY, signed_by=ARMOR.replace("mDMEZ", ""))],
        [dict(REPOSITORY, signed_by="/etc/passwd")],
    )
    + bad(
        "training_image_apt_repositories",
        [dict(REPOSITORY, signed_by=ARMOR.replace("mDMEZ", "!!!"))],
    )
    + bad("preflight_image_facts", {"gcc": "4:11.2.0"})
    + bad(
        "cluster_address",
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "10.0.0.256",
        "::1",
        "10.0.0.1/24",
        "server-a",
        "10.0.0.1\n",
        ["10.0.0.1"],
        1.5,
        "\u0661.1.1.1",
    )
    + bad("cluster_address", "10.1.0.1", cluster_network="10.0.0.0/24")
    + bad(
        "cluster_network",
        "10.0.0.1/24",
        "10.0.0.0",
        "10.0.0.0/33",
        "0.0.0.0/0",
        "127.0.0.0/8",
        "224.0.0.0/4",
        "::/0",
        "lan",
        "10.0.0.0/24 ",
        "10.0.0.0/255.255.255.0",
        ["10.0.0.0/24"],
    )
    + bad("cluster_interface", "eth0 ", "a" * 16, "eth0;id", ["eth0"], "eth0,eth1", "-x")
    + bad("cluster_fabric_interface", "ib 0", {"a": 1})
    + bad("cluster_scheduler", "pbs", "", ["slurm"], True)
    + bad("cluster_scheduler_host", "nas", "", ["server-a"], cluster_scheduler="slurm")
    + bad("cluster_login_hosts", ["nas"], [], [["server-a"]], {"a": "b"}, cluster_scheduler="slurm")
    + bad("slurm_cluster_name", "", "Lab", "1x", "a b", "a" * 41, "a\nb", ["lab"])
    + bad(
        "slurm_partitions",
        [{"name": "all"}],
        [{"name": "a b"}],
        [{"name": "a\nNodeName=x"}],
        [{"name": "a", "hosts": ["server-z"]}],
        [{"hosts": ["all"]}],
        [{"name": "a", "max_minutes": -1}],
        [{"name": "a", "default_minutes": -1}],
        [{"name": "a", "priorities": ["urgent"]}],
        [{"name": "a"}, {"name": "b"}],
        [{"name": "a", "default": True}, {"name": "b", "default": True}],
        [{"name": "a", "default": True}, {"name": "a"}],
        "train",
        [{"name": "a", "host": ["all"]}],
    )
    + bad(
        "slurm_priorities",
        [{"name": "A"}],
        [{"name": "root"}],
        [{"name": "1a"}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "priority": -1}],
        [{"name": "a", "preempts": ["b"]}],
        [{"name": "a", "preempts": ["b"]}, {"name": "b", "preempts": ["a"]}],
        [{"priority": 1}],
        "low",
    )
    + bad(
        "slurm_accounts",
        [{"name": "Vision"}],
        [{"name": "trainyard-train"}],
        [{"name": "root"}],
        [{"name": "a,b"}],
        [{"name": "-i"}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "gpus": -1}],
        [{"name": "a", "gpus": 2, "max_gpus_per_person": 3}],
        [{"name": "a", "max_minutes": 0}],
        [{"name": "a", "members": ["nobody"]}],
        [{"name": "a", "cpus": 0}],
        [{"name": "a", "memory_gb": -1}],
        [{"name": "a", "max_jobs_per_person": 0}],
        [{"name": "a", "max_submitted_per_person": "x"}],
        [{"name": "a", "members": ["anna", "anna"]}],
        [{"name": "a", "description": "x|y"}],
        [{"name": "a", "description": "it's"}],
        [{"name": "a", "description": "\u00fc"}],
        [{"gpus": 1}],
        [{"name": "a", "gpu": 1}],
        "vision",
        shared_storage_users=[{"name": "anna", "uid": 2001}],
    )
    + bad("slurm_account_share", 0, 101, "half")
    + bad("slurm_max_jobs_per_person", -1, "x")
    + bad("slurm_max_submitted_per_person", -1, [1])
    + bad("slurm_max_minutes", -1, "1d")
    + bad("slurm_default_minutes", -1, "1d")
    + bad("slurm_node_features", ["a,b"], ["a b"], [""], {"a": 1})
    + bad("slurm_gpu_type", "H100", "h 100", "h100:4", ["h100"])
    + bad("slurm_node_hardware", {"cpus": 0}, {"cpu": 4}, {"real_memory": -1}, "8")
    + bad("slurm_accept_smaller", "perhaps", 2, ["a"])
    + bad(
        "slurm_options",
        {"AuthType": "auth/none"},
        {"KillWait": "30\nSlurmUser=root"},
        {"KillWait": "30 # x"},
        {"Kill Wait": 3},
        {"PlugStackConfig": "/x"},
        "x",
    )
    + bad("slurm_controller_dumps", -1, 1001, "x", True)
    + bad("slurm_controller_dump_time", "2:30", "24:00", "02:60", "02:30; x", ["02:30"])
    + bad("slurm_accounts_cancel_jobs", "perhaps", [True])
    + bad(
        "job_container_registries",
        ["https://r.example"],
        ["r.example/"],
        ["R.example"],
        ["r.example:x"],
        ["a/../b"],
        [""],
        {"a": "b"},
    )
    + bad(
        "image_relay_images",
        [{"name": "A:1", "source": "r.example/a"}],
        [{"name": "a b", "source": "r.example/a"}],
        [{"name": "a/../b", "source": "r.example/a"}],
        [{"name": "r.example:5000/a", "source": "r.example/a"}],
        [{"name": "a\nb", "source": "r.example/a"}],
        [{"name": "a", "source": "library/a"}],
        [{"name": "a", "source": "https://r.example/a"}],
        [{"name": "a", "source": "r.example/a b"}],
        [{"name": "a", "archive": "a.tar"}],
        [{"name": "a", "archive": "/srv/a b.tar"}],
        [{"name": "a", "archive": "/srv/../a.tar"}],
        [{"source": "r.example/a"}],
        [{"name": "a", "complete": "perhaps"}],
        [{"name": "a", "sources": "r.example/a"}],
        "a",
    )
    + bad(
        "image_relay_source_logins",
        [{"registry": "https://r.example", "username": "a", "password": "b"}],
        [{"registry": "r.example", "username": "a"}],
        [{"registry": "r.example", "username": "a:b", "password": "c"}],
        [{"registry": "r.example", "username": "a", "password": ""}],
        [{"registry": "r.example", "username": "a", "password": "b\nc"}],
        [{"registry": "r.example/team", "username": "a", "password": "b"}],
        [
            {"registry": "r.example", "username": "a", "password": "b"},
            {"registry": "r.example", "username": "c", "password": "d"},
        ],
        "r.example",
    )
    + bad("image_relay_plain_http", ["http://r.example"], ["r.example/a"], [""], {"a": "b"})
    + bad("image_relay_host", "server-z", "", ["server-a"])
    + bad("image_relay_address", "a b", "https://a", "a;b", "0.0.0.0", ["a"])
    + bad("image_relay_port", 80, 65536, *NUMBERS)
    + bad(
        "image_relay_registry",
        "https://r.example",
        "r.example/team",
        "r.example:x",
        "r.example\n",
        ["r.example"],
    )
    + bad(
        "image_relay_registry_login",
        {"username": "a"},
        {"username": "a:b", "password": "c"},
        {"username": "a", "password": "b", "token": "c"},
        "a",
        image_relay_registry="r.example",
    )
    + bad("image_relay_registry_login", {"username": "a", "password": "b"})
    + bad("image_relay_certificate", "/srv/tls.crt", "tls.crt", "/srv/a b", "/srv/$a", "/srv/a;b")
    + bad("image_relay_key", "tls.key", "/srv/a b", "/srv/a\nb")
    + bad("image_relay_ca", "/nowhere/ca.crt", "ca.crt", image_relay_registry="r.example")
    + bad("image_relay_folder", "Site", "a/b", "", "..", "a b", "a{2}", ["site"])
    + bad("image_relay_tidy_time", "3:30", "24:00", "03:30:00", "03:30; x", ["03:30"])
    + bad(
        "image_relay_storage",
        "registry",
        "/scratch",
        "/scratch/a b",
        "/data1/share/registry",
        "/data1/share",
        "/a/../b",
        "/scratch/a;b",
        "",
    )
    + bad("image_relay_max_gib", 0, *NUMBERS)
    + bad("image_relay_person_gib", *NUMBERS)
    + bad("image_relay_max_layer_gib", 0, 1025, *NUMBERS)
    + bad("image_relay_free_gib", *NUMBERS)
    + bad("image_relay_keep_days", 36501, *NUMBERS)
    + bad("image_relay_remove_data", "perhaps", 2, [])
    + bad("jobs_default_image", "a b", "-a", ["a"], "a:1\n")
    + bad("jobs_mail", "perhaps", 2, [])
    + bad("jobs_mail_program", "sendmail", "/usr/sbin/send mail -t\n", 2)
    + bad("job_container_enabled", "perhaps", 2, [])
    + bad("job_container_images", ["a b"], ["-a"], ["a:1\n"], [1.5])
    + bad("job_container_shm_size", "0g", "8", "8t", "1.5g", "8g\n", ["8g"])
    + bad(
        "job_container_storage",
        "containers",
        "/scratch",
        "/scratch/a b",
        "/data1/share/containers",
        "/data1/share",
        "/a/../b",
        "",
    )
    + bad("job_container_environment", {"A B": "x"}, {"A": "a\nb"}, ["A=b"])
    + bad("job_container_free_gib", *NUMBERS)
    + bad("job_container_job_gib", *NUMBERS)
    + bad("job_container_firewall", "perhaps", 2, [])
    + bad("job_container_open_ports", [9999], [30000], ["x"], [1.5], {"a": 1})
    + bad("cluster_head", "server-z", "", ["server-a"], 1.5)
    + bad("cluster_storage", "nas")
    + bad("cluster_slots", -1, 65, "eight", 1.5, True, [8])
    + bad("cluster_hugepages", {"2MB": 4}, {"2M": -1}, {"2M": "many"}, {"1G": 1.5}, [8], 1024)
    + bad("cluster_ssh_port", 0, 65536, "ssh", 1.5, True, 22, 2049, 111, "12345 ", [1], None)
    + bad("verify_cluster_name", {"a": "b"}, "", " ", " x", ["x"], 1.5, True, "a" * 101)
    + bad("verify_report_dir", "", "x", "/", ["/x"])
    + [
        case
        for name in (
            "training_image_base",
            "nccl_version",
            "docker_engine_minimum_version",
            "train_job_id",
            "nvidia_driver_version",
            "docker_engine_version",
            "container_toolkit_version",
            "nccl_cuda",
            "training_image_horovod_version",
            "cuda_toolkit_default",
            "nfs_client_version",
        )
        for value in TEXTS
        for case in bad(name, value)
    ]
    + [
        case
        for name in (
            "nccl_checksum",
            "training_image_horovod_sha256",
            "docker_engine_repository_key_checksum",
            "nccl_tests_checksum",
            "training_image_nccl_tests_checksum",
        )
        for value in (
            CHECKSUMS
            if name != "training_image_horovod_sha256"
            else ["x", SHA, "0" * 63, ["0" * 64]]
        )
        for case in bad(name, value, nccl_source="source")
    ]
    + [
        case
        for name in (
            "docker_engine_repository_url",
            "package_sources_nvidia_cuda_url",
            "package_sources_nvidia_container_url",
        )
        for value in URLS
        for case in bad(name, value)
    ]
    + [case for value in URLS for case in bad("training_image_horovod_url", value)]
    + bad("nccl_url", *URLS, "https://m.example/x.zip", nccl_source="source")
    + bad(
        "cuda_toolkit_runfiles",
        *[[dict(RUNFILE, url=url)] for url in URLS],
        [dict(RUNFILE, checksum="x")],
        [dict(RUNFILE, version=11.4)],
        [dict(RUNFILE, arguments=["--driver"])],
        [dict(RUNFILE, arguments=["--tmpdir=/a b"])],
        [RUNFILE, RUNFILE],
        "x",
        [RUNFILE["url"]],
        cuda_toolkit_source="runfile",
    )
    + [case for name in TIMEOUTS for value in NUMBERS for case in bad(name, value)]
    + bad(
        "cuda_toolkit_versions",
        [12.10],
        [12.4],
        ["twelve"],
        "12.4",
        ["12"],
        [["12.4"]],
        ["12.4", "12.4.1"],
        ["12.4\n"],
        ["\u0661\u0662.4"],
    )
    + bad(
        "preflight_image_facts",
        {"python": 3.10},
        {"cuda": "12.6abc def"},
        {"torch": "latest"},
        {"pythn": "3.10"},
        {"cuda": ["12"]},
        ["x"],
    )
    + bad(
        "preflight_overrule",
        {"drv-branch-eool": "skip"},
        {"drv-branch-eol": "off"},
        {"os-supported": True},
        ["x"],
        "x",
        {"": "skip"},
    )
    + bad("preflight_rules_files", ["/nowhere.yml"], ["x"], "x", [FOLDER])
    + bad("preflight_fail_on", "never", "{{ nowhere }}", ["block"], True)
    + bad(
        "training_image_base",
        "https://x/y",
        "Ubuntu",
        "a:b:c",
        "ubuntu:",
        "\u00fcbuntu",
        "a b",
        "-x",
        "a@sha256:1",
        "a//b",
        "/a",
        "a/",
        "",
        "a" * 300,
        "host:99999/x",
        "a:" + "t" * 129,
    )
    + bad("container_toolkit_proof_image", "cuda:::", "A", "x y")
    + bad(
        "package_sources_name_servers",
        ["999.999.1.1"],
        [":::::"],
        ["ns.example"],
        ["0.0.0.0"],
        ["10.0.0.1/24"],
        ["1.1.1.1"] * 2 + ["1.1.1.2", "1.1.1.3"],
        "1.1.1.1",
        [1.1],
    )
    + bad(
        "training_container_gpus",
        [0, 0],
        [-1],
        [None],
        [{"id": 0}],
        ["all"],
        [],
        "some",
        {"a": 1},
        [True],
        [1.5],
        2,
        ["0", 0],
        "",
    )
    + bad(
        "training_container_services",
        *[
            [dict({"name": "x", "port": 5001, "command": "serve"}, **change)]
            for change in (
                {"name": "X"},
                {"name": "a b"},
                {"name": "../x"},
                {"name": ""},
                {"name": "x" * 32},
                {"name": "1x"},
                {"port": 0},
                {"port": 80},
                {"port": 65536},
                {"port": "http"},
                {"port": 12345},
                {"command": ""},
                {"command": "serve 'x"},
                {"command": "serve\nother"},
                {"command": ["serve"]},
                {"address": "0.0.0.0"},
                {"address": "cluster"},
                {"address": "cluster", "command": "serve {certificate}"},
                {"workdir": "x"},
                {"workdir": "/a;b"},
                {"token": "5ec4e7"},
            )
        ],
    )
    + bad(
        "training_container_services",
        "jupyterlab",
        ["jupyterlab"],
        [{"port": 8890}],
        [{"name": "x", "command": "serve"}],
        [{"name": "aiaa"}],
        [{"name": "jupyterlab"}] * 2,
        [{"name": "jupyterlab"}, {"name": "x", "port": 8890, "command": "serve"}],
        {"jupyterlab": 8890},
    )
    + bad("training_container_services", [{"name": "jupyterlab"}], cluster_ssh_port=8890)
    + bad(
        "training_container_notebooks",
        *[
            dict(NOTEBOOKS, **change)
            for change in (
                {"repository": ""},
                {"revision": ""},
                {"repository": "https://anna:hunter2@git.example.org/x.git"},
                {"repository": "git@git.example.org:x.git"},
                {"repository": "--upload-pack=x"},
                {"repository": "ext::sh -c id"},
                {"repository": "https://git.example.org/x\n"},
                {"revision": "main"},
                {"revision": "0123456"},
                {"revision": "G" * 40},
                {"target": "/"},
                {"target": "/etc"},
                {"target": "/data1"},
                {"target": "x"},
                {"target": "/a b"},
                {"branch": "main"},
                {"read_only": "maybe"},
            )
        ],
    )
    + bad(
        "training_container_notebooks",
        "https://git.example.org/x.git",
        [],
        {"repository": "https://git.example.org/x.git"},
    )
    + bad(
        "training_container_notebooks",
        NOTEBOOKS,
        training_container_mounts=[{"source": "/srv/data", "target": "/claraDevDay/"}],
    )
    + bad(
        "training_container_shm_size",
        "999999999999g",
        "1",
        "1t",
        "auto ",
        64,
        "-1g",
        "1.5g",
        ["1g"],
    )
    + bad(
        "training_container_ulimits",
        {"memlok": -1},
        {"memlock": 10**30},
        {"memlock": "x"},
        {"memlock": -2},
        {"memlock": [1]},
        {"memlock": 1.5},
        {"nofile": None},
        ["x"],
    )
    + bad("nccl_compute_capabilities", ["9.0"], ["999"], [9.0], ["x"], "90", ["90b"], ["12"])
    + bad("training_image_cuda_architectures", ["8.0"], ["999"], ["90a"], ["\u0669\u0660"])
    + bad(
        "nccl_version",
        "latest",
        "2",
        "2.21",
        "2.21.5-1",
        "2.21.5-1+cuda",
        "2.21.5\n",
        "\u0662.21.5",
        nccl_cuda="12.4",
    )
    + bad("training_image_nccl_version", "2.21.5", "2.21.5-1+cuda12", "x", ["x"])
    + bad("ascend_cann", "latest", "/opt/a b", "/opt/$(id)", "/opt\n/x", "/", True)
    + bad("ascend_driver_version", "1 2", "-x", "$(id)", 23.0)
    + bad("ascend_firmware_version", "7.1;id", ["7.1"])
    + bad("ascend_rank_table_format", "2.0", "json", 1.0, "")
    + bad("ascend_npus", "all", True)
    + bad("training_container_npus", "some", ["0"])
    + bad("infiniband_memlock", "64G", "0", "-1", True, "unlimited ", 1.5)
    + bad("train_command", "", " ", "python3 'x", ["python3", "x"], {"a": "b"}, True, "a\x00b")
    + bad(
        "shared_storage_users",
        [{"name": "anna", "uid": 0}],
        [{"name": "Anna", "uid": 2001}],
        [{"name": "anna"}],
        [{"name": "anna", "uid": "x"}],
        [{"name": "anna", "uid": 2001.5}],
        [{"name": "anna", "uid": 2001, "gid": 1}],
        [{"name": "a\n", "uid": 2001}],
        [{"name": "anna", "uid": 2001}, {"name": "anna", "uid": 2002}],
        ["anna"],
        {"anna": 2001},
        [{"name": "anna", "uid": 2001, "groups": "x"}],
        [{"name": "anna", "uid": 2001, "groups": ["x"]}],
        [{"name": "anna", "uid": 2001, "quota_mib": -1}],
        [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": "2001"}],
    )
    + bad(
        "shared_storage_users",
        *[
            [{"name": "anna", "uid": 2001, "public_keys": keys}]
            for keys in (
                [SSH_KEY + "\n"],
                [SSH_KEY + "\n" + SSH_KEY],
                [SSH_KEY, ""],
                [" " + SSH_KEY],
                ['command="id" ' + SSH_KEY],
                ["# " + SSH_KEY],
                ["cert-authority " + SSH_KEY],
                [
                    "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----\n"
                ],
                ["hunter2"],
                "hunter2",
                {"a": "hunter2"},
                [["hunter2"]],
                ["ssh-dss AAAAB3NzaC1kc3M="],
                ["ssh-ed25519"],
                ["ssh-ed25519 AAAA"],
                [SSH_KEY[:60]],
                [SSH_KEY.replace("ed25519", "rsa", 1)],
                ["/home/anna/.ssh/id_ed25519.pub"],
                [SSH_KEY + "\u2028x"],
                [SSH_KEY.replace(" ", "\t")],
                [1.5],
                [None],
                [True],
            )
        ],
    )
    + bad("shared_storage_users", [{"name": "anna", "uid": 2001, "public_key": [SSH_KEY]}])
    + bad(
        "shared_storage_login_hosts",
        ["nas"],
        [{"a": "b"}],
        {"a": "b"},
        [1.5],
        shared_storage_users=[{"name": "anna", "uid": 2001, "public_keys": [SSH_KEY]}],
    )
    + bad(
        "nfs_server_exports",
        [{"path": "/data1/a"}, {"path": "/data1/a/"}],
        [{"path": "/data1/a", "clients": ["0.0.0.0/0"]}],
        [{"path": "/data1/a", "option": ["rw"]}],
        "/data1",
        ["/data1"],
        [{}],
    )
    + bad(
        "shared_storage_trees",
        [{"path": "/mnt/a", "of": "users"}, {"path": "/mnt//a/", "of": "groups"}],
        [{"path": "/mnt/a", "of": "people"}],
        [{"path": "/mnt/a"}],
    )
    + bad(
        "nfs_client_mounts",
        [{"server": "nas", "path": "/a"}, {"server": "nas", "path": "/b", "target": "/a/"}],
        [{"server": "n as", "path": "/a"}],
        [{"server": "nas:/a", "path": "/a"}],
        [{"server": "999.1.1.1", "path": "/a"}],
        [{"path": "/a"}],
        [{"server": "nas"}],
        [{"server": "nas", "path": "/data", "targt": "/data"}],
        "nas:/a",
        ["nas:/a"],
    )
    + bad("nfs_client_version", "4.3", 4.1, "5", "\u0664")
    + bad("upgrade_batch", 0, "x", 1.5)
    + bad("upgrade_hook_host", "unknown", "", ["x"])
    + bad("docker_engine_daemon_override", ["log-driver"], "x", [["x"]])
    + bad("docker_engine_daemon_options", ["x"], "{}", {"Log Driver": "x"})
    + bad(
        "training_image_registry_login",
        {"registry": "https://nvcr.io", "username": "u", "password": "p"},
        {"registry": "nvcr.io"},
        {"registry": "nvcr.io/x", "username": "u", "password": "p"},
        {"registry": "nvcr.io", "username": "u", "password": ["p"]},
        {"registry": "nvcr.io", "username": "u", "password": "p\n"},
        "x",
        {"regstry": "x"},
        training_image_base="nvcr.io/nvidia/pytorch:25.02-py3",
    )
    + bad(
        "training_image_source_fixes",
        [dict(FIX, when={"torch": "~=2"})],
        [dict(FIX, when={"torch": 2.1})],
        [dict(FIX, when={"pytorch": ">=2"})],
        [{"name": "x"}],
        "x",
    )
    + bad("verify_overrule", {"gpu-ec": "skip"}, {"gpu-ecc": "off"})
    + bad("verify_required", ["x"], "gpu-ecc")
    + bad("verify_free_paths", ["x"], "/", ["/a/../b"])
    + bad("verify_clock_step", 0, "x", True, 10**9)
    + bad("verify_bandwidth_fraction", 0, 2, "x")
    + bad("verify_bandwidth_host_min_gb_s", -1, 10001, "x")
    + bad("verify_bandwidth_bytes", {"gloo": 3, "nccl": 1048576}, {"gloo": 65536})
    + bad("verify_bandwidth_history", "/nowhere/report.json", "x")
    + bad("training_sshd_options", {"Banner": "x\nPort 1"})
    +
    # expressions that fail
    [
        ({name: "{{ nowhere }}"}, name)
        for name in (
            "ansible_host",
            "ansible_port",
            "ansible_connection",
            "ansible_user",
            "cluster_address",
            "cluster_network",
            "preflight_fail_on",
            "nccl_version",
        )
    ]
    + bad("ansible_port", "ssh", 0, 99999)
    + bad("ansible_host", "a b", "-oProxyCommand=x", "user@host", "host:22")
    +
    # contradictions
    [
        ({"nfs_server_options": ["ro", "rw"]}, "nfs_server_options"),
        ({"nfs_client_options": ["hard", "soft"]}, "nfs_client_options"),
        ({"nfs_server_options": ["rw", "sync", "async"]}, "nfs_server_options"),
        ({"nfs_server_options": ["rw", "root_squash", "no_root_squash"]}, "nfs_server_options"),
        ({"nfs_server_options": ["ro", "sync"]}, "nfs_server_options"),
        ({"nfs_server_versions": ["3"], "nfs_client_version": "4"}, "nfs_client_version"),
        ({"nfs_server_exports": [{"path": "/data2"}]}, "nfs_server_exports"),
        (
            {
                "shared_storage_backend": "existing",
                "nfs_client_mounts": [{"server": "nas", "path": "/data1/share"}],
            },
            "nfs_client_mounts",
        ),
        ({"docker_engine_version": "19.03.15"}, "docker_engine_version"),
        (
            {"nvidia_driver_version": "470", "nvidia_driver_kernel_module": "open"},
            "nvidia_driver_kernel_module",
        ),
        (
            {"nvidia_driver_runfile_url": "https://m.example/NVIDIA-Linux-x86_64-570.172.08.run"},
            "nvidia_driver_runfile_url",
        ),
        ({"cuda_toolkit_source": "runfile"}, "cuda_toolkit_runfiles"),
        (
            {
                "cuda_toolkit_source": "runfile",
                "cuda_toolkit_runfiles": [dict(RUNFILE, version="11.8.0")],
            },
            "cuda_toolkit_runfiles",
        ),
        (
            {
                "cuda_toolkit_versions": ["12.4"],
                "cuda_toolkit_cudnn_version": "8.9.7.29-1+cuda11.8",
            },
            "cuda_toolkit_cudnn_version",
        ),
        ({"cuda_toolkit_versions": ["12.4"], "nccl_version": "2.21.5-1+cuda11.0"}, "nccl_version"),
        ({"nccl_cuda": "12.4"}, "nccl_cuda"),
        ({"nccl_version": "2.21.5-1+cuda12.4", "nccl_checksum": SHA}, "nccl_checksum"),
        (
            {"train_controller": "mpi", "training_image_requires": {"controllers": ["gloo"]}},
            "train_controller",
        ),
        ({"train_backend": "slurm"}, "train_backend"),
        ({"train_queue_options": ["-p train"]}, "train_queue_options"),
        ({"train_queue_options": ["--qos=a b"]}, "train_queue_options"),
        ({"train_queue_options": ["--wrap=x;id"]}, "train_queue_options"),
        (
            {
                "train_launcher": "torchrun",
                "training_image_requires": {"frameworks": ["tensorflow"]},
            },
            "train_launcher",
        ),
        ({"train_launcher": "torchrun", "train_controller": "mpi"}, "train_controller"),
        ({"train_launcher": "mindspore", "train_controller": "mpi"}, "train_controller"),
        (
            {"train_launcher": "mpirun", "training_image_requires": {"controllers": ["gloo"]}},
            "train_launcher",
        ),
        ({"train_launcher": "mpirun", "train_controller": "mpi"}, "train_controller"),
        ({"train_mindspore_start": "mpirun"}, "train_mindspore_start"),
        ({"train_rank_table": "hccl.json"}, "train_rank_table"),
        ({"train_rank_folder": "/tmp/a b"}, "train_rank_folder"),
        ({"training_image_horovod_version": "0.27.0"}, "training_image_horovod_sha256"),
        (
            {
                "training_image_base": "nvcr.io/nvidia/pytorch:25.02-py3",
                "training_image_registry_login": {
                    "registry": "ghcr.io",
                    "username": "u",
                    "password": "p",
                },
            },
            "training_image_registry_login",
        ),
        (
            {"verify_required": ["gpu-ecc"], "verify_overrule": {"gpu-ecc": "skip"}},
            "verify_required",
        ),
        (
            {"verify_required": ["bandwidth-host"], "verify_measure_bandwidth": False},
            "verify_required",
        ),
    ]
    +
    # of one host only
    [
        ({"first": {name: value}}, name)
        for name, value in (
            ("preflight_fail_on", "warn"),
            ("verify_cluster_name", "other"),
            ("training_container_image", "ubuntu:24.04"),
            ("cluster_ssh_port", 2222),
            ("nvidia_driver_version", "550"),
            ("cluster_network", "10.0.0.0/24"),
            ("slurm_cluster_name", "lab"),
            ("slurm_options", {"KillWait": 60}),
            ("train_launcher", "torchrun"),
            ("training_image_base", "ubuntu:24.04"),
        )
    ]
    + [({"first": {"cluster_slots": 2}, "groups": {"gpu": ["server-b"]}}, "cluster_slots")]
    +
    # of one host only, where one value is used for all of them
    [({"first": {name: value}}, name) for name, value in ONCE.items()]
    + bad("train_environment", {"NAME": "{{ inventory_hostname }}", "WANDB_API_KEY": "hunter2"})
    + bad("train_command", "run {{ inventory_hostname }}")
    + bad("train_job_id", "{{ inventory_hostname }}-{{ now(fmt='%f') }}")
    +
    # names
    [
        ({name: "x"}, name)
        for name in (
            "nccl_verison",
            "ncll_version",
            "traning_image_base",
            "nvidia_drver_version",
            "CLUSTER_SSH_PORT",
            "cluster_ssh_prot",
            "cluster_networks",
            "cluster_share_pth",
            "training_imgae_base",
            "nfs_server_export",
            "nfs_sever_exports",
            "prefligth_fail_on",
            "package_source_http_proxy",
            "shared_storage_user",
            "train_comand",
            "train_enviroment",
            "dockr_engine_version",
            "docker_version",
            "nvidia_version",
            "nfs_options",
            "training_base",
            "nfs_clinet_options",
            "verify_requird",
            "trainyard_cluster_network",
            "clusterSharePath",
            "cluster_members",
            "cluster_host",
            "upgrade_bach",
            "training_ssh_timeout",
            "cuda_toolkit_version",
        )
    ]
    + [
        ({"groups": {name: ["server-a"]}}, "inventory")
        for name in (
            "gpus",
            "heads",
            "clusters",
            "storages",
            "GPU",
            "Head",
            "storge",
            "haed",
            "stroage",
        )
    ]
    + [
        (
            {"cluster_scheduler": "slurm", "groups": {"scheduler": ["server-a", "server-b"]}},
            "cluster_scheduler_host",
        ),
        ({"cluster_scheduler": "slurm", "groups": {"login": ["gate"]}}, "cluster_login_hosts"),
    ]
    +
    # Logins on a training host: with the default groups, without a group gpu, and with one.
    [
        (dict(entry, cluster_scheduler="slurm"), "cluster_login_hosts")
        for entry in (
            {},
            {"slurm_accept_login_on_gpu_hosts": False},
            {"groups": {"login": ["server-b"]}},
            {"groups": {"login": ["server-a", "server-b"], "gpu": ["server-b"]}},
            {"groups": {"head": ["server-b"], "gpu": ["server-b"]}},
        )
    ]
    + bad("slurm_default_minutes", 61, slurm_max_minutes=60)
    + bad("slurm_default_minutes", 43201)
    + bad(
        "slurm_partitions",
        *[
            [dict({"name": "train"}, **entry)]
            for entry in (
                {"max_minutes": 60, "default_minutes": 61},
                {"default_minutes": 43201},
                {"max_minutes": "60", "default_minutes": "100"},
            )
        ],
    )
    + bad("slurm_partitions", [{"name": "train", "default_minutes": 31}], slurm_max_minutes=30)
    + bad("slurm_accept_login_on_gpu_hosts", "perhaps", ["server-a"])
    + bad("slurm_accept_no_limits", "perhaps", 2, ["server-a"])
    + [
        (dict(HUB_OF_TWO, slurm_accounts=accounts, **more), "jupyterhub_subdomains")
        for accounts, more in (
            (TWO_ACCOUNTS, {}),
            (ONE_ACCOUNT_OF_TWO, {}),
            (TWO_ACCOUNTS, {"jupyterhub_subdomains": "no"}),
            (
                TWO_ACCOUNTS,
                {
                    "jupyterhub_url": "https://hub.example.org",
                    "jupyterhub_accept_shared_origin": False,
                },
            ),
        )
    ]
    + bad(
        "jupyterhub_url",
        "",
        "https://192.0.2.10",
        "https://192.0.2.10:8443/",
        "https://192.0.2",
        "https://[2001:db8::1]",
        jupyterhub_subdomains=True,
        **HUB,
    )
    + bad(
        "jupyterhub_url",
        "https://hub.example.org:0",
        "https://hub.example.org:65536",
        "https://hub.example.org:99999",
        "http://hub.example.org",
        **HUB,
    )
    + bad(
        "jupyterhub_enabled",
        True,
        cluster_scheduler="slurm",
        slurm_accept_login_on_gpu_hosts=True,
        job_container_enabled=False,
    )
    + bad("jupyterhub_port", 481, 482, 483, **HUB)
    + bad("jupyterhub_port", 443, jupyterhub_hub_port=700, jupyterhub_jobs_port="700", **HUB)
    + bad(
        "jupyterhub_instance_ports",
        "30000",
        "x-y",
        "",
        "30999-30000",
        "900-1100",
        "65000-65536",
        "25000-30999",
        "9000-31000",
        "9999-10000",
        **HUB,
    )
    + bad("jupyterhub_instance_ports", "8000-8999", jupyterhub_port=8443, **HUB)
    + bad("jupyterhub_tls_certificate", "/srv/tls/hub.pem", **HUB)
    + bad("jupyterhub_tls_certificate", "", jupyterhub_tls_key="/srv/tls/hub.key", **HUB)
    + bad("jupyterhub_authenticator", "oidc", "ldap", **HUB)
    + bad(
        "jupyterhub_authenticator",
        "link",
        jupyterhub_authenticator_options={"client_secret": "hunter2"},
        **HUB,
    )
    + bad("jupyterhub_idle_warning_minutes", 120, 121, **HUB)
    + bad("jupyterhub_idle_warning_minutes", 30, jupyterhub_idle_gpu_minutes=30, **HUB)
    + bad("jupyterhub_token_days", 0, -1, 3651, "never", "", [30])
    + bad("jupyterhub_accept_shared_origin", "perhaps", [True])
    + [
        ({"groups": {"head": ["login"]}}, "inventory"),
        ({"groups": {"head": ["server-a", "server-b"]}}, "inventory"),
        ({"groups": {"server-a": ["server-b"]}}, "inventory"),
    ]
)

GOOD = [
    {"train_launcher": "mpirun", "training_image_requires": {"controllers": ["gloo", "mpi"]}},
    # An image without Horovod.
    {"train_launcher": "mpirun", "training_image_requires": {"controllers": []}},
    {
        "slurm_partitions": [
            {"name": "train", "default": True},
            {"name": "dev", "hosts": ["server-b"], "max_minutes": 60, "priorities": ["high"]},
        ],
        "slurm_priorities": [
            {"name": "low"},
            {"name": "high", "priority": "{{ 5 * 20 }}", "preempts": ["low"]},
        ],
        "slurm_options": {"TmpFS": "/scratch", "KillWait": 60},
        "slurm_accounts": [
            {
                "name": "vision",
                "description": "Computer vision",
                "gpus": 4,
                "max_gpus_per_person": 2,
                "max_minutes": 60,
                "hosts_classes": ["h100"],
                "cpus": 64,
                "memory_gb": "256",
                "max_jobs_per_person": 8,
                "max_submitted_per_person": 80,
                "members": ["anna"],
            }
        ],
        "shared_storage_users": [{"name": "anna", "uid": 2001}],
        "slurm_controller_dumps": "7",
        "slurm_account_share": "25",
        "slurm_max_jobs_per_person": 0,
        "slurm_max_submitted_per_person": 100,
        "slurm_max_minutes": 0,
        "slurm_default_minutes": 1440,
    },
    {
        "first": {
            "slurm_node_features": ["ib"],
            "slurm_gpu_type": "h100",
            "slurm_node_hardware": {"cpus": 8, "real_memory": 8000},
            "slurm_accept_smaller": True,
        }
    },
    dict(
        HUB_OF_TWO,
        slurm_accounts=TWO_ACCOUNTS,
        jupyterhub_subdomains=True,
        jupyterhub_url="https://hub.example.org",
    ),
    dict(
        HUB_OF_TWO,
        slurm_accounts=TWO_ACCOUNTS,
        jupyterhub_accept_shared_origin=True,
        jupyterhub_token_days="7",
    ),
    dict(
        HUB,
        jupyterhub_subdomains=True,
        jupyterhub_url="https://hub.example.org:65535/",
        jupyterhub_port=65535,
        jupyterhub_instance_ports="30000-30999",
    ),
    dict(
        HUB,
        jupyterhub_url="https://192.0.2.10:8443",
        jupyterhub_port=8443,
        jupyterhub_instance_ports="1024-8442",
    ),
    dict(
        HUB,
        jupyterhub_url="",
        jupyterhub_tls_certificate="/srv/tls/hub.pem",
        jupyterhub_tls_key="/srv/tls/hub.key",
    ),
    dict(
        HUB, jupyterhub_authenticator="oidc", jupyterhub_authenticator_options={"client_id": "hub"}
    ),
    dict(HUB, jupyterhub_authenticator="pam"),
    dict(
        HUB,
        jupyterhub_idle_minutes=0,
        jupyterhub_idle_gpu_minutes="121",
        jupyterhub_idle_warning_minutes=120,
    ),
    # Without a hub, its variables do not count.
    {"jupyterhub_subdomains": True, "jupyterhub_tls_key": "/srv/tls/hub.key"},
    # One person in two accounts, an account without people, and no hub.
    dict(
        HUB_OF_TWO,
        slurm_accounts=[
            {"name": "vision", "members": ["anna"]},
            {"name": "language", "members": ["anna"]},
            {"name": "empty"},
        ],
    ),
    dict(HUB_OF_TWO, slurm_accounts=TWO_ACCOUNTS, jupyterhub_enabled=False),
    # The groups of a scheduler that this collection does not run are the site's own.
    {"cluster_login_hosts": ["outside.example"]},
    {"cluster_scheduler": "slurm", "groups": {"gpu": ["server-b"]}},
    # A partition with a shorter time than the default of all, limits that are as long, and none.
    {
        "slurm_default_minutes": 1440,
        "slurm_partitions": [
            {"name": "train", "default": True},
            {"name": "short", "max_minutes": 60},
            {"name": "other", "max_minutes": 0, "default_minutes": 90000},
            {"name": "same", "max_minutes": 30, "default_minutes": 30},
        ],
    },
    {
        "slurm_max_minutes": 0,
        "slurm_default_minutes": 90000,
        "slurm_partitions": [{"name": "train", "default_minutes": 90000}],
    },
    # A login host of its own, while the head, which runs jobs, is the scheduler; and what the
    # message says.
    {"cluster_scheduler": "slurm", "groups": {"gpu": ["server-a"], "login": ["server-b"]}},
    {
        "cluster_scheduler": "slurm",
        "hosts": ("gpu-a", "gpu-b", "gpu-c", "front"),
        "groups": {"gpu": ["gpu-a", "gpu-b", "gpu-c"], "login": ["front"], "scheduler": ["front"]},
    },
    {
        "cluster_scheduler": "slurm",
        "hosts": ("gpu-a", "control", "front"),
        "groups": {"gpu": ["gpu-a"], "login": ["front"], "scheduler": ["control"]},
    },
    {
        "cluster_scheduler": "slurm",
        "slurm_accept_login_on_gpu_hosts": True,
        "slurm_accept_no_limits": "yes",
    },
    {
        "cluster_scheduler": "slurm",
        "cluster_scheduler_host": "server-b",
        "cluster_login_hosts": ["server-a", "{{ cluster_head }}"],
        "slurm_accept_login_on_gpu_hosts": True,
    },
    {
        "job_container_registries": ["r.example:5000/team/a_b.c", "localhost"],
        "job_container_images": ["tools", "site/tools:1"],
        "job_container_shm_size": "512M",
        "job_container_storage": "/scratch/containers",
        "job_container_environment": {"NCCL_DEBUG": "WARN"},
        "job_container_free_gib": "0",
        "job_container_job_gib": "50",
    },
    {
        "image_relay_images": [
            {"name": "pytorch:2.5", "source": "r.example/team/pytorch:2.5", "complete": True},
            {"name": "a/b_c.d", "archive": "/srv/a.tar"},
            {"name": "c", "source": "localhost/c@" + SHA},
            {"name": "d", "source": "10.0.0.1:5000/d"},
        ],
        "image_relay_source_logins": [
            {"registry": "nvcr.io", "username": "$oauthtoken", "password": "a b:c\"'$(id)"}
        ],
        "image_relay_plain_http": ["10.0.0.1:5000"],
        "image_relay_port": "5001",
        "image_relay_keep_days": 0,
        "image_relay_storage": "/scratch/registry",
        "image_relay_address": "front.example",
    },
    {
        "image_relay_registry": "r.example:5000",
        "image_relay_registry_login": {"username": "relay", "password": "x"},
    },
    {"image_relay_certificate": "/srv/tls/fullchain.pem", "image_relay_key": "/srv/tls/key.pem"},
    {
        "training_image_base_archive": "/srv/images/base image.tar",
        "training_image_base_archive_on_head": True,
    },
    {
        "training_image_source_fixes": [FIX, dict(FIX, name="other", environment={"A": 1})],
        "training_image_rebuild": "never",
        "training_image_horovod_dependencies": [
            "cloudpickle==2.2.1 ; python_version < '3.7'",
            'cloudpickle==3.1.1 ; python_version >= "3.7"',
        ],
    },
    {
        "training_sshd_options": {
            "AcceptEnv": ["LANG", "LC_*"],
            "MaxSessions": 1,
            "MaxStartups": "10:30:100",
            "HostKeyAlgorithms": ["ssh-ed25519"],
            "KexAlgorithms": "+diffie-hellman-group14-sha1",
        }
    },
    {
        "docker_engine_daemon_options": {
            "hosts": ["unix:///var/run/docker.sock", "tcp://0.0.0.0:2376"],
            "tlsverify": True,
            "tlscacert": "/etc/docker/ca.pem",
        }
    },
    {
        "docker_engine_daemon_options": {
            "dns": ["10.0.0.53", "fd00::53"],
            "mtu": 9000,
            "exec-root": "/run/docker",
            "default-shm-size": "1G",
            "something-new": 1,
            "bip": "172.30.0.1/16",
            "log-opts": {"max-file": "3"},
            "default-ulimits": {"memlock": {"Hard": -1, "Soft": -1}},
        },
        "docker_engine_daemon_override": ["log-opts.max-file", "mtu"],
    },
    {
        "docker_engine_repository_key": ARMOR.replace("\n\n", "\nComment: a key\n\n").replace(
            "mDMEZ", "mDME\n=abcd"
        )
    },
    {"package_sources_ca_certificates": ["# CN = site\n" + CERTIFICATE + CERTIFICATE]},
    {"preflight_image_facts": {"nccl": "2.21.5-1+cuda12.4", "gcc": "11.4.0-1ubuntu1~22.04"}},
    {"preflight_image_facts": {"nccl": "2.8.4-1"}},
    {
        name: value
        for name, value in ONCE.items()
        if not name.startswith("train_horovod") and name != "verify_measure_bandwidth"
    },
    {
        "train_environment": {
            "N": "{{ groups.cluster | length }}",
            "SHARE": "{{ cluster_share_path }}",
        }
    },
    {"train_job_id": "{{ now(fmt='%f') }}"},
    {"train_job_id": "{{ mine }}", "mine": "{{ lookup('pipe', 'date +%N') }}"},
    {"train_environment": {"SEED": "{{ 10000 | random }}"}},
    {
        "first": {
            "verify_timeout": 60,
            "verify_free_mib": 5,
            "training_container_shm_size": "2g",
            "upgrade_hook_host": "server-b",
        }
    },
    {"first": {"train_environment": {"A": 1}}, "train_environment": {"A": 1}},
    {},
    {"hosts": ("node_1", "node_2")},
    {"hosts": ("10.0.0.1", "10.0.0.2")},
    {"hosts": ("a.example.org", "b.example.org")},
    {"hosts": ("NODE1", "node2")},
    {"hosts": ("localhost",)},
    {"hosts": ("1", "2")},
    {"groups": {"gpu": ["server-a"], "head": ["server-b"]}},
    {"groups": {"gpu1": ["server-a"], "cpu": ["server-b"], "rack1": ["server-a"]}},
    {"groups": {"clusters": ["server-a", "server-b", "other"]}},
    {"cluster_ssh_port": "12345"},
    {"cluster_share_path": "/data1/share/"},
    {"cluster_share_path": "/srv/training"},
    {"cluster_share_path": "/mnt/gr\u00f6\u00dfe"},
    {"first": {"cluster_share_path": "/data1/share/"}},
    {"first": {"verify_bandwidth_host_min_gb_s": 4.5}},
    {"first": {"nvidia_driver_version": 570}, "nvidia_driver_version": "570"},
    {
        "shared_storage_users": [
            {
                "name": "anna",
                "uid": 2001,
                "public_keys": [SSH_KEY, SSH_KEY + " of Anna M\u00fcller"],
            },
            {"name": "ben", "uid": 2002, "public_keys": []},
            {"name": "eve", "uid": 2003, "public_keys": None},
        ],
        "shared_storage_login_hosts": ["server-b"],
    },
    {"shared_storage_users": [{"name": "anna", "uid": "2001", "quota_mib": "100"}]},
    {"training_container_ulimits": {"memlock": "-1", "nofile": 65536}},
    {"shared_storage_trees": [{"path": "/home", "of": "users"}]},
    {"shared_storage_trees": []},
    {"nfs_client_mounts": [{"server": "nas.example.org", "path": "/", "target": "/data2"}]},
    {
        "nfs_client_mounts": [
            {
                "server": "2001:db8::1",
                "path": "/volume1/home",
                "target": "/home",
                "options": ["vers=4.2", "hard", "sec=krb5p"],
            }
        ]
    },
    {
        "nfs_server_exports": [
            {"path": "/data1/share"},
            {"path": "/srv/nfs", "clients": ["10.0.0.0/24", "2001:db8::/64", "nas", "fe80::1"]},
        ]
    },
    {
        "nfs_server_exports": [
            {"path": "/data1/share"},
            {"path": "/var/nfs/data", "options": ["ro", "sync"]},
        ]
    },
    {"nfs_server_clients": ["10.0.0.5/32"]},
    {"cluster_network": "10.0.0.0/24", "first": {"cluster_address": "10.0.0.7"}},
    {"cluster_fabric_network": "169.254.0.0/16"},
    {"cluster_interface": "bond0.100"},
    {"cluster_fabric_interface": "ibp65s0f0"},
    {"ansible_port": "2222"},
    {"ansible_user": "ops-team"},
    {"first": {"ansible_host": "fe80::1%eth0"}},
    {"first": {"ansible_host": "jump.example.org"}},
    {"training_image_base": "localhost:5000/team/image:1.0@" + SHA},
    {"training_image_base": "nvcr.io/nvidia/clara-train-sdk:v3.1.01"},
    {"training_image_base": "ubuntu"},
    {"training_image_base": "10.0.0.1:5000/a/b__c:x"},
    {"training_container_gpus": [0, 1, 2]},
    {"training_container_gpus": ["GPU-3d2e1c0f-1111-2222-3333-444455556666"]},
    {
        "training_container_services": [
            {"name": "jupyterlab"},
            {"name": "aiaa", "command": "serve --port {port}"},
        ],
        "training_container_notebooks": NOTEBOOKS,
    },
    {
        "training_container_services": [
            {
                "name": "jupyterlab",
                "port": 8891,
                "address": "cluster",
                "workdir": "/claraDevDay/scripts",
            },
            {
                "name": "x-1_y",
                "port": "5001",
                "address": "cluster",
                "command": "serve '{address}' {certificate} --key={key}",
            },
        ],
        "training_container_notebooks": {},
    },
    {
        "training_container_notebooks": dict(
            NOTEBOOKS, target="/notebooks", read_only=True, repository="file:///srv/notebooks.git"
        ),
        "training_container_mounts": [{"source": "/srv/data", "target": "/claraDevDay"}],
    },
    {"training_container_gpus": ["0", "3"]},
    {"training_container_shm_size": "126g"},
    {"train_command": "python3 train.py \\\n  --epochs 3\n"},
    {"train_command": "sh -c 'a; b && c'"},
    {"train_environment": {"LR": 0.1, "N": 4, "NAME": "a b", "EMPTY": "", "FLAG": True}},
    {"train_job_id": "2026-11-24_run.1"},
    {"nfs_client_mounts": [{"server": "nas", "path": "/export/My Data", "target": "/data1/share"}]},
    {"nfs_client_options": ["hard", "clientaddr=fe80::1%eth0"]},
    {"train_workdir": "/workspace/code"},
    {"training_image_python_packages": ["torch[extra,more]==2.1.0+cu118", "numpy==2.0.0rc1"]},
    {
        "training_image_apt_packages": [
            "g++",
            "libnccl2=2.21.5-1+cuda12.4",
            "libnccl-dev=2.21.5-1+cuda12.4",
        ]
    },
    {"package_sources_http_proxy": "http://user:pa%40ss@proxy.example.org:3128/"},
    {
        "package_sources_no_proxy": [
            ".example.org",
            "10.0.0.0/8",
            "localhost",
            "*.lab",
            "::1",
            "a:8080",
        ]
    },
    {"package_sources_name_servers": ["10.0.0.53", "2001:db8::53", "127.0.0.53"]},
    {"package_sources_pip_index_url": "https://user:word@pypi.example.org/simple"},
    {"package_sources_ca_certificates": [CERTIFICATE]},
    {
        "package_sources_apt_repositories": [
            dict(
                REPOSITORY,
                uris=["http://m.example:8081/debian/"],
                suites=["stable/"],
                components=[],
            )
        ]
    },
    {"package_sources_wheels_dir": FOLDER},
    {"slurm_packages_source": REPOSITORY},
    {"slurm_packages_source": dict(REPOSITORY, suites=["./"], components=[])},
    {"docker_engine_version": "5:28.5.1-1~debian.12~bookworm"},
    {"docker_engine_daemon_options": {"log-opts": {"max-size": "10m"}}},
    {"docker_engine_repository_url": "file:///srv/mirror/docker"},
    {"docker_engine_repository_key": ARMOR},
    {"nccl_version": "2.21.5-1+cuda12.4", "cuda_toolkit_versions": ["12.4.1", "11.8"]},
    {"cuda_toolkit_mpi_home": "/usr/mpi/gcc/openmpi-4.1.7rc1"},
    {"nvidia_driver_version": "570.172.08-0ubuntu1"},
    {"verify_cluster_name": "Lab 2 (Gr\u00f6\u00dfe)"},
    {"infiniband_memlock": 67108864},
    {
        "ascend_npus": "required",
        "ascend_cann": "/opt/Ascend/ascend-toolkit/latest",
        "ascend_driver_version": "1.72.T2.100.B020",
        "ascend_firmware_version": "7.1.0.3.220",
        "ascend_rank_table_format": "1.0",
        "training_container_npus": "none",
    },
    {
        "my_own": 1,
        "train_epochs": 3,
        "nfs_server": "nas",
        "http_proxy": "x",
        "cluster_name": "lab",
        "gpu_count": 8,
        "nccl_debug": "INFO",
        "train_window": 12,
        "my_docker_version": "28",
        "docker_version": "28",
        "docker_engine_version": "28.5.1",
        "cluster_hosts": ["x"],
    },
    {
        "cluster_ssh_ports": {"server-a": 2222, "server-b": 2222},
        "cluster_ssh_port": "{{ cluster_ssh_ports[inventory_hostname] }}",
    },
    {"cluster_slots": "8"},
    {
        "preflight_image_facts": {
            "python": "3.10",
            "cuda": "12.6",
            "torch": "2.6.0a0+ecf3bae40a.nv25.01",
        }
    },
    {"preflight_fail_on": "block", "verify_measure_bandwidth": "no", "verify_clock_step": "0.5"},
    {
        "training_image_registry_login": {
            "registry": "nvcr.io",
            "username": "$oauthtoken",
            "password": "a b:c@d/e",
        }
    },
    {
        "upgrade_drain_command": "scontrol update NodeName={{ inventory_hostname }} State=DRAIN",
        "upgrade_resume_command": "true",
    },
    {
        "training_image_source_fixes": [
            dict(FIX, replace=[{"file": "horovod/common/x.cc", "from": "a\nb", "to": "c\nd"}])
        ]
    },
    {"training_container_devices": ["/dev/infiniband", "/dev/nvidia0"]},
    {
        "docker_engine_daemon_options": {"data-root": "/data/docker"},
        "nccl_tests_prefix": "/opt/nccl-tests",
        "cuda_toolkit_source": "runfile",
        "cuda_toolkit_runfiles": [
            dict(
                RUNFILE,
                arguments=[
                    "--tmpdir=/tmp/x",
                    "--samplespath=/usr/local/samples",
                    "--defaultroot=/opt/cuda",
                ],
            )
        ],
    },
    {
        "training_container_mounts": [
            {"source": "/etc/localtime", "target": "/etc/localtime"},
            {"source": "/lib/modules", "target": "/lib/modules", "read_only": True},
            {"source": "/tmp/.X11-unix", "target": "/tmp/.X11-unix"},
        ]
    },
    {"training_sshd_options": {"UseDNS": False, "LogLevel": "VERBOSE"}},
    {
        "training_container_mounts": [
            {"source": "/etc/nccl.conf", "target": "/etc/nccl.conf", "read_only": True},
            {"source": "/data2", "target": "/workspace"},
        ]
    },
]


# Logins to the registry of the base, by each of its names; what takes a variable away; paths,
# digests and groups of others.
LOGIN = {"username": "u", "password": "p"}
GOOD += (
    [
        {
            "training_image_base": base,
            "training_image_registry_login": dict(LOGIN, registry=registry),
        }
        for base, registry in (
            ("ubuntu:22.04", "docker.io"),
            ("python:3.11", "docker.io"),
            ("debian:bookworm", "index.docker.io"),
            ("ubuntu@" + SHA, "docker.io"),
            ("ubuntu", "docker.io"),
            ("docker.io/library/ubuntu:22.04", "registry-1.docker.io"),
            ("apulistech/horovod:0.19.2", "docker.io"),
            ("localhost:5000/x:1", "localhost:5000"),
            ("localhost/x", "localhost"),
            ("nvcr.io/nvidia/pytorch:25.02-py3", "nvcr.io"),
            ("GHCR.io/team/x@" + SHA, "ghcr.io"),
        )
    ]
    + [
        {"training_image_build_variables": {"MAKEFLAGS": None, "HOROVOD_WITH_MPI": 1}},
        {"training_container_workdir": "/"},
        {"train_workdir": "/"},
    ]
    + [
        {name: "sha256:" + "0123456789ABCDEF" * 4}
        for name in (
            "docker_engine_repository_key_checksum",
            "package_sources_nvidia_keyring_checksum",
        )
    ]
    + [
        {
            "training_image_horovod_version": "0.27.0",
            "training_image_horovod_sha256": "0123456789ABCDEF" * 4,
        }
    ]
    + [
        {"groups": {name: ["nas-1"]}}
        for name in ("store", "clustered", "gp", "stored", "gps", "gpt")
    ]
)
REFUSED += (
    bad(
        "training_image_registry_login",
        dict(LOGIN, registry="ubuntu:22.04"),
        dict(LOGIN, registry="ghcr.io"),
        training_image_base="ubuntu:22.04",
    )
    + bad(
        "training_image_registry_login",
        dict(LOGIN, registry="docker.io"),
        training_image_base="localhost:5000/ubuntu:22.04",
    )
    + bad("train_environment", {"A": None})
    + bad("training_container_environment", {"A": None})
    + bad("training_image_build_variables", {"A": []}, {"A B": None})
    + bad("train_workdir", "x", "/a/..", "/$(id)")
    + bad("training_container_workdir", "//a b", "")
    + [
        ({"groups": {name: ["server-a"]}}, "inventory")
        for name in ("gup", "pgu", "gp", "ehad", "clustred", "storag", "stoarge")
    ]
)

# Paths: those that roles cut and compare are spelled plainly; what a container writes to is no
# system folder; what it has already is not mounted once more.
ODD = [
    "//data1/share",
    "/./data1/share",
    "/data1//share",
    "/data1/./share",
    "/data1/share/.",
    "/data1/share/./",
]
CONTROLLERS = ("upgrade_snapshot_dir", "verify_report_dir")


def from_host(paths, **others):
    """Return a value with one mount for each of these paths of the host."""
    return [
        [dict({"source": path, "target": "/x%d" % number}, **others)]
        for number, path in enumerate(paths.split())
    ]


def to_container(paths):
    return [[{"source": "/data2", "target": path}] for path in paths.split()]


def at_once(name, values):
    """Return one case with all of these lists."""
    return [{name: [entry for value in values for entry in value]}]


REFUSED += (
    [
        case
        for path in ODD
        for name, value in (
            ("cluster_share_path", path),
            ("nfs_server_exports", [{"path": path}]),
            ("nfs_client_mounts", [{"server": "nas", "path": "/x", "target": path}]),
            ("nfs_client_mounts", [{"server": "nas", "path": path}]),
            ("shared_storage_trees", [dict(TREE, path=path)]),
            ("train_workdir", path),
            ("training_container_workdir", path),
            ("nccl_cuda_home", path),
            ("nccl_tests_prefix", path),
            ("docker_engine_daemon_options", {"data-root": path}),
        )
        for case in bad(name, value)
    ]
    + bad(
        "training_container_devices",
        *[
            [path]
            for path in (
                "/dev/x/../../etc /dev/.. /dev/./fuse //dev/fuse /dev//fuse /dev/fuse/. /dev /dev/ /dev/sda /dev/sda1 /dev/nvme0n1 /dev/nvme0 /dev/vdb /dev/xvda "
                "/dev/dm-0 /dev/md127 /dev/md/data /dev/disk/by-id/x /dev/mapper/vg-root /dev/mmcblk0 /dev/mem /dev/kmem /dev/port"
            ).split()
        ],
    )
    + bad(
        "training_container_mounts",
        *from_host(
            "/etc/ssh /lib/systemd /etc/shadow /etc/passwd /etc/ssl /etc/cron.d /etc/trainyard/ssh /usr/bin /usr/local/bin /usr/local /usr/lib/x //usr/./share "
            "/var/lib /var/lib/docker /var/lib/dpkg/info /var/backups /var/spool/cron /var/cache /root/.aws /root/.bashrc /root/.config/gcloud /root "
            "/home/anna/.ssh /data/.gnupg /run /var/run /run/udev /run/systemd /efi/x /boot/x /bin/x /snap/x /dev"
        ),
    )
    + bad(
        "training_container_mounts",
        *from_host(
            "/var/run/docker.sock /run/docker.sock /run//containerd/containerd.sock /run/./podman /run/systemd/private /var/run /run",
            read_only=True,
        ),
    )
    + bad(
        "training_container_mounts",
        *to_container(
            "/data1 //data1//share /data1/./share /data1/ /etc/trainyard/ssh /etc/trainyard //etc//trainyard/site/"
        ),
    )
    + bad(
        "training_container_mounts",
        *to_container("/mnt /mnt/a /mnt/a/b"),
        cluster_share_path="/mnt/a/b",
    )
    + bad(
        "nfs_server_exports",
        *[[{"path": path}] for path in ("/home/anna/.ssh", "/home/.gnupg", "/efi", "/efi/x")],
    )
    + bad(
        "nfs_client_mounts",
        *[
            [{"server": "nas", "path": "/x", "target": path}]
            for path in ("/home/anna/.ssh", "/efi")
        ],
    )
    + bad("cluster_share_path", "/data1/.ssh")
    + bad("nccl_cuda_home", "/etc", "/boot/cuda", "/dev/shm")
    + bad("cuda_toolkit_mpi_home", "/etc", "/proc/x")
    + bad("nccl_tests_cuda_home", "/etc/cuda", "/sys")
    + bad("nccl_tests_mpi_home", "/etc", nccl_tests_mpi=True)
    + [
        case
        for name in CONTROLLERS
        for case in bad(
            name,
            *"/etc //etc/ /etc/cron.d /usr /usr/bin /var /var/lib /boot/x /proc/x /lib/x /home /root/.ssh /run".split(),
        )
    ]
)
GOOD += (
    [
        {"cluster_share_path": path, "train_workdir": path, "training_container_workdir": path}
        for path in "/data1/share/ /data1/a.b /mnt/.hidden".split()
    ]
    + at_once(
        "training_container_devices",
        [
            [path]
            for path in (
                "/dev/infiniband/ /dev/fuse /dev/nvidia-fs0 /dev/dri/card0 /dev/gdrdrv /dev/knem /dev/xpmem /dev/nvidia-caps/nvidia-cap1 /dev/kvm /dev/net/tun "
                "/dev/shm /dev/loop0 /dev/nvme-fabrics"
            ).split()
        ],
    )
    + at_once(
        "training_container_mounts",
        from_host(
            "/data /home /home/anna/work /home/anna/.cache /root/data /root/.cache/huggingface /tmp /tmp/x /var/tmp /var/lib/datasets /var/log/jobs /var/www "
            "/srv /opt/app /mnt/nas/a /etc/hosts /etc/timezone /etc/libibverbs.d /usr/local/cuda /usr/local/share/nltk_data /dev/shm /dev/log /data//x "
            "/run/user/1000/x /run/nvidia-persistenced/socket /run/munge"
        ),
    )
    + [{"training_container_mounts": [{"source": "/My Data/x", "target": "/My Data"}]}]
    + at_once(
        "training_container_mounts",
        from_host(
            "/etc/ssl /etc/pki /usr/src /usr/share/zoneinfo /etc/passwd /var/lib/docker/x /root/.aws /run/systemd/resolve/resolv.conf /sys /boot "
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1 /home/anna/.ssh",
            read_only=True,
        ),
    )
    + at_once(
        "training_container_mounts",
        to_container(
            "/data1/share/cache /data1/other /data10 /data /etc/nccl.conf /etc/trainyard.conf /efi /dev/shm /usr/local/lib/x /root/.ssh"
        ),
    )
    + [
        {
            "cluster_share_path": "/mnt/a/b",
            "training_container_mounts": [{"source": "/data2", "target": "/mnt/a/c"}],
        }
    ]
    + at_once(
        "nfs_server_exports",
        [
            [{"path": path}]
            for path in "/data1/share /home/project /data1/.snapshot /srv/a/ /efi2 /data1/ssh".split()
        ],
    )
    + at_once(
        "nfs_client_mounts",
        [
            [{"server": "nas", "path": path, "target": "/home/project/x%d" % number}]
            for number, path in enumerate("/vol//a /vol/./a /100%/y / /home/project/.ssh".split())
        ],
    )
    + [
        {"nccl_cuda_home": path}
        for path in (
            "/usr /usr/lib/cuda /opt/cuda /etc/alternatives/cuda /cm/shared/apps/cuda /home/ops/cuda /usr/local/cuda-12.4/"
        ).split()
    ]
    + [
        {"cuda_toolkit_mpi_home": path}
        for path in "/usr /usr/lib/x86_64-linux-gnu/openmpi /opt/amazon/openmpi /root/hpcx/ompi".split()
    ]
    + [
        dict.fromkeys(CONTROLLERS, path)
        for path in (
            "/root/trainyard /etc/ansible/.trainyard/reports /srv /tmp/x /var/log/trainyard /usr/local/reports /home/ops/reports /data/reports/ /run/x"
        ).split()
    ]
)

# Shared storage: options by their manuals, servers that are one host, mounts and trees that are not
# in each other.
SHARE = {"path": "/data1/share"}
PEOPLE = {
    "shared_storage_users": [{"name": "anna", "uid": 2001}],
    "shared_storage_groups": [{"name": "vision", "gid": 3001}],
}


def options_of(*lists):
    """Return mounts with each of these lists of options."""
    return at_once(
        "nfs_client_mounts",
        [
            [
                {
                    "server": "nas",
                    "path": "/x",
                    "target": "/data1/share%d" % number,
                    "options": options,
                }
            ]
            for number, options in enumerate(lists)
        ],
    )


REFUSED += (
    [
        case
        for option in (
            "hrad noatme proto=tpc nconnect=99 nconnect=0 vers=5 vers=4.3 rsize=x rsize rsize= hard=1 sec=krb6 sec= lookupcache=some "
            "local_lock=x port=65536 timeo=-1 clientaddr=nas foo xsystemd.automount _netdevv remount mountproto=rdma actimo=5 x- "
        ).split()
        for name, value in (
            ("nfs_client_options", [option]),
            ("nfs_client_mounts", options_of([option])[0]["nfs_client_mounts"]),
        )
        for case in bad(name, value)
    ]
    + bad(
        "nfs_client_options",
        ["sync", "async"],
        ["lock", "nolock"],
        ["ac", "noac"],
        ["bg", "fg"],
        ["proto=tcp", "proto=rdma"],
        ["tcp", "udp"],
        ["vers=3", "vers=4"],
        ["suid", "nosuid"],
        ["rsize=1", "rsize=2"],
    )
    + bad("nfs_client_options", ["vers=3"], ["nfsvers=4.1"], ["v3"], nfs_client_version="4.2")
    + bad("nfs_client_options", ["vers=4.2"], nfs_client_version="3")
    + bad(
        "nfs_server_exports",
        *[
            [dict(SHARE, options=options)]
            for options in (
                ["rw", "hide", "nohide"],
                ["fsid=0", "fsid=1"],
                ["crossmnt", "nocrossmnt"],
                ["acl", "no_acl"],
                ["wdelay", "no_wdelay"],
                ["rw", "ro", "sec=sys"],
                ["sec=krb5", "rw", "ro", "sec=sys"],
                ["rww"],
                ["fsid"],
                ["refer=nas"],
                ["sec=krb5:foo"],
                ["rw=1"],
                ["secure_locks", "insecure_locks"],
            )
        ],
        *[
            [dict(SHARE, full_access=False, options=[option])]
            for option in ("anonuid=0", "anongid=00", "anonuid=4294967295", "anonuid=-1", "anonuid")
        ],
        [dict(SHARE, options=["fsid=0"]), {"path": "/data2", "options": ["fsid=0"]}],
        [dict(SHARE, options=["fsid=0"]), {"path": "/data2", "options": ["fsid=root"]}],
        [dict(SHARE, options=["rw", "fsid=7"]), {"path": "/data2", "options": ["fsid=7"]}],
    )
    + [
        (
            {
                "nfs_server_options": ["rw", "fsid=0"],
                "nfs_server_exports": [SHARE, {"path": "/data2"}],
            },
            "nfs_server_options",
        )
    ]
    + bad(
        "nfs_client_mounts",
        *[
            [{"server": server, "path": "/x", "target": "/data1/share"}]
            for server in (
                "0.0.0.0 255.255.255.255 224.0.0.1 239.1.1.1 localhost localhost. localhost.localdomain ip6-localhost 127.0.0.1 127.1.2.3 :: ::1 ff02::1"
            ).split()
        ],
    )
    + bad(
        "nfs_client_mounts",
        *[
            [
                {"server": "nas", "path": "/a", "target": one},
                {"server": "nas", "path": "/b", "target": other},
            ]
            for one, other in (
                ("/data1/share", "/data1/share/b"),
                ("/data1/share/b/c", "/data1/share/"),
                ("/data1", "/data1/share"),
            )
        ],
    )
    + [
        (
            dict(
                PEOPLE,
                shared_storage_trees=[{"path": "/mnt/a", "of": of}, {"path": path, "of": "groups"}],
            ),
            "shared_storage_trees",
        )
        for of, path in (
            ("users", "/mnt/a/anna"),
            ("users", "/mnt/a/anna/x"),
            ("groups", "/mnt/a/vision/"),
        )
    ]
    +
    # Contradictions that the controller sees, and values that cannot be right.
    bad("cluster_address", "10.0.0.0", "10.0.0.255", cluster_network="10.0.0.0/24")
    + bad("cluster_address", "10.0.0.4", "10.0.0.7", cluster_network="10.0.0.4/30")
    + bad("cluster_interface", "lo")
    + bad("cluster_fabric_interface", "lo")
    + bad("train_master_port", 12345, 22, "22", 111, 2049, -1, 65536)
    + bad("train_master_port", 2222, cluster_ssh_port=2222)
    + bad("cluster_slots", 8, "3", training_container_gpus=[0, 1])
    + bad(
        "nccl_tests_make_variables",
        {"SHELL": "/x"},
        {"SHELL": ""},
        {"SHELL": 5},
        {"MAKEFILES": "/x"},
        {"SHELL": "/bin/sh -c"},
    )
)
GOOD += (
    options_of(
        *[
            [option]
            for option in (
                # nfs(5)
                "hard intr nointr softreval nosoftreval noac ac bg fg rdirplus nordirplus nosharecache resvport noresvport fsc fsc=tag nofsc sloppy udp tcp "
                "rdma nolock lock cto nocto acl noacl migration nomigration timeo=600 retrans=2 rsize=1048576 wsize=1048576 acregmin=3 acregmax=60 "
                "acdirmin=30 acdirmax=60 actimeo=0 retry=5 nconnect=16 max_connect=4 sec=sys sec=krb5p:krb5i:sys sec=none lookupcache=none "
                "lookupcache=positive lookupcache=pos lookupcache=all local_lock=posix local_lock=flock proto=tcp proto=tcp6 proto=rdma proto=rdma6 proto=udp "
                "port=2049 port=0 mountport=892 mountproto=tcp6 mountvers=3 mounthost=nas.example namlen=255 minorversion=1 nfsvers=4.1 vers=3 "
                "clientaddr=10.0.0.1 clientaddr=fd00::1 "
                # newer kernels, and vendors
                "trunkdiscovery xprtsec=mtls write=eager rdirplus=none fatal_neterrors=none nosharetransport remoteports=10.0.0.1-10.0.0.8 v4.1 "
                # mount(8), systemd.mount(5)
                "noatime nodiratime relatime strictatime lazytime nosuid nodev noexec rw ro sync async dirsync _netdev nofail noauto users owner "
                "context=system_u:object_r:nfs_t:s0 x-systemd.automount x-systemd.requires=wg-quick@wg0.service x-systemd.idle-timeout=1min x-gvfs-hide "
                "X-mount.mkdir comment=share nosymfollow"
            ).split()
        ]
    )
    + options_of(
        ["vers=3", "nolock"],
        ["noatime", "nodiratime"],
        ["rw", "relatime", "nconnect=8", "max_connect=16"],
        ["vers=4", "minorversion=1"],
    )
    + [
        {"nfs_client_version": "4.2", "nfs_client_options": ["hard", option]}
        for option in ("vers=4.2", "nfsvers=4", "v4.2")
    ]
    + [
        {"nfs_client_version": "", "nfs_client_options": ["vers=4.1"]},
        {"nfs_client_version": "3", "nfs_client_options": ["vers=3"]},
    ]
    + [dict(options_of(["vers=3"])[0], nfs_client_version="4.2")]
    + [
        {"nfs_server_exports": [dict(SHARE, options=options)]}
        for options in (
            ["sec=krb5", "rw", "sec=sys", "ro"],
            ["sec=sys", "ro", "root_squash", "sec=krb5p", "rw", "no_root_squash"],
            ["rw", "nordirplus", "nocrossmnt"],
            ["rw", "refer=/data@nas-1+nas-2:/data@nas-3"],
            ["rw", "xprtsec=none:tls:mtls"],
            ["fsid=0", "crossmnt"],
            ["fsid=6f7d7a4e-0000-0000-0000-000000000001"],
        )
    ]
    + [
        {
            "nfs_server_exports": [
                dict(SHARE, options=["fsid=0"]),
                {"path": "/data2", "options": ["fsid=1"]},
                {"path": "/data3"},
            ]
        }
    ]
    + [{"nfs_server_options": ["rw", "sync", "fsid=0"]}]
    + [
        {
            "nfs_server_exports": [
                dict(
                    SHARE,
                    full_access=False,
                    options=["rw", "all_squash", "anonuid=1000", "anongid=4294967294"],
                )
            ]
        }
    ]
    + at_once(
        "nfs_client_mounts",
        [
            [{"server": server, "path": "/x", "target": "/data1/" + server}]
            for server in "nas 10.0.0.0 240.0.0.1 nas.localhost.example localhosts".split()
        ],
    )
    + [
        {
            "nfs_client_mounts": [
                {
                    "server": "127.0.0.1",
                    "path": "/x",
                    "target": "/data1/share",
                    "options": ["port=20049"],
                }
            ]
        },
        {
            "nfs_client_options": ["hard", "port=20049"],
            "nfs_client_mounts": [{"server": "localhost", "path": "/x", "target": "/data1/share"}],
        },
        {
            "hosts": ("localhost",),
            "nfs_client_mounts": [{"server": "localhost", "path": "/data1/share"}],
        },
    ]
    + [
        {
            "nfs_client_mounts": [
                {"server": "nas", "path": "/a", "target": "/data1/share"},
                {"server": "nas", "path": "/b", "target": "/data1/share2"},
            ]
        },
        {"nfs_client_mounts": [{"server": "nas", "path": "/b", "target": "/data1/share/datasets"}]},
    ]
    + [
        dict(PEOPLE, shared_storage_trees=trees)
        for trees in (
            [{"path": "/home", "of": "users"}, {"path": "/home/project", "of": "groups"}],
            [
                {"path": "/data1/share/user", "of": "users"},
                {"path": "/data1/share/group", "of": "groups"},
            ],
            [
                {"path": "/mnt/a", "of": "users", "only": ["vision"]},
                {"path": "/mnt/a/anna", "of": "groups"},
            ],
            [{"path": "/mnt/a", "of": "groups"}, {"path": "/mnt/a/anna", "of": "users"}],
        )
    ]
    + [
        {"cluster_network": network, "first": {"cluster_address": address}}
        for network, address in (
            ("10.0.0.0/23", "10.0.0.255"),
            ("10.0.0.0/23", "10.0.1.0"),
            ("10.0.0.4/31", "10.0.0.4"),
            ("10.0.0.4/32", "10.0.0.4"),
        )
    ]
    + [
        {"hosts": ("server-a",), "cluster_interface": "lo"},
        {
            "first": {"cluster_address": "10.9.0.1"},
            "cluster_address": "10.9.0.2",
            "cluster_interface": "lo",
        },
    ]
    + [{"train_master_port": port} for port in (0, 29500, "29500", 1023)]
    + [
        {"cluster_slots": slots, "training_container_gpus": gpus}
        for slots, gpus in ((0, [0]), (2, [0, 1]), (1, [0, 1]), (8, "none"), (8, "all"))
    ]
    + [{"nccl_tests_make_variables": {"SHELL": "/bin/bash", "NVCC_APPEND_FLAGS": "-O2"}}]
)


def judged(campaign, case):
    options = {key: case[key] for key in ("hosts", "groups", "first") if key in case}
    return campaign({key: value for key, value in case.items() if key not in options}, **options)


COMMON = {
    "cluster_network": "10.0.0.0/8",
    "nccl_version": "2.21.5-1+cuda12.4",
    "train_environment": {"NCCL_DEBUG": "INFO"},
    "cluster_slots": 8,
    "nfs_client_mounts": [{"server": "nas", "path": "/data1/share"}],
    "nfs_server_clients": ["10.0.0.0/8"],
}


def test_expressions_are_compiled_once_for_all_hosts(campaign):
    few, many = (
        campaign(COMMON, hosts=["node-%d" % number for number in range(count)])
        for count in (2, 100)
    )
    assert "failed" not in many and 0 < many["evaluations"] == few["evaluations"] < 60


def test_an_expression_is_evaluated_once_for_each_value(campaign):
    """What differs in its template on each host, as where it is made of the host's number, and not
    in its value.
    """
    per_host = {
        "cluster_slots": "{{ groups.cluster.index(inventory_hostname) // 1000 }}",
        "cluster_interface": "{{ 'lo' if inventory_hostname == '' else 'eth0' }}",
        "training_container_ulimits": {
            "nofile": "{{ 65536 + groups.cluster.index(inventory_hostname) }}"
        },
    }
    few, many = (
        campaign(per_host, hosts=["node-%d" % number for number in range(count)])
        for count in (2, 42)
    )
    # The three templates themselves, and nothing else.
    assert "failed" not in many and many["evaluations"] - few["evaluations"] == 3 * 40


def test_the_defaults_are_good_on_their_own(campaign, monkeypatch):
    """So that they need not be evaluated if no inventory changes them."""
    monkeypatch.setattr(
        judge_input.Shared,
        "touched",
        lambda shared, host, names: {name for name in names if name in shared.hosts[host]},
    )
    result = campaign()
    assert result["findings"] == [] and result["evaluations"] > 20


def sources(result):
    return {
        entry["source"].partition("[")[0].partition(".")[0]
        for entry in result["findings"]
        if entry["verdict"] == "fail"
    }


def is_refused(campaign, case, name):
    result = judged(campaign, case)
    return bool(result.get("failed")) and name in sources(result) and "hunter2" not in str(result)


def together(cases):
    """Return the cases that set nothing but one variable, packed: each inventory has one value of
    each variable.
    """
    rounds, alone, turn = [], [], {}
    for case, name in cases:
        if list(case) != [name] or name in (
            "ansible_connection",
            "ansible_host",
            "ansible_port",
            "ansible_user",
            "cluster_host",
            "cluster_members",
        ):
            alone.append((case, name))
            continue
        turn[name] = turn.get(name, -1) + 1
        if turn[name] == len(rounds):
            rounds.append({})
        rounds[turn[name]].update(case)
    return rounds, alone


def tell(capsys, missed, refused):
    with capsys.disabled():
        print(
            "\n%d of %d bad inputs refused (%d that harm a host), %d of %d good ones accepted"
            % (len(BAD) - len(missed), len(BAD), len(HARMFUL), len(GOOD) - len(refused), len(GOOD))
        )
    assert missed == [] and refused == [], "\n".join(ascii(case)[:300] for case in missed + refused)


# Issue 50: what the controller could have known.
REFUSED += (
    bad("preflight_image_facts", {"cuda": "12.6abc"}, {"cuda": "12.6-rc"}, {"cuda": "v12"})
    + bad("cluster_share_path", "/data1/" + "a" * 5000, "/data1/" + "a/" * 2500 + "a")
    + bad("nfs_client_mounts", [{"server": "nas", "path": "/data1/" + "a" * 300}])
    + bad(
        "train_launcher",
        "torchrun",
        training_image_base="nvcr.io/nvidia/tensorflow:24.03-tf2-py3",
    )
    + bad("train_launcher", "torchrun", training_image_base="tensorflow/tensorflow:2.15.0-gpu")
    + bad("train_launcher", "torchrun", training_image_base="nvcr.io/nvidia/jax:24.04-py3")
    + bad(
        "nccl_tests_make_variables",
        {"CXXFLAGS": "$(shell touch /tmp/x)"},
        {"CXXFLAGS": "${shell touch /tmp/x}"},
        {"CXXFLAGS": "$( shell id)"},
        {"CXXFLAGS": "$(eval X := 1)"},
        {"CXXFLAGS": "$(file >/etc/x,y)"},
        {"CXXFLAGS": "$(if 1,$(shell id))"},
        {"CXXFLAGS": "`id`"},
        {"CXXFLAGS": "$$(id)"},
        {"CXXFLAGS": "-O2; id"},
        {"CXXFLAGS": "-O2 | id"},
        {"CXXFLAGS": "-O2 > /etc/x"},
        {"CXXFLAGS": "-O2 && id"},
    )
    + bad(
        "nfs_client_mounts",
        [{"server": "nas", "path": "/data1/a", "options": ["hard", "nconnect=8"]}],
        nfs_client_nconnect=4,
    )
    + bad("nfs_client_options", ["hard", "nconnect=8"], nfs_client_nconnect=4)
    + bad("verify_cluster_name", "a/b", "a\\b", "eu/west/1")
    + bad("upgrade_resume_command", "scontrol update state=resume")
    + bad("upgrade_resume_tasks", __file__)
    + bad("monitoring_receivers", [{"name": "nobody"}])
    + bad("monitoring_certificate", "/etc/ssl/host.pem", "host.pem")
    + bad("monitoring_ca", "/nowhere/ca.pem")
    + [({name: "x"}, name) for name in ("docker_engine_mirror", "verify_treshold", "jobs_zzz")]
    + bad("preflight_fail", "warn")
)
GOOD += (
    {"nfs_exports": ["/data *(rw)"], "docker_users": ["me"]},
    {"preflight_image_facts": {"cuda": "12.6.1", "torch": "2.6.0a0+ecf3"}},
    {"nfs_client_mounts": [{"server": "nas", "path": "/data1/a", "options": ["nconnect=8"]}]},
    {"verify_cluster_name": "eu west 1"},
    {
        "train_launcher": "torchrun",
        "training_image_base": "nvcr.io/nvidia/tensorflow:24.03-tf2-py3",
        "training_image_python_packages": ["torch==2.6.0"],
    },
    {"train_launcher": "torchrun", "training_image_base": "nvcr.io/nvidia/pytorch:24.10-py3"},
    {"nccl_tests_make_variables": {"CXXFLAGS": "-I$(CUDA_HOME)/include ${X} $(strip -O2 )"}},
    {"training_image_build_variables": {"CMAKE_ARGS": "-DA=1\n-DB=2"}},
)


def outside(role):
    """Return a case below and one above the bounds of each variable with a rule C(range), so that
    a variable with no other rule needs no case of its own.
    """
    cases = []
    for rule in yaml.safe_load((role / "meta/input_rules.yml").read_text())["input_rules"]:
        names = rule["variable"] if isinstance(rule["variable"], list) else [rule["variable"]]
        low, high = rule.get("range", (None, None))
        values = [bound + step for bound, step in ((low, -1), (high, 1)) if bound is not None]
        cases += [case for name in names if name.isidentifier() for case in bad(name, *values)]
    return cases


for ROLE in sorted((Path(__file__).parents[4] / "roles").glob("*/meta/input_rules.yml")):
    REFUSED += outside(ROLE.parents[1])
BAD = HARMFUL + REFUSED


@pytest.mark.slow
def test_bad_inputs_are_refused_and_good_ones_are_not(campaign, capsys):
    rounds, alone = together(BAD)
    missed = []
    for values in rounds:
        result = judged(campaign, values)
        assert "hunter2" not in str(result)
        # What another variable's fault hides is judged by itself.
        alone += [({name: values[name]}, name) for name in sorted(set(values) - sources(result))]
    missed = [case for case, name in alone if not is_refused(campaign, case, name)]
    tell(capsys, missed, [case for case in GOOD if judged(campaign, case).get("failed")])


@pytest.mark.acceptance
def test_each_bad_input_is_refused_by_itself(campaign, capsys):
    tell(capsys, [case for case, name in BAD if not is_refused(campaign, case, name)], [])
