"""The texts that roles place, rendered with values that no judge has seen: each value comes out of
the format's own parser whole, or is refused.
"""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template
from unit_files import read_unit

from ansible_collections.trainyard.gpu.plugins.module_utils._apt_sources import stanzas
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import unit_name
from ansible_collections.trainyard.gpu.plugins.plugin_utils._nfs_client_plan import unit_files
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import QuoteError
from ansible_collections.trainyard.gpu.plugins.plugin_utils._upgrade_plan import HELD_BACK

ROLES = Path(__file__).parents[3] / "roles"
HOSTILE = 'it\'s 50% "off" $HOME `id` \\n\\; #a'
WITHOUT_QUOTES = HOSTILE.replace('"', "").replace(" ", "")
HOST = {
    "name": "server-a",
    "address": "10.0.0.11",
    "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5b1rRzUvSJbOSPsPU4TVCyNm7W6xvEXTlmEKUGyUvI",
    "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5b1rRzUvSJbOSPsPU4TVCyNm7W6xvEXTlmEKUGyUvI",
}
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDMEZ\n-----END PGP PUBLIC KEY BLOCK-----\n"


def texts(role):
    """The texts of files among the variables of a role."""
    variables = yaml.safe_load((ROLES / role / "vars/main.yml").read_text(encoding="utf-8"))
    return {name: text for name, text in variables.items() if name.endswith("_text")}


def render(role, name, **variables):
    """A text of a role's variables, or a template, as text."""
    known = {variable: trust_as_template(text) for variable, text in texts(role).items()}
    templar = Templar(
        DataLoader(), dict(known, **variables, ansible_search_path=[str(ROLES / role)])
    )
    asked = (
        "lookup('ansible.builtin.template', '%s')" % name
        if name.endswith(".j2")
        else "__%s_%s_text" % (role, name)
    )
    return templar.template(trust_as_template("{{ %s }}" % asked))


def refused(role, name, **variables):
    with pytest.raises(AnsibleError) as error:
        render(role, name, **variables)
    return str(error.value)


