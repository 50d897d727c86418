"""The guest's filesystem: programs of this machine with their libraries, and kernel modules.

The large part (`base`) is kept by a key over all that goes into it, so that boots in a row are
quick. What differs from boot to boot (the project's programs, scripts, settings) is a small archive
behind it (`overlay`), which the kernel unpacks over the first.
"""

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

import apt
import kernels
from cpio import Archive
from paths import HERE, LAB, LabError, need_program, say

# Program: the Debian package that has it. ./run installs all but NFS_PACKAGES.
PLAIN = {
    "dash": "dash", "ip": "iproute2", "rdma": "iproute2", "tc": "iproute2", "ss": "iproute2",
    "cmp": "diffutils", "sha256sum": "coreutils", "split": "coreutils", "setpriv": "util-linux",
}
RDMA = {
    "ibv_devinfo": "ibverbs-utils", "ibv_devices": "ibverbs-utils",
    "ibv_asyncwatch": "ibverbs-utils", "ibv_rc_pingpong": "ibverbs-utils",
    "ib_read_bw": "perftest", "ib_read_lat": "perftest", "ib_write_bw": "perftest",
    "ib_send_bw": "perftest",
    "rping": "rdmacm-utils", "rcopy": "rdmacm-utils", "ucmatose": "rdmacm-utils",
}
DISKS = {"dmsetup": "dmsetup", "xfs_quota": "xfsprogs"}
NFS = ["rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs"]
# Installed, these would start services on this machine; so they are only unpacked.
NFS_PACKAGES = ["nfs-kernel-server", "nfs-common"]

LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROVIDERS = f"{LIBRARIES}/libibverbs"
# Opened at run time, so no program's own list names them.
OPENED_ALWAYS = ["libgcc_s.so.1"]
OPENED_RDMA = ["libibverbs.so.1", "librdmacm.so.1"]
KEPT_IMAGES = 8

ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "services": "nfs 2049/tcp\nsunrpc 111/tcp\n",
    "protocols": "tcp 6 TCP\nudp 17 UDP\n",
    "netconfig": "tcp tpi_cots_ord v inet tcp - -\nudp tpi_clts v inet udp - -\n",
}


