"""Plan of monitoring: what each host gets, what is refused, what a second run leaves alone, and
what goes.
"""

from __future__ import annotations

import json
import re

import pytest
from monitoring_daemons import WANTED

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _monitoring_plan as planned

NOTHING = {
    "record": {},
    "placed_packages": False,
    "packages": {},
    "units": {},
    "certificate": ["there is none"],
    "key_access": [],
    "authority": "",
    "signer": "",
    "taken": [],
    "free_gib": 100,
}
RUNNING = {"active": True, "enabled": True, "loaded": True}


def plan(found=None, **more):
    return planned.host_plan(dict(NOTHING, **(found or {})), dict(WANTED, **more))


def files(entries):
    return {entry["path"]: entry for entry in entries}


def settled(**more):
    """What a host has after a run."""
    made = plan(**more)
    return dict(
        NOTHING,
        record=json.loads(made["record_text"]),
        placed_packages=True,
        packages=dict.fromkeys(made["packages"], "1"),
        units=dict.fromkeys(made["units"], RUNNING),
        certificate=[],
    )


def test_a_host_with_gpus():
    made = plan()
    assert made["packages"] == ["prometheus-node-exporter", "openssl"] == made["lacks_packages"]
    assert made["problems"] == [] and made["server_files"] == [] and not made["is_server"]
    assert set(made["units"]) == {
        "prometheus-node-exporter.service",
        "trainyard-metrics-gpu.service",
        "trainyard-metrics-host.timer",
    }
    written = files(made["host_files"])
    reader = json.loads(written["/etc/trainyard/monitoring/reader.json"]["content"])
    assert reader["source"] == "nvidia_smi" and reader["interval"] == 15 and reader["jobs"]
    assert reader["gpus"] == 8 and reader["shares"] == ["/share"]
    assert "/etc/trainyard/tls/hub.pem" in reader["certificates"]
    folder = written["/var/lib/trainyard/metrics/gpu"]
    assert (folder["owner"], folder["group"], folder["mode"]) == (
        "prometheus",
        "prometheus",
        "2750",
    )
    assert "/var/lib/trainyard/metrics/slurm" not in written
    assert written["/run/trainyard/gpus"]["mode"] == "2750"


def test_the_daemons_are_closed_before_the_packages_start_them():
    for host in ("front", "gpu-a"):
        made = plan(host=host)
        early = files(made["early_files"])
        for unit in set(made["units"]) & set(planned.PACKAGES):
            text = early["/etc/systemd/system/%s.d/trainyard.conf" % unit]["content"]
            # The distribution's command is replaced, and not followed by ours.
            assert re.search(
                r"^ExecStart=\nExecStart=/usr/bin/%s " % planned.PACKAGES[unit], text, re.M
            )
            assert "/etc/trainyard/monitoring/web.yml" in text
            assert not re.search(r"listen-address=(:|0\.0\.0\.0|\[::\])", text)
    text = files(plan(host="front")["early_files"])[
        "/etc/systemd/system/prometheus-alertmanager.service.d/trainyard.conf"
    ]["content"]
    assert " --cluster.listen-address= " in text


def test_the_exporter_of_a_host():
    text = planned.node_exporter(dict(WANTED, port=9100))
    assert "--web.listen-address=192.0.2.11:9100 " in text
    # Prometheus, and the host itself, which waits for it. The scenario has seen that wait end in
    # vain.
    assert "IPAddressDeny=any\nIPAddressAllow=192.0.2.10 192.0.2.11\n" in text
    # systemd would take one $ for the beginning of a variable.
    assert not re.search(r"(?<!\$)\$(?!\$)", text)
    assert "nfs4?" in text and "--collector.disable-defaults" in text
    assert "--web.listen-address=[2001:db8::12]:9100 " in planned.node_exporter(
        dict(WANTED, host="gpu-b")
    )


