#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: horovod_build_info
short_description: Read what Horovod was built with
version_added: "0.1.0"
description:
  - Runs C(horovodrun --check-build) on the host, in a running container, through that container's ssh, or in a temporary container of an image, and returns its
    table as data.
  - The command exits with 0 whatever is ticked. Only the table shows what was built.
  - If Horovod is missing, too old or broken, the module returns RV(available=false), RV(cause) and RV(fix), so that roles can decide.
  - The task fails only for invalid options, for a table that is truncated or cannot be parsed, and for other output. The last line of a truncated table may be
    the one that matters, so nothing is inferred from the rest.
requirements:
  - C(timeout) of coreutils on O(ssh_host)
author:
  - trainyard maintainers (@trainyard)
options:
  executable:
    default: horovodrun
  image:
    description:
      - Image on this host. The command runs in a container of it without network, which is removed afterwards.
      - The image's entrypoint is not run, and the image is never pulled.
    type: str
  ssh_host:
    description:
      - O(container) logs in to this host by ssh and runs the command there.
      - A job's ranks are started in the same way. Their environment (PATH, LD_LIBRARY_PATH) differs from that of C(docker exec).
    type: str
  ssh_port:
    description: Port for O(ssh_host), 1 to 65535.
    type: int
    default: 12345
  timeout:
    default: 60
  requires:
    description: Parts that must be ticked. Those that are not are returned in RV(missing).
    type: dict
    default: {}
    suboptions:
      frameworks:
        description: Frameworks.
        type: list
        elements: str
        choices: [tensorflow, pytorch, mxnet]
        default: []
      controllers:
        description: Controllers.
        type: list
        elements: str
        choices: [mpi, gloo]
        default: []
      tensor_operations:
        description: Tensor operations. V(ccl) also stands for MLSL, its name before Horovod 0.19.
        type: list
        elements: str
        choices: [nccl, ddl, ccl, mpi, gloo]
        default: []
  import_required:
    description:
      - Import Horovod's package for each of the required frameworks (C(horovod.torch) for V(pytorch)) first, as a job's ranks do, in the same Python process. A
        package that cannot be imported, or lacks its compiled extension, is listed in RV(missing) and RV(import_errors) even if the table ticks it. Horovod
        ticks PyTorch wherever torch is installed, even if it was built without it.
      - This also makes the table appear sooner, because otherwise Horovod imports each framework again for every entry.
      - O(executable) must be a Python script like Horovod's own. Otherwise nothing can be imported.
    type: bool
    default: false
  begun:
    description:
      - RV(trainyard.gpu.training_container_info#module:begun) of the same host, container, O(ssh_host), O(ssh_port) and frameworks. If it names a check that
        has started already, the module waits for its result instead of starting one.
      - A check is started in any case if that result is missing, or if the container has restarted since.
    type: str
    default: ''
    version_added: "0.3.0"
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.tool
  - trainyard.gpu.tool.executable
notes:
  - Importing a framework from a cold disk takes most of O(timeout).
  - Horovod ticks a framework if its Python package can be imported, even if the native library is missing. Such a build has no controller ticked, so require a
    controller in addition to a framework.
  - A tick does not cover the Python packages that Horovod needs in addition to the framework. O(import_required) checks them.
"""

EXAMPLES = r"""
- name: Read the build of the running training container
  trainyard.gpu.horovod_build_info:
    container: trainyard-training
  register: build

- name: Check whether Horovod must be compiled again for a base image
  trainyard.gpu.horovod_build_info:
    image: trainyard/base:latest
    requires:
      frameworks: [pytorch]
      controllers: [gloo]
      tensor_operations: [nccl]
  register: base

- name: Report what is missing
  ansible.builtin.debug:
    msg: "{{ base.missing | join(', ') }} {{ base.fix }}"
  when: base.missing | length > 0

- name: Read the build in the environment of a job's ranks
  trainyard.gpu.horovod_build_info:
    container: trainyard-training
    ssh_host: "{{ inventory_hostname }}"
    ssh_port: 12345
    requires:
      frameworks: [pytorch]
      controllers: [gloo]
    import_required: true
"""

RETURN = r"""
available:
  description: Whether Horovod printed its table. True even if nothing in it is ticked.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(not_installed) - no such executable there.
    - V(option_unsupported) - Horovod before 0.18, which has no C(--check-build).
    - V(import_error) - horovodrun printed no table, because it ended with a Python exception or could not load a library.
    - V(no_output) - it ended without printing anything.
    - V(truncated) - its output ends before the first section of the table.
    - V(container_not_running) - no such container, or it is stopped, paused or restarting.
    - V(image_missing) - the image is not on this host.
    - V(engine_unavailable) - no Docker client, no daemon, or the daemon denied access.
    - V(ssh_failed) - the container could not log in to O(ssh_host).
    - V(timeout) - it did not end within O(timeout).
  type: str
  returned: success
  sample: import_error
fix:
  description: What to do about RV(cause), with the line of output that shows it; null if RV(available) is true.
  type: str
  returned: success
  sample: "Horovod in image example:1 does not start; reinstall it for this framework. It said: ImportError: libnccl.so.2: cannot open shared object file"
version:
  description: Horovod's version; null if RV(available) is false.
  type: str
  returned: success
  sample: 0.28.1
frameworks:
  description: Frameworks that are ticked. All false if RV(available) is false.
  type: dict
  returned: success
  sample: {tensorflow: false, pytorch: true, mxnet: false}
  contains:
    tensorflow:
      description: TensorFlow, with Keras.
      type: bool
    pytorch:
      description: PyTorch.
      type: bool
    mxnet:
      description: Apache MXNet.
      type: bool
controllers:
  description: Controllers that are ticked. They start and coordinate the ranks. All false if RV(available) is false.
  type: dict
  returned: success
  sample: {mpi: false, gloo: true}
  contains:
    mpi:
      description: MPI.
      type: bool
    gloo:
      description: Gloo.
      type: bool
tensor_operations:
  description: Tensor operations that are ticked. They transfer the data. All false if RV(available) is false.
  type: dict
  returned: success
  sample: {nccl: true, ddl: false, ccl: false, mpi: false, gloo: true}
  contains:
    nccl:
      description: NVIDIA NCCL.
      type: bool
    ddl:
      description: IBM Distributed Deep Learning.
      type: bool
    ccl:
      description: Intel oneCCL, or MLSL, its name before Horovod 0.19.
      type: bool
    mpi:
      description: MPI.
      type: bool
    gloo:
      description: Gloo.
      type: bool
missing:
  description: Parts of O(requires) that are not ticked or, with O(import_required), cannot be imported, in the table's order. All of them if RV(available) is
    false.
  type: list
  elements: str
  returned: success
  sample: [tensor_operations.nccl]
import_errors:
  description: Import error by framework. Empty without O(import_required).
  type: dict
  returned: success
  sample: {pytorch: "ModuleNotFoundError: No module named 'packaging'"}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._horovod import (
    KEYS,
    ParseError,
    check_build_command,
    missing,
    parse_check_build,
    split_imports,
    why_no_table,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import (
    begun_tool,
    check_names,
    check_timeout,
    run_tool,
    tool_options,
)

FIXES = {
    "not_installed": "install Horovod {place}, or name its horovodrun in `executable`",
    "option_unsupported": "install Horovod 0.18 or later {place}: before that horovodrun has no --check-build",
    "import_error": "Horovod {place} does not start: reinstall it for the framework and libraries that are there now",
    "no_output": "run horovodrun --check-build {place} by hand and see how it ends (a crash, too little memory)",
    "truncated": "run horovodrun --check-build {place} by hand and see how it ends: it died before its table",
    "container_not_running": "start container {container}",
    "image_missing": "load or pull image {image} on this host, or correct its name",
    "engine_unavailable": "install and start Docker on this host, and run the task as root",
    "ssh_failed": "make container {container} able to log in to {ssh_host} on port {ssh_port} (sshd, keys, known_hosts)",
    "timeout": "see what horovodrun --check-build {place} waits for, or raise `timeout` (verify_timeout in role verify)",
}
# A container gets all that it needs from its image: nothing is ever installed in it.
RECREATE = (
    "Run training_environment.yml, which recreates a container whose files were changed, and rebuilds the image if it lacks what "
    "training_image_requires names"
)
CONTAINER_FIXES = {
    "not_installed": "horovodrun is missing {place}. " + RECREATE,
    "option_unsupported": "Horovod {place} is older than 0.18 and has no --check-build. Name a newer one in training_image_horovod_version and run "
    "training_environment.yml",
    "import_error": "Horovod {place} does not start. " + RECREATE,
    "no_output": "horovodrun --check-build {place} ended without a word, as after a crash or with too little memory. "
    + RECREATE,
    "truncated": "horovodrun --check-build {place} died before its table, as after a crash or with too little memory. "
    + RECREATE,
    "container_not_running": "start container {container}: run training_environment.yml, which also resumes one that is paused",
    "ssh_failed": "container {container} cannot log in to {ssh_host} on port {ssh_port}: run training_environment.yml, which repairs sshd, keys and "
    "known_hosts, or names what is in the way",
}


def main() -> None:
    parts = {
        section: {"type": "list", "elements": "str", "choices": keys, "default": []}
        for section, keys in KEYS.items()
    }
    module = AnsibleModule(
        argument_spec={
            **tool_options(60, "horovodrun"),
            "image": {"type": "str"},
            "ssh_host": {"type": "str"},
            "ssh_port": {"type": "int", "default": 12345},
            "requires": {"type": "dict", "default": {}, "options": parts},
            "import_required": {"type": "bool", "default": False},
            "begun": {"type": "str", "default": ""},
        },
        mutually_exclusive=[("container", "image")],
        required_by={"ssh_host": ("container",)},
        supports_check_mode=True,
    )
    params = dict(module.params)
    executable, timeout, requires, import_required, begun = (
        params.pop(name)
        for name in ("executable", "timeout", "requires", "import_required", "begun")
    )
    check_names(module, "container", "image", "ssh_host")
    if not 1 <= params["ssh_port"] <= 65535:
        module.fail_json(msg=f"ssh_port: {params['ssh_port']} is not a port; use 1 to 65535")
    check_timeout(module)

    frameworks = (requires.get("frameworks") or []) if import_required else []
    command = check_build_command(executable, frameworks)
    place = {name: params[name] for name in ("container", "ssh_host", "ssh_port")}
    run = (begun and begun_tool(module, begun, command, timeout, **place)) or run_tool(
        module, command, timeout, **params
    )
    stderr, import_errors = split_imports(run.stderr, frameworks)
    run = run._replace(stderr=stderr)
    build, cause, evidence = None, run.cause, run.evidence
    if not cause:
        try:
            build = parse_check_build(run.stdout) or parse_check_build(run.stderr)
            if not build:
                cause, evidence = why_no_table(run.rc, run.stdout, run.stderr)
        except ParseError as exc:
            module.fail_json(
                msg=f"{executable} --check-build: {exc}. Run it in the same place. If its output is complete, report it as a fault of "
                "the collection",
                rc=run.rc,
                stdout=run.stdout,
                stderr=run.stderr,
            )

    where = (
        "behind ssh port {ssh_port} of {ssh_host}"
        if params["ssh_host"]
        else "in container {container}"
        if params["container"]
        else "in image {image}"
        if params["image"]
        else "on this host"
    )
    fixes = dict(FIXES, **CONTAINER_FIXES) if params["container"] else FIXES
    sections = (
        build._asdict()
        if build
        else {section: dict.fromkeys(keys, False) for section, keys in KEYS.items()}
    )
    module.exit_json(
        **{
            "changed": False,
            "available": build is not None,
            "cause": cause or None,
            "fix": fixes[cause].format(place=where.format(**params), **params)
            + f". It said: {evidence}"
            if cause
            else None,
            "version": None,
            "missing": missing(requires, build, import_errors),
            "import_errors": import_errors,
            **sections,
        }
    )


if __name__ == "__main__":
    main()
