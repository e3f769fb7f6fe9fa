/** Each tenant's drives together. */

import { type Row, total } from "../drives";

/** tenant: null for the drives without one. allowed: null if nothing limits one of them. */
export interface Sums {
    tenant: string | null;
    vms: number;
    rows: Row[];
    rate: number | null;
    allowed: number | null;
    held: number;
    errors: number;
}

/** Returns the tenants by name, and the drives without one last. */
export function tenants(rows: readonly Row[]): Sums[] {
    const found = new Map<string | null, Row[]>();
    for (const row of rows) {
        const tenant = row.drive.tenant;
        found.set(tenant, [...(found.get(tenant) ?? []), row]);
    }
    return [...found]
        .sort(([a], [b]) => (a === null ? 1 : b === null ? -1 : a < b ? -1 : 1))
        .map(([tenant, mine]) => sums(tenant, mine));
}

function sums(tenant: string | null, rows: Row[]): Sums {
    const drives = rows.map((row) => row.drive);
    const limited = drives.every((drive) => drive.allowed_iops !== null);
    return {
        tenant,
        vms: new Set(drives.map((drive) => drive.domain)).size,
        rows,
        rate: total(drives.map((drive) => drive.normalized_iops)),
        allowed: limited ? total(drives.map((drive) => drive.allowed_iops)) : null,
        held: drives.filter((drive) => drive.binding.length).length,
        errors: rows.filter((row) => row.state === "error").length,
    };
}
