"""horovod_build_info, run like in Ansible; horovodrun is a script that prints a fixture, docker one
that records its arguments.
"""

import re
import sys
import time
from pathlib import Path

import pytest
import yaml
from scripted_tools import run_module, scripts

from ansible_collections.trainyard.gpu.plugins.module_utils._horovod_check import FIXES

ROOT = Path(__file__).parents[4]
FIXTURES = ROOT / "tests/fixtures/horovod"
TABLE = FIXTURES / "cb-0.28.1-pytorch-mpi-gloo-nccl.txt"
NOTHING = {
    "frameworks": {"tensorflow": False, "pytorch": False, "mxnet": False},
    "controllers": {"mpi": False, "gloo": False},
    "tensor_operations": {"nccl": False, "ddl": False, "ccl": False, "mpi": False, "gloo": False},
}


@pytest.fixture(name="script")
def fixture_script(tmp_path, monkeypatch):
    """Puts a shell script on the PATH; without docker there, unless a test puts it."""
    monkeypatch.setenv("TRAINYARD_TEST_LOG", f"{tmp_path}/docker.log")
    return scripts(tmp_path, monkeypatch)


def run(check=False, **arguments):
    return run_module("horovod_build_info", arguments, check)


def assert_cause(result, cause, *words):
    assert (
        result.get("failed", False),
        result["changed"],
        result["available"],
        result["cause"],
        result["version"],
    ) == (False, False, False, cause, None)
    assert {section: result[section] for section in NOTHING} == NOTHING
    assert all(word in result["fix"] for word in words), result["fix"]


@pytest.mark.parametrize("check", [False, True])
def test_table(script, check):
    script(
        "horovodrun", f'test "$*" = --check-build && cat {TABLE} && echo "I tensorflow/noise" >&2'
    )
    result = run(
        check, requires={"frameworks": ["pytorch", "mxnet"], "tensor_operations": ["nccl"]}
    )
    assert (
        result["available"],
        result["cause"],
        result["fix"],
        result["version"],
        result["changed"],
    ) == (True, None, None, "0.28.1", False)
    assert result["frameworks"] == {"tensorflow": False, "pytorch": True, "mxnet": False}
    assert result["controllers"] == {"mpi": True, "gloo": True}
    assert result["tensor_operations"] == {
        "nccl": True,
        "ddl": False,
        "ccl": False,
        "mpi": True,
        "gloo": True,
    }
    assert result["missing"] == ["frameworks.mxnet"]


def test_return_is_what_is_documented(script):
    script("horovodrun", f"cat {TABLE}")
    text = (ROOT / "plugins/modules/horovod_build_info.py").read_text(encoding="utf-8")
    documented = yaml.safe_load(re.search(r'RETURN = r"""(.*?)"""', text, re.DOTALL).group(1))
    result = run()
    assert set(result) - {"changed", "invocation"} == set(documented)
    for section in NOTHING:
        assert (
            list(result[section])
            == list(documented[section]["contains"])
            == list(documented[section]["sample"])
        )
    causes = re.findall(r"V\((\w+)\) - ", text)
    code = {
        path: (ROOT / "plugins" / path).read_text(encoding="utf-8")
        for path in ("module_utils/_horovod.py", "module_utils/_tool.py")
    }
    assert all(any(f'"{cause}"' in source for source in code.values()) for cause in causes)
    assert causes == list(FIXES)


def test_exit_code_zero_with_nothing_ticked(script):
    script("horovodrun", f"cat {FIXTURES}/cb-0.18.1-nothing-ticked-mlsl.txt")
    result = run(requires={"controllers": ["gloo"]})
    assert (result["available"], result["version"], result["missing"]) == (
        True,
        "0.18.1",
        ["controllers.gloo"],
    )
    assert {section: result[section] for section in NOTHING} == NOTHING


def test_table_counts_whatever_the_exit_code(script):
    script("horovodrun", f"cat {TABLE}; echo 'Segmentation fault' >&2; exit 139")
    assert run()["available"]


def test_table_on_stderr(script):
    script("horovodrun", f"cat {TABLE} >&2")
    assert run()["available"]


def test_output_is_unbuffered_and_the_directory_exists(script):
    script("horovodrun", f'test "$PYTHONUNBUFFERED" = 1 && test "$(pwd)" = / && cat {TABLE}')
    assert run()["available"]