@pytest.mark.parametrize(
    ("release", "option"),
    [("debian 12", "--web.config.file="), ("ubuntu 22.04", "--web.config=")],
)
def test_the_option_of_the_version(release, option):
    assert " %s/etc/" % option in planned.node_exporter(dict(WANTED, release=release))


def test_the_host_of_prometheus():
    made = plan(host="front", gpus=0)
    assert set(made["units"]) == {
        "prometheus-node-exporter.service",
        "prometheus.service",
        "prometheus-alertmanager.service",
        "trainyard-metrics-host.timer",
        "trainyard-metrics-slurm.timer",
        "trainyard-usage.timer",
    }
    assert made["certificate"] == {
        "names": ["front", "localhost"],
        "addresses": ["127.0.0.1", "192.0.2.10"],
    }
    written = files(made["server_files"])
    config = json.loads(written["/etc/trainyard/monitoring/prometheus.yml"]["content"])
    assert config["global"]["scrape_interval"] == "15s"
    assert [job["job_name"] for job in config["scrape_configs"]] == [
        "host",
        "prometheus",
        "alertmanager",
    ]
    for job in config["scrape_configs"]:
        assert job["scheme"] == "https" and job["tls_config"]["cert_file"].endswith("/client.pem")
    targets = json.loads(written["/etc/trainyard/monitoring/targets/hosts.json"]["content"])
    assert targets[2] == {"targets": ["[2001:db8::12]:9100"], "labels": {"instance": "gpu-b"}}
    for entry in written.values():
        if entry["path"].startswith("/etc/trainyard") and "content" in entry:
            assert (entry["mode"], entry["group"]) == ("0640", "prometheus"), entry["path"]
    # Debian's package leaves the values of all people open.
    data = written["/var/lib/prometheus"]
    assert (data["mode"], data["owner"], data["group"]) == ("0750", "prometheus", "prometheus")
    for unit in ("prometheus", "prometheus-alertmanager"):
        text = written["/etc/systemd/system/%s.service.d/trainyard.conf" % unit]["content"]
        assert "\nUMask=0077\n" in text
    assert "nobody gets them" in made["warnings"][0]


def test_the_use_of_jobs_is_read_where_prometheus_answers():
    made = plan(host="front", gpus=0, receivers=[{"name": "mail"}])
    assert made["warnings"] == []
    written = files(made["host_files"])
    assert json.loads(written["/etc/trainyard/monitoring/usage.json"]["content"]) == {
        "interval": 15,
        "idle_minutes": 60,
        "mail": False,
        "people_see": "own",
    }
    unit = written["/etc/systemd/system/trainyard-usage.service"]["content"]
    assert "User=slurm\nSupplementaryGroups=prometheus\n" in unit
    assert "/var/lib/trainyard/usage/accounts.json" in made["absent"]
    seen = plan(host="front", people_see="occupancy")
    assert files(seen["host_files"])["/var/lib/trainyard/usage"]["owner"] == "slurm"
    # Everybody reads this file, so it goes when the site no longer shows it.
    assert "/var/lib/trainyard/usage/accounts.json" not in seen["absent"]
    assert "/var/lib/trainyard/usage" not in written
    # Prometheus is elsewhere, and listens on its own host only.
    made = plan(host="front", gpus=0, prometheus_host="gpu-a")
    assert "trainyard-usage.timer" not in made["units"]
    [warning] = made["warnings"]
    assert warning.startswith("Prometheus is on gpu-a, and Slurm on front: the use of GPUs by jobs")
    # What the program has written stays while it runs.
    own = {"host": "front", "people_see": "occupancy"}
    made = plan(settled(**own), **own)
    for path in ("/var/lib/trainyard/metrics/slurm/idle.json", planned.USAGE + "/accounts.json"):
        assert path not in made["absent"]
        assert path in plan(settled(**own), has_slurm=False, has_marks=False, **own)["absent"]


