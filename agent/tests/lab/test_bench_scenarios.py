"""The benchmarks' scenarios can be run, their results read, and what is wrong with them is said."""

from __future__ import annotations

import html
import re
import resource
import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.bench import programs
from benchmarks.bench.controllers import ALONE, CONTROLLERS, chosen
from benchmarks.bench.controllers.static import Caps
from benchmarks.bench.errors import BenchError
from benchmarks.bench.records import (
    VERSION,
    Case,
    DriveRun,
    Plan,
    Result,
    Run,
    Setup,
    read,
    read_all,
    write,
)
from benchmarks.bench.report.beside import Both
from benchmarks.bench.report.figures import Figures, all_figures
from benchmarks.bench.report.moving import moving
from benchmarks.bench.report.overview import overview
from benchmarks.bench.report.page import (
    DOCS,
    HTML,
    MARKDOWN,
    all_both,
    anchor,
    rendered,
    write_report,
)
from benchmarks.bench.report.plots import plots
from benchmarks.bench.report.verdict import Verdict, verdicts
from benchmarks.bench.running.runner import plan
from benchmarks.bench.scenario import CALIBRATED, SCENARIOS, load, names
from benchmarks.bench.shown import Shown
from benchmarks.bench.virtual import result as virtual_result
from benchmarks.bench.virtual.controllers import VIRTUAL
from benchmarks.result_file import RESULTS

TOLD = """\
capacity = 1000
latency_target_ms = 3
"""
SMALL = """\
# Is it so?
title = "Small"
device = "nvme-970-pro"
slowdown = 20
capacity = 1000
latency_target_ms = 3
seconds = 20
begin_s = 4
metrics = ["work"]

[[drives]]
name = "a"
count = 2
policy = { weight = 300 }
job = { rw = "randread", bs = "4k" }

[[drives]]
name = "b"
policy = { limit = 70, reservation_ratio = 0.05 }
streams = [{ name = "x", end_s = 8 }, { name = "y", start_s = 8, job = { bs = "8k" } }]
job = { rw = "randread", bs = "4k" }

[[cases]]
name = "one"

[[cases]]
name = "two"
jobs.a = { numjobs = 2 }
"""


def small(folder: Path, old: str = "", new: str = "", shorten: float = 1.0) -> Path:
    assert old in SMALL
    (folder / "small.toml").write_text(SMALL.replace(old, new, 1) if old else SMALL)
    return folder


@pytest.mark.parametrize("name", names())
def test_scenario_can_be_read_and_all_that_it_names_is_there(name: str) -> None:
    suite = load(name)
    figures = Figures(suite, None)
    drives = {drive.name for scenario in suite.cases for drive in scenario.drives}
    assert {what.drive for what in figures.shown if what.drive} <= drives
    assert set(suite.controllers) <= CONTROLLERS.keys()
    caps = {name for scenario in suite.cases for drive in scenario.drives for name in drive.caps}
    assert caps <= {name for name, each in CONTROLLERS.items() if isinstance(each, Caps)}
    assert len({scenario.case for scenario in suite.cases}) == len(suite.cases)
    for what, found in figures.published.items():
        assert {len(values) for values in found.values()} == {len(suite.cases)}
        alike = [other for other in figures.published if other.metric is what.metric]
        assert all(found.keys() == figures.published[other].keys() for other in alike)
    if suite.pair:
        (one,), (other,) = suite.cases, load(suite.pair).cases
        assert (one.device, one.slowdown) == (other.device, other.slowdown)
        mine, theirs = (
            {drive.name: (drive.policy, drive.streams) for drive in scenario.drives}
            for scenario in (one, other)
        )
        assert mine == theirs


def test_controllers_of_cgroup_v2_only_hold_drives_of_a_host_that_boots() -> None:
    (booted,), (usual,) = load("booted-hdd-readers").cases, load("latency-hdd-readers").cases
    for controller in chosen(["io.latency", "io.cost"])[1:]:
        assert controller.lacks(booted) is None
        assert "booted = true" in str(controller.lacks(usual))


def test_cases_shares_and_times_are_as_the_file_says(tmp_path: Path) -> None:
    one, two = load("small", 2.0, small(tmp_path)).cases
    assert (one.seconds, one.begin_s, one.question) == (10, 2, "Is it so?")
    assert [drive.name for drive in one.drives] == ["a0", "a1", "b"]
    assert "numjobs" not in one.drives[0].streams[0].job
    assert two.drives[0].streams[0].job["numjobs"] == 2
    plans = {drive.name: plan(one, drive) for drive in one.drives}
    # Of weights 300, 300 and 100; the limit is a promise of its own.
    assert plans["a0"].owed == pytest.approx(1000 * 300 / 700)
    assert (plans["b"].owed, plans["b"].reservation) == (70, 50)
    assert plans["b"].shifts_s == [0, 4]


