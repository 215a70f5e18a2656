"""Playbook monitoring where people's jobs run: Prometheus reads hosts and queue, and what it knows
of a job is kept. These hosts have no nvidia-smi.
"""

from __future__ import annotations

import json
import shlex

import pytest

ROLE = "monitoring_server"
#: The hosts have no curl. Prints the values by label.
QUERY = """
import json, ssl, sys, urllib.parse, urllib.request
folder = "/etc/trainyard/monitoring/tls"
context = ssl.create_default_context(cafile=folder + "/ca.pem")
context.load_cert_chain(folder + "/client.pem", folder + "/client.key")
url = "https://localhost:9090/api/v1/query?" + urllib.parse.urlencode({"query": sys.argv[1]})
with urllib.request.urlopen(url, timeout=20, context=context) as answer:
    rows = json.load(answer)["data"]["result"]
print(json.dumps({row["metric"].get(sys.argv[2], ""): row["value"][1] for row in rows}))
"""


@pytest.fixture(scope="module")
def query(cluster, playbook):
    done = playbook("monitoring.yml")
    assert done.code == 0, done.output

    def ask(expression, label, person=""):
        words = ["runuser", "-u", person, "--"] * bool(person)
        words += ["python3", "-c", QUERY, expression, label]
        done = cluster.on(cluster.head, shlex.join(words), check=False)
        return json.loads(done.out) if done.code == 0 else None

    return ask


def test_prometheus_reads_hosts_and_queue(cluster, query):
    hosts = dict.fromkeys(cluster.hosts, "1")
    cluster.wait("all hosts", lambda: query('up{job="host"}', "instance") == hosts, 120)
    daemons = {"slurmctld": "1", "slurmdbd": "1"}
    cluster.wait("the queue", lambda: query("trainyard_slurm_up", "daemon") == daemons, 120)
    assert query("node_textfile_scrape_error == 1", "instance") == {}


def test_people_get_no_answer(query):
    assert query("up", "instance", "alice") is None


def test_what_is_known_of_a_job_is_kept(cluster, query):
    """A job on a GPU that nobody measures: that is told, and is not a use of 0."""
    number = cluster.submit(
        "alice", "name: known\nworker_image: site/tools:1\ncommand: sleep 5\nworker_gpu: 1\n"
    )
    cluster.ends("alice", number)
    command = "sacct --allocations --noheader --parsable2 --format=AdminComment --jobs=" + number

    def kept():
        # systemd starts a unit five times in ten seconds at most.
        unit = "trainyard-usage.service"
        cluster.on(cluster.head, "systemctl reset-failed %s && systemctl start %s" % (unit, unit))
        return cluster.as_person("alice", command).out.strip() == "ty1:gpus=1,seen=0"

    cluster.wait("the use of the job", kept, 240)
    assert "not measured" in cluster.trainyard("alice", "show", number).out
    # Nobody else reads it.
    assert cluster.as_person("bob", command, check=False).out.strip() == ""