def test_without_a_prolog_no_gpu_looks_free():
    """job_container_enabled: false. A job of 0 would say that all GPUs are free."""
    made = plan(has_marks=False)
    reader = files(made["host_files"])["/etc/trainyard/monitoring/reader.json"]["content"]
    assert not json.loads(reader)["jobs"] and "/run/trainyard/gpus" not in files(made["host_files"])
    made = plan(host="front", has_marks=False, receivers=[{"name": "mail"}])
    assert "trainyard-usage.timer" not in made["units"]
    assert "trainyard-metrics-slurm.timer" in made["units"]
    [warning] = made["warnings"]
    assert warning.startswith("job_container_enabled is false, so no prolog")


def test_without_slurm_nothing_is_of_slurm():
    made = plan(host="front", has_slurm=False, has_marks=False)
    text = json.dumps([made["host_files"], list(made["units"])])
    assert "slurm" not in text.replace("slurm_reader", "") and "/run/trainyard/gpus" not in text


def test_npus():
    made = plan(gpus=0, npus=8)
    unit = files(made["host_files"])["/etc/systemd/system/trainyard-metrics-gpu.service"]["content"]
    assert "SupplementaryGroups=HwHiAiUser\n" in unit
    reader = files(made["host_files"])["/etc/trainyard/monitoring/reader.json"]["content"]
    assert json.loads(reader)["source"] == "npu_smi"
    # Also where NVIDIA's GPUs have another source.
    assert '"npu_smi"' in json.dumps(plan(gpus=0, npus=8, gpu_source="dcgm")["host_files"]).replace(
        "\\", ""
    )


def test_another_source_of_gpus():
    written = files(plan(host="front", gpu_source="dcgm")["server_files"])
    assert "/etc/trainyard/monitoring/rules/dcgm.yml" in written
    config = json.loads(written["/etc/trainyard/monitoring/prometheus.yml"]["content"])
    assert config["scrape_configs"][-1]["job_name"] == "dcgm"
    targets = written["/etc/trainyard/monitoring/targets/dcgm.json"]["content"]
    assert "192.0.2.11:9400" in targets


def test_an_alertmanager_of_the_site():
    manager = {"scheme": "https", "static_configs": [{"targets": ["alerts.example:9093"]}]}
    made = plan(host="front", alertmanagers=[manager])
    assert "prometheus-alertmanager" not in made["packages"]
    assert "prometheus-alertmanager.service" not in made["units"]
    assert "alertmanager.yml" not in json.dumps(made["server_files"])
    config = files(made["server_files"])["/etc/trainyard/monitoring/prometheus.yml"]["content"]
    assert json.loads(config)["alerting"]["alertmanagers"] == [manager]
    assert made["warnings"] == []


def test_receivers():
    receivers = [{"name": "mail"}, {"name": "chat"}]
    routes = [{"receiver": "chat", "matchers": ['severity = "page"']}]
    config = json.loads(
        planned.alertmanager_config(dict(WANTED, receivers=receivers, routes=routes))
    )
    assert config["route"]["receiver"] == "mail"
    # The test alert of verify reaches nobody, whatever the routes of the site are.
    test = {"receiver": "nobody", "matchers": ['alertname = "TrainyardTest"']}
    assert config["route"]["routes"] == [test, *routes]
    assert config["receivers"] == [*receivers, {"name": "nobody"}]
    assert json.loads(planned.alertmanager_config(WANTED))["receivers"] == [{"name": "nobody"}]
    assert config["inhibit_rules"][0]["equal"] == ["instance"]


def test_grafana():
    made = plan(host="front", grafana_dir="/etc/grafana")
    written = files(made["server_files"])
    assert "/etc/grafana/trainyard/cluster.json" in written
    source = json.loads(written["/etc/grafana/provisioning/datasources/trainyard.yml"]["content"])
    # The key is in no file that Grafana's users could read.
    assert source["datasources"][0]["secureJsonData"]["tlsClientKey"] == "$TRAINYARD_CLIENT_KEY"
    gone = plan({"record": json.loads(made["record_text"])}, host="front")
    assert "/etc/grafana/trainyard/cluster.json" in gone["absent"]


