"""Meaning of error messages: each is recognised by its text, and docs/errors.md has the same
content.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import errors_page
import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _host_health
from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import (
    COMMON,
    SIGNATURES,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import ADVICE, XIDS
from ansible_collections.trainyard.gpu.plugins.plugin_utils._signatures import DOCS, explain

FIXTURES = Path(__file__).parents[3] / "fixtures"


def ids(text):
    return [meaning["signature"] for meaning in explain(text)]


@pytest.mark.parametrize(
    "signature, text",
    [(signature.id, text) for signature in SIGNATURES for text in signature.examples],
)
def test_each_message_is_known(signature, text):
    (meaning,) = explain("before\n[1,0]<stderr>: %s\nafter\n" % text)
    assert meaning["signature"] == signature
    assert meaning["line"] == " ".join(("[1,0]<stderr>: %s" % text).split())
    assert meaning["link"] == "%s#%s" % (DOCS, signature)
    assert (
        meaning["cause"].endswith(".")
        and meaning["fix"].endswith(".")
        and "{" not in meaning["cause"] + meaning["fix"]
    )


def test_the_page_of_the_docs():
    page = errors_page.page(SIGNATURES, COMMON, XIDS, ADVICE)
    assert errors_page.PAGE.read_text(encoding="utf-8") == page, "run make docs"
    titles = {signature.id for signature in SIGNATURES} | {
        xid.signature for xid in [*XIDS.values(), *_host_health._SWITCH.values()]
    }
    assert all("\n## %s\n" % title in page for title in titles)
    # It starts with the most common ones, and has all in one table.
    first, rest = page.partition("\n## All messages\n")[::2]
    assert [title for title in COMMON if "](#%s)" % title in first] == COMMON
    assert all("\n| [%s](#%s) | " % (title, title) in rest for title in titles)


@pytest.mark.parametrize(
    "path, signature",
    [
        ("horovod/err-extension-not-built-0.16.txt", "horovod_extension_missing"),
        ("horovod/err-gloo-not-built.txt", "horovod_no_gloo"),
        ("horovod/err-neither-mpi-nor-gloo.txt", "horovod_no_controller"),
        ("horovod/err-ssh-permission-denied-0.19.txt", "ssh_denied"),
        ("horovod/err-ssh-permission-denied-old-no-remote-line.txt", "ssh_denied"),
        ("horovod/err-ssh-timeout-runtimeerror.txt", "ssh_failed"),
        ("horovod/err-timeout-tasks-to-start-ray-prefixed.txt", "horovod_tasks_timeout"),
        ("horovod/err-unrecognized-arguments-0.16.1.txt", "horovodrun_arguments"),
        ("nvidia-smi-fail/handle-gpu-lost-double-blank.txt", "gpu_lost"),
        ("nvidia-smi-fail/handle-gpu-lost-windows-wrapped.txt", "gpu_lost"),
        ("nvidia-smi-fail/handle-gpu0-then-no-devices.txt", "gpu_lost"),
        ("nvidia-smi-fail/handle-unknown-error-no-space.txt", "gpu_lost"),
        ("nvidia-smi-fail/no-devices.txt", "no_devices"),
        ("nvidia-smi-fail/no-devices-580-node-closed.txt", "no_devices"),
        ("nvidia-smi-fail/no-libnvidia-ml-580.txt", "nvml_library_missing"),
        ("nvidia-smi-fail/stub-library-580.txt", "cuda_stub_library"),
        ("gpu-jobs/two-ranks-one-gpu-torchrun.txt", "duplicate_gpu"),
        ("gpu-jobs/two-ranks-one-gpu-horovodrun.txt", "nccl_invalid_usage"),
        ("gpu-jobs/more-ranks-than-gpus-torchrun.txt", "too_many_gpus"),
        ("all_reduce_perf/fail-2.19.6-duplicate-gpu.txt", "duplicate_gpu"),
        ("nvidia-smi-fail/no-driver-modprobe-352.txt", "driver_not_loaded"),
        ("nvidia-smi-fail/no-libnvidia-ml.txt", "nvml_library_missing"),
        ("nvidia-smi-fail/nvml-mismatch-old.txt", "driver_library_mismatch"),
        ("nvidia-smi-fail/nvml-mismatch-with-library-version-570.txt", "driver_library_mismatch"),
        ("nvidia-smi-fail/nvml-unknown-error.txt", "nvml_unknown_error"),
        ("ubuntu/incident-unattended-driver-upgrade.txt", "persistenced_socket"),
        ("all_reduce_perf/fail-cuda-stub-nccl-info.txt", "cuda_stub_library"),
        ("all_reduce_perf/fail-sophia-nccl-system-error-8ranks.txt", "nccl_system_error"),
        ("all_reduce_perf/fail-cxi-alloc-no-table.txt", "cxi_resources"),
    ],
)
def test_real_output(path, signature):
    assert ids((FIXTURES / path).read_text(encoding="utf-8"))[0] == signature


def test_index_lists_every_fixture():
    """Each file, and the signature that comes first."""
    with open(FIXTURES / "gpu-jobs/INDEX.tsv", encoding="utf-8", newline="") as stream:
        rows = {row["path"]: row for row in csv.DictReader(stream, delimiter="\t")}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (FIXTURES / "gpu-jobs").iterdir()
        if path.name != "INDEX.tsv"
    }
    assert {name: row["sha256"] for name, row in rows.items()} == found
    assert [
        ids((FIXTURES / "gpu-jobs" / name).read_text(encoding="utf-8"))[:1] for name in rows
    ] == [[row["expected_key_facts"].partition("=")[2]] for row in rows.values()]


def test_what_follows_from_another_error_is_left_out():
    follows = "Test NCCL failure common.cu:1012 'unhandled system error'\nprterun detected that one or more processes exited with non-zero status\n"
    assert ids(follows) == ["nccl_system_error"]
    assert ids(follows.splitlines()[1]) == ["process_failed"]
    assert ids(follows + "OSError: [Errno 28] No space left on device\n") == ["disk_full"]


def test_in_the_order_in_which_they_come():
    assert ids("Stale file handle\nNo devices were found\nStale file handle\n") == [
        "nfs_stale",
        "no_devices",
    ]


def test_what_is_not_known_is_told_as_it_is():
    """The first lines: launchers print the last ones, whatever the cause is."""
    text = "all is well\nfirst error\n\nSegfolt: job   failed\nsecond error\nthird error\nthird error\n"
    assert [(meaning["signature"], meaning["line"]) for meaning in explain(text)] == [
        ("", "first error"),
        ("", "Segfolt: job failed"),
        ("", "second error"),
    ]


@pytest.mark.parametrize("text", ["", "all is well\n", "errors: 0 of 17 terrors\n"])
def test_what_is_no_error(text):
    assert explain(text) == []
