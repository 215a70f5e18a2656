"""What the command costs, with the real Slurm and its database, and what the hub does."""

from __future__ import annotations

import json
import statistics
import time

import pytest
from test_2_hub import IMAGE, SMALL, Hub

JOBS, FIRST = 10000, 20000000


def seconds(cluster, command):
    """The median of five runs by alice, in one shell on the host, without Ansible in between."""
    text = "set -e; for number in 1 2 3 4 5; do begin=$(date +%%s%%N); %s > /dev/null; echo $(( $(date +%%s%%N) - begin )); done" % command
    return statistics.median(int(line) / 1e9 for line in cluster.as_person("alice", text).out.split())


def test_submit_needs_little_more_than_sbatch(cluster):
    cluster.as_person("alice", "printf 'name: quick\\nworker_image: site/tools:1\\ncommand: \"true\"\\n' > quick.yml && "
                               "trainyard submit quick.yml --dry-run > quick.sh")
    with cluster.out_of_service(*cluster.hosts):
        ours, theirs = seconds(cluster, "trainyard submit quick.yml"), seconds(cluster, "sbatch quick.sh")
        cluster.as_person("alice", "scancel --me")
    print("trainyard submit %.2f s, sbatch %.2f s" % (ours, theirs))
    assert ours - theirs < 0.3
    cluster.nothing_left("alice")


@pytest.fixture(name="history")
def _history(cluster):
    """Ended jobs of alice in the database of Slurm: one that has run, many times, with numbers and times of their own."""
    job = cluster.ends("alice", cluster.submit("alice", "name: many\nworker_image: site/tools:1\ncommand: 'true'\n"))
    # slurmctld has told the database the end of it.
    ended = "SELECT COUNT(*) FROM trainyard_job_table WHERE id_job = %s AND time_end > 0" % job["id"]
    cluster.wait("the end in the database", lambda: cluster.sql(ended).strip() == "1")
    columns = cluster.sql("SELECT column_name FROM information_schema.columns WHERE table_schema = 'slurm_acct_db' AND table_name = 'trainyard_job_table' "
                          "AND extra NOT LIKE '%auto_increment%' AND extra NOT LIKE '%GENERATED%'").split()
    other = {"id_job": "%d + seq" % FIRST, "time_submit": "time_submit - seq", "time_eligible": "time_eligible - seq", "time_start": "time_start - seq",
             "time_end": "time_end - seq", "job_name": "CONCAT('training_of_', seq)"}
    values = ", ".join(other.get(name, "`%s`" % name) for name in columns)
    cluster.sql("INSERT INTO trainyard_job_table (%s) SELECT %s FROM trainyard_job_table, seq_1_to_%d WHERE id_job = %s" % (
        ", ".join("`%s`" % name for name in columns), values, JOBS, job["id"]))
    yield JOBS
    cluster.sql("DELETE FROM trainyard_job_table WHERE id_job > %d" % FIRST)


def test_list_with_ten_thousand_ended_jobs(cluster, history):
    found = json.loads(cluster.trainyard("alice", "list", "--json").out)
    assert sum(job["name"].startswith("training_of_") for job in found) == history
    took = {words: seconds(cluster, words) for words in ("trainyard list", "trainyard list --json", "sacct --allocations")}
    print(", ".join("%s %.2f s" % item for item in took.items()))
    assert took["trainyard list"] <= 1


def test_memory_of_the_idle_hub(cluster):
    """All four services. What they share is counted once."""
    text = "for pid in $(pgrep --uid trainyard-hub); do sed -n 's/^Pss: *\\([0-9]*\\) kB$/\\1/p' /proc/$pid/smaps_rollup; done"
    used = sum(map(int, cluster.on(cluster.head, text).out.split())) / 1024
    print("the hub uses %d MiB" % used)
    assert 30 < used < 300


def test_an_instance_is_ready_soon_after_its_image(cluster):
    alice = Hub(cluster).program("alice")
    image = seconds(cluster, "srun --quiet --mem=1000 trainyard-run --alone %s -- sh -c :" % IMAGE)
    begun = time.monotonic()
    assert alice.start("alice", "timed", display_name="Timed", user_options=SMALL).code in (201, 202)
    alice.is_ready("alice", "timed")
    instance = time.monotonic() - begun
    alice.stop("alice", "timed")
    print("an instance is ready after %.1f s, a container of its image after %.1f s" % (instance, image))
    assert instance - image < 10
    cluster.nothing_left("alice")
