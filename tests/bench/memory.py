#!/usr/bin/env python3
"""Peak memory of rdcp and rdcpd: anonymous resident memory, sampled every 20 ms, of both ends.

1. one file of 20 GiB of which one part in five is data and the rest holes, pulled and pushed
2. a tree of 1,000,000 entries, pulled and pushed

Both must stay under the limit however large the file and however long the list. The copies are
compared by size, data blocks and count of entries; contents are compared by rdcp itself and by the
other benches. Works on tmpfs; needs about 16 GiB of free memory at the default sizes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import common  # noqa: E402
from common import GIB, MIB, fail, say  # noqa: E402

STRIPE_BYTES = 16 * MIB
STRIPES_PER_DATA = 5
FILES_PER_DIRECTORY = 999


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bin", type=Path, required=True, help="directory with rdcp and rdcpd")
    add("--size", default="20G", help="of the sparse file (default 20G)")
    add("--entries", type=int, default=1_000_000, help="of the tree (default 1,000,000)")
    add("--file-bytes", type=int, default=64, help="of each file in the tree (default 64)")
    add("--limit", default="200M", help="fail above this (default 200M)")
    add("--dir", type=Path, default=Path("/dev/shm"), help="where to work (default /dev/shm)")
    add("--skip", choices=["file", "tree"], help="leave one part out")
    return parser.parse_args()


def make_sparse_file(path, size_bytes):
    with open(path, "wb") as file:
        file.truncate(size_bytes)
        for start in range(0, size_bytes, STRIPE_BYTES * STRIPES_PER_DATA):
            file.seek(start)
            left = min(STRIPE_BYTES, size_bytes - start)
            while left:
                piece = os.urandom(min(left, MIB))
                file.write(piece)
                left -= len(piece)


def shape(path):
    """What must be equal in source and copy."""
    if path.is_dir():
        count = size = 0
        for directory, directories, files in os.walk(path):
            count += len(directories) + len(files)
            size += sum(os.lstat(f"{directory}/{file}").st_size for file in files)
        return count, size
    found = path.stat()
    # Data blocks alike within 1 %: holes were kept.
    return found.st_size, round(found.st_blocks * 512 / max(found.st_size, 1), 2)


def measure(title, command, rdcp, limit_bytes):
    client = subprocess.Popen(
        command, env=rdcp.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    with common.Sampler([client.pid, rdcp.daemon.pid]) as sampler:
        errors = client.stderr.read()
        client.wait()
    if client.returncode:
        fail(f"{title}: exit status {client.returncode}: {errors.decode(errors='replace')}")
    ends = [("client", client.pid), ("daemon", rdcp.daemon.pid)]
    cells, within = [title], True
    for _, pid in ends:
        peak = sampler.peak[pid]
        cells += [f"{peak['anon_bytes'] / MIB:.0f}", str(peak["threads"])]
        within &= peak["anon_bytes"] <= limit_bytes
    cells.append("yes" if within else "NO")
    print("| " + " | ".join(cells) + " |", flush=True)
    return within


def run(args, work, accounting):
    root, limit_bytes, within = work / "root", common.parse_size(args.limit), True
    source, target = root / "src", root / "dst"
    for directory in (root, source, target):
        directory.mkdir()
    rdcp = common.Rdcp(args.bin, work, root, accounting)
    print("\n".join(common.describe_machine(work, args.bin)))
    print(f"reactor   {rdcp.reactor}\n")
    print("| | client MiB | client threads | daemon MiB | daemon threads | within "
          f"{args.limit} |\n|---|---:|---:|---:|---:|---|", flush=True)
    parts = []
    if args.skip != "file":
        parts.append(("file", f"{args.size}, one fifth data", ()))
    if args.skip != "tree":
        parts.append(("tree", f"{args.entries} entries", ("-r",)))
    for name, title, options in parts:
        say(f"# making: {title}")
        if name == "file":
            make_sparse_file(source / name, common.parse_size(args.size))
        else:
            directories = max(1, args.entries // (FILES_PER_DIRECTORY + 1))
            common.make_tree(source / name, directories, FILES_PER_DIRECTORY, args.file_bytes)
        expected = shape(source / name)
        for verb, command in (
            ("pull", rdcp.pull(f"src/{name}", f"{target}/", *options)),
            ("push", rdcp.push(source / name, "dst/", *options)),
        ):
            say(f"# {verb}: {title}")
            within &= measure(f"{verb}: {title}", command, rdcp, limit_bytes)
            if shape(target / name) != expected:
                fail(f"{verb}: {title}: got {shape(target / name)}, expected {expected}")
            common.empty(target)
        common.empty(source)
    return within


def main():
    args = arguments()
    work = Path(tempfile.mkdtemp(prefix="rdcp-memory.", dir=args.dir))
    accounting = common.Accounting()
    common.exit_on_sigterm()
    try:
        needed = 0 if args.skip == "file" else common.parse_size(args.size) * 2 // STRIPES_PER_DATA
        if args.skip != "tree":
            # A page and about a KiB of kernel memory an entry, twice.
            needed = max(needed, args.entries * 2 * (4096 * -(-args.file_bytes // 4096) + 1500))
        if common.memory_available() < needed + GIB and common.file_system(work) == "tmpfs":
            fail(f"too little memory: {needed / GIB:.0f} GiB are needed; say --dir or smaller sizes")
        within = run(args, work, accounting)
    finally:
        accounting.close()
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
