#!/usr/bin/env python3
"""Measure the QEMU patch series: exactness, shifts, idleness, retunes, weights, overhead.

A storage daemon exports throttled null devices over NBD on a unix socket, and
fio loads them. What fio logs, one line a request, is priced here from the
table in reference form; nothing is computed by the code under test.

    bench_qemu.py [--patched DIR] [--stock DIR] [--out FILE] [--quick] [NAME...]
    bench_qemu.py --table FILE [--readme README]

A DIR has a qemu-storage-daemon; by default it is what qemu-patches/build makes
from Debian's source. The result is one JSON file; --table prints it as the
tables of qemu-patches/README.md, or puts them there. With names, FILE keeps its
results of the others.

Terms, the same in every figure:
- cost: sum over requests of their price by the curve, 4 KiB read = 1.
- rate in a window: the cost passed in it over its length. The cost of a
  request is spread evenly over the time until the next one passes, since that
  is what the next one waits for. Windows are the full seconds after the first,
up to a second before the end, when fio stops asking.
"""

import argparse
import bisect
import contextlib
import json
import math
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

KIB = 1024
# The published curve: reference size in KiB, cost in 4 KiB reads.
CURVE = [
    (4 * KIB, 1.0),
    (8 * KIB, 1.6),
    (16 * KIB, 2.7),
    (32 * KIB, 5.0),
    (64 * KIB, 10.0),
    (128 * KIB, 19.5),
    (256 * KIB, 39.0),
    (512 * KIB, 76.0),
    (1024 * KIB, 150.0),
]
# Curves of no device, one a direction, with points off the powers of two.
OWN_READ = [(1000, 0.7), (5000, 0.9), (50000, 7.25), (300000, 31.0), (2000000, 400.0)]
OWN_WRITE = [(512, 2.0), (65536, 11.0), (1048576, 333.3)]
WEIGHTS = [1000, 800, 600, 400]
# IOPS of four groups with these weights, as published for two kernel controllers.
PUBLISHED_WEIGHTS = {
    "tpps, run 1": [30220, 28261, 26333, 20152],
    "tpps, run 2": [17292, 15221, 12080, 7995],
    "cfq": [16478, 13015, 9300, 5806],
}
DISK_BYTES = 8 << 30


def price(curve, size):
    """Return the cost of a request of size bytes by a list of (size, cost)."""
    sizes = [point[0] for point in curve]
    if size <= sizes[0] or len(curve) == 1:
        return curve[0][1]
    i = min(bisect.bisect_right(sizes, size) - 1, len(curve) - 2)
    (s0, c0), (s1, c1) = curve[i], curve[i + 1]
    return (c0 * (s1 - size) + c1 * (size - s0)) / (s1 - s0)


class Qmp:
    """A QMP connection that is just enough to set and read things."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.sock.connect(path)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self.file = self.sock.makefile("rwb")
        json.loads(self.file.readline())
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        names = {key.replace("_", "-"): value for key, value in arguments.items()}
        request = {"execute": command, "arguments": names}
        self.file.write(json.dumps(request).encode() + b"\n")
        self.file.flush()
        while True:
            reply = json.loads(self.file.readline())
            if "error" in reply:
                raise RuntimeError(f"{command}: {reply['error']['desc']}")
            if "return" in reply:
                return reply["return"]


def points(curve):
    return [{"size": size, "cost": cost} for size, cost in curve]


class Daemon:
    """A qemu-storage-daemon with one throttle group and its exports."""

    def __init__(self, binary, folder, limits, weights=(None,)):
        self.folder = folder
        qmp = f"{folder}/qmp.sock"
        self.nbd = f"{folder}/nbd.sock"
        self.limits = limits
        group = {"qom-type": "throttle-group", "id": "group", "limits": limits}
        argv = [binary, "--chardev", f"socket,id=mon,path={qmp},server=on,wait=off"]
        argv += ["--monitor", "chardev=mon", "--object", json.dumps(group)]
        argv += ["--nbd-server", f"addr.type=unix,addr.path={self.nbd},max-connections=0"]
        for i, weight in enumerate(weights):
            null = {"driver": "null-co", "node-name": f"null{i}", "size": DISK_BYTES}
            node = {
                "driver": "throttle",
                "node-name": f"t{i}",
                "throttle-group": "group",
                "file": f"null{i}",
            }
            if weight is not None:
                node["weight"] = weight
            export = {"type": "nbd", "id": f"e{i}", "node-name": f"t{i}", "writable": True}
            argv += ["--blockdev", json.dumps(null), "--blockdev", json.dumps(node)]
            argv += ["--export", json.dumps(export)]
        self.process = subprocess.Popen(argv)
        self.qmp = Qmp(qmp)

    def uri(self, i=0):
        return f"nbd+unix:///t{i}?socket={self.nbd}"

    def stats(self):
        [group] = self.qmp("query-throttle-groups")
        return group

    def set_limits(self, limits):
        self.qmp("qom-set", path="/objects/group", property="limits", value=limits)

    def cpu_seconds(self):
        """Return the CPU time that the daemon's main thread has used, which does all requests."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self):
        self.qmp("quit")
        self.process.wait(20)


