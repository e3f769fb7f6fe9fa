/** The attributes of a drive's policy that the form has, and how it names them. */

import type { Promised } from "../agent/records";

export const ATTRIBUTES = [
    "class",
    "limit",
    "burst",
    "burst-seconds",
    "reservation",
    "weight",
    "latency-target-ms",
] as const;
export type Attribute = (typeof ATTRIBUTES)[number];

/** An attribute's text as it is written; "": not given. */
export type Values = Readonly<Record<Attribute, string>>;
export type Edits = Partial<Values>;

export interface Kind {
    word: string;
    unit: string;
    /** What it is without this attribute, by the class. */
    otherwise: (promised: Promised) => number | null;
}

/** All but the class, which is chosen from a list. */
export const NUMBERS: Readonly<Record<Exclude<Attribute, "class">, Kind>> = {
    limit: { word: "Limit", unit: "iops", otherwise: (p) => p.limit_iops },
    burst: { word: "Burst", unit: "iops", otherwise: (p) => p.burst_iops },
    "burst-seconds": { word: "Longest burst", unit: "s", otherwise: (p) => p.burst_seconds },
    reservation: { word: "Reservation", unit: "iops", otherwise: (p) => p.reservation_iops || null },
    weight: { word: "Weight", unit: "", otherwise: (p) => p.weight },
    "latency-target-ms": { word: "Latency target", unit: "ms", otherwise: (p) => p.latency_target_ms },
};
