# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The helper of the hub: limits of time, size and number, so that what one person does is nothing
that others notice.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import portal
import pytest
from test_instance import FILES, load

_helper = load("_helper", FILES)
COMMAND = load("instance", FILES).command()


class Child:
    """What the hub starts: a program of this test in place of sudo and the helper."""

    def __init__(self, monkeypatch):
        self.code, self.running, self.most = "print('{}')", 0, 0
        self.create = asyncio.create_subprocess_exec
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self.start)

    async def start(self, *_command, **more):
        child = await self.create(sys.executable, "-c", self.code, **dict(more, env=None))
        self.running += 1
        self.most = max(self.most, self.running)
        asyncio.ensure_future(self.count(child))
        return child

    async def count(self, child):
        await child.wait()
        self.running -= 1


@pytest.fixture(name="child")
def _child(monkeypatch):
    return Child(monkeypatch)


@pytest.fixture(name="turns")
def _turns(monkeypatch):
    monkeypatch.setattr(_helper, "turns", _helper.Turns(at_a_time=2, of_all=3, waiting=3))
    return _helper.turns


def asked(*people, **request):
    async def all_of_them():
        found = await asyncio.gather(
            *[_helper.ask(person, request or {"action": "jobs"}) for person in people]
        )
        await asyncio.gather(*_helper.tasks)
        return found

    return asyncio.run(all_of_them())


def test_an_answer(child, turns):
    child.code = "import json, sys; print(json.dumps({'told': json.load(sys.stdin)}))"
    assert asked("anna") == [{"told": {"action": "jobs"}}]
    assert not turns.count and not turns.people


def test_one_person_has_few_turns_and_the_others_theirs(child, turns):
    child.code = "import time; time.sleep(0.2); print('{}')"
    found = asked(*["ben"] * 20 + ["anna"])
    assert [answer == {} for answer in found] == [True] * 5 + [False] * 15 + [
        True
    ] and child.most == 3
    assert (
        found[5]["busy"]
        and "ben has 5 requests in progress" in found[5]["error"]
        and _helper.code_of(found[5]) == 429
    )
    assert not turns.count and not turns.people


def test_who_keeps_a_helper_from_its_end_waits_alone(child, turns, monkeypatch):
    """A turn lasts as long as the helper, not as long as the hub's patience."""
    monkeypatch.setattr(_helper, "PATIENCE", 0.2)
    child.code = "import time; time.sleep(3)"
    assert [answer["error"] for answer in asked("ben", "ben", "ben")] == [
        "Slurm does not answer"
    ] * 3
    assert child.most == 2


@pytest.mark.parametrize(
    "code, expected",
    [
        ("print('[' * 100000)", "cannot act for anna"),
        ("print('[]')", "cannot act for anna"),
        ("import sys; sys.exit('no')", "cannot act for anna"),
        ("print('[1]'); print('x')", "cannot act for anna"),
        ("print(' ' * (9 << 20))", "larger than 8 MiB"),
        ("import sys; sys.stderr.write('x' * (1 << 20)); print('{\"error\": [1]}')", "[1]"),
    ],
)
def test_an_answer_is_not_trusted(child, turns, code, expected):
    child.code = code
    (answer,) = asked("anna")
    assert (
        expected in answer["error"]
        and answer["no_answer"] is False
        and _helper.code_of(answer) == 400
    )


def test_starts_and_stops_are_logged_in_one_line(child, turns, caplog):
    child.code = 'print(\'{"job": "7"}\')'
    _helper.log.addHandler(caplog.handler)
    asked("anna", action="start", name="a\nstop: 8 of ben: done")
    asked("anna", action="status", job="7")
    assert caplog.messages == ["start: a?stop: 8 of ben: done of anna: 7"]


def test_actions_of_operators_are_logged_with_their_name(child, turns, caplog):
    child.code = 'print(\'{"node": "gpu-1"}\')'
    _helper.log.addHandler(caplog.handler)
    asked("olga", action="node", do="drain", node="gpu-1", reason="new\ndisk")
    child.code = 'print(\'{"error": "Invalid user id", "no_answer": false}\')'
    asked("anna", action="node", do="resume", node="gpu-1", reason="")
    assert caplog.messages == [
        "drain of host gpu-1 by olga (new?disk): done",
        "resume of host gpu-1 by anna (): Invalid user id",
    ]


