#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_container_info
short_description: Gather what jobs in rootless containers need from a host
version_added: "0.4.0"
description:
  - Returns in one run the host's part of the input of decision C(job_container_plan) - packages,
    devices, file systems, subordinate IDs, podman's configuration, the image store, the firewall of
    jobs, images of the Docker engine and the record of the role.
  - A host without podman or Docker is a result, not a failure.
options:
  storage:
    description: Absolute path of the folder for containers. It may be missing.
    type: path
    required: true
  store:
    description: Absolute path of the image store. It may be missing.
    type: path
    required: true
  share:
    description: Absolute path of the shared folder.
    type: path
    required: true
  images:
    description: Names of images of the Docker engine.
    type: list
    elements: str
    default: []
  record:
    description: Absolute path of a JSON file whose content is returned.
    type: path
    required: true
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
  - trainyard.gpu.host_reading
attributes:
  platform:
    platforms: debian
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather what jobs in containers need
  trainyard.gpu.job_container_info:
    packages: [podman, crun]
    storage: /var/lib/trainyard/containers
    store: /var/lib/trainyard/containers/images
    share: /data1/share
    images: ["{{ training_image_name }}"]
    record: /var/lib/trainyard/placed.d/job_container.json
  register: gathered
"""

RETURN = r"""
packages:
  description: Versions of the installed packages, by name.
  returned: success
  type: dict
  sample: {podman: 4.3.1+ds1-8+deb12u1}
is_container:
  description: Whether the host is itself a container.
  returned: success
  type: bool
fuse:
  description: Whether C(/dev/fuse) exists.
  returned: success
  type: bool
masked:
  description: Mounts that hide parts of C(/proc).
  returned: success
  type: list
  elements: str
storage_type:
  description: Type of the file system of O(storage).
  returned: success
  type: str
  sample: ext4
storage_project_quota:
  version_added: "0.4.0"
  description: Whether the file system of O(storage) is mounted with project quotas.
  returned: success
  type: bool
storage_entries:
  description: Names in the folder O(storage).
  returned: success
  type: list
  elements: str
  sample: [images, jobs, people]
store_options:
  version_added: "0.4.0"
  description: Options of the mount at O(store); empty if it is not a mount point.
  returned: success
  type: list
  elements: str
  sample: [rw, nosuid, nodev, relatime]
store_is_clean:
  version_added: "0.4.0"
  description: Whether all layers of O(store) have been cleaned of what would give rights on the
    host. A missing store is clean.
  returned: success
  type: bool
share_is_mount:
  description: Whether O(share) is a mount point.
  returned: success
  type: bool
gpu_nodes:
  description: Numbers of the device nodes C(/dev/nvidiaN).
  returned: success
  type: list
  elements: int
control_nodes:
  description: Paths of the other device nodes of NVIDIA's driver.
  returned: success
  type: list
  elements: str
npu_nodes:
  description: Numbers of the device nodes C(/dev/davinciN) of Ascend NPUs.
  returned: success
  type: list
  elements: int
npu_control_nodes:
  description: Paths of the device nodes that every program for NPUs opens.
  returned: success
  type: list
  elements: str
npu_groups:
  description: Numbers of NPUs by group, if a job has to stay within one group or have all of them.
    Empty for chips without groups.
  returned: success
  type: list
  elements: list
  sample: [[0, 1, 2, 3], [4, 5, 6, 7]]
npu_driver_paths:
  description: What the host has of the driver of NPUs, for containers to read.
  returned: success
  type: list
  elements: str
  sample: [/usr/local/Ascend/driver, /usr/local/dcmi]
firewall:
  version_added: "0.4.0"
  description: What the host has for the table of ports of jobs.
  returned: success
  type: dict
  contains:
    admin:
      description: Whether root of this host may change the network.
      type: bool
    error:
      description: Why nft cannot load such a table. It is empty if it can, or is not installed.
      type: str
    fault:
      description: How the table that the kernel has differs from the one that was loaded last.
        Empty if it does not.
      type: str
      sample: not loaded
    active:
      description: Whether the unit is active.
      type: bool
    enabled:
      description: Whether the unit starts with the host.
      type: bool
