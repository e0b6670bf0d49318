"""Runs a command in a network of its own, which has only the loopback device.

    lone.py COMMAND...

It needs the right to make namespaces.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

library = ctypes.CDLL(None, use_errno=True)
if library.unshare(CLONE_NEWNET) != 0:
    sys.exit(f"lone.py: a network of its own: {os.strerror(ctypes.get_errno())}")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    name = struct.pack("16sh14x", b"lo", 0)
    flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, name))[1]
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
os.execvp(sys.argv[1], sys.argv[1:])