# --- a second run, and what goes ---


@pytest.mark.parametrize("host", ["front", "gpu-a"])
def test_a_second_run_leaves_all_alone(host):
    found = settled(host=host)
    made = plan(found, host=host)
    assert json.loads(made["record_text"]) == found["record"]
    assert made["lacks_packages"] == made["problems"] == made["stop"] == []
    assert planned.services(made, found, []) == []
    written = files(made["host_files"] + made["server_files"])
    assert not set(made["absent"]) & set(written)
    # What the readers write stays.
    for name in ("gpu.prom", "sums.json", "nvidia-smi.xml"):
        assert "/var/lib/trainyard/metrics/gpu/" + name not in made["absent"]
    assert planned.drift(made, found, []) == []


def test_only_what_has_changed_is_restarted():
    found = settled()
    made = plan(found)
    path = "/usr/local/lib/trainyard/monitoring/gpu_reader"
    assert planned.services(made, found, [path]) == [
        {"name": "trainyard-metrics-gpu.service", "state": "restarted"}
    ]
    units = dict(found["units"])
    # Files that an earlier run has changed, which ended before the restart; one that is stopped.
    units["trainyard-metrics-gpu.service"] = dict(RUNNING, loaded=False)
    units["prometheus-node-exporter.service"] = dict(RUNNING, active=False)
    units["trainyard-metrics-host.timer"] = dict(RUNNING, enabled=False)
    rows = planned.services(made, dict(found, units=units), [])
    assert {row["name"]: row["state"] for row in rows} == {
        "trainyard-metrics-gpu.service": "restarted",
        "prometheus-node-exporter.service": "started",
        "trainyard-metrics-host.timer": "started",
    }
    assert len(planned.drift(made, dict(found, units=units), ["/x"])) == 4


def test_a_host_that_is_no_longer_that_of_prometheus():
    found = settled(host="front")
    made = plan(found, host="front", prometheus_host="gpu-a")
    assert made["stop"] == [
        "trainyard-usage.timer",
        "prometheus.service",
        "prometheus-alertmanager.service",
    ]
    gone = made["absent"]
    assert "/etc/trainyard/monitoring/prometheus.yml" in gone
    assert "/etc/trainyard/monitoring/rules/trainyard.yml" in gone
    assert gone.index("/etc/systemd/system/prometheus.service.d/trainyard.conf") < gone.index(
        "/etc/systemd/system/prometheus.service.d"
    )
    # Also if it was stopped by hand: it would start at the next boot, without its settings.
    units = dict.fromkeys(found["units"], dict(RUNNING, active=False))
    assert (
        "prometheus.service"
        in plan(dict(found, units=units), host="front", prometheus_host="gpu-a")["stop"]
    )


def test_a_host_without_gpus_any_more():
    made = plan(settled(), gpus=0)
    assert made["stop"] == ["trainyard-metrics-gpu.service"]
    assert "/var/lib/trainyard/metrics/gpu/gpu.prom" in made["absent"]


def test_a_rule_file_of_the_site_goes_with_it():
    first = plan(host="front", site_rules={"mine.yml": "groups: []\n"})
    path = "/etc/trainyard/monitoring/rules/site-mine.yml"
    assert path in files(first["server_files"])
    found = {"record": json.loads(first["record_text"]), "placed_packages": True}
    assert path in plan(found, host="front")["absent"]
    assert path in planned.removal(dict(NOTHING, **found))["absent"]


