"""`iokeel-bench compare` finds what has changed, and takes no noise for a change."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from statistics import fmean

import pytest
from msgspec.structs import replace

from benchmarks.bench.compare import Pair, changes, compare, table
from benchmarks.bench.errors import BenchError
from benchmarks.bench.metrics import METRICS
from benchmarks.bench.records import Plan, Result, path_of, read, write
from benchmarks.bench.report.figures import Spread
from benchmarks.bench.scenario import load
from benchmarks.result_file import RESULTS

NOISE = 0.02
FIGURES = 200


def pairs(seed: int, moved: dict[int, float], repeats: int = 3) -> list[Pair]:
    """Return figures, those of every other controller with ten times the noise.

    moved: by number, a factor of the second mean.
    """
    chance = random.Random(seed)

    def measured(mean: float, noise: float) -> list[float]:
        return [mean * chance.gauss(1, noise) for _ in range(repeats)]

    found = []
    for i in range(FIGURES):
        name, noise = ("bfq", 10 * NOISE) if i % 2 else ("iokeel-exact", NOISE)
        before, after = measured(10, noise), measured(10 * moved.get(i, 1.0), noise)
        found.append(Pair(f"s{i}", "", name, "L", METRICS["latency_impact"], before, after))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_change(seed: int) -> None:
    found = changes(pairs(seed, {}))
    assert (found.changes, found.compared) == ([], FIGURES)


@pytest.mark.parametrize("figures", [1, 10, 100])
def test_figures_of_a_kind_of_their_own_are_rarely_taken_for_a_change(figures: int) -> None:
    """Three repeats tell their own noise badly."""
    chance, metric = random.Random(figures), METRICS["latency_impact"]

    def measured() -> list[float]:
        return [chance.gauss(10, 0.5) for _ in range(3)]

    wrong = 0
    for _ in range(400):
        found = [
            Pair("s", "", f"c{i}", "L", metric, measured(), measured()) for i in range(figures)
        ]
        wrong += bool(changes(found).changes)
    assert wrong <= 8  # one in a hundred is 4


@pytest.mark.usefixtures("without_caveats")
def test_runs_of_another_length_or_promise_are_not_compared(tmp_path: Path) -> None:
    before = read(path_of(RESULTS, "weights"))
    folders = [tmp_path / name for name in ("before", "shorter", "other")]
    setup = replace(before.setup, shortened=6.0)
    plans = {**before.cases[""].plans, "w400": Plan(1.0)}
    case = replace(before.cases[""], plans=plans)
    shorter = replace(before, setup=setup)
    other = replace(before, cases={"": case})
    for folder, result in zip(folders, (before, shorter, other), strict=True):
        folder.mkdir()
        write(path_of(folder, "weights"), result)
    with pytest.raises(BenchError, match=r"weights: the factor by which it is shortened is 6\.0"):
        compare(folders[0], folders[1])
    with pytest.raises(BenchError, match="weights: drives are promised something else"):
        compare(folders[0], folders[2])
    for folder in folders[:2]:
        write(path_of(folder, "four-disks"), read(path_of(RESULTS, "four-disks")))
    assert "not compared: weights: the factor" in table(compare(folders[0], folders[1]))


@pytest.mark.usefixtures("without_caveats")
def test_runs_of_another_load_are_not_compared_and_other_machines_are_told(tmp_path: Path) -> None:
    weights, disks = (read(path_of(RESULTS, name)) for name in ("weights", "four-disks"))
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
        write(path_of(folder, "weights"), weights)
        write(path_of(folder, "four-disks"), disks)
    assert "measured with" not in table(compare(before, after))
    setup = replace(weights.setup, digest="0123456789abcdef")
    write(path_of(after, "weights"), replace(weights, setup=setup))
    setup = replace(disks.setup, cpu="another", programs={"fio": "fio-2"})
    write(path_of(after, "four-disks"), replace(disks, setup=setup))
    said = table(compare(before, after))
    assert "not compared: weights: the digest of what runs is 0123456789abcdef, and was" in said
    assert "measured with another processor in 1 of 1 scenarios, another fio or" in said
    assert "another kernel" not in said


@pytest.mark.usefixtures("without_caveats")
def test_a_result_without_a_scenario_leaves_the_others_to_be_compared(tmp_path: Path) -> None:
    result = read(path_of(RESULTS, "weights"))
    for name in ("weights", "gone"):
        write(path_of(tmp_path, name), result)
    found = compare(tmp_path, tmp_path)
    assert found.unlike == ("gone: there is no such scenario any more",)
    assert found.compared > 0


def test_a_result_with_a_caveat_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = dataclasses.replace(load("four-disks"), caveat="It was broken.")
    monkeypatch.setattr(
        "benchmarks.bench.compare.load", lambda name: broken if name == broken.name else load(name)
    )
    for each in ("boot-storm", broken.name):
        write(path_of(tmp_path, each), read(path_of(RESULTS, each)))
    found = compare(tmp_path, tmp_path)
    assert found.unlike == ("four-disks: the committed result has a caveat: It was broken.",)
    assert found.compared > 0


@pytest.mark.usefixtures("without_caveats")
def test_a_controller_whose_rule_has_changed_is_not_compared(tmp_path: Path) -> None:
    result = read(path_of(RESULTS, "backup-window"))
    case = result.cases[""]
    newer = [replace(run, rule=run.rule + 1) for run in case.runs["bfq"]]
    changed = replace(case, runs={**case.runs, "bfq": newer})
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, one in ((before, case), (after, changed)):
        folder.mkdir()
        write(path_of(folder, "backup-window"), replace(result, cases={"": one}))
    found, same = compare(before, after), compare(before, before)
    assert found.unlike == ("backup-window, BFQ: by another rule",)
    assert (same.unlike, found.worse) == ((), False)
    assert found.compared == same.compared - 4
    assert "not compared: backup-window, BFQ: by another rule" in table(found)


def test_what_only_the_new_result_has_is_named(tmp_path: Path) -> None:
    storm = read(path_of(RESULTS, "boot-storm"))
    case = storm.cases[""]
    less = replace(case, runs={name: runs for name, runs in case.runs.items() if name != "bfq"})
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, one in ((before, less), (after, case)):
        folder.mkdir()
        write(path_of(folder, "boot-storm"), replace(storm, cases={"": one}))
    write(path_of(after, "weights"), read(path_of(RESULTS, "weights")))
    found = compare(before, after)
    assert found.added == ("weights", "boot-storm, BFQ")
    assert "new, not compared: weights; boot-storm, BFQ" in table(found)
    assert "new, not compared" not in table(compare(before, before))


def without_finish(result: Result, count: int) -> Result:
    """Return the boot storm's result with that many runs in which no guest ends."""
    case = result.cases[""]
    never = [
        replace(run, drives={name: replace(d, finished_s=None) for name, d in run.drives.items()})
        for run in case.runs["iokeel-exact"][:count]
    ]
    runs = {**case.runs, "iokeel-exact": never + case.runs["iokeel-exact"][count:]}
    return replace(result, cases={"": replace(case, runs=runs)})


