"""nvidia_smi_info, run like in Ansible; nvidia-smi is a script that prints a fixture, docker one
that records its arguments.
"""

from pathlib import Path

import pytest
from scripted_tools import run_module, scripts

ROOT = Path(__file__).parents[4]
FIXTURES = ROOT / "tests/fixtures"
# One of four GPUs, and nvidia-smi counts four.
PUBLISHED = FIXTURES / "nvidia-smi-xml/a100-sxm4-v12.xml"
A100 = "$A100"
FAIL = FIXTURES / "nvidia-smi-fail"
STATES = FIXTURES / "gpu-state"


@pytest.fixture(name="script")
def fixture_script(tmp_path, monkeypatch):
    """Puts a shell script on the PATH."""
    monkeypatch.setenv("A100", str(tmp_path / "a100.xml"))
    (tmp_path / "a100.xml").write_text(
        PUBLISHED.read_text(encoding="utf-8").replace("<attached_gpus>4<", "<attached_gpus>1<"),
        encoding="utf-8",
    )
    return scripts(tmp_path, monkeypatch)


def run(**arguments):
    return run_module("nvidia_smi_info", arguments, check=True)


def test_a_driver_that_answers(script):
    script("nvidia-smi", f'[ "$*" = "-q -x" ] && cat {A100}')
    told = run()
    assert (told["available"], told["cause"], told["fix"], told["changed"]) == (
        True,
        None,
        None,
        False,
    )
    assert (told["driver_version"], told["cuda_version"], told["gpu_count"], len(told["gpus"])) == (
        "535.54.03",
        "12.2",
        1,
        1,
    )
    assert told["error_gpus"] == told["remarks"] == []
    assert told["gpus"][0]["uuid"] == "GPU-513536b6-7d19-9063-b049-1e69664bb298"


UUID = "GPU-513536b6-7d19-9063-b049-1e69664bb298"
LINKS = "\\t Link 0: 25 GB/s\\n\\t Link 1: <inactive>\\n"


@pytest.mark.parametrize(
    "status, rc, links, reason",
    [
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: %s)\\n%s" % (UUID, LINKS), 0, [25.0, 0.0], None),
        # Another GPU did not answer one of the questions.
        (
            "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\\n%sGPU 1: NVIDIA A100-SXM4-80GB (UUID: %s)\\n\\t Link 0: 25 GB/s\\n"
            % (LINKS, UUID),
            0,
            [25.0],
            None,
        ),
        (
            "GPU 0: NVIDIA A100-SXM4-80GB (UUID: %s)\\nNvlink queries are not supported for Devices in MIG mode\\n"
            % UUID,
            0,
            None,
            "Nvlink queries are not supported for Devices in MIG mode",
        ),
        ("Invalid combination of input arguments.\\n", 1, None, "exit code 1"),
        (LINKS, 0, None, "a link without a GPU"),
    ],
)
def test_nvlinks(script, status, rc, links, reason):
    script(
        "nvidia-smi",
        f'[ "$*" = "-q -x" ] && exec cat {A100}; [ "$*" = "nvlink --status" ] && printf "{status}"; exit {rc}',
    )
    (gpu,) = run(nvlinks=True)["gpus"]
    assert gpu["nvlinks"] == links
    assert (reason or "") in gpu["unavailable"].get("nvlinks", "")
    assert ("nvlinks" in gpu["unavailable"]) is (reason is not None)
    # It takes time, so it is asked only where it is needed.
    assert "nvlinks" not in run()["gpus"][0]


@pytest.mark.parametrize(
    "name, rc, cause, fix",
    [
        ("nvml-mismatch-with-library-version-570.txt", 18, "driver_library_mismatch", "reboot"),
        ("no-driver-modprobe-352.txt", 9, "driver_not_loaded", "modprobe nvidia"),
        ("no-libnvidia-ml.txt", 12, "library_missing", "ldconfig"),
        ("no-libnvidia-ml-580.txt", 12, "library_missing", "ldconfig"),
        # The stub claims that the driver does not run.
        ("stub-library-580.txt", 9, "library_missing", "LD_LIBRARY_PATH"),
        ("no-devices.txt", 6, "no_devices", "lspci"),
        ("no-devices-580-node-closed.txt", 6, "no_devices", "the permissions of /dev/nvidia*"),
        ("access-blocked-580.txt", 17, "access_blocked", "cgroup"),
        ("insufficient-permissions-580.txt", 4, "permission", "as root"),
        ("nvml-unknown-error.txt", 255, "unknown", "nvrm"),
        ("handle-gpu-lost-double-blank.txt", 15, "gpu_lost", "0000:03:00.0: GPU is lost"),
        # With exit code 0, too.
        ("handle-gpu0-then-no-devices.txt", 0, "gpu_lost", "0000:01:00.0: Unknown Error"),
    ],
)
def test_a_driver_that_fails(script, name, rc, cause, fix):
    script("nvidia-smi", f"cat {FAIL}/{name}; exit {rc}")
    told = run()
    assert (
        told["available"],
        told["cause"],
        told["gpus"],
        told["gpu_count"],
        told["driver_version"],
    ) == (False, cause, [], 0, None)
    assert fix in told["fix"]
    assert bool(told["error_gpus"]) is (cause == "gpu_lost")


