"""A requested restart of the engine, independent of the file. The merge has separate tests."""

from __future__ import annotations

import json

import pytest
from scripted_tools import run_module, scripts


@pytest.fixture(name="host")
def _host(tmp_path, monkeypatch):
    """A running engine of 24.0; what systemctl was told lies in the file told."""
    script = scripts(tmp_path, monkeypatch)
    script("dockerd", 'echo "Docker version 24.0.7, build afdd53b"')
    script("journalctl", "")
    script(
        "systemctl",
        f"""
        case "$*" in
        *--property=Job*) echo 0 ;;
        show*) printf 'LoadState=loaded\\nActiveState=active\\nSubState=running\\n' ;;
        *) echo "$*" >> {tmp_path}/told ;;
        esac""",
    )
    script(
        "docker",
        f"""
        case "$*" in
        *" ps "*) cat {tmp_path}/containers 2>/dev/null ;;
        *" info "*) echo false ;;
        *) echo 24.0.7 ;;
        esac""",
    )
    (tmp_path / "daemon.json").write_text('{"debug":   true}', encoding="utf-8")
    return tmp_path


def run(host, check=False, **arguments):
    return run_module(
        "docker_daemon_config",
        {"path": str(host / "daemon.json"), "record": str(host / "record.json"), **arguments},
        check=check,
    )


def told(host):
    path = host / "told"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_nothing_that_differs_is_nothing_to_do(host):
    result = run(host, options={"debug": True})
    assert (result["changed"], result["action"], told(host)) == (False, "none", [])


def test_restart_alone_leaves_the_file_as_it_is_written(host):
    result = run(host, options={"debug": True}, restart=True)
    assert (result["changed"], result["action"]) == (True, "restart")
    assert "restart --no-block docker.service" in told(host)
    assert (host / "daemon.json").read_text(encoding="utf-8") == '{"debug":   true}'
    assert not (host / "record.json").exists()


def test_restart_where_a_reload_would_do(host):
    options = {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}
    assert run(host, check=True, options=options)["action"] == "reload"
    assert run(host, options=options, restart=True)["action"] == "restart"
    assert "restart --no-block docker.service" in told(host)
    assert (
        json.loads((host / "record.json").read_text(encoding="utf-8"))["daemon_config"]["pending"]
        is False
    )
    assert run(host, options=options)["changed"] is False


def test_containers_that_it_would_stop_are_named_first(host):
    (host / "containers").write_text("job-7\n", encoding="utf-8")
    for check in (True, False):
        result = run(host, check=check, options={"debug": True}, restart=True)
        assert result["failed"] and "would stop: job-7" in result["msg"]
    assert told(host) == []
