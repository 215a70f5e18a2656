"""The table of horovodrun --check-build: published outputs (tests/fixtures/horovod), and possible
variants of them.
"""

import csv
import hashlib
import re
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._horovod import (
    KEYS,
    ParseError,
    missing,
    parse_check_build,
    why_no_table,
)

FIXTURES = Path(__file__).parents[3] / "fixtures/horovod"
with open(FIXTURES / "INDEX.tsv", encoding="utf-8", newline="") as index:
    ROWS = {row["path"]: row for row in csv.DictReader(index, delimiter="\t")}
FACTS = {name: row["expected_key_facts"] for name, row in ROWS.items()}

LABELS = {
    "frameworks": ["TensorFlow", "PyTorch", "MXNet"],
    "controllers": ["MPI", "Gloo"],
    "tensor_operations": ["NCCL", "DDL", "CCL", "MPI", "Gloo"],
}
TICKED = {
    "frameworks.pytorch",
    "controllers.gloo",
    "tensor_operations.nccl",
    "tensor_operations.gloo",
}
TABLE = """\
Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [X] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [X] Gloo
"""
LINES = TABLE.splitlines()
TRACEBACK = """\
Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/horovod/torch/__init__.py", line 21, in <module>
    check_extension('horovod.torch', 'HOROVOD_WITH_PYTORCH', __file__, 'mpi_lib_v2')
ImportError: Extension horovod.torch has not been built: mpi_lib_v2.so not found
"""
NOISE = """\
Checking whether extension torch was built with NCCL.
2020-10-21 21:28:31.314100: I tensorflow/stream_executor/platform/default/dso_loader.cc:48] Successfully opened dynamic library libcudart.so.10.1
Extension torch was NOT built with NCCL.
requires Horovod v0.19.0
"""
QUEUE_EMPTY = """\
Traceback (most recent call last):
  File "/usr/local/bin/horovodrun", line 8, in <module>
    sys.exit(run_commandline())
  File "/usr/local/lib/python3.11/site-packages/horovod/runner/launch.py", line 854, in run_commandline
    _run(args)
  File "/usr/local/lib/python3.11/site-packages/horovod/runner/launch.py", line 136, in check_build
    tensorflow=get_check(extension_available('tensorflow', verbose=verbose)),
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 135, in get_nowait
    return self.get(False)
_queue.Empty
"""


def ticked(build):
    return {
        f"{section}.{key}"
        for section, keys in KEYS.items()
        for key in keys
        if getattr(build, section)[key]
    }


def read(name):
    return (FIXTURES / name).read_bytes().decode("utf-8")


def test_index_lists_every_fixture():
    assert {name: row["sha256"] for name, row in ROWS.items()} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FIXTURES.glob("*.txt")
    }


@pytest.mark.parametrize(
    "name", [name for name, facts in FACTS.items() if "ticked frameworks=" in facts]
)
def test_posted_table(name):
    facts = dict(
        re.findall(
            r"(horovod|ticked frameworks|controllers|tensor_ops|entries)=([^;]*)", FACTS[name]
        )
    )
    expected = {
        f"{section}.{ {'mlsl': 'ccl'}.get(label.lower(), label.lower()) }"
        for section, fact in (
            ("frameworks", "ticked frameworks"),
            ("controllers", "controllers"),
            ("tensor_operations", "tensor_ops"),
        )
        for label in facts[fact].split(",")
        if label != "-"
    }
    build = parse_check_build(read(name))
    assert build.version == facts["horovod"]
    assert ticked(build) == expected
    assert {section: list(getattr(build, section)) for section in KEYS} == KEYS
    assert sum(len(keys) for keys in KEYS.values()) == int(facts["entries"])


