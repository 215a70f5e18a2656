"""slurm_info, run like in Ansible.

Slurm's commands are scripts that print what the real ones printed.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from scripted_tools import run_module, scripts

FIXTURES = Path(__file__).parents[3] / "fixtures/slurm"
MARK = "|7b1f9c42e0d85a36|"
ALL = ["nodes", "partitions", "jobs", "reservations", "associations", "qos"]


class Cluster:
    """Commands of one version on the PATH.

    Each run is logged, with the environment that changes its output.
    """

    def __init__(self, folder, script, version):
        self.folder, self.script, self.fixtures = folder, script, FIXTURES / version
        log = (
            "echo \"$(basename $0) $*\" | cut -c1-90 >> %s/log; env | grep -E '^(LC_ALL|TZ|S[A-Z]+_FORMAT|SLURM_TIME_FORMAT)=' | sort > %s/environment"
            % (folder, folder)
        )
        self.log = log
        script(
            "scontrol",
            log
            + "\ncase \"$*\" in *'show config') cat %(at)s/config.txt;; *nodes) cat %(at)s/nodes-drained.txt;; *partitions) cat %(at)s/partitions.txt;; "
            "*reservations) cat %(at)s/reservations.txt;; esac" % {"at": self.fixtures},
        )
        script(
            "squeue",
            log
            + '\nmark=$(echo "$*" | sed \'s/.*--Format=JobID:\\([^,]*\\),.*/\\1/\')\nsed "s/%s/$mark/g" %s/jobs.txt'
            % (MARK, self.fixtures),
        )

        script(
            "sacctmgr",
            log
            + "\ncase \"$*\" in *'show associations '*) cat %(at)s/associations.txt;; *'show qos '*) cat %(at)s/qos.txt;; esac"
            % {"at": self.fixtures},
        )

    def failing(self, command, name, rc=1):
        self.script(
            command, self.log + "\ncat %s/error-%s.txt >&2\nexit %d" % (self.fixtures, name, rc)
        )

    def runs(self):
        return (self.folder / "log").read_text(encoding="utf-8").splitlines()


@pytest.fixture(name="script")
def fixture_script(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return scripts(tmp_path, monkeypatch)


@pytest.fixture(name="cluster", params=["22.05", "24.11"])
def fixture_cluster(request, tmp_path, script):
    return Cluster(tmp_path, script, request.param)


def ask(*gather, **arguments):
    environment = arguments.pop("environment", {})
    return run_module("slurm_info", dict(arguments, gather=list(gather)), check=True, **environment)


def test_all_of_it(cluster):
    told = ask(
        *ALL,
        environment={
            "SQUEUE_FORMAT": "%i",
            "SLURM_TIME_FORMAT": "relative",
            "LC_ALL": "de_DE.UTF-8",
            "TZ": "Asia/Tokyo",
        },
    )
    assert (told["available"], told["cause"], told["fix"], told["changed"], told["cluster"]) == (
        True,
        None,
        None,
        False,
        "trial",
    )
    assert told["version"].startswith(cluster.fixtures.name) and [
        controller["up"] for controller in told["controllers"]
    ] == [True]
    assert [
        len(told[name]) for name in ("nodes", "partitions", "reservations", "associations", "qos")
    ] == [3, 3, 3, 8, 4]
    assert "two words\nsecond line" in [job["name"] for job in told["jobs"]]
    assert told["nodes"][0]["reason"] == "fan is broken"
    assert (cluster.folder / "environment").read_text(encoding="utf-8") == "LC_ALL=C\nTZ=UTC0\n"


def test_only_what_is_gathered_is_read(cluster):
    told = ask("partitions")
    assert "nodes" not in told and len(told["partitions"]) == 3
    assert cluster.runs() == ["scontrol show config", "scontrol --oneliner --all show partitions"]
    (cluster.folder / "log").unlink()
    assert ask()["cluster"] == "trial" and cluster.runs() == ["scontrol show config"]
    (cluster.folder / "log").unlink()
    ask("jobs", "jobs")
    assert [run.split()[0] for run in cluster.runs()] == ["scontrol", "squeue"]


def test_not_installed(script):
    assert script
    told = ask("nodes")
    assert (told["available"], told["cause"], told["nodes"], told["cluster"]) == (
        False,
        "not_installed",
        [],
        "",
    )
    assert told["fix"] == (
        "'scontrol show config' gave no answer: 'scontrol is not on the PATH'. Install Slurm's commands on this host (package slurm-client), "
        "or run the task on a host that has them"
    )


@pytest.mark.parametrize(
    "name, cause",
    [
        ("down-config", "controller_down"),
        ("nomunge-config", "auth_munge_down"),
        ("key-config", "auth"),
        ("notconfigured-config", "not_configured"),
        ("badconfig-config", "invalid_configuration"),
    ],
)
def test_why_there_is_no_answer(cluster, name, cause):
    cluster.failing("scontrol", name)
    told = ask("nodes", environment={"SLURM_CONF": "/nowhere/slurm.conf"})
    assert (told["available"], told["cause"]) == (False, cause)
    assert told["fix"].startswith(
        "'scontrol show config' gave no answer: '"
    ) and cluster.runs() == ["scontrol show config"]


def configuration(cluster, host, port):
    path = cluster.folder / "slurm.conf"
    path.write_text(
        "ClusterName=trial\nSlurmctldHost=head(%s)\nSlurmctldPort=%d\n" % (host, port),
        encoding="utf-8",
    )
    return {"SLURM_CONF": str(path)}


def test_a_host_that_is_up_without_a_controller(cluster):
    cluster.failing("scontrol", "unreachable-config")
    with socket.socket() as taken:
        # Bound, but nothing listens: a connection is refused.
        taken.bind(("127.0.0.1", 0))
        environment = configuration(cluster, "127.0.0.1", taken.getsockname()[1])
        assert ask(environment=environment)["cause"] == "controller_down"


def test_a_host_that_is_not_there(cluster):
    """squeue and scontrol print the same as for a controller that is down."""
    cluster.failing("scontrol", "unreachable-config")
    assert (
        ask(environment=configuration(cluster, "name.invalid", 6817))["cause"]
        == "controller_unreachable"
    )


@pytest.mark.parametrize(
    "name, cause", [("key", "auth_key"), ("expired", "auth_clock"), ("good", "auth")]
)
def test_a_credential_tells_the_key_from_the_clock(cluster, name, cause):
    cluster.failing("scontrol", "key-config")
    cluster.script(
        "unmunge",
        "cat > %s/credential\ncat %s/unmunge-%s.txt" % (cluster.folder, cluster.fixtures, name),
    )
    told = ask("nodes", credential="MUNGE:secret:")
    assert told["cause"] == cause and "MUNGE:secret" not in str(told)
    assert (cluster.folder / "credential").read_text(encoding="utf-8") == "MUNGE:secret:\n"


def test_what_was_read_before_the_failure_is_returned(cluster):
    cluster.failing("squeue", "down-jobs")
    told = ask("nodes", "jobs", environment={"SLURM_CONF": "/nowhere/slurm.conf"})
    assert (told["available"], told["cause"], len(told["nodes"]), told["jobs"]) == (
        False,
        "controller_down",
        3,
        [],
    )
    assert told["fix"].startswith(
        "'squeue' gave no answer: 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)'."
    )


def test_a_command_that_does_not_end(cluster):
    cluster.script("scontrol", "exec sleep 60")
    told = ask("nodes", timeout=1, environment={"SLURM_CONF": "/nowhere/slurm.conf"})
    assert (told["cause"], told["available"]) == (
        "timeout",
        False,
    ) and "no answer within 1 seconds" in told["fix"]


@pytest.mark.parametrize(
    "printed, message",
    [
        (
            "slurm says hello",
            "the output has an unexpected format: expected a line that begins with NodeName=: 'slurm says hello'",
        ),
        ("NodeName=n1 CPUTot=8", "CPUAlloc is missing"),
        ("", "scontrol printed nothing"),
    ],
)
def test_an_unexpected_output_fails(cluster, printed, message):
    cluster.script(
        "scontrol",
        "case \"$*\" in *nodes) echo '%s';; *) cat %s/config.txt;; esac"
        % (printed.replace("CPUTot", "State=IDLE CPUTot"), cluster.fixtures),
    )
    told = ask("nodes")
    assert (
        told["failed"]
        and message in told["msg"]
        and told["msg"].startswith("scontrol --oneliner --details show nodes: ")
    )


def test_jobs_that_are_incomplete_fail(cluster):
    cluster.script("squeue", "echo 17")
    told = ask("jobs")
    assert told["failed"] and told["msg"].startswith(
        "squeue: the output has an unexpected format: the output of squeue is incomplete"
    )


def test_a_timeout_of_nothing(script):
    assert script
    assert ask(timeout=0)["msg"] == "timeout: '0' is too short; set 1 second or more"