def test_removal_is_of_all_that_the_plan_places():
    for more in ({}, {"host": "front", "gpu_source": "dcgm", "grafana_dir": "/srv/grafana"}):
        made = plan(**more)
        found = dict(NOTHING, record=json.loads(made["record_text"]))
        gone = planned.removal(found)
        assert gone["placed"] and set(gone["units"]) <= set(planned.removal(NOTHING)["units"])
        placed = set(files(made["host_files"] + made["server_files"]))
        # Folders of several roles, and those of /run.
        shared = {"/usr/local/lib/trainyard", "/run/trainyard", "/run/trainyard/gpus"}
        # Of Debian's packages.
        shared.add("/var/lib/prometheus")
        grafana = {"/srv/grafana", "/srv/grafana/provisioning"} | set(gone["grafana_folders"])
        assert placed - set(gone["absent"]) - shared - grafana == set()
    assert not planned.removal(NOTHING)["placed"]


# --- problems ---


@pytest.mark.parametrize(
    ("found", "more", "told"),
    [
        ({"packages": {"prometheus-node-exporter": "1"}}, {}, "installed already"),
        ({"taken": [9100]}, {}, "monitoring_port"),
        ({"taken": [9090]}, {"host": "front"}, "port 9090, which prometheus needs"),
        ({"taken": [9093]}, {"host": "front"}, "port 9093, which prometheus-alertmanager"),
        ({"free_gib": 19}, {"host": "front"}, "monitoring_retention_gib is 20"),
        ({}, {"host": "front", "rules": {"Nobody": False}}, "no alert is called 'Nobody'"),
        ({"authority": "x\ny"}, {}, "the host reports"),
    ],
)
def test_problems(found, more, told):
    [problem] = plan(found, **more)["problems"]
    assert told in problem


def test_our_own_daemons_are_no_problem():
    found = settled(host="front")
    assert plan(dict(found, taken=[9100, 9090, 9093], free_gib=1), host="front")["problems"] == []


# --- certificates ---


def test_who_needs_a_certificate():
    good = dict(NOTHING, certificate=[], authority="a")
    server = dict(NOTHING, signer="a")
    assert not planned.lacks_certificate(good, server)
    assert planned.lacks_certificate(dict(good, certificate=["it ends"]), server)
    # Of an authority that is gone with its host.
    assert planned.lacks_certificate(good, dict(server, signer=""))


def test_requests_have_the_names_of_the_inventory():
    rows = planned.requests(WANTED, {"gpu-a": "pem"})
    assert [row["name"] for row in rows] == ["host-front", "host-gpu-a", "host-gpu-b"]
    assert rows[1] == {
        "name": "host-gpu-a",
        "names": ["gpu-a"],
        "addresses": ["192.0.2.11"],
        "request": "pem",
    }
    assert rows[0]["addresses"] == ["127.0.0.1", "192.0.2.10"]


def test_the_certificate_of_a_host():
    texts = {"host-gpu-a": "mine", "host-front": "other"}
    written = files(planned.tls_files(WANTED, "ca", texts))
    assert written["/etc/trainyard/monitoring/tls/host.pem"]["content"] == "mine"
    assert written["/etc/trainyard/monitoring/tls/ca.pem"]["content"] == "ca"
    # In check mode of a first run.
    assert planned.tls_files(WANTED, "", {}) == []


