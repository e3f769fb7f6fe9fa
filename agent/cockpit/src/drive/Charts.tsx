import { Card, CardBody, CardTitle, Gallery } from "@patternfly/react-core";
import { useMemo } from "react";
import type { History } from "../agent/records";
import { duration, list, rate, time } from "../shared/words";
import { Chart, type Line } from "./Chart";

const MOST_ORDERS = 8;

/** A drive's last minutes: rate against limit, latency, credit, and the changes of its limits. */
export function Charts({ history, at }: { history: History; at: number }) {
    const drive = history.drives[0];
    const { times, rates, latencies, credits, marks } = useMemo(() => {
        const series = (name: string) => drive?.series[name] ?? [];
        const moment = (age_s: number) => at / 1000 - age_s;
        return {
            times: history.ages_s.map(moment),
            rates: [
                { word: "rate", values: series("normalized_iops") },
                { word: "allowed", values: series("allowed_iops"), dashed: true },
            ],
            latencies: [
                { word: "latency", values: series("latency_s") },
                ...(known(series("wait_s")).length
                    ? [{ word: "wait for the throttle", values: series("wait_s"), dashed: true }]
                    : []),
            ],
            credits: [{ word: "burst credit", values: series("credit_s") }],
            marks: (drive?.orders ?? []).map(({ age_s, reason }) => ({ at: moment(age_s), word: reason })),
        };
    }, [history, at, drive]);
    const recent = marks.slice(-MOST_ORDERS).reverse();

    return (
        <Gallery hasGutter minWidths={{ default: "100%", lg: "calc(50% - 1rem)" }}>
            <Shown title="Rate against limit, iops" lines={rates} times={times} text={rate} marks={marks} />
            <Shown title="Latency" lines={latencies} times={times} text={duration} />
            {known(credits[0]?.values ?? []).some((value) => value > 0) && (
                <Shown title="Burst credit, seconds" lines={credits} times={times} text={rate} />
            )}
            <Card>
                <CardTitle component="h2">Changes of its limits</CardTitle>
                <CardBody>
                    {recent.length ? (
                        <ul aria-label="Changes of its limits">
                            {recent.map((mark) => (
                                <li key={`${mark.at} ${mark.word}`}>
                                    <time>{time(new Date(1000 * mark.at))}</time>: {mark.word}
                                </li>
                            ))}
                        </ul>
                    ) : (
                        "None in these minutes."
                    )}
                </CardBody>
            </Card>
        </Gallery>
    );
}

function known(values: readonly (number | null)[]): number[] {
    return values.filter((value) => value !== null);
}

function Shown({
    title,
    ...chart
}: {
    title: string;
    lines: readonly Line[];
    times: readonly number[];
    text: (value: number | null) => string;
    marks?: readonly { at: number; word: string }[];
}) {
    const summary = list(
        chart.lines.map(({ word, values }) => {
            const all = known(values);
            if (!all.length) return `${word}: not known`;
            return `${word}: ${chart.text(Math.min(...all))} to ${chart.text(Math.max(...all))}`;
        }),
    );
    return (
        <Card>
            <CardTitle component="h2">{title}</CardTitle>
            <CardBody>
                <Chart title={title} summary={summary} {...chart} />
            </CardBody>
        </Card>
    );
}