cdi:
  description: The kinds that CDI specifications of the host describe, by path.
  returned: success
  type: dict
  sample: {/etc/cdi/trainyard-nvidia.yaml: nvidia.com/gpu}
cni:
  description: Whether C(/etc/cni) exists.
  returned: success
  type: bool
cni_state:
  description: Whether C(/var/lib/cni) exists.
  returned: success
  type: bool
nvidia_ctk:
  description: Whether NVIDIA's container toolkit is installed.
  returned: success
  type: bool
images:
  description: Images of the image store.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: The ID.
      type: str
    names:
      description: The names.
      type: list
      elements: str
docker_images:
  description: IDs of those of O(images) that the Docker engine has, by name.
  returned: success
  type: dict
podman_candidate:
  description: Version of podman that apt would install. Empty if one is installed, or if podman is
    not among O(packages).
  returned: success
  type: str
  version_added: "0.4.0"
files:
  description: SHA-256 checksums of the existing files among O(files), and of the unit that mounts
    O(store).
  returned: success
  type: dict
texts:
  description: Content of the existing files among O(texts).
  returned: success
  type: dict
record:
  description: Content of O(record); empty if there is none.
  returned: success
  type: dict
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._ascend import chip_names, split_groups
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import parse_policy
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import (
    checksums,
    existing,
    read_text,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_numbers import (
    CDI_FOLDERS,
    cdi_kind,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._job_container import (
    device_number,
    file_system_of,
    has_capability,
    has_project_quota,
    is_mount,
    masked_paths,
    mount_options,
    parse_docker_images,
    parse_store,
    store_is_open,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import unit_name
from ansible_collections.trainyard.gpu.plugins.module_utils._nft_table import JOBS, read_firewall
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import parse_installed
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import (
    control_nodes,
    driver_paths,
    npu_nodes,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
)
CAP_NET_ADMIN = 12
# What the table needs of the kernel. It is checked, not loaded.
FIREWALL_PROBE = """table inet trainyard_probe {
  chain output {
    type filter hook output priority filter; policy accept;
    meta l4proto tcp meta skuid { 1000-60000, 100000-200000 } th dport vmap { 10000-10019 : drop, 10020-10039 : accept }
    meta skuid 1 tcp dport 1 reject with tcp reset
  }
}
"""


class Host:
    def __init__(self, module):
        self.module = module
        self.params = module.params

    def output(self, *command):
        """Standard output of a program, empty if it is missing or fails."""
        path = self.module.get_bin_path(command[0])
        code, stdout = self.module.run_command([path] + list(command[1:]))[:2] if path else (1, "")
        return stdout if code == 0 else ""

    def packages(self):
        if not self.params["packages"]:
            return {}
        path = self.module.get_bin_path("dpkg-query")
        # It fails if one of the names is unknown, and still prints the others.
        shown = self.module.run_command(
            [path, "--show", "--showformat", "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n"]
            + self.params["packages"]
        )[1]
        return {name: state["version"] for name, state in parse_installed(shown).items()}

    def podman_candidate(self, packages: dict[str, str]) -> str:
        """Version of podman that apt would install, empty if one is installed."""
        if "podman" in packages or "podman" not in self.params["packages"]:
            return ""
        policy = parse_policy(self.output("apt-cache", "policy", "podman"))
        return policy.get("podman", {}).get("candidate", "")

    def docker_images(self):
        found = {}
        for name in self.params["images"]:
            image_id = self.output(
                "docker", "image", "inspect", "--format", "{{.Id}}", name
            ).strip()
            if image_id:
                found.update(parse_docker_images("%s %s" % (name, image_id)))
        return found

    def cdi(self):
        paths = [
            path
            for folder in CDI_FOLDERS
            for path in sorted(glob.glob(folder + "/*"))
            if path.endswith((".json", ".yaml"))
        ]
        return {path: cdi_kind(read_text(path)) for path in paths}

    def firewall(self):
        nft = self.module.get_bin_path("nft")
        code, _said, error = (
            self.module.run_command([nft, "--check", "--file", "-"], data=FIREWALL_PROBE)
            if nft
            else (0, "", "")
        )
        return dict(
            read_firewall(self.module, JOBS),
            admin=has_capability(read_text("/proc/self/status"), CAP_NET_ADMIN),
            error=(error.strip() or "it ended with code %d" % code).splitlines()[0] if code else "",
        )

    def gpu_nodes(self):
        return sorted(
            number for number in map(device_number, glob.glob("/dev/nvidia*")) if number is not None
        )


def store_is_clean(store):
    """Return whether nothing is left to clean in the image store.

    Only the folders of the layers are looked at, so it takes no time.
    """
    layers = os.path.join(store, "overlay")
    if not os.path.isdir(layers):
        return True
    with os.scandir(layers) as entries:
        modes = [
            entry.stat(follow_symlinks=False).st_mode
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
        ]
    return store_is_open(read_text(os.path.join(store, "trainyard-clean")), modes)


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
            "texts": {"type": "list", "elements": "path", "default": []},
            "storage": {"type": "path", "required": True},
            "store": {"type": "path", "required": True},
            "share": {"type": "path", "required": True},
            "images": {"type": "list", "elements": "str", "default": []},
            "record": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    host = Host(module)
    module.run_command_environ_update = {"LC_ALL": "C.UTF-8"}
    mountinfo = read_text("/proc/self/mountinfo")
    npus = npu_nodes()
    params = module.params
    try:
        images = parse_store(
            read_text(os.path.join(params["store"], "overlay-images", "images.json"))
        )
        docker_images = host.docker_images()
    except ValueError as error:
        module.fail_json(
            msg="%s; expected the format of Debian's tools. Report it with this line" % error
        )
    packages = host.packages()
    module.exit_json(
        changed=False,
        packages=packages,
        podman_candidate=host.podman_candidate(packages),
        is_container=os.path.exists("/run/systemd/container") or os.path.exists("/.dockerenv"),
        fuse=os.path.exists("/dev/fuse"),
        masked=masked_paths(mountinfo),
        storage_type=file_system_of(existing(params["storage"]), mountinfo),
        storage_project_quota=has_project_quota(existing(params["storage"]), mountinfo),
        storage_entries=sorted(os.listdir(params["storage"]))
        if os.path.isdir(params["storage"])
        else [],
        store_options=mount_options(params["store"], mountinfo),
        store_is_clean=store_is_clean(params["store"]),
        share_is_mount=is_mount(params["share"], mountinfo),
        gpu_nodes=host.gpu_nodes(),
        control_nodes=[path for path in CONTROL_NODES if os.path.exists(path)],
        npu_nodes=npus,
        npu_control_nodes=control_nodes() if npus else [],
        npu_groups=split_groups(npus, chip_names(module, npus)),
        npu_driver_paths=driver_paths() if npus else [],
        firewall=host.firewall(),
        cdi=host.cdi(),
        cni=os.path.isdir("/etc/cni"),
        cni_state=os.path.isdir("/var/lib/cni"),
        nvidia_ctk=bool(module.get_bin_path("nvidia-ctk")),
        images=images,
        docker_images=docker_images,
        files=checksums(
            params["files"] + ["/etc/systemd/system/" + unit_name(params["store"], "mount")]
        ),
        texts={path: read_text(path) for path in params["texts"] if os.path.isfile(path)},
        record=Record(module, params["record"]).read(),
    )


if __name__ == "__main__":
    main()
