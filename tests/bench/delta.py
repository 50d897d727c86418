#!/usr/bin/env python3
"""rdcp beside rsync's daemon where the destination has an older copy of a file: what travels, and how
long it takes. Both ends on this machine over loopback, interleaved rounds, medians.

aligned    ten chunks of 1 MiB, far from each other, are different
run        one run of 10 MiB, on no chunk's boundary, is different

told   payload that the tool says it moved: rdcp's bytes_moved, rsync's literal data
wire   all that went over loopback meanwhile, headers, digests, checksums and acknowledgements included,
       and what other programs sent
wall   client start to client exit

rsync is told to send differences (--no-whole-file); with --inplace it writes them into the older copy,
without it writes a new file, as rdcp does. Every copy is compared with its source after its run. Ends
with 1 if rdcp moved more than it should: 11 MiB for either.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import common  # noqa: E402
from common import MIB, fail, say  # noqa: E402

CHANGES = 10
TOLD_MAX = 11 * MIB
OLD_S = 1_500_000_000


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bin", type=Path, required=True, help="directory with rdcp and rdcpd")
    add("--size", default="1G", help="of the file (default 1G), at least 32M")
    add("--runs", type=int, default=5, help="rounds (default 5)")
    add("--dir", type=Path, default=Path("/dev/shm"),
        help="where to work: room for four times the size (default /dev/shm)")
    add("--raw", type=Path, help="write every single measurement to this JSON file")
    return parser.parse_args()


def change(path, at, length):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(os.urandom(length))


def loopback_bytes():
    for line in common.read("/proc/net/dev").splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == "lo":
            return int(fields.split()[0])
    return 0


class Bench:
    def __init__(self, args):
        self.args = args
        self.size = common.parse_size(args.size)
        if self.size < 32 * MIB:
            fail("--size must be 32M at least, or too little of the file stays as it is")
        self.work = Path(tempfile.mkdtemp(prefix="rdcp-bench.", dir=args.dir))
        self.root = self.work / "root"
        self.source, self.target = self.root / "src", self.root / "dst"
        for directory in (self.root, self.source, self.target):
            directory.mkdir()
        self.accounting = common.Accounting()
        self.raw, self.excess = [], []

    def start(self):
        self.rdcp = common.Rdcp(self.args.bin, self.work, self.root, self.accounting)
        self.rsync_url = common.start_rsync(self.accounting, self.work, self.root)

    def rows(self):
        here, there = str(self.source / "file"), str(self.target) + "/"
        rsync = ["rsync", "-a", "--no-whole-file", "--stats"]
        pull, push = [f"{self.rsync_url}/src/file", there], [here, f"{self.rsync_url}/dst/"]
        return {
            "rsync pull": [*rsync, *pull],
            "rsync pull --inplace": [*rsync, "--inplace", *pull],
            "rdcp pull": self.rdcp.pull("src/file", there, "-a", "--json"),
            "rsync push": [*rsync, *push],
            "rsync push --inplace": [*rsync, "--inplace", *push],
            "rdcp push": self.rdcp.push(here, "dst/", "-a", "--json"),
        }

    def told(self, row, output):
        text = output.read_text(errors="replace")
        if row.startswith("rdcp"):
            return json.loads(text.splitlines()[-1])["bytes_moved"]
        literal = re.search(r"Literal data: ([\d,.]+) bytes", text)
        return int(re.sub(r"\D", "", literal.group(1))) if literal else fail(f"{row}: {text}")

    def measure(self, part):
        base, source, copy = self.work / "base", self.source / "file", self.target / "file"
        output = self.work / "output"
        results = {row: [] for row in self.rows()}
        for number in range(self.args.runs):
            for row, command in self.rows().items():
                common.empty(self.target)
                shutil.copyfile(base, copy)
                os.utime(copy, (OLD_S, OLD_S))
                common.warm_up(self.size + 256 * MIB)
                cpu_s, wire = self.accounting.cpu_s(), loopback_bytes()
                with open(output, "wb") as stdout:
                    status, wall_s = self.accounting.run(command, self.rdcp.environment, stdout)
                cpu_s, wire = self.accounting.cpu_s() - cpu_s, loopback_bytes() - wire
                if status:
                    fail(f"{row}: exit status {status}: {' '.join(command)}")
                if not common.same(source, copy):
                    fail(f"{row}: the copy differs from its source")
                told = self.told(row, output)
                say(f"# round {number + 1} {part}: {row}: {wall_s:.2f} s, told {told / MIB:.2f} MiB")
                results[row].append((wall_s, cpu_s, told, wire))
                self.raw.append({"part": part, "row": row, "wall_s": wall_s, "cpu_s": cpu_s}
                                | {"told_bytes": told, "wire_bytes": wire})
        self.table(part, results)

    def table(self, part, results):
        print(f"\n### {part}, a file of {self.args.size}\n")
        print("| | told MiB | wire MiB | wall s | min-max | CPU s | wall / rsync | wall / rsync --inplace |")
        print("|---" + "|---:" * 7 + "|")
        median = {
            row: [statistics.median(value[i] for value in values) for i in range(4)]
            for row, values in results.items()
        }
        for row, (wall_s, cpu_s, told, wire) in median.items():
            walls = [value[0] for value in results[row]]
            cells = [row, f"{told / MIB:.2f}", f"{wire / MIB:.2f}", f"{wall_s:.2f}"]
            cells += [f"{min(walls):.2f}-{max(walls):.2f}", f"{cpu_s:.2f}"]
            if row.startswith("rdcp"):
                rsync = f"rsync {row.split()[1]}"
                cells += [f"{wall_s / median[r][0]:.2f}" for r in (rsync, f"{rsync} --inplace")]
                if told > TOLD_MAX:
                    self.excess.append(f"{part}: {row}: {told} bytes")
            else:
                cells += ["", ""]
            print("| " + " | ".join(cells) + " |")
        sys.stdout.flush()

    def run(self):
        print("\n".join(common.describe_machine(self.work, self.args.bin)))
        print(f"peers     {common.first_line(['rsync', '--version'])}")
        print(f"method    {self.args.runs} interleaved rounds, medians; CPU of both ends by "
              f"{self.accounting.kind}; loopback; warm", flush=True)
        base, source = self.work / "base", self.source / "file"
        common.make_file(base, self.size)
        chunks = self.size // MIB
        for part in ("aligned", "run"):
            shutil.copyfile(base, source)
            if part == "aligned":
                for number in range(CHANGES):
                    change(source, (number * chunks // CHANGES + 1) * MIB, MIB)
            else:
                change(source, self.size // 3 // MIB * MIB + 123_457, CHANGES * MIB)
            self.measure(part)
        if self.args.raw:
            self.args.raw.write_text(json.dumps(self.raw, indent=1) + "\n")
        for text in self.excess:
            say(f"MORE TRAVELLED THAN SHOULD: {text}")

    def close(self):
        self.accounting.close()
        shutil.rmtree(self.work, ignore_errors=True)


def main():
    bench = Bench(arguments())
    common.exit_on_sigterm()
    try:
        bench.start()
        bench.run()
    finally:
        bench.close()
    return 1 if bench.excess else 0


if __name__ == "__main__":
    sys.exit(main())
