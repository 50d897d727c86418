"""Where the lab keeps things, how it speaks, and how it fails. Knows nothing of VMs.

All that the lab writes is below one folder of the build directory; removing it is always safe.
"""

import fcntl
import os
import sys
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").resolve()
LAB = TARGET / "lab"

# Exit statuses of the lab itself, beside those of the commands that run in it.
EXIT_TIMEOUT = 124
EXIT_BROKEN = 125
EXIT_NO_RESULT = 126


class LabError(Exception):
    """The lab can't be used; the text says why and what to do. Never a reason to skip a test."""


def say(text):
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def cache_lock():
    """Several runs may share the cache, but only one may fill it at a time."""
    LAB.mkdir(parents=True, exist_ok=True)
    with open(LAB / "lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_program(name, roots=()):
    """The file of a program, from unpacked packages first; None if there is none."""
    if "/" in name:
        return Path(name) if Path(name).is_file() else None
    for root in (*roots, Path("/")):
        for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
            path = root / folder / name
            if path.is_file():
                return path
    return None


def need_program(name, package, roots=()):
    path = find_program(name, roots)
    if path is None:
        raise LabError(f"{name} is missing: install the Debian package {package}")
    return path