def test_figures_that_runs_lack_now_are_lost_and_that_is_worse(tmp_path: Path) -> None:
    before = read(path_of(RESULTS, "boot-storm"))
    case = before.cases[""]
    failed = replace(case, runs={**case.runs, "bfq": []})
    chosen = replace(case, runs={name: runs for name, runs in case.runs.items() if name != "bfq"})
    results = {
        "before": before,
        "one": without_finish(before, 1),
        "all": without_finish(before, 3),
        "failed": replace(before, cases={"": failed}),
        "lacking": replace(before, cases={"": chosen}, lacking={"bfq": "no BFQ"}),
        "chosen": replace(before, cases={"": chosen}),
    }
    for name, result in results.items():
        (tmp_path / name).mkdir()
        write(path_of(tmp_path / name, "boot-storm"), result)
    found = {name: compare(tmp_path / "before", tmp_path / name) for name in results}
    assert {name: (len(one.lost), one.worse) for name, one in found.items()} == {
        "before": (0, False),
        "one": (2, True),
        "all": (2, True),
        "failed": (2, True),
        "lacking": (2, True),
        "chosen": (0, False),
    }
    exact = "lost: boot-storm, iokeel, patched QEMU: the last finished after, 19.0 s (17.6 to 19.3)"
    assert f"{exact} before, and now no figure" in table(found["all"])
    assert "2 runs without" not in table(found["one"])
    assert ", 1 run without" in table(found["one"])
    assert "not run again: boot-storm, BFQ" in table(found["chosen"])
    assert compare(tmp_path / "all", tmp_path / "before").lost == ()


@pytest.mark.usefixtures("without_caveats")
def test_p99_that_runs_lack_now_is_not_lost(tmp_path: Path) -> None:
    before = read(path_of(RESULTS, "backup-window"))
    case = before.cases[""]
    few = [
        replace(run, drives={**run.drives, "db0": replace(run.drives["db0"], requests=50)})
        for run in case.runs["bfq"]
    ]
    after = replace(before, cases={"": replace(case, runs={**case.runs, "bfq": few})})
    for name, result in (("before", before), ("after", after)):
        (tmp_path / name).mkdir()
        write(path_of(tmp_path / name, "backup-window"), result)
    found, same = (compare(tmp_path / "before", tmp_path / name) for name in ("after", "before"))
    assert (found.lost, found.worse) == ((), False)
    assert found.compared == same.compared - 1


@pytest.mark.parametrize("seed", range(5))
def test_changes_are_found_and_which_way_they_went(seed: int) -> None:
    found = changes(pairs(seed, {8: 1.3, 50: 0.7})).changes
    assert [(one.pair.scenario, one.worse) for one in found] == [("s8", True), ("s50", False)]
    assert "s8" in table(changes(pairs(seed, {8: 1.3})))