def test_digest_is_of_what_runs_only(tmp_path: Path) -> None:
    digest = load("small", folder=small(tmp_path)).cases[0].digest
    changed = [
        load("small", folder=small(tmp_path, old, new)).cases[0].digest != digest
        for old, new in (
            ("Is it so?", "Is it not so?"),
            ('"Small"', '"Large"'),
            ("slowdown = 20", 'slowdown = 20\ncaveat = "It was broken."'),
            ('["work"]', '["held b", "work"]'),
            ("count = 2", "count = 2\ncredit_s = 5"),
            ("count = 2", "count = 2\ncaps.iops-50 = { iops-total = 50 }"),
            ("count = 2", "count = 3"),
            ("seconds = 20", "seconds = 21"),
            ("weight = 300", "weight = 301"),
            ('bs = "8k"', 'bs = "16k"'),
            ("numjobs = 2", "numjobs = 3"),
            ("seconds = 20", 'seconds = 20\ncurve = "published"'),
        )
    ]
    assert changed == [False] * 6 + [True] * 6
    assert load("small", 2.0, small(tmp_path)).cases[0].digest == digest


def test_a_drive_is_owed_what_is_reserved_and_the_others_the_rest() -> None:
    (scenario,) = load("reservation").cases
    victim, *others = scenario.drives
    assert scenario.owed(victim) == pytest.approx(0.3 * scenario.capacity)
    assert [*map(scenario.owed, others)] == pytest.approx([0.7 * scenario.capacity / 15] * 15)
    weights = [*map(scenario.fair_weight, scenario.drives)]
    assert weights == pytest.approx([0.3 / 0.7 * 15 * 100, *[100] * 15])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("# Is it so?", "# It is so.", "doesn't begin with its question"),
        ("nvme-970-pro", "nvme-970", "did you mean 'nvme-970-pro'"),
        ("weight = 300", "weight = [3]", "$.drives[0].policy"),
        ("begin_s", "begins", "unknown field `begins`"),
        ("jobs.a", "jobs.c", "no drive c"),
        ('bs = "8k"', 'bs = "8k", iodepth = 33', "write iodepth = 11 and numjobs = 3"),
        ("count = 2", "count = 2\ncaps.iops-50 = { iops = 50 }", "caps"),
        ("capacity = 1000", "capacity = ", "small.toml"),
        ("capacity = 1000", "capacity = 0", "> 0.0"),
        ("capacity = 1000\n", "", "only one of capacity and latency_target_ms"),
        ('job = { rw = "randread", bs = "4k" }', 'job = { io_size = "much" }', "not a size"),
    ],
)
def test_bad_scenario_is_refused_with_the_place(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(BenchError) as raised:
        load("small", folder=small(tmp_path, old, new))
    assert words in str(raised.value)
    assert "small.toml" in str(raised.value)


def test_a_disk_that_nobody_calibrated_is_refused_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = tmp_path / "costs.toml"
    costs.write_text("[hdd-hts72755]\n")
    monkeypatch.setattr("benchmarks.bench.scenario.COSTS", costs)
    mend = "remove capacity and latency_target_ms: calibrate found them"
    with pytest.raises(BenchError, match=f"costs.toml has no figures of nvme-970-pro.*{mend}"):
        load("small", folder=small(tmp_path))
    mend = "run python -m benchmarks.bench.virtual.calibrate"
    with pytest.raises(BenchError, match=f"calibrated.toml has no figures of .* at 30.*{mend}"):
        load("small", folder=small(tmp_path, f"20\n{TOLD}", "30\n"))


def test_controllers_are_told_what_calibrate_finds_unless_the_file_has_figures(
    tmp_path: Path,
) -> None:
    found = tomllib.loads(CALIBRATED.read_text())["nvme-970-pro"]["20"]
    told = load("small", folder=small(tmp_path, TOLD, "")).cases[0]
    assert (told.capacity, told.latency_target_ms) == (
        found["capacity"],
        found["latency_target_ms"],
    )
    assert told.model.read.points[-1] == (1 << 20, found["curve_read"][-1][1])


def test_unknown_names_get_the_nearest_known_one() -> None:
    with pytest.raises(BenchError, match="did you mean 'weights'"):
        load("weight")
    with pytest.raises(BenchError, match="did you mean 'static-iops'"):
        chosen(["static_iops"])
    with pytest.raises(BenchError, match="did you mean 'isolation_p01'"):
        Shown.of("isolation_p1 a")
    with pytest.raises(BenchError, match="name a drive"):
        Shown.of("held")


def test_controllers_run_beside_none_and_once() -> None:
    assert [one.name for one in chosen(["bfq", "none", "bfq"])] == ["none", "bfq"]


def test_programs_and_their_results_exist() -> None:
    for program in programs.read().values():
        path = SCENARIOS.parents[1] / f"{program.command[0].replace('.', '/')}.py"
        assert path.exists()
        assert (RESULTS / program.result).exists()


def test_result_of_another_version_or_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bench-x.json"
    file.write_text('{"version": 7, "cases": 3}')
    with pytest.raises(BenchError, match=f"version 7, this program reads {VERSION}; .*--fresh"):
        read(file)
    file.write_text('{"version": 1}')
    with pytest.raises(BenchError, match="no result of iokeel-bench"):
        read(file)
    with pytest.raises(BenchError, match="run the scenario first"):
        read(tmp_path / "bench-y.json")


def test_result_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "bench-x.json"
    result = Result(VERSION, Setup("x", "disk", 1, 1, 0), {})
    write(file, result)
    before = file.read_text()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(BenchError, match="make room and run the same command again"):
            write(file, result)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["bench-x.json"]
    assert file.read_text() == before


def test_committed_results_are_whole_and_not_shortened() -> None:
    for name, result in read_all(RESULTS).items():
        assert result.setup.shortened == 1, name
        assert result.cases.keys() == {scenario.case for scenario in load(name).cases}


@pytest.mark.parametrize("name", sorted(read_all(RESULTS)))
def test_committed_results_are_of_what_runs_and_what_drives_are_owed_now(name: str) -> None:
    result = read_all(RESULTS)[name]
    assert result.setup.digest == load(name).cases[0].digest
    for scenario in load(name).cases:
        case = result.cases[scenario.case]
        for drive in scenario.drives:
            assert case.plans[drive.name].owed == pytest.approx(scenario.owed(drive), abs=1)
            assert case.plans[drive.name].from_s == plan(scenario, drive).from_s
        ran = [name for name, runs in case.runs.items() if runs and name in CONTROLLERS]
        assert not [name for name in ran if CONTROLLERS[name].unfit(scenario)]


def test_page_in_docs_is_that_of_the_committed_results() -> None:
    assert (DOCS / MARKDOWN).read_text() == rendered(MARKDOWN, all_both(RESULTS))


def in_virtual_time() -> virtual_result.VirtualResult:
    """Return a result in which every controller has the same long figure everywhere."""
    one = virtual_result.Values([123.456, 123.456])
    return virtual_result.VirtualResult(
        virtual_result.model(),
        2,
        None,
        {
            name: virtual_result.ScenarioFigures(
                load(name).cases[0].digest,
                {
                    case.case: {each: dict.fromkeys(case.metrics, one) for each in VIRTUAL}
                    for case in load(name).cases
                },
            )
            for name in names()
        },
    )


def cells(page: str) -> list[list[str]]:
    """Return the tables above the page's first heading of a section, as a reader sees them."""
    rows = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row)[2:-2].split(" | ") for row in rows]


