"""nccl_all_reduce, run like in Ansible; all_reduce_perf is a script that replays real output,
docker and mpirun record their arguments.
"""

import re
import shlex
from pathlib import Path

import all_reduce_output
import pytest
import yaml
from scripted_tools import run_module, scripts

from ansible_collections.trainyard.gpu.plugins.module_utils import _all_reduce
from ansible_collections.trainyard.gpu.plugins.modules import nccl_all_reduce

FIXTURES = Path(__file__).parents[4] / "tests/fixtures/all_reduce_perf"
GOOD = FIXTURES / "sophia-2node-16gpu-ok.txt"
RUN = {"gpus": 8, "launcher": "mpirun_per_gpu", "hosts": ["10.0.0.1", "10.0.0.2"]}


@pytest.fixture(name="script")
def fixture_script(tmp_path, monkeypatch):
    """Puts a shell script on the PATH."""
    script = scripts(tmp_path, monkeypatch)
    for tool in ("mktemp", "cat", "rm", "env"):
        (tmp_path / "bin" / tool).symlink_to("/usr/bin/" + tool)
    return script


@pytest.fixture(name="replay")
def fixture_replay(script, tmp_path):
    """An all_reduce_perf that prints a file and ends with an exit code; one that knows -J writes a
    document, too.
    """

    def put(path, rc=0, document=None, also=""):
        (tmp_path / "text").write_bytes(Path(path).read_bytes())
        body = f'[ "$1" = -h ] && {{ echo "USAGE: x {"[-J,--output_file <file>" if document else ""}"; exit 0; }}\necho "$@" > {tmp_path}/asked\n'
        if document:
            (tmp_path / "document").write_text(document, encoding="utf-8")
            body += f'for word; do :; done; cat {tmp_path}/document > "$word"; echo "$word" > {tmp_path}/where\n'
        return script("all_reduce_perf", body + f"cat {tmp_path}/text\n{also}\nexit {rc}")

    return put


@pytest.fixture(name="mpirun")
def fixture_mpirun(script, tmp_path):
    """An mpirun that records its arguments, and starts the program of rank 0."""
    return script(
        "mpirun",
        f'echo "$@" > {tmp_path}/launched\nwhile [ "$1" != all_reduce_perf ]; do shift; done\nPATH={tmp_path}/bin:$PATH exec "$@"',
    )


def run(check=False, **arguments):
    return run_module("nccl_all_reduce", arguments, check=check)


def ids(told):
    return [reason["id"] for reason in told["reasons"]]


def test_a_log_and_its_file():
    by_text, by_path = (
        run(log=GOOD.read_text(encoding="utf-8"), check=True),
        run(log_file=str(GOOD), check=True),
    )
    # Up to ansible-core 2.20 a module also returns its arguments, which differ.
    assert (
        by_text.pop("invocation", "text") != by_path.pop("invocation", "path")
        and by_text == by_path
    )
    assert (
        by_text["changed"],
        by_text["available"],
        by_text["passed"],
        by_text["ranks"],
        len(by_text["rows"]),
    ) == (False, True, True, 16, 29)
    told = run(log_file=str(GOOD), expected_ranks=32, min_busbw_gb_s=200, judge_from_bytes="1G")
    assert (told["passed"], told["complete"], told["judged_busbw_gb_s"], ids(told)) == (
        False,
        True,
        178.385,
        ["ranks", "bandwidth"],
    )


def test_a_run_on_one_host(replay, tmp_path):
    (tmp_path / "output").write_text(all_reduce_output.text("timestamp", ranks=8), encoding="utf-8")
    replay(tmp_path / "output")
    told = run(
        gpus=8, min_bytes="1M", max_bytes="16M", iterations=7, warmup_iterations=0, step_factor=4
    )
    assert (told["passed"], told["judged"], told["ranks"], told["cause"], told["changed"]) == (
        True,
        ["complete", "correct", "ranks", "hosts"],
        8,
        None,
        False,
    )
    asked = [
        "-b",
        "1048576",
        "-e",
        "16777216",
        "-f",
        "4",
        "-g",
        "8",
        "-w",
        "0",
        "-n",
        "7",
        "-c",
        "1",
    ]
    assert (
        told["command"] == ["all_reduce_perf", *asked]
        and (tmp_path / "asked").read_text(encoding="utf-8").split() == asked
    )
    assert "Out of bounds" in told["output"]
    # Fewer than were asked for.
    assert ids(run(gpus=16)) == ["ranks"]


