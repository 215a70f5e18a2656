"""Each mechanism of isolation and clean-up is switched off once: the test that asserts it has to
fail, and with what it asserts.
"""

from __future__ import annotations

import contextlib
import shlex

import pytest
import test_1_jobs as tests
from jobs import STORAGE, left

testinfra_hosts = ["ansible://job-container-a"]
RUN, SLURM = "/usr/local/bin/trainyard-run", "/usr/local/lib/trainyard/slurm"
PODMAN = (
    "podman --root %s/images --runroot /run/trainyard/images --storage-driver overlay" % STORAGE
)
# What each run of a test may leave if a mechanism is off.
CLEAN = (
    "pkill --signal KILL --uid alice,bob; sleep 0.5; grep fuse-overlay /proc/mounts | cut -d' ' -f2 | xargs --no-run-if-empty umount --lazy; "
    "find /tmp /var/tmp /dev/shm /run/trainyard/jobs /run/user %s/jobs -mindepth 1 -maxdepth 1 \\( -user alice -o -user bob \\) "
    "-exec rm -rf --one-file-system {} +; rm -f /run/trainyard/epilog.failed/* /run/trainyard/made/*"
    % STORAGE
)


@contextlib.contextmanager
def replaced(host, path, old, new):
    """A file of the host with another text in it."""
    former = host.file(path).content_string
    assert old in former, "%s has changed; change this test, too" % path
    host.run_expect(
        [0],
        "cp --preserve=all %s /srv/kept && printf %%s %s > %s"
        % (path, shlex.quote(former.replace(old, new)), path),
    )
    try:
        yield
    finally:
        host.run_expect([0], "cp --preserve=all /srv/kept %s" % path)
        host.run(CLEAN)


