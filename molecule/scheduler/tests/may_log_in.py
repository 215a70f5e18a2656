"""Ends with 0 if sshd's PAM lets the user in, else with 9: what sshd asks after it has accepted a
key.
"""

from __future__ import annotations

import ctypes
import os
import sys

# As in sshd: Debian's pam_slurm.so names no library of PAM that it needs, and loads only with PAM's
# functions in the global scope.
library = ctypes.CDLL("libpam.so.0", mode=ctypes.RTLD_GLOBAL)
function = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


class Conversation(ctypes.Structure):
    _fields_ = [("function", function), ("data", ctypes.c_void_p)]


silent = Conversation(function(lambda *_words: 19), None)
handle = ctypes.c_void_p()
assert (
    library.pam_start(b"sshd", sys.argv[1].encode(), ctypes.byref(silent), ctypes.byref(handle))
    == 0
)
child = os.fork()
if child == 0:
    code = 8
    try:
        found = library.pam_acct_mgmt(handle, 0x8000)
        library.pam_end(handle, found)
        code = 9 if found else 0
    finally:
        # An error of this program is 8, never 1.
        os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
# Slurm's library of 24.11 ends the process with 1 where no daemon answers. That would be sshd's
# process, and the user is not in.
sys.exit(9 if code == 1 else code)