@contextlib.contextmanager
def daemon(binary, limits, weights=(None,)):
    folder = tempfile.mkdtemp(prefix="iokeel-bench-")
    instance = Daemon(binary, folder, limits, weights)
    try:
        yield instance
    finally:
        instance.close()
        shutil.rmtree(folder)


class Request:
    __slots__ = ("job", "ms", "size", "write")

    def __init__(self, job, ms, size, write):
        self.job, self.ms, self.size, self.write = job, ms, size, write


def start_fio(folder, jobs, log=True):
    """Start fio with a list of {option: value}, one for each job."""
    lines = ["[global]", "ioengine=nbd", "norandommap=1", "randrepeat=0"]
    lines += ["group_reporting=0", "disable_slat=1", "log_max_value=0"]
    for i, job in enumerate(jobs):
        lines.append(f"[job{i}]")
        if log:
            # Every request with its size, in milliseconds of the wall clock: by
            # default each job counts from its own start.
            lines += [f"write_lat_log={folder}/job{i}", "log_avg_msec=0", "disable_clat=1"]
            lines.append("log_unix_epoch=1")
            # fio 3.33 drops what comes last if that is when its log has to grow.
            lines.append("log_entries=1048576")
        lines += [f"{key}={value}" for key, value in job.items()]
    Path(f"{folder}/job.fio").write_text("\n".join(lines) + "\n")
    return subprocess.Popen(
        ["fio", "--output-format=json", f"--output={folder}/fio.json", f"{folder}/job.fio"],
        cwd=folder,
    )


def finish_fio(process, folder, count, log=True):
    """Return fio's JSON and every request that it logged, by completion."""
    if process.wait() != 0:
        raise RuntimeError("fio failed")
    report = json.loads(Path(f"{folder}/fio.json").read_text())
    requests = []
    for i in range(count if log else 0):
        for path in sorted(Path(folder).glob(f"job{i}_lat.*.log")):
            for line in path.read_text().splitlines():
                ms, _, direction, size = line.split(",")[:4]
                requests.append(Request(i, int(ms), int(size), direction.strip() == "1"))
    requests.sort(key=lambda request: request.ms)
    if log:
        total = sum(
            one[direction]["total_ios"] for one in report["jobs"] for direction in ("read", "write")
        )
        if total != len(requests):
            raise RuntimeError(f"fio did {total} requests and logged {len(requests)}")
    if requests:
        # The first requests wait for nothing: they mark the start.
        start = requests[0].ms
        for request in requests:
            request.ms -= start
    return report, requests


def run_fio(target, jobs, log=True):
    process = start_fio(target.folder, jobs, log)
    return finish_fio(process, target.folder, len(jobs), log)