def shell(text, command, *arguments, **environment):
    """What a command prints after a shell has read the text."""
    return subprocess.run(
        ["sh", "-eu", "-c", text + "\n" + command, "sh", *arguments],
        env=dict({"PATH": "/usr/bin:/bin"}, **environment),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_profile_of_shells(tmp_path):
    home = tmp_path / HOSTILE
    (home / "bin").mkdir(parents=True)
    text = render("cuda_toolkit", "paths_sh", cuda_toolkit_mpi_home=str(home))
    assert "%s/bin" % home in shell(text, 'printf %s "$PATH"').split(":")


@pytest.mark.parametrize("proxy", [HOSTILE, "http://ops:p%40$s;s@proxy.example.org:3128/"])
def test_environment_of_the_docker_engine(proxy):
    text = render(
        "docker_engine",
        "environment",
        __docker_engine_environment={
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": "",
            "NO_PROXY": "*,.example.org",
        },
    )
    assert (
        shell("set -a -f\n" + text, "printenv HTTP_PROXY NO_PROXY") == proxy + "\n*,.example.org\n"
    )
    assert "HTTPS_PROXY" not in text
    refused(
        "docker_engine",
        "environment",
        __docker_engine_environment={"HTTP_PROXY": "http://p\nLD_PRELOAD=/x"},
    )


def test_unit_of_a_mount():
    target = "/data1/" + HOSTILE
    mount = {
        "source": "nas:/export/" + HOSTILE,
        "target": target,
        "options": ["_netdev", "clientaddr=fe80::1%eth0", "x=" + HOSTILE],
        "unit": unit_name(target, "mount"),
        "automount_unit": unit_name(target, "automount"),
    }
    unit = read_unit(mount["unit"], unit_files([mount], "mount")[0]["content"])
    assert (unit["What"], unit["Where"], unit["Options"]) == (
        mount["source"],
        target,
        ",".join(mount["options"]),
    )
    assert unit["Description"] == "Shared folder " + target
    unit = read_unit(mount["automount_unit"], unit_files([mount], "automount")[1]["content"])
    assert unit["Where"] == target
    # systemd takes a backslash at the end of a line for a line that goes on.
    for wrong in ({"source": "nas:/export\\"}, {"options": ["rw\n[Service]"]}):
        with pytest.raises(QuoteError):
            unit_files([dict(mount, **wrong)], "mount")


def test_unit_of_the_training_container():
    text = render(
        "training_container",
        "unit_service",
        training_container_name=HOSTILE,
        cluster_share_path="/data1/" + HOSTILE,
    )
    # The program has to exist.
    unit = read_unit("trainyard-training.service", text.replace("/usr/bin/docker", "/bin/true"))
    assert (
        unit["ExecStart"] == ["/bin/true", "start", "--attach", HOSTILE]
        and unit["RequiresMountsFor"] == "/data1/" + HOSTILE
    )
    assert unit["Description"] == "Training container " + HOSTILE
    plain = render(
        "training_container",
        "unit_service",
        training_container_name="trainyard-training",
        cluster_share_path="/data1/share",
    )
    assert (
        "\nRequiresMountsFor=/data1/share\n" in plain
        and "\nExecStart=/usr/bin/docker start --attach trainyard-training\n" in plain
    )


def exports(text):
    """As nfs-utils reads the file (xgettok): quotes, and three octal digits behind a backslash;
    returns lists of words.
    """
    lines = []
    for line in text.splitlines():
        words, word, inside = [], "", False
        for letter in line if not line.startswith("#") else "":
            if letter == '"':
                inside = not inside
            elif letter == " " and not inside:
                words, word = words + [word], ""
            else:
                word += letter
                octal = re.search(r"\\([0-7]{3})\Z", word)
                word = word[:-4] + chr(int(octal.group(1), 8)) if octal else word
        lines += [words + [word]] if word else []
    return lines


def test_exports():
    served = [
        {
            "path": "/data1/" + HOSTILE,
            "clients": ["10.0.0.12", "2001:db8::/64"],
            "options": ["rw", "sync"],
        }
    ]
    assert exports(render("nfs_server", "exports", __nfs_server_served=served)) == [
        ["/data1/" + HOSTILE, "10.0.0.12(rw,sync)", "2001:db8::/64(rw,sync)"]
    ]
    for wrong in (
        {"clients": ["10.0.0.12 *"]},
        {"clients": ["*(rw)"]},
        {"options": ["rw,no_root_squash"]},
        {"options": ["rw)"]},
        {"path": "/a\n/etc *(rw)"},
    ):
        refused("nfs_server", "exports", __nfs_server_served=[dict(served[0], **wrong)])


def test_settings_of_apt(tmp_path):
    variables = {
        "package_sources_https_proxy": "",
        "package_sources_no_proxy": ["mirror.example.org", "10.0.0.0/8"],
    }
    text = render(
        "package_sources", "apt", package_sources_http_proxy=HOSTILE.replace('"', ""), **variables
    )
    (tmp_path / "apt.conf").write_text(text, encoding="utf-8")
    told = subprocess.run(
        [
            "apt-config",
            "-c",
            str(tmp_path / "apt.conf"),
            "shell",
            "PROXY",
            "Acquire::http::Proxy",
            "OWN",
            "Acquire::http::Proxy::mirror.example.org",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shell(told, 'printf "%s\\n" "$PROXY" "$OWN"') == HOSTILE.replace('"', "") + "\nDIRECT\n"
    assert "no escape" in refused(
        "package_sources",
        "apt",
        package_sources_http_proxy='http://p"; APT::Update::Pre-Invoke {"id";};',
        **variables,
    )


UNITS = (
    "trainyard-training.service trainyard-hub.service docker.service containerd.service nvidia-fabricmanager.service nvidia-persistenced.service "
    "slurmd.service slurmctld.service slurmdbd.service munge.service mariadb.service nfs-server.service nginx.service podman.service"
).split()


def test_needrestart_spares_the_services_of_jobs():
    """The file is Perl.

    On Ubuntu 24.04 needrestart restarts a unit whose first matching rule is not 0.
    """
    program = (
        "my %nrconf; eval do { local $/; <STDIN> }; die $@ if $@; my $rules = $nrconf{override_rc};"
        'for my $unit (@ARGV) { print "$unit\\n" if grep { $unit =~ /$_/ && !$rules->{$_} } keys %$rules }'
    )
    spared = subprocess.run(
        ["perl", "-e", program, *UNITS, "ssh.service", "cron.service", "dockers.service"],
        input=render("package_sources", "needrestart"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert spared == UNITS
    text = render("package_sources", "needrestart", training_container_name="lab.2)} = 1; x(")
    assert "qr(^lab.2.....1..x.[.]service)" in text


UBUNTU = Path(__file__).parents[2] / "fixtures/ubuntu"
ENDS_JOBS = "docker.io docker-ce docker-ce-cli docker-cli containerd containerd.io runc nfs-kernel-server".split()
ENDS_JOBS_OF_SLURM = (
    "podman crun conmon slurmd slurmctld slurmdbd slurm-client slurm-wlm-basic-plugins libslurm37 libslurm40t64 libpam-slurm-adopt munge libmunge2 "
    "mariadb-server mariadb-server-10.6 mariadb-server-core mariadb-common libmariadb3"
).split()
OTHERS = "openssl libc6 runcible dockerfile-lint podman-docs nfs-common linux-firmware".split()


def blacklisted(names, **variables):
    """Names that unattended-upgrades leaves alone: it matches each pattern at the start of the
    name.
    """
    text = render("package_sources", "services", **variables)
    told = subprocess.run(
        ["apt-config", "-c", "/dev/stdin", "dump", "--format", "%f %v%n", "Unattended-Upgrade"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "APT_CONFIG": "/dev/null"},
    ).stdout
    row = "Unattended-Upgrade::Package-Blacklist:: "
    patterns = [line[len(row) :] for line in told.splitlines() if line.startswith(row)]
    return [name for name in names if any(re.match(pattern, name) for pattern in patterns)]


def test_unattended_upgrades_leave_alone_what_would_end_jobs():
    every = ENDS_JOBS + ENDS_JOBS_OF_SLURM + OTHERS
    text = render("package_sources", "services", cluster_scheduler="slurm")
    assert tuple(re.findall(r'"(.+)";', text)) == HELD_BACK
    assert blacklisted(every, cluster_scheduler="slurm") == ENDS_JOBS + ENDS_JOBS_OF_SLURM
    # What Ubuntu has of Slurm, without libraries for other programs, and of podman.
    for file, others in (
        (
            "slurm-packages-jammy.txt",
            ["libpmi0", "libpmi0-dev", "libpmi2-0", "libpmi2-0-dev", "sview"],
        ),
        ("podman-packages-noble.txt", ["catatonit"]),
    ):
        names = [line.split()[0] for line in (UBUNTU / file).read_text().splitlines()]
        left = blacklisted(names, cluster_scheduler="slurm")
        assert [name for name in names if name not in left] == others
    # A database of the site gets its updates where no Slurm needs it.
    assert blacklisted(every, cluster_scheduler="none") == ENDS_JOBS == blacklisted(every)


def test_sources_of_apt():
    repository = {
        "uris": ["https://m.example.org/" + WITHOUT_QUOTES],
        "suites": ["bookworm"],
        "components": ["main"],
        "architectures": ["amd64"],
        "signed_by": KEY,
    }
    (found,) = stanzas(
        "a.sources", render("package_sources", "apt.sources.j2", repositories=[repository])
    )
    assert {name: found[name] for name in ("uris", "suites", "components", "architectures")} == {
        name: repository[name] for name in ("uris", "suites", "components", "architectures")
    }
    for name in ("uris", "suites", "components", "architectures", "types"):
        for wrong in ("a b", "a\nTrusted: yes", "a\tb", ""):
            refused(
                "package_sources",
                "apt.sources.j2",
                repositories=[dict(repository, **{name: [wrong]})],
            )
    for wrong in (HOSTILE, "https://m\nTrusted: yes"):
        refused("package_sources", "vendor.sources.j2", vendor={"uri": wrong, "name": "x"})
        refused(
            "docker_engine",
            "docker_sources",
            docker_engine_repository_url=wrong,
            cluster_host={"os": {"id": "debian", "codename": "bookworm"}},
            __docker_engine_keyring="/x",
        )
        refused("docker_engine", "preferences", docker_engine_version=wrong)


def test_environment_of_containers_and_builds():
    """docker run --env-file takes what stands behind the first = as it is."""
    text = render(
        "package_sources",
        "environment",
        package_sources_http_proxy=HOSTILE,
        package_sources_https_proxy="",
        package_sources_no_proxy=["*"],
        __package_sources_has_proxy=True,
    )
    read = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    assert read == {"http_proxy": HOSTILE, "HTTP_PROXY": HOSTILE, "no_proxy": "*", "NO_PROXY": "*"}
    refused(
        "package_sources",
        "environment",
        package_sources_http_proxy="http://p\nLD_PRELOAD=/x",
        package_sources_https_proxy="",
        package_sources_no_proxy=[],
        __package_sources_has_proxy=True,
    )


def test_settings_of_pip():
    url = "https://ops:" + WITHOUT_QUOTES + "@pypi.example.org/simple"
    given = {
        "package_sources_pip_index_url": url,
        "package_sources_pip_extra_index_urls": [url, url + "2"],
        "package_sources_ca_certificates": [],
    }
    parser = configparser.RawConfigParser()
    parser.read_string(render("package_sources", "pip_conf", **given))
    assert parser["global"]["index-url"] == url and parser["global"]["extra-index-url"].split() == [
        url,
        url + "2",
    ]
    refused(
        "package_sources",
        "pip_conf",
        **dict(given, package_sources_pip_index_url="https://p/\ntrusted-host = *"),
    )


def test_files_of_ssh(tmp_path):
    others = {"cluster_ssh_port": 12345, "__training_sshd_dir": "/etc/trainyard/ssh"}
    for name in ("ssh_config", "known_hosts", "authorized_keys"):
        (tmp_path / name).write_text(
            render("training_sshd", name, __training_sshd_found={"hosts": [HOST]}, **others),
            encoding="utf-8",
        )
    read = subprocess.run(
        ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), "server-a"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert {"hostname 10.0.0.11", "port 12345", "stricthostkeychecking true"} <= set(read)
    for name in ("[server-a]:12345", "[10.0.0.11]:12345"):
        subprocess.run(
            ["ssh-keygen", "-F", name, "-f", str(tmp_path / "known_hosts")],
            capture_output=True,
            check=True,
        )
    subprocess.run(
        ["ssh-keygen", "-l", "-f", str(tmp_path / "authorized_keys")],
        capture_output=True,
        check=True,
    )
    # A host whose address is not known is known by its name.
    assert (
        render(
            "training_sshd",
            "known_hosts",
            __training_sshd_found={"hosts": [dict(HOST, address="")]},
            **others,
        )
        .splitlines()[1]
        .startswith("[server-a]:12345 ")
    )
    for wrong in (
        {"name": "*"},
        {"name": "a b"},
        {"name": "a\nHost *"},
        {"address": "10.0.0.1 *"},
        {"host_key": "a\nb", "public_key": "a\nb"},
    ):
        for name in ("ssh_config", "known_hosts", "authorized_keys"):
            if name != "ssh_config" or "host_key" not in wrong:
                if name != "authorized_keys" or "address" not in wrong:
                    refused(
                        "training_sshd",
                        name,
                        __training_sshd_found={"hosts": [dict(HOST, **wrong)]},
                        **others,
                    )


def test_limits_and_modules():
    for wrong in (HOSTILE, "1\n* - nproc 1"):
        refused("infiniband", "limits_conf", infiniband_memlock=wrong)
        refused("infiniband", "modules_conf", __infiniband_modules=[wrong])
    refused("infiniband", "manager_conf", infiniband_memlock="1\nDefaultEnvironment=A")


# Ours, or numbers and words of our own choice.
_CONSTANT = re.compile(
    r"^__\w+_text$|__(docker_engine_(keyring|environment_file)|package_sources_site|training_sshd_(dir|pid_file))\b|\bvendor\.name\b|^ *version *$"
    r"|^ *(name|name \| upper|scheme|line) *$|'y' if version|\| int *$"
)


def test_every_value_in_a_text_is_quoted_for_its_format():
    found = {path.name: path.read_text(encoding="utf-8") for path in ROLES.glob("*/templates/*.j2")}
    for path in ROLES.glob("*/vars/main.yml"):
        found.update(texts(path.parents[1].name))
    bare = [
        "%s: %s" % (name, value)
        for name, text in found.items()
        for value in re.findall(r"\{\{-?(.*?)-?\}\}", text, re.DOTALL)
        if not re.search(r"trainyard\.gpu\.quoted|\| quote\b", value)
        and not _CONSTANT.search(value.strip())
        and value.strip() != r"'' if loop.first else '\n'"
    ]
    assert len(found) > 20 and bare == []


def tasks(node):
    if isinstance(node, list):
        for inner in node:
            yield from tasks(inner)
    elif isinstance(node, dict):
        yield node
        for key in ("block", "rescue", "always"):
            yield from tasks(node.get(key))


def test_every_value_in_a_shell_task_is_quoted():
    seen, bare = 0, []
    for path in sorted(ROLES.glob("*/tasks/*.yml")):
        for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8"))):
            if "ansible.builtin.shell" in task:
                seen += 1
                # {{ "{{.Tag}}" }} is Docker's.
                bare += [
                    found
                    for found in re.findall(
                        r"\{\{ (.*?) \}\}", task["ansible.builtin.shell"]["cmd"]
                    )
                    if "| quote" not in found and '"{{' not in found
                ]
    assert seen > 3 and bare == []
