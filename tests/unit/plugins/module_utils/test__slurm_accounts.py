"""The plan for Slurm's accounting database, applied to a model of it
(tests/support/slurm_database.py).
"""

from __future__ import annotations

import copy
import tempfile

import pytest
import slurm_database
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _sacctmgr as sacctmgr
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm_accounts as accounts_of

STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=60)
PRIORITIES = [
    {"name": "low"},
    {"name": "normal", "priority": 50, "preempts": ["low"]},
    {"name": "high", "priority": 100, "preempts": ["normal", "low"]},
]


class Cluster:
    """A database with its record, to which requests are applied as the module does."""

    def __init__(self, state=None):
        self.database = slurm_database.Database(state or slurm_database.empty())
        self.record = {}

    @property
    def state(self):
        return self.database.state

    def read(self, entity):
        words = sacctmgr.show(entity)
        rc, out = self.database.run(words)
        assert rc == 0
        return out

    def found(self):
        return accounts_of.Found(
            "trainyard",
            sacctmgr.parse_qos(self.read("qos")),
            sacctmgr.parse_accounts(self.read("account")),
            sacctmgr.parse_associations(self.read("assoc")),
            sacctmgr.parse_users(self.read("user"), "trainyard"),
        )

    def plan(self, accounts=(), priorities=(), operators=()):
        assert accounts_of.faults(accounts, priorities, operators) == []
        jobs = [sacctmgr.Job(*job) for job in self.state["jobs"]]
        return accounts_of.plan(
            self.found(), list(accounts), list(priorities), self.record, jobs, list(operators)
        )

    def apply(self, accounts=(), priorities=(), operators=()):
        plan = self.plan(accounts, priorities, operators)
        for step in plan.steps:
            with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
                file.write(step.content)
                file.flush()
                rc, out = self.database.run(
                    ["-i"] + [word.replace("=LOAD", "=" + file.name) for word in step.arguments]
                )
            assert rc == 0, (step, out)
        self.record = plan.record
        again = self.plan(accounts, priorities, operators)
        assert (again.steps, again.changes, again.record, again.kept, again.waiting) == (
            [],
            [],
            plan.record,
            plan.kept,
            plan.waiting,
        )
        return plan

    def hand(self, *words):
        rc, out = self.database.run(["-i", *words])
        assert rc == 0, out

    def hand_row(self, account, user="", **more):
        self.state["rows"].append(slurm_database.row("trainyard", account, user, **more))
        if user:
            self.state["users"].setdefault(user, {"admin": "None"})
            self.state["defaults"].setdefault("trainyard " + user, account)
        else:
            self.state["accounts"].setdefault(account, account)

    def row(self, account, user=""):
        return next(
            iter(self.database.rows(account=account, user=user, cluster="trainyard", partition="")),
            None,
        )

    def content(self):
        """Everything that a person can see, in an order that does not depend on the commands."""
        state = copy.deepcopy(
            {
                name: value
                for name, value in self.state.items()
                if name not in ("log", "jobs", "busy", "fails")
            }
        )
        for each in state["rows"]:
            each["qos"].sort()
        state["rows"].sort(
            key=lambda each: (each["cluster"], each["account"], each["user"], each["partition"])
        )
        return state


VISION = {
    "name": "vision",
    "description": "Computer Vision",
    "gpus": 4,
    "max_gpus_per_person": 2,
    "max_minutes": 600,
    "members": ["anna", "ben"],
}
NLP = {"name": "nlp", "members": ["ben", "carla"]}


