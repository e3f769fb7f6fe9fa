/** The attributes that the form has: all that a policy's schema knows of a drive and of a VM. */

import type { Promised } from "../agent/records";

/** The elements of a policy: the <drive> that the form is about, and the <policy> around it. */
export type Part = "drive" | "policy";

/** An attribute of one of them: "drive.limit". */
export type Attribute = `${Part}.${string}`;

/** Attributes' texts as they are written; "" or none: not given. */
export type Values = Readonly<Partial<Record<Attribute, string>>>;

/** What an attribute's text is: a number with its unit, a word of a list, the name of a class. */
export type Kind =
    | { is: "number"; unit: string; otherwise?: (promised: Promised) => number | null }
    | { is: "choice"; choices: Readonly<Record<string, string>> }
    | { is: "class"; none: string }
    | { is: "name" };

export interface Field {
    attribute: Attribute;
    word: string;
    kind: Kind;
}

/** otherwise: what a rate is without the attribute, by the class. */
function iops(otherwise?: (promised: Promised) => number | null): Kind {
    return { is: "number", unit: "iops", ...(otherwise && { otherwise }) };
}

export const FIELDS: Readonly<Record<Part, readonly Field[]>> = {
    drive: [
        { attribute: "drive.class", word: "Class", kind: { is: "class", none: "that of its VM, or none" } },
        { attribute: "drive.limit", word: "Limit", kind: iops((p) => p.limit_iops) },
        { attribute: "drive.burst", word: "Burst", kind: iops((p) => p.burst_iops) },
        {
            attribute: "drive.burst-seconds",
            word: "Longest burst",
            kind: { is: "number", unit: "s", otherwise: (p) => p.burst_seconds },
        },
        { attribute: "drive.reservation", word: "Reservation", kind: iops((p) => p.reservation_iops || null) },
        { attribute: "drive.weight", word: "Weight", kind: { is: "number", unit: "", otherwise: (p) => p.weight } },
        {
            attribute: "drive.latency-target-ms",
            word: "Latency target",
            kind: { is: "number", unit: "ms", otherwise: (p) => p.latency_target_ms },
        },
        {
            attribute: "drive.budget",
            word: "Reads and writes",
            kind: {
                is: "choice",
                choices: {
                    "": "as its class says, or together",
                    shared: "have the limit together",
                    separate: "have the limit each",
                },
            },
        },
        { attribute: "drive.limit-read", word: "Limit of reads", kind: iops((p) => p.limit_read_iops) },
        { attribute: "drive.limit-write", word: "Limit of writes", kind: iops((p) => p.limit_write_iops) },
        {
            attribute: "drive.max-bytes",
            word: "Most bytes",
            kind: { is: "number", unit: "B/s", otherwise: (p) => p.max_bytes },
        },
        {
            attribute: "drive.start-credit-seconds",
            word: "Credit at a boot",
            kind: { is: "number", unit: "s", otherwise: (p) => p.start_credit_seconds || null },
        },
    ],
    policy: [
        { attribute: "policy.tenant", word: "Tenant", kind: { is: "name" } },
        { attribute: "policy.class", word: "Class of each drive", kind: { is: "class", none: "none" } },
        { attribute: "policy.limit", word: "Limit of all together", kind: iops() },
        { attribute: "policy.burst", word: "Burst of all together", kind: iops() },
        {
            attribute: "policy.burst-seconds",
            word: "Longest burst of all together",
            kind: { is: "number", unit: "s" },
        },
        { attribute: "policy.reservation", word: "Reservation of all together", kind: iops() },
        { attribute: "policy.job-bps", word: "Rate of each block job", kind: { is: "number", unit: "B/s" } },
        {
            attribute: "policy.mode",
            word: "The guest",
            kind: {
                is: "choice",
                choices: {
                    "": "is held, or as the host's configuration says",
                    enforce: "is held",
                    observe: "is only observed",
                },
            },
        },
    ],
};

export const ATTRIBUTES: readonly Attribute[] = [...FIELDS.drive, ...FIELDS.policy].map(
    ({ attribute }) => attribute,
);

/** The name of an attribute in the XML. */
export function nameOf(attribute: Attribute): string {
    return attribute.slice(attribute.indexOf(".") + 1);
}
