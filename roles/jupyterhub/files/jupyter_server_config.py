# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration of JupyterLab in an instance.

Kernels and terminals run in the container of the instance.
"""

import glob
import os
import ssl
import sys

HERE = "/usr/local/lib/trainyard/notebook"
SERVER = HERE + "/server"
RUNTIME = os.environ["JUPYTER_RUNTIME_DIR"]
sys.path.insert(0, HERE)
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
# Jupyter gives it to this file.
c = globals()["get_config"]()

# Sockets in a private folder: on ports of 127.0.0.1, everybody on the host could read the output of
# a kernel.
c.ConnectionFileMixin.transport = "ipc"
c.KernelSpecManager.allowed_kernelspecs = {"python3"}
c.KernelSpecManager.ensure_native_kernel = False
c.ServerApp.terminado_settings = {"shell_command": [SERVER, "shell"]}
c.ServerApp.port_retries = 0
# The proxy accepts this certificate only. JupyterLab answers only the certificate of the proxy.
c.ServerApp.ssl_options = {
    "certfile": RUNTIME + "/identity.pem",
    "keyfile": RUNTIME + "/identity.key",
    "ca_certs": RUNTIME + "/authority.pem",
    "cert_reqs": ssl.CERT_REQUIRED,
}
# Extensions of the host's environment are the operator's.
c.LabApp.extension_manager = "readonly"
c.ServerApp.jpserver_extensions = {
    "trainyard_notebook": True,
    "jupyterlab_nvdashboard": bool(glob.glob("/proc/driver/nvidia/gpus/*")),
}

# Beside JupyterLab, and reached through it only. trainyard_notebook starts TensorBoard.
c.ServerProxy.servers = {
    "tensorboard": {
        "unix_socket": RUNTIME + "/tensorboard.sock",
        "new_browser_tab": True,
        "launcher_entry": {"title": "TensorBoard, ssh, images", "path_info": "trainyard/"},
    }
}
# A site without it has no entry for it.
if os.path.exists(HERE + "/vscode/lib/node"):
    c.ServerProxy.servers["vscode"] = {
        "command": [SERVER, "vscode", "{unix_socket}"],
        "unix_socket": RUNTIME + "/vscode.sock",
        "timeout": 60,
        "new_browser_tab": True,
        "launcher_entry": {"title": "VS Code"},
    }