@pytest.mark.parametrize("with_virtual", [False, True])
def test_no_cell_above_the_sections_is_long(with_virtual: bool) -> None:
    results, virtual = read_all(RESULTS), in_virtual_time() if with_virtual else None
    for missing in ("", "weights", "two-groups-sequential-sequential"):
        every = [
            Both.of(Figures(load(name), results.get(name) if name != missing else None), virtual)
            for name in names()
        ]
        known = sum(virtual is not None or both.real.result is not None for both in every)
        rows = cells(rendered(MARKDOWN, every))
        assert len(rows) == known + 2  # headers
        assert [cell for row in rows for cell in row if len(cell) > 60] == []


def test_page_begins_with_how_many_signs_of_each_kind_there_are() -> None:
    page = (DOCS / MARKDOWN).read_text()
    _, title, sentence, *_ = re.split(r"(# .*)\n\n", page.partition("\n\n|")[0])
    assert title == "# Benchmarks"
    numbers = [int(number) for number in re.findall(r"\d+", sentence)]
    rows = [row for row in cells(page)[1:] if len(row) == 8]
    counted = []
    for column in (5, 7):
        signs = [row[column][:1] for row in rows if row[column]]
        counted += [signs.count("+"), len(signs), signs.count("="), signs.count("-")]
    assert numbers == counted
    assert counted[1] < counted[5]  # there are fewer real runs on stock QEMU


@pytest.mark.usefixtures("without_caveats")
def test_row_counts_as_behind_if_any_figure_is() -> None:
    ours = ([2.0, 2.1, 2.2], [70.0, 71.0, 72.0])
    for other, sign in (
        (([1.0, 1.01, 1.02], [30.0, 31.0, 32.0]), "-"),
        (([2.0, 2.1, 2.2], [90.0, 91.0, 92.0]), "-"),
        (([2.0, 2.1, 2.2], [30.0, 31.0, 32.0]), "+"),
        (([2.0, 2.1, 2.2], [70.0, 71.0, 72.0]), "="),
    ):
        assert latencies_and_rates(iokeel_exact=ours, bfq=other).sign == sign


@pytest.mark.usefixtures("without_caveats")
def test_virtual_time_stands_in_for_stock_qemu_without_a_sign(tmp_path: Path) -> None:
    for name in ("weights", "shift-8k-64k"):
        file = f"bench-{name}.json"
        (tmp_path / file).write_bytes((RESULTS / file).read_bytes())
    write_report(tmp_path, tmp_path / "real.html", tmp_path)
    for page in ("real.html", MARKDOWN):
        assert "123" not in (tmp_path / page).read_text().partition("How to read")[0]
        assert "In virtual time, with" not in (tmp_path / page).read_text()
    assert (tmp_path / "shift.png").read_bytes().startswith(b"\x89PNG")
    real = {row[0]: row for row in cells((tmp_path / MARKDOWN).read_text())}
    virtual_result.write(tmp_path / virtual_result.FILE, in_virtual_time())
    write_report(tmp_path, tmp_path / "both.html", tmp_path)
    page = (tmp_path / MARKDOWN).read_text()
    rows = {row[0]: row for row in cells(page)}
    assert real["Shares by weight"][4:6] == ["", ""]
    assert rows["Shares by weight"][4:6] == ["12346 % (virtual)", ""]
    assert rows["Shares by weight"][6:] == real["Shares by weight"][6:]
    assert rows["Shifts between 8K and 64K"] == real["Shifts between 8K and 64K"]
    # It has no real runs at all.
    assert "Twenty guests boot at once" not in real
    assert rows["Twenty guests boot at once"][2:] == [
        *("123 s (virtual)", "static iops: 123 s (virtual)"),
        *("123 s (virtual)", "", "123 s (virtual)", ""),
    ]
    assert "## Twenty guests boot at once" in page
    assert "\n- Twenty guests boot at once\n" in page
    assert "\nNo verdict: it has no real runs yet.\n" in page
    assert "Asked for" not in page


