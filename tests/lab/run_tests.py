"""Runs the cases of the lab: every `cases/*.sh` on every kind of machine that it names.

A case is a shell script for the guest. Its lines `# lab: key=value...` say where it runs, each value a
list whose combinations are all run:

    hosts    1 or 2                      (1) machines; with 2 the script runs in both, see $LAB_HOST
    kernels  of kernels.py               (all)
    libs     with, without               (with) libibverbs and librdmacm in the guest
    alone    no, yes                     (no) cases are run one after the other in one boot, unless
                                         they leave the machine in a state that others can't use
    disks    none, ext4, xfs             (none); a plus sign takes both: ext4+xfs
    nfs      no, yes                     (no)
    programs none, rsync+curl            (none) others than those every guest has, from this machine
    long     no, yes                     (no) runs only with --long: it takes minutes, or wants a quiet
                                         host, and so is not part of `./run test`
    clock    real, counted               (real); counted: processor times are numbers of instructions,
                                         alike on every host, and those may be judged; one machine only
    power    stays, cut                  (stays) cut: a boot of its own, and again with the same disks whenever
                                         the script has cut the power; one machine only
    limit_s  a number                    (300) seconds of the guest's clock after which it is ended

A case passes if its script exits with 0 in all its machines. A lab that can't be used is a failure.
"""

import dataclasses
import re
import tempfile
import time
from itertools import product
from pathlib import Path

import kernels
import vm
from paths import HERE, LabError, need_program

DEFAULTS = {
    "hosts": "1", "kernels": ",".join(kernels.SUITES), "libs": "with", "alone": "no",
    "disks": "none", "nfs": "no", "clock": "real", "power": "stays", "programs": "none", "long": "no",
    "limit_s": "300",
}
ALLOWED = {
    "hosts": {"1", "2"}, "kernels": set(kernels.SUITES), "libs": {"with", "without"},
    "alone": {"no", "yes"}, "disks": {"none", "ext4", "xfs", "ext4+xfs"}, "nfs": {"no", "yes"},
    "clock": {"real", "counted"}, "power": {"stays", "cut"}, "programs": {"none", "rsync+curl"},
    "long": {"no", "yes"},
}
# Guards against what hangs, as is each case's own, wide enough for a host that is busy with other things.
BOOT_LIMIT_S = 300
BOOTS_OF_A_CASE_MAX = 200


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """Cases of one place share a boot."""

    kernel: str
    hosts: str
    libs: str
    disks: str
    nfs: str
    clock: str
    power: str
    programs: str
    alone: str


def run(options, kernel, text, long):
    """Runs the cases whose name has `text`, on one kernel or on all; the exit status."""
    plan, left_out = _plan(kernel, text, long)
    if left_out:
        print(f"long cases, left out without --long: {' '.join(sorted(left_out))}", flush=True)
    if not plan:
        raise LabError(f"no case has {text!r} in its name and runs there: see tests/lab/cases")
    begun = time.monotonic()
    passed = []
    print("seconds  kernel  hosts  libs     case", flush=True)
    for place, cases in plan.items():
        passed += _boot(options, place, cases)
    seconds = time.monotonic() - begun
    print(f"{sum(passed)} of {len(passed)} passed in the lab, in {seconds:.0f} s", flush=True)
    return 0 if all(passed) else 1


def _plan(kernel, text, long):
    """The cases by place, and the names of those that are only run if `long`."""
    plan, left_out = {}, set()
    for path in sorted((HERE / "cases").glob("*.sh")):
        for told in _headers(path):
            keys = ("kernels", "hosts", "libs", "disks", "nfs", "clock", "power", "programs")
            lists = [told[key].split(",") for key in keys]
            for values in product(*lists):
                place = Place(*values, alone=path.stem if "yes" == told["alone"] or "cut" in values else "")
                cases = plan.setdefault(place, [])
                if kernel not in (None, place.kernel) or text not in path.stem or path in cases:
                    continue
                if told["long"] == "yes" and not long:
                    left_out.add(path.stem)
                else:
                    cases.append(path)
    plan = {place: cases for place, cases in plan.items() if cases}
    order = list(kernels.SUITES)
    ordered = sorted(plan.items(), key=lambda item: (order.index(item[0].kernel), item[0]))
    return dict(ordered), left_out


