#!/usr/bin/env python3
"""Copies for as long as asked, while both programs are killed, restarted, stopped and interrupted.

Each round makes or changes a tree, pulls or pushes it with options drawn by chance, and lets one fault come
at a moment drawn by chance. Afterwards the copy has to be what the source is, by SHA-256, with nothing
hidden left behind; the daemon's memory and descriptors are looked at. A round can be repeated from its
seed, though the moment of a fault never is quite the same.

  fault             what has to follow
  client killed     the same command again ends well
  client interrupted  it ends with 130 (or had ended), and the same command again ends well
  daemon killed     it is started again, and the command that runs ends well by itself; if the daemon had not
                    taken the request yet, it ends with 3, and the same command again ends well
  daemon restarted  the same, after SIGTERM
  daemon stopped    SIGSTOP for a moment: the command ends well

With --restarts, one big file is pulled and then pushed at a bounded rate instead, while the daemon is ended so
many times, by SIGKILL and by SIGTERM by turns, and started again: both commands end well by themselves, with
one summary, and what was fetched again is told.

`./run soak` builds what it needs. The exit status is 1 if anything was wrong; what was copied is kept then.
"""

import argparse
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20
FAULTS = ["none", "client killed", "client interrupted", "daemon killed", "daemon restarted", "daemon stopped"]
KILLS = ["client killed", "daemon killed"]
DAEMON_ENDS = ("daemon killed", "daemon restarted")
# What an interruption may cost, beyond what had come when it was last told: the windows that are out and
# what is recorded at once.
LOST_MAX = 2 * 64 * MIB + 64 * MIB
# The same for each time that a daemon was ended: a client that receives knows itself what it has, and loses what
# was under way.
RESTART_LOST_MAX = {"pull": 64 * MIB, "push": LOST_MAX}
# A command that sends is told of a window at a time, of which a few are out.
TOLD_LATE = 3 * 64 * MIB
# Of a client that was killed, or interrupted before and after it could take note of it, or was done by then.
INTERRUPTED = (-signal.SIGKILL, -signal.SIGINT, 130, 0)
# A daemon that is idle has given memory back.
DAEMON_RSS_MAX = 256 * MIB
COMMAND_LIMIT_S = 300


class Wrong(Exception):
    """A copy, or a program, is not what it should be."""


