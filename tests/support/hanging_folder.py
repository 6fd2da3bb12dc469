"""Mount a file system that can stop answering, as network file systems do; it implements FUSE over /dev/fuse.

python hanging_folder.py FOLDER COMMAND... mounts it for COMMAND only, in its own mount namespace. COMMAND
writes a letter to the descriptor HANGING_FOLDER: after h, no request is answered; after a, all waiting and
later requests are. When COMMAND prints "the end", or ends, the server exits, which ends all waiting requests,
and the files are printed as one line of JSON: {path: text}. With NO_LOCKS in the environment, the file system
has no locks.
"""

import ctypes
import errno
import json
import os
import select
import stat
import struct
import subprocess
import sys

_OUT, _ATTRIBUTES = struct.Struct("<IiQ"), struct.Struct("<6Q10I")
_IN = struct.Struct("<IIQQIIIHH")
LOOKUP, FORGET, GETATTR, SETATTR, UNLINK, OPEN, READ, WRITE = 1, 2, 3, 4, 10, 14, 15, 16
MKDIR, RENAME, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR = 9, 12, 18, 25, 26, 27, 29
ACCESS, CREATE, INTERRUPT, BATCH_FORGET = 34, 35, 36, 42
_LOCKS_ARE_ASKED_FOR = 1 << 10  # FUSE_FLOCK_LOCKS; otherwise the kernel handles locks itself
_SILENT = {FORGET, BATCH_FORGET, INTERRUPT}
_NEW_NAMESPACE, _PRIVATE = 0x20000, 1 << 18 | 1 << 14  # CLONE_NEWNS; MS_PRIVATE | MS_REC
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(folder):
    """Mount an empty file system for this process and its children; return the descriptor of /dev/fuse."""
    _checked(_libc.unshare(_NEW_NAMESPACE))
    _checked(_libc.mount(b"none", b"/", None, _PRIVATE, None))
    asked = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={asked},rootmode=40755,user_id={os.getuid()},group_id={os.getgid()}"
    _checked(_libc.mount(b"hanging", os.fsencode(folder), b"fuse", 0, options.encode()))
    return asked


class Server:
    """Folders and files in memory, with the operations of a log; nodes are numbered, 1 is the root."""

    def __init__(self):
        self.children = {1: {}}
        self.bytes = {}
        flags = _LOCKS_ARE_ASKED_FOR if "NO_LOCKS" in os.environ else 0  # the server refuses locks
        self.answers = {
            INIT: lambda node, body: struct.pack(
                "<IIIIHHII9I", 7, 31, 0, flags, 16, 12, 1 << 16, 1, *[0] * 9
            ),
            LOOKUP: lambda node, body: self.entry(self.children[node][self.name(body)]),
            GETATTR: lambda node, body: struct.pack("<QII", 0, 0, 0) + self.attributes(node),
            SETATTR: lambda node, body: struct.pack("<QII", 0, 0, 0) + self.attributes(node),
            MKDIR: lambda node, body: self.entry(self.make(node, self.name(body[8:]), self.children, {})),
            CREATE: self.create,
            OPEN: lambda node, body: bytes(16),
            OPENDIR: lambda node, body: bytes(16),
            READ: self.read,
            WRITE: self.write,
            RENAME: self.rename,
            UNLINK: lambda node, body: self.children[node].pop(self.name(body)) and b"",
        }
        self.answers |= dict.fromkeys((FLUSH, RELEASE, RELEASEDIR, ACCESS), lambda node, body: b"")

    @staticmethod
    def name(body):
        return body.split(b"\0")[0].decode()

    def make(self, node, name, kind, empty):
        made = self.children[node][name] = 2 + len(self.children) + len(self.bytes)
        kind[made] = empty
        return made

    def create(self, node, body):
        return self.entry(self.make(node, self.name(body[16:]), self.bytes, bytearray())) + bytes(16)

    def read(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self.bytes[node][offset : offset + size])

    def write(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        self.bytes[node][offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def rename(self, node, body):
        old, new = body[8:].decode().split("\0")[:2]
        self.children[struct.unpack_from("<Q", body)[0]][new] = self.children[node].pop(old)
        return b""

    def attributes(self, node):
        kind = stat.S_IFDIR | 0o755 if node in self.children else stat.S_IFREG | 0o644
        size = len(self.bytes.get(node, b""))
        return _ATTRIBUTES.pack(
            node, size, 0, 0, 0, 0, 0, 0, 0, kind, 1, os.getuid(), os.getgid(), 0, 4096, 0
        )

    def entry(self, node):
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self.attributes(node)

    def answer(self, request):
        """Return the answer to a request; None if the kernel expects none."""
        _, operation, unique, node, *_ = _IN.unpack_from(request)
        if operation in _SILENT:
            return None
        code, body = 0, b""
        try:
            body = self.answers[operation](node, request[_IN.size :])
        except KeyError:
            code = -(errno.ENOSYS if operation not in self.answers else errno.ENOENT)
        return _OUT.pack(_OUT.size + len(body), code, unique) + body

    def files(self, node=1, path=""):
        """Return the text of each file by its path."""
        texts = {}
        for name, child in self.children[node].items():
            if child in self.children:
                texts |= self.files(child, f"{path}{name}/")
            else:
                texts[path + name] = self.bytes[child].decode()
        return texts


def serve(asked, commands, said):
    """Answer the kernel as the command demands, until the command ends; forward the command's output."""
    server, hangs, waiting, text = Server(), False, [], b""
    while b"the end\n" not in text:
        readable, _, _ = select.select([asked, commands, said], [], [])
        if commands in readable:
            letter = os.read(commands, 1)
            hangs = letter == b"h"
        if asked in readable:
            waiting.append(os.read(asked, 1 << 17))
        while waiting and (not hangs or _IN.unpack_from(waiting[0])[1] == INIT):
            answer = server.answer(waiting.pop(0))
            if answer is not None:
                try:
                    os.write(asked, answer)
                except FileNotFoundError:  # the process that asked was killed meanwhile
                    pass
        if said in readable:
            more = os.read(said, 1 << 16)
            text += more
            if not more:
                break
    return text.decode(), server.files()


def main(folder, *command):
    """Run the command with the file system at `folder`."""
    asked = mount(folder)
    commands, tell = os.pipe()
    environment = {**os.environ, "HANGING_FOLDER": str(tell)}
    # The command runs in another folder: starting a program there must not wait for the file system.
    running = subprocess.Popen(command, env=environment, pass_fds=[tell], stdout=subprocess.PIPE, cwd="/")
    text, files = serve(asked, commands, running.stdout.fileno())
    os.close(asked)  # requests that still wait get an error
    sys.stdout.write(text)
    print(json.dumps(files), flush=True)
    return running.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
