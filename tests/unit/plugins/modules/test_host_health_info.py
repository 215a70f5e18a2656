"""host_health_info, run like in Ansible, with a PATH of scripts."""

from __future__ import annotations

import datetime
import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted_tools import run_module, scripts

from ansible_collections.trainyard.gpu.plugins.module_utils import _host_health
from ansible_collections.trainyard.gpu.plugins.modules import host_health_info

XID = "[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


@pytest.fixture(name="script")
def fixture_script(tmp_path, monkeypatch):
    return scripts(tmp_path, monkeypatch)


def run(**arguments):
    return run_module("host_health_info", arguments, check=True)


def test_a_host_that_can_tell_everything(script, tmp_path):
    script(
        "journalctl", f'case "$*" in *--dmesg*--boot*--output=short-monotonic*) echo "{XID}"; esac'
    )
    script("timedatectl", "echo NTPSynchronized=yes")
    script("stat", 'exec /usr/bin/stat "$@"')
    told = run(paths=[str(tmp_path), f"{tmp_path}/not/there/yet"])
    assert told["changed"] is False and told["kernel_log"] == {"source": "journalctl", "error": ""}
    assert [(error["device"], error["code"]) for error in told["gpu_errors"]] == [
        ("0000:3b:00", 79)
    ]
    assert told["clock"] == {"synchronized": True, "source": "timedatectl", "error": ""}
    there, later = told["file_systems"].values()
    assert (
        there["free_bytes"] > 0
        and there["inodes_free"] <= there["inodes"] == later["inodes"]
        and there["error"] == later["error"] == ""
    )


def test_errors_that_have_ended_and_such_that_count(script):
    reset = "nvidia-nvswitch: Probing device 0000:08:00.0, Vendor Id = 0x10de"
    script("dmesg", f'echo "{XID}"; echo "[1300.0] {reset}"; echo "{XID.replace("3b", "4C")}"')
    told = run(clock=False)["gpu_errors"]
    assert [(error["device"], error["action"], error["ended"]) for error in told] == [
        ("0000:3b:00", "drain", True),
        ("0000:4c:00", "drain", False),
    ]
    assert all(error["cause"] and error["fix"] for error in told)


@pytest.mark.parametrize("boots, said", [(1, False), (2, True), (3, True)])
def test_the_same_error_after_reboots(script, tmp_path, boots, said):
    """Other devices and codes do not count, and neither do lines that people have chosen."""
    now = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    others = [XID[10:].replace("3b", "4c"), XID[10:].replace("79", "48"), "python[1]: " + XID[10:]]
    lines = [(now.replace("-", ""), XID[10:])]
    lines += [("%032x" % number, XID[10:]) for number in range(boots) for _twice in range(2)]
    lines += [("%032x" % number, text) for number, text in enumerate(others, 10)]
    entries = [json.dumps({"_BOOT_ID": boot, "MESSAGE": text}) for boot, text in lines]
    entries += ['{"_BOOT_ID": "%032x", "MESSAGE": [255]}' % 20, "no JSON", "[]"]
    (tmp_path / "lines").write_text("\n".join(entries), encoding="utf-8")
    script(
        "journalctl",
        f'case "$*" in *--boot*) echo "{XID}";; *_TRANSPORT=kernel*--output=json*) cat {tmp_path}/lines; esac',
    )
    (error,) = run(clock=False)["gpu_errors"]
    assert error["earlier_boots"] == boots
    (judged,) = _host_health.judged([error], [], "550.54")
    assert ("do not reboot again" in judged["fix"] and "inspected" in judged["fix"]) is said
    # What does not drain is not looked up.
    assert _host_health.judged([dict(error, action="warn")], [], None)[0]["fix"] == error["fix"]


def test_a_journal_that_cannot_be_searched(script):
    script(
        "journalctl",
        f'case "$*" in *--boot*) echo "{XID}";; *) echo "Compiled without pattern matching support" >&2; exit 1; esac',
    )
    assert [error["earlier_boots"] for error in run(clock=False)["gpu_errors"]] == [0]


def test_errors_that_the_kernel_has_forgotten(monkeypatch, tmp_path):
    """The health program has seen them, in this boot."""
    monkeypatch.setattr(host_health_info, "RECORD", str(tmp_path / "health.json"))
    monkeypatch.setattr(host_health_info, "BOOT", str(tmp_path / "boot"))
    (tmp_path / "boot").write_text("boot-1\n", encoding="utf-8")
    assert host_health_info.remembered("a") == "a"
    record = _host_health.remember({}, "boot-1", XID)[1]
    (tmp_path / "health.json").write_text(json.dumps(record), encoding="utf-8")
    reset = "[1300.0] nvidia-nvswitch: Probing device 0000:08:00.0"
    for text, count, ended in (("", 1, False), (reset, 1, True), (XID, 1, False)):
        (error,) = _host_health.parse_gpu_errors(host_health_info.remembered(text))
        assert (error["code"], error["count"], error["ended"]) == (79, count, ended)
    (tmp_path / "boot").write_text("boot-2\n", encoding="utf-8")
    assert host_health_info.remembered("a") == "a"
    for damaged in ("{", "[]"):
        (tmp_path / "health.json").write_text(damaged, encoding="utf-8")
        assert host_health_info.remembered("a") == "a"


