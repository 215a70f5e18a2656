"""npu_smi_info, run like in Ansible; npu-smi and hccn_tool are scripts that print a fixture, docker
one that records its arguments.
"""

from pathlib import Path

import pytest
from scripted_tools import run_module, scripts

FIXTURES = Path(__file__).parents[3] / "fixtures/npu-smi"
A3, B2C, OLD = (
    FIXTURES / name
    for name in (
        "npu-25.2.3-a3-8x2-processes.txt",
        "npu-25.5.1-1x910B2C.txt",
        "npu-1.8.21-8x910A.txt",
    )
)


@pytest.fixture(name="script")
def fixture_script(tmp_path, monkeypatch):
    """Puts a shell script on the PATH."""
    return scripts(tmp_path, monkeypatch)


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    """The module with the files of the test in place of those of this machine."""
    (tmp_path / "dev").mkdir()

    def run(**arguments):
        places = {
            "hccn_tool": "hccn_tool",
            "hccn_conf": str(tmp_path / "hccn.conf"),
            "device_folder": str(tmp_path / "dev"),
        }
        return run_module("npu_smi_info", {**places, **arguments}, check=True)

    return run


def nodes(tmp_path, *numbers):
    for name in [f"davinci{number}" for number in numbers] + [
        "davinci_manager",
        "davinci1x",
        "null",
    ]:
        (tmp_path / "dev" / name).touch()


def test_a_driver_that_answers(script, run, tmp_path):
    script("npu-smi", f'[ "$*" = info ] && cat {A3}')
    script(
        "hccn_tool",
        'echo "$@" >> '
        + str(tmp_path / "asked")
        + '; echo "ipaddr:10.0.0.$2"; echo "netmask:255.255.255.0"',
    )
    nodes(tmp_path, *range(16))
    (tmp_path / "hccn.conf").write_text(
        "".join(f"address_{number}=10.0.0.{number}\n" for number in range(16)), encoding="utf-8"
    )
    told = run()
    assert (
        told["available"],
        told["cause"],
        told["fix"],
        told["changed"],
        told["findings"],
        told["remarks"],
    ) == (True, None, None, False, [], [])
    assert (told["tool_version"], told["driver_version"], told["npu_count"], len(told["npus"])) == (
        "25.2.3",
        "25.2.3",
        8,
        8,
    )
    assert [device["id"] for device in told["devices"]] == list(range(16))
    assert told["devices"][7] == {
        "id": 7,
        "address": "10.0.0.7",
        "netmask": "255.255.255.0",
        "source": "hccn_tool",
        "live_address": "10.0.0.7",
        "configured_address": "10.0.0.7",
        "reason": None,
    }
    assert (tmp_path / "asked").read_text(encoding="utf-8").splitlines() == [
        f"-i {number} -ip -g" for number in range(16)
    ]
    assert run(addresses=False)["devices"] == []


def test_the_devices_are_not_the_numbers_of_the_npus(script, run, tmp_path):
    """The only NPU is number 2, and its device is /dev/davinci6."""
    script("npu-smi", f"cat {B2C}")
    script("hccn_tool", '[ "$2" = 6 ] && echo ipaddr:10.0.0.6')
    (tmp_path / "hccn.conf").write_text(
        "address_2=10.0.0.2\naddress_6=10.0.0.66\n", encoding="utf-8"
    )
    nodes(tmp_path, 6)
    told = run()
    assert [
        (device["id"], device["address"], device["configured_address"])
        for device in told["devices"]
    ] == [(6, "10.0.0.6", "10.0.0.66")]
    assert [(each["kind"], each["device"]) for each in told["findings"]] == [("address_differs", 6)]
    # Without device files, the file says which devices there are.
    (tmp_path / "dev/davinci6").unlink()
    assert [device["id"] for device in run()["devices"]] == [2, 6]


def test_without_hccn_tool_the_file_counts(script, run, tmp_path):
    script("npu-smi", f"cat {OLD}")
    (tmp_path / "hccn.conf").write_text(
        "address_0=10.0.0.1\nnetmask_0=255.0.0.0\n", encoding="utf-8"
    )
    nodes(tmp_path, *range(8))
    told = run()
    first = told["devices"][0]
    assert told["available"] and (first["address"], first["netmask"], first["source"]) == (
        "10.0.0.1",
        "255.0.0.0",
        "hccn_conf",
    )
    assert "hccn_tool is not on the PATH" in told["devices"][0]["reason"]
    assert [(each["kind"], each["device"]) for each in told["findings"]] == [
        ("address_missing", number) for number in range(1, 8)
    ]


def test_hccn_tool_that_fails_and_one_that_hangs(script, run, tmp_path):
    script("npu-smi", f"cat {A3}")
    script(
        "hccn_tool",
        f"echo called >> {tmp_path}/asked; echo 'ipaddr:10.0.0.1'; echo 'Get device ip failed' >&2; exit 3",
    )
    told = run()
    # An address of a call that failed does not count, and the others are tried.
    assert {device["address"] for device in told["devices"]} == {
        None
    } and "Get device ip failed (exit code 3)" in told["devices"][15]["reason"]
    assert len((tmp_path / "asked").read_text(encoding="utf-8").splitlines()) == 16
    script("hccn_tool", f"echo called >> {tmp_path}/waited; sleep 20")
    told = run(timeout=1)
    assert told["available"] and "did not end within 1 s" in told["devices"][15]["reason"]
    assert (tmp_path / "waited").read_text(encoding="utf-8") == "called\n"