@pytest.fixture(name="python_script")
def fixture_python_script(tmp_path, monkeypatch):
    """Puts a horovodrun as pip installs it, and beside it the packages of a Horovod."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def script(table, interpreter=sys.executable, **packages):
        (tmp_path / "bin/horovod").mkdir(parents=True)
        (tmp_path / "bin/horovod/__init__.py").touch()
        for name, body in packages.items():
            (tmp_path / f"bin/horovod/{name}.py").write_text(body, encoding="utf-8")
        path = tmp_path / "bin/horovodrun"
        # The table shows that it runs in the process that has imported the packages.
        path.write_text(
            f"#!{interpreter}\nimport sys\nif __name__ == '__main__' and sys.argv[1:] == ['--check-build']:\n"
            f"    print(open('{table}').read())\n    sys.exit('horovod.torch' not in sys.modules)\n",
            encoding="utf-8",
        )
        path.chmod(0o755)

    return script


@pytest.mark.parametrize("interpreter", [sys.executable, "/usr/bin/env python3"])
def test_required_framework_is_imported(python_script, interpreter):
    python_script(
        TABLE, interpreter, torch="import sys; sys.stderr.write('noise')\ndef init(): pass\n"
    )
    result = run(
        requires={"frameworks": ["pytorch"], "controllers": ["gloo"]}, import_required=True
    )
    assert (result["available"], result["missing"], result["import_errors"]) == (True, [], {})


def test_framework_that_is_ticked_but_not_importable_is_missing(python_script):
    python_script(TABLE, torch="raise ModuleNotFoundError('No module\\nnamed packaging')")
    wanted = {"frameworks": ["pytorch"], "controllers": ["gloo"]}
    result = run(requires=wanted, import_required=True)
    assert (result["available"], result["frameworks"]["pytorch"], result["missing"]) == (
        True,
        True,
        ["frameworks.pytorch"],
    )
    assert result["import_errors"] == {"pytorch": "ModuleNotFoundError: No module named packaging"}
    assert run(requires=wanted)["missing"] == []


def test_framework_that_is_ticked_and_importable_without_its_extension_is_missing(python_script):
    """Horovod 0.28.1 built with HOROVOD_WITHOUT_PYTORCH=1 where torch is installed: it ticks
    PyTorch, and horovod.torch says this and goes on.
    """
    python_script(
        TABLE,
        torch="print('Extension horovod.torch has not been built: mpi_lib_v2.so not found')\n"
        "print('Warning! MPI libs are missing, but python applications are still available.')\n",
    )
    result = run(requires={"frameworks": ["pytorch"]}, import_required=True)
    assert (result["available"], result["frameworks"]["pytorch"], result["missing"]) == (
        True,
        True,
        ["frameworks.pytorch"],
    )
    assert "compiled extension is missing" in result["import_errors"]["pytorch"]


def test_import_that_kills_the_process(python_script):
    python_script(TABLE, torch="import os; os.abort()")
    result = run(requires={"frameworks": ["pytorch"]}, import_required=True)
    assert_cause(result, "no_output")
    assert result["missing"] == ["frameworks.pytorch"]


def test_nothing_is_imported_by_another_programs_horovodrun(script):
    script("horovodrun", f"cat {TABLE}")
    result = run(requires={"frameworks": ["pytorch"]}, import_required=True)
    assert result["available"] and result["missing"] == ["frameworks.pytorch"]
    assert "not a Python script" in result["import_errors"]["pytorch"]


def test_not_installed_where_something_is_to_be_imported(script):
    script("unrelated", "true")
    assert_cause(
        run(executable="no-horovodrun", requires={"frameworks": ["pytorch"]}, import_required=True),
        "not_installed",
        "no-horovodrun",
    )


def test_not_installed(script):
    script("unrelated", "true")
    result = run(executable="no-horovodrun", requires={"tensor_operations": ["nccl"]})
    assert_cause(result, "not_installed", "no-horovodrun")
    assert result["missing"] == ["tensor_operations.nccl"]
    assert_cause(run(executable="/nowhere/horovodrun"), "not_installed", "/nowhere/horovodrun")


@pytest.mark.parametrize(
    ("body", "cause", "word"),
    [
        (
            f"cat {FIXTURES}/err-unrecognized-arguments-0.16.1.txt >&2; exit 2",
            "option_unsupported",
            "0.18",
        ),
        (
            f"cat {FIXTURES}/err-extension-not-built-0.16.txt >&2; exit 1",
            "import_error",
            "has not been built",
        ),
        (
            f"cat {FIXTURES}/err-check-build-verbose-mpi-lib-TRUNCATED.txt; exit 0",
            "truncated",
            "by hand",
        ),
        ("kill -SEGV $$", "no_output", "-11"),
        ("true", "no_output", "exit code 0"),
    ],
)
def test_causes_of_a_missing_table(script, body, cause, word):
    script("horovodrun", body)
    assert_cause(run(), cause, word)


def test_timeout_leaves_nothing(script, tmp_path):
    script("horovodrun", f"sleep 300 & echo $! > {tmp_path}/pid; wait")
    began = time.monotonic()
    assert_cause(run(timeout=1), "timeout", "1 s")
    assert time.monotonic() - began < 10
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text(encoding='utf-8').strip()}/exe").exists()


def test_a_quick_exit_124_is_no_timeout(script):
    script("horovodrun", "exit 124")
    assert_cause(run(), "no_output", "124")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"head -n 9 {TABLE}", "controllers has no entry for gloo"),
        (f"sed 's/.X. NCCL/[?] NCCL/' {TABLE}", "line 13: '[?] NCCL'"),
        (f"tail -n 14 {TABLE}", "the head of the table is missing"),
        ("echo 'pip 24.0'", "'pip 24.0' is not the output of horovodrun"),
        (f"cat {FIXTURES}/err-ssh-permission-denied-0.19.txt", "Filtering local host names"),
    ],
)
def test_garbage_fails(script, body, message):
    script("horovodrun", body)
    result = run()
    assert result["failed"] and message in result["msg"], result["msg"]
    assert result["stdout"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"container": "a", "image": "b"}, "mutually exclusive: container|image"),
        ({"ssh_host": "a"}, "required by 'ssh_host': container"),
        (
            {"container": "a", "ssh_host": "b", "ssh_port": 70000},
            "ssh_port: 70000 is not a port; use 1 to 65535",
        ),
        (
            {"container": "a", "ssh_host": "b", "ssh_port": 0},
            "ssh_port: 0 is not a port; use 1 to 65535",
        ),
        (
            {"container": "a", "ssh_host": "-oProxyCommand=reboot"},
            "ssh_host: '-oProxyCommand=reboot' is not a valid name",
        ),
        ({"container": "--privileged"}, "container: '--privileged' is not a valid name"),
        ({"image": ""}, "image: '' is not a valid name"),
        ({"timeout": 0}, "timeout: '0' is too short; set 1 second or more"),
        ({"timeout": "soon"}, "'timeout'"),
        (
            {"requires": {"tensor_operations": ["NCCL"]}},
            "must be one or more of: nccl, ddl, ccl, mpi, gloo",
        ),
        ({"requires": {"gpus": []}}, "gpus"),
    ],
)
def test_bad_option_is_named(script, arguments, message):
    script("horovodrun", f"cat {TABLE}")
    result = run(**arguments)
    assert result["failed"] and message in result["msg"], result["msg"]


DOCKER = r"""
for word in "$@"; do printf '%s\n' "$word"; done >> "$TRAINYARD_TEST_LOG"
echo == >> "$TRAINYARD_TEST_LOG"
"""


def calls(tmp_path):
    return [
        call.splitlines()
        for call in (tmp_path / "docker.log").read_text(encoding="utf-8").split("==\n")
        if call
    ]


def test_container(script, tmp_path):
    script("docker", f"{DOCKER} cat {TABLE}")
    assert run(container="training")["available"]
    [call] = calls(tmp_path)
    assert call[0] == "exec" and "--workdir=/" in call and "--env=PYTHONUNBUFFERED=1" in call
    assert call[-3:] == ["training", "horovodrun", "--check-build"]


def test_behind_ssh(script, tmp_path):
    script("docker", f"{DOCKER} cat {TABLE}")
    assert run(
        container="training",
        ssh_host="lab-a",
        ssh_port=2222,
        executable="/opt/my env/horovodrun",
        timeout=5,
    )["available"]
    [call] = calls(tmp_path)
    assert call[-9:-2] == ["training", "ssh", "-o", "BatchMode=yes", "-p", "2222", "--"]
    assert call[-2:] == [
        "lab-a",
        "cd / && PYTHONUNBUFFERED=1 exec timeout --kill-after=2 5 '/opt/my env/horovodrun' --check-build",
    ]


def test_image_is_run_by_id_and_never_pulled(script, tmp_path):
    script("docker", f'{DOCKER} if [ "$1" = image ]; then echo sha256:abc; else cat {TABLE}; fi')
    assert run(image="base:1")["available"]
    inspect, started = calls(tmp_path)
    assert inspect == ["image", "inspect", "--format={{.Id}}", "base:1"]
    assert started[:2] == ["run", "--rm"] and started[-2:] == ["sha256:abc", "--check-build"]
    assert {"--network=none", "--entrypoint=horovodrun", "--label=trainyard.managed=true"} <= set(
        started
    )


def test_timeout_removes_the_throwaway_container(script, tmp_path):
    script("docker", f'{DOCKER} case "$1" in image) echo sha256:abc;; run) exec sleep 300;; esac')
    assert_cause(run(image="base:1", timeout=1), "timeout", "in image base:1")
    started, removed = calls(tmp_path)[1:]
    assert removed == [
        "rm",
        "--force",
        "--volumes",
        next(word for word in started if word.startswith("--name=")).partition("=")[2],
    ]


@pytest.mark.parametrize(
    ("place", "stderr", "rc", "cause"),
    [
        ("container", "Error: No such container: t", 1, "container_not_running"),
        (
            "container",
            "Error response from daemon: No such container: t",
            1,
            "container_not_running",
        ),
        (
            "container",
            "Error response from daemon: Container 5c0f is not running",
            1,
            "container_not_running",
        ),
        (
            "container",
            "Error response from daemon: container 5c0f is not running",
            1,
            "container_not_running",
        ),
        (
            "container",
            "Error response from daemon: Container t is paused, unpause the container before exec",
            1,
            "container_not_running",
        ),
        (
            "container",
            "Error response from daemon: Container t is restarting, wait until the container is running",
            1,
            "container_not_running",
        ),
        (
            "container",
            'OCI runtime exec failed: exec failed: exec: "horovodrun": executable file not found in $PATH: unknown',
            126,
            "not_installed",
        ),
        (
            "container",
            'OCI runtime exec failed: exec failed: exec: "/x/hvd": stat /x/hvd: no such file or directory: unknown',
            127,
            "not_installed",
        ),
        (
            "container",
            'rpc error: code = 2 desc = oci runtime error: exec failed: exec: "horovodrun": executable file not found in $PATH',
            1,
            "not_installed",
        ),
        (
            "container",
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            1,
            "engine_unavailable",
        ),
        (
            "container",
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            1,
            "engine_unavailable",
        ),
        (
            "container",
            "error during connect: Get http://nowhere:2375/v1.41/info: EOF",
            1,
            "engine_unavailable",
        ),
        ("container", "Error response from daemon: something new", 1, "engine_unavailable"),
        ("image", "Error: No such image: i", 1, "image_missing"),
        (
            "image",
            "Error response from daemon: no such image: i: No such image: i:latest",
            1,
            "image_missing",
        ),
        ("image", "Error: No such object: i", 1, "image_missing"),
        (
            "image",
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            1,
            "engine_unavailable",
        ),
    ],
)
def test_what_docker_says(script, place, stderr, rc, cause):
    script("docker", f"echo '[]'; cat >&2 <<'EOF'\n{stderr}\nEOF\nexit {rc}")
    result = run(**{place: "t"})
    assert_cause(result, cause, stderr)
    # Nothing is ever installed in a container.
    assert (
        place == "image"
        or cause == "engine_unavailable"
        or ("install" not in result["fix"] and "training_environment.yml" in result["fix"])
    )


@pytest.mark.parametrize(
    "line",
    [
        "Host key verification failed.",
        "root@lab-b: Permission denied (publickey).",
        "ssh: connect to host lab-b port 12345: Connection refused",
    ],
)
def test_ssh_failed(script, line):
    script("docker", f"echo '{line}' >&2; exit 255")
    assert_cause(
        run(container="training", ssh_host="lab-b"), "ssh_failed", "lab-b on port 12345", line
    )


@pytest.mark.usefixtures("script")
def test_no_docker():
    assert_cause(run(image="base:1"), "engine_unavailable", "docker is not on the PATH")


def test_the_health_of_a_host_may_include_it(script, tmp_path):
    """In one module run. A table that cannot be read is left to this module, which reports it."""
    script("docker", f"cat {TABLE}")
    asked = {"container": "it", "requires": {"tensor_operations": ["nccl", "ddl"]}}
    alone = run(**asked)
    alone.pop("invocation")

    def healthy(**horovod):
        return run_module("host_health_info", {"clock": False, "horovod": horovod}, check=True)

    assert healthy(**asked)["horovod"] == alone
    assert alone["available"] and alone["missing"] == ["tensor_operations.ddl"]
    assert healthy()["horovod"] == {}
    refused = healthy(container="it", requires={"frameworks": ["caffe"]})
    assert refused["failed"] and "frameworks" in refused["msg"]
    whole = TABLE.read_text(encoding="utf-8").splitlines()
    (tmp_path / "half").write_text("\n".join(whole[:-3]), encoding="utf-8")
    script("docker", f"cat {tmp_path}/half")
    assert run(**asked)["failed"] and healthy(**asked)["horovod"] == {}


STARTED = "2026-11-20T12:41:28Z"
CHECK = {
    "container": "trainyard-training",
    "ssh_host": "server-a",
    "ssh_port": 12345,
    "frameworks": ["pytorch"],
}
BUILD = {
    "container": "trainyard-training",
    "ssh_host": "server-a",
    "ssh_port": 12345,
    "requires": {"frameworks": ["pytorch"]},
    "import_required": True,
}


def answers(log, table="true", started=STARTED, state="running", gate="/"):
    """A docker whose container is in this state.

    There the log counts the checks, and a check ends once the gate exists.
    """
    return f"""case "$*" in
  "inspect --type=container"*) echo '{"c" * 64} {started} {state}';;
  exec*) echo check >> {log}; until [ -e {gate} ]; do sleep 0.1; done; {table};;