def test_new_accounts_and_people_are_one_transaction():
    cluster = Cluster()
    plan = cluster.apply([VISION, NLP], PRIORITIES)
    assert [step.arguments[:2] for step in plan.steps] == [
        ["add", "qos"],
        ["add", "qos"],
        ["modify", "qos"],
        ["load", "file=LOAD"],
    ]
    assert plan.steps[-1].content.splitlines() == [
        "Cluster - 'trainyard'",
        "Parent - 'root'",
        "Account - 'vision':Description='computer vision':Organization='trainyard':GrpTRES=gres/gpu=4:MaxWallDurationPerJob=600:QOS='high,low,normal'"
        ":DefaultQOS='normal'",
        "Account - 'nlp':Description='nlp':Organization='trainyard':QOS='high,low,normal':DefaultQOS='normal'",
        "Parent - 'vision'",
        "User - 'anna':DefaultAccount='vision':GrpTRES=gres/gpu=2",
        "User - 'ben':DefaultAccount='vision':GrpTRES=gres/gpu=2",
        "Parent - 'nlp'",
        "User - 'ben':DefaultAccount='vision'",
        "User - 'carla':DefaultAccount='nlp'",
    ]
    assert cluster.state["qos"] == {
        "normal": {
            "priority": 50,
            "preempts": ["low"],
            "mode": "requeue",
            "flags": ["DenyOnLimit"],
        },
        "low": {"priority": 0, "preempts": [], "mode": "requeue", "flags": ["DenyOnLimit"]},
        "high": {
            "priority": 100,
            "preempts": ["low", "normal"],
            "mode": "cluster",
            "flags": ["DenyOnLimit"],
        },
    }
    assert (
        accounts_of.diff_of(plan.changes)["before"]
        == "qos normal (deny: false, mode: cluster, preempts: none, priority: 0)\n"
    )
    assert "member vision anna (gpus: 2)\n" in accounts_of.diff_of(plan.changes)["after"]


def test_no_gpus_is_a_limit_and_nothing_said_is_none():
    cluster = Cluster()
    cluster.apply([dict(VISION, gpus=0, max_gpus_per_person=0), NLP])
    assert (
        cluster.row("vision")["limits"]
        == cluster.row("vision", "anna")["limits"]
        == {"gres/gpu": 0}
    )
    assert cluster.row("nlp")["limits"] == {} and cluster.row("nlp")["qos"] == []
    # No longer requested: the limit goes.
    cluster.apply([{"name": "vision", "members": ["anna", "ben"]}, NLP])
    assert (
        cluster.row("vision")["limits"] == cluster.row("vision", "anna")["limits"] == {}
        and cluster.row("vision")["minutes"] is None
    )
    assert cluster.state["accounts"]["vision"] == "vision"


def test_changed_by_hand_is_restored_where_it_is_ours_only():
    cluster = Cluster()
    cluster.apply([VISION, NLP], PRIORITIES)
    cluster.hand(
        "modify",
        "account",
        "where",
        "name=vision",
        "cluster=trainyard",
        "set",
        "GrpTRES=gres/gpu=7,cpu=50",
        "QOS-=low",
    )
    cluster.hand(
        "modify",
        "account",
        "where",
        "name=nlp",
        "cluster=trainyard",
        "set",
        "GrpTRES=gres/gpu=3",
        "MaxWall=5",
    )
    cluster.hand(
        "modify",
        "user",
        "where",
        "name=ben",
        "account=vision",
        "cluster=trainyard",
        "set",
        "GrpTRES=gres/gpu=1",
        "MaxSubmitJobs=9",
    )
    cluster.hand(
        "modify", "user", "where", "name=ben", "cluster=trainyard", "set", "DefaultAccount=nlp"
    )
    cluster.hand("modify", "qos", "where", "name=high", "set", "Priority=7")
    cluster.hand("add", "qos", "special")
    cluster.hand(
        "modify", "account", "where", "name=nlp", "cluster=trainyard", "set", "QOS+=special"
    )
    cluster.hand_row("nlp", "dave")
    cluster.hand_row("other", limits={"gres/gpu": 1})
    plan = cluster.apply([VISION, NLP], PRIORITIES)
    assert [change["what"] for change in plan.changes] == [
        "account vision",
        "member vision ben",
        "qos high",
    ]
    assert plan.others == ["dave in account nlp"]
    assert cluster.row("vision")["limits"] == {"gres/gpu": 4, "cpu": 50} and sorted(
        cluster.row("vision")["qos"]
    ) == ["high", "low", "normal"]
    assert (
        cluster.row("vision", "ben")["limits"] == {"gres/gpu": 2}
        and cluster.row("vision", "ben")["submit"] == 9
    )
    assert (
        cluster.row("nlp")["limits"] == {"gres/gpu": 3} and "special" in cluster.row("nlp")["qos"]
    )
    assert (
        cluster.state["defaults"]["trainyard ben"] == "nlp"
        and cluster.state["qos"]["high"]["priority"] == 100
    )
    # An account that others use stays.
    plan = cluster.apply()
    assert plan.kept == [
        {"what": "account nlp", "reason": "others have put dave into it"},
        {"what": "qos high", "reason": "account nlp has it"},
        {"what": "qos low", "reason": "account nlp has it"},
    ]
    assert (
        cluster.row("other")
        and cluster.row("nlp", "dave")
        and not cluster.row("nlp", "ben")
        and not cluster.row("vision")
    )
    assert cluster.state["qos"]["normal"] == slurm_database.empty()["qos"]["normal"]


