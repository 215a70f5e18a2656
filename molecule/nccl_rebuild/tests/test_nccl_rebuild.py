"""The finished image: Horovod compiled with the NCCL of exactly the requested packages."""

import json
import re

import pytest

testinfra_hosts = ["ansible://cluster"]

VERSION = "2.28.9-1+cuda13.0"
BASE = "site/pytorch:2.11.0-cuda13.0"


@pytest.fixture(name="image")
def fixture_image(host):
    # The base is also an image of the role. Use the newer one.
    names = host.check_output(
        "docker images --format '{{.Repository}}:{{.Tag}}' --filter since=%s trainyard/training",
        BASE,
    ).split()
    assert len(names) == 1, names
    return names[0]


def ticked(table):
    heading, found = "", set()
    for line in table.splitlines():
        heading = line.strip(" :") if line.startswith("Available") else heading
        if "[X]" in line:
            found.add((heading.split()[-1], line.split()[-1]))
    return found


def test_nccl_is_ticked_where_it_was_not(in_image):
    before, after = (
        ticked(in_image("horovodrun --check-build", BASE)),
        ticked(in_image("horovodrun --check-build")),
    )
    assert before == {("Frameworks", "PyTorch"), ("Controllers", "Gloo"), ("Operations", "Gloo")}
    assert after == before | {("Operations", "NCCL")}


def test_horovod_loads_the_packages_library(in_image):
    linked = in_image(
        "ldd $(python3 -c 'import horovod.torch.mpi_lib_v2 as library; print(library.__file__)')"
    )
    assert re.search(r"libnccl\.so\.2 => (/usr)?/lib/x86_64-linux-gnu/libnccl\.so\.2 ", linked), (
        linked
    )
    assert (
        in_image(
            "python3 -c 'import ctypes, torch; n = ctypes.c_int(); "
            'ctypes.CDLL("/usr/lib/x86_64-linux-gnu/libnccl.so.2").ncclGetVersion(ctypes.byref(n)); print(n.value)\''
        ).strip()
        == "22809"
    )


def test_both_packages_at_the_exact_version_pinned_and_held(in_image):
    for package in ("libnccl2", "libnccl-dev"):
        assert in_image(f"dpkg-query --show --showformat='${{Version}}' {package}") == VERSION
        assert "%s\n" % package in in_image("apt-mark showhold") + "\n"
    assert re.search(
        r"Pin: version %s\nPin-Priority: 100[1-9]" % re.escape(VERSION),
        in_image("cat /etc/apt/preferences.d/*"),
    )


def test_apt_with_the_repository_still_wants_that_version(host, image):
    """The repository has a newer version, so the preference prevents its installation."""
    policy = host.check_output(
        "docker run --rm --volume /srv/repository/repository.asc:/key.asc:ro --entrypoint sh %s -c %s",
        image,
        "echo 'deb [signed-by=/key.asc] http://172.30.86.61:8000/ /' > /etc/apt/sources.list && rm -f /etc/apt/sources.list.d/* "
        "&& apt-get update >&2 && apt-cache policy libnccl2",
    )
    assert f"Candidate: {VERSION}" in policy and "2.30.7-1+cuda13.2" in policy, policy


def test_nothing_of_the_repository_stays(host, image, in_image):
    assert "8000" not in in_image(
        "cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null; true"
    )
    assert "172.30.86.61" not in host.check_output("docker history --no-trunc %s", image)
    assert "172.30.86.61" not in host.check_output("docker inspect %s", image)


def test_two_ranks_reduce_with_it(in_image):
    script = (
        "import horovod.torch as hvd, torch; hvd.init(); assert hvd.nccl_built() and hvd.size() == 2; "
        "print('sum', hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum).item())"
    )
    output = in_image(f'horovodrun --gloo -np 2 -H localhost:2 python3 -c "{script}"')
    assert len(re.findall(r"sum 3\.0", output)) == 2, output


def test_nccl_tests_are_built_with_the_same_nccl(in_image):
    """Started by name, as mpirun does on another host. The base has no mpirun, so they have
    no MPI.
    """
    assert in_image("all_reduce_perf") == "headers=22809 library=22809 ranks=0"
    assert in_image("command -v sendrecv_perf").startswith("/usr/local/lib/trainyard/bin/")
    # Of the build tools only the mount points of BuildKit are left.
    assert in_image("find /run/trainyard /tmp/trainyard-* ! -type d 2>/dev/null || true") == ""


def test_compiled_once(host, image):
    """Converge compiled Horovod, and its second run (idempotence) did not start a build."""
    layers = json.loads(
        host.check_output("docker inspect --format '{{json .RootFS.Layers}}' %s", image)
    )
    base = json.loads(
        host.check_output("docker inspect --format '{{json .RootFS.Layers}}' %s", BASE)
    )
    assert layers[: len(base)] == base and len(layers) > len(base)
    # One for the base (prepare), one for the rebuild.
    assert (
        host.check_output(
            "journalctl --unit trainyard-image-build --output cat | grep -c '^Started '"
        )
        == "2"
    )