def rates(requests, cost_of, seconds, first=1):
    """Return the rate in each full second from `first` on, as defined above."""
    times, sums, total = [], [], 0.0
    for request in requests:
        times.append(request.ms / 1000)
        sums.append(total)
        total += cost_of(request)

    def passed(at):
        i = bisect.bisect_right(times, at)
        if i == 0:
            return 0.0
        if i == len(times):
            return total
        t0, t1 = times[i - 1], times[i]
        return sums[i - 1] + (sums[i] - sums[i - 1]) * (at - t0) / (t1 - t0)

    return [passed(t + 1) - passed(t) for t in range(first, seconds)]


def limits_of(limit, read=CURVE, write=CURVE):
    return {"iops-total": limit, "cost-read": points(read), "cost-write": points(write)}


def coster(read=CURVE, write=CURVE):
    memo = {}

    def cost(request):
        key = (request.size, request.write)
        if key not in memo:
            memo[key] = price(write if request.write else read, request.size)
        return memo[key]

    return cost


def job(target, seconds, rw, depth=32, i=0, **more):
    base = {"uri": target.uri(i), "rw": rw, "iodepth": depth, "time_based": 1}
    base |= {"runtime": seconds, "size": DISK_BYTES}
    return base | more


def exactness(ctx):
    """Is every request charged what the curve says, and the limit held?"""
    seconds = 4 if ctx.quick else 8
    workloads = {}
    for size, _ in CURVE:
        workloads[f"{size // KIB}K reads"] = ({"rw": "randread", "bs": size}, CURVE, CURVE)
    workloads["8K + 64K"] = ({"rw": "randread", "bssplit": "8k/50:64k/50"}, CURVE, CURVE)
    workloads["4K reads, 1M writes"] = (
        {"rw": "randrw", "bssplit": "4k/100,1m/100"},
        CURVE,
        CURVE,
    )
    # The random sizes need an offset that fits them: any multiple of 512.
    workloads["512 B to 2 MiB"] = (
        {"rw": "randrw", "bsrange": "512-2m", "blockalign": 512},
        CURVE,
        CURVE,
    )
    workloads["own curves"] = (
        {"rw": "randrw", "bsrange": "512-2m", "blockalign": 512},
        OWN_READ,
        OWN_WRITE,
    )
    rows = []
    for limit in (1000, 10000, 50000):
        for name, (options, read, write) in workloads.items():
            with daemon(ctx.patched, limits_of(limit, read, write)) as target:
                options = dict(options)
                rw = options.pop("rw")
                _, requests = run_fio(target, [job(target, seconds + 1, rw, **options)])
                group = target.stats()
            cost = coster(read, write)
            expected = sum(cost(request) for request in requests)
            charged = group["read"]["cost"] + group["write"]["cost"]
            counted = group["read"]["requests"] + group["write"]["requests"]
            per_second = rates(requests, cost, seconds)
            rows.append(
                {
                    "limit": limit,
                    "workload": name,
                    "requests": len(requests),
                    "requests_counted": counted,
                    "cost_expected": expected,
                    "cost_charged": charged,
                    "cost_error": charged / expected - 1,
                    "rate_min": min(per_second) / limit,
                    "rate_max": max(per_second) / limit,
                }
            )
            ctx.say(rows[-1])
    return rows


def shift(ctx):
    """What passes when a guest goes from 4K to 1M in mid-run?"""
    limit, half = 2000, 5
    rows = []
    for which in ("stock", "patched"):
        limits = limits_of(limit) if which == "patched" else {"iops-total": limit}
        with daemon(getattr(ctx, which), limits) as target:
            jobs = [
                job(target, half, "randread", bs="4k"),
                job(target, half + 1, "randread", bs="1m", startdelay=half),
            ]
            _, requests = run_fio(target, jobs)
        per_second = rates(requests, coster(), 2 * half)
        rows.append(
            {
                "qemu": which,
                "limit": limit,
                "seconds": [rate / limit for rate in per_second],
                "worst": max(per_second) / limit,
            }
        )
        ctx.say(rows[-1])
    return rows


