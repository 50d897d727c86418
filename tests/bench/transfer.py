#!/usr/bin/env python3
"""rdcp beside cp, rsync's daemon, and nginx with curl: one file and one tree, both ends on this
machine over loopback, interleaved rounds, medians.

wall  client start to client exit
CPU   user and system time of client and daemon together

Every round runs each tool once, so that what else the machine does meets all of them alike. Before
each run memory is touched and freed (see common.warm_up). Every copy is compared with its source
after its run, outside the time measured. cp uses no network and checks nothing; curl checks nothing;
rsync checks a hash of the whole file (xxh128 in current versions); rdcp checks what its row says.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import common  # noqa: E402
from common import GIB, MIB, fail, say  # noqa: E402

TREE_DIRECTORIES, TREE_FILES_EACH, TREE_FILE_BYTES = 200, 100, 4096


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bin", type=Path, required=True, help="directory with rdcp and rdcpd")
    add("--size", default="4G", help="of the file, such as 4G (default) or 512M")
    add("--runs", type=int, default=5, help="rounds (default 5)")
    add("--dir", type=Path, default=Path("/dev/shm"), help="where to work (default /dev/shm)")
    add("--only", default="", help="rows whose name begins with one of these, separated by commas")
    add("--skip", choices=["file", "tree"], help="leave one part out")
    add("--no-uring", action="store_true", help="rdcp without io_uring, at both ends")
    add("--raw", type=Path, help="write every single measurement to this JSON file")
    return parser.parse_args()


class Bench:
    def __init__(self, args):
        self.args = args
        self.work = Path(tempfile.mkdtemp(prefix="rdcp-bench.", dir=args.dir))
        self.work.chmod(0o755)
        self.root = self.work / "root"
        self.source, self.target = self.root / "src", self.root / "dst"
        for directory in (self.root, self.source, self.target):
            directory.mkdir()
        self.accounting = common.Accounting()
        self.raw = []

    def start(self):
        args = self.args
        environment = dict(os.environ)
        if args.no_uring:
            environment["RDCP_NO_URING"] = "1"
        self.rdcp = common.Rdcp(args.bin, self.work, self.root, self.accounting, environment)
        self.rsync_url = common.start_rsync(self.accounting, self.work, self.root)
        self.http_url = self.start_nginx()

    def start_nginx(self):
        port = common.free_port()
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        directory = self.work / "nginx"
        directory.mkdir()
        temporary = "".join(
            f"{kind}_temp_path {directory}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = directory / "nginx.conf"
        config.write_text(
            ("user root;\n" if os.getuid() == 0 else "")
            + f"daemon off;\nworker_processes {len(os.sched_getaffinity(0))};\n"
            f"pid {directory}/pid;\nerror_log {directory}/error.log;\n"
            "events { worker_connections 256; }\n"
            "http {\naccess_log off;\nsendfile on;\nsendfile_max_chunk 2m;\ntcp_nopush on;\n"
            f"{temporary}server {{ listen 127.0.0.1:{port}; root {self.root}; }}\n}}\n"
        )
        self.accounting.start([nginx, "-c", str(config), "-e", f"{directory}/error.log"], port)
        return f"http://127.0.0.1:{port}"

    def file_rows(self, name):
        source, target = self.source / name, self.target
        rsync = ["rsync", "-aW", "--inplace"]
        rows = {
            "cp (no network)": ["cp", str(source), f"{target}/"],
            "rsync pull": [*rsync, f"{self.rsync_url}/src/{name}", f"{target}/"],
            "rsync push": [*rsync, str(source), f"{self.rsync_url}/dst/"],
            "nginx + curl": ["curl", "-sf", "-o", f"{target}/{name}", f"{self.http_url}/src/{name}"],
        }
        for hash_kind in ("blake3", "sha256", "none"):
            option = ("--hash", hash_kind)
            rows[f"rdcp pull {hash_kind}"] = self.rdcp.pull(f"src/{name}", f"{target}/", *option)
        for hash_kind in ("blake3", "sha256", "none"):
            option = ("--hash", hash_kind)
            rows[f"rdcp push {hash_kind}"] = self.rdcp.push(source, "dst/", *option)
        return rows

    def tree_rows(self, name):
        source, target = self.source / name, self.target
        rsync = ["rsync", "-aW", "--inplace"]
        return {
            "cp -a (no network)": ["cp", "-a", str(source), f"{target}/"],
            "rsync pull": [*rsync, f"{self.rsync_url}/src/{name}", f"{target}/"],
            "rsync push": [*rsync, str(source), f"{self.rsync_url}/dst/"],
            "rdcp pull -a blake3": self.rdcp.pull(f"src/{name}", f"{target}/", "-a"),
            "rdcp push -a blake3": self.rdcp.push(source, "dst/", "-a"),
        }

    def measure(self, part, name, rows, size_bytes):
        only = [word for word in self.args.only.split(",") if word]
        rows = {row: c for row, c in rows.items() if not only or row.startswith(tuple(only))}
        source, results = self.source / name, {row: [] for row in rows}
        for round_number in range(self.args.runs):
            for row, command in rows.items():
                common.empty(self.target)
                common.warm_up(size_bytes * 5 // 4 + 256 * MIB)
                before = self.accounting.cpu_s()
                status, wall_s = self.accounting.run(command, self.rdcp.environment)
                cpu_s = self.accounting.cpu_s() - before
                if status:
                    fail(f"{row}: exit status {status}: {' '.join(command)}")
                if not common.same(source, self.target / name):
                    fail(f"{row}: the copy differs from its source")
                say(f"# round {round_number + 1} {part}: {row}: {wall_s:.2f} s, CPU {cpu_s:.2f} s")
                results[row].append((wall_s, cpu_s))
                self.raw.append({"part": part, "row": row, "wall_s": wall_s, "cpu_s": cpu_s})
        common.empty(self.target)
        return {row: values for row, values in results.items() if values}

    def run(self):
        args = self.args
        print("\n".join(common.describe_machine(self.work, args.bin)))
        print(f"reactor   {self.rdcp.reactor}")
        print(f"peers     {common.first_line(['rsync', '--version'])}; "
              f"{common.first_line([shutil.which('nginx') or '/usr/sbin/nginx', '-v'])}; "
              f"{common.first_line(['curl', '--version'])}")
        print(f"method    {args.runs} interleaved rounds, medians; CPU of both ends by "
              f"{self.accounting.kind}; loopback; warm", flush=True)
        if args.skip != "file":
            size_bytes = common.parse_size(args.size)
            if common.memory_available() < 3.4 * size_bytes and common.file_system(self.work) == "tmpfs":
                fail(f"too little memory for two copies of {args.size}: say a smaller size or --dir")
            common.make_file(self.source / "file", size_bytes)
            results = self.measure("file", "file", self.file_rows("file"), size_bytes)
            print_table(f"one file of {args.size}", results, size_bytes / GIB, "CPU-s/GiB")
            (self.source / "file").unlink()
        if args.skip != "tree":
            common.make_tree(
                self.source / "tree", TREE_DIRECTORIES, TREE_FILES_EACH, TREE_FILE_BYTES
            )
            files = TREE_DIRECTORIES * TREE_FILES_EACH
            results = self.measure("tree", "tree", self.tree_rows("tree"), files * TREE_FILE_BYTES)
            title = f"a tree of {files} files of {TREE_FILE_BYTES} bytes"
            print_table(title, results, files / 1e6, "CPU us/file")
        if args.raw:
            args.raw.write_text(json.dumps(self.raw, indent=1) + "\n")

    def close(self):
        self.accounting.close()
        shutil.rmtree(self.work, ignore_errors=True)


def print_table(title, results, units, unit_name):
    """One line a row, as Markdown; ratios are to rsync in the same direction, and to nginx + curl."""

    def median(row, index):
        return statistics.median(value[index] for value in results[row]) if row in results else None

    def ratios(row, base):
        if base not in results or row == base:
            return ["", ""]
        return [f"{median(row, index) / median(base, index):.2f}" for index in (0, 1)]

    header = ["", "wall s", "min-max", unit_name]
    header += ["wall / rsync", "CPU / rsync", "wall / curl", "CPU / curl"]
    print(f"\n### {title}\n\n| " + " | ".join(header) + " |\n|---" + "|---:" * (len(header) - 1) + "|")
    for row, values in results.items():
        walls = [value[0] for value in values]
        rsync = "rsync push" if "push" in row else "rsync pull"
        cells = [row, f"{median(row, 0):.2f}", f"{min(walls):.2f}-{max(walls):.2f}"]
        cells += [f"{median(row, 1) / units:.2f}", *ratios(row, rsync)]
        cells += ratios(row, "nginx + curl")
        print("| " + " | ".join(cells) + " |")
    sys.stdout.flush()


def main():
    bench = Bench(arguments())
    common.exit_on_sigterm()
    try:
        bench.start()
        bench.run()
    finally:
        bench.close()


if __name__ == "__main__":
    main()