def test_what_others_made_is_adopted_and_given_back():
    cluster = Cluster()
    cluster.hand_row("vision", limits={"gres/gpu": 1, "cpu": 2}, minutes=5)
    cluster.hand_row("vision", "anna", limits={"gres/gpu": 1})
    before = cluster.content()
    cluster.apply([VISION, NLP], PRIORITIES)
    assert cluster.row("vision")["qos"] == ["+high", "+low", "+normal"] and cluster.row("vision")[
        "limits"
    ] == {"gres/gpu": 4, "cpu": 2}
    cluster.apply([dict(VISION, gpus=6)], PRIORITIES[1:2] + [{"name": "low"}])
    assert sorted(cluster.row("vision")["qos"]) == ["+low", "+normal"]
    assert cluster.apply().kept == [] and cluster.record == {}
    # QOS-=normal would have taken away the QOS that the account inherits.
    assert cluster.content() == before


def test_a_limit_that_others_changed_is_not_given_back():
    cluster = Cluster()
    cluster.hand_row("vision", limits={"gres/gpu": 1})
    cluster.apply([{"name": "vision", "gpus": 4, "max_minutes": 10, "members": []}])
    cluster.hand(
        "modify",
        "account",
        "where",
        "name=vision",
        "cluster=trainyard",
        "set",
        "GrpTRES=gres/gpu=9",
    )
    cluster.apply()
    assert (
        cluster.row("vision")["limits"] == {"gres/gpu": 9}
        and cluster.row("vision")["minutes"] is None
    )


LIMITS = {"cpus": 16, "memory_gb": 64, "max_jobs_per_person": 500, "max_submitted_per_person": 2000}


def limits_of(cluster, account):
    row = cluster.row(account)
    return row["limits"].get("cpu"), row["limits"].get("mem"), row["running"], row["submit"]


def test_limits_beside_gpus():
    cluster = Cluster()
    plan = cluster.apply([dict(VISION, cpus=4, defaults=LIMITS), dict(NLP, defaults=LIMITS)])
    lines = plan.steps[-1].content.splitlines()
    assert lines[2] == (
        "Account - 'vision':Description='computer vision':Organization='trainyard':GrpTRES=cpu=4,gres/gpu=4,mem=65536:MaxJobs=500"
        ":MaxSubmitJobs=2000:MaxWallDurationPerJob=600"
    )
    assert limits_of(cluster, "vision") == (4, 65536, 500, 2000) and limits_of(cluster, "nlp") == (
        16,
        65536,
        500,
        2000,
    )
    plan = cluster.apply(
        [
            dict(VISION, cpus=4, max_jobs_per_person=7, defaults=dict(LIMITS, cpus=32)),
            dict(NLP, defaults=dict(LIMITS, cpus=32)),
        ]
    )
    assert [step.arguments[-1] for step in plan.steps] == ["GrpTRES=cpu=32", "MaxJobs=7"]
    assert (
        "account nlp (cpus: 16)" in accounts_of.diff_of(plan.changes)["before"]
        and "account nlp (cpus: 32)" in accounts_of.diff_of(plan.changes)["after"]
    )
    # No longer requested.
    cluster.apply([VISION, NLP])
    assert limits_of(cluster, "vision") == limits_of(cluster, "nlp") == (None, None, None, None)


