#!/usr/bin/env python3
"""How fast a client copies while strangers begin handshakes and leave them.

Rounds alternate: pulls of one file undisturbed, then the same while --strangers connections at a time
are opened from another address, each of which says the head of a TLS handshake and nothing more. What
the flood itself costs the machine's CPU is in the second number too, as both run on it.
"""

import argparse
import collections
import shutil
import socket
import statistics
import sys
import tempfile
import threading
from pathlib import Path

sys.dont_write_bytecode = True
import common  # noqa: E402
from common import MIB, fail, say  # noqa: E402

# The flood's address, which the client does not have.
ELSEWHERE = "127.0.0.7"
# The head of a TLS record that promises a ClientHello, and the first bytes of one.
HALF = bytes([22, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3])


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bin", type=Path, required=True, help="directory with rdcp and rdcpd")
    add("--size", default="512M", help="of the file that is pulled (default 512M)")
    add("--runs", type=int, default=5, help="rounds of each kind (default 5)")
    add("--strangers", type=int, default=700, help="connections open at a time (default 700)")
    add("--dir", type=Path, default=Path("/dev/shm"), help="where to work (default /dev/shm)")
    return parser.parse_args()


class Flood:
    """Begins handshakes as fast as one thread can, until told to stop."""

    def __init__(self, address, strangers):
        host, _, port = address.rpartition(":")
        self.address, self.strangers = (host, int(port)), strangers
        self.begun, self.refused, self.ended = 0, 0, threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self):
        held = collections.deque()
        while not self.ended.is_set():
            try:
                one = socket.create_connection(self.address, 5, (ELSEWHERE, 0))
                one.sendall(HALF)
            except OSError:
                self.refused += 1
                continue
            self.begun += 1
            held.append(one)
            if len(held) > self.strangers:
                held.popleft().close()
        while held:
            held.popleft().close()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def main():
    args = arguments()
    work = Path(tempfile.mkdtemp(prefix="rdcp-flood.", dir=args.dir))
    accounting = common.Accounting()
    common.exit_on_sigterm()
    try:
        run(args, work, accounting)
    finally:
        accounting.close()
        shutil.rmtree(work, ignore_errors=True)


def run(args, work, accounting):
    root, target = work / "root", work / "target"
    root.mkdir()
    target.mkdir()
    size = common.parse_size(args.size)
    common.make_file(root / "file", size)
    rdcp = common.Rdcp(args.bin, work, root, accounting)
    print("\n".join(common.describe_machine(work, args.bin)))

    def pull():
        status, wall_s = accounting.run(rdcp.pull("file", f"{target}/"), rdcp.environment)
        if status or not common.same(root / "file", target / "file"):
            fail(f"a pull ended with status {status}")
        common.empty(target)
        return size / MIB / wall_s

    # What is made once is made, and the file is in memory.
    pull()
    alone, among = [], []
    begun = refused = 0
    for number in range(args.runs):
        say(f"# round {number + 1} of {args.runs}")
        alone.append(pull())
        with Flood(rdcp.address, args.strangers) as flood:
            among.append(pull())
        begun, refused = begun + flood.begun, refused + flood.refused
    print("\n| | MiB/s, median | lowest | highest |\n|---|---:|---:|---:|")
    for title, rates in (("undisturbed", alone), ("among strangers", among)):
        median = statistics.median(rates)
        print(f"| {title} | {median:.0f} | {min(rates):.0f} | {max(rates):.0f} |")
    print(f"\nhandshakes begun meanwhile: {begun}; connections that were refused: {refused}")


if __name__ == "__main__":
    main()
