"""The check leaves no files, and the hosts of the scenario share the accepted folder."""

import pytest

testinfra_hosts = ["ansible://cluster"]


@pytest.mark.parametrize("folder", ["/data1/share", "/srv/second", "/run/lock", "/opt"])
def test_nothing_is_left(host, folder):
    assert not host.file(folder + "/.trainyard").exists


def test_file_crosses_hosts(host):
    """Each host adds a line, and the last one sees all lines."""
    name = host.backend.host
    host.check_output("echo %s >> /data1/share/crossing", name)
    lines = host.file("/data1/share/crossing").content_string.split()
    assert (
        lines == ["shared-storage-a", "shared-storage-b", "shared-storage-c"][: len(lines)]
        and lines[-1] == name
    )
