"""A person's jobs from files: the guide's parameter file, logs, results, and what others cannot
see.
"""

from __future__ import annotations

import json
import re

from transcript import here_document

ROLE = "jobs"
SAMPLE = here_document()
FITS = ("--set", "worker_image=site/tools:1", "--set", "workspace_id=vision")
FOLDER = "/data1/share/.trainyard/jobs"


def test_the_parameter_file_of_the_guide(cluster):
    done = cluster.trainyard("alice", "submit", "-", text=SAMPLE, check=False)
    assert done.code == 2
    assert "workspace_id: 'your-workspace-id' is not one of your accounts (vision)" in done.text
    assert (
        "worker_image: 'master0:5000/eflops/pytorch:v1' is not an image of this cluster; use one of site/notebook:1, site/tools:1"
        in done.text
    )
    number = cluster.submit("alice", SAMPLE, *FITS)
    job = cluster.ends("alice", number)
    assert (job["state"], job["exit_code"], job["account"]) == ("completed", 0, "vision")
    # The database learns it a moment after the job.
    cluster.wait("the priority", lambda: cluster.ends("alice", number)["priority"] == "low")
    assert "hello world" in cluster.trainyard("alice", "logs", number).out
    assert (
        job["result"]["exit_code"] == 0
        and job["result"]["image"] == "site/tools:1"
        and job["result"]["ranks"][0]["host"] in cluster.hosts
    )


def test_two_workers_know_each_other(cluster):
    command = "command: |\n  echo \"$RANK of $WORLD_SIZE on $TRAINYARD_WORKER_ADDRESS by $MASTER_ADDR:$MASTER_PORT as $(id -un)\"\n  ls /dev | grep -c '^nvidia[0-9]' || true\n"
    number = cluster.submit(
        "alice",
        "name: two\nkind: PyTorchJob\nworker_count: 2\nworker_gpu: 1\nworker_image: site/tools:1\n"
        + command.replace(" | grep -c '^nvidia[0-9]' || true", ""),
    )
    job = cluster.ends("alice", number)
    assert job["state"] == "completed", cluster.trainyard("alice", "logs", number).text
    told = [
        cluster.trainyard("alice", "logs", number, "--rank", str(rank)).out.splitlines()
        for rank in range(2)
    ]
    assert [
        re.match(r"(\d) of 2 on (\S+) by (\S+):\d+ as alice$", lines[0]).groups() for lines in told
    ] == [("0", "172.30.104.21", "172.30.104.21"), ("1", "172.30.104.22", "172.30.104.21")]
    assert [[line for line in lines if re.match(r"nvidia\d", line)] for lines in told] == [
        ["nvidia0"]
    ] * 2


def test_a_failure_is_explained(cluster):
    number = cluster.submit(
        "alice",
        "name: bad\nworker_count: 2\nretries: 1\nworker_image: site/tools:1\ncommand: |\n  test $TRAINYARD_WORKER_INDEX = 0 && exec sleep 60\n"
        "  echo 'CUDA driver version is insufficient for CUDA runtime version'; exit 3\n",
    )
    done = cluster.trainyard("alice", "logs", "--follow", number, check=False)
    assert done.code == 1 and "attempt 1 of 2 failed" in done.text
    job = cluster.ends("alice", number)
    assert (job["state"], job["exit_code"], job["result"]["exit_code"]) == ("failed", 3, 3)
    assert (
        job["result"]["first_failed"]["rank"] == 1
        and job["result"]["first_failed"]["causes"][0]["id"] == "driver_too_old"
    )
    assert "cause: the driver is older" in cluster.trainyard("alice", "show", number).out


