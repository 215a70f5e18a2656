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
  - Runs C(horovodrun --check-build) on the host, in a running container, through that container's
    ssh, or in a temporary container of an image, and returns its table as data.
  - The command exits with 0 whatever is ticked. Only the table shows what was built.
  - If Horovod is missing, too old or broken, the module returns RV(available=false), RV(cause) and
    RV(fix), so that roles can decide.
  - The task fails only for invalid options, for a table that is truncated or cannot be parsed, and
    for other output. The last line of a truncated table may be the one that matters, so nothing is
    inferred from the rest.
requirements:
  - C(timeout) of coreutils on O(ssh_host)
author:
  - trainyard maintainers (@trainyard)
options:
  executable:
    default: horovodrun
  image:
    description:
      - Image on this host. The command runs in a container of it without network, which is removed
        afterwards.
      - The image's entrypoint is not run, and the image is never pulled.
    type: str
  ssh_host:
    description:
      - O(container) logs in to this host by ssh and runs the command there.
      - A job's ranks are started in the same way. Their environment (PATH, LD_LIBRARY_PATH) differs
        from that of C(docker exec).
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
      - Import Horovod's package for each of the required frameworks (C(horovod.torch) for
        V(pytorch)) first, as a job's ranks do, in the same Python process. A package that cannot be
        imported, or lacks its compiled extension, is listed in RV(missing) and RV(import_errors)
        even if the table ticks it. Horovod ticks PyTorch wherever torch is installed, even if it
        was built without it.
      - This also makes the table appear sooner, because otherwise Horovod imports each framework
        again for every entry.
      - O(executable) must be a Python script like Horovod's own. Otherwise nothing can be imported.
    type: bool
    default: false
  begun:
    description:
      - RV(trainyard.gpu.host_info#module:begun) of the same host, container, O(ssh_host),
        O(ssh_port) and frameworks. If it names a check that has started already, the module waits
        for its result instead of starting one.
      - A check is started in any case if that result is missing or a failure, or if the container
        has restarted since.
    type: str
    default: ''
    version_added: "0.4.0"
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.tool
  - trainyard.gpu.tool.executable
notes:
  - Importing a framework from a cold disk takes most of O(timeout).
  - Horovod ticks a framework if its Python package can be imported, even if the native library is
    missing. Such a build has no controller ticked, so require a controller in addition to a
    framework.
  - A tick does not cover the Python packages that Horovod needs in addition to the framework.
    O(import_required) checks them.
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
    - V(import_error) - horovodrun printed no table, because it ended with a Python exception or
      could not load a library.
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
  description: What to do about RV(cause), with the line of output that shows it; null if
    RV(available) is true.
  type: str
  returned: success
  sample: "Horovod in image example:1 does not start; reinstall it for this framework. It said:
    ImportError: libnccl.so.2: cannot open shared object file"
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
  description: Controllers that are ticked. They start and coordinate the ranks. All false if
    RV(available) is false.
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
  description: Tensor operations that are ticked. They transfer the data. All false if RV(available)
    is false.
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
  description: Parts of O(requires) that are not ticked or, with O(import_required), cannot be
    imported, in the table's order. All of them if RV(available) is false.
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
from ansible_collections.trainyard.gpu.plugins.module_utils._horovod_check import (
    BUILD_OPTIONS,
    UnreadableTable,
    build_info,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import check_names, check_timeout


def main() -> None:
    module = AnsibleModule(
        argument_spec=BUILD_OPTIONS,
        mutually_exclusive=[("container", "image")],
        required_by={"ssh_host": ("container",)},
        supports_check_mode=True,
    )
    check_names(module, "container", "image", "ssh_host")
    if not 1 <= module.params["ssh_port"] <= 65535:
        module.fail_json(msg=f"ssh_port: {module.params['ssh_port']} is not a port; use 1 to 65535")
    check_timeout(module)
    try:
        module.exit_json(**build_info(module, module.params))
    except UnreadableTable as error:
        run = error.run
        module.fail_json(msg=str(error), rc=run.rc, stdout=run.stdout, stderr=run.stderr)


if __name__ == "__main__":
    main()
