"""Writes the report: a page of HTML that holds all it shows, and docs/design/benchmarks.md."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from benchmarks.bench import programs
from benchmarks.bench.controllers import ALONE, CONTROLLERS, OURS, USUAL, title
from benchmarks.bench.errors import BenchError
from benchmarks.bench.metrics import METRICS
from benchmarks.bench.records import Result, Setup
from benchmarks.bench.report.beside import Both
from benchmarks.bench.report.figures import LEAST_RATIO, Figures, all_figures, shown
from benchmarks.bench.report.moving import moving
from benchmarks.bench.report.overview import overview, sentence
from benchmarks.bench.report.plots import Plot, as_bytes, plots, readme
from benchmarks.bench.report.verdict import verdicts
from benchmarks.bench.scenario import load
from benchmarks.bench.shown import Shown
from benchmarks.bench.virtual import result as virtual_result
from benchmarks.result_file import BENCHMARKS

DOCS = BENCHMARKS.parent / "docs/design"
HTML, MARKDOWN = "report.html", "benchmarks.md"
_PLOTS = "benchmarks"
_TOO_FEW = "too few repeats, or one without the figure"
#: With fewer windows, the worst is nearly their mean.
_LEAST_WINDOWS = 3
_TEMPLATES = Path(__file__).with_name("templates")


def write_report(results: Path, page: Path, docs: Path) -> None:
    """Write the page, benchmarks.md in `docs`, its plots, and the README's.

    results: a folder of results. A scenario without any is listed, and nothing is said of it.
    Raises BenchError if there is none at all.
    """
    every = all_both(results)
    if not any(one.real.result for one in every):
        raise BenchError(str(results), "no result is in this folder", "run a scenario first")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(rendered(HTML, every))
    (docs / _PLOTS).mkdir(parents=True, exist_ok=True)
    for old in (docs / _PLOTS).glob("*.png"):
        old.unlink()
    for one in every:
        for file, draw in (_plots(one.real) | readme(one.real)).items():
            (docs / file).write_bytes(as_bytes(draw(), "png"))
    (docs / MARKDOWN).write_text(rendered(MARKDOWN, every))


def all_both(results: Path) -> list[Both]:
    """Return all scenarios with a folder's results."""
    path = results / virtual_result.FILE
    virtual = virtual_result.read(path) if path.exists() else None
    return [Both.of(one, virtual) for one in all_figures(results)]