def test_ports_since_the_last_look_of_the_health_program(monkeypatch, tmp_path):
    asked = SimpleNamespace(params={"fabric_ports": True, "timeout": 10})
    monkeypatch.setattr(host_health_info, "PORTS", str(tmp_path / "ports.json"))
    monkeypatch.setattr(host_health_info, "BOOT", str(tmp_path / "boot"))
    (tmp_path / "boot").write_text("boot-1\n", encoding="utf-8")
    nothing = {"looked": False, "problems": []}
    for damaged in ("", "{", "[]", '{"boot": "boot-1", "ports": 3}', '{"boot": "boot-0"}'):
        (tmp_path / "ports.json").write_text(damaged, encoding="utf-8")
        assert host_health_info.fabric_ports(asked) == nothing
    # A card that was there at the last look.
    then = time.time() - 300
    port = {"time": then, "counters": {}, "was_active": True, "down": then, "flaps": [], "bad": {}}
    kept = {"boot": "boot-1", "ports": {"gone/1": port}}
    (tmp_path / "ports.json").write_text(json.dumps(kept), encoding="utf-8")
    found = {"check": "ib-ports", "text": "gone/1 is down", "drains": True}
    assert host_health_info.fabric_ports(asked) == {"looked": True, "problems": [found]}
    assert json.loads((tmp_path / "ports.json").read_text(encoding="utf-8")) == kept
    asked.params["fabric_ports"] = False
    assert host_health_info.fabric_ports(asked) == {}


def test_a_journal_without_the_kernel_s_lines(script):
    """As in a container, or where journald isn't run."""
    script("journalctl", "exit 0")
    script("dmesg", "echo '[    0.000000] Linux version 6.1.0'")
    told = run(clock=False)
    assert (told["kernel_log"], told["gpu_errors"]) == ({"source": "dmesg", "error": ""}, [])


def test_a_log_that_nobody_can_read_is_not_an_empty_one(script):
    script("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    told = run(clock=False)
    assert told["gpu_errors"] is None and told["kernel_log"]["source"] == ""
    assert (
        "journalctl is not on the PATH" in told["kernel_log"]["error"]
        and "Operation not permitted" in told["kernel_log"]["error"]
    )


def test_a_clock_that_chrony_keeps(script):
    script("timedatectl", "echo 'Failed to connect to bus: Host is down' >&2; exit 1")
    script(
        "chronyc",
        '[ "$*" = "-c tracking" ] && echo "7F7F0101,,0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised"',
    )
    told = run(gpu_errors=False)
    assert told["clock"] == {"synchronized": False, "source": "chronyc", "error": ""}
    assert (told["gpu_errors"], told["kernel_log"]) == (None, {"source": "", "error": ""})


def test_a_clock_that_nobody_tells_of(script):
    assert run(gpu_errors=False)["clock"]["synchronized"] is None
    script("timedatectl", "echo 'Failed to connect to bus: Host is down' >&2; exit 1")
    clock = run(gpu_errors=False)["clock"]
    assert (
        clock["synchronized"] is None
        and "Host is down" in clock["error"]
        and "chronyc is not on the PATH" in clock["error"]
    )


def test_a_file_server_that_does_not_answer(script):
    script("stat", "exec sleep 20")
    told = run(gpu_errors=False, clock=False, paths=["/data1/share"], timeout=1)
    assert told["file_systems"]["/data1/share"] == {
        "free_bytes": None,
        "inodes": None,
        "inodes_free": None,
        "error": "it did not end within 1 s",
    }


def test_certificates(script, tmp_path):
    script("openssl", 'exec /usr/bin/openssl "$@"')
    made = tmp_path / "made.pem"
    subprocess.run(
        [
            "/usr/bin/openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "20",
            "-subj",
            "/CN=x",
            "-keyout",
            str(tmp_path / "key"),
            "-out",
            str(made),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    (tmp_path / "other.pem").write_text("no certificate", encoding="utf-8")
    paths = [str(made), str(tmp_path / "other.pem"), str(tmp_path / "none.pem")]
    told = run(gpu_errors=False, clock=False, certificates=paths)["certificates"]
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=20)
    assert (
        list(told) == paths[:2]
        and told[paths[0]]["error"] == ""
        and told[paths[0]]["days"] in (19, 20)
    )
    assert told[paths[0]]["ends"] in (
        end.strftime("%Y-%m-%d"),
        (end - datetime.timedelta(days=1)).strftime("%Y-%m-%d"),
    )
    assert told[paths[1]]["ends"] is None and told[paths[1]]["error"]


@pytest.mark.parametrize(
    "arguments, said",
    [({"paths": ["share"]}, "'share' is not absolute"), ({"timeout": 0}, "'0' is too short")],
)
def test_bad_options(arguments, said, script):
    told = run(**arguments)
    assert told["failed"] and said in told["msg"]


def test_garbage_is_a_failure(script):
    script("timedatectl", "echo perhaps")
    told = run(gpu_errors=False)
    assert told["failed"] and "perhaps" in told["msg"]


@pytest.mark.parametrize(
    "listing, fault",
    [
        (
            "printf 'table inet trainyard_jobs {\\n chain output {\\n }\\n}\\n'",
            "loaded from an unknown file",
        ),
        ("echo 'Error: No such file or directory' >&2; exit 1", "not loaded"),
    ],
)
def test_the_firewall_of_jobs(script, listing, fault):
    script("nft", '[ "$*" = "list table inet trainyard_jobs" ] && ' + listing)
    script(
        "systemctl",
        'case "$*" in *trainyard-jobs*) echo ActiveState=active; echo UnitFileState=enabled; esac',
    )
    told = run(gpu_errors=False, clock=False, firewalls=["trainyard-jobs-firewall.service"])
    assert told["firewalls"] == {
        "trainyard-jobs-firewall.service": {"fault": fault, "active": True, "enabled": True}
    }
    assert run(gpu_errors=False, clock=False)["firewalls"] == {}


def test_the_list_of_slurm(tmp_path, monkeypatch):
    """Numbers of devices in the order of Slurm, as programs of jobs read them, and the devices of
    the host.
    """
    path = tmp_path / "config.json"
    monkeypatch.setattr(host_health_info, "JOB_CONFIG", str(path))
    for number in (0, 2, 3):
        (tmp_path / ("nvidia%d" % number)).touch()
    nodes = str(tmp_path / "nvidia%d")
    for text, listed, words in (
        (json.dumps({"gpus": {"nodes": nodes, "positions": [0, 3, 2]}}), [0, 3, 2], ""),
        (
            json.dumps({"gpus": {"nodes": nodes, "positions": [0, 1]}}),
            [0, 1],
            "the host has 0, 2, 3",
        ),
        (json.dumps({"gpus": {"nodes": nodes}}), [0, 2, 3], "no list of the order"),
        ("{", [], "cannot be read"),
        ("[]", [], "cannot be read"),
    ):
        path.write_text(text, encoding="ascii")
        told = host_health_info.slurm_gpus()
        assert told["listed"] == listed and words in told["fault"]
        assert bool(words) == bool(told["fault"])
    assert run(gpu_errors=False, clock=False, slurm_gpus=True)["slurm_gpus"]["fault"] == ""
    assert run(gpu_errors=False, clock=False)["slurm_gpus"] == {}


PROGRAM = Path(__file__).parents[4] / "roles/verify/files/session.py"
INSPECTED = [
    {
        "HostConfig": {"IpcMode": "private", "ShmSize": 64, "Memory": 300 << 20, "Ulimits": None},
        "Config": {"Env": ["A=1"]},
        "GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": "/nowhere"}},
        "Mounts": [],
    }
]