def test_virtual_time_of_another_state_of_a_scenario_is_left_out() -> None:
    figures = Figures(load("weights"), read_all(RESULTS)["weights"])
    virtual = in_virtual_time()
    assert Both.of(figures, virtual).virtual
    older = msgspec.structs.replace(virtual.scenarios["weights"], digest="of another load")
    virtual = msgspec.structs.replace(virtual, scenarios={"weights": older})
    assert not Both.of(figures, virtual).virtual


def test_markup_in_a_scenario_is_text_in_html() -> None:
    results = read_all(RESULTS)
    suite = replace(load("weights"), title="<i>a</i> & b", question="Is 1 < 2?", caveat='<b>"no"')
    booted = replace(load("booted-sata-readers"), title="<i>c</i>")
    page = rendered(
        HTML,
        [
            Both(Figures(suite, results["weights"])),
            Both(Figures(booted, results["booted-sata-readers"])),
            Both(Figures(replace(suite, title="<i>d</i>"), None)),
        ],
    )
    assert re.findall("<[ib]>", page) == []
    assert page.count("&lt;i&gt;a&lt;/i&gt; &amp; b") >= 2
    assert page.count("&lt;i&gt;c&lt;/i&gt;") >= 2
    assert "<li>&lt;i&gt;d&lt;/i&gt;" in page
    assert "Is 1 &lt; 2?" in page


def test_page_shows_where_iokeel_loses() -> None:
    figures = Figures(load("latency-sata-readers"), read_all(RESULTS)["latency-sata-readers"])
    (found,) = verdicts(figures)
    assert found.other == "bfq"
    assert found.behind == ["throughput, of no control 80 % against 86 %"]
    assert "**Loses** to BFQ" in (DOCS / MARKDOWN).read_text()


def test_runs_without_a_figure_are_counted_and_there_is_no_verdict() -> None:
    result = read_all(RESULTS)["boot-storm"]
    case = result.cases[""]
    first, *others = case.runs["iokeel-exact"]
    never = {
        name: msgspec.structs.replace(drive, finished_s=None)
        for name, drive in first.drives.items()
    }
    runs = [msgspec.structs.replace(first, drives=never), *others]
    changed = msgspec.structs.replace(case, runs={**case.runs, "iokeel-exact": runs})
    figures = Figures(load("boot-storm"), msgspec.structs.replace(result, cases={"": changed}))
    says = "too few repeats, or one without the figure"
    assert overview(Both(figures)).patched.sign == ""
    assert f"\nNo verdict: {says}.\n" in rendered(MARKDOWN, [Both(figures)])
    spread = figures.spread(figures.shown[0], "iokeel-exact")
    assert ", 1 run without ±" in str(spread)
    assert verdicts(figures) == []
    both = {**changed.runs, "iokeel-bfq": case.runs["iokeel-exact"]}
    changed = msgspec.structs.replace(changed, runs=both)
    figures = Figures(load("boot-storm"), msgspec.structs.replace(result, cases={"": changed}))
    assert [one.ours for one in verdicts(figures)] == ["iokeel-bfq"]
    assert f"\niokeel, patched QEMU: no verdict: {says}.\n" in rendered(MARKDOWN, [Both(figures)])


def latency_without(controller: str, runs: int, **missing: object) -> Verdict:
    """Return the verdict beside BFQ if a controller's first runs had no figure of a database."""
    result = read_all(RESULTS)["backup-window"]
    case = result.cases[""]
    changed = [
        msgspec.structs.replace(
            run,
            drives={**run.drives, "db0": msgspec.structs.replace(run.drives["db0"], **missing)},
        )
        for run in case.runs[controller][:runs]
    ] + case.runs[controller][runs:]
    others = {name: runs for name, runs in case.runs.items() if name != "static-iops-size"}
    case = msgspec.structs.replace(case, runs={**others, controller: changed})
    result = msgspec.structs.replace(result, cases={"": case})
    (found,) = verdicts(Figures(load("backup-window"), result))
    return found