@pytest.mark.parametrize(
    "path, old, new, test, said",
    [
        (
            RUN,
            "_gpu_numbers.cdi_names(gpus, ",
            "_gpu_numbers.cdi_names(range(4), ",
            tests.test_a_job_is_the_person_and_sees_what_it_was_given,
            "/dev/nvidia0",
        ),
        (
            RUN,
            '"--shm-size=" + plan["shm"]',
            '"--shm-size=64m"',
            tests.test_a_job_is_the_person_and_sees_what_it_was_given,
            "'128' in",
        ),
        (
            RUN,
            '"--user=%d:%d" % (plan["uid"], plan["gid"])',
            '"--user=0:0"',
            tests.test_a_job_is_the_person_and_sees_what_it_was_given,
            "'2101'",
        ),
        (
            RUN,
            "bind(folder, INSIDE),",
            'bind(folder, INSIDE), bind("/proc", "/proc"),',
            tests.test_a_job_is_the_person_and_sees_what_it_was_given,
            "its own processes only",
        ),
        (
            RUN,
            '"--group-add=keep-groups",',
            "",
            tests.test_a_group_of_the_person_counts,
            "share/vision",
        ),
        (
            RUN,
            'bind(make_folder(os.path.join(disk, "tmp"), 0o1777), "/tmp")',
            'bind("/tmp", "/tmp")',
            tests.test_nobody_reads_the_folders_of_another_job,
            "/tmp/secret",
        ),
        (
            RUN,
            "_gpu_numbers.cdi_names(gpus, ",
            "_gpu_numbers.cdi_names(range(4), ",
            tests.test_nobody_reads_the_folders_of_another_job,
            "/dev/nvidia0",
        ),
        (
            SLURM + "/prolog",
            "os.fchmod(folder, 0o700)",
            "os.fchmod(folder, 0o755)",
            tests.test_nobody_reads_the_folders_of_another_job,
            "Permission denied",
        ),
        (
            SLURM + "/prolog",
            '0o711 if path.endswith("jobs") else 0o755',
            "0o755",
            tests.test_nobody_reads_the_folders_of_another_job,
            "Permission denied",
        ),
        (
            SLURM + "/prolog",
            "    os.fchmod(folder, 0o700)",
            "    pass",
            tests.test_nobody_else_reaches_the_store_of_a_person,
            "Permission denied",
        ),
        (
            RUN,
            "if not found or not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:",
            "if False:",
            tests.test_an_unknown_image_and_a_missing_prolog_are_refused,
            "the prolog of Slurm has not run",
        ),
        # What is alive may also write into the folder that the epilog removes.
        (
            SLURM + "/epilog",
            "alive = sweep(job, uid, ranges, others)",
            "alive = {}",
            tests.test_another_job_of_the_person_goes_on,
            "sleep 1000|Directory not empty",
        ),
        (
            SLURM + "/epilog",
            "clean(leftovers(SHARED_FOLDERS), uid, ranges)",
            "[]",
            lambda host: tests.test_nothing_is_left_after_a_kill(host, "^[^ ]*conmon"),
            "/dev/shm/of-alice",
        ),
        (
            SLURM + "/epilog",
            'clean(["%s/jobs/%s" % (storage, job), "%s/jobs/%s" % (runtime, job)], uid, ranges)',
            "[]",
            tests.test_a_job_is_the_person_and_sees_what_it_was_given,
            "/run/trainyard/jobs/101",
        ),
        (
            SLURM + "/epilog",
            "living = others()",
            "living, of_job = [], lambda found, *_more: set(found)",
            tests.test_another_job_of_the_person_goes_on,
            "kill -0",
        ),
        (
            SLURM + "/epilog",
            "    if alive:",
            "    if False:",
            tests.test_a_process_that_cannot_be_killed_fails_the_epilog,
            "0 == 1|these processes do not end",
        ),
        (
            SLURM + "/health",
            "if found is None or found >= expected",
            "if True",
            tests.test_health_misses_a_gpu,
            r"\(0, ''\) == \(1,",
        ),
        (
            "/etc/containers/policy.json",
            '"type": "reject"',
            '"type": "insecureAcceptAnything"',
            tests.test_people_pull_from_the_registries_only,
            "rejected by policy",
        ),
    ],
    ids=[
        "devices",
        "shm-size",
        "user",
        "processes",
        "groups",
        "tmp",
        "devices-of-others",
        "folder-of-job",
        "list-of-jobs",
        "store-of-person",
        "prolog",
        "sweep",
        "shm-of-host",
        "files-of-job",
        "other-jobs",
        "drain",
        "gpus",
        "registries",
    ],
)
def test_a_mechanism_that_is_off_is_seen(host, path, old, new, test, said):
    assert left(host) == ""
    with replaced(host, path, old, new), pytest.raises(AssertionError, match=said):
        test(host)
    assert left(host) == ""


CLEAN_STORE = "/usr/local/lib/trainyard/job/clean-store %s/images" % STORAGE
# As releases before 0.4.0 have filled it.
OLD = (
    "umask 022; %s rmi site/tools:1 && docker save site/tools:1 | %s load && chmod -R a+rX,go-w,%%s %s/images"
    % (PODMAN, PODMAN, STORAGE)
)


@pytest.mark.parametrize(
    "modes, said",
    [("u+s", "people would run them as root"), ("ug-s", "people would have the capabilities")],
)
def test_an_image_that_was_only_loaded_is_seen(host, modes, said):
    host.run_expect([0], OLD % modes)
    try:
        with pytest.raises(AssertionError, match=said):
            tests.test_people_cannot_change_the_image_store_nor_become_root_by_it(host)
    finally:
        host.run_expect([0], "rm %s/images/trainyard-clean; %s" % (STORAGE, CLEAN_STORE))
    tests.test_people_cannot_change_the_image_store_nor_become_root_by_it(host)


def test_a_store_that_is_not_mounted_is_seen(host):
    unit = "$(systemd-escape --path --suffix=mount %s/images)" % STORAGE
    host.run_expect([0], "systemctl stop " + unit)
    try:
        with pytest.raises(AssertionError, match="the mount lacks them"):
            tests.test_people_cannot_change_the_image_store_nor_become_root_by_it(host)
    finally:
        host.run_expect([0], "systemctl start " + unit)
