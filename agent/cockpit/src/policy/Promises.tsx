import type { Checked, Promised } from "../agent/records";
import { type DenseRow, DenseTable } from "../shared/DenseTable";
import { Name } from "../shared/Name";
import { duration, NONE, rate, whole } from "../shared/words";

const COLUMNS = ["Drive", "Limit", "Burst", "Credit", "Reservation", "Weight", "Latency target", "Reads and writes", "1M waits"];

/** What a policy promises each drive of a VM, and all of them together. */
export function Promises({ checked }: { checked: Checked }) {
    const rows = Object.entries(checked.drives).map(([target, promised]) =>
        row(target, promised, checked.large_waits_s[target] ?? null),
    );
    if (checked.vm) rows.push(row("all together", checked.vm, null));
    return <DenseTable label="What is then promised" columns={COLUMNS} rows={rows} />;
}

/** waitS: how long one request of 1 MiB waits at its limits. */
function row(name: string, promised: Promised | null, waitS: number | null): DenseRow {
    const none = COLUMNS.slice(3).map(() => NONE);
    const known = promised ? figures(promised) : ["no policy", ...none];
    return { key: name, cells: [<Name text={name} />, ...known, duration(waitS)] };
}

/** A VM has no weight, no latency target and no budgets. */
function figures(promised: Promised): string[] {
    const { limit_iops, burst_iops, burst_seconds, reservation_iops, weight, latency_target_ms } = promised;
    return [
        limit_iops === null ? "no limit" : rate(limit_iops),
        rate(burst_iops),
        burst_iops === null || burst_seconds === null ? NONE : duration(burst_seconds),
        reservation_iops ? rate(reservation_iops) : NONE,
        weight === null ? NONE : whole(weight),
        latency_target_ms === null ? NONE : duration(latency_target_ms / 1000),
        weight === null ? NONE : promised.separate_budgets ? "each" : "together",
    ];
}
