#!/usr/bin/env python3
"""Proof that copies are the same: push and pull of a large file, of a real tree (the Rust toolchain's
own directory) and of 100,000 small files, with io_uring and without it at both ends.

Every copy is checked with `sha256sum --check` and `diff -r --no-dereference`, which know nothing of
rdcp. Ends with status 2 at the first difference. Not timed: see transfer.py for speed. Works on
tmpfs; needs about 13 GiB of free memory at the default sizes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import common  # noqa: E402
from common import fail, say  # noqa: E402

FILES_EACH, FILE_BYTES = 100, 4096


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bin", type=Path, required=True, help="directory with rdcp and rdcpd")
    add("--size", default="4G", help="of the large file (default 4G)")
    add("--directories", type=int, default=1000, help="of 100 files of 4 KiB each (default 1000)")
    add("--dir", type=Path, default=Path("/dev/shm"), help="where to work (default /dev/shm)")
    return parser.parse_args()


def toolchain():
    done = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def sums_of(source, out):
    """The SHA-256 of every file below `source`, in the form that sha256sum --check reads."""
    with open(out, "wb") as file:
        find = ["find", ".", "-type", "f", "-print0"]
        names = subprocess.run(find, cwd=source, capture_output=True, check=True).stdout
        command = ["xargs", "-0", "-r", "sha256sum"]
        subprocess.run(command, cwd=source, input=names, stdout=file, check=True)


def check(title, source, copy, sums):
    done = subprocess.run(["sha256sum", "--quiet", "--check", str(sums)], cwd=copy, check=False)
    if done.returncode:
        fail(f"{title}: a SHA-256 differs")
    done = subprocess.run(["diff", "-r", "--no-dereference", str(source), str(copy)], check=False)
    if done.returncode:
        fail(f"{title}: the copies differ")
    say(f"{title}: {sum(1 for _ in open(sums, 'rb'))} files match their SHA-256, diff finds nothing")


def run(command, environment):
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        fail(f"exit status {done.returncode}: {' '.join(command)}")


def both_ways(name, source, sums, rdcp, root):
    """Pushes the contents of `source` and pulls them back from what was pushed."""
    pushed, pulled = root / "pushed", root / "pulled"
    with_uring = f"{name}, {rdcp.reactor}"
    run(rdcp.push(f"{source}/", "pushed", "-a"), rdcp.environment)
    check(f"{with_uring}, push", source, pushed, sums)
    run(rdcp.pull("pushed/", pulled, "-a"), rdcp.environment)
    check(f"{with_uring}, pull", source, pulled, sums)
    subprocess.run(["rm", "-rf", str(pushed), str(pulled)], check=True)


def main():
    args = arguments()
    common.exit_on_sigterm()
    for line in common.describe_machine(args.dir, args.bin):
        say(line)
    with tempfile.TemporaryDirectory(prefix="rdcp-identical.", dir=args.dir) as name:
        work = Path(name)
        for source in ("file", "tree", "root"):
            (work / source).mkdir()
        accounting = common.Accounting()
        try:
            say("making the sources")
            common.make_file(work / "file" / "large", common.parse_size(args.size))
            common.make_tree(work / "tree", args.directories, FILES_EACH, FILE_BYTES)
            sources = [
                (f"a file of {args.size}", work / "file"),
                ("the Rust toolchain", toolchain()),
                (f"{args.directories * FILES_EACH} small files", work / "tree"),
            ]
            for number, (_, source) in enumerate(sources):
                sums_of(source, work / f"{number}.sums")
            for uring in (True, False):
                environment = dict(os.environ)
                environment.pop("RDCP_NO_URING", None)
                if not uring:
                    environment["RDCP_NO_URING"] = "1"
                state = work / ("uring" if uring else "readiness")
                state.mkdir()
                rdcp = common.Rdcp(args.bin, state, work / "root", accounting, environment)
                for number, (title, source) in enumerate(sources):
                    both_ways(title, source, work / f"{number}.sums", rdcp, work / "root")
                common.stop(rdcp.daemon)
        finally:
            accounting.close()
    say("all copies are identical")


if __name__ == "__main__":
    main()
