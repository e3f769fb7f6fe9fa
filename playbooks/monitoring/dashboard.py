"""Prints dashboard.json, a dashboard for Grafana: make dashboard.

grafana-foundation-sdk, Grafana's own, knows the format and lays panels out. So what panels.py says
is all there is to keep, and a key that Grafana doesn't have is an error of types.
"""

from __future__ import annotations

import json
from itertools import count

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueColorMode, BigValueGraphMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from playbooks.monitoring.panels import ROWS, VARIABLES, Faults, Figure, Heatmap, Panel

SOURCE = DataSourceRef("prometheus", "${datasource}")


def panel(shown: Panel, number: int) -> timeseries.Panel | stat.Panel | heatmap.Panel:
    """Return a panel. number: its id."""
    built: timeseries.Panel | stat.Panel | heatmap.Panel
    if isinstance(shown, Figure):
        last = common.ReduceDataOptions().calcs(["lastNotNull"])
        built = stat.Panel().span(4).height(4).decimals(0).reduce_options(last)
        built.graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.NONE)
        if isinstance(shown, Faults):
            steps = [Threshold(None, "green"), Threshold(1, "red")]
            limits = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
            built.color_mode(BigValueColorMode.VALUE).thresholds(limits)
    elif isinstance(shown, Heatmap):
        built = heatmap.Panel().span(8).height(8).y_axis(heatmap.YAxisConfig().unit(shown.unit))
    else:
        built = timeseries.Panel().span(8).height(8).min(0)
    built.id(number).title(shown.title).unit(shown.unit).description(shown.description)
    built.datasource(SOURCE)
    for letter, (legend, expr) in zip("ABCD", shown.queries.items(), strict=False):
        target = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(letter)
        target.datasource(SOURCE)
        if isinstance(shown, Heatmap):
            target.format(PromQueryFormat.HEATMAP)
        built.with_target(target.instant() if isinstance(shown, Figure) else target.range())
    return built


def variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a variable that selects any number of a label's values, or all."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(True, "All", "$__all"))
    )


def build() -> str:
    """Return the dashboard as JSON."""
    built = (
        dashboard.Dashboard("iokeel")
        .uid("iokeel")
        .description("Guests' disks under iokeel: by host, storage, tenant, VM and drive")
        .tags(["iokeel"])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-3h", "now")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    for name, (label, query) in VARIABLES.items():
        built.with_variable(variable(name, label, query))
    numbers = count(1)
    for title, panels in ROWS.items():
        built.with_row(dashboard.Row(title).id(next(numbers)))
        for shown in panels:
            built.with_panel(panel(shown, next(numbers)))
    return json.dumps(built.build(), cls=JSONEncoder, indent=2) + "\n"


if __name__ == "__main__":
    print(build(), end="")
