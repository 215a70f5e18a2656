# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Digests, archives, messages of skopeo 1.9.3 and buildah 1.28.2, and what the files of an image
tell.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _image_relay as read


def archive(path, *names):
    with tarfile.open(path, "w") as opened:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            opened.addfile(member, io.BytesIO(b"{}"))
    return str(path)


@pytest.mark.parametrize(
    "names, kind",
    [
        (["manifest.json", "0.json"], "docker-archive"),
        (["./0.json", "./manifest.json"], "docker-archive"),
        (["oci-layout", "index.json", "blobs/sha256/1"], "oci-archive"),
        # docker save of version 25 and later.
        (["blobs/sha256/1", "index.json", "manifest.json", "oci-layout"], "docker-archive"),
    ],
)
def test_archives(tmp_path, names, kind):
    path = archive(tmp_path / "a.tar", *names)
    assert read.archive_reference(path) == "%s:%s" % (kind, path)


def test_what_is_no_archive(tmp_path):
    with pytest.raises(read.ParseError, match="neither an archive of Docker nor an OCI archive"):
        read.archive_reference(archive(tmp_path / "a.tar", "etc/passwd", "index.json"))
    (tmp_path / "text").write_text("no archive\n")
    with pytest.raises(read.ParseError, match="no readable archive"):
        read.archive_reference(str(tmp_path / "text"))
    with pytest.raises(read.ParseError, match="does not exist on this host"):
        read.archive_reference(str(tmp_path / "none"))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(archive(tmp_path / "a.tar", "a", "b")).read_bytes()[:700])
    with pytest.raises(read.ParseError):
        read.archive_reference(str(cut))


PING = 'time="2026-11-27T11:41:26Z" level=fatal msg="Error parsing image name \\"docker://r/x:1\\": %s"\n'


@pytest.mark.parametrize(
    "said, cause",
    [
        (
            PING
            % 'pinging container registry r: Get \\"https://r/v2/\\": http: server gave HTTP response to HTTPS client',
            "the registry has no TLS",
        ),
        (
            PING
            % 'pinging container registry r: Get \\"https://r/v2/\\": x509: certificate signed by unknown authority',
            "its certificate is not trusted",
        ),
        (
            PING % "reading manifest 1 in r/x: unauthorized: authentication required",
            "the registry refuses the login; correct image_relay_source_logins",
        ),
        (
            PING % "reading manifest 1 in r/x: manifest unknown: manifest unknown",
            "the registry has no such image",
        ),
        (
            PING
            % 'pinging container registry r: Get \\"http://r/v2/\\": dial tcp 192.0.2.1:5080: connect: connection refused',
            "the registry does not answer",
        ),
        (PING % "received unexpected HTTP status: 502 Bad Gateway", "the registry does not answer"),
        (
            PING % "denied: the registry is full: delete images of yours, or tell the operator",
            "the registry is full; raise image_relay_max_gib",
        ),
        (
            PING % "denied: people write below their own name only",
            "the registry does not permit it",
        ),
        (
            PING % "writing blob: write /srv/relay/work/x: no space left on device",
            "the disk is full",
        ),
        ("Error: something new\n", "Error: something new; correct what it names"),
        ("", "no message; correct what it names"),
    ],
)
def test_messages(said, cause):
    assert read.explain(said).startswith(cause)
    assert read.is_missing(said) == ("unknown: manifest" in said)


def test_the_last_line_is_shown_without_its_frame():
    assert (
        read.last_line("first\n" + PING % '\\"why\\"' + "\n")
        == 'Error parsing image name "docker://r/x:1": "why"'
    )


def test_platforms():
    index = {
        "manifests": [
            {"platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
            {"platform": {"os": "linux", "architecture": "amd64"}},
            {"platform": {"os": "unknown", "architecture": "unknown"}},
        ]
    }
    assert read.platforms_of(json.dumps(index), "{}") == ["linux/amd64", "linux/arm64/v8"]
    assert read.platforms_of('{"config": {}}', '{"os": "linux", "architecture": "amd64"}') == [
        "linux/amd64"
    ]
    for text in ("", "[]", '{"manifests": [1]}'):
        with pytest.raises(read.ParseError, match="cannot be read"):
            read.platforms_of(text, "{}")


def test_packages():
    names = [
        "torch-2.5.1+cu121.dist-info",
        "torch",
        "tensorflow_cpu-2.15.0.dist-info",
        "mxnet_cu112-1.9.1.dist-info",
        "horovod-0.28.1-py3.8.egg-info",
        "ruamel.yaml-0.17.dist-info",
        "torch_model_archiver-0.1.dist-info",
        "distutils-precedence.pth",
        "not-a-version.dist-info",
        "torchvision-0.20.1+cu121.dist-info",
    ]
    assert read.packages_of(names) == {
        "torch": "2.5.1+cu121",
        "tensorflow": "2.15.0",
        "mxnet": "1.9.1",
        "horovod": "0.28.1",
        "ruamel-yaml": "0.17",
        "torch-model-archiver": "0.1",
        "torchvision": "0.20.1+cu121",
    }


def test_versions_of_an_image(tmp_path):
    for path in (
        "opt/conda/lib/python3.11/site-packages/torch-2.5.1.dist-info",
        "usr/lib/python3/dist-packages/numpy-1.24.2.egg-info",
        "opt/conda/bin",
        "usr/bin",
        "proc/lib/site-packages/mxnet-9.dist-info",
    ):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "opt/conda/bin/python3.11").touch()
    (tmp_path / "opt/conda/bin/python3").symlink_to("python3.11")
    (tmp_path / "usr/bin/python3").symlink_to("/usr/bin/python3.9")
    environment = [
        "PATH=/opt/conda/bin:/usr/bin",
        "CUDA_VERSION=12.4.1",
        "NCCL_VERSION=2.21.5-1",
        "OTHER",
    ]
    assert read.versions_of(str(tmp_path), environment) == (
        {"PyTorch": "2.5.1"},
        {
            "torch": "2.5.1",
            "numpy": "1.24.2",
            "cuda": "12.4.1",
            "nccl": "2.21.5-1",
            "python": "3.11",
        },
    )
    # A link to what the image lacks, although this host has it, tells nothing.
    assert read.python_of(str(tmp_path), "/usr/bin") == ""
    (tmp_path / "usr/bin/python3.9").touch()
    assert read.python_of(str(tmp_path), "relative:/usr/bin") == "3.9"


def test_links_are_not_followed_out_of_the_image(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "outside/site-packages/torch-9.9.dist-info").mkdir(parents=True)
    (tmp_path / "root/lib").symlink_to(tmp_path / "outside")
    assert read.versions_of(str(tmp_path / "root"), []) == ({}, {})


def test_options_for_a_registry_without_tls():
    assert (
        read.tls_options("docker://r:5080/x", ["r:5080"]) == ["--tls-verify=false"]
        and read.tls_options("docker://r:5081/x", ["r:5080"]) == []
    )
    assert read.tls_options("docker-archive:/r:5080/x", ["r:5080"], "--src-tls-verify") == []