def docker(session="", inspect=0):
    """A docker whose container is this machine: what ssh is to run there is run here."""
    return (
        f"case $1 in inspect) echo '{json.dumps(INSPECTED)}'; exit {inspect};; "
        f'exec) for last; do :; done; {session} PATH=/usr/bin:/bin exec /bin/sh -c "$last";; esac'
    )


def in_session(share, **changes):
    options = {
        "container": "x",
        "ssh_host": "server-a",
        "ssh_port": 12345,
        "program": PROGRAM.read_text(encoding="utf-8"),
        "share": str(share),
    }
    return run(gpu_errors=False, clock=False, session=dict(options, **changes))


def test_what_a_job_finds_in_its_session(script, tmp_path):
    script("docker", docker())
    script("systemctl", "echo 'trainyard-job-now.service loaded active running A job'")
    told = in_session(tmp_path)["session"]
    status = tmp_path.stat()
    assert (told["cause"], told["jobs"]) == ("", ["now"])
    assert told["share"] == {"device": status.st_dev, "inode": status.st_ino}
    assert told["view"]["share"] == {**told["share"], "error": ""}
    assert told["settings"]["limited"] == ["memory 300 MiB"] and told["settings"]["cpus"] > 0
    assert told["view"]["python"]["version"] and "first_environment" not in told["view"]
    assert run(gpu_errors=False, clock=False)["session"] == {}


@pytest.mark.parametrize(
    "script_of_docker, cause, evidence",
    [
        (docker(inspect=1), "container_not_running", ""),
        (docker("echo 'ssh: refused' >&2; exit 255;"), "ssh_failed", "ssh: refused"),
        (docker("exec sleep 20;"), "timeout", "within 1 s"),
        (docker("echo 'sh: python3: not found' >&2; exit 127;"), "failed", "not found"),
        (docker("echo hello; exit 0;"), "unreadable", "'hello'"),
    ],
)
def test_a_session_that_does_not_come_about(script, tmp_path, script_of_docker, cause, evidence):
    script("docker", script_of_docker)
    told = in_session(tmp_path, timeout=1)["session"]
    assert (told["cause"], told["view"]) == (cause, {}) and evidence in told["evidence"]


def test_options_of_a_session_are_judged(script, tmp_path):
    told = in_session(tmp_path, ssh_port="no")
    assert told["failed"] and told["msg"].startswith("session: ")
