"""Processes in a training container, from the output of `docker top`."""

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._container_processes import (
    busy_processes,
)

IDLE = """PID                 PPID                COMMAND             COMMAND
100                 90                  docker-init         /sbin/docker-init -- /usr/local/lib/trainyard/entrypoint
101                 100                 entrypoint          /bin/sh /usr/local/lib/trainyard/entrypoint
102                 101                 sshd                sshd: /usr/sbin/sshd -D -e -f /etc/trainyard/ssh/sshd_config [listener] 1 of 10-100 startups
"""
SERVICES = (
    IDLE
    + """110                 101                 entrypoint          /bin/sh /usr/local/lib/trainyard/entrypoint
111                 110                 python3             python3 -B /etc/trainyard/services/supervisor.py /run/trainyard-services
112                 111                 python3             /usr/bin/python3 -m jupyterlab --config=/run/trainyard-services/jupyterlab/config.py
"""
)
SESSION = IDLE + "106                 102                 sshd                sshd: root@notty\n"


@pytest.mark.parametrize(
    "table",
    [
        "",
        "PID PPID COMMAND COMMAND\n",
        IDLE,
        SESSION,
        IDLE + "103 101 sleep sleep 2\n",
        # As the kernel calls it where sh was given the file, and while it forks.
        IDLE.replace("entrypoint          /bin/sh", "sh                  /bin/sh"),
        IDLE.replace("entrypoint          /bin/sh /usr", "entrypoint          /usr"),
        IDLE + "103 101 entrypoint /bin/sh /usr/local/lib/trainyard/entrypoint\n",
        IDLE + "103 101 sh /bin/sh\n",
        # OpenSSH 9.8 and newer; a login that is not through.
        SESSION.replace("sshd                sshd: root", "sshd-session        sshd-session: root"),
        SESSION + "107 106 sshd sshd: root [net]\n",
        IDLE + "103 100 python3 [python3] <defunct>\n",
        IDLE.replace("docker-init ", "tini "),
        SERVICES,
        SERVICES + "113 110 sleep sleep 2\n",
    ],
)
def test_the_containers_own_processes_do_not_count(table):
    assert busy_processes(table) == []


@pytest.mark.parametrize(
    "rows, busy",
    [
        (
            "107 106 bash bash -c python3 train.py\n108 107 python3 python3 train.py\n",
            ["bash", "python3"],
        ),
        # A job that is a script of sh.
        ("107 106 sh sh /data1/share/train.sh\n", ["sh"]),
        ("107 106 sh sh -c while :; do sleep 9; done\n108 107 sleep sleep 9\n", ["sh", "sleep"]),
        ("107 106 train.sh /bin/sh ./train.sh\n", ["train.sh"]),
        ("107 100 sh sh train.sh\n", ["sh"]),
        # A job that sleeps, by ssh and by docker exec.
        ("107 106 sleep sleep 600\n", ["sleep"]),
        ("107 90 sleep sleep 600\n", ["sleep"]),
        # Sessions: by ssh, by docker exec, and one whose shell has become something else's parent.
        ("107 106 sh -sh\n", ["sh"]),
        ("107 90 sh sh\n", ["sh"]),
        ("107 101 sh /bin/sh\n108 107 python3 python3 train.py\n", ["python3", "sh"]),
        # Somebody else's entrypoint.
        ("107 106 entrypoint /bin/sh ./entrypoint\n", ["entrypoint"]),
        ("107 90 tmux: server tmux new -d\n", ["tmux:"]),
    ],
)
def test_other_processes_are_named(rows, busy):
    assert busy_processes(SESSION + rows) == busy


@pytest.mark.parametrize(
    "rows, busy",
    [
        # A kernel, and a supervisor that is not the entrypoint's.
        ("113 112 python3 python3 -m ipykernel_launcher -f kernel.json\n", ["python3"]),
        (
            "113 106 python3 python3 -B /etc/trainyard/services/supervisor.py /tmp\n114 113 train train\n",
            ["python3", "train"],
        ),
    ],
)
def test_what_a_service_starts_is_named(rows, busy):
    assert busy_processes(SERVICES + rows) == busy