class Daemon:
    def __init__(self, programs, top, quiet_ring, drain_s=None):
        self.programs, self.top, self.quiet_ring = programs, top, quiet_ring
        self.more = []
        if drain_s is not None:
            config = top / "rdcpd.toml"
            config.write_text(f"drain_seconds = {drain_s}\n")
            self.more = ["--config", str(config)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = None
        self.starts = 0
        self.least_fds = None
        self.start()

    def start(self):
        self.starts += 1
        env = dict(os.environ)
        if self.quiet_ring:
            env["RDCP_NO_URING"] = "1"
        command = [
            str(self.programs / "rdcpd"), "--export", f"data={self.top / 'remote'}:rw",
            "--listen", f"127.0.0.1:{self.port}", "--state-dir", str(self.top / "state"), "--auth", "none",
            *self.more,
        ]
        log = open(self.top / "daemon.log", "ab")
        deadline = time.monotonic() + 30
        while True:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
            while time.monotonic() < deadline and self.process.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", self.port), 1).close()
                    return
                except OSError:
                    time.sleep(0.02)
            if time.monotonic() > deadline:
                raise Wrong("the daemon does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong("the daemon does not end after SIGTERM") from None
        if status != 0:
            raise Wrong(f"the daemon ended with {status}")

    def check(self):
        """Looked at when nothing runs."""
        if self.process.poll() is not None:
            raise Wrong(f"the daemon has ended with {self.process.returncode}")
        proc = Path(f"/proc/{self.process.pid}")
        deadline = time.monotonic() + 30
        while True:
            fds = len(list((proc / "fd").iterdir()))
            status = dict(
                line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
            )
            rss, pinned = (int(status[name].split()[0]) << 10 for name in ("VmRSS", "VmPin"))
            self.least_fds = min(fds, self.least_fds or fds)
            if fds <= self.least_fds + 4 and rss < DAEMON_RSS_MAX and pinned == 0:
                return rss
            if time.monotonic() > deadline:
                raise Wrong(
                    f"an idle daemon has {fds} descriptors ({self.least_fds} at least), "
                    f"{rss >> 20} MiB, {pinned >> 20} MiB of them pinned"
                )
            time.sleep(0.1)


# ---- trees --------------------------------------------------------------------------------------------


def big_file(path, dice, size, holes):
    # Repeating blocks are quick to make and differ from chunk to chunk.
    block = dice.randbytes(MIB)
    with open(path, "wb") as file:
        at = 0
        while at < size:
            if holes and dice.random() < 0.1:
                at += dice.randrange(1, 4 * MIB)
                continue
            file.seek(at)
            part = block[: min(MIB - 8, size - at)]
            file.write(at.to_bytes(8, "little") + part)
            at += len(part) + 8
        file.truncate(size)


def change(tree, dice, big_mib, holes):
    """Makes the tree, or another version of it."""
    tree.mkdir(exist_ok=True)
    for number in range(dice.randrange(1, 4)):
        path = tree / f"big{number}"
        if path.is_file() and dice.random() < 0.6:
            size = path.stat().st_size
            with open(path, "r+b") as file:
                for _ in range(dice.randrange(1, 5)):
                    file.seek(dice.randrange(max(size, 1)))
                    file.write(dice.randbytes(dice.randrange(1, 2 * MIB)))
                if dice.random() < 0.3:
                    file.truncate(dice.randrange(size * 2 + 1))
        else:
            path.unlink(missing_ok=True)
            big_file(path, dice, dice.randrange(big_mib * MIB // 4, big_mib * MIB), holes)
    for folder in range(dice.randrange(1, 5)):
        below = tree / f"folder{folder}"
        below.mkdir(exist_ok=True)
        for number in range(dice.randrange(0, 300)):
            if dice.random() < 0.5:
                (below / f"small{number}").write_bytes(dice.randbytes(dice.randrange(0, 20_000)))
        for path in list(below.iterdir()):
            if dice.random() < 0.05 and not path.is_dir():
                path.unlink()
    link = tree / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(f"big{dice.randrange(9)}")


def sums(tree):
    found = {}
    for folder, folders, files in os.walk(tree):
        for name in folders:
            found[os.path.relpath(os.path.join(folder, name), tree)] = "directory"
        for name in files:
            path = os.path.join(folder, name)
            below = os.path.relpath(path, tree)
            if os.path.islink(path):
                found[below] = "-> " + os.readlink(path)
                continue
            with open(path, "rb") as file:
                found[below] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def compare(source, copy, exact):
    wanted, got = sums(source), sums(copy)
    hidden = [name for name in got if os.path.basename(name).startswith(".rdcp-")]
    if hidden:
        raise Wrong(f"left behind: {', '.join(hidden[:5])}")
    for name, value in wanted.items():
        if got.get(name) != value:
            raise Wrong(f"{name} is {got.get(name, 'missing')}, not {value}")
    more = set(got) - set(wanted)
    if exact and more:
        raise Wrong(f"not in the source: {', '.join(sorted(more)[:5])}")


# ---- a round ------------------------------------------------------------------------------------------


def options_by_chance(dice):
    words = ["-a", "--timeout", "60s"]
    words += dice.choice([[], [], ["--hash", "sha256"]])
    words += dice.choice([[], [], ["--chunk", dice.choice(["64K", "256K", "4M"])]])
    words += dice.choice([[], [], ["--streams", str(dice.randrange(1, 5))]])
    words += dice.choice([[], [], [], ["-c"], ["-W"], ["--inplace"], ["--no-resume"], ["--no-fsync"]])
    words += dice.choice([[], ["--delete"]])
    return words


def equal(one, other):
    """By SHA-256, without the names."""
    sums = []
    for path in (one, other):
        with open(path, "rb") as file:
            sums.append(hashlib.file_digest(file, "sha256").hexdigest())
    return sums[0] == sums[1]


class Soak:
    def __init__(self, told, top):
        self.told, self.top = told, top
        self.counts = {}
        self.reconnects = self.resumed = self.reused = self.refetched_max = self.rss_max = 0
        (top / "remote").mkdir()
        (top / "local").mkdir()
        # So that a daemon that is to end cuts what runs.
        self.daemon = Daemon(told.bin, top, quiet_ring=False, drain_s=1 if told.restarts else None)
        self.lasts_s = 1.0

    def round(self, number):
        dice = random.Random(self.told.seed * 1_000_003 + number)
        ring = dice.random() < 0.5
        if ring != (not self.daemon.quiet_ring):
            self.daemon.stop()
            self.daemon.quiet_ring, self.daemon.least_fds = not ring, None
            self.daemon.start()
        way = dice.choice(["pull", "push"])
        fault = dice.choice(KILLS if self.told.kills else FAULTS)
        if self.told.kills:
            fault, way = KILLS[number % 2], ["pull", "push"][number // 2 % 2]
        words = options_by_chance(dice) if not self.told.kills else ["-a", "--timeout", "60s"]
        words += ["--bwlimit", f"{dice.randrange(60, 300)}M"] if self.told.kills else []
        ends = {"pull": ("remote", "local"), "push": ("local", "remote")}[way]
        source, copy = (self.top / end / f"tree{way}" for end in ends)
        if self.told.kills:
            shutil.rmtree(source, ignore_errors=True)
            shutil.rmtree(copy, ignore_errors=True)
        elif dice.random() < 0.3:
            shutil.rmtree(copy, ignore_errors=True)
        change(source, dice, self.told.big, holes=not self.told.kills)
        url = f"rdcp://127.0.0.1:{self.daemon.port}/data/"
        arguments = {
            "pull": [f"{url}{source.name}", str(self.top / "local/")],
            "push": [str(source), url],
        }[way]
        command = [str(self.told.bin / "rdcp"), way, "--json", "--accept-new", *words, *arguments]
        env = {**os.environ, "HOME": str(self.top), "XDG_CONFIG_HOME": str(self.top / "config")}
        if not ring:
            env["RDCP_NO_URING"] = "1"
        what = f"round {number}: {fault}; {' '.join(command[1:])}; {'io_uring' if ring else 'epoll'}"
        if self.told.verbose:
            print(what, flush=True)
        try:
            source_bytes = sum(path.lstat().st_size for path in source.rglob("*") if path.is_file())
            self.run(command, env, fault, dice, source_bytes)
            compare(source, copy, "--delete" in words or self.told.kills)
            self.rss_max = max(self.rss_max, self.daemon.check())
        except Wrong as wrong:
            raise Wrong(f"{what}\n{wrong}") from None
        self.counts[fault] = self.counts.get(fault, 0) + 1

    def restarts(self, way):
        """One big file, and a daemon that does not live long."""
        dice = random.Random(f"{self.told.seed} {way}")
        source, copy = (self.top / end / "big" for end in {
            "pull": ("remote", "local"), "push": ("local", "remote"),
        }[way])
        copy.unlink(missing_ok=True)
        size = self.told.big * MIB
        big_file(source, dice, size, holes=False)
        url = f"rdcp://127.0.0.1:{self.daemon.port}/data/"
        arguments = {"pull": [f"{url}big", str(self.top / "local/")], "push": [str(source), url]}[way]
        command = [
            str(self.told.bin / "rdcp"), way, "--json", "--accept-new", "--timeout", "60s",
            "--bwlimit", self.told.bwlimit, *arguments,
        ]
        env = {**os.environ, "HOME": str(self.top), "XDG_CONFIG_HOME": str(self.top / "config")}
        begun = time.monotonic()
        said = open(self.top / "said", "w+b")
        client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env)
        ended = 0
        while ended < self.told.restarts:
            # At a share of the bytes drawn by chance from each of as many equal parts, so that all of them come
            # while it runs.
            share = (ended + dice.uniform(0.1, 0.9)) / self.told.restarts
            while client.poll() is None and not self.came_to(share * (size - TOLD_LATE), ended):
                time.sleep(0.05)
            if client.poll() is not None:
                raise Wrong(f"it ended after {ended} of {self.told.restarts} restarts:\n{tail(said)}")
            # The last one is no SIGTERM: the second that it leaves may be all that the copy needs.
            ended += 1
            self.happens(["daemon killed", "daemon restarted"][(self.told.restarts - ended) % 2], client, dice)
        status = self.wait(client, said)
        lines = self.lines(said)
        summary = self.summary(status, lines, said)
        told = {state: 0 for state in ("lost", "connected")}
        for line in lines:
            if line.get("type") == "reconnect":
                told[line["state"]] += 1
        if set(told.values()) != {ended} or summary["reconnects"] != ended:
            raise Wrong(f"{ended} restarts, but {told} told: {summary}")
        if (summary["files"], summary["bytes"], summary["failed"]) != (1, size, 0):
            raise Wrong(f"not one file of {size} bytes: {summary}")
        if not equal(source, copy):
            raise Wrong(f"the copy differs: {copy}")
        if left := [name for name in os.listdir(copy.parent) if name.startswith(".rdcp-")]:
            raise Wrong(f"left behind: {', '.join(left)}")
        # Here bytes that came twice count twice.
        again = sum(summary["bytes_by_transport"].values()) - size
        if not 0 <= again <= ended * RESTART_LOST_MAX[way]:
            raise Wrong(f"{again} bytes were copied again in {ended} restarts: {summary}")
        self.rss_max = max(self.rss_max, self.daemon.check())
        print(f"{way} of {self.told.big} MiB at {self.told.bwlimit}B/s: {ended} restarts, "
              f"{time.monotonic() - begun:.0f} s with the comparison, {again / MIB:.1f} MiB copied again, "
              f"{again / MIB / max(ended, 1):.1f} MiB a restart", flush=True)
        for path in (source, copy):
            path.unlink()

    def came_to(self, bytes_done, reconnects):
        """Whether the command that runs told so many of both."""
        # Opened anew: the place in `said` is where the command writes.
        said = (self.top / "said").read_bytes()
        done = re.findall(rb'"bytes_done":(\d+)', said[-8192:])
        return int(done[-1] if done else 0) >= bytes_done and said.count(b'"state":"connected"') == reconnects

    def run(self, command, env, fault, dice, source_bytes):
        begun = time.monotonic()
        said = open(self.top / "said", "w+b")
        client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env)
        if fault != "none":
            try:
                client.wait(dice.uniform(0, 1.1 * self.lasts_s))
            except subprocess.TimeoutExpired:
                pass
        self.happens(fault, client, dice)
        status = self.wait(client, said)
        lines = self.lines(said)
        ended_early = fault in ("client killed", "client interrupted") and status in INTERRUPTED
        if ended_early or (fault in DAEMON_ENDS and not_taken(status, lines)):
            if status != 0:
                moved = max((line.get("bytes_moved", 0) for line in lines), default=0)
                again = open(self.top / "said", "w+b")
                client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=again, stderr=again, env=env)
                status = self.wait(client, again)
                lines = self.lines(again)
                summary = self.summary(status, lines, again)
                if self.told.kills:
                    # What the first one published the second one finds there.
                    kept = summary["bytes_resumed"] + source_bytes - summary["bytes"]
                    self.refetched_max = max(self.refetched_max, moved - kept)
                    if moved - kept > LOST_MAX:
                        raise Wrong(f"{moved} bytes had come, and only {kept} count: {summary}")
        summary = self.summary(status, lines, said)
        self.reconnects += summary["reconnects"]
        self.resumed += summary["bytes_resumed"]
        self.reused += summary["bytes_reused"]
        if fault == "none":
            self.lasts_s = 0.7 * self.lasts_s + 0.3 * (time.monotonic() - begun)

    def happens(self, fault, client, dice):
        if fault == "client killed":
            client.kill()
        elif fault == "client interrupted":
            client.send_signal(signal.SIGINT)
        elif fault == "daemon killed":
            self.daemon.kill()
            time.sleep(dice.uniform(0, 0.5))
            self.daemon.least_fds = None
            self.daemon.start()
        elif fault == "daemon restarted":
            self.daemon.stop()
            self.daemon.least_fds = None
            self.daemon.start()
        elif fault == "daemon stopped":
            self.daemon.process.send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0, 2))
            self.daemon.process.send_signal(signal.SIGCONT)

    @staticmethod
    def wait(client, said):
        try:
            return client.wait(COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
            said.seek(0)
            raise Wrong(f"it does not end:\n{tail(said)}") from None

    @staticmethod
    def lines(said):
        said.seek(0)
        found = []
        for line in said.read().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    @staticmethod
    def summary(status, lines, said):
        summaries = [line for line in lines if line.get("type") == "summary"]
        if status != 0 or len(summaries) != 1:
            raise Wrong(f"exit status {status}, {len(summaries)} summaries:\n{tail(said)}")
        return summaries[0]


def not_taken(status, lines):
    """Whether there was nothing yet that a command could go on with by itself: the daemon was gone, or about to go."""
    found = [line for line in lines if line.get("type") in ("file", "reconnect", "progress")]
    return status in (3, 14) and not found and any(line.get("retryable") for line in lines)


def tail(said):
    said.seek(0)
    return b"\n".join(said.read().splitlines()[-8:]).decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("minutes", nargs="?", type=float, default=5, help="how long (default 5)")
    add("--bin", type=Path, required=True, help="folder with rdcp and rdcpd")
    add("--seed", type=int, default=None, help="of the first round (default: by the clock)")
    add("--kills", type=int, default=0, metavar="N",
        help="instead: N rounds in which client and daemon are killed by turns, pulls and pushes")
    add("--restarts", type=int, default=0, metavar="N",
        help="instead: a file of --big MiB each way, while the daemon is ended and started again N times")
    add("--bwlimit", default="64M", metavar="RATE", help="of the copies of --restarts (default 64M)")
    add("--big", type=int, default=48, metavar="MIB", help="size of the largest files (default 48)")
    add("--dir", type=Path, default=None, help="where trees are made (default: the temporary directory)")
    add("-v", "--verbose", action="store_true", help="name each round")
    told = parser.parse_args()
    if told.restarts and told.big * MIB < 2 * TOLD_LATE:
        parser.error(f"--restarts needs a --big of {2 * TOLD_LATE // MIB} at least")
    told.bin = told.bin.resolve()
    told.seed = int(time.time()) if told.seed is None else told.seed
    top = Path(tempfile.mkdtemp(prefix="rdcp-soak.", dir=told.dir))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soak, rounds, wrong = None, 0, None
    begun = time.monotonic()
    try:
        soak = Soak(told, top)
        if told.restarts:
            for way in ("pull", "push"):
                soak.restarts(way)
                rounds += 1
        else:
            while (rounds < told.kills) if told.kills else (time.monotonic() - begun < told.minutes * 60):
                soak.round(rounds)
                rounds += 1
    except Wrong as found:
        wrong = found
    finally:
        if soak and soak.daemon.process.poll() is None:
            soak.daemon.kill()
    if soak:
        print(f"{rounds} rounds in {time.monotonic() - begun:.0f} s, seed {told.seed}: "
              + ", ".join(f"{count} {fault}" for fault, count in sorted(soak.counts.items())))
        print(f"daemon started {soak.daemon.starts} times, idle with {soak.rss_max >> 20} MiB at most; "
              f"{soak.reconnects} reconnects, {soak.resumed >> 20} MiB resumed, {soak.reused >> 20} MiB reused")
        if told.kills:
            print(f"fetched again at most {max(0, soak.refetched_max) >> 20} MiB")
    if wrong:
        print(f"WRONG: {wrong}\nkept: {top}", file=sys.stderr)
        return 1
    shutil.rmtree(top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