def rendered(template: str, every: Sequence[Both]) -> str:
    """Return a page, report.html or benchmarks.md."""
    measured = [one.real for one in every if one.real.result]
    known = [one for one in every if one.real.result or one.virtual]
    rows = [overview(one) for one in known if not one.real.suite.pair]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=jinja2.select_autoescape(["html.jinja"]),
    )
    environment.filters |= {"strong": strong, "prose": prose}
    text = environment.get_template(f"{template}.jinja").render(
        sentence=sentence(rows),
        overview=rows,
        booted=[(overview(one), load(pair)) for one in known if (pair := one.real.suite.pair)],
        sections=[_Section(one) for one in known],
        missing=[(one.real.suite, published(one.real)) for one in every if not one.real.result],
        anchor=anchor,
        programs=programs.read(),
        least=f"{100 * LEAST_RATIO:g}",
        metrics=_used(measured),
        unmeasured=[_without_runs(name) for name in USUAL if not _has_runs(name, measured)],
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _has_runs(controller: str, measured: Sequence[Figures]) -> bool:
    return any(controller in one.controllers for one in measured)


def _without_runs(controller: str) -> str:
    """Return a controller's name, and what it takes."""
    needs = CONTROLLERS[controller].needs
    return title(controller) + (f" (it takes {needs})" if needs else "")


def _no_verdict(figures: Figures) -> str:
    """Return why there is no verdict."""
    if figures.suite.pair:
        return f"iokeel can't run there; see {load(figures.suite.pair).title}"
    if figures.result is None:
        return "it has no real runs yet"
    if figures.suite.caveat:
        return "the result has a caveat"
    if not figures.best(figures.ours):
        return "iokeel has no figure"
    return _TOO_FEW if figures.best(figures.others) else "no other has a figure"


def _verdicts(figures: Figures) -> list[str]:
    """Return what to say of each way to run iokeel, the best first; or why there is no verdict."""
    found = {one.ours: str(one) for one in verdicts(figures)}
    if not found:
        return [f"No verdict: {_no_verdict(figures)}"]
    if len(figures.ours) < 2:
        return [*found.values()]
    untold = dict.fromkeys(figures.ours, f"no verdict: {_TOO_FEW}")
    return [f"{title(name)}: {says}" for name, says in (found | untold | found).items()]


def published(figures: Figures) -> str:
    """Return the published figures of the last case, in short."""
    table = figures.suite.published
    if table is None:
        return ""
    metric = figures.shown[0].metric
    if table.values:
        return "; ".join(
            f"{title(name)} {shown(metric, values[-1])}" for name, values in table.values.items()
        )
    return "; ".join(
        f"{name}: {min(values):.0%} to {max(values):.0%} of the limit, by second"
        for name, values in table.seconds.items()
    )


def anchor(heading: str) -> str:
    """Return a heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def strong(text: str) -> str:
    """Return text in which Markdown's stars are HTML's strong; it has no other markup."""
    return re.sub(r"\*\*(.*?)\*\*", r"<strong>\1</strong>", html.escape(text))


def prose(text: str) -> Markup:
    """Return Markdown's paragraphs, emphasis and code as HTML."""
    text = html.escape(str(text).strip(), quote=False)
    text = re.sub(r"`(.*?)`", r"<code>\1</code>", re.sub(r"\*(.*?)\*", r"<em>\1</em>", text))
    return Markup("".join(f"<p>{one}</p>\n" for one in text.split("\n\n")))


def _used(measured: list[Figures]) -> list[object]:
    names = {what.metric.name for one in measured for what in one.measured}
    return [metric for metric in METRICS.values() if metric.name in names]


class _Section:
    """A scenario that has figures, as the templates show it."""

    setup, trial = "", False
    lacking: Sequence[tuple[str, str]] = ()
    few_windows: Sequence[str] = ()
    moving: Sequence[str] = ()
    unmeasured: Sequence[str] = ()
    disturbed: str | None = None

    def __init__(self, both: Both) -> None:
        figures, suite = both.real, both.real.suite
        self.virtual = both.table()
        self.name, self.title, self.question = suite.name, suite.title, suite.question
        self.caveat = suite.caveat if figures.result else None
        self.outdated = [title(name) for name in figures.outdated]
        self.verdicts = _verdicts(figures)
        self.published = suite.published
        many = len(figures.cases) > 1
        self.header = ["case"] * many + ["controller", *(what.title for what in figures.measured)]
        self.rows = [_Row(name, cells[not many :]) for name, cells in _rows(figures)]
        self.not_run = [title(name) for name in figures.not_run]
        headlines = [figures.spread(figures.shown[0], name) for name in figures.others]
        self.others = len([one for one in headlines if one])
        self.plots = _plots(figures)
        if result := figures.result:
            self.setup, self.trial = _setup(result.setup), result.setup.shortened != 1
            self.lacking = [(title(name), why) for name, why in result.lacking.items()]
            self.unmeasured = [what.title for what in figures.shown if what not in figures.measured]
            self.few_windows = _few_windows(figures, result.setup)
            self.moving = moving(figures)
            self.disturbed = _disturbed(result)

    @property
    def svgs(self) -> list[str]:
        """Its plots as SVG in base64."""
        return [base64.b64encode(as_bytes(draw(), "svg")).decode() for draw in self.plots.values()]


def _plots(figures: Figures) -> dict[str, Plot]:
    """Return what draws a scenario's plots, by their files in docs."""
    name, drawn = f"{_PLOTS}/{figures.suite.name}", plots(figures)
    return {f"{name}-{i}.png" if i else f"{name}.png": draw for i, draw in enumerate(drawn)}


class _Row:
    """A row of a table. ours: it is iokeel's."""

    def __init__(self, controller: str, cells: list[str]) -> None:
        self.ours, self.cells = controller in OURS, cells


def _rows(figures: Figures) -> list[tuple[str, list[str]]]:
    """Return the table: the controller and the cells of each row."""
    rows, measured = [], figures.measured
    for case in figures.cases:
        for name in dict.fromkeys(name for found in figures.published.values() for name in found):
            cells = [_published_cell(figures, what, name, case) for what in measured]
            rows.append(("", [case, f"published: {title(name)}", *cells]))
        for name in (ALONE, *figures.controllers):
            if any(figures.spread(what, name, case) for what in measured):
                cells = [_cell(figures, what, name, case) for what in measured]
                rows.append((name, [case, title(name), *cells]))
    return rows


def _published_cell(figures: Figures, what: Shown, name: str, case: str) -> str:
    values = figures.published.get(what, {}).get(name)
    return "" if values is None else shown(what.metric, values[figures.cases.index(case)])


def _cell(figures: Figures, what: Shown, name: str, case: str) -> str:
    if spread := figures.spread(what, name, case):
        return str(spread)
    return "" if name == ALONE or what.metric.may_lack else what.metric.never


def _few_windows(figures: Figures, setup: Setup) -> list[str]:
    """Return which figures are the worst of few windows, and of how many."""
    counts = {what.title: what.metric.windows(setup) for what in figures.measured}
    return [
        f"{title}, {count} of {setup.window_s} s"
        for title, count in counts.items()
        if count is not None and count < _LEAST_WINDOWS
    ]


def _disturbed(result: Result) -> str | None:
    """Return which runs stayed disturbed, and how much; None: none did."""
    runs = [
        (f"{case} {title(name)}".strip(), run)
        for case, one in result.cases.items()
        for name, found in one.runs.items()
        for run in found
    ]
    disturbed = [(where, run.stolen_ratio or 0.0) for where, run in runs if run.disturbed]
    if not disturbed:
        return None
    most = max(ratio for _, ratio in disturbed)
    where = "; ".join(dict.fromkeys(where for where, _ in disturbed))
    took = f"the hypervisor took up to {100 * most:.1f} % of the processors' time"
    return f"{took} in {len(disturbed)} of {len(runs)} runs ({where})"


def _setup(setup: Setup) -> str:
    """Return where a result was measured."""
    parts = [f"{setup.device}, times x {setup.slowdown:g}", f"{setup.seconds:.3g} s a run"]
    parts.append(f"figures from second {setup.begin_s:.3g} on")
    if setup.host is None:
        parts.append("the machine and the revision weren't noted")
    else:
        parts += [f"{setup.host.cpus} cores of {setup.cpu}", f"Linux {setup.kernel}"]
    parts += [re.sub(r"^\S*/", "", words) for words in setup.programs.values()]
    if setup.load_before is not None:
        parts.append(f"load before {setup.load_before:.1f}")
    if setup.revision:
        parts.append(f"revision {setup.revision}")
    if not setup.own_seeds:
        parts.append("all repeats with the same seeds: their spread is the machine's alone")
    return ", ".join(parts)
