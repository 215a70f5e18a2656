"""On the tests' hosts: keep the bytecode of Ansible's modules, which Python otherwise compiles
again in each module run.

Ansible sends a module as a zip archive of sources, and Python keeps no bytecode for archives. To
compile it is half of the CPU time of a module run. module_bytecode.pth calls this when Python
starts. Only scenarios' hosts have it: seconds are judged without it
(molecule/cluster/tests/test_5_seconds.py).
"""

from __future__ import annotations

import os
import sys

FOLDER = "/run/module_bytecode"


def keep(folder=FOLDER, writer=0):
    """Keep it in a folder.

    Only one user writes there, so that nobody gets another's bytecode executed.
    """
    import _imp
    import marshal
    import zipimport

    compile_source = zipimport._compile_source

    def compile_once(path, source):
        name = "%s/%s-%d-%s" % (
            folder,
            sys.implementation.cache_tag,
            len(source),
            _imp.source_hash(0, source).hex(),
        )
        try:
            with open(name, "rb") as kept:
                return marshal.load(kept)
        except FileNotFoundError:
            code = compile_source(path, source)
        if os.geteuid() == writer:
            # Complete under its name, or not there: several modules run at the same time.
            os.makedirs(folder, mode=0o755, exist_ok=True)
            with open("%s.%d" % (name, os.getpid()), "wb") as new:
                marshal.dump(code, new)
            os.rename(new.name, name)
        return code

    zipimport._compile_source = compile_once
