"""nccl_tests_from_source: a build of sources that have nccl-tests' make variables, what is proved
of it, its record, and the way back.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROLES = Path(__file__).parents[3] / "roles"
HEADER = '#define NCCL_TESTS_VERSION "2.17.10"\n'
# Its words are those of nccl-tests' own: what is given on the command line, and what is left
# behind.
MAKEFILE = """
default:
\tmkdir -p build
\techo '$(MPI) $(MPI_HOME) $(CUDA_HOME) $(NCCL_HOME) $(NVCC_GENCODE) $(CXXSTD)' "$$LD_RUN_PATH" > build/all_reduce_perf
\tcp build/all_reduce_perf build/sendrecv_perf
\ttouch build/common.o
"""
LINKED = {
    "libnccl.so.2": "/usr/lib/libnccl.so.2",
    "libc.so.6": "/lib/libc.so.6",
    "libcuda.so.1": "",
}


def archive(path, makefile=MAKEFILE, header=HEADER, also=()):
    texts = [
        ("Makefile", makefile),
        ("src/Makefile", ""),
        ("src/common.h", header),
        ("src/all_reduce.cu", ""),
        *also,
    ]
    with tarfile.open(path, "w:gz") as tar:
        for name, text in texts:
            info = tarfile.TarInfo("nccl-tests-2.17.10/" + name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(name="program")
def fixture_program(monkeypatch):
    for folder in ("nccl/files", "nccl_tests/files"):
        monkeypatch.syspath_prepend(str(ROLES / folder))
    for name in ("source_build", "nccl_tests_from_source"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import nccl_tests_from_source

    return nccl_tests_from_source


@pytest.fixture(name="host")
def fixture_host(program, tmp_path, monkeypatch):
    linked, version = dict(LINKED), []
    monkeypatch.setattr(program.source, "libraries", lambda path: linked)
    monkeypatch.setattr(program, "nccl_version", lambda path: (version or ["2.21.5"])[0])
    for name in ("prefix", "cuda/lib64", "mpi/lib", "nccl/lib"):
        (tmp_path / name).mkdir(parents=True)
    record = tmp_path / "placed.d/nccl_tests.json"
    asked = {
        "tag": "v2.17.10",
        "source": "archive",
        "url": (tmp_path / "nccl-tests.tar.gz").as_uri(),
        "checksum": archive(tmp_path / "nccl-tests.tar.gz"),
        "commit": "",
        "cuda_home": str(tmp_path / "cuda"),
        "cuda": "12.4.131",
        "nccl_home": "/usr",
        "nccl": "2.21.5",
        "nccl_package": "",
        "mpi_home": "",
        "compute_capabilities": [],
        "make_variables": {},
        "prefix": str(tmp_path / "prefix"),
    }

    def run(**changed):
        monkeypatch.setenv("TRAINYARD_NCCL_TESTS", json.dumps(dict(asked, **changed)))
        monkeypatch.setattr(sys, "argv", ["nccl_tests_from_source", str(record)])
        program.main()

    def remove():
        done = subprocess.run(
            [
                sys.executable,
                "-B",
                str(ROLES / "nccl/files/source_build.py"),
                "remove",
                str(record),
            ],
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return SimpleNamespace(
        run=run,
        remove=remove,
        folder=tmp_path,
        record=record,
        linked=linked,
        version=version,
        error=program.source.StepError,
    )


def installed(host):
    return sorted(
        str(path.relative_to(host.folder / "prefix"))
        for path in (host.folder / "prefix").glob("**/*")
        if not path.is_dir()
    )


def told(host):
    return (host.folder / "prefix/bin/all_reduce_perf").read_text(encoding="utf-8").strip()


def test_built_installed_and_removed(host):
    host.run()
    assert installed(host) == ["bin/all_reduce_perf", "bin/sendrecv_perf"]
    assert told(host) == "0  {0}/cuda /usr   {0}/cuda/lib64".format(host.folder)
    record = json.loads(host.record.read_text(encoding="utf-8"))
    assert record["build"]["tag"] == "v2.17.10" and record["folders"] == [
        str(host.folder / "prefix/bin")
    ]
    assert not list(Path("/var/tmp").glob("trainyard-nccl-tests.*"))
    host.remove()
    assert (
        installed(host) == []
        and not (host.folder / "prefix/bin").exists()
        and not host.record.exists()
    )
    assert host.remove() == ""


def test_mpi_and_what_else_is_asked_reach_make_and_the_linker(host):
    host.run()
    host.linked["libmpi.so.40"] = "/usr/lib/libmpi.so.40"
    home, nccl = host.folder / "mpi", host.folder / "nccl"
    host.run(
        mpi_home=str(home),
        nccl_home=str(nccl),
        compute_capabilities=["80", "90"],
        make_variables={"CXXSTD": "-std=c++17"},
    )
    assert told(host) == (
        "1 {0}/mpi {0}/cuda {0}/nccl -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 -std=c++17 "
        "{0}/nccl/lib:{0}/mpi/lib:{0}/cuda/lib64"
    ).format(host.folder)


def test_the_record_tells_whose_a_file_is(host):
    (host.folder / "prefix/bin").mkdir()
    theirs = host.folder / "prefix/bin/sendrecv_perf"
    theirs.write_text("theirs", encoding="utf-8")
    with pytest.raises(host.error, match="sendrecv_perf already exists.* set nccl_tests_prefix"):
        host.run()
    assert installed(host) == ["bin/sendrecv_perf"] and not host.record.exists()
    theirs.unlink()
    host.run()
    theirs.write_text("changed", encoding="utf-8")
    assert "sendrecv_perf is kept" in host.remove()
    assert installed(host) == ["bin/sendrecv_perf"]


def test_another_build_takes_the_place_of_the_former(host):
    host.run()
    # A tag without one of the programs, and another folder.
    host.run(
        checksum=archive(
            host.folder / "nccl-tests.tar.gz",
            makefile=MAKEFILE.replace("cp build/all_reduce_perf build/sendrecv_perf", "true"),
        )
    )
    assert installed(host) == ["bin/all_reduce_perf"]
    (host.folder / "other").mkdir()
    host.run(checksum=archive(host.folder / "nccl-tests.tar.gz"), prefix=str(host.folder / "other"))
    assert installed(host) == [] and (host.folder / "other/bin/sendrecv_perf").exists()


@pytest.mark.parametrize(
    "linked, version, changed, message",
    [
        (
            {"libmpi.so.40": "/usr/lib/libmpi.so.40"},
            "2.21.5",
            {},
            "built with MPI, contrary to nccl_tests_mpi",
        ),
        # As it happens where MPI=1 didn't reach the compiler: each rank would measure itself.
        ({}, "2.21.5", {"mpi_home": "/mpi"}, "built without MPI, contrary to nccl_tests_mpi"),
        (
            {"libmpi.so.40": ""},
            "2.21.5",
            {"mpi_home": "/mpi"},
            "the loader does not find libmpi.so.40",
        ),
        ({"libnccl.so.2": ""}, "2.21.5", {}, "the loader does not find libnccl.so.2"),
        (
            {},
            "2.20.3",
            {},
            "built with NCCL 2.21.5, but the loader finds 2.20.3 in /usr/lib/libnccl.so.2",
        ),
    ],
)
def test_a_build_that_is_not_what_was_asked_for_is_not_installed(
    host, linked, version, changed, message
):
    host.linked.update(linked)
    host.version.append(version)
    with pytest.raises(host.error, match=message):
        host.run(**changed)
    assert installed(host) == [] and not host.record.exists()


@pytest.mark.parametrize(
    "also, makefile, changed, message",
    [
        ((), MAKEFILE, {"checksum": "0" * 64}, "nccl_tests_checksum: .* has the SHA-256 checksum"),
        (
            (),
            MAKEFILE,
            {"tag": "v2.17.9"},
            "the sources are those of nccl-tests 2.17.10, but nccl_tests_tag is v2.17.9",
        ),
        ((), "default:\n\tfalse\n", {}, "exit code 2"),
        ((), "default:\n", {}, "no build/all_reduce_perf"),
        ([("../../outside", "x")], MAKEFILE, {}, "does not belong to source code"),
        ((), MAKEFILE, {"url": "file:///nowhere.tar.gz"}, "can't be downloaded"),
    ],
)
def test_builds_that_fail_leave_what_was_there(host, also, makefile, changed, message):
    host.run()
    before = told(host)
    checksum = archive(host.folder / "nccl-tests.tar.gz", makefile=makefile, also=also)
    with pytest.raises(host.error, match=message):
        host.run(**dict({"checksum": checksum}, **changed))
    assert told(host) == before and host.record.exists()
    assert not list(Path("/var/tmp").glob("trainyard-nccl-tests.*"))


def test_sources_of_something_else(host):
    path = host.folder / "nccl-tests.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("nccl-2.21.5/src/Makefile"))
    with pytest.raises(host.error, match="no src/all_reduce.cu"):
        host.run(checksum=hashlib.sha256(path.read_bytes()).hexdigest())
    path.write_bytes(b"<html>")
    with pytest.raises(host.error, match="is not an archive"):
        host.run(checksum=hashlib.sha256(b"<html>").hexdigest())


def test_by_git_at_the_tags_commit(host, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv("GIT_%s_NAME" % name, "somebody")
        monkeypatch.setenv("GIT_%s_EMAIL" % name, "somebody@example.com")
    repository = host.folder / "repository"
    (repository / "src").mkdir(parents=True)
    for name, text in (("Makefile", MAKEFILE), ("src/common.h", HEADER), ("src/all_reduce.cu", "")):
        (repository / name).write_text(text, encoding="utf-8")

    def git(*words):
        return subprocess.run(
            ["git", "-C", str(repository), *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    git("tag", "--annotate", "--message", "tag", "v2.17.10")
    first = git("rev-parse", "HEAD")
    asked = {"source": "git", "url": repository.as_uri(), "checksum": "", "commit": first}
    host.run(**asked)
    assert installed(host) == ["bin/all_reduce_perf", "bin/sendrecv_perf"]
    # Somebody moves the tag.
    (repository / "Makefile").write_text("default:\n\tfalse\n", encoding="utf-8")
    git("commit", "--quiet", "--all", "--message", "second")
    git("tag", "--force", "--annotate", "--message", "tag", "v2.17.10")
    with pytest.raises(
        host.error,
        match="nccl_tests_commit: tag v2.17.10 of .* is commit %s, expected %s"
        % (git("rev-parse", "HEAD"), first),
    ):
        host.run(**asked)
    with pytest.raises(host.error, match="git clone: exit code 128"):
        host.run(**dict(asked, tag="v9.9.9"))


def test_what_the_loader_says(program):
    said = (
        "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibnccl.so.2 => /usr/lib/x86_64-linux-gnu/libnccl.so.2 (0x00007f1c4c000000)\n"
        "\tlibmpi.so.40 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f1c)\n"
    )
    assert program.source.parse_libraries(said) == {
        "libnccl.so.2": "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
        "libmpi.so.40": "",
    }
    assert program.source.parse_libraries("\tnot a dynamic executable\n") == {}


@pytest.mark.parametrize(
    "code, version", [(22105, "2.21.5"), (2804, "2.8.4"), (20903, "2.9.3"), (22902, "2.29.2")]
)
def test_nccls_version_by_its_number(program, monkeypatch, code, version):
    def tell(pointer):
        pointer._obj.value = code

    monkeypatch.setattr(program.ctypes, "CDLL", lambda path: SimpleNamespace(ncclGetVersion=tell))
    assert program.nccl_version("/nowhere") == version
