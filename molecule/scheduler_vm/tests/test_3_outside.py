"""What people get outside of their jobs: no GPU, no process that outlives a job, and no memory that
the services of a login host need.
"""

from __future__ import annotations

import shlex

import pytest
from conftest import OPEN_GPUS

# Reports the errors of all device nodes, and stays.
PLANNED = "python3 /data1/share/open_gpus.py > %s 2>&1; exec sleep 777"


@pytest.fixture(autouse=True)
def _idle(cluster):
    cluster.put("open_gpus.py", OPEN_GPUS)
    cluster.idle()
    yield
    cluster.idle()


def ran(cluster, host, pattern="^sleep 777"):
    return cluster.on(host, "pgrep --full '%s'" % pattern, check=False).out.split()


def test_a_session_without_a_job_opens_no_gpu(cluster):
    look = "python3 /data1/share/open_gpus.py; cat /proc/self/cgroup"
    told = cluster.login("anna", cluster.head, look).out
    assert told.startswith("EPERM EPERM EPERM EPERM ") and "user-2001.slice" in told, told
    # An operator needs them, also after sudo: verify measures them.
    assert cluster.on(cluster.head, "python3 /data1/share/open_gpus.py").out.startswith(
        "ENXIO ENXIO ENXIO ENXIO "
    )
    # A terminal and the devices of rootless podman stay.
    told = cluster.login(
        "anna",
        cluster.head,
        "script --quiet --command 'echo into > /dev/tty' /dev/null; : 0<> /dev/fuse && echo fuse; : 0<> /dev/net/tun && echo tun",
    )
    assert {"into", "fuse"} <= set(told.out.split()), told.text
    number = cluster.submit("anna", "python3 /data1/share/open_gpus.py", gpus=4)
    cluster.reaches(number, "COMPLETED")
    assert cluster.output("anna", number).startswith("ENXIO ENXIO ENXIO ENXIO ")


def test_a_person_does_not_see_the_processes_of_another_one(cluster):
    """Neither in a job nor in a container of a job, which both go on to work."""
    victim = cluster.submit("anna", "exec sleep 777")
    cluster.reaches(victim, "RUNNING")
    assert ran(cluster, cluster.peer)
    owners = "ps --no-headers -eo user | sort -u; pgrep --full '^sleep 777'; true"
    number = cluster.submit("ben", owners)
    cluster.reaches(number, "COMPLETED")
    assert cluster.output("ben", number).split() == ["ben"]
    number = cluster.in_container("ben", "ls -d /proc/[0-9]*")
    cluster.reaches(number, "COMPLETED")
    assert "/proc/1" in cluster.output("ben", number).split()
    # The operator sees all.
    assert "anna" in cluster.on(cluster.peer, "ps --no-headers -eo user").out.split()
    cluster.as_person("anna", "scancel " + victim)


@pytest.mark.parametrize("command", ["echo '* * * * * %s' | crontab -", "echo '%s' | at now"])
def test_cron_and_at_start_nothing_for_people(cluster, command):
    planned = PLANNED % "/data1/share/user/anna/planned"
    number = cluster.submit("anna", (command % planned) + "; crontab -l; atq; true")
    cluster.reaches(number, "COMPLETED")
    assert "not allowed" in cluster.output(
        "anna", number
    ) or "do not have permission" in cluster.output("anna", number)
    spools = "find /var/spool/cron -type f -user anna; pgrep --full '^sleep 777'; true"
    assert cluster.on(cluster.peer, spools).out == ""
    # The operator still has them.
    assert (
        cluster.on(
            cluster.peer,
            "sudo -u ops sh -c 'echo \"# nothing\" | crontab - && crontab -l && crontab -r'",
        ).out
        == "# nothing\n"
    )


def test_nothing_that_was_planned_before_outlives_the_last_job(cluster):
    """A crontab from before the first run is the person's: it stays, the run warns, and its
    processes end with the next job.
    """
    tab = "/var/spool/cron/crontabs/anna"
    cluster.on(
        cluster.peer,
        "echo '* * * * * exec sleep 777' > {0}; chown anna:crontab {0}; chmod 600 {0}; touch /var/spool/cron/crontabs".format(
            tab
        ),
    )
    try:
        cluster.wait("cron has started it", 150, lambda: ran(cluster, cluster.peer))
        run = cluster.play("scheduler.yml")
        assert (
            run.code == 0
            and "%s: cron still runs what anna had planned before" % cluster.peer in run.text
        )
        number = cluster.submit("anna", "true")
        cluster.on(cluster.peer, "mv %s /root/tab; touch /var/spool/cron/crontabs" % tab)
        cluster.reaches(number, "COMPLETED")
        cluster.wait(
            "nothing is left",
            60,
            lambda: cluster.left("anna") == "" and not ran(cluster, cluster.peer),
        )
    finally:
        cluster.on(cluster.peer, "rm -f %s /root/tab" % tab)


def test_lingering_gives_nobody_a_process(cluster):
    planned = PLANNED % "/data1/share/user/anna/lingers"
    command = (
        "export XDG_RUNTIME_DIR=/run/user/2001; loginctl enable-linger anna; sleep 5; systemd-run --user sh -c %s; sleep 3"
        % shlex.quote(planned)
    )
    number = cluster.submit("anna", command)
    cluster.reaches(number, "COMPLETED", "FAILED")
    assert (
        not ran(cluster, cluster.peer)
        and cluster.on(cluster.peer, "systemctl is-active user@2001", check=False).out.strip()
        != "active"
    )
    cluster.wait("nothing is left", 60, lambda: cluster.left("anna") == "")
    assert cluster.on(cluster.peer, "ls /var/lib/systemd/linger").out == ""
    # An operator has a manager.
    cluster.on(
        cluster.peer, "systemctl start user@$(id -u ops) && systemctl is-active user@$(id -u ops)"
    )


# More memory than the host has, in processes of which each has less than the database: the kernel
# ends the largest process first.
GREEDY = """
import os, time
for _ in range(30):
    if not os.fork():
        kept = bytearray(110 << 20)
        time.sleep(20)
        os._exit(0)
time.sleep(20)
"""


def test_sessions_cannot_take_the_memory_of_services(cluster):
    services = ("slurmctld", "slurmdbd", "mariadb", "slurmd")

    def runs():
        command = "systemctl show --property=Id,ActiveState,InvocationID " + " ".join(services)
        return cluster.on(cluster.head, command).out

    former = runs(), cluster.boot_id(cluster.head)
    script = cluster.put("greedy.py", GREEDY)
    cluster.login("anna", cluster.head, "python3 " + script)
    assert (runs(), cluster.boot_id(cluster.head)) == former
    assert cluster.on(cluster.head, "scontrol ping").out.strip().endswith("is UP")


def test_a_deep_folder_and_a_file_system_of_a_job_keep_no_node(cluster):
    deep = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    script = cluster.put("deep.py", deep)
    leave = (
        'for top in /tmp /dev/shm /var/tmp; do mkdir $top/deep; (cd $top/deep && python3 %s); done; mkdir "/tmp/a\nb" /tmp/closed; chmod 0 /tmp/closed'
        % script
    )
    number = cluster.submit("anna", leave)
    cluster.reaches(number, "COMPLETED")
    cluster.wait("nothing is left", 120, lambda: cluster.left("anna") == "")
    assert (
        cluster.node(cluster.peer) == "idle"
        and cluster.on(
            cluster.peer, "ls -A /tmp /dev/shm /var/tmp | grep trainyard-removed", check=False
        ).out
        == ""
    )