def idleness(ctx):
    """What passes in the first second after idleness, and while the host is late?"""
    limit, bursts, seconds, rows = 1000, 4, 5, []
    cases = [("stock", {"iops-total": limit}), ("patched", limits_of(limit))]
    cases.append(("patched", limits_of(limit) | {"idle-credit-ms": 10}))
    for which, limits in cases:
        with daemon(getattr(ctx, which), limits) as target:
            jobs = [job(target, 2, "randread", bs="4k", startdelay=3 * i) for i in range(bursts)]
            _, requests = run_fio(target, jobs)
            begins = [
                request.ms
                for before, request in pairwise([None, *requests])
                if before is None or request.ms - before.ms > 500
            ]
            after_idleness = [
                sum(begin <= request.ms < begin + 1000 for request in requests) / limit
                for begin in begins
            ]
            process = start_fio(target.folder, [job(target, seconds, "randread", bs="4k")])
            while process.poll() is None:
                time.sleep(0.18)
                target.process.send_signal(signal.SIGSTOP)
                time.sleep(0.02)
                target.process.send_signal(signal.SIGCONT)
            _, requests = finish_fio(process, target.folder, 1)
        rows.append(
            {
                "qemu": which,
                "limit": limit,
                "idle_credit_ms": limits.get("idle-credit-ms"),
                "after_idleness": after_idleness,
                "while_late": statistics.mean(rates(requests, coster(), seconds - 1)) / limit,
            }
        )
        ctx.say(rows[-1])
    return rows


def retune(ctx):
    """What passes in 10 s when limits are rewritten 10 times a second?"""
    seconds, rows = 10, []
    cases = [("same 2000", [2000], "4k"), ("1000 and 3000 in turn", [1000, 3000], "4k")]
    cases.append(("same 2000", [2000], "1m"))
    for which in ("stock", "patched"):
        for name, values, size in cases:
            limits = limits_of(values[0]) if which == "patched" else {"iops-total": values[0]}
            if which == "stock" and size == "1m":
                continue
            with daemon(getattr(ctx, which), limits) as target:
                jobs = [job(target, seconds, "randread", bs=size)]
                process = start_fio(target.folder, jobs)
                start, sets = time.monotonic(), 0
                while process.poll() is None:
                    sets += 1
                    limits["iops-total"] = values[sets % len(values)]
                    target.set_limits(limits)
                    time.sleep(max(0, start + sets / 10 - time.monotonic()))
                _, requests = finish_fio(process, target.folder, 1)
            passed = sum(coster()(request) for request in requests if request.ms < seconds * 1000)
            mean = statistics.mean(values)
            rows.append(
                {
                    "qemu": which,
                    "limits": name,
                    "bs": size,
                    "sets": sets,
                    "passed": passed,
                    "ratio": passed / (mean * seconds),
                }
            )
            ctx.say(rows[-1])
    return rows


def weights(ctx):
    """Do four backlogged members share by weight, whatever their requests?"""
    seconds = 6 if ctx.quick else 15
    wanted = WEIGHTS
    mixes = {
        "4K 16K 64K 256K reads": [
            ("randread", "4k"),
            ("randread", "16k"),
            ("randread", "64k"),
            ("randread", "256k"),
        ],
        "256K 64K 16K 4K reads": [
            ("randread", "256k"),
            ("randread", "64k"),
            ("randread", "16k"),
            ("randread", "4k"),
        ],
        "4K reads, 1M writes, 64K reads, 8K writes": [
            ("randread", "4k"),
            ("randwrite", "1m"),
            ("randread", "64k"),
            ("randwrite", "8k"),
        ],
    }
    rows = []
    for which in ("stock", "patched"):
        for name, mix in mixes.items():
            limit = 5000
            if which == "patched":
                limits, member_weights = limits_of(limit), wanted
            else:
                limits, member_weights = {"iops-total": 2000}, [None] * 4
            with daemon(getattr(ctx, which), limits, member_weights) as target:
                jobs = [job(target, seconds, rw, i=i, bs=bs) for i, (rw, bs) in enumerate(mix)]
                _, requests = run_fio(target, jobs)
            cost, sums = coster(), [0.0] * 4
            for request in requests:
                # Only while all four are at it.
                if 1000 <= request.ms < (seconds - 1) * 1000:
                    sums[request.job] += cost(request)
            shares = [value / sum(sums) for value in sums]
            errors = [
                share / (weight / sum(wanted)) - 1
                for share, weight in zip(shares, wanted, strict=True)
            ]
            rows.append({"qemu": which, "mix": name, "shares": shares, "errors": errors})
            ctx.say(rows[-1])
    return rows


