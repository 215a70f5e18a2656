"""The finished cluster, checked without Ansible."""

from __future__ import annotations

import json
import re

import pytest


def test_container(cluster, host_name):
    found = cluster.inspect(host_name)
    host = found["HostConfig"]
    assert found["State"]["Running"]
    assert host["NetworkMode"] == "host"
    assert host["RestartPolicy"]["Name"] in ("no", "")
    assert host["Init"] is True
    assert host["Privileged"] is False
    assert host["ShmSize"] == 1 << 30
    assert {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]} == {
        "memlock": (8388608, 8388608),
        "stack": (67108864, 67108864),
    }
    assert found["Config"]["Labels"]["trainyard.managed"] == "true"
    mounts = {mount["Destination"]: mount for mount in found["Mounts"]}
    assert mounts["/etc/trainyard/ssh"]["RW"] is False
    assert mounts["/etc/trainyard/site"]["RW"] is False
    share = [mount for target, mount in mounts.items() if "/data1/share".startswith(target)]
    assert len(share) == 1 and share[0]["RW"] and share[0]["Propagation"] == "rslave"


def test_unit_owns_the_container(cluster, host_name):
    shown = cluster.on(
        host_name,
        "systemctl show -p ActiveState -p UnitFileState -p Restart -p RequiresMountsFor -p After %s.service"
        % cluster.container,
    ).out
    assert (
        "ActiveState=active\n" in shown
        and "UnitFileState=enabled\n" in shown
        and "Restart=always\n" in shown
    )
    assert "/data1" in next(
        line for line in shown.splitlines() if line.startswith("RequiresMountsFor=")
    )
    assert "docker.service" in shown


def test_same_image_everywhere(cluster):
    assert cluster.layers(cluster.head) == cluster.layers(cluster.peer)
    labels = {
        json.dumps(
            cluster.inspect(host, cluster.inspect(host)["Image"])["Config"]["Labels"].get(
                "trainyard.recipe"
            )
        )
        for host in cluster.hosts
    }
    assert len(labels) == 1 and len(json.loads(labels.pop())) >= 12
    assert len({cluster.inspect(host)["Config"]["Image"] for host in cluster.hosts}) == 1


def test_layers_were_copied_while_horovod_compiled(cluster):
    """The push of the finished image found its first layers in the registry, and the other host has
    pulled before it. No host has a second name of these layers.
    """
    log = cluster.on(cluster.head, "cat /var/log/trainyard/training_image.log").out
    assert "Layer already exists" in log.rpartition("The push refers to repository")[2]
    early = cluster.on(cluster.peer, "cat /var/log/trainyard/registry.log").out
    assert re.search(r":5443/trainyard/training:[0-9a-f]{12}-packages\b", early)
    for host in cluster.hosts:
        names = cluster.on(host, "docker images --format '{{.Repository}}:{{.Tag}}'").out
        assert ":5443/" not in names and "-packages" not in names


def test_no_site_secret_or_setting_in_the_image(cluster):
    """The build uses CA, proxies and indexes, but its layers and history do not contain them."""
    image = cluster.inspect(cluster.head)["Config"]["Image"]
    history = cluster.on(cluster.head, "docker history --no-trunc %s" % image).out
    assert "BEGIN CERTIFICATE" not in history
    environment = cluster.inspect(cluster.head, image)["Config"]["Env"]
    assert [
        line
        for line in environment
        if line.lower().startswith(
            (
                "http_proxy",
                "https_proxy",
                "pip_index",
                "pip_extra",
                "pip_cert",
                "pip_config",
                "ssl_cert",
            )
        )
    ] == []
    left = cluster.on(
        cluster.head,
        "docker run --rm --network none --entrypoint sh %s -c "
        "'ls /etc/pip.conf /root/.config/pip /root/.pip /run/secrets/* /etc/apt/apt.conf.d/*trainyard* 2>/dev/null; true'"
        % image,
    ).out
    assert left.strip() == ""


def test_no_registry_is_left_up(cluster):
    listening = cluster.on(cluster.head, "ss -Htln").out
    assert ":5443 " not in listening and ":5000 " not in listening


def test_sshd_settings(cluster, host_name):
    shown = (
        cluster.inside(host_name, "/usr/sbin/sshd -T -f /etc/trainyard/ssh/sshd_config")
        .out.lower()
        .splitlines()
    )
    settings = dict(line.split(" ", 1) for line in shown if " " in line)
    assert settings["port"] == "12345"
    assert settings["passwordauthentication"] == "no"
    assert (
        settings[
            "kbdinteractiveauthentication"
            if "kbdinteractiveauthentication" in settings
            else "challengeresponseauthentication"
        ]
        == "no"
    )
    assert settings["permitrootlogin"] in ("prohibit-password", "without-password")
    assert settings["pubkeyauthentication"] == "yes"
    assert settings["permitemptypasswords"] == "no"
    addresses = [line.split()[1] for line in shown if line.startswith("listenaddress")]
    assert addresses == ["%s:12345" % cluster.address[host_name]]