def test_figures_too_uneven_for_a_double_to_show_are_told() -> None:
    what = ("s", "", "none", "L", METRICS["latency_impact"])
    uneven = Pair(*what, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    even = Pair(*what, [2.0, 2.01, 2.02], [2.0, 2.01, 2.02])
    assert (changes([uneven]).blunt, changes([even]).blunt) == (1, 0)
    said = " ".join(table(changes([uneven])).split())
    assert "of these, 1 are so uneven that even twice as much would count as noise" in said


def test_small_difference_is_no_change_however_certain() -> None:
    exact = [
        Pair("s", "", "none", "L", METRICS["work"], [1.0, 1.0, 1.0], [0.985, 0.985, 0.985]),
        Pair("t", "", "none", "L", METRICS["work"], [1.0, 1.0, 1.0], [0.975, 0.975, 0.975]),
    ]
    assert [one.pair.scenario for one in changes(exact).changes] == ["t"]


def test_single_runs_are_not_compared() -> None:
    found = changes(pairs(0, {1: 9.0}, repeats=1))
    assert (found.changes, found.compared, found.skipped) == ([], 0, FIGURES)
    assert "can't be compared" in table(found)


def test_nearer_to_one_is_better_where_that_is_what_counts() -> None:
    held = METRICS["held"]
    over = Pair("s", "", "none", "held", held, [1.0, 1.0], [1.5, 1.5])
    under = Pair("s", "", "none", "held", held, [0.5, 0.5], [0.9, 0.9])
    found = changes([over, under]).changes
    assert [one.worse for one in found] == [True, False]


def test_as_far_above_one_as_below_is_alike_if_nearness_counts() -> None:
    held = METRICS["held"]
    below, above, at = (0.90, 0.91, 0.89), (1.1, 1.09, 1.11), (1.0, 1.01, 0.99)
    assert not Spread(held, below).apart(Spread(held, above))
    assert Spread(held, at).apart(Spread(held, above))
    assert Spread(held, at).better(Spread(held, above))
    uneven = Spread(held, (0.8, 1.2, 1.0, 0.8, 1.2)), Spread(held, (1.02, 1.021, 1.022))
    assert uneven[1].better(uneven[0])  # its median is further from 1
    pairs = [
        Pair(name, "", "none", "held", held, before, after)
        for name, before, after in (("alike", below, above), ("better", below, at))
    ]
    found = changes(pairs).changes
    assert [(one.pair.scenario, one.worse) for one in found] == [("better", False)]


@pytest.mark.parametrize("repeats", [2, 3, 5, 20])
def test_of_a_hundred_confidence_intervals_95_have_the_mean(repeats: int) -> None:
    chance = random.Random(repeats)
    spreads = [
        Spread(METRICS["work"], tuple(chance.gauss(1, 0.1) for _ in range(repeats)))
        for _ in range(4000)
    ]
    has = sum(abs(fmean(one.values) - 1) < one.confidence for one in spreads)
    assert has / len(spreads) == pytest.approx(0.95, abs=0.012)


def test_a_figure_is_shown_with_its_confidence_unless_all_values_look_alike() -> None:
    work = METRICS["work"]
    assert str(Spread(work, (0.5, 0.6, 0.7))) == "60 % (50 to 70) ±25"
    assert str(Spread(work, (0.6, 0.6001, 0.6))) == "60 %"
    assert str(Spread(work, (0.6,))) == "60 %"


def test_figures_are_apart_only_if_neither_ranges_meet_nor_noise_explains_it() -> None:
    work = METRICS["work"]
    # Student's t for 2 to 4 degrees of freedom is 4.30, 3.18 and 2.78; Welch's is 2.2 and 9.8.
    uneven = Spread(work, (0.50, 0.60, 0.70)), Spread(work, (0.71, 0.72, 0.80))
    even = Spread(work, (0.50, 0.51, 0.52)), Spread(work, (0.58, 0.59, 0.60))
    meeting = Spread(work, (0.50, 0.51, 0.60)), Spread(work, (0.59, 0.60, 0.61))
    single = Spread(work, (0.50,)), Spread(work, (0.59, 0.60, 0.61))
    found = [one.apart(other) for one, other in (uneven, even, meeting, single)]
    assert found == [False, True, False, False]
    assert Spread(work, (1.0, 1.0)).apart(Spread(work, (0.9, 0.9)))


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (1.0, 0.985, False),
        (1.0, 0.975, True),
        (0.0, 0.0022, False),  # both are nothing
        (0.001, 0.0045, False),
        (0.0, 0.0055, True),
    ],
)
def test_small_difference_is_none_in_a_verdict_nor_in_a_comparison(
    one: float, other: float, apart: bool
) -> None:
    overspend = METRICS["overspend"]
    assert Spread(overspend, (one, one)).apart(Spread(overspend, (other, other))) == apart
    pair = Pair("s", "", "none", "o", overspend, [one, one, one], [other, other, other])
    assert bool(changes([pair]).changes) == apart


def test_equal_controllers_are_rarely_told_apart() -> None:
    """Of three repeats each, ranges alone don't meet in 200 of 2000."""
    chance, work = random.Random(0), METRICS["work"]

    def spread() -> Spread:
        return Spread(work, tuple(chance.gauss(1, 0.1) for _ in range(3)))

    assert sum(spread().apart(spread()) for _ in range(2000)) <= 100