esac"""


def begin(**more):
    """Start the check as playbook site does, and return the token of its result."""
    return run_module("host_info", {"begin_check": {**CHECK, **more}})["begun"]


def counted(log):
    return len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0


def test_check_that_runs_beside_the_rest(script, tmp_path):
    log, gate = tmp_path / "log", tmp_path / "gate"
    said = f"cat {TABLE}; echo 'trainyard: import of horovod.torch: ok' >&2"
    script("docker", answers(log, said, gate=gate))
    # If the module waited for the check, it would be killed after the timeout and have no table.
    begun = begin(timeout=10)
    gate.touch()
    built = run(**BUILD, begun=begun)
    assert (built["available"], built["version"], counted(log)) == (True, "0.28.1", 1)
    # A result is read once.
    assert run(**BUILD, begun=begun)["available"]
    assert counted(log) == 2


@pytest.mark.parametrize(
    "later, container",
    [
        ({"ssh_port": 2222}, {}),
        ({"requires": {}}, {}),
        ({}, {"started": "2026-11-20T12:50:00Z"}),
        ({}, {"state": "paused"}),
    ],
    ids=["different port", "different frameworks", "container started again", "container paused"],
)
def test_result_of_a_different_check_is_not_used(script, tmp_path, later, container):
    log = tmp_path / "log"
    script("docker", answers(log))
    begun = begin()
    # The check runs beside the rest, and the next line replaces the docker that it calls.
    deadline = time.monotonic() + 30
    while not counted(log):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    script("docker", answers(log, f"cat {TABLE}", **container))
    assert run(**{**BUILD, **later}, begun=begun)["available"]
    assert counted(log) == 2


@pytest.mark.parametrize("begun", ["0" * 32, "../../../etc/passwd", "no"])
def test_check_that_was_not_started(script, tmp_path, begun):
    script("docker", answers(tmp_path / "log", f"cat {TABLE}"))
    assert run(**BUILD, begun=begun)["available"]


def test_check_that_failed_is_made_again(script, tmp_path):
    """The run may have repaired the container since, or restarted the engine beside it."""
    log, repaired = tmp_path / "log", tmp_path / "repaired"
    missing = "echo 'exec: horovodrun: executable file not found in $PATH'; exit 127"
    script("docker", answers(log, f"if [ -e {repaired} ]; then cat {TABLE}; else {missing}; fi"))
    assert (run(**BUILD, begun=begin())["cause"], counted(log)) == ("not_installed", 2)
    begun = begin()
    deadline = time.monotonic() + 30
    while counted(log) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    repaired.touch()
    assert run(**BUILD, begun=begun)["available"]


@pytest.mark.parametrize("state", ["exited", "paused", "restarting"])
def test_no_check_is_started_if_the_container_does_not_run(script, tmp_path, state):
    log = tmp_path / "log"
    script("docker", answers(log, state=state))
    assert (begin(), counted(log)) == ("", 0)


def test_no_check_is_started_without_an_engine(script):
    assert begin() == ""