@pytest.mark.usefixtures("without_caveats")
def test_side_with_a_run_without_a_figure_is_behind_there() -> None:
    mean = "db0: latency over alone, mean"
    missing = {"latency_mean_ms": None}
    assert f"{mean} 1.5 x against 2.1 x" in latency_without("static-iops", 3, **missing).ahead
    for runs, said in ((1, "1.5 x, 1 run without"), (3, "no figure")):
        found = latency_without("iokeel-exact", runs, **missing).behind
        assert [one for one in found if mean in one] == [f"{mean} {said} against 2.1 x"]
        found = latency_without("bfq", runs, **missing).ahead
        (ahead,) = [one for one in found if mean in one]
        assert ("no figure" if runs == 3 else "1 run without") in ahead


@pytest.mark.usefixtures("without_caveats")
def test_p99_of_few_requests_is_no_loss() -> None:
    p99 = "db0: latency over alone, p99"
    assert p99 in str(latency_without("static-iops", 3, requests=50))
    for controller in ("iokeel-exact", "bfq"):
        for runs in (1, 3):
            found = latency_without(controller, runs, requests=50)
            assert p99 not in str(found)
            assert found.ahead


def latencies_and_rates(**measured: tuple[list[float], list[float]]) -> Verdict:
    """Return the verdict on a drive's latencies and rates: of each controller, by repeat."""
    suite = load("weights")
    first = replace(suite.cases[0], metrics=("latency_ms w1000", "work"))
    runs = {
        name.replace("_", "-"): [
            Run({"w1000": DriveRun(rate, 1, latency_mean_ms=40 * ms)})
            for ms, rate in zip(*both, strict=True)
        ]
        for name, both in {**measured, "none": ([9.0] * 3, [100.0] * 3)}.items()
    }
    case = Case({"w1000": Plan(100)}, runs)
    result = msgspec.structs.replace(read_all(RESULTS)["weights"], cases={"": case})
    (found,) = verdicts(Figures(replace(suite, cases=(first,)), result))
    return found


@pytest.mark.usefixtures("without_caveats")
def test_verdict_names_another_that_is_better_than_iokeel_in_a_figure() -> None:
    ours = ([2.0, 2.1, 2.2], [70.0, 71.0, 72.0])
    best = ([1.0, 1.01, 1.02], [30.0, 31.0, 32.0])
    more = ([8.0, 8.1, 8.2], [99.0, 98.0, 97.0])
    found = latencies_and_rates(iokeel_exact=ours, bfq=best, static_iops=more)
    assert (found.other, len(found.ahead), len(found.behind)) == ("bfq", 1, 1)
    assert found.best == ["throughput, of no control 98 % (static iops)"]
    assert str(found).endswith(". Best of any: throughput, of no control 98 % (static iops)")
    assert found.sign == "-"
    alike = ([8.0, 8.1, 8.2], [71.0, 72.0, 73.0])
    assert not latencies_and_rates(iokeel_exact=ours, bfq=best, static_iops=alike).best
    assert not latencies_and_rates(iokeel_exact=ours, bfq=best).best


@pytest.mark.usefixtures("without_caveats")
def test_figures_without_a_clear_difference_have_their_values() -> None:
    ours = ([2.0, 2.1, 2.2], [70.0, 71.0, 72.0])
    found = latencies_and_rates(iokeel_exact=ours, bfq=([2.1, 2.1, 2.1], [50.0, 60.0, 69.0]))
    assert found.even == [
        "w1000: mean latency, the disk's own time 2.1 ms against 2.1 ms",
        "throughput, of no control 71 % against 60 % (better in every repeat, not certain)",
    ]
    assert found.sign == "="
    found = latencies_and_rates(iokeel_exact=ours, bfq=([1.0, 1.5, 1.9], [69.9, 69.9, 69.9]))
    assert found.even == [
        "w1000: mean latency, the disk's own time 2.1 ms against 1.5 ms"
        " (worse in every repeat, not certain)",
        "throughput, of no control 71 % against 70 %",  # too near to matter
    ]


def test_controllers_that_could_have_run_are_named() -> None:
    result = read_all(RESULTS)["boot-storm"]
    case = result.cases[""]
    bare = msgspec.structs.replace(case, runs={"none": case.runs["none"]})
    result = msgspec.structs.replace(result, cases={"": bare}, lacking={"bfq": "no BFQ"})
    assert Figures(load("boot-storm"), result).not_run == [
        *("static-iops", "static-bps", "static-iops-size", "average-size", "io.max"),
        *("iokeel-exact", "iokeel-bfq"),
    ]
    figures = Figures(load("boot-storm"), result)
    assert overview(Both(figures)).other == ""
    (line,) = [
        line
        for line in rendered(MARKDOWN, [Both(figures)]).splitlines()
        if line.startswith("Not measured: ")
    ]
    assert line.count("; ") == 6
    assert "best of" not in line


def test_best_other_says_of_how_many_it_is() -> None:
    results = read_all(RESULTS)
    both = {
        name: Both(Figures(load(name), results[name])) for name in ("boot-storm", "size-change")
    }
    assert overview(both["boot-storm"]).other == "static iops: 15.3 s"
    static = "static bps; static iops, tuned iops-size; average size, every 10 s"
    for name in (MARKDOWN, HTML):
        page = rendered(name, [both["boot-storm"]])
        assert f"Not measured: {static}; " in page
        assert ". The best other is the best of 2." in page
        assert "Not measured: " not in rendered(name, [both["size-change"]])