def test_a_helper_that_does_not_start(turns, monkeypatch):
    async def fails(*_command, **_more):
        raise FileNotFoundError("sudo")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails)
    assert asked("anna")[0]["no_answer"] is True and not turns.count


# --- the helper itself, and the command whose modules it uses ---


@pytest.fixture(name="command")
def _command():
    return COMMAND


def test_only_regular_files_are_read(tmp_path, command):
    fifo, text, device = tmp_path / "fifo", tmp_path / "text", Path("/dev/zero")
    os.mkfifo(fifo)
    text.write_text("a\n")
    assert command._files.read_regular(str(text)) == "a\n"
    begun = time.monotonic()
    for path in (fifo, device, tmp_path):
        with pytest.raises(OSError, match="regular file|Is a directory"):
            command._files.open_regular(str(path))
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("content", ["[1]", "[" * 100000, "x", '"text"'])
def test_a_damaged_result_is_none(tmp_path, command, content):
    site = command.Site.__new__(command.Site)
    site.folder = str(tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/result.json").write_text(content)
    assert site.result_of("7") is None
    # Sparse, as a person would make it.
    os.truncate(tmp_path / "7/result.json", 2 << 30)
    begun = time.monotonic()
    assert site.result_of("7") is None and time.monotonic() - begun < 5
    (tmp_path / "7/result.json").unlink()
    os.mkfifo(tmp_path / "7/result.json")
    assert site.result_of("7") is None
    (tmp_path / "7/result.json").unlink()
    (tmp_path / "7/result.json").write_text("{}")
    assert site.result_of("7") == {}


def helper(code):
    """Run code in a process of its own after the helper has limited itself."""
    text = "import sys; sys.path.insert(0, %r); import instance; %s" % (str(FILES), code)
    return subprocess.run(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def test_the_helper_ends_with_its_time():
    done = helper(
        "instance.SECONDS = 1; instance.limit()\ntry:\n    __import__('time').sleep(30)\n"
        "except instance.OutOfTime:\n    print('ended')"
    )
    assert done.stdout == b"ended\n", done.stderr


def as_person(code):
    """Run code in a process of its own, with the program that becomes a person."""
    text = "import os, pwd, sys; sys.path.insert(0, %r); import as_person; %s" % (str(FILES), code)
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, timeout=60, check=False, text=True
    )


def test_a_helper_that_was_killed_is_no_answer(child):
    """It is not an error of the request, which may be sent again."""
    child.code = "import os, signal; os._exit(137)"
    (found,) = asked("alice")
    assert found == {"error": "Slurm does not answer", "no_answer": True}
    assert _helper.code_of(found) == 503


def test_a_stopped_process_is_killed():
    """Its person has stopped it, so that it does not end itself.

    The process that waits for it goes on.
    """
    begun = time.monotonic()
    done = as_person(
        "as_person.become = lambda _account: None\n"
        "stopped = [sys.executable, '-c', 'import os; os.kill(os.getpid(), 19)']\n"
        "print(as_person.wait(as_person.start(stopped, pwd.getpwuid(os.getuid())), 1))"
    )
    assert done.stdout == "137\n", done.stderr
    assert 1 <= time.monotonic() - begun < 30


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_that_ends_gives_its_code(code):
    done = as_person(
        "as_person.become = lambda _account: None\n"
        "ends = [sys.executable, '-c', 'raise SystemExit(%d)']\n"
        "print(as_person.wait(as_person.start(ends, pwd.getpwuid(os.getuid())), 30))" % code
    )
    assert done.stdout == "%d\n" % code, done.stderr


def test_a_helper_has_the_rights_of_its_person_alone():
    done = as_person(
        "show = 'import os; print(os.getresuid(), os.getresgid(), os.getgroups(), dict(os.environ))'\n"
        "os.environ.update(SUDO_USER='trainyard-hub', SECRET='1', PATH='/usr/bin:/bin')\n"
        "account = pwd.getpwnam('nobody')\n"
        "print(as_person.wait(as_person.start(['/usr/bin/python3', '-c', show], account), 30))"
    )
    if os.getuid() != 0:
        # Nothing runs with the rights of the process that should have become somebody else.
        assert done.stdout == "1\n" and "not permitted" in done.stderr
        return
    account = pwd.getpwnam("nobody")
    shown = done.stdout.splitlines()[0]
    assert shown.startswith(
        "%s %s [%d] " % ((account.pw_uid,) * 3, (account.pw_gid,) * 3, account.pw_gid)
    ), done
    assert "'USER': 'nobody'" in shown and "'HOME': '%s'" % account.pw_dir in shown
    assert "SUDO_USER" not in shown and "SECRET" not in shown


def test_nobody_becomes_root():
    done = as_person("as_person.main(['root'])")
    assert done.returncode == 1 and "root is root" in done.stderr


def test_the_helper_has_little_memory_and_is_the_first_to_be_killed():
    done = helper(
        "instance.limit()\ntry:\n    b'x' * (2 << 30)\nexcept MemoryError:\n    print(open('/proc/self/oom_score_adj').read().strip())"
    )
    assert done.stdout == b"1000\n", done.stderr


def test_a_command_of_slurm_ends_with_the_helper():
    """Also if the person has stopped it."""
    done = helper(
        "import os, signal, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=instance.end_with_parent)\n"
        "os.kill(child.pid, signal.SIGSTOP); print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    number = int(done.stdout)
    deadline = time.monotonic() + 10
    while (
        Path("/proc/%d" % number).exists()
        and "\nState:\tZ" not in Path("/proc/%d/status" % number).read_text()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_large_answer_is_refused(monkeypatch, capsys, command):
    instance = load("instance", FILES)
    monkeypatch.setattr(instance, "limit", lambda: None)
    monkeypatch.setattr(instance, "command", lambda: command)
    monkeypatch.setattr(instance.os, "getuid", lambda: 2001)
    monkeypatch.setattr(command, "Site", lambda: None)
    monkeypatch.setitem(instance.DO, "home", lambda *_more: {"jobs": "x" * (9 << 20)})
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"action": "home"}'))
    assert instance.main() == 0
    assert json.loads(capsys.readouterr().out) == {
        "error": "the answer is larger than 8 MiB",
        "no_answer": False,
    }


@pytest.fixture(name="helper_module")
def _helper_module():
    return load("instance", FILES)


class OfPerson:
    """A person's part of the site, with logs in a folder of the test."""

    person, config = "anna", {"registries": [], "priorities": []}

    def __init__(self, folder):
        self.folder, self.waiting = folder, []

    def log_of(self, number, rank=None):
        return str(self.folder / ("%s.%s.log" % (number, rank)))

    def values_of(self, number):
        return (self.folder / (number + ".yml")).read_text(encoding="utf-8")

    def queue(self):
        return self.waiting


def test_a_log_in_pieces(helper_module, tmp_path, monkeypatch, command):
    """From the byte where the page is, never half a character, and its end at first."""
    monkeypatch.setattr(helper_module, "LOG_BYTES", 10)
    monkeypatch.setattr(command, "active_jobs", lambda: [])
    site = OfPerson(tmp_path)
    text = "line 1\nl\u00fcne 2\nline 3\n"
    (tmp_path / "5.None.log").write_bytes(text.encode())

    def piece(start, rank=None):
        return helper_module.log(command, site, {"job": "5", "rank": rank, "start": start})

    read, at = "", 0
    for _piece in range(9):
        found = piece(at)
        assert found["start"] == at and len(found["text"].encode()) <= 10
        assert not found["ended"] or not found["text"]
        read, at = read + found["text"], found["next"]
    assert read == text and found["ended"]
    # The first look of a page, and one after the file was written again and is shorter.
    assert piece(-1)["text"] == piece(99999)["text"] == text[-10:]
    # A worker without a log, a pipe in its place, and bytes that are no text.
    assert piece(0, rank=3)["text"] == ""
    os.mkfifo(tmp_path / "5.4.log")
    assert piece(0, rank=4) == {"text": "", "start": 0, "next": 0, "ended": True}
    (tmp_path / "5.1.log").write_bytes(b"\xff" * 25)
    at = 0
    for _piece in range(3):
        at = piece(at, rank=1)["next"]
    assert at == 25


def test_a_page_of_many_jobs(helper_module, tmp_path, monkeypatch, command):
    jobs = portal.many_jobs(10000)[::-1]
    asked = []

    def chosen(options):
        asked.append((options.state, options.since, options.name, options.all))
        return jobs

    monkeypatch.setattr(command, "chosen_jobs", chosen)

    def page(number):
        request = {"state": "failed", "since": "7d", "name": "a*", "page": number}
        return helper_module.jobs(command, OfPerson(tmp_path), request)

    found = page(2)
    assert asked == [("failed", "7d", "a*", False)]
    assert (found["total"], found["pages"], len(found["jobs"])) == (10000, 200, 50)
    assert [job["id"] for job in found["jobs"]][:2] == ["9950", "9949"]
    # Slurm is asked once more where a job waits, and not for each page.
    monkeypatch.setattr(command, "usage_now", lambda _person: [])
    monkeypatch.setattr(command, "nodes_now", lambda: [])
    assert page(1)["jobs"][0]["why"].startswith("other jobs are before it")
    assert page(999999)["page"] == 200 and page(200)["jobs"][-1]["id"] == "1"
    jobs.clear()
    assert page(3) == {"jobs": [], "total": 0, "page": 1, "pages": 1}


def test_what_home_tells(helper_module, tmp_path, monkeypatch, command):
    """An instance is known by its comment.

    A job that waits says why, and whether its place is known. Times are not in words: a browser
    shows them in its zone.
    """
    jobs = [portal.a_job(number) for number in (1, 2)]
    jobs += [portal.a_job(3, "running"), portal.a_job(4, "pending", reason="Priority")]
    monkeypatch.setattr(command, "all_jobs", lambda _since: jobs)
    away = dict(node_of_slurm("gpu-2"), available_for_jobs=False, reason="new disk")
    away["reason_time"] = "2026-11-29T08:12:00Z"
    monkeypatch.setattr(command, "nodes_now", lambda: [node_of_slurm("gpu-1"), away])
    monkeypatch.setattr(command, "usage_now", lambda _person: [])
    marked = [{"id": 3, "comment": "trainyard instance"}, {"id": 4, "comment": "of mine"}]
    monkeypatch.setattr(command, "active_jobs", lambda: marked)
    site = OfPerson(tmp_path)
    site.waiting = [{"id": 9, "partition": "p"}, {"id": 4, "partition": "p"}]
    found = helper_module.home(command, site, {})
    assert [job["id"] for job in found["instances"]] == ["3"]
    assert [job["id"] for job in found["jobs"]] == ["4", "2", "1"]
    waiting = found["jobs"][0]
    assert waiting["why"] == "other jobs are before it; place 2 of 2 in the queue"
    assert waiting["start_estimate"] == "2026-09-20T02:24:00Z"
    (host,) = found["out_of_service"]
    told = [host[key] for key in ("name", "reason", "since")]
    assert told == ["gpu-2", "new disk", "2026-11-29T08:12:00Z"]
    site.queue = lambda: None
    waiting = helper_module.home(command, site, {})["jobs"][0]
    assert waiting["why"] == "other jobs are before it; place in the queue not known"
    # One that gets its hosts has no place any more.
    jobs[3]["state"] = "configuring"
    assert "place" not in helper_module.home(command, site, {})["jobs"][0]["why"]


def test_what_the_page_of_a_job_has(helper_module, tmp_path, monkeypatch, command):
    """The command's words have a time in the zone of this host.

    The page shows it in that of the browser.
    """
    shown = portal.a_job(4, "pending", why="")
    words = "other jobs are before it; place 2 of 9 in the queue"
    shown["why"] = words + command.start_words(shown)
    assert shown["why"].startswith(words + "; expected start 2026-09-")
    monkeypatch.setattr(helper_module, "by_command", lambda *_words: dict(shown))
    monkeypatch.setattr(command, "place_of", lambda _job: {"place": 2, "queued": 9})
    monkeypatch.setattr(command, "usage_now", lambda _person: [])
    monkeypatch.setattr(command, "ssh_words", lambda _site, _number: (["ssh"], "job-4"))
    marked = {"id": 4, "comment": "trainyard instance"}
    monkeypatch.setattr(command, "active_jobs", lambda: [marked])
    site = OfPerson(tmp_path)
    site.config = {"share": "/data1/share"}
    found = helper_module.job(command, site, {"job": 4})
    assert (found["job"]["why"], found["job"]["place"]) == (words, 2)
    assert found["is_instance"] is True
    marked["comment"] = "of mine"
    assert helper_module.job(command, site, {"job": 4})["is_instance"] is False


def test_why_an_instance_did_not_start(helper_module, tmp_path, command):
    """The cause as `trainyard explain` tells it, and the last lines."""
    site, path = OfPerson(tmp_path), tmp_path / "43.None.log"
    nothing = {"causes": [], "log": ""}
    assert helper_module.failure(command, site, {"job": "43"}) == nothing
    lines = ["line %d" % number for number in range(20)]
    lines.append("OSError: [Errno 28] No space left on device: '/data1/share/x'")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = helper_module.failure(command, site, {"job": "43"})
    assert found["log"].splitlines() == lines[-12:]
    (cause,) = found["causes"]
    assert "full" in cause["cause"] and cause["fix"][0].isupper()
    path.unlink()
    os.mkfifo(path)
    assert helper_module.failure(command, site, {"job": "43"}) == nothing


def test_why_an_instance_waits(helper_module, tmp_path, monkeypatch, command):
    """The page of the start has no script for times, so they are in UTC."""
    job = {"id": 4, "state": "pending"}
    told = portal.a_job(4, "pending")
    monkeypatch.setattr(command, "active_jobs", lambda: [job])
    monkeypatch.setattr(command, "of_active", lambda _job: told)
    words = "other jobs are before it" + command.start_words(told)
    monkeypatch.setattr(command, "reason_words", lambda _job: words)
    found = helper_module.status(command, OfPerson(tmp_path), {"job": "4"})
    assert found["why"] == "other jobs are before it; expected start 2026-09-20 02:24 UTC"
    told.update(state="running", started="2026-09-20T03:00:00Z")
    found = helper_module.status(command, OfPerson(tmp_path), {"job": "4"})
    assert (found["why"], found["started"], found["limit_minutes"]) == ("", told["started"], 600)
    ended = helper_module.status(command, OfPerson(tmp_path), {"job": "5"})
    assert (ended["state"], ended["started"]) == ("ended", None)


def test_the_values_of_a_job_and_of_a_file(helper_module, tmp_path, command):
    site = OfPerson(tmp_path)
    text = "name: a\nworker_gpu: 2\nenvironment: {A: b}\ncommand: |\n  one\n  two\n"
    (tmp_path / "7.yml").write_text(text, encoding="utf-8")
    for request in ({"job": "7"}, {"text": text}):
        found = helper_module.values(command, site, request)["values"]
        assert (found["name"], found["worker_gpu"], found["command"]) == ("a", "2", "one\ntwo\n")
        assert found["more"] == "environment:\n  A: b\n"
    with pytest.raises(command.Refused, match="line 1"):
        helper_module.values(command, site, {"text": "name: [a\n"})
    # The other keys come back into the file as they were typed.
    request = {"values": dict(found, more="environment:\r\n  A: c\r\n")}
    again = helper_module.job_text(command, request)
    assert 'command: "one\\ntwo\\n"\n' in again and again.endswith("\nenvironment:\n  A: c\n")
    assert command._job_text.read_job_text(again, command._job_file.KEYS)["environment"] == {
        "A": "c"
    }


def ended(number, user, begin, hours, **more):
    """A job of the accounting as P(_slurm.parse_finished) returns it."""
    start = begin + datetime.timedelta(minutes=6)
    times = {"submit_time": begin, "start_time": start}
    times["end_time"] = start + datetime.timedelta(hours=hours)
    stamps = {key: each.strftime("%Y-%m-%dT%H:%M:%SZ") for key, each in times.items()}
    job = {"id": number, "user": user, "account": "vision", "state": "completed", "gpus": 4}
    return dict(job, admin_comment=None, **stamps, **more)


def test_usage_is_summed_as_the_command_does(helper_module, tmp_path, monkeypatch, command):
    """By month: a job over the end of one has a part in each. What was measured is in the job."""
    now = datetime.datetime.now(datetime.timezone.utc)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    jobs = [ended(1, "anna", first - datetime.timedelta(hours=2, minutes=6), 3)]
    jobs.append(ended(2, "anna", first - datetime.timedelta(hours=9), 1))
    jobs[1]["admin_comment"] = "ty1:gpus=4,seen=4,used=2,hours=4,use=0.4,idle=0.25,mem=3"
    asked = []

    def month_jobs(begin, end, account="", person=""):
        asked.append((begin, end, account, person))
        return jobs

    monkeypatch.setattr(command, "month_jobs", month_jobs)
    sums = {"account": "vision", "jobs": 9, "gpu_hours": 99.0, "gpu_hours_measured": 0.0}
    monkeypatch.setattr(command, "account_usage", lambda month, account: dict(sums))
    found = helper_module.usage(command, OfPerson(tmp_path), {})
    (_begin, _end, account, person) = asked[0]
    assert (len(asked), account, person) == (1, "", "anna")
    before = (first - datetime.timedelta(days=1)).strftime("%Y-%m")
    rows = [(row["month"], row["jobs"], row["gpu_hours"]) for row in found["months"]]
    assert rows == [(first.strftime("%Y-%m"), 1, 4.0), (before, 2, 12.0)]
    old = found["months"][1]
    assert (old["gpu_hours_measured"], old["gpu_hours_idle"], old["mean_use"]) == (4.0, 1.0, 0.4)
    assert found["groups"] == [dict(sums, month=first.strftime("%Y-%m"))]
    lines = found["csv"].splitlines()
    assert lines[0].startswith("month,account,user,jobs,failed,gpu_hours,")
    assert lines[2].startswith("%s,vision,anna,2,0,12.0,4.0,1.0,0.4," % before)


def node_of_slurm(name, **more):
    about = {"name": name, "states": ["idle"], "available_for_jobs": True, "reason": ""}
    about.update(reason_time=None, features=["h100"], architecture="x86_64")
    about.update(cpus=8, cpus_allocated=0, memory_mib=1024, memory_allocated_mib=0)
    return dict(about, gpus=[{"model": "h100", "total": 8, "used": 3}], **more)


def test_what_operators_see(helper_module, tmp_path, monkeypatch, command):
    """The jobs of all that Slurm shows, why they wait, and who leaves most GPU hours idle."""
    of_slurm = {
        **{"id": 5, "name": "a", "user": "ben", "account": "vision", "qos": "normal"},
        **{"state": "pending", "reason": "Priority", "node_count": 1, "gpus": 8, "nodes": []},
        **{"submit_time": None, "start_time": None, "end_time": None, "start_estimate": None},
        **{"limit_minutes": 60, "restarts": 0, "comment": ""},
    }
    monkeypatch.setattr(command, "jobs_of_all", lambda: [of_slurm])
    monkeypatch.setattr(command, "nodes_now", lambda: [node_of_slurm("gpu-1")])
    begin = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=400)
    busy, idle = (ended(number, name, begin, 0) for number, name in ((1, "anna"), (2, "ben")))
    for job, share in ((busy, "0.1"), (idle, "0.9")):
        job.update(end_time=None, admin_comment=None)
        job["admin_comment"] = "ty1:gpus=4,seen=4,used=2,hours=4000,use=0.4,idle=%s,mem=3" % share
    asked = []

    def month_jobs(*span):
        asked.append(span)
        return [busy, idle]

    monkeypatch.setattr(command, "month_jobs", month_jobs)
    found = helper_module.operators(command, OfPerson(tmp_path), {"month": ""})
    (job,) = found["jobs"]
    assert (job["id"], job["person"], job["why"]) == ("5", "ben", "other jobs are before it")
    assert [row["user"] for row in found["people"]] == ["ben", "anna"]
    assert [row["wait_median_minutes"] for row in found["people"]] == [6, 6]
    lines = found["csv"].splitlines()
    assert lines[0].startswith("account,user,jobs,") and lines[1].startswith("vision,ben,1,")
    (host,) = found["nodes"]
    assert (host["name"], host["gpus"], host["free"]["gpus"]) == ("gpu-1", 8, 5)
    # Another month has only the part of a job that was in it.
    months = found["months"]
    assert (found["month"], len(months)) == (months[0], 12) and months == sorted(months)[::-1]
    old = helper_module.operators(command, OfPerson(tmp_path), {"month": months[2]})
    assert old["month"] == months[2] and old["people"] == []
    assert [begin for begin, _end in asked] == [months[at] + "-01T00:00:00" for at in (0, 2)]
    with pytest.raises(command.Refused, match="'1999-01' is not a month of this page"):
        helper_module.operators(command, OfPerson(tmp_path), {"month": "1999-01"})


def test_an_operator_sees_a_job_of_somebody_else(helper_module, tmp_path, monkeypatch, command):
    """What Slurm shows the operator's account.

    The log only if this account may read it, and never the operator's own of that number.
    """
    begin = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=400)
    job = dict(ended(7, "ben", begin, 0), raw_id=7, name="a", qos="normal", nodes=["gpu-1"])
    job.update(reason="", exit_code=1, signal=0)
    job["admin_comment"] = "ty1:gpus=4,seen=4,used=2,hours=4,use=0.4,idle=0.25,mem=3"
    asked = []

    def parsed(words, _parse):
        asked.append(words)
        return [job]

    # Of its module.
    monkeypatch.setitem(command.find_of_all.__globals__, "jobs_of_all", list)
    monkeypatch.setitem(command.find_of_all.__globals__, "parsed", parsed)
    site = OfPerson(tmp_path)
    site.config = {"jobs": str(tmp_path)}
    found = helper_module.any_job(command, site, {"job": 7})
    assert "--allusers" in asked[0] and "--jobs=7" in asked[0]
    assert (found["job"]["person"], found["job"]["id"], found["log"]) == ("ben", "7", None)
    assert found["job"]["efficiency"]["GPU use"].startswith("40 % on average, 2 of 4 GPUs used")
    assert "admin_comment" not in found["job"] and "folder" not in found["job"]
    log = tmp_path / "ben/.out/7.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 200000 + b"end\n\xff")
    text = helper_module.any_job(command, site, {"job": 7})["log"]
    assert text.endswith("end\n\ufffd") and len(text) == 100000
    # No FIFO, and no other folder.
    log.unlink()
    os.mkfifo(log)
    assert helper_module.any_job(command, site, {"job": 7})["log"] is None
    job["user"] = "../ben"
    assert helper_module.any_job(command, site, {"job": 7})["log"] is None
    job["raw_id"] = 8
    with pytest.raises(command.Refused, match="Slurm shows you no job 7"):
        helper_module.any_job(command, site, {"job": 7})