FAILURES = [
    (
        "err-check-build-verbose-mpi-lib-TRUNCATED.txt",
        0,
        "truncated",
        "_gcd_import(name[level:], package, level)",
    ),
    (
        "err-extension-not-built-0.16.txt",
        1,
        "import_error",
        "ImportError: Extension horovod.tensorflow has not been built.",
    ),
    ("err-gloo-not-built.txt", 1, "import_error", "Gloo support has not been built"),
    (
        "err-neither-mpi-nor-gloo.txt",
        1,
        "import_error",
        "Neither MPI nor Gloo support has been built",
    ),
    (
        "err-ssh-timeout-runtimeerror.txt",
        1,
        "import_error",
        "RuntimeError: could not connect to some hosts via ssh",
    ),
    ("err-task-function-not-successful-TRUNCATED.txt", 1, "truncated", "raise Exception"),
    (
        "err-timeout-tasks-to-start-ray-prefixed.txt",
        1,
        "import_error",
        "Timed out waiting for tasks to start",
    ),
    ("err-unrecognized-arguments-0.16.1.txt", 2, "option_unsupported", "unrecognized arguments"),
]
SOMETHING_ELSE = [
    "err-ssh-permission-denied-0.19.txt",
    "err-ssh-permission-denied-old-no-remote-line.txt",
]


def test_every_posted_failure_is_judged():
    assert {name for name, facts in FACTS.items() if "ticked frameworks=" not in facts} == {
        name for name, *_rest in FAILURES
    } | set(SOMETHING_ELSE)


@pytest.mark.parametrize(("name", "rc", "cause", "evidence"), FAILURES)
def test_posted_failure(name, rc, cause, evidence):
    assert parse_check_build(read(name)) is None
    found, line = why_no_table(rc, read(name), "")
    assert (found, evidence in line) == (cause, True), line
    # The same on the other stream.
    assert why_no_table(rc, "", read(name))[0] == cause


@pytest.mark.parametrize("name", SOMETHING_ELSE)
def test_posted_output_of_something_else(name):
    assert parse_check_build(read(name)) is None
    with pytest.raises(ParseError, match="Filtering local host names"):
        why_no_table(1, read(name), "")


def each_line(form):
    return "\n".join(form(line) for line in LINES)