@pytest.mark.parametrize(
    "body, cause, said",
    [
        (
            f"cat {FIXTURES}/fail-8005-not-initialized.txt; exit 187",
            "driver_not_loaded",
            "ret is -8005",
        ),
        (f"cat {FIXTURES}/fail-8005-not-initialized.txt", "driver_not_loaded", "reboot"),
        (
            f"cat {FIXTURES}/fail-8020-device-in-use.txt; exit 172",
            "device_in_use",
            "one container at a time",
        ),
        ("echo 'There is no NPU card on this server.'", "no_devices", "lspci -d 19e5:"),
        (
            "echo 'npu-smi: error while loading shared libraries: libdcmi.so' >&2; exit 127",
            "library_missing",
            "LD_LIBRARY_PATH",
        ),
        ("exit 0", "unknown", "nothing (exit code 0)"),
        ("exit 9", "unknown", "exit code 9"),
        ("sleep 20", "timeout", "did not end within 1 s"),
        (f"head -c 900 {A3}", "truncated", "line 10 has no end"),
        (f"head -n 2 {A3}", "truncated", "no rule follows"),
        (f"head -n 6 {A3}", "no_devices", "a table without an NPU"),
    ],
)
def test_a_driver_that_fails(script, run, body, cause, said):
    script("npu-smi", body)
    told = run(timeout=1 if cause == "timeout" else 60)
    assert (told.get("failed", False), told["available"], told["cause"]) == (
        False,
        False,
        cause,
    ) and said in told["fix"], told


def test_a_table_with_an_exit_code_is_no_answer(script, run):
    script("npu-smi", f"cat {A3}; echo 'Failed to execute npu-smi info. ret is -8010.'; exit 182")
    told = run()
    assert (told["available"], told["cause"], told["npu_count"], len(told["npus"])) == (
        False,
        "no_answer",
        8,
        8,
    )


def test_a_chip_that_is_not_healthy_and_one_that_is_missing(script, run, tmp_path):
    script("npu-smi", f"sed '0,/ OK  /s// Alarm/' {A3} | sed '/ 3     Ascend910 .* - /d'")
    nodes(tmp_path, *range(16))
    told = run(addresses=False)
    assert (told["available"], told["cause"], told["npus"][0]["health"]) == (
        False,
        "truncated",
        "Alarm",
    )
    assert [each["kind"] for each in told["findings"]] == ["unhealthy", "device_nodes_differ"]


@pytest.mark.parametrize(
    "body, said",
    [
        ("echo '| NVIDIA-SMI 535 |'", "printed no table"),
        (f"cat {A3} {A3}", "another one follows"),
        (f"sed 's/0000:9D:00.0/x|y/' {A3}", "other columns"),
    ],
)
def test_garbage_is_a_failure(script, run, body, said):
    script("npu-smi", body)
    told = run()
    assert told["failed"] and said in told["msg"]


def test_without_a_driver(run, script):
    assert callable(script)
    told = run()
    assert (told["available"], told["cause"], told["npus"], told["devices"]) == (
        False,
        "not_installed",
        [],
        [],
    )


def test_in_a_container(script, run, tmp_path):
    """All of it is read there. The device files of the host say nothing about a container."""
    nodes(tmp_path, *range(8))
    script(
        "docker",
        f'echo "$@" >> {tmp_path}/asked; case "$*" in *" npu-smi info") cat {A3};; *" cat /etc/hccn.conf") echo address_0=10.0.0.9;; '
        '*"hccn_tool -i 0 -ip -g") echo ipaddr:10.0.0.1;; *) exit 1;; esac',
    )
    told = run(
        container="job-7",
        hccn_tool="/usr/local/Ascend/driver/tools/hccn_tool",
        hccn_conf="/etc/hccn.conf",
    )
    assert told["available"] and len(told["devices"]) == 16
    assert (told["devices"][0]["address"], told["devices"][0]["configured_address"]) == (
        "10.0.0.1",
        "10.0.0.9",
    )
    assert [each["kind"] for each in told["findings"]] == ["address_differs"] + [
        "address_missing"
    ] * 15
    assert all(
        " job-7 " in line for line in (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    )
    script("docker", f"cat {FIXTURES}/fail-8020-device-in-use.txt; exit 172")
    told = run(container="job-7")
    assert told["cause"] == "device_in_use" and "give container job-7 devices" in told["fix"]
    script("docker", "echo 'Error: No such container: job-7' >&2; exit 1")
    told = run(container="job-7")
    assert (told["cause"], told["devices"]) == ("container_not_running", [])


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"container": "-it"}, "not a valid name"),
        ({"hccn_tool": "-x"}, "not a valid name"),
        ({"timeout": 0}, "1 second or more"),
    ],
)
def test_bad_options(run, arguments, said):
    told = run(**arguments)
    assert told["failed"] and said in told["msg"]