def test_the_way_to_run_iokeel_that_loses_least_comes_first_and_the_others_are_told() -> None:
    figures = Figures(load("latency-hdd-readers"), read_all(RESULTS)["latency-hdd-readers"])
    best, other = verdicts(figures)
    assert figures.best(figures.ours) == "iokeel-exact"  # with the better headline
    assert (best.ours, best.behind, best.sign) == ("iokeel-bfq", [], "=")
    assert other.behind == ["throughput, of no control 16 % against 148 %"]
    row = overview(Both(figures)).patched
    assert row.sign == "="
    assert re.fullmatch(r"41\.8 ms over BFQ; [\d.]+ ms without BFQ \(-\)", row.figures)
    page = rendered(MARKDOWN, [Both(figures)])
    assert "iokeel over BFQ, patched QEMU: No clear difference to BFQ: " in page
    assert "iokeel, patched QEMU: **Loses** to BFQ: throughput" in page


def test_without_a_verdict_the_row_shows_all_ways_to_run_iokeel() -> None:
    suite, result = load("latency-hdd-readers"), read_all(RESULTS)["latency-hdd-readers"]
    case = result.cases[""]
    own = {name: case.runs[name] for name in ("none", "iokeel-exact", "iokeel-bfq")}
    without = msgspec.structs.replace(result, cases={"": msgspec.structs.replace(case, runs=own)})
    judged, unjudged = (overview(Both(Figures(suite, one))).patched for one in (result, without))
    assert (judged.sign, unjudged.sign) == ("=", "")
    exact, over_bfq = unjudged.figures.removesuffix(" over BFQ").split("; ")
    assert judged.figures == f"{over_bfq} over BFQ; {exact} without BFQ (-)"


@pytest.mark.parametrize("name", ["weights", "reservation"])
def test_page_says_when_figures_begin(name: str) -> None:
    figures = Figures(load(name), read_all(RESULTS)[name])
    says = f"s a run, figures from second {load(name).cases[0].begin_s:g} on, "
    for page in (MARKDOWN, HTML):
        assert rendered(page, [Both(figures)]).count(says) == 1


def test_page_says_which_figures_are_of_few_windows() -> None:
    says = "nearly their mean: db0: isolation, p01, 1 of 20 s."
    for page in (MARKDOWN, HTML):
        for name, count in (("backup-window", 1), ("reservation", 0)):
            figures = Figures(load(name), read_all(RESULTS)[name])
            text = rendered(page, [Both(figures)])
            assert (text.count(says), text.count("nearly their mean")) == (count, count)


def steady(by_second: list[float]) -> Run:
    """Return a run of a drive that did so much in each second."""
    return Run({"victim": DriveRun(1.0, 1, by_second=by_second)})


@pytest.mark.parametrize(
    ("controller", "runs", "said"),
    [
        ("iokeel-exact", [[100.0] * 14 + [80.0] * 4] * 2, ["iokeel, patched QEMU (-20%)"]),
        ("iokeel-exact", [[100.0] * 18, [100.0] * 14 + [80.0] * 4], []),
        ("iokeel-exact", [[10.0] * 5 + [100.0] * 13] * 2, []),
        ("bfq", [[100.0] * 14 + [80.0] * 4] * 2, []),
    ],
)
def test_page_says_which_controllers_had_not_settled(
    controller: str, runs: list[list[float]], said: list[str]
) -> None:
    """From second 2 on, a quarter is 4 s; BFQ would need one of 10 s, its turn."""
    suite = load("latency-nvme-writers")
    setup = Setup(suite.name, "nvme-970-pro", 10, 18, 2)
    case = Case({"victim": Plan(1.0)}, {controller: [steady(one) for one in runs]})
    assert moving(Figures(suite, Result(VERSION, setup, {"": case}))) == said


def test_single_seconds_say_nothing_of_stretched_bfq() -> None:
    suite, result = load("reservation"), read_all(RESULTS)["reservation"]
    seconds, window = Shown.of("attainment victim"), Shown.of("attainment_window victim")
    figures = Figures(suite, result)
    assert figures.spread(seconds, "bfq") is None
    assert figures.spread(seconds, "iokeel-exact") is not None
    assert figures.spread(window, "bfq") is not None
    (verdict,) = verdicts(figures)
    assert not [text for text in verdict.ahead if "second" in text]
    own = msgspec.structs.replace(result, setup=msgspec.structs.replace(result.setup, slowdown=1))
    assert Figures(suite, own).spread(seconds, "bfq") is not None


def test_what_else_was_published_stands_below_the_table() -> None:
    suite, result = load("first-seconds"), read_all(RESULTS)["first-seconds"]
    assert suite.published is not None
    source = f"Published: {suite.published.source}."
    for note, after in ((None, ""), ("CPU rose by > 4 %.", " CPU rose by > 4 %.")):
        published = msgspec.structs.replace(suite.published, note=note)
        figures = Figures(replace(suite, published=published), result)
        assert f"\n{source}{after}\n" in rendered(MARKDOWN, [Both(figures)])
        page = rendered(HTML, [Both(figures)])
        assert f"{html.escape(source + after, quote=False)}</p>" in page.replace("&#39;", "'")