def test_a_certificate_of_the_site():
    """For servers. Who may read is still decided by the authority of the role, which signs the clients alone."""
    tls = "/etc/trainyard/monitoring/tls/"
    site = {"certificate": "/etc/ssl/host.pem", "key": "/etc/ssl/host.key", "ca": "of the site"}
    made = plan({"certificate": []}, **site)
    assert made["problems"] == []
    written = files(made["host_files"])
    web = json.loads(written["/etc/trainyard/monitoring/web.yml"]["content"])
    assert web["tls_server_config"] == {
        "cert_file": "/etc/ssl/host.pem",
        "key_file": "/etc/ssl/host.key",
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": tls + "clients.pem",
    }
    reader = json.loads(written["/etc/trainyard/monitoring/reader.json"]["content"])
    assert "/etc/ssl/host.pem" in reader["certificates"]
    requested = dict(WANTED, **site)
    assert planned.requests(requested, {"gpu-a": "pem"}) == []
    written = files(planned.tls_files(requested, "own", {}))
    texts = {path: entry["content"] for path, entry in written.items()}
    assert texts == {tls + "ca.pem": "of the site", tls + "clients.pem": "own"}
    asked = planned.read_options(requested)
    assert (asked["certificate"], asked["key"]) == ("/etc/ssl/host.pem", "/etc/ssl/host.key")
    assert (asked["trusted"], asked["renew_days"]) == ("clients.pem", 0)
    # What is wrong with it stops the run, and is signed by nobody.
    [problem] = plan({"certificate": ["it ends"]}, **site)["problems"]
    assert "monitoring_certificate is '/etc/ssl/host.pem': it ends; give" in problem
    assert "a valid certificate for gpu-a, 192.0.2.11, and its key" in problem
    # From one to the other, and back.
    assert {tls + "host.pem", tls + "host.key"} <= set(made["absent"])
    assert tls + "clients.pem" in plan()["absent"]
    assert {tls + "host.pem", tls + "host.key"} & set(plan()["absent"]) == set()
    assert "/etc/ssl/host.pem" not in planned.removal(NOTHING)["absent"]
    assert tls + "clients.pem" in planned.removal(NOTHING)["absent"]


KEY = {"certificate": "/etc/ssl/host.pem", "key": "/etc/ssl/host.key", "ca": "of the site"}


def part(path, owner, mode, has_acl=False):
    owner, group = owner.split(":")
    return {"path": path, "owner": owner, "group": group, "mode": mode, "has_acl": has_acl}


@pytest.mark.parametrize(
    "owner, mode, folder, is_good",
    [
        ("root:prometheus", "0640", "0755", True),
        ("prometheus:root", "0400", "0755", True),
        ("root:root", "0644", "0755", True),
        ("root:root", "0600", "0755", False),
        ("root:ssl-cert", "0640", "0755", False),
        ("root:prometheus", "0604", "0755", False),
        ("root:prometheus", "0640", "0700", False),
    ],
)
def test_a_key_that_the_daemons_cannot_read(owner, mode, folder, is_good):
    access = [part("/etc/ssl", "root:root", folder), part("/etc/ssl/host.key", owner, mode)]
    problems = plan({"certificate": [], "key_access": access}, **KEY)["problems"]
    assert (problems == []) is is_good
    access[-1]["has_acl"] = access[0]["has_acl"] = True
    assert plan({"certificate": [], "key_access": access}, **KEY)["problems"] == []


def test_the_refusal_of_a_key_says_what_to_do():
    access = [part("/etc/ssl/host.key", "root:ssl-cert", "0640")]
    assert plan({"certificate": [], "key_access": access}, **KEY)["problems"] == [
        "gpu-a: monitoring_key is '/etc/ssl/host.key': '/etc/ssl/host.key' belongs to "
        "root:ssl-cert and has the mode 0640; group prometheus has to read it. Run `addgroup "
        "--system prometheus` if the group does not exist, then `chgrp prometheus "
        "/etc/ssl/host.key` and `chmod 640 /etc/ssl/host.key`"
    ]
    access = [part("/etc/ssl/private", "root:ssl-cert", "0710"), *access]
    access[1].update(group="prometheus")
    [problem] = plan({"certificate": [], "key_access": access}, **KEY)["problems"]
    assert "'/etc/ssl/private' belongs to root:ssl-cert and has the mode 0710" in problem
    assert problem.endswith(
        "has to enter this folder. Copy the key to a folder that the group may enter"
    )


def test_without_a_certificate_of_the_site():
    asked = planned.read_options(WANTED)
    assert (asked["certificate"], asked["key"]) == ("", "")
    assert (asked["trusted"], asked["renew_days"]) == ("ca.pem", 60)