SHAPES = {
    "as it is": TABLE,
    "no line end": TABLE.rstrip(),
    "CRLF": TABLE.replace("\n", "\r\n"),
    "CR CR LF of a terminal's log": TABLE.replace("\n", "\r\r\n"),
    "old Mac line ends": TABLE.replace("\n", "\r"),
    "no colon": TABLE.replace(":\n", "\n"),
    "no blank lines": TABLE.replace("\n\n", "\n"),
    "blank lines everywhere": TABLE.replace("\n", "\n\n"),
    "not indented": TABLE.replace("    ", ""),
    "indented": each_line(lambda line: "        " + line),
    "tabs": TABLE.replace("    ", "\t"),
    "tab after the tick": TABLE.replace("] ", "]\t"),
    "no blank after the tick": TABLE.replace("] ", "]"),
    "no-break spaces": TABLE.replace("    ", "\u00a0\u00a0\u00a0\u00a0").replace("] ", "]\u00a0"),
    "byte order mark": "\ufeff" + TABLE,
    "lower-case tick": TABLE.replace("[X]", "[x]"),
    "padded": each_line(lambda line: line.ljust(200)),
    "empty box reflowed": TABLE.replace("[ ]", "[]"),
    "shell comment": each_line(lambda line: "# " + line),
    "comment without a blank": each_line(lambda line: "#" + line),
    "C comment": each_line(lambda line: "// " + line),
    "quoted mail": each_line(lambda line: "> " + line),
    "doc comment": each_line(lambda line: " * " + line),
    "ranks of mpirun": each_line(lambda line: "[1,0]<stdout>:" + line),
    "Ray worker": each_line(lambda line: "(pid=23323, ip=172.31.19.90) " + line),
    "compose": each_line(lambda line: "worker_1  | " + line),
    "timestamps": each_line(lambda line: "2024-03-01T10:00:00.123456789Z " + line),
    "right pane": each_line(lambda line: line.ljust(80) + "\u2502ops@host:~$ nvidia-smi"),
    "boxed": each_line(lambda line: "\u2502 " + line.ljust(40) + " \u2502"),
    "middle dots": each_line(lambda line: line.ljust(60) + "\u2502" + "\u00b7" * 40),
    "colours": each_line(lambda line: "\x1b[1;32m" + line + "\x1b[0m\x1b[K"),
    "title of the terminal": "\x1b]0;ops@host\x07" + TABLE,
    "prompt": "(horovod) ops@host:~$ horovodrun -cb\n" + TABLE + "ops@host:~$ ",
    "command line": "# check build\nhorovodrun --check-build\n\n" + TABLE,
    "noise before": NOISE + TRACEBACK + TABLE,
    "noise after": TABLE + "\n" + TRACEBACK + NOISE,
    "noise between": TABLE.replace(
        "\nAvailable Controllers", NOISE + TRACEBACK + "\nAvailable Controllers"
    ),
    "a crash on the way out": TABLE + "\n" + QUEUE_EMPTY + "Segmentation fault (core dumped)\n",
    "another version's install before": "Successfully installed Horovod v0.19.0\n" + TABLE,
    "words like a heading before": "The Available Frameworks:\n" + TABLE,
    "its version again after": TABLE + "\nHorovod v0.28.1\n",
    "two ranks' lines between each other": "\n".join(
        f"[1,0]<stdout>:{line}\n[1,1]<stdout>:{line}" for line in LINES
    ),
    "entries we don't know": TABLE.replace(
        "    [ ] MXNet\n", "    [ ] MXNet\n    [X] JAX\n"
    ).rstrip()
    + "\n    [X] XCCL\n    [ ] UCC 2\n",
    "an unknown section": TABLE.replace(
        "Available Controllers",
        "Available Launchers:\n    [X] Slurm\n    [ ] Gloo\n\nAvailable Controllers",
    ),
    "sections in another order": "\n".join(LINES[:2] + LINES[11:] + [""] + LINES[2:10]),
    "an earlier table that was cut": "\n".join(LINES[:9])
    + "\n$ horovodrun --check-build\n"
    + TABLE,
    "an earlier table of another build": TABLE.replace("[X]", "[ ]") + TABLE,
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_a_table_in_other_layouts(text):
    build = parse_check_build(text)
    assert (build.version, ticked(build)) == ("0.28.1", TICKED)


@pytest.mark.parametrize(
    "version", ["0.28.1", "0.20.0.dev1", "0.28.1+nv24.03", "1.0.0rc1", "0.19.1-3-gdeadbee"]
)
def test_version(version):
    for colon in (":", ""):
        assert parse_check_build(TABLE.replace("0.28.1:", version + colon)).version == version


def test_each_entry_can_be_ticked_alone():
    for section, labels in LABELS.items():
        for label in labels:
            heading = "Available " + section.replace("_", " ").title() + ":\n"
            head, tail = TABLE.replace("[X]", "[ ]").split(heading)
            assert ticked(
                parse_check_build(head + heading + tail.replace(f"[ ] {label}", f"[X] {label}", 1))
            ) == {f"{section}.{label.lower()}"}


def test_nothing_ticked_is_a_table():
    assert ticked(parse_check_build(TABLE.replace("[X]", "[ ]"))) == set()


def test_mlsl_is_ccl():
    assert ticked(parse_check_build(TABLE.replace("[ ] CCL", "[X] MLSL"))) == TICKED | {
        "tensor_operations.ccl"
    }


@pytest.mark.parametrize("rest", ["\n\nAvailable Frame", "\nAvailable\n"])
def test_a_last_table_that_is_cut_in_its_head_is_not_an_older_one(rest):
    with pytest.raises(ParseError, match="is truncated: no section"):
        parse_check_build(TABLE + "\nHorovod v0.28.1:" + rest)


def test_every_truncated_table_is_rejected():
    """Whatever is lost at the end: before the first heading no table has begun, from there on it
    must be whole.
    """
    begun = TABLE.index("Available Frameworks") + len("Available Frameworks")
    whole = len(TABLE.rstrip())
    for end in range(len(TABLE)):
        if end < begun:
            assert parse_check_build(TABLE[:end]) is None
        elif end < whole:
            with pytest.raises(ParseError, match="is truncated: .* has no entry for .*line"):
                parse_check_build(TABLE[:end])
        else:
            assert ticked(parse_check_build(TABLE[:end])) == TICKED


def test_every_lost_line_is_refused():
    for number, line in enumerate(LINES):
        if line.strip():
            with pytest.raises(ParseError, match="line"):
                parse_check_build("\n".join(LINES[:number] + LINES[number + 1 :]))


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (TABLE.replace("[X] NCCL", "[?] NCCL"), "line 13: '[?] NCCL'"),
        (TABLE.replace("[X] NCCL", "NCCL"), "line 13: 'NCCL'"),
        (TABLE.replace("[X] NCCL", "[X NCCL"), "line 13: '[X NCCL'"),
        (TABLE.replace("[X] NCCL", "- NCCL"), "line 13: '- NCCL'"),
        (TABLE.replace("[X] NCCL", "[X] NCCL\n    [ ] NCCL"), "line 14: '[ ] NCCL' contradicts"),
        (TABLE.split("\n", 1)[1], "line 2: 'Available Frameworks:'"),
        (
            TABLE + "\n".join(LINES[:9]),
            "tensor_operations has no entry for nccl, ddl, ccl, mpi, gloo|controllers has no entry for gloo",
        ),
    ],
)
def test_unreadable_line_is_named(broken, line):
    with pytest.raises(ParseError) as refused:
        parse_check_build(broken)
    assert any(part in str(refused.value) for part in line.split("|"))


