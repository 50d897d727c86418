"""The command line of the lab: `./run rdma-lab` calls it with all its arguments."""

import argparse
import os
import shlex
import signal
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True

import kernels
import run_tests
import vm
from paths import EXIT_BROKEN, HERE, REPOSITORY, TARGET, LabError, say

HELP = """\
Boots the project's programs in virtual machines that have RDMA devices in software (soft-RoCE), so
that RDMA can be tried and tested on any x86-64 machine. QEMU emulates the processor: no KVM, no module
and no privilege of the host is used (missing Debian packages are installed), and nothing is fast.

  ./run rdma-lab                              run the lab's tests (on all kernels)
  ./run rdma-lab --kernel 7 --case tcp        only there, only cases with "tcp" in their name
  ./run rdma-lab ibv_devinfo -v               one command in a machine with two devices, rxe0 and rxe1
  ./run rdma-lab 'uname -r; rdma link'        one word: a command line for the shell
  ./run rdma-lab --two-hosts 'rping -s -C 3' 'sleep 2; rping -c -a 10.0.0.1 -C 3'
                                              two machines, a and b, with a command line for each

In the machines: rdcp, rdcpd, busybox, ip, rdma, tc, ss, ibv_devinfo, ibv_asyncwatch, ib_read_bw,
ib_read_lat, ib_write_bw, ib_send_bw, rping, rcopy, ucmatose. rxe0 sits on net0 with 10.0.0.1 (host b:
10.0.0.2), rxe1 on net1 with 10.0.1.1, and so on. The functions of tests/lab/guest/helpers.sh can be
used after `. /lab/helpers.sh`; the tests are in /lab/cases. Standard input is empty. /share is the
folder of --share.

Exit status: that of the command (of two: the first that is not 0); 124 after the time limit, 125 if
the lab can't be used here, 126 if a machine ended without a result.

Environment: RDCP_LAB_BIN, the folder of rdcp and rdcpd (default: target/release, which ./run builds
first). Downloads and images are kept in target/lab; removing that folder is safe."""


TEST_PROGRAMS = ["held_reads", "rdma_hostile", "rdma_meddle"]
COMMANDS_ONLY = ["two_hosts", "without_libs", "timeout", "disk", "nfs", "share", "counted"]


def between(low, high):
    def number(text):
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}")
        return value

    return number


def limit(text):
    return text if text == "unlimited" else str(int(text))


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="./run rdma-lab", usage="./run rdma-lab [OPTIONS] [COMMAND...]",
        description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--kernel", choices=list(kernels.SUITES),
        help=f"Debian's kernel of that version (commands: {kernels.DEFAULT}; tests: all)")
    add("--case", metavar="TEXT", default="", help="tests: only cases with TEXT in their name")
    add("--two-hosts", action="store_true", help="two machines; then COMMAND is one word for each")
    add("--without-libs", action="store_true",
        help="leave libibverbs, librdmacm and the programs that need them out")
    add("--devices", type=between(1, 8), default=2, metavar="N", help="RDMA devices in each machine (2)")
    add("--mtu", type=between(576, 9000), default=4300, metavar="BYTES",
        help="of the network: 4300 (default) gives RoCE 4096, 1500 gives 1024")
    add("--memory", type=between(256, 1 << 20), default=2048, metavar="MIB", help="of each machine (2048)")
    add("--memlock", type=limit, default="unlimited", metavar="KIB",
        help="limit of locked memory, for other users than root (unlimited)")
    add("--timeout", type=between(1, 86400), default=300, metavar="S", help="for all from boot to end (300)")
    add("--disk", action="append", default=[], choices=["ext4", "xfs"],
        help="an empty disk of 2 GiB at /mnt/ext4 or /mnt/xfs; may be given twice")
    add("--counted", action="store_true",
        help="one slow processor whose time is counted in instructions: the same figures everywhere")
    add("--nfs", action="store_true", help="bring the NFS server and client along, RDMA too")
    add("--program", action="append", default=[], metavar="FILE",
        help="one more program with its libraries, in /usr/bin; may be repeated")
    add("--share", metavar="DIR", help="folder of this machine that the guests see as /share")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run there")
    told = parser.parse_args(arguments)
    # What the tests decide themselves, case by case, must not seem to be obeyed.
    for name in COMMANDS_ONLY if not told.command else ["case"]:
        if getattr(told, name) != parser.get_default(name):
            where = "with" if not told.command else "without"
            parser.error(f"--{name.replace('_', '-')} is only possible {where} a command")
    if told.two_hosts and len(told.command) != 2:
        parser.error("--two-hosts takes two command lines, each as one word (quoted)")
    return told


def options_of(told):
    folder = binaries()
    programs = {name: folder / name for name in ("rdcp", "rdcpd")}
    programs.update(test_programs(folder, needed=not told.command))
    for file in told.program:
        if not Path(file).is_file():
            raise LabError(f"{file}: no such file")
        programs[Path(file).name] = Path(file)
    return vm.Options(
        kernel=told.kernel or kernels.DEFAULT,
        rdma_libraries=not told.without_libs,
        mtu=told.mtu,
        memory_mib=told.memory,
        memlock=told.memlock,
        timeout_s=told.timeout,
        devices=told.devices,
        nfs=told.nfs,
        counted=told.counted,
        disks=tuple(dict.fromkeys(told.disk)),
        programs=programs,
    )


def binaries():
    # As for the caller, relative to the repository; ./run changes into it.
    folder = REPOSITORY / os.environ.get("RDCP_LAB_BIN", TARGET / "release")
    for name in ("rdcp", "rdcpd"):
        if not (folder / name).is_file():
            raise LabError(f"{folder / name} is missing: build it, or set RDCP_LAB_BIN")
    return folder


def test_programs(folder, needed):
    """The programs that cases use beside rdcp and rdcpd, as far as they are there: from the folder of
    those, or where cargo puts them."""
    found = {}
    for name in TEST_PROGRAMS:
        places = [folder / name, folder / "examples" / name, TARGET / "debug/examples" / name]
        found[name] = next((place for place in places if place.is_file()), None)
        if needed and found[name] is None:
            raise LabError(f"{name} is missing: cargo build --example {name}")
    return {name: place for name, place in found.items() if place}


def run_command(told):
    words = told.command
    if told.two_hosts:
        lines = {"a": words[0], "b": words[1]}
    else:
        lines = {"a": words[0] if len(words) == 1 else shlex.join(words)}
    cases = {f"lab/cases/{case.name}": case.read_text() for case in (HERE / "cases").glob("*.sh")}
    machines = [vm.Machine(name, f"{line}\n", cases) for name, line in lines.items()]
    prefix = len(machines) > 1

    def sink(name, line):
        sys.stdout.write(f"{name}: {line}" if prefix else line)
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="rdcp-lab-share-") as scratch:
        share = Path(told.share or scratch).resolve()
        share.mkdir(parents=True, exist_ok=True)
        results = vm.run(machines, options_of(told), share, sink)
    for machine, result in zip(machines, results):
        say(f"{machine.name}: status {result.status}, boot {result.boot_s:.1f} s, all {result.total_s:.1f} s")
    return next((r.status for r in results if r.status != 0), 0)


def main():
    # So that machines are ended and files removed then too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    told = parse(sys.argv[1:])
    try:
        if os.uname().machine != "x86_64":
            raise LabError("the lab's machines are x86-64, and run programs built here: not possible on "
                           + os.uname().machine)
        if told.command:
            return run_command(told)
        return run_tests.run(options_of(told), told.kernel, told.case)
    except LabError as error:
        say(str(error))
        return EXIT_BROKEN
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
