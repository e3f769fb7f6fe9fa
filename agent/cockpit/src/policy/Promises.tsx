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
    const hasBytes = Object.values(checked.drives).some((promised) => promised?.max_bytes);
    const columns = hasBytes ? [...COLUMNS, "Most bytes"] : COLUMNS;
    return <DenseTable label="What is then promised" columns={columns} rows={rows} />;
}

/** waitS: how long one request of 1 MiB waits at its limits. */
function row(name: string, promised: Promised | null, waitS: number | null): DenseRow {
    const none = COLUMNS.slice(3).map(() => NONE);
    const known = promised ? figures(promised) : ["no policy", ...none];
    const bytes = promised?.max_bytes ? `${whole(promised.max_bytes)} B/s` : NONE;
    return { key: name, cells: [<Name text={name} />, ...known, duration(waitS), bytes] };
}

/** A VM has no weight, no latency target and no budgets. */
function figures(promised: Promised): string[] {
    const { limit_iops, burst_iops, burst_seconds, reservation_iops, weight, latency_target_ms } = promised;
    return [
        limit_iops === null ? "no limit" : limits(promised, limit_iops),
        rate(burst_iops),
        burst_iops === null || burst_seconds === null ? NONE : credit(promised, burst_seconds),
        reservation_iops ? rate(reservation_iops) : NONE,
        weight === null ? NONE : whole(weight),
        latency_target_ms === null ? NONE : duration(latency_target_ms / 1000),
        weight === null ? NONE : promised.separate_budgets ? "each" : "together",
    ];
}

/** A limit, or those of reads and of writes if one of them is lower. */
function limits({ limit_read_iops, limit_write_iops }: Promised, limitIops: number): string {
    if (limit_read_iops === null && limit_write_iops === null) return rate(limitIops);
    return `${rate(limit_read_iops ?? limitIops)} reads, ${rate(limit_write_iops ?? limitIops)} writes`;
}

function credit({ start_credit_seconds }: Promised, burstSeconds: number): string {
    const most = duration(burstSeconds);
    return start_credit_seconds ? `${most}, ${duration(start_credit_seconds)} at a boot` : most;
}
