import { rate, size } from "../shared/words";
import type { Result } from "./records";

const WIDTH = 480;
const HEIGHT = 220;
const LEFT = 40;
const BOTTOM = 24;

/** The fitted curves as lines and the measured costs as points, both axes logarithmic. */
export function Costs({ result }: { result: Result }) {
    const measured = result.series.filter((one) => one.fit_error_ratio !== null);
    const curves = [result.curve_read, ...(result.curve_write ? [result.curve_write] : [])];
    const cost = (one: (typeof measured)[number]) => result.capacity / one.raw_iops;
    const points = [...curves.flat(), ...measured.map((one) => [one.size_bytes, cost(one)] as const)];
    const sizes = points.map(([bytes]) => Math.log2(bytes));
    const costs = points.map(([, value]) => Math.log2(value));
    const scale = (value: number, all: number[], from: number, to: number) => {
        const least = Math.min(...all);
        return from + ((value - least) / (Math.max(...all) - least || 1)) * (to - from);
    };
    const x = (bytes: number) => scale(Math.log2(bytes), sizes, LEFT, WIDTH - 20);
    const y = (value: number) => scale(Math.log2(value), costs, HEIGHT - BOTTOM, 10);
    const ticks = [...new Set(measured.map((one) => one.size_bytes))].sort((a, b) => a - b);
    const words = curves.map((curve, number) => {
        const [last, dearest] = curve.at(-1) ?? [0, 0];
        return `a ${size(last)} ${number ? "write" : "read"} costs ${rate(dearest)}`;
    });
    return (
        <svg
            viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
            role="img"
            aria-label={`Cost of a request by its size: ${words.join(", ")}`}
            className="iokeel-costs"
        >
            {ticks.map((bytes) => (
                <text key={bytes} x={x(bytes)} y={HEIGHT - 6} textAnchor="middle">
                    {size(bytes)}
                </text>
            ))}
            {[Math.min(...costs), Math.max(...costs)].map((log) => (
                <text key={log} x={LEFT - 8} y={y(2 ** log) + 4} textAnchor="end">
                    {rate(2 ** log)}
                </text>
            ))}
            {curves.map((curve, number) => (
                <path
                    key={number}
                    className={number ? "iokeel-allowed" : "iokeel-rate"}
                    fill="none"
                    d={curve.map(([bytes, value], i) => `${i ? "L" : "M"}${x(bytes)} ${y(value)}`).join("")}
                />
            ))}
            {measured.map((one) => (
                <circle
                    key={`${one.kind}${one.size_bytes}`}
                    cx={x(one.size_bytes)}
                    cy={y(cost(one))}
                    r="3"
                    className="iokeel-point"
                />
            ))}
        </svg>
    );
}
