"""What the command costs, with the real Slurm and its database, and what the hub does."""

from __future__ import annotations

import json
import statistics
import time

import pytest
from test_2_hub import IMAGE, SMALL, Hub
from test_2_save import Saver, forget_base, load_base

pytestmark = pytest.mark.acceptance
JOBS, FIRST = 10000, 20000000


def seconds(cluster, command, person="alice"):
    """The median of five runs by a person, in one shell on the host, without Ansible in between."""
    text = (
        "set -e; for number in 1 2 3 4 5; do begin=$(date +%%s%%N); %s > /dev/null; echo $(( $(date +%%s%%N) - begin )); done"
        % command
    )
    return statistics.median(
        int(line) / 1e9 for line in cluster.as_person(person, text).out.split()
    )


def test_submit_needs_little_more_than_sbatch(cluster):
    cluster.as_person(
        "alice",
        "printf 'name: quick\\nworker_image: site/tools:1\\ncommand: \"true\"\\n' > quick.yml && "
        "trainyard submit quick.yml --dry-run > quick.sh",
    )
    with cluster.out_of_service(*cluster.hosts):
        ours, theirs = (
            seconds(cluster, "trainyard submit quick.yml"),
            seconds(cluster, "sbatch quick.sh"),
        )
        cluster.as_person("alice", "scancel --me")
    print("trainyard submit %.2f s, sbatch %.2f s" % (ours, theirs))
    assert ours - theirs < 0.3
    cluster.nothing_left("alice")


@pytest.fixture(name="history")
def _history(cluster):
    """Ended jobs of alice in the database of Slurm: one that has run, many times, with numbers and
    times of their own.
    """
    job = cluster.ends(
        "alice",
        cluster.submit("alice", "name: many\nworker_image: site/tools:1\ncommand: 'true'\n"),
    )
    # slurmctld has told the database the end of it.
    ended = (
        "SELECT COUNT(*) FROM trainyard_job_table WHERE id_job = %s AND time_end > 0" % job["id"]
    )
    cluster.wait("the end in the database", lambda: cluster.sql(ended).strip() == "1")
    columns = cluster.sql(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'slurm_acct_db' AND table_name = 'trainyard_job_table' "
        "AND extra NOT LIKE '%auto_increment%' AND extra NOT LIKE '%GENERATED%'"
    ).split()
    other = {
        "id_job": "%d + seq" % FIRST,
        "time_submit": "time_submit - seq",
        "time_eligible": "time_start - seq",
        "time_start": "time_start - seq",
        "time_end": "time_end - seq",
        "job_name": "CONCAT('training_of_', seq)",
    }
    values = ", ".join(other.get(name, "`%s`" % name) for name in columns)
    cluster.sql(
        "INSERT INTO trainyard_job_table (%s) SELECT %s FROM trainyard_job_table, seq_1_to_%d WHERE id_job = %s"
        % (", ".join("`%s`" % name for name in columns), values, JOBS, job["id"])
    )
    yield JOBS
    cluster.sql("DELETE FROM trainyard_job_table WHERE id_job > %d" % FIRST)


def test_list_with_ten_thousand_ended_jobs(cluster, history):
    found = json.loads(cluster.trainyard("alice", "list", "--json").out)
    assert sum(job["name"].startswith("training_of_") for job in found) == history
    took = {
        words: seconds(cluster, words)
        for words in ("trainyard list", "trainyard list --json", "sacct --allocations")
    }
    print(", ".join("%s %.2f s" % item for item in took.items()))
    assert took["trainyard list"] <= 1


def memory_of_the_hub(cluster):
    """In MiB, of all four services. What they share is counted once."""
    text = "for pid in $(pgrep --uid trainyard-hub); do sed -n 's/^Pss: *\\([0-9]*\\) kB$/\\1/p' /proc/$pid/smaps_rollup; done"
    return sum(map(int, cluster.on(cluster.head, text).out.split())) / 1024


def load(session, path):
    """The page, and the median of five loads in seconds."""
    took = []
    for _time in range(5):
        begun = time.monotonic()
        answer = session.ask(path)
        took.append(time.monotonic() - begun)
        assert answer.code == 200, answer.text
    return answer.text, statistics.median(took)


def test_memory_of_the_idle_hub(cluster):
    used = memory_of_the_hub(cluster)
    print("the hub uses %d MiB" % used)
    assert 30 < used < 300


