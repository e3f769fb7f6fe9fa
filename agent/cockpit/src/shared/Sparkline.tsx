import type { Point } from "../host/trends";
import { rate } from "./words";

const WIDTH = 120;
const HEIGHT = 24;

/** The rates of the last seconds as a line, and what is allowed as a dashed one. Gaps stay gaps. */
export function Sparkline({
    points,
    allowed,
    spanS,
}: {
    points: readonly Point[];
    allowed: number | null;
    spanS: number;
}) {
    const known = points.flatMap((point) => (point.iops === null ? [] : [point.iops]));
    const last = points.at(-1)?.at ?? 0;
    const top = Math.max(allowed ?? 0, ...known, 1) * 1.05;
    const x = (at: number) => WIDTH * (1 - (last - at) / (1000 * spanS));
    const y = (iops: number) => HEIGHT - 1 - (iops / top) * (HEIGHT - 2);
    let path = "";
    let pen = "M";
    for (const { at, iops } of points) {
        if (iops === null) {
            pen = "M";
            continue;
        }
        path += `${pen}${x(at).toFixed(1)} ${y(iops).toFixed(1)}`;
        pen = "L";
    }
    const words = known.length
        ? `${rate(Math.min(...known))} to ${rate(Math.max(...known))} iops in two minutes`
        : "no rates yet";
    return (
        <svg
            className="iokeel-sparkline"
            viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
            preserveAspectRatio="none"
            role="img"
            aria-label={words}
        >
            {allowed !== null && (
                <line className="iokeel-allowed" x1="0" x2={WIDTH} y1={y(allowed)} y2={y(allowed)} />
            )}
            <path className="iokeel-rate" d={path} />
        </svg>
    );
}
