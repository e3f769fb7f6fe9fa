import type { Plot } from "../agent/records";
import { hour, rate, visible } from "../shared/words";

const HEIGHT = 100;
const HOUR_S = 3600;

/** A storage's rate by hour, under what its drives could share; bars are the time of missed promises. */
export function StoragePlot({ plot, since, until }: { plot: Plot; since: number; until: number }) {
    const { p95_iops: rates, missed_s: missed, usable_iops: usable } = plot;
    const top = Math.max(usable ?? 0, 1, ...rates.map((iops) => iops ?? 0));
    const y = (iops: number) => HEIGHT - ((HEIGHT - 2) * iops) / top;
    const path = rates
        .map((iops, at) => {
            if (iops === null) return "";
            const isFirst = (rates[at - 1] ?? null) === null;
            return (isFirst ? `M${at} ${y(iops)}` : `V${y(iops)}`) + "h1";
        })
        .join("");
    const shared = usable === null ? "" : `; dashed: what they could share, ${rate(usable)} iops`;
    const bars = missed.some((seconds) => seconds > 0) ? "; bars: promises missed" : "";
    const words = `${visible(plot.storage)}: what its drives did at once, up to ${rate(top)} iops${shared}${bars}`;
    return (
        <figure className="iokeel-week">
            <figcaption>{words}</figcaption>
            <svg viewBox={`0 0 ${rates.length} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={words}>
                {missed.map((seconds, at) => {
                    const high = HEIGHT * Math.min(1, seconds / HOUR_S);
                    return high > 0 && <rect key={at} className="iokeel-missed" x={at} y={HEIGHT - high} width="1" height={high} />;
                })}
                {usable !== null && (
                    <line className="iokeel-allowed" x1="0" x2={rates.length} y1={y(usable)} y2={y(usable)} />
                )}
                <path className="iokeel-rate" d={path} />
            </svg>
            <div className="iokeel-axis">
                {[since, (since + until) / 2, until].map((at) => (
                    <span key={at}>{hour(new Date(1000 * at))}</span>
                ))}
            </div>
        </figure>
    );
}
