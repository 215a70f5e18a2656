"""The state of the container in Docker and systemd, and its recovery after faults."""

import json
import re
import time

testinfra_hosts = ["ansible://training-container-a"]
NAME = "trainyard-training"


def inspect(host):
    return json.loads(host.check_output("docker inspect %s", NAME))[0]


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within %d s" % seconds
        time.sleep(0.5)


def test_is_what_was_asked(host):
    found = inspect(host)
    config, limits = (
        found["HostConfig"],
        {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in found["HostConfig"]["Ulimits"]},
    )
    assert found["State"]["Running"] and found["Config"]["Labels"]["trainyard.managed"] == "true"
    assert (
        config["NetworkMode"],
        config["RestartPolicy"]["Name"],
        config["Init"],
        config["Privileged"],
    ) == ("host", "no", True, False)
    assert (
        config["ShmSize"],
        config["IpcMode"],
        found["Config"]["Tty"],
        found["Config"]["User"],
    ) == (128 * 1024 * 1024, "private", False, "")
    assert limits == {"memlock": (8388608, 8388608), "stack": (67108864, 67108864)}
    assert [name.replace("CAP_", "") for name in config["CapAdd"]] == ["IPC_LOCK"]
    assert found["Config"]["WorkingDir"] == "/data1/share"
    assert {
        "OMP_NUM_THREADS=1",
        'GREETING=two words and "quotes"',
        "LD_LIBRARY_PATH=/usr/local/lib/molecule",
    } <= set(found["Config"]["Env"])


def test_mounts(host):
    mounts = {
        mount["Destination"]: (mount["Source"], mount["RW"], mount["Propagation"])
        for mount in inspect(host)["Mounts"]
    }
    assert mounts["/data1"] == ("/data1", True, "rslave")
    assert mounts["/etc/trainyard/ssh"][:2] == ("/etc/trainyard/ssh", False)
    assert mounts["/opt/of_the_host"][:2] == ("/opt", False)
    assert mounts["/mnt/srv"][:2] == ("/srv", True)
    assert mounts["/claraDevDay"][:2] == ("/var/lib/trainyard/notebooks/tree", True)
    assert mounts["/etc/trainyard/services"][:2] == ("/etc/trainyard/services/inside", False)
    host.check_output("docker exec %s sh -c 'echo notebook > /claraDevDay/mine.ipynb'", NAME)
    assert host.file("/var/lib/trainyard/notebooks/tree/mine.ipynb").content_string == "notebook\n"
    host.check_output("rm /var/lib/trainyard/notebooks/tree/mine.ipynb")
    assert oct(host.file("/etc/trainyard/ssh").mode) == "0o700"


def test_limits_and_shm_inside(host):
    assert host.check_output("docker exec %s sh -c 'ulimit -l; ulimit -s'", NAME).split() == [
        "8192",
        "65536",
    ]
    assert (
        host.check_output("docker exec %s df --output=size -BM /dev/shm", NAME).split()[-1]
        == "128M"
    )


def test_it_is_entered_with_a_terminal(host):
    told = host.check_output(
        "script --quiet --return --command 'docker exec -it %s bash -c \"tty && test -t 0\"' /dev/null",
        NAME,
    )
    # Without a terminal of its own, script prints control characters, too.
    assert re.search(r"/dev/pts/\d", told), told


def test_share_is_the_host_s(host):
    host.check_output("docker exec %s sh -c 'echo from the container > /data1/share/file'", NAME)
    assert host.file("/data1/share/file").content_string == "from the container\n"
    host.check_output("rm /data1/share/file")


def test_unit_waits_for_docker_and_the_share(host):
    shown = dict(
        line.split("=", 1)
        for line in host.check_output(
            "systemctl show --property=Requires,After,RequiresMountsFor,Restart,UnitFileState,ActiveState %s.service",
            NAME,
        ).splitlines()
    )
    assert "docker.service" in shown["Requires"] and "docker.service" in shown["After"]
    assert shown["RequiresMountsFor"] == "/data1/share"
    assert (shown["Restart"], shown["UnitFileState"], shown["ActiveState"]) == (
        "always",
        "enabled",
        "active",
    )


def test_comes_back_after_it_was_killed(host):
    before = inspect(host)["State"]["StartedAt"]
    host.check_output("docker kill %s", NAME)
    until(
        lambda: inspect(host)["State"]["Running"] and inspect(host)["State"]["StartedAt"] != before
    )


def test_comes_back_after_docker_was_restarted(host):
    before = inspect(host)["State"]["StartedAt"]
    host.check_output("systemctl restart docker")
    until(
        lambda: inspect(host)["State"]["Running"] and inspect(host)["State"]["StartedAt"] != before,
        40,
    )


def test_stops_and_starts_with_its_unit(host):
    host.check_output("systemctl stop %s", NAME)
    assert (
        not inspect(host)["State"]["Running"]
        and host.check_output("systemctl is-failed %s || true", NAME) == "inactive"
    )
    host.check_output("systemctl start %s", NAME)
    until(lambda: inspect(host)["State"]["Running"])