USAGE = """\
usage: horovodrun [-h] [-v] -np NP [-p SSH_PORT] [-H HOST] [--disable-cache]
                  [--start-timeout START_TIMEOUT] [--verbose]
                  ...
horovodrun: error: {}
"""


@pytest.mark.parametrize(
    ("rc", "stdout", "stderr", "cause"),
    [
        (2, "", USAGE.format("unrecognized arguments: --check-build"), "option_unsupported"),
        (
            2,
            "",
            USAGE.format("the following arguments are required: -np/--num-proc"),
            "option_unsupported",
        ),
        (2, "", USAGE.format("argument -np is required"), "option_unsupported"),
        (1, "", QUEUE_EMPTY, "import_error"),
        (1, NOISE + TRACEBACK + "Extension torch was NOT built.\n", QUEUE_EMPTY, "import_error"),
        (1, "", "ModuleNotFoundError: No module named 'horovod'\n", "import_error"),
        (1, "", "/usr/bin/python3: No module named horovod\n", "import_error"),
        (
            127,
            "",
            "python3: error while loading shared libraries: libpython3.8.so.1.0: cannot open shared object file\n",
            "import_error",
        ),
        (127, "", "bash: line 1: horovodrun: command not found\n", "not_installed"),
        (127, "", "sh: 1: horovodrun: not found\n", "not_installed"),
        (127, "", "", "not_installed"),
        (126, "", "bash: /usr/local/bin/horovodrun: Permission denied\n", "not_installed"),
        (0, "", "", "no_output"),
        (0, "\n \r\n", "", "no_output"),
        (-11, "", "", "no_output"),
        (
            139,
            "",
            "2020-10-21 21:28:31.314100: I tensorflow/stream_executor/platform/default/dso_loader.cc:48] Successfully opened\n",
            "no_output",
        ),
        (0, NOISE, "", "truncated"),
        (0, NOISE + TRACEBACK, "", "truncated"),
        (0, TRACEBACK.rsplit("\n", 2)[0], "", "truncated"),
        (0, "Horovod v0.28.1:\n", "", "truncated"),
        (-9, "Horovod v0.28.1:\n\nAvailable Fra", "", "truncated"),
    ],
)
def test_why_no_table(rc, stdout, stderr, cause):
    assert parse_check_build(stdout) is None
    found, evidence = why_no_table(rc, stdout, stderr)
    assert found == cause
    assert evidence and "\n" not in evidence


@pytest.mark.parametrize(
    "text", ["--check-build\n", "hello\n", "{}", "pip 24.0 from /usr/lib\n", "\x00\x01\ufffdELF\n"]
)
def test_something_else_is_refused(text):
    with pytest.raises(ParseError, match="is not the output of horovodrun"):
        why_no_table(0, text, "")


def test_missing_in_the_tables_order():
    build = parse_check_build(TABLE)
    assert missing(
        {
            "tensor_operations": ["mpi", "nccl", "ddl"],
            "controllers": ["mpi"],
            "frameworks": ["pytorch"],
        },
        build,
    ) == [
        "controllers.mpi",
        "tensor_operations.ddl",
        "tensor_operations.mpi",
    ]
    assert missing({"frameworks": ["pytorch"], "tensor_operations": None}, build) == []
    assert missing({"frameworks": ["pytorch"], "controllers": []}, None) == ["frameworks.pytorch"]
