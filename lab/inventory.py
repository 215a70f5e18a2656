"""The uncommitted inventory files with the settings of this machine and this lab."""

import json
import os
import pathlib
import subprocess

HEADER = "---\n# Written by lab/lab.py for this machine; not committed.\n"


def to_yaml(variables):
    """Variables as YAML, one line each: JSON is YAML."""
    return HEADER + "".join(f"{name}: {json.dumps(value)}\n" for name, value in variables.items())


def parse_pip_config(text):
    """Return `pip config list` as a dictionary.

    Settings of the environment override those of the files.
    """
    settings = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            scope, _, option = name.rpartition(".")
            if option not in settings or scope == ":env:":
                settings[option] = value.strip("'\"")
    return settings


def package_sources(environment, pip):
    """Return the variables of role package_sources that pass this machine's settings to the
    hosts.
    """
    variables = {}
    bundle = (
        pip.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("SSL_CERT_FILE")
    )
    if bundle and os.path.isfile(bundle):
        variables["package_sources_ca_certificates"] = [bundle]
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        value = environment.get(name) or environment.get(name.upper())
        if value:
            variables[f"package_sources_{name}"] = value.split(",") if name == "no_proxy" else value
    # A file:// index exists on this machine only, and pip on the hosts accepts none by http. The
    # hosts get its packages from the folder of wheels.
    remote = [
        url
        for url in pip.get("extra-index-url", "").replace("\\n", " ").split()
        if url.startswith("https:")
    ]
    if pip.get("index-url", "").startswith("https:"):
        variables["package_sources_pip_index_url"] = pip["index-url"]
    if remote:
        variables["package_sources_pip_extra_index_urls"] = remote
    return variables


def machine_variables(root, base, archive, wheels):
    pip = subprocess.run(
        [str(root / ".venv/bin/pip"), "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    return {
        **package_sources(os.environ, parse_pip_config(pip)),
        "package_sources_wheels_dir": str(wheels),
        "training_image_base": base,
        "training_image_base_archive": str(archive),
    }


def hosts_file(lab):
    variables = {
        "ansible_user": "ops",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(lab.key),
        "cluster_network": str(lab.subnet),
    }
    # A variable of each host: the one of the group would come after Molecule's group_vars, which
    # are about its containers (.config/molecule/config.yml).
    options = {
        "ansible_ssh_common_args": (
            f"-o UserKnownHostsFile={lab.known_hosts} -o StrictHostKeyChecking=yes -o "
            "IdentitiesOnly=yes"
        )
    }
    hosts = {host: {"ansible_host": address, **options} for host, address in lab.hosts.items()}
    return to_yaml({"cluster": {"hosts": hosts, "vars": variables}})


def write(path, text):
    """Write a file that another process may be reading, if its content differs."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


def machine_files(root):
    """Return the path of the file about this machine in each committed inventory."""
    return [
        root / "inventories" / name / "group_vars/cluster/machine.yml"
        for name in ("lab", "lab_slurm", "lab_virtual")
    ]


def write_inventory(root, folder, lab, committed):
    """Write an inventory of this lab's hosts with the variables of a committed one."""
    write(folder / "hosts.yml", hosts_file(lab))
    link, target = (
        folder / "group_vars",
        os.path.relpath(committed / "group_vars", pathlib.Path(os.path.realpath(folder))),
    )
    # A link of an earlier lab with the other kind of hosts.
    if link.is_symlink() and os.readlink(link) != target:
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(target)