def test_a_default_limit_does_not_replace_one_that_was_set_by_hand():
    cluster = Cluster()
    cluster.apply([NLP])
    cluster.hand(
        "modify",
        "account",
        "where",
        "name=nlp",
        "cluster=trainyard",
        "set",
        "MaxSubmitJobs=50",
        "GrpTRES=cpu=99",
    )
    cluster.apply([dict(NLP, defaults=LIMITS)])
    assert limits_of(cluster, "nlp") == (99, 65536, 500, 50)
    # One that was set by hand since then stays, too. One of the inventory is set.
    cluster.hand(
        "modify",
        "account",
        "where",
        "name=nlp",
        "cluster=trainyard",
        "set",
        "MaxJobs=3",
        "GrpTRES=mem=100",
    )
    cluster.apply([dict(NLP, cpus=8, memory_gb=1, defaults=dict(LIMITS, max_jobs_per_person=400))])
    assert limits_of(cluster, "nlp") == (8, 1024, 3, 50)
    cluster.apply([NLP])
    assert limits_of(cluster, "nlp")[0] == 99 and limits_of(cluster, "nlp")[2:] == (3, 50)


def test_people_with_jobs_cannot_submit_more_and_are_removed_later():
    cluster = Cluster()
    cluster.apply([VISION, NLP], PRIORITIES)
    cluster.state["jobs"] = [
        ["7", "anna", "vision", "high", "RUNNING"],
        ["8", "anna", "vision", "normal", "PENDING"],
    ]
    plan = cluster.apply([NLP], PRIORITIES[:2])
    assert plan.waiting == [
        {"what": "anna in account vision", "jobs": ["7", "8"]},
        {"what": "account vision", "jobs": ["7", "8"]},
        {"what": "qos high", "jobs": ["7"]},
    ]
    assert (
        cluster.row("vision", "anna")["submit"] == 0
        and not cluster.row("vision", "ben")
        and "high" in cluster.state["qos"]
    )
    assert cluster.state["defaults"]["trainyard ben"] == "nlp"
    # Requested again, the person can submit again.
    assert cluster.apply([VISION, NLP], PRIORITIES).waiting == []
    assert cluster.row("vision", "anna")["submit"] is None
    cluster.apply([NLP], PRIORITIES[:2])
    cluster.state["jobs"] = []
    assert cluster.apply([NLP], PRIORITIES[:2]).waiting == []
    assert (
        not cluster.row("vision")
        and "anna" not in cluster.state["users"]
        and list(cluster.state["qos"]) == ["normal", "low"]
    )


def test_a_removed_account_is_no_longer_anybodys_default():
    cluster = Cluster()
    cluster.apply([VISION, NLP])
    plan = cluster.apply([NLP, {"name": "new", "members": ["anna"]}])
    order = [step.arguments[0] + " " + step.arguments[1].partition("=")[0] for step in plan.steps]
    assert order == ["load file", "modify user", "modify user", "delete user", "delete account"]
    assert cluster.state["defaults"] == {
        "trainyard root": "root",
        "trainyard ben": "nlp",
        "trainyard carla": "nlp",
        "trainyard anna": "new",
    }


def test_a_default_account_that_a_person_chose_stays():
    cluster = Cluster()
    cluster.apply([VISION, NLP])
    cluster.hand(
        "modify", "user", "where", "name=ben", "cluster=trainyard", "set", "DefaultAccount=nlp"
    )
    cluster.apply([{"name": "bio", "members": ["ben"]}, dict(VISION, members=[]), NLP])
    assert (
        cluster.state["defaults"]["trainyard ben"] == "nlp"
        and cluster.row("bio", "ben")
        and not cluster.row("vision", "ben")
    )


