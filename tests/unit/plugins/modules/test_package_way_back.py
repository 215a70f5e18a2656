"""The commands for apt to restore packages, and the changes that are not allowed."""

from __future__ import annotations

import pytest
from scripted_tools import run_module, scripts

NOW = "libnccl2\t2.25.1-1+cuda12.8\thi \nlibnccl-dev\t2.25.1-1+cuda12.8\tii \nlibnew\t1\tii \nbash\t5.2\tii \n"
SIMULATED = "Inst libnccl2 [2.25.1-1+cuda12.8] (2.21.5-1+cuda12.4 nvidia)\nInst libnccl-dev [2.25.1-1+cuda12.8] (2.21.5-1+cuda12.4 nvidia)\nRemv libnew [1]\n"


def state(version, status, automatic=False):
    return {"version": version, "status": status, "automatic": automatic}


BEFORE = {
    "libnccl2": state("2.21.5-1+cuda12.4", "hi"),
    "libnccl-dev": state("2.21.5-1+cuda12.4", "hi"),
    "bash": state("5.2", "ii"),
}


@pytest.fixture(name="host")
def _host(tmp_path, monkeypatch):
    """A host after an upgrade; what changes it lies in the file told."""
    script = scripts(tmp_path, monkeypatch)
    (tmp_path / "now").write_text(NOW, encoding="utf-8")
    (tmp_path / "simulated").write_text(SIMULATED, encoding="utf-8")
    script("dpkg-query", f"cat {tmp_path}/now")
    script(
        "apt-mark", f'[ "$1" = showauto ] && echo libnew || echo "apt-mark $*" >> {tmp_path}/told'
    )
    script(
        "apt-get",
        f"""
        case "$*" in
        *--simulate*) [ ! -e {tmp_path}/unknown ] || {{ echo "E: Version '2.21.5-1+cuda12.4' for 'libnccl2' was not found" >&2; exit 100; }}
                      cat {tmp_path}/simulated ;;
        *update*) [ ! -e {tmp_path}/stale ] || rm {tmp_path}/unknown {tmp_path}/stale ;;
        *) echo "apt-get ${{*##*--purge }}" >> {tmp_path}/told ;;
        esac""",
    )
    return tmp_path


def told(host):
    path = host / "told"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_one_transaction_and_the_marks(host):
    result = run_module("package_way_back", {"before": BEFORE})
    assert result["changed"] and result["removed"] == ["libnew"] and result["kept"] == []
    assert told(host) == [
        "apt-get install libnccl-dev=2.21.5-1+cuda12.4 libnccl2=2.21.5-1+cuda12.4 libnew-",
        "apt-mark hold libnccl-dev libnccl2",
    ]


def test_check_mode_tells_and_does_nothing(host):
    result = run_module("package_way_back", {"before": BEFORE}, check=True)
    assert result["changed"] and result["installed"] == [
        "libnccl-dev=2.21.5-1+cuda12.4",
        "libnccl2=2.21.5-1+cuda12.4",
    ]
    assert told(host) == []


def test_a_change_of_other_packages_stops_it(host):
    (host / "simulated").write_text(SIMULATED + "Remv of-the-user [1]\n", encoding="utf-8")
    result = run_module("package_way_back", {"before": BEFORE})
    assert (
        result["failed"]
        and "would also change of-the-user; nothing was changed. Change these packages yourself"
        in result["msg"]
    )
    assert told(host) == []


def test_version_that_is_gone_changes_nothing_and_lists_that_are_old_are_renewed(host):
    (host / "unknown").touch()
    result = run_module("package_way_back", {"before": BEFORE})
    assert result["failed"] and "was not found" in result["msg"]
    assert told(host) == []
    (host / "stale").touch()
    assert run_module("package_way_back", {"before": BEFORE})["changed"]


def test_nothing_to_bring_back(host):
    before = {
        "libnccl2": state("2.25.1-1+cuda12.8", "hi"),
        "libnccl-dev": state("2.25.1-1+cuda12.8", "ii"),
        "libnew": state("1", "ii", True),
        "bash": state("5.2", "ii"),
    }
    assert run_module("package_way_back", {"before": before})["changed"] is False
    assert told(host) == []
