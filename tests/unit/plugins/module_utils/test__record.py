from __future__ import annotations

import base64
import os
import stat
from types import SimpleNamespace

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._record import (
    DamagedRecord,
    Record,
    recorded,
)


class Failed(Exception):
    pass


@pytest.fixture
def module():
    def fail_json(msg):
        raise Failed(msg)

    return SimpleNamespace(check_mode=False, fail_json=fail_json)


def test_a_record_is_written_whole_for_root_alone_and_an_empty_one_is_removed(module, tmp_path):
    record = Record(module, str(tmp_path / "placed.d/role.json"))
    assert record.read() == {}
    record.write({"packages": []})
    assert record.read() == {"packages": []} and os.listdir(tmp_path / "placed.d") == ["role.json"]
    assert stat.S_IMODE(os.stat(record.path).st_mode) == 0o600
    record.write({})
    assert record.read() == {} and os.listdir(tmp_path / "placed.d") == []
    record.write({})


def test_what_an_interrupted_run_left_is_neither_read_nor_kept(module, tmp_path):
    record = Record(module, str(tmp_path / "role.json"))
    (tmp_path / "role.json.unfinished").write_text("{", encoding="utf-8")
    (tmp_path / "role.json.unfinished").chmod(0o644)
    assert record.read() == {}
    record.write({"a": 1})
    assert (
        os.listdir(tmp_path) == ["role.json"]
        and stat.S_IMODE(os.stat(record.path).st_mode) == 0o600
    )


def test_check_mode_writes_and_removes_nothing(module, tmp_path):
    record = Record(module, str(tmp_path / "role.json"))
    record.write({"a": 1})
    module.check_mode = True
    record.write({"a": 2})
    record.write({})
    assert record.read() == {"a": 1}
    Record(module, str(tmp_path / "new/role.json")).write({"a": 1})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"{", "is damaged (Expecting property name"),
        (b"[]", "is damaged (a dictionary is expected)"),
        (b"null", "is damaged (a dictionary is expected)"),
        (b"\xff{}", "is damaged ('utf-8' codec can't decode"),
    ],
)
def test_a_damaged_record_is_an_error_that_says_what_to_do(module, tmp_path, content, reason):
    (tmp_path / "role.json").write_bytes(content)
    with pytest.raises(Failed) as error:
        Record(module, str(tmp_path / "role.json")).read()
    assert str(error.value).startswith(str(tmp_path / "role.json")) and reason in str(error.value)
    assert "Restore it from a backup, or remove it" in str(error.value)
    with pytest.raises(DamagedRecord) as of_filter:
        recorded(
            {"content": base64.b64encode(content).decode(), "source": str(tmp_path / "role.json")}
        )
    assert str(of_filter.value) == str(error.value)


def test_a_role_reads_its_record_by_a_filter():
    assert recorded(
        {"content": base64.b64encode(b'{"account": true}').decode(), "source": "/r.json"}
    ) == {"account": True}
    assert recorded({"content": "", "source": "/r.json"}) == {}


def test_an_empty_file_is_no_record(module, tmp_path):
    (tmp_path / "role.json").write_bytes(b"")
    assert Record(module, str(tmp_path / "role.json")).read() == {}