def test_json_is_preferred_and_leaves_nothing(replay, tmp_path):
    (tmp_path / "output").write_text(all_reduce_output.text(), encoding="utf-8")
    replay(tmp_path / "output", document=all_reduce_output.document())
    told = run(gpus=4)
    # 103.89 in the text.
    assert told["passed"] and told["rows"][0]["in_place"]["time_us"] == 103.88608
    assert "swordfish" not in str(told) and "trainyard: the same" not in told["output"]
    where = Path((tmp_path / "where").read_text(encoding="utf-8").strip())
    assert where.name == "result.json" and not where.parent.exists()
    # Where nothing can be written, the text does.
    (tmp_path / "bin/mktemp").unlink()
    assert run(gpus=4)["rows"][0]["in_place"]["time_us"] == 103.89
    (tmp_path / "bin/mktemp").symlink_to("/usr/bin/mktemp")
    # A document that was not ended is left aside.
    replay(tmp_path / "output", document=all_reduce_output.document()[:-50])
    assert run(gpus=4)["rows"][0]["in_place"]["time_us"] == 103.89


def test_variables_for_a_process(replay, tmp_path):
    (tmp_path / "output").write_text(all_reduce_output.text(), encoding="utf-8")
    replay(
        tmp_path / "output", also='[ "$NCCL_DEBUG:$NCCL_SOCKET_IFNAME" = "INFO:=eth0 x" ] || exit 9'
    )
    assert run(gpus=4, environment={"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "=eth0 x"})[
        "passed"
    ]


@pytest.mark.parametrize(
    "launcher, processes, slots, each",
    [("mpirun_per_gpu", 16, 8, "1"), ("mpirun_per_host", 2, 1, "8")],
)
def test_all_hosts_by_mpirun(replay, mpirun, tmp_path, launcher, processes, slots, each):
    replay(GOOD)
    told = run(
        **dict(RUN, launcher=launcher),
        environment={"NCCL_DEBUG": "INFO"},
        mpi_network="10.0.0.0/24",
        mpirun=Path(mpirun).name,
    )
    assert told["passed"] and told["ranks"] == 16 and told["hosts"] == 2
    launched = (tmp_path / "launched").read_text(encoding="utf-8")
    for words in (
        f"-np {processes} -H 10.0.0.1:{slots},10.0.0.2:{slots} ",
        f"--map-by ppr:{slots}:node:OVERSUBSCRIBE ",
        "--mca plm_rsh_args -p 12345 ",
        "-x NCCL_DEBUG=INFO ",
        f"-g {each} ",
        "--mca btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include 10.0.0.0/24 ",
    ):
        assert words in launched
    # One host's ranks are missing.
    assert ids(run(**dict(RUN, launcher=launcher, hosts=["a", "b", "c"]))) == ["ranks", "hosts"]


@pytest.mark.parametrize(
    "name, rc, reasons",
    [
        (
            "fail-sophia-nccl-system-error-8ranks.txt",
            3,
            ["nccl_system_error", "process_failed", "no_table", "exit_code"],
        ),
        (
            "fail-pmi-port-no-table.txt",
            1,
            ["pmi_port", "no_all_reduce", "exit_code", "ranks", "hosts"],
        ),
        (
            "v100-mpi-not-built-4proc-interleaved.txt",
            0,
            ["mpi_not_built", "no_summary", "one_rank", "ranks"],
        ),
        ("wrong-values-FAILED-scientific-notation.txt", 7, ["wrong_values", "exit_code", "ranks"]),
    ],
)
def test_runs_that_fail_are_results(replay, mpirun, name, rc, reasons):
    assert mpirun
    replay(FIXTURES / name, rc)
    told = run(**RUN)
    assert (told["available"], told["passed"], ids(told)) == (True, False, reasons)


def test_nothing_but_an_exit_code(script):
    script("all_reduce_perf", "echo 'something unheard of' >&2; exit 5")
    told = run(gpus=2)
    assert (
        (told["available"], told["complete"]) == (True, False)
        and ids(told)[:2] == ["no_all_reduce", "exit_code"]
        and "unheard" in told["output"]
    )


def test_tools_that_are_missing_or_hang(script, replay):
    told = run(gpus=2)
    assert (told["available"], told["cause"], ids(told)[0]) == (
        False,
        "not_installed",
        "not_installed",
    ) and "all_reduce_perf: not found" in told["fix"]
    replay(GOOD)
    assert "mpirun: not found" in run(**RUN)["fix"]
    script(
        "all_reduce_perf",
        "echo 'all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file' >&2; exit 127",
    )
    told = run(gpus=2)
    assert (told["cause"], told["passed"]) == ("library_missing", False) and "libnccl.so.2" in told[
        "fix"
    ]
    # What it had said before it hung.
    replay(FIXTURES / "2.20.0-dgx-spark-head-TRUNCATED.txt", also="sleep 20")
    told = run(gpus=2, timeout=2)
    assert (told["available"], told["cause"], len(told["rows"]), told["passed"]) == (
        False,
        "timeout",
        4,
        False,
    ) and "did not end within 2 s" in told["fix"]


def test_in_a_running_container(script, tmp_path):
    script("docker", f'printf "%s\\n" "$@" > {tmp_path}/asked; cat {GOOD}')
    told = run(container="trainyard-training", gpus=16, expected_hosts=2)
    assert told["passed"] and told["hosts"] == 2
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert (
        asked[0] == "exec"
        and asked[asked.index("trainyard-training") + 1 :][:2] == ["sh", "-c"]
        and asked[-2:] == ["-c", "1"]
    )
    script("docker", "echo 'Error response from daemon: container 12ab is not running' >&2; exit 1")
    told = run(container="trainyard-training", gpus=8)
    assert (told["available"], told["cause"], told["passed"]) == (
        False,
        "container_not_running",
        False,
    ) and "start container trainyard-training" in told["fix"]


def test_check_mode_keeps_the_gpus_free(replay, tmp_path):
    replay(GOOD)
    told = run(gpus=8, check=True)
    assert (
        told["skipped"]
        and not told["changed"]
        and not (tmp_path / "asked").exists()
        and told["command"][0] == "all_reduce_perf"
    )


@pytest.mark.parametrize(
    "said",
    [
        "Invalid number of GPUs: 8 requested but only 4 were found.\nPlease check the number of processes and GPUs per process.",
        "gx1: Test CUDA failure common.cu:907 'invalid device ordinal'",
    ],
)
def test_more_gpus_than_there_are(script, said):
    script("all_reduce_perf", f"echo {shlex.quote(said)} >&2; exit 5")
    told = run(gpus=8)
    assert told["failed"] and told["msg"].startswith("gpus: 8: more GPUs are requested")
    assert ". request " in told["msg"] and said.splitlines()[0] in told["msg"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({}, "gpus is missing"),
        ({"gpus": 0}, "gpus: '0' is too small"),
        ({"gpus": 1}, "GPU has no other"),
        ({"gpus": 8, "timeout": 0}, "timeout: '0'"),
        (
            {"gpus": 8, "min_bytes": "1G", "max_bytes": "8"},
            "min_bytes: '1G' is larger than max_bytes '8'",
        ),
        ({"gpus": 8, "min_bytes": "big"}, "min_bytes: 'big' is not a valid size"),
        ({"gpus": 8, "step_factor": 1}, "step_factor: '1' is too small; set 2 or more"),
        ({"gpus": 8, "min_busbw_gb_s": "fast"}, "min_busbw_gb_s"),
        ({"gpus": 8, "min_busbw_gb_s": -3}, "min_busbw_gb_s: '-3.0' is not a valid bandwidth"),
        ({"gpus": 8, "judge_from_bytes": "1 MB"}, "judge_from_bytes: '1 MB'"),
        ({"log": "x", "expected_ranks": 1}, "expected_ranks: '1'"),
        ({"gpus": 8, "hosts": ["a"]}, "runs on this host only"),
        ({"gpus": 8, "launcher": "mpirun_per_host"}, "needs the addresses"),
        (dict(RUN, hosts=["a", "a"]), "names a host twice"),
        (dict(RUN, hosts=["-x", "b"]), "'-x' is not a valid host name"),
        (dict(RUN, ssh_port=70000), "'70000' is not a valid port"),
        ({"gpus": 8, "environment": {"A B": "c"}}, "'A B' is not a valid variable name"),
        ({"gpus": 8, "container": "-it"}, "'-it' is not a valid name"),
        ({"log": "x", "log_file": "/x"}, "mutually exclusive"),
        ({"log_file": "/nowhere/x.log"}, "/nowhere/x.log: No such file"),
        ({"log": "total 12\n"}, "log: line 1: 'total 12' is not the beginning of output"),
        ({"log": ""}, "log: the text is empty"),
    ],
)
def test_bad_input_is_one_clear_error(script, tmp_path, arguments, said):
    for tool in ("all_reduce_perf", "mpirun"):
        script(tool, f"touch {tmp_path}/was_run")
    told = run(**arguments)
    assert told["failed"] and said in told["msg"] and not (tmp_path / "was_run").exists()


def test_another_program_of_this_name(script):
    script("all_reduce_perf", "echo hello")
    told = run(gpus=2)
    assert (
        told["failed"]
        and "ended with exit code 0, but this isn't what all_reduce_perf prints: line 1: 'hello'"
        in told["msg"]
    )
    assert told["msg"].endswith("Set executable to all_reduce_perf of nccl-tests")


def test_every_reason_is_published():
    """Names of errors are the titles of docs/errors.md."""
    paragraphs = yaml.safe_load(nccl_all_reduce.RETURN)["reasons"]["contains"]["id"]["description"]
    (linked,) = [text for text in paragraphs if text.startswith("Of errors")]
    assert "/docs/errors.md" in linked
    used = set(
        re.findall(
            r'(?:_reason|_too_few)\(\s*"(\w+)"',
            Path(_all_reduce.__file__).read_text(encoding="utf-8"),
        )
    )
    paragraphs.remove(linked)
    assert set(re.findall(r"\bV\((\w+)\)", "".join(paragraphs))) == used
