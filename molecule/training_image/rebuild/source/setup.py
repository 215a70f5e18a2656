"""A stand-in for Horovod's source: it takes the variables that Horovod's takes, and compiles one
file with what they name. Horovod's own, with NCCL, would need PyTorch's CUDA build, which is GBs:
scenario nccl_rebuild compiles that.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

VARIABLES = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}


class Build(build_ext):
    def build_extension(self, ext):
        if "HOROVOD_WITH_PYTORCH" in VARIABLES and not importlib.util.find_spec("torch"):
            raise SystemExit("HOROVOD_WITH_PYTORCH: no torch")
        with open("horovod/torch/CMakeLists.txt") as stream:
            standard = re.search(r"CMAKE_CXX_STANDARD (\d+)", stream.read()).group(1)
        compiler, flags, libraries = "c++", ["-shared", "-fPIC", "-std=c++" + standard], []
        if "HOROVOD_WITHOUT_GLOO" not in VARIABLES:
            flags.append("-DHAVE_GLOO=1")
        if "HOROVOD_WITHOUT_MPI" not in VARIABLES and (
            "HOROVOD_WITH_MPI" in VARIABLES or shutil.which("mpicxx")
        ):
            compiler = "mpicxx"
            flags.append("-DHAVE_MPI=1")
        if VARIABLES.get("HOROVOD_GPU_OPERATIONS") == "NCCL":
            home = VARIABLES.get("HOROVOD_NCCL_HOME")
            flags += ["-DHAVE_NCCL=1"] + (
                ["-I%s/include" % home, "-L%s/lib" % home] if home else []
            )
            libraries = [
                "-Wl,--no-as-needed",
                "-lnccl"
                if VARIABLES.get("HOROVOD_NCCL_LINK") == "SHARED"
                else "-l:libnccl_static.a",
            ]
        target = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        subprocess.run([compiler] + flags + ext.sources + ["-o", target] + libraries, check=True)
        with open(os.path.join(os.path.dirname(target), "variables.json"), "w") as stream:
            json.dump(VARIABLES, stream)


setup(
    name="horovod",
    version="0.28.1",
    packages=["horovod", "horovod.torch"],
    scripts=["bin/horovodrun"],
    cmdclass={"build_ext": Build},
    ext_modules=[Extension("horovod.torch.mpi_lib_v2", ["horovod/torch/mpi_lib.cc"])],
)
