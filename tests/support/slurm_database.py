"""A model of Slurm's accounting database, as sacctmgr 22.05 and 24.11 showed it to be: the commands
of slurm_accounts, and what Slurm refuses.

Run as a script, it is the tool that its first argument names: sacctmgr, squeue or scancel. The
state is the JSON file that SLURM_DATABASE names.
"""

from __future__ import annotations

import json
import os
import re
import sys

GPU = "gres/gpu"


def empty(cluster="trainyard"):
    return {
        "tres": ["cpu", "mem", GPU],
        "qos": {"normal": {"priority": 0, "preempts": [], "mode": "cluster", "flags": []}},
        "accounts": {"root": "default root account"},
        "rows": [row(cluster, "root", qos=["normal"]), row(cluster, "root", "root")],
        "users": {"root": {"admin": "Administrator"}},
        "defaults": {f"{cluster} root": "root"},
        "jobs": [],
        "busy": 0,
        "log": [],
        "fails": {},
    }


def row(cluster, account, user="", partition="", **more):
    return {
        "cluster": cluster,
        "account": account,
        "user": user,
        "partition": partition,
        "parent": "" if user or account == "root" else "root",
        "limits": {},
        "minutes": None,
        "qos": [],
        "default_qos": "",
        "submit": None,
        "running": None,
        **more,
    }


class Refused(Exception):
    """What sacctmgr prints where it exits with 1."""


