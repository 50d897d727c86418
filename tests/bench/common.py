"""What the benches share: the machine in words, CPU accounting of both ends, a daemon, sampling.

Only Python's standard library; Linux only.
"""

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
UNITS = {"K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}


def parse_size(text):
    """4G, 512M, 65536 -> bytes."""
    unit = text[-1:].upper()
    return int(text[:-1]) * UNITS[unit] if unit in UNITS else int(text)


def say(text):
    print(text, file=sys.stderr, flush=True)


def fail(text):
    say(f"bench: {text}")
    sys.exit(2)


def exit_on_sigterm():
    """So that daemons are ended and files removed then too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


# ---- the machine --------------------------------------------------------------------------------


def first_line(command):
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "not found"
    return ((out.stdout or out.stderr).splitlines() or ["?"])[0].strip()


def read(path, default="?"):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return default


def memory_available():
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def file_system(path):
    return first_line(["stat", "-f", "-c", "%T", str(path)])


def describe_machine(directory, binaries):
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in read("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    virtual = first_line(["systemd-detect-virt"])
    congestion = read("/proc/sys/net/ipv4/tcp_congestion_control")
    return [
        f"date      {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
        f"machine   {len(os.sched_getaffinity(0))} cores, {cpu}, {memory:.0f} GiB, virtualisation: {virtual}",
        f"kernel    {platform.release()}, TCP congestion control {congestion}",
        f"directory {directory} ({file_system(directory)})",
        f"rdcp      {first_line([str(binaries / 'rdcp'), '--version'])}",
    ]


# ---- CPU time of client and daemon together -----------------------------------------------------


class Accounting:
    """CPU seconds of everything that ran inside: one cgroup where one can be made (v2, else v1),
    else the process times of the client and of every daemon. Kernel threads that work for a process
    (io_uring's workers) count either way; interrupts only where the kernel charges them to it."""

    def __init__(self):
        self.daemons = []
        self.clients_cpu_s = 0.0
        self.group, self.kind = None, "process times"
        for base, kind in (
            ("/sys/fs/cgroup", "cgroup v2"),
            ("/sys/fs/cgroup/unified", "cgroup v2"),
            ("/sys/fs/cgroup/cpuacct", "cgroup v1"),
        ):
            meter = "cpu.stat" if kind == "cgroup v2" else "cpuacct.usage"
            group = Path(base) / f"rdcp-bench.{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            if (group / meter).exists() and self._can_enter(group):
                self.group, self.kind, self.meter = group, kind, group / meter
                break
            group.rmdir()

    @staticmethod
    def _can_enter(group):
        def enter():
            (group / "cgroup.procs").write_text("0")

        try:
            return subprocess.run(["true"], preexec_fn=enter, check=False).returncode == 0
        except (OSError, subprocess.SubprocessError):
            return False

    def enter(self):
        """To be called in a child between fork and exec."""
        if self.group:
            (self.group / "cgroup.procs").write_text("0")

    def cpu_s(self):
        if self.kind == "cgroup v2":
            return int(self.meter.read_text().split()[1]) / 1e6
        if self.kind == "cgroup v1":
            return int(self.meter.read_text()) / 1e9
        return self.clients_cpu_s + sum(tree_cpu_s(daemon.pid) for daemon in self.daemons)

    def run(self, command, environment=None, output=subprocess.DEVNULL):
        """Runs a client to its end; gives (exit status, wall seconds)."""
        start = time.monotonic()
        client = subprocess.Popen(
            command,
            preexec_fn=self.enter,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            env=environment,
        )
        errors = client.stderr.read()
        _, status, usage = os.wait4(client.pid, 0)
        wall_s = time.monotonic() - start
        client.returncode = os.waitstatus_to_exitcode(status)
        self.clients_cpu_s += usage.ru_utime + usage.ru_stime
        if client.returncode:
            say(errors.decode(errors="replace").strip()[-2000:])
        return client.returncode, wall_s

    def start(self, command, port=None, environment=None, log=subprocess.DEVNULL):
        """Starts a daemon; waits until it listens on `port`, if given."""
        daemon = subprocess.Popen(
            command,
            preexec_fn=self.enter,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        self.daemons.append(daemon)
        if port:
            wait_for(daemon, lambda: connects(port), command[0])
        return daemon

    def close(self):
        for daemon in reversed(self.daemons):
            stop(daemon)
        if self.group:
            for _ in range(50):
                try:
                    self.group.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


def tree_cpu_s(pid):
    """CPU seconds of a process, of the children it has waited for, and of its living descendants."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0.0
    own = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(tree_cpu_s(int(child)) for child in children)


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
        return True
    except OSError:
        return False


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(daemon, is_up, name):
    for _ in range(200):
        if is_up():
            return
        if daemon.poll() is not None:
            break
        time.sleep(0.05)
    fail(f"{name} did not start")


def stop(daemon):
    """Ends a daemon that this script started, with its children (they share its session)."""
    if daemon.poll() is None:
        os.killpg(daemon.pid, signal.SIGTERM)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


# ---- rdcp ---------------------------------------------------------------------------------------


class Rdcp:
    """A daemon that serves `root`, writable, as the export `bench`, and the client's command line."""

    def __init__(self, binaries, work, root, accounting, environment=None, options=()):
        self.environment = dict(
            environment or os.environ, XDG_CONFIG_HOME=str(work / "config"), HOME=str(work)
        )
        self.client = [str(binaries / "rdcp")]
        self.log = work / "rdcpd.log"
        command = [str(binaries / "rdcpd"), "--listen", "127.0.0.1:0", "--log-format", "json"]
        command += ["--state-dir", str(work / "state"), "--export", f"bench={root}:rw", *options]
        with open(self.log, "wb") as log:
            self.daemon = accounting.start(command, environment=self.environment, log=log)
        wait_for(self.daemon, lambda: self._value("listening", "address"), "rdcpd")
        self.address = self._value("listening", "address")
        self.reactor = self._value("data plane", "reactor")

    def _value(self, message, key):
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("message") == message:
                return entry.get(key)
        return None

    def url(self, path):
        return f"rdcp://{self.address}/bench/{path}"

    def pull(self, path, destination, *options):
        return self.client + ["pull", "--accept-new", *options, self.url(path), str(destination)]

    def push(self, source, path, *options):
        return self.client + ["push", "--accept-new", *options, str(source), self.url(path)]


# ---- files --------------------------------------------------------------------------------------


def start_rsync(accounting, work, root):
    """rsync's daemon on loopback, which serves `root`, writable, as the module of this URL."""
    port = free_port()
    config = work / "rsyncd.conf"
    config.write_text(
        f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
        f"[bench]\npath = {root}\nread only = no\n"
    )
    command = ["rsync", "--daemon", "--no-detach", f"--config={config}", "--address=127.0.0.1"]
    accounting.start([*command, f"--port={port}"], port)
    return f"rsync://127.0.0.1:{port}/bench"


def make_file(path, size_bytes):
    with open(path, "wb") as file:
        left = size_bytes
        while left:
            piece = os.urandom(min(left, MIB))
            file.write(piece)
            left -= len(piece)


def make_tree(root, directories, files_each, file_bytes):
    for d in range(directories):
        directory = root / f"d{d:04}"
        directory.mkdir(parents=True)
        for f in range(files_each):
            content = os.urandom(file_bytes)
            fd = os.open(directory / f"f{f:04}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(fd, content)
            os.close(fd)


def empty(directory):
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def same(source, copy):
    command = ["diff", "-rq", "--no-dereference"] if source.is_dir() else ["cmp", "-s"]
    done = subprocess.run([*command, str(source), str(copy)], stdout=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def warm_up(size_bytes):
    """Touches and frees memory, in a child so that it is really given back. On virtual machines
    that hand free memory to their host, the first touch costs seconds per GiB, and whoever writes
    first would be charged with it."""
    size_bytes = min(size_bytes, memory_available() * 3 // 4)
    # 0x8000 is MAP_POPULATE.
    code = f"import mmap; mmap.mmap(-1, {size_bytes}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000)"
    subprocess.run([sys.executable, "-c", code], check=False)


# ---- sampling -----------------------------------------------------------------------------------


class Sampler:
    """The peak of anonymous resident memory and of threads of some processes. File pages are not
    counted: they are the kernel's cache, and shared."""

    def __init__(self, pids, period_s=0.02):
        self.peak = {pid: {"anon_bytes": 0, "threads": 0} for pid in pids}
        self.period_s = period_s
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self):
        while not self.ended.is_set():
            for pid, peak in self.peak.items():
                now = status(pid)
                for key in peak:
                    peak[key] = max(peak[key], now[key])
            self.ended.wait(self.period_s)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def status(pid):
    found = {"RssAnon": "0", "Threads": "0"}
    for line in read(f"/proc/{pid}/status", "").splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = value.split()[0]
    return {"anon_bytes": int(found["RssAnon"]) << 10, "threads": int(found["Threads"])}
