/** What is wrong on a host, in the words of the agent's own command. */

import { said } from "../agent/client";
import type { HostNow } from "../agent/questions";
import type { Fault, Fleet, Storage } from "../agent/records";
import type { Row } from "../drives";
import { list, percent, rate } from "../shared/words";

const MOST_NAMES = 4;

/** drive: the drive that it is about, if it is about one. */
export interface Problem {
    key: string;
    severity: "danger" | "warning";
    text: string;
    drive: [string, string] | null;
}

/** Returns what is wrong, the worst first. */
export function problems(now: HostNow, rows: readonly Row[]): Problem[] {
    const policies = now.vms.flatMap((vm) =>
        vm.policy_error ? [ofVm(vm.domain, vm.drives[0]?.target ?? null, vm.policy_error)] : [],
    );
    const orders = rows.flatMap(({ drive, key }) =>
        drive.error ? [ofDrive(key, [drive.domain, drive.target], drive.error)] : [],
    );
    const fleet = now.fleet ? fleetProblems(now.fleet) : [];
    return [...policies, ...orders, ...fleet, ...now.storages.flatMap(ofStorage)];
}

/** Returns what is wrong with the fleet, as this host knows it. */
export function fleetProblems(fleet: Fleet): Problem[] {
    const problem = (key: string, severity: Problem["severity"], text: string): Problem => {
        return { key: `fleet ${key}`, severity, text, drive: null };
    };
    const found = fleet.error ? [problem("etcd", "danger", `fleet: etcd can't be used: ${said(fleet.error)}`)] : [];
    const budgets = [
        ...fleet.tenants.map((tenant) => ({ ...tenant, kind: "tenant" })),
        ...fleet.storages.map((storage) => ({ ...storage, kind: "storage" })),
    ];
    for (const { kind, name, error, silent, charges } of budgets) {
        if (error) found.push(problem(`error ${kind} ${name}`, "danger", `fleet: ${kind} ${name}: ${said(error)}`));
        for (const host of silent) {
            const text =
                `fleet: host ${host} doesn't report, and stays charged ${rate(charges[host] ?? 0)} iops` +
                ` of ${kind} ${name}; see \`iokeel fleet forget --help\``;
            found.push(problem(`silent ${kind} ${name} ${host}`, "warning", text));
        }
    }
    return found;
}

function ofVm(domain: string, target: string | null, fault: Fault): Problem {
    const drive: [string, string] | null = target === null ? null : [domain, target];
    return { key: `policy ${domain}`, severity: "danger", text: `policy error: ${said(fault)}`, drive };
}

function ofDrive(key: string, drive: [string, string], fault: Fault): Problem {
    return { key: `drive ${key}`, severity: "danger", text: `${key}: error: ${said(fault)}`, drive };
}

function ofStorage(storage: Storage): Problem[] {
    const name = storage.storage;
    const found: Problem[] = [];
    const add = (severity: Problem["severity"], text: string) =>
        found.push({
            key: `storage ${name} ${found.length}`,
            severity,
            text: `${name}: ${text}`,
            drive: null,
        });
    const drives = few(storage.suffering);
    if (storage.exhausted) {
        add(
            "danger",
            `${drives} above the latency target, and cutting other drives further is not possible or does not help`,
        );
    } else if (storage.suffering.length) {
        add("warning", `${drives} above the latency target`);
    }
    if (storage.oversold && storage.capacity_iops) {
        add(
            "warning",
            `${rate(storage.reserved_iops)} iops are reserved, but its capacity is` +
                ` ${rate(storage.capacity_iops)} iops; lower reservations or move a drive`,
        );
    } else if (storage.reserved_iops && storage.usable_iops === null) {
        add(
            "warning",
            "reservations are not guaranteed, because its capacity is not known;" +
                " see `iokeel calibrate --help`",
        );
    }
    if (storage.reservations_kept < 1) {
        const kept = percent(Math.min(storage.reservations_kept, 0.99));
        add("warning", `it can keep ${kept} of the reservations asked for now`);
    }
    return found;
}

function few(names: readonly string[]): string {
    const more = names.length - MOST_NAMES;
    return more > 0 ? `${list(names.slice(0, MOST_NAMES))} and ${more} more` : list(names);
}