def test_many_instances(cluster):
    """Twenty, half of each person.

    They survive a restart of the hub, which asks for the state of each.
    """
    hub = Hub(cluster)
    people = {person: hub.program(person) for person in ("alice", "bob")}
    names = [(person, "many%d" % number) for person in people for number in range(10)]
    try:
        for person, name in names:
            assert people[person].start(
                person, name, display_name=name, user_options=SMALL
            ).code in (201, 202)
        for person, name in names:
            people[person].is_ready(person, name, 600)
        used, (page, took) = memory_of_the_hub(cluster), load(hub.browser("alice"), "/hub/home")
        print(
            "with %d instances the hub uses %d MiB, and its page takes %.2f s"
            % (len(names), used, took)
        )
        assert all("many%d" % number in page for number in range(10)) and used < 300 and took < 1
        cluster.on(cluster.head, "systemctl restart trainyard-hub")
        cluster.wait("the hub", lambda: hub.nobody().ask("/hub/health").code == 200)
        assert [
            name for person, name in names if not people[person].server(person, name)["ready"]
        ] == []
        assert people["bob"].run_cell("/user/bob/many9/", "print(6 * 7)") == "42\n"
    finally:
        for person, name in names:
            people[person].stop(person, name)
    cluster.nothing_left("alice", "bob")


def test_two_hundred_instances_are_listed(cluster):
    """On the page of instances those that are stopped, and by the command and the page of jobs
    those in the queue.
    """
    hub, count = Hub(cluster), 200
    hub.browser("alice")
    rows = 'sqlite3.connect("/var/lib/trainyard/hub/jupyterhub.sqlite", isolation_level=None)'
    with cluster.out_of_service(*cluster.hosts):
        try:
            cluster.on(
                cluster.head,
                "systemctl stop trainyard-hub && python3 -c 'import sqlite3; %s.executemany(\"INSERT INTO spawners (user_id, name, "
                'display_name) SELECT id, ?, ? FROM users WHERE name = ?", [("of-%%d" %% each, "of_%%d" %% each, "alice") '
                "for each in range(%d)])'; systemctl start trainyard-hub" % (rows, count),
            )
            cluster.wait("the hub", lambda: hub.nobody().ask("/hub/health").code == 200)
            cluster.as_person(
                "bob",
                "for number in $(seq %d); do sbatch --quiet --hold --job-name=of_$number --comment='trainyard instance' "
                "--wrap=: --output=/dev/null; done" % count,
            )
            (page, home), (jobs, listed) = (
                load(hub.browser("alice"), "/hub/home"),
                load(hub.browser("bob"), "/services/jobs/"),
            )
            command = seconds(cluster, "trainyard list", "bob")
            print(
                "200 instances: home %.2f s, jobs %.2f s, trainyard list %.2f s"
                % (home, listed, command)
            )
            assert [
                number for number in range(count) if "of_%d" % number not in page
            ] == [] and jobs.count(">of_") >= count
            assert max(home, listed) < 2 and command <= 1
        finally:
            cluster.as_person("bob", "scancel --me")
            cluster.on(
                cluster.head,
                'systemctl stop trainyard-hub; python3 -c \'import sqlite3; %s.execute("DELETE FROM spawners WHERE name LIKE ?", '
                '["of-%%"])\'; systemctl start trainyard-hub' % rows,
            )
            cluster.wait("the hub", lambda: hub.nobody().ask("/hub/health").code == 200)
    cluster.nothing_left("alice", "bob")


def test_two_gigabytes_are_saved(cluster):
    """With content that does not compress."""
    saver = Saver(Hub(cluster))
    image = load_base(saver)
    try:
        url, job = saver.start("large", image, cluster.peer)
        saver.inside(
            job,
            "python3",
            "-c",
            "import os; file = open('/usr/large', 'wb'); [file.write(os.urandom(2**20)) for _ in range(2048)]",
            root=True,
        )
        begun = time.monotonic()
        told = saver.save(url, "large")
        print("2 GB are saved in %d s: %s" % (time.monotonic() - begun, told))
        assert told.startswith("saved as ") and time.monotonic() - begun < 300
    finally:
        saver.stop("large")
        forget_base(saver)


def test_an_instance_is_ready_soon_after_its_image(cluster):
    alice = Hub(cluster).program("alice")
    image = seconds(
        cluster, "srun --quiet --mem=1000 trainyard-run --alone %s -- sh -c true" % IMAGE
    )
    begun = time.monotonic()
    assert alice.start("alice", "timed", display_name="Timed", user_options=SMALL).code in (
        201,
        202,
    )
    alice.is_ready("alice", "timed")
    instance = time.monotonic() - begun
    alice.stop("alice", "timed")
    print(
        "an instance is ready after %.1f s, a container of its image after %.1f s"
        % (instance, image)
    )
    assert instance - image < 10
    cluster.nothing_left("alice")
