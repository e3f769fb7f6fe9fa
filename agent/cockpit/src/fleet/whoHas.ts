/** A tenant's limit over all hosts, or a shared storage, by who is charged for it. */

import type { FleetBudget } from "../agent/records";

/** kind: this host, another one, one that doesn't report, or what nobody is charged. */
export interface Share {
    host: string;
    kind: "here" | "other" | "silent" | "nobody";
    iops: number;
}

/** Returns the parts of a budget: this host's first, and what nobody is charged last. */
export function sharesOf(budget: FleetBudget, host: string): Share[] {
    const charged = Object.entries(budget.charges).map(([name, iops]): Share => {
        const kind = name === host ? "here" : budget.silent.includes(name) ? "silent" : "other";
        return { host: name, kind, iops };
    });
    charged.sort((a, b) => Number(b.kind === "here") - Number(a.kind === "here") || b.iops - a.iops);
    const iops = budget.limit_iops - charged.reduce((sum, share) => sum + share.iops, 0);
    return iops > 0 ? [...charged, { host: "nobody", kind: "nobody", iops }] : charged;
}