def test_a_job_that_waits_says_why(cluster):
    long = "name: long\nworker_gpu: 2\nworker_image: site/tools:1\ncommand: sleep 600\n"
    first, second = cluster.submit("alice", long), cluster.submit("alice", long)
    cluster.ends("alice", first, "running")
    cluster.wait(
        "the reason",
        lambda: (
            "queued: group vision uses 2 of its 2 GPUs"
            in cluster.trainyard("alice", "why", second).out
        ),
    )
    assert cluster.trainyard("alice", "quota").out.splitlines()[1].split()[:3] == [
        "vision",
        "2",
        "2",
    ]
    for number in (second, first):
        cluster.trainyard("alice", "stop", number)
    job = cluster.ends("alice", first)
    assert job["state"] == "cancelled" and "stopped before it ended" in json.dumps(
        job["result"]["problems"]
    )
    # The same once more, by the file that the job has kept.
    again = json.loads(
        cluster.trainyard("alice", "clone", first, "--set", "command=true", "--json").out
    )["id"]
    assert cluster.ends("alice", again)["state"] == "completed"


def test_what_the_command_tells_before_and_beside_jobs(cluster):
    """Slurm's own answer to --test-only, completion in a login shell, and several jobs at once."""
    text = "name: pair\nworker_gpu: 1\nworker_image: site/tools:1\ncommand: sleep 600\n"
    told = json.loads(
        cluster.trainyard("alice", "submit", "-", "--dry-run", "--json", text=text).out
    )
    assert told["cost"] == "it asks for 1 GPU, with which group vision uses 1 of its 2"
    assert told["start_estimate"]
    pair = [cluster.submit("alice", text) for _number in range(2)]
    for number in pair:
        cluster.ends("alice", number, "running")
    overview = cluster.trainyard("alice").out
    assert "you have 2 running and 0 waiting jobs" in overview
    assert "group vision uses 2 of 2 GPUs, you use 2" in overview
    shell = (
        "bash -lc 'source /usr/share/bash-completion/bash_completion; source /etc/bash_completion.d/trainyard && "
        'COMP_WORDS=(trainyard %s) COMP_CWORD=%d && _trainyard && echo "${COMPREPLY[@]}"\''
    )
    completed = cluster.as_person("alice", shell % ('stop ""', 2)).out.split()
    assert completed == sorted(pair, key=int, reverse=True)
    words = "submit x --set worker_image = site/t"
    assert cluster.as_person("alice", shell % (words, 6)).out.split() == ["site/tools:1"]
    cluster.trainyard("alice", "stop", *pair)
    for number in pair:
        cluster.ends("alice", number, "cancelled")


def test_a_running_job_is_entered(cluster):
    number = cluster.submit(
        "alice",
        "name: enter\nworker_count: 2\nworker_image: site/tools:1\ncommand: sleep 600\nenvironment: {MINE: yes}\n",
    )
    cluster.ends("alice", number, "running")
    deadline = 60
    while (
        deadline
        and cluster.trainyard(
            "alice", "attach", number, "--rank", "1", "--", "true", check=False
        ).code
    ):
        deadline -= 1
    told = cluster.trainyard(
        "alice",
        "attach",
        number,
        "--rank",
        "1",
        "--",
        "sh",
        "-c",
        "echo $TRAINYARD_WORKER_INDEX; id -un; cat /run/trainyard/hosts",
    ).out.split("\n")
    assert told[:2] == ["1", "alice"] and told[2].startswith("172.30.104.21 slots=")
    cluster.trainyard("alice", "stop", number)
    cluster.ends("alice", number)


def test_tasks_of_an_array_are_listed_once(cluster):
    """The command does not make arrays. A person who calls sbatch has them, too."""
    array = cluster.as_person(
        "alice",
        "sbatch --parsable --array=1-2 --job-name=tasks --output=/dev/null --wrap 'sleep 600'",
    ).out.strip()

    def tasks(state):
        found = [
            job
            for job in json.loads(cluster.trainyard("alice", "list", "--json").out)
            if job["name"] == "tasks"
        ]
        return (
            {job["id"] for job in found}
            if len(found) == 2 and {job["state"] for job in found} == {state}
            else None
        )

    cluster.wait("both tasks", lambda: tasks("running"))
    running = tasks("running")
    cluster.as_person("alice", "scancel " + array)
    cluster.wait("their ends", lambda: tasks("cancelled"))
    assert len(running) == 2 and tasks("cancelled") == running
    for number in running:
        assert cluster.ends("alice", number)["state"] == "cancelled"


