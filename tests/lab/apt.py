"""Debian packages, fetched and unpacked into the build folder; the machine itself is not changed.

apt does the work, so signatures and checksums are verified as for any installation. `Suite` has an
apt state of its own, for a suite that the machine's sources need not name; `download` uses the
machine's own sources.
"""

import re
import shutil
import subprocess

from paths import LAB, LabError

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
# Closure over real dependencies: no recommendations, and no alternatives by virtual name.
CLOSURE = ["depends", "--recurse", "--important"]


def run(command, **options):
    """Standard output of a command that must succeed."""
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, check=False, **options,
    )
    if result.returncode != 0:
        tail = "\n".join((result.stderr or result.stdout).splitlines()[-8:])
        raise LabError(f"{command[0]} {command[-1]} failed with {result.returncode}:\n{tail}")
    return result.stdout


class Suite:
    """One Debian suite for amd64 with its own lists, in a folder of the lab."""

    def __init__(self, name):
        self.name = name
        root = LAB / "apt" / name
        (root / "lists/partial").mkdir(parents=True, exist_ok=True)
        (root / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
        (root / "empty").mkdir(exist_ok=True)
        (root / "status").touch()
        (root / "sources.list").write_text(
            f"deb [arch=amd64 signed-by={KEYRING}] {mirror()} {name} main\n"
        )
        self.options = []
        for key, value in {
            "Dir::State": root,
            "Dir::State::lists": root / "lists",
            "Dir::State::status": root / "status",
            "Dir::Cache": root / "cache",
            "Dir::Etc::sourcelist": root / "sources.list",
            "Dir::Etc::sourceparts": root / "empty",
            "Dir::Etc::preferences": root / "none",
            "Dir::Etc::preferencesparts": root / "empty",
            "APT::Architecture": "amd64",
            "APT::Architectures": "amd64",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            # The folder may be one that apt's own user can't enter.
            "APT::Sandbox::User": "root",
        }.items():
            self.options += ["-o", f"{key}={value}"]

    def update(self):
        run(["apt-get", *self.options, "-qq", "--error-on=any", "update"])

    def closure(self, package, pattern):
        """The package and what it needs, as far as the names match the pattern."""
        output = run(["apt-cache", *self.options, *CLOSURE, package])
        return [name for name in _names(output) if re.match(pattern, name)]

    def download(self, packages, folder):
        run(["apt-get", *self.options, "-qq", "download", *packages], cwd=folder)


def mirror():
    """The machine's own Debian mirror, or Debian's if the machine is no Debian."""
    format_ = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    for line in run(["apt-get", "indextargets", "--format", format_]).splitlines():
        uri, _, component = line.split(" ")[:3]
        if component == "main" and uri.rstrip("/").endswith("/debian"):
            return uri.rstrip("/")
    return DEFAULT_MIRROR


def unpacked(packages, libraries_too):
    """A folder with these packages of the machine's own sources unpacked, from the cache if it is
    there. With `libraries_too`, what they need of libraries that are not installed comes along."""
    folder = LAB / "packages" / "+".join(packages)
    if folder.is_dir():
        return folder
    names = list(packages)
    if libraries_too:
        output = run(["apt-cache", *CLOSURE, *packages])
        names += [n for n in _names(output) if n.startswith("lib") and not _installed(n)]
    work = _fresh(folder.with_name(folder.name + ".new"))
    debs = _fresh(folder.with_name(folder.name + ".debs"))
    run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *sorted(set(names))], cwd=debs)
    for deb in debs.glob("*.deb"):
        unpack(deb, work)
    shutil.rmtree(debs)
    work.rename(folder)
    return folder


def unpack(deb, folder):
    run(["dpkg-deb", "--extract", str(deb), str(folder)])


def _names(closure):
    # Packages stand at the start of a line, their dependencies are indented, virtual ones in <>.
    return [line.split(":")[0] for line in closure.splitlines() if re.match(r"[a-z0-9]", line)]


def _installed(package):
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", package]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.startswith("ii")


def _fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
