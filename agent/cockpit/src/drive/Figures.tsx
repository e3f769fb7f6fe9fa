import {
    DescriptionList,
    DescriptionListDescription,
    DescriptionListGroup,
    DescriptionListTerm,
} from "@patternfly/react-core";
import type { ReactNode } from "react";
import { latency, type Row, used, wait } from "../drives";
import { Name } from "../shared/Name";
import { duration, list, NONE, percent, rate, whole } from "../shared/words";

/** A drive's figures now. */
export function Figures({ row: { drive } }: { row: Row }) {
    const some = (name: string | null) => (name === null ? NONE : <Name text={name} />);
    const figures: [string, ReactNode][] = [
        ["Rate", drive.normalized_iops === null ? NONE : `${rate(drive.normalized_iops)} iops`],
        ["Allowed", drive.allowed_iops === null ? "no limit" : `${rate(drive.allowed_iops)} iops`],
        ["Used", percent(used(drive))],
        ["Limit", drive.limit_iops === null ? "none" : `${rate(drive.limit_iops)} iops`],
        ["Reservation", drive.reservation_iops ? `${rate(drive.reservation_iops)} iops` : "none"],
        ["Latency", duration(latency(drive))],
        ["Wait for the throttle", duration(wait(drive))],
        ["Burst credit", credit(drive)],
        ["Bound by", drive.binding.length ? list(drive.binding) : "nothing"],
        ["Policy by rule", some(drive.rule)],
        ["Tenant", some(drive.tenant)],
        ["Storage", some(drive.storage)],
        ["Enforced", enforced(drive.mode)],
    ];
    return (
        <DescriptionList isCompact columnModifier={{ default: "2Col", lg: "3Col" }}>
            {figures.map(([word, figure]) => (
                <DescriptionListGroup key={word}>
                    <DescriptionListTerm>{word}</DescriptionListTerm>
                    <DescriptionListDescription>{figure}</DescriptionListDescription>
                </DescriptionListGroup>
            ))}
        </DescriptionList>
    );
}

function credit(drive: Row["drive"]): string {
    if (!drive.credit_s && !drive.burst_open) return "none";
    return `${whole(Math.floor(drive.credit_s))} s${drive.burst_open ? ", open" : ""}`;
}

function enforced(mode: string | null): string {
    if (mode === "exact") return "by QEMU, request by request";
    if (mode === "observe") return "not at all: only observed";
    return mode === null ? "no limits" : "by limits for its mix";
}
