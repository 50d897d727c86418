#!/usr/bin/env python3
"""RDMA beside what else there is for it, in one virtual machine of the lab and one boot of it.

Each round has all of them, so that a host that is busy for a while is so for all:

  ib_read_bw, polled and by events   what the adapter brings, 1 MiB a READ: the ceiling
  the same beside a writer           ib_read_bw by events while dd writes as many bytes to memory as the file
                                     has: what is left of each where the processors do the adapter's work
                                     too. The lower of the two is the ceiling of a copy to a file
  rdcp bench                         the same as ib_read_bw through rdcp's lanes
  rdcp pull, --hash none and BLAKE3  a file in memory: the data phase, from the first READ posted to the
                                     last chunk stored, and the whole command
  rcopy                              librdmacm's copy over rsockets
  dd from NFS over RDMA              the same file, mounted anew
  ib_read_lat, held reads            READs of 4 KiB one at a time, the median

There is one adapter, so that all have the same. It is soft-RoCE in an emulated machine: look
at the ratios, which compare programs, and not at the figures. `./run bench rdma` builds what it needs.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lab")]
import common  # noqa: E402
import kernels  # noqa: E402
import vm  # noqa: E402
from common import MIB, fail, parse_size, say  # noqa: E402
from paths import LabError  # noqa: E402

GUEST = HERE / "rdma_guest.sh"
PROGRAMS = ("rdcp", "rdcpd", "held_reads")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bin", type=Path, required=True, help="folder with rdcp, rdcpd and examples/held_reads")
    add("--kernel", choices=list(kernels.SUITES), default="6.12", help="(default 6.12)")
    add("--runs", type=int, default=5, help="rounds (default 5)")
    add("--size", default="256M", help="of the file (default 256M)")
    add("--seconds", type=int, default=3, help="of each rdcp bench (default 3)")
    return parser.parse_args()


def programs(folder):
    found = {}
    for name in PROGRAMS:
        places = [folder / name, folder / "examples" / name]
        found[name] = next((place for place in places if place.is_file()), None)
        if found[name] is None:
            fail(f"{folder}: {name} is missing")
    return found


def measure(told):
    """Each name's values, one a round, as far as the guest came."""
    size_mib = parse_size(told.size) // MIB
    values, log = {}, []

    def sink(_, line):
        words = line.split()
        if len(words) == 4 and words[0] == "figure":
            values.setdefault(words[2], []).append(float(words[3]))
            say(f"round {words[1]}: {words[2]} {words[3]}")
        else:
            log.append(line)

    options = vm.Options(
        kernel=told.kernel, memory_mib=1536 + 5 * size_mib, nfs=True, awake=True, devices=1,
        timeout_s=600 + told.runs * (60 + size_mib * 2), programs=programs(told.bin),
    )
    command = f"sh /lab/bench.sh {told.runs} {size_mib} {told.seconds}\n"
    machine = vm.Machine("a", command, {"lab/bench.sh": GUEST.read_text()})
    with tempfile.TemporaryDirectory(prefix="rdcp-bench-rdma-") as share:
        [result] = vm.run([machine], options, Path(share), sink)
    if result.status:
        say("".join(log[-40:]))
        fail(f"the guest ended with {result.status}")
    return values


def ratio(over, under):
    return f"{over / under:5.2f}" if under else "    -"


def table(values, size_mib):
    median = {name: statistics.median(of) for name, of in values.items()}
    span = {name: (min(of), max(of)) for name, of in values.items()}

    def line(title, value, low, high, unit, against):
        print(f"{title:<36} {value:9.1f} {unit:<5}  {low:9.1f} .. {high:<9.1f} {against}")

    def rate(title, name, against):
        """From bytes per second, MiB/s or the milliseconds of the file."""
        convert = {
            "ms": lambda ms: size_mib * 1000 / ms if ms else 0,
            "_s": lambda bytes_per_s: bytes_per_s / MIB,
        }.get(name[-2:], lambda mib_per_s: mib_per_s)
        low, high = sorted(map(convert, span[name]))
        line(title, convert(median[name]), low, high, "MiB/s", against(convert(median[name])))

    ceiling = max(median["read_bw_polled"], median["read_bw_events"])
    to_ceiling = lambda value: ratio(value, ceiling)  # noqa: E731
    copying = min(median["read_bw_beside_writes"], median["writes_beside_reads"])
    to_both = lambda value: f"{to_ceiling(value)}  {ratio(value, copying)}"  # noqa: E731
    print(f"{'median of ' + str(len(values['read_bw_polled'])) + ' rounds':<36} "
          f"{'':15}  {'lowest':>9} .. {'highest':<9} "
          "ratio to ib_read_bw's better, to reads and writes together")
    rate("ib_read_bw, polled", "read_bw_polled", to_ceiling)
    rate("ib_read_bw, events", "read_bw_events", to_ceiling)
    rate("ib_read_bw, events, beside writes", "read_bw_beside_writes", to_both)
    rate("writes beside ib_read_bw", "writes_beside_reads", to_both)
    rate("rdcp bench", "bench_bytes_per_s", to_ceiling)
    rate("rdcp pull --hash none, data phase", "pull_none_data_ms", to_both)
    rate("rdcp pull --hash none, command", "pull_none_ms", to_both)
    rate("rdcp pull (BLAKE3), data phase", "pull_blake3_data_ms", to_both)
    rate("rdcp pull (BLAKE3), command", "pull_blake3_ms", to_both)
    rate("rcopy, command", "rcopy_ms", to_both)
    rate("dd from NFS over RDMA, command", "nfs_ms", to_both)
    print("ratio to ib_read_lat")
    lat = median["read_lat_us"]
    for title, name in (
        ("ib_read_lat -s 4096", "read_lat_us"),
        ("held read_at, 4 KiB", "held_p50_us"),
        ("rdcp bench, 4 KiB", "bench_read_p50_us"),
    ):
        line(title, median[name], *span[name], "us", ratio(median[name], lat))
    pull = median["pull_none_ms"]
    print(f"command of pull --hash none / rcopy {ratio(pull, median['rcopy_ms'])}, "
          f"/ NFS {ratio(pull, median['nfs_ms'])} (less is better)")


def main():
    told = arguments()
    common.exit_on_sigterm()
    try:
        values = measure(told)
    except LabError as error:
        fail(str(error))
    for text in common.describe_machine(HERE, told.bin):
        print(text)
    print(f"guest     Debian's kernel {told.kernel}, soft-RoCE, QEMU without KVM; file of {told.size}")
    table(values, parse_size(told.size) // MIB)


main()