def base(kernel, features, rdma_libraries):
    """The file of the archive for this kernel, made if it is not in the cache."""
    wanted = _files(features, rdma_libraries)
    modules = {f: kernel.modules_of(f) for f in ("base", *features)}
    key = _key(kernel, wanted, modules)
    path = LAB / "images" / f"{kernel.name}-{key}.cpio"
    if path.is_file():
        path.touch()
        return path
    say(f"building the guest for kernel {kernel.release}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        archive = Archive(file)
        for folder in ("dev", "proc", "sys", "tmp", "run", "root", "share", "var/lib/nfs/v4recovery"):
            archive.directory(folder)
        for link in ("bin", "sbin", "lib", "lib64"):
            archive.directory(f"usr/{link}")
            archive.symlink(link, f"usr/{link}")
        for name, source in sorted(wanted.items()):
            archive.add(name, source.read_bytes(), 0o755)
        _links(archive, wanted)
        for name, text in ETC.items():
            archive.add(f"etc/{name}", text.encode())
        if rdma_libraries:
            archive.add("etc/libibverbs.d/rxe.driver", b"driver rxe\n")
        for feature, files in modules.items():
            names = "".join(
                f"{kernels.module_name(f)} /lib/modules/{kernel.release}/{f}\n" for f in files
            )
            archive.add(f"lab/modules.{feature}", names.encode())
        for f in sorted({f for files in modules.values() for f in files}):
            archive.add(f"usr/lib/modules/{kernel.release}/{f}", (kernel.modules / f).read_bytes())
        archive.finish()
    Path(file.name).rename(path)
    for old in sorted(path.parent.glob("*.cpio"), key=lambda p: p.stat().st_mtime)[:-KEPT_IMAGES]:
        old.unlink()
    return path


def overlay(file, settings, programs, scripts):
    """Writes the small archive: settings as shell variables, programs (name: file on this machine)
    with their libraries, and scripts (path in the guest: text)."""
    archive = Archive(file)
    for name in ("init", "helpers.sh"):
        archive.add(f"lab/{name}", (HERE / "guest" / name).read_bytes(), 0o755)
    archive.add("lab/settings", "".join(f"{k}='{v}'\n" for k, v in settings.items()).encode())
    for name, text in scripts.items():
        archive.add(name, text.encode(), 0o755)
    libraries = {}
    for name, source in programs.items():
        archive.add(f"usr/bin/{name}", _without_debug_information(source), 0o755)
        libraries.update(_libraries(source, ()))
    for name, source in libraries.items():
        # The RDMA libraries come with the base, or are left out on purpose.
        if not re.match(r"libibverbs|librdmacm", Path(name).name):
            archive.add(name, source.read_bytes(), 0o755)
    archive.finish()


def _files(features, rdma_libraries):
    """Path in the guest: file on this machine."""
    roots = [apt.unpacked(NFS_PACKAGES, libraries_too=True)] if "nfs" in features else []
    programs = dict(PLAIN)
    if rdma_libraries:
        programs.update(RDMA)
    if "disks" in features:
        programs.update(DISKS)
    if "nfs" in features:
        programs.update({name: "nfs-kernel-server" for name in NFS})
    files = {"usr/bin/busybox": need_program("busybox", "busybox-static")}
    for name, package in programs.items():
        source = need_program(name, package, roots)
        files[f"usr/bin/{name}"] = source
        files.update(_libraries(source, roots))
    opened = OPENED_ALWAYS + (OPENED_RDMA if rdma_libraries else [])
    for name in opened:
        source = Path("/") / LIBRARIES / name
        if not source.is_file():
            raise LabError(f"{source} is missing: install the packages that ./run rdma-lab names")
        files[f"{LIBRARIES}/{name}"] = source
        files.update(_libraries(source, roots))
    if rdma_libraries:
        found = list((Path("/") / PROVIDERS).glob("librxe-rdmav*.so"))
        if not found:
            raise LabError("libibverbs has no rxe: install the Debian package ibverbs-providers")
        for source in found:
            files[f"{PROVIDERS}/{source.name}"] = source
            files.update(_libraries(source, roots))
    return files


def _links(archive, files):
    """busybox's applets, except where the real program is there, and the names that scripts use."""
    busybox = str(files["usr/bin/busybox"])
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    taken = {Path(name).name for name in files}
    # dash, because busybox's shell takes its own applets instead of the programs of that name.
    archive.symlink("usr/bin/sh", "dash")
    for name in applets.stdout.split():
        if name not in taken and name != "sh":
            archive.symlink(f"usr/bin/{name}", "busybox")
    if "usr/bin/mount.nfs" in files:
        archive.symlink("usr/sbin/mount.nfs4", "../bin/mount.nfs")


def _libraries(program, roots):
    """What the loader of this machine would load for a program: path in the guest: file."""
    path = ":".join(f"{root}/{folder}" for root in roots for folder in (LIBRARIES, LIBRARIES[4:]))
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **({"LD_LIBRARY_PATH": path} if path else {})}
    output = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False, env=env)
    if "not a dynamic executable" in output.stderr + output.stdout:
        return {}
    files = {}
    for line in output.stdout.splitlines():
        missing = re.match(r"\s*(\S+) => not found", line)
        if missing:
            raise LabError(f"{program} needs {missing[1]}, which is not installed here")
        loader = re.match(r"\s*(/lib64/\S+) \(", line)
        if loader:
            files["usr" + loader[1]] = Path(loader[1])
        library = re.match(r"\s*(\S+) => (/\S+)", line)
        if library:
            files[f"{LIBRARIES}/{library[1]}"] = Path(library[2])
    return files


def _without_debug_information(program):
    # Tens of MiB in a debug build, which emulation would have to copy at each boot.
    strip = need_program("strip", "binutils")
    with tempfile.NamedTemporaryFile() as out:
        result = subprocess.run(
            [str(strip), "--strip-debug", "-o", out.name, str(program)],
            capture_output=True, check=False,
        )
        # A script is no program to strip; it goes as it is.
        return Path(out.name if result.returncode == 0 else program).read_bytes()


def _key(kernel, files, modules):
    parts = [kernel.release, repr(sorted(ETC.items())), repr(sorted(modules.items()))]
    for name, source in sorted(files.items()):
        told = source.stat()
        parts.append(f"{name} {source} {told.st_size} {told.st_mtime_ns}")
    parts.append(Path(__file__).read_text())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