def test_people_are_deleted_where_they_have_no_other_cluster():
    cluster = Cluster()
    cluster.apply([VISION])
    cluster.state["rows"] += [
        slurm_database.row("other", "root"),
        slurm_database.row("other", "x"),
        slurm_database.row("other", "x", "ben"),
    ]
    cluster.state["accounts"]["x"] = "x"
    cluster.state["defaults"]["other ben"] = "x"
    plan = cluster.apply()
    assert [step.arguments for step in plan.steps] == [
        ["delete", "user", "where", "name=anna"],
        ["delete", "user", "where", "name=ben", "cluster=trainyard"],
        ["delete", "account", "where", "name=vision"],
    ]
    assert cluster.database.rows(cluster="other", user="ben")


@pytest.mark.parametrize("by_hand", ["administrator", "partition", "sub-account"])
def test_what_would_take_something_of_others_with_it_is_kept(by_hand):
    cluster = Cluster()
    cluster.apply([VISION])
    if by_hand == "administrator":
        cluster.state["users"]["anna"]["admin"] = "Operator"
    elif by_hand == "partition":
        cluster.hand_row("vision", "anna", partition="debug")
    else:
        cluster.hand_row("vision-2", parent="vision")
    plan = cluster.apply()
    assert {
        "administrator": "anna in account vision",
        "partition": "anna in account vision",
        "sub-account": "account vision",
    }[by_hand] == plan.kept[0]["what"]
    assert cluster.row("vision")


def test_many_people_of_an_account_are_one_command():
    cluster = Cluster()
    many = [
        dict(
            VISION,
            name="a%02d" % number,
            members=["p%03d" % (number * 25 + index) for index in range(25)],
        )
        for number in range(20)
    ]
    assert len(cluster.apply(many, PRIORITIES).steps) == 4
    assert len(cluster.apply([dict(each, gpus=6) for each in many], PRIORITIES).steps) == 1
    assert (
        len(cluster.apply([dict(each, max_gpus_per_person=1) for each in many], PRIORITIES).steps)
        == 21
    )
    assert len(cluster.apply().steps) == 4


@pytest.mark.parametrize(
    ("accounts", "priorities", "words"),
    [
        ([{"name": "Vision"}], [], "accounts: 'Vision' is not a valid name"),
        ([{"name": "a b;reboot"}], [], "is not a valid name"),
        ([{"name": "a,b"}], [], "is not a valid name"),
        ([{"name": "-i"}], [], "is not a valid name"),
        ([{"name": "root"}], [], "'root' is not a valid name"),
        ([{"name": "a\n"}], [], "is not a valid name"),
        ([{"name": "a"}, {"name": "a"}], [], "accounts: 'a' is listed twice"),
        ([{"name": "a", "members": ["x", "x"]}], [], "members of a: 'x' is listed twice"),
        ([{"name": "a", "members": ["Größe"]}], [], "members of a: 'Größe' is not a valid name"),
        ([{"name": "a", "members": ["root"]}], [], "members of a: 'root'"),
        (
            [{"name": "a", "gpus": -1}],
            [],
            "gpus of a: '-1' is not valid; use a whole number from 0",
        ),
        ([{"name": "a", "gpus": True}], [], "gpus of a: 'True'"),
        (
            [{"name": "a", "max_minutes": 0}],
            [],
            "max_minutes of a: '0' is not valid; use a whole number from 1",
        ),
        ([{"name": "a", "cpus": 0}], [], "cpus of a: '0' is not valid; use a whole number from 1"),
        (
            [{"name": "a", "defaults": {"memory_gb": -1}}],
            [],
            "defaults.memory_gb of a: '-1' is not valid",
        ),
        (
            [{"name": "a", "gpus": 2, "max_gpus_per_person": 3}],
            [],
            "max_gpus_per_person of a: '3' is above the 2 GPUs of the account",
        ),
        ([{"name": "a", "description": "x|y"}], [], "description of a: 'x|y' is not valid"),
        ([{"name": "a", "description": "it's"}], [], "description of a"),
        (
            [],
            [{"name": "a", "preempts": ["a"]}],
            "priorities: a > a preempt each other in a circle",
        ),
        (
            [],
            [{"name": "a", "preempts": ["b"]}],
            "priorities: 'a' preempts 'b', which is not in the list",
        ),
        (
            [],
            [
                {"name": "a", "preempts": ["b"]},
                {"name": "b", "preempts": ["c"]},
                {"name": "c", "preempts": ["a"]},
            ],
            "priorities: a > b > c > a preempt each other in a circle",
        ),
        ([], [{"name": "a", "priority": -5}], "priorities: 'a' has the priority '-5'"),
    ],
)
def test_bad_requests_are_named(accounts, priorities, words):
    assert any(words in fault for fault in accounts_of.faults(accounts, priorities))