@pytest.mark.parametrize(
    ("name", "drawn", "title", "row"),
    [
        (
            "two-groups-sequential-sequential",
            2,
            "many: kept, of the first case",
            "| N = 8 | published: no control | 23 % |  |  |  | 179 % |",
        ),
        (
            "weights-queue-512",
            3,
            "w800: share, of its weight's",
            "| published: cfq | 100 % |  | 242 ms | 393 ms |  | 103 % | 102 % | 97 % | 91 %",
        ),
    ],
)
def test_other_published_figures_are_shown_but_not_judged(
    name: str, drawn: int, title: str, row: str
) -> None:
    figures = Figures(load(name), read_all(RESULTS)[name])
    page = rendered(MARKDOWN, [Both(figures)])
    assert f"| {title} |" in page
    assert row in page
    assert len(plots(figures)) == drawn
    assert page.count("![") == drawn
    assert not any(f"{title} " in str(verdict) for verdict in verdicts(figures))


def test_figures_that_no_run_has_are_no_column_but_named() -> None:
    result = read_all(RESULTS)["size-change"]
    suite = load("size-change")
    metrics = (*suite.cases[0].metrics, "fio_sys_us")  # none has it, as no run kept fio_sys_s once
    suite = replace(suite, cases=(replace(suite.cases[0], metrics=metrics),))
    case = result.cases[""]
    runs = {
        name: [msgspec.structs.replace(run, drives={"db": bare(run.drives["db"])}) for run in found]
        for name, found in case.runs.items()
    }
    case = msgspec.structs.replace(case, runs=runs)
    figures = Figures(suite, msgspec.structs.replace(result, cases={"": case}))
    assert figures.measured == figures.shown[:-1]
    named = "Asked for, not in this result: fio's processor time in the kernel per request."
    for name in (MARKDOWN, "report.html"):
        page = html.unescape(rendered(name, [Both(figures)]))
        assert named in page
        assert "fio's processor time" not in page.replace(named, "")
        measured = replace(figures, suite=load("size-change"))
        assert "Asked for" not in rendered(name, [Both(measured)])


def bare(drive: DriveRun) -> DriveRun:
    return msgspec.structs.replace(drive, fio_sys_s=None)


def test_page_says_never_of_a_controller_that_gets_nowhere() -> None:
    what = Shown.of("reprice_s db")
    figures = Figures(load("shift-8k-64k"), read_all(RESULTS)["shift-8k-64k"])
    assert figures.spread(what, "static-bps") is None  # priced for 1 MiB
    first, *_ = verdicts(figures)
    assert "db: worst time to reprice 0 s against never" in first.ahead
    lines = rendered(MARKDOWN, [Both(figures)]).splitlines()
    (row,) = [line for line in lines if line.startswith("| static bps |")]
    assert "| never |" in row


def test_caveat_is_under_the_title_and_marks_the_row() -> None:
    results = read_all(RESULTS)
    for name in ("boot-storm", "weights"):
        figures = Figures(replace(load(name), caveat="It was broken."), results[name])
        title = figures.suite.title
        page = rendered(MARKDOWN, [Both(figures)])
        assert f"## {title}\n\n**Caveat:** It was broken.\n\n{figures.suite.question}" in page
        assert f"{title}](#{anchor(title)}) * |" in page
        assert "\n\\* Measured wrongly, as its section says" in page
        page = rendered("report.html", [Both(figures)])
        assert "Caveat: It was broken." in page
        assert f"{title}</a> *" in page
        assert "* Measured wrongly, as its section says" in page
        figures = replace(figures, suite=replace(figures.suite, caveat=None))
        pages = rendered(MARKDOWN, [Both(figures)]) + rendered("report.html", [Both(figures)])
        assert "aveat" not in pages
        assert "Measured wrongly" not in pages


@pytest.mark.usefixtures("without_caveats")
def test_controller_whose_rule_has_changed_has_a_caveat_and_is_no_best_other() -> None:
    result = read_all(RESULTS)["backup-window"]
    case = result.cases[""]
    older = [msgspec.structs.replace(run, rule=0) for run in case.runs["bfq"]]
    changed = msgspec.structs.replace(case, runs={**case.runs, "bfq": older})
    static = ["static-iops", "static-iops-size"]
    for one, count, others in ((case, 0, [*static, "bfq"]), (changed, 1, static)):
        changed_result = msgspec.structs.replace(result, cases={"": one})
        figures = Figures(load("backup-window"), changed_result)
        assert figures.others == others
        for page in (MARKDOWN, HTML):
            assert (
                rendered(page, [Both(figures)]).count("changed since the runs here of: BFQ.")
                == count
            )


def test_result_with_a_caveat_has_neither_a_best_other_nor_a_verdict() -> None:
    results = read_all(RESULTS)
    says = {
        "booted-hdd-readers": f"iokeel can't run there; see {load('latency-hdd-readers').title}",
        "weights": "the result has a caveat",
    }
    for name, verdict in says.items():
        suite = replace(load(name), caveat="It was broken.")
        both = Both(Figures(suite, results[name]))
        row = overview(both)
        assert (row.other, row.stock.sign, row.patched.sign) == ("", "", "")
        assert f"\nNo verdict: {verdict}.\n" in rendered(MARKDOWN, [both])
        assert verdicts(both.real) == []
        assert overview(Both(Figures(replace(suite, caveat=None), results[name]))).other


