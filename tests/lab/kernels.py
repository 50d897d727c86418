"""Debian's kernels: an image and the modules that the lab wants, ready to boot.

In: the name of a kernel. Out: a `Kernel` whose folder in the cache holds `vmlinuz`, and modules
(not compressed, for the guest's busybox) with their index. What a VM does with them is not known here.
"""

import hashlib
import json
import lzma
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from apt import Suite, run, unpack
from paths import LAB, LabError, need_program, say

# The suites whose newest kernel stands for a version. RDMA differs between these: see README.md.
SUITES = {"6.1": "bookworm", "6.12": "bookworm-backports", "7": "trixie-backports"}
DEFAULT = "6.12"
PACKAGES = r"linux-(image-|binary-|modules-|base-[0-9])"

# Modules in the guest, with all that they depend on. A kernel may have them built in.
MODULES = {
    "base": ["ib_uverbs", "rdma_rxe", "rdma_cm", "rdma_ucm", "veth", "sch_netem",
             "virtio_pci", "virtio_net", "9pnet_virtio", "9p"],
    "disks": ["virtio_blk", "ext4", "xfs", "dm_mod", "dm_flakey"],
    "nfs": ["nfsd", "nfsv4", "rpcrdma"],
}
# Found through the crypto interface, which no dependency tells; names differ between kernels.
CRYPTO = ["crc32_generic", "crc32c_generic", "crc32-pclmul", "crc32c-intel", "libcrc32c"]


@dataclass(frozen=True)
class Kernel:
    name: str
    release: str
    vmlinuz: Path
    modules: Path
    loads: dict

    def modules_of(self, feature):
        """Files below `modules` for a feature, in the order in which they must be loaded."""
        return self.loads[feature]


def get(name):
    """The kernel from the cache, fetched first if it is not there."""
    if name not in SUITES:
        raise LabError(f"no kernel {name}: there are {', '.join(SUITES)}")
    folder = LAB / "kernels" / f"{name}-{_wanted_key()}"
    if not (folder / "kernel.json").is_file():
        _make(name, folder)
    told = json.loads((folder / "kernel.json").read_text())
    return Kernel(name, told["release"], folder / "vmlinuz", folder / "modules", told["loads"])


def module_name(file):
    """The name under which the kernel knows the module of a file."""
    return Path(_plain(file)).name.removesuffix(".ko").replace("-", "_")


def _make(name, folder):
    debs = _debs(name)
    tree = folder.with_name(folder.name + ".tree")
    new = folder.with_name(folder.name + ".new")
    for path in (tree, new):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    say(f"unpacking kernel {name}")
    for deb in debs:
        unpack(deb, tree)
    home = next((p for p in (tree / "lib/modules", tree / "usr/lib/modules") if p.is_dir()), None)
    if home is None:
        raise LabError(f"no modules in {', '.join(d.name for d in debs)}")
    release = next(home.iterdir()).name
    image = next(
        (p for p in (tree / "boot" / f"vmlinuz-{release}", home / release / "vmlinuz") if p.is_file()),
        None,
    )
    if image is None:
        raise LabError(f"no kernel image in {', '.join(d.name for d in debs)}")
    shutil.copyfile(image, new / "vmlinuz")
    loads = _take_modules(home, release, new / "modules")
    (new / "kernel.json").write_text(json.dumps({"release": release, "loads": loads}))
    shutil.rmtree(tree)
    for old in folder.parent.glob(f"{name}-*"):
        if old != new:
            shutil.rmtree(old)
    new.rename(folder)
    say(f"kernel {name} is {release}")


def _debs(name):
    folder = LAB / "debs" / name
    debs = sorted(folder.glob("*.deb"))
    if debs:
        return debs
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    suite = Suite(SUITES[name])
    say(f"fetching kernel {name} from Debian {suite.name}")
    suite.update()
    suite.download(suite.closure("linux-image-amd64", PACKAGES), new)
    new.rename(folder)
    return sorted(folder.glob("*.deb"))


def _take_modules(home, release, out):
    """Copies the wanted modules, and tells for each feature which files to load in what order."""
    source = home / release
    depmod = str(need_program("depmod", "kmod"))
    # depmod wants lib/modules/RELEASE; the tree of newer packages has it below usr only.
    base = home.parent.parent
    run([depmod, "-b", str(base), release])
    needs = {}
    for line in (source / "modules.dep").read_text().splitlines():
        file, rest = line.split(":")
        needs[file] = rest.split()
    by_name = {module_name(file): file for file in needs}
    built_in = {module_name(f) for f in (source / "modules.builtin").read_text().split()}

    def order(names, optional):
        files = []
        for name in names:
            file = by_name.get(name.replace("-", "_"))
            if file is None:
                if not optional and name.replace("-", "_") not in built_in:
                    raise LabError(f"kernel {release} has no module {name}")
                continue
            # modules.dep lists what must be there first from right to left.
            for f in (*reversed(needs[file]), file):
                plain = _plain(f)
                if plain not in files:
                    files.append(plain)
        return files

    loads = {feature: order(names, False) for feature, names in MODULES.items()}
    loads["base"] = order(CRYPTO, True) + [f for f in loads["base"] if f not in order(CRYPTO, True)]
    compressed = {_plain(file): file for file in needs}
    for plain in {file for files in loads.values() for file in files}:
        target = out / plain
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_decompressed(source / compressed[plain]))
    return loads


def _plain(file):
    return file.removesuffix(".xz").removesuffix(".zst")


def _decompressed(path):
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        zstd = str(need_program("zstd", "zstd"))
        return subprocess.run([zstd, "-qdc", str(path)], capture_output=True, check=True).stdout
    return path.read_bytes()


def _wanted_key():
    return hashlib.sha256(json.dumps([MODULES, CRYPTO]).encode()).hexdigest()[:8]