def test_one_lost_gpu_among_others(script):
    """Those that could be described stay, but the host isn't fit."""
    for rc in (0, 15):
        script("nvidia-smi", f"cat {FAIL}/handle-gpu-lost-double-blank.txt; cat {A100}; exit {rc}")
        told = run()
        assert (told["available"], told["cause"], len(told["gpus"])) == (False, "gpu_lost", 1)
        assert told["error_gpus"] == [
            {
                "bus_id": "0000:03:00.0",
                "error": "GPU is lost. Reboot the system to recover this GPU",
            }
        ]
    script("nvidia-smi", f"sed 's#<uuid>.*</uuid>#<uuid>GPU is lost</uuid>#' {A100}")
    assert run()["error_gpus"] == [{"bus_id": "00000000:01:00.0", "error": "GPU is lost"}]
    script(
        "nvidia-smi",
        f"cat {A100}; echo 'WARNING: infoROM is corrupted at gpu 0000:01:00.0'; exit 14",
    )
    told = run()
    assert (told["available"], told["cause"], told["remarks"]) == (
        False,
        "unknown",
        ["WARNING: infoROM is corrupted at gpu 0000:01:00.0"],
    )
    assert "exit code 14" in told["fix"]


def test_a_gpu_that_says_a_fault_in_place_of_a_value(script):
    script("nvidia-smi", f"cat {STATES}/gpu-requires-reset.txt")
    told = run()
    assert (told["available"], told["cause"], told["gpu_count"]) == (False, "gpu_lost", 2)
    assert told["error_gpus"] == [{"bus_id": "00000000:43:00.0", "error": "GPU requires reset"}]
    assert "nvidia-smi --gpu-reset" in told["fix"] and "00000000:43:00.0" in told["fix"]
    good, bad = told["gpus"]
    assert good["usable"] and good["problems"] == []
    assert not bad["usable"] and {problem["action"] for problem in bad["problems"]} == {"drain"}
    assert bad["fabric_state"] is None and bad["faults"]["current_ecc"] == "GPU requires reset"


def test_a_gpu_with_a_problem_answers(script):
    for name, check in (("recovery-action-only", "gpu-state"), ("fabric-failure", "gpu-fabric")):
        script("nvidia-smi", f"cat {STATES}/{name}.txt")
        told = run()
        assert (told["available"], told["cause"], told["error_gpus"]) == (True, None, [])
        assert [gpu["usable"] for gpu in told["gpus"]] == [True, False]
        assert {problem["id"] for problem in told["gpus"][1]["problems"]} == {check}
        assert told["fabric"]["present"] and told["fabric"]["ready"] is (check == "gpu-state")


def test_a_process_with_a_bad_name(script):
    """Bytes that are no UTF-8, and the words of another failure."""
    name = r"\377]]>Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost"
    process = "<processes>\\n<process_info>\\n<pid>7</pid>\\n<process_name>%b</process_name>\\n</process_info>\\n</processes>\\n"
    script(
        "nvidia-smi",
        f"sed '/<processes/,$d' {A100}; printf '{process}' '{name}'; sed '1,/<processes/d' {A100}",
    )
    told = run()
    assert (told["available"], told["error_gpus"]) == (True, []) and told["gpus"][0]["processes"][
        0
    ]["name"].endswith("GPU is lost")


def test_without_a_driver_and_one_that_hangs(script):
    assert run()["cause"] == "not_installed"
    script("nvidia-smi", "sleep 20")
    told = run(timeout=1)
    assert (told["available"], told["cause"]) == (
        False,
        "timeout",
    ) and "did not end within 1 s" in told["fix"]


@pytest.mark.parametrize(
    "body, said",
    [
        (f"head -c 4000 {A100}", "the output is truncated"),
        ("echo '| NVIDIA-SMI 535 |'", "printed no document"),
        (f"cat {A100} {A100}", "2 documents"),
        # A GPU that is counted, not described, and not said to be lost.
        (f"cat {PUBLISHED}", "attached_gpus is '4', but the document describes 1 GPU"),
        (f"sed 's#<used>50 MiB#<used>5\u00b2 MiB#' {A100}", "has digits other than 0 to 9"),
    ],
)
def test_garbage_is_a_failure(script, body, said):
    script("nvidia-smi", body)
    told = run()
    assert told["failed"] and said in told["msg"]


def test_nothing_at_all_is_a_cause(script):
    script("nvidia-smi", "exit 0")
    told = run()
    assert (told.get("failed", False), told["available"], told["cause"]) == (
        False,
        False,
        "unknown",
    )


def test_in_a_container(script, tmp_path):
    script("docker", f'echo "$@" > {tmp_path}/asked; cat {FAIL}/nvml-unknown-error.txt; exit 255')
    told = run(container="trainyard-training")
    assert told["cause"] == "unknown" and "restart container trainyard-training" in told["fix"]
    assert (
        (tmp_path / "asked")
        .read_text(encoding="utf-8")
        .rstrip()
        .endswith("trainyard-training nvidia-smi -q -x")
    )
    script(
        "docker",
        "echo 'OCI runtime exec failed: exec failed: exec: \"nvidia-smi\": executable file not found in $PATH: unknown' >&2; exit 126",
    )
    told = run(container="trainyard-training")
    assert told["cause"] == "not_installed" and "container toolkit" in told["fix"]
    script("docker", "echo 'Error: No such container: trainyard-training' >&2; exit 1")
    assert run(container="trainyard-training")["cause"] == "container_not_running"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"container": "-it"}, "not a valid name"),
        ({"container": " "}, "not a valid name"),
        ({"timeout": 0}, "1 second or more"),
    ],
)
def test_bad_options(arguments, said):
    told = run(**arguments)
    assert told["failed"] and said in told["msg"]