def overhead(ctx):
    """What does the series cost when nothing ever waits?

    All daemons are there at once, and fio asks one after another, for so short a time that what
    else the machine does hits all of them alike. Both are on one processor, so that a request
    takes the time that its instructions take, and no processor has to be woken.
    """
    rounds, milliseconds = (5 if ctx.quick else 150), 300
    kinds = {
        "stock": (ctx.stock, {"iops-total": 10**9}),
        "patched": (ctx.patched, {"iops-total": 10**9}),
        "patched, curve": (ctx.patched, limits_of(10**9)),
    }
    processor = max(os.sched_getaffinity(0))
    rows = []
    for depth in (1, 32):
        iops = {kind: [] for kind in kinds}
        cpu = {kind: [] for kind in kinds}
        with contextlib.ExitStack() as stack:
            targets = {kind: stack.enter_context(daemon(*of)) for kind, of in kinds.items()}
            for target in targets.values():
                os.sched_setaffinity(target.process.pid, {processor})
            for turn in range(rounds):
                order = list(kinds)
                order = order[turn % 3 :] + order[: turn % 3]
                for kind in order:
                    target = targets[kind]
                    reads = job(target, f"{milliseconds}ms", "randread", depth=depth, bs="4k")
                    before = target.cpu_seconds()
                    report, _ = run_fio(target, [reads | {"cpus_allowed": processor}], log=False)
                    used = target.cpu_seconds() - before
                    read = report["jobs"][0]["read"]
                    iops[kind].append(read["iops"])
                    cpu[kind].append(used / read["total_ios"] * 1e6)
        for kind, values in iops.items():
            row = {"depth": depth, "qemu": kind, "iops": values, "cpu_us": cpu[kind]}
            row["median"] = statistics.median(values)
            row["cpu_us_median"] = statistics.median(cpu[kind])
            row["ratio"] = median_ratio(values, iops["stock"])
            row["cpu_ratio"] = median_ratio(cpu[kind], cpu["stock"])
            row["undisturbed"] = fastest(values) / fastest(iops["stock"])
            rows.append(row)
            ctx.say({key: value for key, value in row.items() if not isinstance(value, list)})
    return rows


