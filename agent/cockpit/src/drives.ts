/** What a drive's figures say: its state, and means over reads and writes. */

import type { Drive, Fault, Fleet, Storage, Vm } from "./agent/records";
import type { HostNow } from "./agent/questions";

/** The states of a drive, worst first. */
export const STATES = ["error", "suffers", "bursts", "held", "free"] as const;
export type State = (typeof STATES)[number];

/** A drive with its state, and the error in its policy or its limits. */
export interface Row {
    key: string;
    drive: Drive;
    state: State;
    fault: Fault | null;
}

export function keyOf(drive: { domain: string; target: string }): string {
    return `${drive.domain}/${drive.target}`;
}

export function rowsOf(now: HostNow): Row[] {
    const suffering = new Set(now.storages.flatMap((storage) => storage.suffering));
    return now.vms.flatMap((vm) => vm.drives.map((drive) => rowOf(vm, drive, suffering)));
}

function rowOf(vm: Vm, drive: Drive, suffering: ReadonlySet<string>): Row {
    const key = keyOf(drive);
    const fault = drive.error ?? vm.policy_error;
    return { key, drive, fault, state: stateOf(drive, fault, suffering.has(key)) };
}

function stateOf(drive: Drive, fault: Fault | null, suffers: boolean): State {
    if (fault) return "error";
    if (suffers) return "suffers";
    if (drive.bursts) return "bursts";
    return drive.binding.length ? "held" : "free";
}

export function worst(rows: readonly Row[]): State {
    return STATES.find((state) => rows.some((row) => row.state === state)) ?? "free";
}

/** The part of its allowed rate that a drive uses; null: not known, or no limit. */
export function used(drive: Drive): number | null {
    if (drive.normalized_iops === null || !drive.allowed_iops) return null;
    return drive.normalized_iops / drive.allowed_iops;
}

/** The mean latency, the throttle's wait included. */
export function latency(drive: Drive): number | null {
    return mean(drive, drive.read_latency_s, drive.write_latency_s);
}

/** The mean wait for the throttle; null: QEMU doesn't count. */
export function wait(drive: Drive): number | null {
    return mean(
        drive,
        less(drive.read_latency_s, drive.read_device_latency_s),
        less(drive.write_latency_s, drive.write_device_latency_s),
    );
}

function mean(drive: Drive, read: number | null, write: number | null): number | null {
    let weight = 0;
    let sum = 0;
    for (const [raw, value] of [
        [drive.raw_read_iops, read],
        [drive.raw_write_iops, write],
    ] as const) {
        if (raw && value !== null) {
            weight += raw;
            sum += raw * value;
        }
    }
    return weight ? sum / weight : null;
}

function less(whole: number | null, part: number | null): number | null {
    return whole === null || part === null ? null : whole - part;
}

/** The sum of what is known; null if nothing is. */
export function total(values: readonly (number | null)[]): number | null {
    const known = values.filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
}

/** The part of what a storage can serve that its drives use; null: not known. */
export function load(storage: Storage): number | null {
    return storage.usable_iops ? storage.normalized_iops / storage.usable_iops : null;
}

/**
 * Whether usable_iops tells if a storage can keep its reservations.
 *
 * Of a storage of the fleet it is this host's part at present. One that is divided by weight has no
 * reservation yet: with the first, it is divided by its capacity, which isn't told before.
 */
export function tellsWhatItKeeps(storage: Storage, fleet: Fleet | null): boolean {
    return !storage.by_weight && !fleet?.storages.some(({ name }) => name === storage.storage);
}