def test_a_job_that_was_edited_is_refused_and_can_be_submitted_again(cluster):
    """Its script carries the judged job, which the training host does not judge again."""
    script = cluster.trainyard("alice", "submit", "-", "--dry-run", *FITS, text=SAMPLE).out
    edited = script.replace('"worker_image": "site/tools:1"', '"worker_image": "other/tools:1"')
    assert edited != script
    cluster.as_person("alice", "cat > edited.sh << 'END'\n%sEND" % edited)
    number = cluster.as_person("alice", "sbatch --parsable edited.sh").out.strip()
    job = cluster.ends("alice", number)
    assert (job["state"], job["exit_code"], job["result"]) == ("failed", 125, None)
    told = cluster.trainyard("alice", "logs", number).out
    assert told == (
        "trainyard: job %s cannot run: it was damaged or edited after trainyard submit had judged it. "
        "Submit it again with: trainyard clone %s\n" % (number, number)
    )
    again = json.loads(cluster.trainyard("alice", "clone", number, "--json").out)["id"]
    assert cluster.ends("alice", again)["state"] == "completed"


def test_others_see_nothing(cluster):
    number = cluster.submit(
        "alice",
        "name: secret\nworker_image: site/tools:1\ncommand: 'sleep 600; echo topsecret1'\nenvironment: {KEY: topsecret2}\n",
    )
    cluster.ends("alice", number, "running")
    host = json.loads(cluster.trainyard("alice", "show", number, "--json").out)["hosts"][0]
    looked = " ".join(
        cluster.as_person("bob", command, check=False).text
        for command in (
            "squeue --all",
            "squeue --format '%all'",
            "scontrol show job " + number,
            "scontrol write batch_script %s -" % number,
            "sacct --allusers --format=ALL --parsable2",
            "trainyard show " + number,
            "trainyard logs " + number,
            "cat %s/alice/%s/spec.yml" % (FOLDER, number),
            "ls %s/alice" % FOLDER,
        )
    )
    processes = cluster.on(
        host,
        'su bob -c \'ps -ef; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2> /dev/null | tr "\\0" " "\'',
        check=False,
    ).text
    assert "topsecret" not in looked + processes and "name: secret" not in looked
    cluster.trainyard("alice", "stop", number)
    # alice sees it all.
    assert (
        "topsecret2"
        in cluster.as_person("alice", "cat %s/alice/%s/spec.yml" % (FOLDER, number)).out
    )


def test_folders_belong_to_their_people(cluster):
    assert cluster.on(
        cluster.head, "stat --format '%%a %%U' %s %s/alice %s/alice/.out" % (FOLDER, FOLDER, FOLDER)
    ).out.split("\n")[:3] == ["755 root", "700 alice", "700 alice"]
    assert cluster.as_person("bob", "ln -s /etc %s/alice2" % FOLDER, check=False).code != 0


def test_an_interactive_job_has_the_terminal(cluster):
    """Its image has no bash."""
    text = SAMPLE.replace("interactive=false", "interactive=true").replace(
        'echo "hello world"',
        'test -t 0 && test -t 1 && echo "job $TRAINYARD_JOB_ID of $(id -un)"; exit 4',
    )
    cluster.as_person("alice", "cat > shell.params << 'END'\n%sEND" % text)
    done = cluster.as_person(
        "alice",
        "script --quiet --return --command 'trainyard submit shell.params %s' /dev/null"
        % " ".join(FITS),
        check=False,
    )
    assert done.code == 4 and re.search(r"^(\^@)*job \d+ of alice\r?$", done.out, re.MULTILINE), (
        done.text
    )
    done = cluster.trainyard("alice", "submit", "shell.params", *FITS, check=False)
    assert done.code == 2 and "the job needs your terminal" in done.text