class Database:
    def __init__(self, state):
        self.state = state

    # --- what is there
    def rows(self, **where):
        return [
            each
            for each in self.state["rows"]
            if all(each[name] == value for name, value in where.items())
        ]

    def show(self, entity, columns):
        state = self.state
        if entity == "tres":
            return [
                "|".join((*(name.split("/") + [""])[:2], str(number)))
                for number, name in enumerate(state["tres"])
            ]
        if entity == "account":
            return [f"{name}|{text}" for name, text in sorted(state["accounts"].items())]
        if entity == "qos":
            return [
                "|".join(
                    (
                        name,
                        str(qos["priority"]),
                        ",".join(qos["preempts"]),
                        qos["mode"],
                        ",".join(qos["flags"]),
                    )
                )
                for name, qos in state["qos"].items()
            ]
        if entity == "user":
            return [
                "|".join(
                    (
                        each["user"],
                        each["cluster"],
                        each["account"],
                        state["defaults"].get(f"{each['cluster']} {each['user']}", ""),
                        state["users"][each["user"]]["admin"],
                    )
                )
                for each in self.sorted()
                if each["user"]
            ]
        assert entity == "assoc" and columns.startswith("Cluster,Account,User,Partition"), entity
        return [
            "|".join(
                (
                    each["cluster"],
                    each["account"],
                    each["user"],
                    each["partition"],
                    each["parent"],
                    ",".join(f"{name}={number}" for name, number in sorted(each["limits"].items())),
                    wall(each["minutes"]),
                    ",".join(sorted(each["qos"])),
                    each["default_qos"],
                    *(
                        "" if each[name] is None else str(each[name])
                        for name in ("submit", "running")
                    ),
                )
            )
            for each in self.sorted()
        ]

    def sorted(self):
        return sorted(
            self.state["rows"],
            key=lambda each: (
                each["cluster"],
                each["account"] != "root",
                each["account"],
                each["user"],
                each["partition"],
            ),
        )

    # --- commands
    def run(self, words):
        """Return exit code and output of one command."""
        assert words[0] in ("-n", "-i"), words
        if words[0] == "-n":
            assert words[1:3] == ["-P", "show"]
            return 0, "".join(
                line + "\n" for line in self.show(words[3], words[-1].partition("=")[2])
            )
        before = json.dumps(self.state)
        self.state["log"].append(words[1:])
        if self.state["busy"]:
            self.state["busy"] -= 1
            # With exit code 0, as 22.05 does.
            return 0, " Database is busy or waiting for lock from other user.\n"
        try:
            for sign, text in self.state["fails"].items():
                if sign in " ".join(words):
                    raise Refused(text)
            self.command(words[1], words[2:])
        except Refused as refused:
            log = self.state["log"]
            self.state.clear()
            self.state.update(json.loads(before), log=log)
            return 1, f" {refused}\n"
        return 0, " done\n"

    def command(self, verb, words):
        if verb == "load":
            with open(words[0].partition("=")[2], encoding="ascii") as file:
                return self.load(file.read().splitlines())
        entity, words = words[0], words[1:]
        if verb == "add":
            assert entity == "qos"
            if words[0] in self.state["qos"]:
                raise Refused("Nothing new added.")
            self.state["qos"][words[0]] = {
                "priority": 0,
                "preempts": [],
                "mode": "cluster",
                "flags": [],
            }
            return self.set_qos(words[0], words[1:])
        assert words[0] == "where", words
        place = words.index("set") if "set" in words else len(words)
        where = dict(word.split("=", 1) for word in words[1:place])
        names = where.pop("name").split(",")
        return getattr(self, f"{verb}_{entity}")(names, where, words[place + 1 :])

    def modify_qos(self, names, where, settings):
        for name in names:
            self.set_qos(name, settings)

    def set_qos(self, name, settings):
        if name not in self.state["qos"]:
            raise Refused("Nothing modified")
        qos = self.state["qos"][name]
        for setting in settings:
            key, value = setting.split("=", 1)
            if key == "Priority":
                qos["priority"] = int(value)
            elif key == "Preempt":
                qos["preempts"] = sorted(self.known(value.split(","))) if value else []
            elif key == "PreemptMode":
                qos["mode"] = value
            elif key in ("Flags", "Flags+"):
                qos["flags"] = sorted({*qos["flags"], value})
            else:
                assert key == "Flags-", setting
                qos["flags"] = [flag for flag in qos["flags"] if flag != value]

    def known(self, names):
        for name in names:
            if name not in self.state["qos"]:
                raise Refused(
                    f"error: You gave a bad qos '{name}'. Valid QOS's are {','.join(self.state['qos'])}"
                )
        return names

    def set_row(self, each, settings):
        for setting in settings:
            key, value = setting.split("=", 1)
            number = None if value == "-1" else value
            if key == "GrpTRES":
                for part in value.split(","):
                    name, count = part.split("=")
                    if name not in self.state["tres"]:
                        raise Refused(
                            f"error: slurmdb_format_tres_str: no TRES known by type {name}"
                        )
                    each["limits"].pop(name, None)
                    if count != "-1":
                        each["limits"][name] = int(count)
            elif key in ("MaxWall", "MaxWallDurationPerJob"):
                each["minutes"] = number and int(number)
            elif key in ("MaxSubmitJobs", "MaxJobs"):
                each["submit" if key == "MaxSubmitJobs" else "running"] = number and int(number)
            elif key == "DefaultQOS":
                each["default_qos"] = number and self.known([number])[0] or ""
            elif key == "QOS":
                each["qos"] = self.known(value.split(",")) if value else []
            elif key == "QOS+":
                inherits = all(name[0] in "+-" for name in each["qos"])
                for name in self.known(value.split(",")):
                    each["qos"] = [other for other in each["qos"] if other.lstrip("+-") != name] + [
                        ("+" if inherits else "") + name
                    ]
            else:
                assert key == "QOS-", setting
                inherits = all(name[0] in "+-" for name in each["qos"])
                for name in value.split(","):
                    each["qos"] = [other for other in each["qos"] if other.lstrip("+-") != name] + (
                        ["-" + name] if inherits else []
                    )

    def modify_account(self, names, where, settings):
        for name in names:
            for each in [each for each in settings if each.startswith("Description=")]:
                self.state["accounts"][name] = each.partition("=")[2].lower()
            rows = self.rows(account=name, user="", cluster=where["cluster"])
            if not rows:
                raise Refused("Nothing modified")
            self.set_row(
                rows[0], [each for each in settings if not each.startswith("Description=")]
            )

    def modify_user(self, names, where, settings):
        for name in names:
            if settings[0].startswith("DefaultAccount="):
                account = settings[0].partition("=")[2]
                if not self.rows(user=name, account=account, cluster=where["cluster"]):
                    raise Refused(f"{name} has no association with {account}")
                self.state["defaults"][f"{where['cluster']} {name}"] = account
                continue
            if settings[0].startswith("AdminLevel="):
                if name not in self.state["users"]:
                    raise Refused("Nothing modified")
                self.state["users"][name]["admin"] = settings[0].partition("=")[2]
                continue
            rows = self.rows(user=name, **where)
            if not rows:
                raise Refused("Nothing modified")
            for each in rows:
                self.set_row(each, settings)

    def load(self, lines):
        cluster = re.fullmatch(r"Cluster - '(\w+)'", lines[0]).group(1)
        # The real one adds a cluster that it does not know.
        assert self.rows(cluster=cluster), cluster
        parent, added = "", 0
        for line in lines[1:]:
            kind, name, rest = re.fullmatch(r"(\w+) - '([^']+)'(?::(.*))?", line).groups()
            values = dict(re.findall(r"(\w+)=('[^']*'|[^:]*)", rest or ""))
            values = {key: value.strip("'") for key, value in values.items()}
            if kind == "Parent":
                if not self.rows(cluster=cluster, account=name, user=""):
                    raise Refused(
                        f"You need to add this parent ({name}) as a child before you can add children to it."
                    )
                parent = name
                continue
            settings = [
                f"{key}={value}"
                for key, value in values.items()
                if key not in ("Description", "Organization", "DefaultAccount")
            ]
            user = name if kind == "User" else ""
            account = parent if user else name
            if self.rows(cluster=cluster, account=account, user=user, partition=""):
                raise Refused("the plan adds what is there")
            self.state["rows"].append(row(cluster, account, user))
            added += 1
            self.set_row(self.state["rows"][-1], settings)
            if user:
                self.state["users"].setdefault(name, {"admin": "None"})
                self.state["defaults"].setdefault(f"{cluster} {name}", values["DefaultAccount"])
                if self.state["defaults"][f"{cluster} {name}"] != values["DefaultAccount"]:
                    raise Refused("the plan changes a default account by the way")
            else:
                assert values["Organization"] == "trainyard"
                self.state["accounts"].setdefault(name, values["Description"].lower())
        for line in lines[1:]:
            found = re.match(r"User - '([^']+)':DefaultAccount='([^']+)'", line)
            if found and not self.rows(
                cluster=cluster, account=found.group(2), user=found.group(1)
            ):
                raise Refused("a default account that is none of the person's accounts")
        if not added:
            raise Refused("Nothing new added.")

    def drop(self, rows):
        active = [
            job
            for job in self.state["jobs"]
            if any((job[2], job[1]) == (each["account"], each["user"]) for each in rows)
        ]
        if active:
            raise Refused(
                "Error with request: Job(s) active, cancel job(s) before remove\n"
                + "\n".join(f"  JobID = {job[0]}" for job in active)
            )
        for user in sorted({each["user"] for each in rows if each["user"]}):
            for cluster in sorted({each["cluster"] for each in rows}):
                mine = [each for each in self.rows(user=user, cluster=cluster)]
                going = [each for each in mine if each in rows]
                default = self.state["defaults"].get(f"{cluster} {user}")
                if len(going) < len(mine) and any(each["account"] == default for each in going):
                    raise Refused(
                        "Error with request: You can not remove the default account of a user"
                    )
                if len(going) == len(mine):
                    self.state["defaults"].pop(f"{cluster} {user}", None)
        if not rows:
            raise Refused("Nothing deleted")
        self.state["rows"] = [each for each in self.state["rows"] if each not in rows]
        for user in list(self.state["users"]):
            if not self.rows(user=user):
                del self.state["users"][user]

    def delete_user(self, names, where, settings):
        self.drop([each for name in names for each in self.rows(user=name, **where)])

    def delete_account(self, names, where, settings):
        rows = [
            each
            for each in self.rows(**where)
            if each["account"] in names or each["parent"] in names
        ]
        self.drop(rows)
        for name in {each["account"] for each in rows}:
            # With a cluster, the account stays, without an association.
            if not where and not self.rows(account=name):
                del self.state["accounts"][name]

    def delete_qos(self, names, where, settings):
        if any(each["default_qos"] in names for each in self.state["rows"]):
            raise Refused("Associations listed below have these as their Default QOS.")
        for name in names:
            del self.state["qos"][name]
        for qos in self.state["qos"].values():
            qos["preempts"] = [name for name in qos["preempts"] if name not in names]
        for each in self.state["rows"]:
            each["qos"] = [name for name in each["qos"] if name.lstrip("+-") not in names]


def wall(minutes):
    if minutes is None:
        return ""
    days, hours = divmod(minutes // 60, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes % 60:02}:00"


def main():
    path = os.environ["SLURM_DATABASE"]
    with open(path, encoding="utf-8") as file:
        state = json.load(file)
    tool, words = sys.argv[1], sys.argv[2:]
    rc, text = 0, ""
    if tool == "sacctmgr":
        rc, text = Database(state).run(words)
    elif tool == "squeue":
        text = "".join("|".join(job) + "\n" for job in state["jobs"])
    else:
        state["jobs"] = [job for job in state["jobs"] if job[0] not in words]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(state, file)
    sys.stdout.write(text)
    sys.exit(rc)


if __name__ == "__main__":
    main()