def test_runs_that_stayed_disturbed_are_told() -> None:
    result = read_all(RESULTS)["weights"]
    case = result.cases[""]

    def stolen(name: str, *ratios: float) -> dict[str, list[Run]]:
        runs = zip(case.runs[name][: len(ratios)], ratios, strict=True)
        return {name: [msgspec.structs.replace(run, stolen_ratio=one) for run, one in runs]}

    def pages(runs: dict[str, list[Run]]) -> list[str]:
        changed = msgspec.structs.replace(case, runs=runs)
        figures = Figures(load("weights"), msgspec.structs.replace(result, cases={"": changed}))
        return [
            html.unescape(rendered(page, [Both(figures)])) for page in (MARKDOWN, "report.html")
        ]

    quiet = {**stolen("none", 0.0, 0.01, 0.019), **stolen("iokeel-exact", 0.0, 0.0, 0.0)}
    for page in pages(quiet):
        assert "Disturbed" not in page
    for page in pages({**quiet, **stolen("iokeel-exact", 0.021, 0.068, 0.0)}):
        assert (
            "Disturbed: the hypervisor took up to 6.8 % of the processors' time in 2 of 6 runs"
            in page
        )
        assert "runs (iokeel, patched QEMU)." in page


@pytest.mark.usefixtures("without_caveats")
def test_result_without_cases_has_no_figures() -> None:
    result = msgspec.structs.replace(read_all(RESULTS)["weights"], cases={})
    figures = Figures(load("weights"), result)
    assert overview(Both(figures)).patched.sign == ""
    assert "\nNo verdict: iokeel has no figure.\n" in rendered(MARKDOWN, [Both(figures)])
    assert "## Shares by weight" in rendered(MARKDOWN, [Both(figures)])
    assert "Shares by weight" in rendered("report.html", [Both(figures)])


def test_last_case_decides_even_if_it_has_no_runs_yet() -> None:
    name = "two-groups-random-sequential"
    result = read_all(RESULTS)[name]
    *_, last = result.cases
    cases = {**result.cases, last: msgspec.structs.replace(result.cases[last], runs={})}
    figures = Figures(load(name), msgspec.structs.replace(result, cases=cases))
    assert verdicts(figures) == []
    assert (overview(Both(figures)).stock.figures, overview(Both(figures)).patched.figures) == (
        "",
        "",
    )


def test_verdict_names_the_other_cases_in_which_iokeel_loses() -> None:
    name = "two-groups-sequential-sequential"
    result = read_all(RESULTS)[name]
    first, *more, last = result.cases
    alike = {case: result.cases[last] for case in (first, *more)}
    without = msgspec.structs.replace(result.cases[last], runs={})
    cases = {**alike, more[0]: without, last: result.cases[last]}
    figures = Figures(load(name), msgspec.structs.replace(result, cases=cases))
    (one,) = verdicts(figures)
    assert one.behind
    clause = f"In other cases: **loses** {first} ({one.lost}), {more[1]} ({one.lost})"
    row = overview(Both(figures)).patched
    assert (row.sign, row.note) == ("-", " (- in 2 other cases)")
    assert " | - (- in 2 other cases) |" in rendered(MARKDOWN, [Both(figures)])
    assert rendered(MARKDOWN, [Both(figures)]).count(clause) == 1
    cases = {**dict.fromkeys(alike, without), last: result.cases[last]}
    figures = Figures(load(name), msgspec.structs.replace(result, cases=cases))
    assert overview(Both(figures)).patched.note == ""
    assert "In other cases" not in rendered(MARKDOWN, [Both(figures)])


def test_runs_alone_count_in_all_cases_in_which_they_are_the_same() -> None:
    name = "two-groups-sequential-random"
    suite, result = load(name), read_all(RESULTS)[name]

    def counts(figures: Figures) -> list[int]:
        spreads = [figures.spread(figures.shown[0], ALONE, case) for case in figures.cases]
        return [len(one.values) if one else 0 for one in spreads]

    repeats = [len(case.runs[ALONE]) for case in result.cases.values()]
    assert counts(Figures(suite, result)) == [sum(repeats)] * len(repeats)
    *cases, last = suite.cases
    drives = tuple(replace(drive, streams=()) if drive.alone else drive for drive in last.drives)
    other = replace(suite, cases=(*cases, last.only(drives)))
    assert counts(Figures(other, result)) == [sum(repeats[:-1])] * len(cases) + [repeats[-1]]


def test_html_needs_nothing_from_elsewhere() -> None:
    (figures,) = [one for one in all_figures(RESULTS) if one.suite.name == "weights"]
    unmeasured = Figures(load("boot-storm"), None)
    page = rendered("report.html", [Both(figures), Both(unmeasured)])
    assert "Shares by weight" in page
    assert "Not measured yet" in page
    assert "data:image/svg+xml;base64," in page
    assert 'src="http' not in page
    assert "<link" not in page
    assert "<script" not in page