def _headers(path):
    lines = re.findall(r"^# lab:(.*)$", path.read_text(), re.MULTILINE)
    if not lines:
        raise LabError(f"{path} has no line `# lab:`")
    return [_header(path, line) for line in lines]


def _header(path, line):
    told = dict(DEFAULTS)
    for word in line.split():
        key, _, value = word.partition("=")
        allowed = set(value.split(",")) <= ALLOWED.get(key, set())
        if not (value.isdecimal() if key == "limit_s" else allowed):
            raise LabError(f"{path}: {word}: not understood")
        told[key] = value
    return told


def _boot(options, place, cases):
    """One boot with its cases, each a line of the table: whether each passed."""
    limits = [max(int(told["limit_s"]) for told in _headers(case)) for case in cases]
    more = () if place.programs == "none" else place.programs.split("+")
    options = dataclasses.replace(
        options, programs={**options.programs, **{name: need_program(name, name) for name in more}},
        kernel=place.kernel, rdma_libraries=place.libs == "with",
        nfs=place.nfs == "yes", counted=place.clock == "counted",
        disks=() if place.disks == "none" else tuple(place.disks.split("+")),
        timeout_s=BOOT_LIMIT_S + sum(limits),
    )
    scripts = {f"lab/cases/{case.name}": case.read_text() for case in cases}
    scripts["lab/run_cases"] = (HERE / "guest/run_cases").read_text()
    told = " ".join(f"{case.stem} {limit_s}" for case, limit_s in zip(cases, limits))
    command = f"exec sh /lab/run_cases {told}\n"
    names = ["a", "b"][: int(place.hosts)]
    machines = [vm.Machine(name, command, scripts) for name in names]
    heading = f"{place.kernel:6}  {place.hosts:5}  {place.libs:7}"
    with tempfile.TemporaryDirectory(prefix="rdcp-lab-tests-") as folder:
        share = Path(folder)
        if place.power == "cut":
            results = _run_with_cuts(machines, options, share, cases[0])
        else:
            results = vm.run(machines, options, share, lambda name, line: None)
        verdicts = []
        for case in cases:
            seconds, passed = 0.0, True
            for name in names:
                status, ms = _result(share / f"{case.stem}.{name}.result")
                seconds = max(seconds, ms / 1000)
                if status != 0:
                    passed = False
                    _show(case, name, place, status, share / f"{case.stem}.{name}.log")
            print(f"{seconds:7.1f}  {heading}  {case.stem}{'' if passed else '   FAILED'}")
            for name in names:
                _report(share / f"{case.stem}.{name}.log")
            verdicts.append(passed)
        boot_s = max(result.boot_s for result in results)
        total_s = max(result.total_s for result in results)
        ended = all(result.status == 0 for result in results)
        note = "" if ended else "   FAILED: a machine did not end well"
        print(f"{total_s:7.1f}  {heading}  = this boot, {boot_s:.1f} until it was up{note}", flush=True)
        return [*verdicts, ended]


def _run_with_cuts(machines, options, share, case):
    """Boots until the case has a result, each time with the disks as the boot before left them."""
    with tempfile.TemporaryDirectory(prefix="rdcp-lab-disks-") as disks:
        options = dataclasses.replace(options, disk_folder=Path(disks))
        for _ in range(BOOTS_OF_A_CASE_MAX):
            results = vm.run(machines, options, share, lambda name, line: None)
            if results[0].status != 0 or (share / f"{case.stem}.{machines[0].name}.result").exists():
                break
        return results


def _result(path):
    """Exit status (None if it never ended) and milliseconds of a case."""
    try:
        status, ms = path.read_text().split()
        return int(status), int(ms)
    except (OSError, ValueError):
        return None, 0


def _report(log):
    """What a case has measured, which is worth to be seen though it passed."""
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if line.startswith("= "):
            print(f"         {line[2:]}")


def _show(case, name, place, status, log):
    ended = "did not end" if status is None else f"ended with {status}"
    print(f"\n{case.stem} {ended} in host {name} on kernel {place.kernel}; what it printed:")
    text = log.read_text(errors="replace") if log.exists() else "(nothing)\n"
    for line in text.splitlines()[-60:]:
        print(f"    {line}")
    print(flush=True)