def test_a_good_request_has_no_faults():
    assert (
        accounts_of.faults(
            [VISION, NLP, {"name": "cpu", "gpus": 0, "max_gpus_per_person": 0}], PRIORITIES
        )
        == []
    )


def test_operators_get_their_rights_and_lose_them():
    """Also somebody who is new, and in the run that removes the person."""
    cluster = Cluster()
    plan = cluster.apply([VISION], operators=["anna"])
    assert plan.record["operator anna"] == {
        "created": False,
        "fields": {"admin": ["None", "Administrator"]},
    }
    assert {
        "what": "operator anna",
        "action": "change",
        "before": {"admin": "None"},
        "after": {"admin": "Administrator"},
    } in plan.changes
    rights = {name: user["admin"] for name, user in cluster.state["users"].items()}
    assert rights == {"root": "Administrator", "anna": "Administrator", "ben": "None"}
    plan = cluster.apply([VISION], operators=["ben"])
    assert [step.arguments for step in plan.steps] == [
        ["modify", "user", "where", "name=anna", "set", "AdminLevel=None"],
        ["modify", "user", "where", "name=ben", "set", "AdminLevel=Administrator"],
    ]
    cluster.apply([dict(VISION, members=["anna"])])
    assert "ben" not in cluster.state["users"]
    assert "operator" not in " ".join(cluster.record)


def test_rights_that_others_have_given_stay():
    cluster = Cluster()
    cluster.apply([VISION, NLP])
    cluster.state["users"]["anna"]["admin"] = "Administrator"
    cluster.state["users"]["ben"]["admin"] = "Operator"
    cluster.apply([VISION, NLP], operators=["anna", "ben", "carla"])
    cluster.apply([VISION, NLP])
    rights = {name: user["admin"] for name, user in cluster.state["users"].items()}
    assert rights == {
        "root": "Administrator",
        "anna": "Administrator",
        "ben": "Operator",
        "carla": "None",
    }


def test_an_operator_is_in_an_account():
    assert accounts_of.faults([VISION], [], ["anna", "carla"]) == [
        "operators: 'carla' is in no account; list the person in members of one"
    ]


def test_after_a_failure_the_record_is_what_the_database_has():
    cluster = Cluster()
    cluster.apply([dict(VISION, members=["anna"])])
    before = cluster.record
    after = cluster.plan([dict(VISION, gpus=8), NLP]).record
    settled = accounts_of.settled_record(cluster.found(), before, after)
    # Neither the limit of 8 nor account nlp nor ben came to be.
    assert settled == before and settled["account vision"]["fields"]["gpus"] == [None, 4]


# --- any request after any other

NAMES = st.sampled_from(["vision", "nlp", "bio"])
PEOPLE = st.lists(st.sampled_from(["anna", "ben", "carla", "dave"]), unique=True)
LIMIT = st.none() | st.integers(0, 3)
ACCOUNT = st.fixed_dictionaries(
    {
        "name": NAMES,
        "gpus": LIMIT.map(lambda value: None if value is None else value + 3),
        "max_gpus_per_person": LIMIT,
        "max_minutes": st.none() | st.integers(1, 5000),
        "description": st.sampled_from([None, "", "A group: one, two"]),
        "members": PEOPLE,
        "cpus": st.none() | st.integers(1, 9),
        "memory_gb": st.none() | st.integers(1, 3),
        "max_submitted_per_person": st.none() | st.integers(1, 3),
        "defaults": st.dictionaries(st.sampled_from(sorted(LIMITS)), st.integers(1, 3)),
    }
)
ACCOUNTS = st.lists(ACCOUNT, max_size=3, unique_by=lambda entry: entry["name"])
SOME = st.sampled_from(
    [
        [],
        PRIORITIES,
        PRIORITIES[:1],
        PRIORITIES[:2],
        [{"name": "other", "priority": 3}],
        list(reversed(PRIORITIES)),
    ]
)
BY_HAND = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(["", "anna", "ben", "erin"]),
        st.none() | st.integers(0, 9),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda entry: entry[:2],
)


