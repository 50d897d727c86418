"""Boots virtual machines and brings back what their scripts printed and how they ended.

One `Machine` is one boot. Two machines are joined by socket pairs, one a link, so that no port of
this host is used. Emulation only (TCG): it runs wherever QEMU runs, in containers too.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import image
import kernels
from paths import EXIT_NO_RESULT, EXIT_TIMEOUT, LabError, cache_lock, need_program, say


# Everything that QEMU can do, but copies by `rep movsb`: they go byte by byte there, eight times as slow as
# by `rep movsq`, where real processors have the two alike.
PROCESSOR = "max,erms=off,fsrm=off"
# On a busy host emulated clocks run so unevenly that the kernel's checks of them fail: it then panics
# for want of a timer, or gives up the quick clock. They are not what is tested here.
KERNEL_ARGUMENTS = (
    "console=ttyS0 rdinit=/lab/init panic=-1 quiet mitigations=off"
    " no_timer_check tsc=reliable nowatchdog"
)


# An emulated processor may run an instruction that another one is just patching, which the kernel takes
# for a fault of its own and panics, seldom and only while it boots. Nothing of the project ran by then.
BOOTS_MAX = 3


@dataclass
class Options:
    """What the machines of one run have in common."""

    kernel: str = kernels.DEFAULT
    rdma_libraries: bool = True
    mtu: int = 4300
    memory_mib: int = 2048
    memlock: str = "unlimited"
    timeout_s: int = 300
    devices: int = 2
    nfs: bool = False
    disks: tuple = ()
    # Where the disks' images are kept, for a boot after this one; None: they end with the machine.
    disk_folder: Path | None = None
    # Time is counted in instructions, of one processor: what takes how many is the same on every host.
    counted: bool = False
    # Idle processors look for work and do not halt. To wake one that halted costs the emulator 50 us, which
    # is most of what a short message takes; but the host's processors are then busy all the time.
    awake: bool = False
    programs: dict = field(default_factory=dict)


@dataclass
class Machine:
    """One boot: its name in the lab, what it runs, and more files for it (path: text)."""

    name: str
    command: str
    scripts: dict = field(default_factory=dict)


@dataclass
class Result:
    status: int
    boot_s: float
    total_s: float


def run(machines, options, share, sink):
    """Boots the machines together and waits for them all. `share` is a folder of this host that all
    see as /share. `sink(name, line)` gets what they print. Returns a Result for each."""
    qemu = need_program("qemu-system-x86_64", "qemu-system-x86")
    features = [f for f, on in (("disks", options.disks), ("nfs", options.nfs)) if on]
    with cache_lock():
        kernel = kernels.get(options.kernel)
        base = image.base(kernel, features, options.rdma_libraries)
    for _ in range(BOOTS_MAX - 1):
        results = _run_once(qemu, kernel, base, machines, options, share, sink)
        if results is not None:
            return results
        say("a kernel panicked before its machine was up: booting again")
    return _run_once(qemu, kernel, base, machines, options, share, sink, last=True)


def _run_once(qemu, kernel, base, machines, options, share, sink, last=False):
    """One boot of them all; None if that failed before they were up, unless it is the last try."""
    # What was told in an earlier run must not be heard in this one.
    shutil.rmtree(share / ".lab", ignore_errors=True)
    (share / ".lab").mkdir()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rdcp-lab-")))
        links = []
        if len(machines) == 2:
            pairs = [socket.socketpair() for _ in range(options.devices)]
            for pair in pairs:
                for end in pair:
                    stack.callback(end.close)
            links = list(zip(*pairs))
        running = []
        for index, machine in enumerate(machines):
            sockets = links[index] if links else ()
            boot = _Boot(index, machines, options, scratch, share, sink)
            stack.callback(boot.kill)
            boot.start(qemu, kernel, base, sockets)
            running.append(boot)
        _wait(running, time.monotonic() + options.timeout_s)
        if not last and any(boot.panicked_early() for boot in running):
            return None
        return [boot.result() for boot in running]


def _wait(running, deadline):
    """Until all have ended. One that dies without a result takes the others along: they might wait
    for it for ever."""
    while any(boot.runs() for boot in running):
        late = time.monotonic() > deadline
        if late or any(boot.died() for boot in running):
            for boot in running:
                boot.timed_out = late and boot.runs()
                boot.kill()
        time.sleep(0.05)


class _Boot:
    def __init__(self, index, machines, options, scratch, share, sink):
        machine = machines[index]
        self.machine, self.index, self.options = machine, index, options
        self.count = len(machines)
        self.others = [other.name for other in machines if other is not machine]
        self.timed_out = False
        self.folder = scratch / machine.name
        self.folder.mkdir()
        self.share = share
        self.sink = sink
        self.process = None
        self.reader = None
        self.started = 0.0

    def start(self, qemu, kernel, base, sockets):
        initrd = self.folder / "initrd"
        with open(initrd, "wb") as file:
            file.write(base.read_bytes())
            image.overlay(
                file, self._settings(), self.options.programs,
                {"lab/command": self.machine.command, **self.machine.scripts},
            )
        clock = ["-accel", "tcg,thread=multi"]
        if self.options.counted:
            # 4 ns each; while all wait, time jumps to what they wait for.
            clock = ["-accel", "tcg,thread=single", "-icount", "shift=2,sleep=off"]
        single = self.count > 1 or self.options.counted
        command = [
            str(qemu), *clock, "-cpu", PROCESSOR,
            "-smp", "1" if single else "2", "-m", str(self.options.memory_mib),
            "-nodefaults", "-display", "none", "-no-reboot",
            "-serial", f"file:{self.folder}/console", "-serial", "stdio",
            "-kernel", str(kernel.vmlinuz), "-initrd", str(initrd),
            "-append", KERNEL_ARGUMENTS + (" idle=poll" if self.options.awake else ""),
            "-virtfs", f"local,path={self.share},mount_tag=share,security_model=none",
        ]
        for number, end in enumerate(sockets):
            command += [
                "-netdev", f"stream,id=n{number},addr.type=fd,addr.str={end.fileno()}",
                "-device", f"virtio-net-pci,netdev=n{number},mac={self._mac(number)},"
                f"host_mtu={self.options.mtu}",
            ]
        for number, kind in enumerate(self.options.disks):
            path = self._disk(kind)
            command += [
                "-drive", f"file={path},if=none,format=raw,id=d{number},cache=unsafe",
                "-device", f"virtio-blk-pci,drive=d{number},serial={kind}",
            ]
        self.started = time.time()
        with open(self.folder / "qemu", "wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                pass_fds=[end.fileno() for end in sockets], env={**os.environ, "TMPDIR": "/tmp"},
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def runs(self):
        return self.process.poll() is None

    def died(self):
        return not self.runs() and not self._told("exit").exists()

    def panicked_early(self):
        """Of itself: not for want of time, nor ended because another one died."""
        console = self.folder / "console"
        return (not self._told("up").exists() and console.exists()
                and "Kernel panic" in console.read_text(errors="replace"))

    def result(self):
        self.reader.join()
        ended = time.time()
        up = self._told("up").stat().st_mtime if self._told("up").exists() else ended
        if self.timed_out:
            say(f"{self.machine.name}: ended after the time limit of {self.options.timeout_s} s")
            status = EXIT_TIMEOUT
        else:
            try:
                status = int(self._told("exit").read_text())
            except (OSError, ValueError):
                status = EXIT_NO_RESULT
                say(f"{self.machine.name}: the machine ended without a result")
        if status in (EXIT_TIMEOUT, EXIT_NO_RESULT):
            self._show_console()
        return Result(status, up - self.started, ended - self.started)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read(self):
        for line in self.process.stdout:
            self.sink(self.machine.name, line.decode(errors="replace"))

    def _show_console(self):
        for name, lines in (("qemu", 10), ("console", 30)):
            path = self.folder / name
            text = path.read_text(errors="replace").splitlines() if path.exists() else []
            for line in text[-lines:]:
                print(f"lab: {self.machine.name} {name}: {line}", file=sys.stderr, flush=True)

    def _settings(self):
        return {
            "LAB_HOST": self.machine.name,
            "LAB_INDEX": self.index + 1,
            "LAB_HOSTS": self.count,
            "LAB_OTHERS": " ".join(self.others),
            "LAB_DEVICES": self.options.devices,
            "LAB_MTU": self.options.mtu,
            "LAB_MEMLOCK": self.options.memlock,
            "LAB_MACS": " ".join(self._mac(n) for n in range(self.options.devices)),
            "LAB_DISKS": " ".join(self.options.disks),
            # A virtual machine's clock may be off; the digests and times of files should not be.
            "LAB_TIME": int(time.time()),
        }

    def _mac(self, number):
        return f"52:54:00:00:{number:02x}:{self.index + 1:02x}"

    def _told(self, kind):
        return self.share / ".lab" / f"{self.machine.name}.{kind}"

    def _disk(self, kind):
        path = (self.options.disk_folder or self.folder) / f"{kind}.img"
        if path.exists():
            return path
        with open(path, "wb") as file:
            file.truncate(2 << 30)
        package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}.get(kind)
        if package is None:
            raise LabError(f"no disk of kind {kind}: there are ext4 and xfs")
        mkfs = need_program(f"mkfs.{kind}", package)
        subprocess.run([str(mkfs), "-q", str(path)], stdin=subprocess.DEVNULL, check=True)
        return path