def test_sshd_listens_on_the_cluster_network_only(cluster, host_name):
    listening = [line.split()[3] for line in cluster.on(host_name, "ss -Htln").out.splitlines()]
    assert [address for address in listening if address.endswith(":12345")] == [
        "%s:12345" % cluster.address[host_name]
    ]


def test_password_login_is_refused(cluster, host_name):
    """From the host itself, which has no key: the methods offered by the server matter."""
    other = cluster.peer if host_name == cluster.head else cluster.head
    refused = cluster.on(
        other,
        "ssh -p 12345 -o StrictHostKeyChecking=yes -o UserKnownHostsFile=/etc/trainyard/ssh/known_hosts "
        "-o PubkeyAuthentication=no -o PreferredAuthentications=password,keyboard-interactive -o NumberOfPasswordPrompts=1 root@%s true"
        % cluster.address[host_name],
        check=False,
    )
    assert refused.code == 255
    assert "Permission denied (publickey)" in refused.text


def test_private_keys(cluster, host_name):
    modes = cluster.on(
        host_name,
        "cd /etc/trainyard/ssh && stat --format '%n %a %U' id_ed25519 ssh_host_ed25519_key",
    ).out.split("\n")
    assert modes[:2] == ["id_ed25519 600 root", "ssh_host_ed25519_key 600 root"]


def test_each_host_has_its_own_keys(cluster):
    for name in ("id_ed25519", "ssh_host_ed25519_key"):
        assert (
            len(
                {
                    cluster.on(host, "sha256sum < /etc/trainyard/ssh/%s" % name).out
                    for host in cluster.hosts
                }
            )
            == 2
        )


def test_no_private_key_on_the_share(cluster):
    assert (
        cluster.on(
            cluster.head, "grep --recursive --files-with-matches 'PRIVATE KEY' /data1/share || true"
        ).out
        == ""
    )


@pytest.mark.parametrize("by", ["name", "address"])
def test_every_container_logs_in_to_every_container(cluster, host_name, by):
    for target in cluster.hosts:
        done = cluster.login(host_name, target if by == "name" else cluster.address[target])
        assert (done.code, done.out.strip()) == (0, target), done.text


def test_a_job_has_the_limits_and_paths_of_the_container(cluster, host_name):
    """Sessions of sshd and of docker exec get their environment in different ways, and both must be
    the container's.
    """
    wanted = {
        line.split("=", 1)[0]: line.split("=", 1)[1]
        for line in cluster.inspect(host_name)["Config"]["Env"]
    }
    source = cluster.head
    got = cluster.inside(
        source,
        "ssh %s -p 12345 'ulimit -l; ulimit -s; echo $PATH; echo ${LD_LIBRARY_PATH-}'" % host_name,
    ).out.splitlines()
    assert got[0] == "8192" and got[1] == "65536"
    assert got[2] == wanted["PATH"]
    assert got[3] == wanted.get("LD_LIBRARY_PATH", "")


def test_a_file_crosses_both_ways(cluster):
    for source, target in ((cluster.head, cluster.peer), (cluster.peer, cluster.head)):
        cluster.inside(source, "echo from %s > /data1/share/crossing" % source)
        assert cluster.inside(target, "cat /data1/share/crossing").out == "from %s\n" % source
        cluster.inside(target, "rm /data1/share/crossing")


def test_a_container_reaches_the_site_s_package_index(cluster, host_name):
    """With the authority, index and proxies from package_sources, in the same kind of session as a
    job.
    """
    got = cluster.inside(
        cluster.head,
        "ssh -p 12345 %s 'cd $(mktemp -d) && python3 -m pip download --quiet --no-deps --no-cache-dir six==1.17.0 && ls'"
        % host_name,
    )
    assert got.out.split() == ["six-1.17.0-py2.py3-none-any.whl"], got.text


def test_the_user_s_own_things_are_as_they_were(cluster):
    settings = json.loads(cluster.on(cluster.peer, "cat /etc/docker/daemon.json").out)
    assert settings == {
        "labels": ["site=molecule"],
        "live-restore": True,
        "log-opts": {"max-size": "11m", "max-file": "3"},
    }
    # The engine was restarted for this, but the user's container was not.
    monitor = cluster.inspect(cluster.peer, "site-monitor")
    assert monitor["State"]["Running"] and monitor["RestartCount"] == 0
    assert (
        monitor["State"]["StartedAt"]
        < cluster.on(
            cluster.peer,
            'date --utc --date "$(systemctl show --property=ActiveEnterTimestamp --value docker)" +%Y-%m-%dT%H:%M:%S',
        ).out
    )
    for host in cluster.hosts:
        assert "admin@site" in cluster.on(host, "cat /root/.ssh/authorized_keys").out
