#!/usr/bin/env python3
"""Threads and memory of one daemon as sessions come: none, 200 idle, 200 idle and 64 busy.

The idle ones are held by the example program `idle_sessions`; each busy one is an `rdcp pull` that
is started again whenever it ends. Threads must not grow with sessions.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
import common  # noqa: E402
from common import MIB, fail, say  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bin", type=Path, required=True, help="directory with rdcp, rdcpd and examples/")
    add("--idle", type=int, default=200, help="idle sessions (default 200)")
    add("--busy", type=int, default=64, help="busy sessions (default 64)")
    add("--size", default="64M", help="of the file that each busy session pulls (default 64M)")
    add("--seconds", type=float, default=20, help="how long the busy ones work (default 20)")
    add("--limit", default="300M", help="fail above this (default 300M)")
    add("--dir", type=Path, default=Path("/dev/shm"), help="where to work (default /dev/shm)")
    return parser.parse_args()


class Busy:
    """Pulls, again and again, until told to stop."""

    def __init__(self, rdcp, target):
        self.rdcp, self.target = rdcp, target
        self.target.mkdir()
        self.runs, self.failure, self.ended = 0, None, threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        command = self.rdcp.pull("src/file", f"{self.target}/")
        while not self.ended.is_set():
            done = subprocess.run(
                command, env=self.rdcp.environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                self.failure = f"exit status {done.returncode}: {done.stderr.strip()}"
                return
            self.runs += 1
            common.empty(self.target)

    def stop(self):
        self.ended.set()
        self.thread.join()


def main():
    args = arguments()
    work = Path(tempfile.mkdtemp(prefix="rdcp-sessions.", dir=args.dir))
    accounting = common.Accounting()
    common.exit_on_sigterm()
    try:
        within = run(args, work, accounting)
    finally:
        accounting.close()
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(0 if within else 1)


def run(args, work, accounting):
    root, targets = work / "root", work / "targets"
    for directory in (root, root / "src", targets):
        directory.mkdir()
    common.make_file(root / "src" / "file", common.parse_size(args.size))
    config = work / "rdcpd.toml"
    # All come from one address, which gets seven eighths of the places.
    sessions_max = (args.idle + args.busy) * 5 // 4 + 16
    config.write_text(f"[limits]\nsessions_max = {sessions_max}\n")
    rdcp = common.Rdcp(args.bin, work, root, accounting, options=["--config", str(config)])
    pid = rdcp.daemon.pid
    print("\n".join(common.describe_machine(work, args.bin)))
    print(f"reactor   {rdcp.reactor}\n")
    print("| sessions | threads | anonymous MiB |\n|---|---:|---:|", flush=True)

    def row(title, peak):
        print(f"| {title} | {peak['threads']} | {peak['anon_bytes'] / MIB:.0f} |", flush=True)

    # One pull first, so that what is made once is made.
    Busy(rdcp, targets / "first").stop()
    none = common.status(pid)
    row("none", none)

    holder = subprocess.Popen(
        [str(args.bin / "examples" / "idle_sessions"), rdcp.address, str(args.idle)],
        env=rdcp.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if not holder.stdout.readline().startswith("connected"):
            fail("the idle sessions could not be opened")
        time.sleep(1)
        idle = common.status(pid)
        row(f"{args.idle} idle", idle)
        say(f"# {args.busy} busy for {args.seconds:.0f} s")
        with common.Sampler([pid]) as sampler:
            busy = [Busy(rdcp, targets / str(number)) for number in range(args.busy)]
            time.sleep(args.seconds)
            for one in busy:
                one.stop()
        peak = sampler.peak[pid]
        row(f"{args.idle} idle, {args.busy} busy", peak)
    finally:
        holder.stdin.close()
        holder.wait(30)
    failures = [one.failure for one in busy if one.failure]
    if failures:
        fail(f"{len(failures)} busy sessions failed, the first: {failures[0]}")
    runs = sorted(one.runs for one in busy)
    print(f"\nfiles pulled by each busy session: {runs[0]} to {runs[-1]}, {sum(runs)} in all")
    grown = max(idle["threads"], peak["threads"]) > none["threads"]
    if grown:
        print("THREADS GROW WITH SESSIONS")
    within = peak["anon_bytes"] <= common.parse_size(args.limit)
    print(f"memory within {args.limit}: {'yes' if within else 'NO'}")
    return within and not grown


if __name__ == "__main__":
    main()
