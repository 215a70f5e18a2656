"""Runs modules, each in a process of its own that is forked from this one: a fresh Python takes 0.3
s to import Ansible, a fork some milliseconds.

Started by scripted_tools.run_module, which writes a request in each line: module, arguments,
environment, folder. The answer, in a line, is what the module wrote to stdout and stderr. Nothing
of a test's process is known here, and nothing of one module's run to the next.
"""

from __future__ import annotations

import atexit
import importlib
import io
import json
import os
import sys
import tempfile

# What all modules import.
import ansible.module_utils.basic


def run(name, arguments, environment, folder, streams):
    """In the fork: what python -m does, from the environment to the functions that wait for the
    end.
    """
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.FileIO(number, mode, closefd=False),
            encoding="utf-8",
            errors=errors,
            write_through=True,
        )
        for number, mode, errors in (
            (0, "r", "surrogateescape"),
            (1, "w", "strict"),
            (2, "w", "backslashreplace"),
        )
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [name]
    atexit._clear()
    code = 0
    try:
        importlib.import_module(name).main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def main():
    for line in sys.stdin:
        name, arguments, environment, folder = json.loads(line)
        name = "ansible_collections.trainyard.gpu.plugins.modules." + name
        try:
            # What a module imports stays imported, so that only its first run compiles it.
            importlib.import_module(name)
        except Exception:  # the fork tells
            sys.modules.pop(name, None)
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
            given.seek(0)
            child = os.fork()
            if not child:
                ansible.module_utils.basic._ANSIBLE_ARGS = None
                run(name, arguments, environment, folder, (given, out, err))
            os.waitpid(child, 0)
            told = []
            for stream in (out, err):
                stream.seek(0)
                told.append(stream.read().decode("utf-8", "replace"))
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
