"""Writes archives in the form that the kernel unpacks as its first filesystem (cpio, "newc").

Only what an initramfs needs: directories, files and symbolic links, all owned by root. The kernel
unpacks several archives behind each other, later files over earlier ones.
"""

import stat


class Archive:
    def __init__(self, file):
        self._file = file
        self._count = 0
        self._directories = set()

    def directory(self, path, mode=0o755):
        path = path.strip("/")
        if path and path not in self._directories:
            self._parents(path)
            self._directories.add(path)
            self._entry(path, stat.S_IFDIR | mode, b"")

    def add(self, path, content, mode=0o644):
        self._parents(path.strip("/"))
        self._entry(path.strip("/"), stat.S_IFREG | mode, content)

    def symlink(self, path, target):
        self._parents(path.strip("/"))
        self._entry(path.strip("/"), stat.S_IFLNK | 0o777, target.encode())

    def finish(self):
        self._entry("TRAILER!!!", 0, b"")
        # The next archive must start at a multiple of four.
        self._file.write(b"\0" * (-self._file.tell() % 512))

    def _parents(self, path):
        if "/" in path:
            self.directory(path.rsplit("/", 1)[0])

    def _entry(self, name, mode, content):
        self._count += 1
        encoded = name.encode() + b"\0"
        # magic, inode, mode, uid, gid, links, mtime, size, four device numbers, name size, check
        fields = (self._count, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self._file.write(head + b"\0" * (-len(head) % 4))
        self._file.write(content + b"\0" * (-len(content) % 4))