def test_an_operator_acts_as_a_person_of_slurm(helper_module, tmp_path, monkeypatch, command):
    """By one command of Slurm, whose reason is one word of it."""
    ran = []
    monkeypatch.setattr(command, "nodes_now", lambda: [node_of_slurm("gpu-1")])
    monkeypatch.setattr(command, "ask", ran.append)
    site = OfPerson(tmp_path)
    drain = {"node": "gpu-1", "do": "drain", "reason": " new disk "}
    assert helper_module.node(command, site, drain) == {"node": "gpu-1"}
    helper_module.node(command, site, {"node": "gpu-1", "do": "resume", "reason": ""})
    update = ["scontrol", "update", "NodeName=gpu-1"]
    assert ran == [[*update, "State=DRAIN", "Reason=new disk"], [*update, "State=RESUME"]]
    with pytest.raises(command.Refused, match="'ALL' is not a host of this cluster"):
        helper_module.node(command, site, dict(drain, node="ALL"))
    assert len(ran) == 2


def test_the_queue_of_the_cluster_in_words(helper_module, tmp_path, monkeypatch, command):
    monkeypatch.setattr(command, "nodes_now", lambda: [node_of_slurm("gpu-1")])
    site = OfPerson(tmp_path)
    site.waiting = [{"id": number, "reason": "Priority", "gpus": 4} for number in (1, 2)]
    found = helper_module.cluster(command, site, {})
    assert found["reasons"] == [{"reason": "other jobs are before it", "jobs": 2, "gpus": 8}]
    assert found["classes"] == [{"name": "h100", "gpus": 8, "free": 5}]
    site.queue = lambda: None
    found = helper_module.cluster(command, site, {})
    assert (found["queue"], found["reasons"]) == (None, [])