def fastest(iops):
    """Return the mean of the fastest tenth of runs: what else the machine does only slows them."""
    return statistics.fmean(sorted(iops)[-max(1, len(iops) // 10) :])


def median_ratio(values, base):
    """Return the median ratio of pairs, and between which two it lies with 95 % confidence."""
    pairs = sorted(a / b for a, b in zip(values, base, strict=True))
    # The rank of the median among n is binomial, of n and a half.
    off = math.ceil(0.98 * math.sqrt(len(pairs)))
    middle = len(pairs) / 2
    low = pairs[max(0, math.floor(middle) - off)]
    high = pairs[min(len(pairs) - 1, math.ceil(middle) + off - 1)]
    return {"median": statistics.median(pairs), "low": low, "high": high}


def accounting(ctx):
    """How long does the accounting of one request take?"""
    test = Path(ctx.patched).parent / "test-throttle"
    runs = {}
    for _ in range(3 if ctx.quick else 7):
        output = subprocess.run(
            [str(test), "-m", "perf", "-p", "/throttle/perf", "--tap"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for line in output.splitlines():
            if "ns per request" in line:
                name, _, value = line.lstrip("# ").rpartition(": ")
                runs.setdefault(name, []).append(float(value.split()[0]))
    rows = [
        {"case": name, "ns": values, "median": statistics.median(values)}
        for name, values in runs.items()
    ]
    for row in rows:
        ctx.say(row)
    return rows


BENCHMARKS = {
    f.__name__: f for f in (exactness, shift, idleness, retune, weights, overhead, accounting)
}


def percent(ratio, digits=1):
    return f"{ratio * 100:.{digits}f} %"


def tables(result):
    """Return the result as Markdown, one table a benchmark."""
    results, out = result["results"], []

    def table(title, header, rows):
        out.append(f"**{title}**\n")
        out.append("| " + " | ".join(header) + " |")
        out.append("|" + "---|" * len(header))
        out.extend("| " + " | ".join(row) + " |" for row in rows)
        out.append("")

    if rows := results.get("exactness"):
        limits = sorted({row["limit"] for row in rows})
        by = {}
        for row in rows:
            by.setdefault(row["workload"], {})[row["limit"]] = row
        worst = max(abs(row["cost_error"]) for row in rows)
        table(
            "Exactness: slowest and fastest full second after the first, in % of the limit; "
            f"cost charged differs from fio's log by {worst:.1e} at most",
            ["workload, depth 32", *(f"{limit:,}" for limit in limits)],
            [
                [
                    name,
                    *(
                        " to ".join(percent(cells[limit][key]) for key in ("rate_min", "rate_max"))
                        for limit in limits
                    ),
                ]
                for name, cells in by.items()
            ],
        )
    if rows := results.get("shift"):
        table(
            "Shift: 4K reads for 5 s, then 1M reads, limit 2000; rate in % of the limit",
            ["QEMU", *(f"s {i}" for i in range(2, 2 + len(rows[0]["seconds"])))],
            [[row["qemu"], *(f"{100 * x:.1f}" for x in row["seconds"])] for row in rows],
        )
    if rows := results.get("idleness"):
        table(
            "Idleness: the worst first second of four that come after one of idleness, and what "
            "passes while the daemon is stopped for 20 ms five times a second; in % of the limit",
            ["QEMU", "idle-credit-ms", "after idleness", "while it is late"],
            [
                [
                    row["qemu"],
                    "" if row["idle_credit_ms"] is None else str(row["idle_credit_ms"]),
                    percent(max(row["after_idleness"])),
                    percent(row["while_late"]),
                ]
                for row in rows
            ],
        )
    if rows := results.get("retune"):
        table(
            "Retune: limits rewritten ten times a second for 10 s",
            ["QEMU", "limits", "reads of", "passed, of the mean limit"],
            [[row["qemu"], row["limits"], row["bs"], percent(row["ratio"])] for row in rows],
        )
    if rows := results.get("weights"):
        table(
            "Weights: four backlogged members, their share of the cost",
            ["QEMU", "members", "1st", "2nd", "3rd", "4th", "off by at most"],
            [
                [
                    "by weight 1000, 800, 600, 400",
                    "",
                    *(percent(weight / sum(WEIGHTS)) for weight in WEIGHTS),
                    "",
                ],
                *(
                    [
                        row["qemu"],
                        row["mix"],
                        *(percent(share) for share in row["shares"]),
                        percent(max(abs(error) for error in row["errors"])),
                    ]
                    for row in rows
                ),
                *published_shares(),
            ],
        )
    if rows := results.get("overhead"):
        table(
            "Overhead: 4K reads, limits so high that nothing waits; medians of "
            f"{len(rows[0]['iops'])} runs in turn, and of the ratios to stock's in the same turn, "
            "with what it lies within at 95 % confidence; and the mean of the fastest tenth",
            ["depth", "QEMU", "IOPS", "of stock's", "fastest", "daemon's CPU", "of stock's"],
            [
                [
                    str(row["depth"]),
                    row["qemu"],
                    f"{row['median']:,.0f}",
                    ratio_text(row["ratio"]),
                    percent(row["undisturbed"]),
                    f"{row['cpu_us_median']:.2f} µs",
                    ratio_text(row["cpu_ratio"]),
                ]
                for row in rows
            ],
        )
    if rows := results.get("accounting"):
        table(
            "The accounting call alone",
            ["charge", "ns per request, median", "range"],
            [
                [
                    row["case"].removeprefix("throttle_account, "),
                    f"{row['median']:.1f}",
                    f"{min(row['ns']):.1f} to {max(row['ns']):.1f}",
                ]
                for row in rows
            ],
        )
    out.append(
        f"{result['when'][:10]}, {result['host']['cpus']} cores, Linux {result['kernel']}, "
        f"{result['qemu']['patched'].removeprefix('qemu-storage-daemon ')}, {result['fio']}; "
        f"load before the run {result['load_before'][0]:.1f}."
    )
    for name, run in result.get("earlier", {}).items():
        out.append(f"{name}: {run['when'][:10]}, load before {run['load_before'][0]:.1f}.")
    return "\n".join(out) + "\n"


def ratio_text(ratio):
    return f"{percent(ratio['median'])} ({percent(ratio['low'])} to {percent(ratio['high'])})"


def published_shares():
    """Return the rows of published figures for the same weights."""
    for name, iops in PUBLISHED_WEIGHTS.items():
        shares = [value / sum(iops) for value in iops]
        errors = [
            share / (weight / sum(WEIGHTS)) - 1
            for share, weight in zip(shares, WEIGHTS, strict=True)
        ]
        yield [
            f"published: {name}",
            "equal requests, depth 512, flash card",
            *(percent(share) for share in shares),
            percent(max(abs(error) for error in errors)),
        ]


def put_into(readme, text):
    """Replace what is between the two marks in a file."""
    begin, end = "<!-- figures -->\n", "<!-- /figures -->\n"
    before, _, rest = Path(readme).read_text().partition(begin)
    _, _, after = rest.partition(end)
    Path(readme).write_text(before + begin + text + end + after)


def build(*options):
    """Return the folder of binaries that qemu-patches/build makes."""
    script = Path(__file__).resolve().parents[2] / "qemu-patches/build"
    run = subprocess.run([script, *options], check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.splitlines()[-1]


class Context:
    def __init__(self, patched, stock, quick):
        self.patched = os.path.join(patched, "qemu-storage-daemon")
        self.stock = os.path.join(stock, "qemu-storage-daemon")
        self.quick = quick

    def say(self, row):
        print(json.dumps(row), file=sys.stderr, flush=True)


def version(binary):
    said = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    return said.split("\n")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--patched", help="folder of the patched binaries")
    parser.add_argument("--stock", help="folder of the stock binaries")
    parser.add_argument("--out", default="-", help="JSON result (default: stdout)")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; default all")
    parser.add_argument("--table", metavar="FILE", help="print a result as tables")
    parser.add_argument("--readme", metavar="FILE", help="put the tables into this file")
    args = parser.parse_args()
    if args.table:
        text = tables(json.loads(Path(args.table).read_text()))
        if args.readme:
            put_into(args.readme, text)
        else:
            sys.stdout.write(text)
        return
    if unknown := set(args.names) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(unknown)}")
    ctx = Context(args.patched or build(), args.stock or build("--stock"), args.quick)
    result = {
        "scenario": "qemu-patches",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {"cpus": os.cpu_count(), "machine": platform.machine()},
        "kernel": platform.release(),
        "qemu": {"stock": version(ctx.stock), "patched": version(ctx.patched)},
        "fio": version("fio"),
        "load_before": os.getloadavg(),
        "results": {},
    }
    if args.names and args.out != "-" and Path(args.out).exists():
        before = json.loads(Path(args.out).read_text())
        earlier = {"when": before["when"], "load_before": before["load_before"]}
        result["earlier"] = {name: earlier for name in before["results"]}
        result["earlier"] |= before.get("earlier", {})
        result["results"] |= before["results"]
    for name in args.names or BENCHMARKS:
        result["results"][name] = BENCHMARKS[name](ctx)
        result.get("earlier", {}).pop(name, None)
    text = json.dumps(result, indent=1) + "\n"
    if args.out == "-":
        sys.stdout.write(text)
    else:
        Path(args.out).write_text(text)


if __name__ == "__main__":
    main()
