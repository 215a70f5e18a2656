#!/usr/bin/python3
"""Mounts a file system that takes requests and never answers: a process that opens a file in it
cannot be killed until this program ends. hang.py FOLDER
"""

import ctypes
import os
import struct
import sys

INIT = 26
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % device
if libc.mount(b"hang", sys.argv[1].encode(), b"fuse", 0, options.encode()):
    sys.exit("mount: errno %d" % ctypes.get_errno())
while True:
    request = os.read(device, 1 << 17)
    _length, kind, unique = struct.unpack_from("IIQ", request)
    if kind == INIT:
        major, minor, readahead, _flags = struct.unpack_from("IIII", request, 40)
        answer = (
            struct.pack("IIIIHHIIHHI", 7, min(minor, 31), readahead, 0, 12, 9, 4096, 1, 1, 0, 0)
            + b"\0" * 28
        )
        os.write(device, struct.pack("IiQ", 16 + len(answer), 0, unique) + answer)
