import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { minute, NONE, time } from "../shared/words";

/** One line: its values at the chart's moments. null: not known. */
export interface Line {
    word: string;
    values: readonly (number | null)[];
    dashed?: boolean;
}

/** A moment to mark, with its reason. */
export interface Mark {
    at: number;
    word: string;
}

const HEIGHT = 180;
const COLOURS = ["--iokeel-line", "--iokeel-limit"];

/**
 * Lines over time. times: seconds of the clock. Gaps stay gaps.
 *
 * title: what it shows, for those who don't see it; `summary` says its figures.
 */
export function Chart({
    title,
    summary,
    times,
    lines,
    marks = [],
    text,
}: {
    title: string;
    summary: string;
    times: readonly number[];
    lines: readonly Line[];
    marks?: readonly Mark[];
    text: (value: number | null) => string;
}) {
    const place = useRef<HTMLDivElement>(null);
    const chart = useRef<uPlot | null>(null);
    const shown = useRef(marks);
    shown.current = marks;
    const words = lines.map((line) => line.word).join("\n");

    useEffect(() => {
        const element = place.current;
        if (!element) return;
        const make = () => {
            chart.current?.destroy();
            chart.current = new uPlot(options(element, lines, text, () => shown.current), [[]], element);
        };
        make();
        const watch = new ResizeObserver(() =>
            chart.current?.setSize({ width: element.clientWidth, height: HEIGHT }),
        );
        watch.observe(element);
        const theme = new MutationObserver(() => {
            const data = chart.current?.data;
            make();
            if (data) chart.current?.setData(data);
        });
        theme.observe(document.documentElement, { attributeFilter: ["class"] });
        return () => {
            watch.disconnect();
            theme.disconnect();
            chart.current?.destroy();
            chart.current = null;
        };
        // The lines' words are all of them that the chart is made by.
    }, [words]);

    useEffect(() => {
        chart.current?.setData([[...times], ...lines.map((line) => [...line.values])]);
    }, [times, lines]);

    return (
        <figure className="iokeel-chart">
            <div ref={place} role="img" aria-label={`${title}. ${summary}`} />
        </figure>
    );
}

function options(
    element: HTMLElement,
    lines: readonly Line[],
    text: (value: number | null) => string,
    marks: () => readonly Mark[],
): uPlot.Options {
    const style = getComputedStyle(element);
    const colour = (name: string) => style.getPropertyValue(name);
    const axis = {
        stroke: style.color,
        grid: { stroke: colour("--pf-t--global--border--color--default"), width: 0.5 },
        ticks: { show: false },
    };
    return {
        width: element.clientWidth,
        height: HEIGHT,
        scales: { y: { range: (_, __, top) => [0, (top || 1) * 1.05] } },
        axes: [
            { ...axis, space: 70, incrs: [60, 120, 300], values: (_, moments) => moments.map((at) => minute(new Date(1000 * at))) },
            { ...axis, size: 70, values: (_, values) => values.map((value) => text(value)) },
        ],
        series: [
            { label: "time", value: (_, at) => (at === null ? NONE : time(new Date(1000 * at))) },
            ...lines.map((line, number) => ({
                label: line.word,
                stroke: colour(COLOURS[number] ?? "--iokeel-line"),
                width: 1.5,
                ...(line.dashed ? { dash: [6, 4] } : {}),
                points: { show: false },
                value: (_: uPlot, value: number | null) => text(value),
            })),
        ],
        hooks: { draw: [(drawn) => drawMarks(drawn, marks(), style.color), showLast] },
    };
}

/** Without a pointer over the chart, its legend has the last values. */
function showLast(chart: uPlot): void {
    const last = chart.data[0].length - 1;
    if (chart.cursor.idx == null && last >= 0) chart.setLegend({ idx: last });
}

/** Draws a line through the chart for each mark. */
function drawMarks(chart: uPlot, marks: readonly Mark[], colour: string): void {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = colour;
    ctx.lineWidth = window.devicePixelRatio;
    ctx.globalAlpha = 0.35;
    for (const { at } of marks) {
        const x = chart.valToPos(at, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
    }
    ctx.restore();
}
