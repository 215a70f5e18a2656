"""nccl_from_source: a build of an archive that has NCCL's make targets, its record, and the way
back.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[3] / "roles/nccl/files"
MAKEFILE = """
src.build:
\tmkdir -p build/lib/pkgconfig build/include
\tprintf '#define NCCL_MAJOR 2\\n#define NCCL_MINOR 21\\n#define NCCL_PATCH 5\\n' > build/include/nccl.h
\tprintf 'library for %s\\n' '$(NVCC_GENCODE)' > build/lib/libnccl.so.2.21.5
\tln -sf libnccl.so.2.21.5 build/lib/libnccl.so.2
\tprintf 'prefix=%s\\n' '$(PREFIX)' > build/lib/pkgconfig/nccl.pc
src.install: src.build-not-again
\tmkdir -p $(PREFIX)
\tcp -P -r build/lib build/include $(PREFIX)/
src.build-not-again:
"""


def archive(path, top="nccl-2.21.5-1", makefile=MAKEFILE, also=()):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in [(top + "/Makefile", makefile), (top + "/src/Makefile", ""), *also]:
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(name="host")
def fixture_host(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAMS))
    for name in ("source_build", "nccl_from_source"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import nccl_from_source

    source = nccl_from_source.source
    monkeypatch.setattr(
        nccl_from_source, "LOADER", str(tmp_path / "ld.so.conf.d/trainyard-nccl.conf")
    )
    (tmp_path / "ld.so.conf.d").mkdir()
    (tmp_path / "prefix/include").mkdir(parents=True)
    real, called = source.run, []
    monkeypatch.setattr(
        source,
        "run",
        lambda *command: called.append(command) if command[0] == "ldconfig" else real(*command),
    )
    record = tmp_path / "placed.d/nccl.json"
    asked = {
        "version": "2.21.5",
        "url": (tmp_path / "nccl.tar.gz").as_uri(),
        "checksum": archive(tmp_path / "nccl.tar.gz"),
        "cuda_home": "/usr/local/cuda",
        "prefix": str(tmp_path / "prefix"),
        "compute_capabilities": ["90"],
    }

    def run(step, **changed):
        if step == "remove":
            # In place of ldconfig, a command that leaves a trace.
            subprocess.run(
                [
                    sys.executable,
                    "-B",
                    str(PROGRAMS / "source_build.py"),
                    "remove",
                    str(record),
                    "touch",
                    str(tmp_path / "ldconfig"),
                ],
                check=True,
            )
            return
        monkeypatch.setenv("TRAINYARD_NCCL", json.dumps(dict(asked, **changed)))
        monkeypatch.setattr(sys, "argv", ["nccl_from_source", str(record)])
        nccl_from_source.main()

    run.folder, run.record, run.called, run.error = tmp_path, record, called, source.StepError
    return run


def installed(host):
    return sorted(
        str(path.relative_to(host.folder / "prefix"))
        for path in (host.folder / "prefix").glob("**/*")
        if not path.is_dir()
    )


def test_built_installed_and_removed(host):
    host("install")
    assert installed(host) == [
        "include/nccl.h",
        "lib/libnccl.so.2",
        "lib/libnccl.so.2.21.5",
        "lib/pkgconfig/nccl.pc",
    ]
    assert "compute_90,code=sm_90" in (host.folder / "prefix/lib/libnccl.so.2").read_text(
        encoding="utf-8"
    )
    # Not the folder that it was installed into on the way.
    assert (host.folder / "prefix/lib/pkgconfig/nccl.pc").read_text(
        encoding="utf-8"
    ) == "prefix=%s\n" % (host.folder / "prefix")
    assert (host.folder / "ld.so.conf.d/trainyard-nccl.conf").read_text(
        encoding="utf-8"
    ) == "%s/lib\n" % (host.folder / "prefix")
    assert json.loads(host.record.read_text(encoding="utf-8"))["build"][
        "version"
    ] == "2.21.5" and host.called == [("ldconfig",)]
    # Built in another way, it takes the place of the former.
    host("install", compute_capabilities=["80"])
    assert "sm_80" in (host.folder / "prefix/lib/libnccl.so.2").read_text(encoding="utf-8")
    host("remove")
    assert (
        installed(host) == []
        and not host.record.exists()
        and not list((host.folder / "ld.so.conf.d").iterdir())
    )
    # The folder that was there stays, the one that came goes.
    assert (host.folder / "prefix/include").is_dir() and not (host.folder / "prefix/lib").exists()
    # The loader is told, once.
    (host.folder / "ldconfig").unlink()
    host("remove")
    assert not (host.folder / "ldconfig").exists()


def test_what_was_changed_since_stays(host):
    host("install")
    (host.folder / "prefix/include/nccl.h").write_text("mine", encoding="utf-8")
    host("remove")
    assert installed(host) == ["include/nccl.h"]


@pytest.mark.parametrize(
    "content, reason", [("{", "Expecting property name"), ("[]", "a dictionary is expected")]
)
def test_a_damaged_record_says_what_to_do(host, content, reason):
    host("install")
    host.record.write_text(content, encoding="utf-8")
    with pytest.raises(
        host.error,
        match=r"nccl\.json is damaged \(%s.*Restore it from a backup, or remove it and these files"
        % reason,
    ):
        host("install", compute_capabilities=["80"])
    with pytest.raises(subprocess.CalledProcessError) as error:
        subprocess.run(
            [
                sys.executable,
                "-B",
                str(PROGRAMS / "source_build.py"),
                "remove",
                str(host.record),
                "true",
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    assert "is damaged" in error.value.stderr and "Traceback" not in error.value.stderr
    assert "lib/libnccl.so.2" in installed(host)


def test_what_is_somebody_else_s_is_not_overwritten(host):
    (host.folder / "prefix/include/nccl.h").write_text("theirs", encoding="utf-8")
    with pytest.raises(host.error, match="include/nccl.h already exists"):
        host("install")
    assert installed(host) == ["include/nccl.h"] and not host.record.exists()


@pytest.mark.parametrize(
    "also, makefile, changed, message",
    [
        ((), MAKEFILE, {"checksum": "0" * 64}, "has the SHA-256 checksum"),
        (
            (),
            MAKEFILE,
            {"version": "2.22.3"},
            "the archive contains NCCL 2.21.5, but nccl_version is 2.22.3",
        ),
        ((), "src.build:\n\tfalse\n", {}, "exit code 2"),
        ((), "src.build:\nsrc.install:\n", {}, "no include/nccl.h"),
        ([("../outside", "x")], MAKEFILE, {}, "does not belong to source code"),
        ((), MAKEFILE, {"url": "file:///nowhere.tar.gz"}, "can't be downloaded"),
    ],
)
def test_builds_that_fail_leave_nothing(host, also, makefile, changed, message):
    checksum = archive(host.folder / "nccl.tar.gz", makefile=makefile, also=also)
    with pytest.raises(host.error, match=message):
        host("install", **dict({"checksum": checksum}, **changed))
    assert installed(host) == [] and not host.record.exists()


@pytest.mark.parametrize(
    "target, is_refused",
    [
        ("/etc", True),
        ("../../../etc", True),
        ("src/Makefile", False),
        ("../nccl-2.21.5-1/src", False),
    ],
)
def test_a_link_in_the_archive_leads_nowhere_else(host, target, is_refused):
    path = host.folder / "nccl.tar.gz"
    archive(path)
    with tarfile.open(path) as whole:
        members = [(member, whole.extractfile(member).read()) for member in whole.getmembers()]
    link = tarfile.TarInfo("nccl-2.21.5-1/link")
    link.type, link.linkname = tarfile.SYMTYPE, target
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(link)
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    if is_refused:
        with pytest.raises(host.error, match="does not belong to source code"):
            host("install", checksum=checksum)
    else:
        host("install", checksum=checksum)
    assert (installed(host) == []) == is_refused


def test_an_archive_of_something_else(host):
    path = host.folder / "nccl.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("readme"))
    with pytest.raises(host.error, match="does not contain NCCL"):
        host("install", checksum=hashlib.sha256(path.read_bytes()).hexdigest())
    path.write_bytes(b"<html>")
    with pytest.raises(host.error, match="is not an archive"):
        host("install", checksum=hashlib.sha256(b"<html>").hexdigest())
