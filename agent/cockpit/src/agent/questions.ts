/** The questions that the page asks. */

import { ask } from "./client";
import * as records from "./records";
import type { Checked, History, Host, Report, Settings } from "./records";

// The agent reads weeks of 1,000 drives in some seconds, beside its ticks.
const READS_MS = 120_000;

/** The host, and when that was. */
export interface HostNow extends Host {
    at: number;
}

export async function hostNow(): Promise<HostNow> {
    return { ...(await ask("/v1/host", [], records.Host)), at: Date.now() };
}

export function settings(): Promise<Settings> {
    return ask("/v1/settings", [], records.Settings);
}

/** The rates of all drives in the last so many seconds. */
export function rates(seconds: number): Promise<History> {
    const query = [
        ["seconds", `${seconds}`],
        ["series", "normalized_iops"],
    ] as const;
    return ask("/v1/history", query, records.History);
}

/** All series of one drive, with the changes of its limits. */
export function history(domain: string, target: string, seconds: number): Promise<History> {
    const query = [
        ["domain", domain],
        ["target", target],
        ["seconds", `${seconds}`],
    ] as const;
    return ask("/v1/history", query, records.History);
}

/** The steps of the last decision on a drive. */
export async function why(domain: string, target: string): Promise<string[]> {
    const query = [
        ["domain", domain],
        ["target", target],
    ] as const;
    return (await ask("/v1/why", query, records.Why))[target] ?? [];
}

/** Whether a policy could be used, and what it would promise. */
export function checked(domain: string, xml: string): Promise<Checked> {
    return ask("/v1/policy", [["domain", domain]], records.Checked, xml);
}

/** The report of the last week. */
export function report(): Promise<Report> {
    return ask("/v1/report", [], records.Report, undefined, READS_MS);
}
