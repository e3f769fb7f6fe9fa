import { Card, CardBody, CardTitle, Label, Progress } from "@patternfly/react-core";
import type { HostNow } from "../agent/questions";
import type { Fleet, Storage } from "../agent/records";
import { load, type Row, tellsWhatItKeeps, worst } from "../drives";
import { type DenseRow, DenseTable } from "../shared/DenseTable";
import { Name } from "../shared/Name";
import { StateLabel } from "../shared/StateLabel";
import { duration, NONE, percent, rate } from "../shared/words";

const COLUMNS = ["Name", "Drives", "Load", "Capacity", "Latency / target", "Promised", "Drives' state"];

/** The storages: load, latency against its target, promises against what can be kept. */
export function Storages({ now, rows }: { now: HostNow; rows: readonly Row[] }) {
    return (
        <Card>
            <CardTitle component="h2">Storages</CardTitle>
            <CardBody>
                <DenseTable
                    label="Storages"
                    columns={COLUMNS}
                    rows={now.storages.map((storage) => row(storage, now.fleet, rows))}
                />
            </CardBody>
        </Card>
    );
}

function row(storage: Storage, fleet: Fleet | null, rows: readonly Row[]): DenseRow {
    const name = storage.storage;
    const target = storage.latency_target_s === null ? "" : ` / ${duration(storage.latency_target_s)}`;
    const cells = [
        <Name text={name} />,
        storage.drives,
        <Load storage={storage} />,
        capacity(storage),
        `${duration(storage.latency_s)}${target}`,
        <Promised storage={storage} fleet={fleet} />,
        <StateLabel state={worst(rows.filter(({ drive }) => drive.storage === name))} />,
    ];
    return { key: name, cells };
}

function Load({ storage }: { storage: Storage }) {
    const part = load(storage);
    const words = `${rate(storage.normalized_iops)} iops`;
    if (part === null) return words;
    return (
        <Progress
            aria-label="Load"
            size="sm"
            value={Math.min(100, 100 * part)}
            className="iokeel-load"
            label={words}
            valueText={percent(part)}
        />
    );
}

function capacity({ capacity_iops, usable_iops, by_weight }: Storage): string {
    if (by_weight) return "by weight";
    if (capacity_iops === null) return "unknown";
    const now = usable_iops === null ? NONE : rate(usable_iops);
    return usable_iops === capacity_iops ? `${now} iops` : `${now} now, of ${rate(capacity_iops)} iops`;
}

function Promised({ storage, fleet }: { storage: Storage; fleet: Fleet | null }) {
    if (!storage.reserved_iops) return NONE;
    const words = `${rate(storage.reserved_iops)} iops`;
    if (!tellsWhatItKeeps(storage, fleet)) return words;
    if (storage.usable_iops === null) {
        return (
            <>
                {words} <Label isCompact color="orange">not guaranteed</Label>
            </>
        );
    }
    const part = storage.reserved_iops / storage.usable_iops;
    return (
        <>
            {words}{" "}
            <Label isCompact color={part > 1 ? "orange" : "green"}>
                {part > 1 ? "more than it can keep" : `${percent(part)} of it`}
            </Label>
        </>
    );
}