def with_hand(cluster, by_hand):
    for name, user, limit, inherits in by_hand:
        limits = {"cpu": 3} if limit is None else {"cpu": 3, "gres/gpu": limit}
        if not cluster.row(name):
            cluster.hand_row(name, qos=[] if inherits else ["normal"], limits={"cpu": 3})
        if user:
            cluster.hand_row(name, user, limits=limits)
        else:
            cluster.row(name)["limits"] = limits


@STEADY
@given(BY_HAND, st.lists(st.tuples(ACCOUNTS, SOME), min_size=1, max_size=4))
def test_any_request_becomes_true_and_teardown_restores_everything(by_hand, requests):
    cluster = Cluster()
    with_hand(cluster, by_hand)
    before = cluster.content()
    for accounts, priorities in requests:
        # apply() also says that a second plan is empty.
        cluster.apply(accounts, priorities)
        for entry in accounts:
            row = cluster.row(entry["name"])
            assert row["limits"].get("gres/gpu") == entry["gpus"] or entry["gpus"] is None
            assert row["minutes"] == entry["max_minutes"] or entry["max_minutes"] is None
            assert row["limits"].get("cpu") == entry["cpus"] or entry["cpus"] is None
            assert (
                row["submit"] == entry["max_submitted_per_person"]
                or entry["max_submitted_per_person"] is None
            )
            # These are never set by hand here.
            if entry["memory_gb"] is None and "memory_gb" in entry["defaults"]:
                assert row["limits"]["mem"] == 1024 * entry["defaults"]["memory_gb"]
            assert {each["name"] for each in priorities} <= {
                name.lstrip("+") for name in row["qos"]
            }
            assert not priorities or row["default_qos"] == accounts_of.default_priority(priorities)
            for person in entry["members"]:
                limit = entry["max_gpus_per_person"]
                assert (
                    cluster.row(entry["name"], person)["limits"].get("gres/gpu") == limit
                    or limit is None
                )
                assert cluster.row(cluster.state["defaults"]["trainyard " + person], person)
        named = {entry["name"]: entry["members"] for entry in accounts}
        for row in cluster.state["rows"]:
            hand = any(
                (row["account"], row["user"]) in ((name, ""), (name, user))
                for name, user, dummy, dummy in by_hand
            )
            assert (
                hand
                or row["account"] == "root"
                or (
                    row["account"] in named
                    and (not row["user"] or row["user"] in named[row["account"]])
                )
            )
    cluster.apply()
    assert cluster.record == {}
    assert cluster.content() == before


@STEADY
@given(
    ACCOUNTS,
    ACCOUNTS,
    st.lists(st.tuples(NAMES, st.sampled_from(["anna", "ben", "carla"])), max_size=3),
)
def test_with_any_jobs_slurm_refuses_no_step(first, second, jobs):
    cluster = Cluster()
    cluster.apply(first, PRIORITIES)
    cluster.state["jobs"] = [
        [str(number), user, name, "high", "RUNNING"]
        for number, (name, user) in enumerate(jobs)
        if cluster.row(name, user)
    ]
    plan = cluster.apply(second, PRIORITIES[:2])
    for number, user, name, *_rest in cluster.state["jobs"]:
        assert cluster.row(name, user) and "high" in cluster.state["qos"]
        requested = any(entry["name"] == name and user in entry["members"] for entry in second)
        assert cluster.row(name, user)["submit"] == (None if requested else 0)
        assert any(number in each["jobs"] for each in plan.waiting)
    cluster.state["jobs"] = []
    cluster.apply(second, PRIORITIES[:2])
    cluster.apply()
    assert cluster.content() == Cluster().content()
