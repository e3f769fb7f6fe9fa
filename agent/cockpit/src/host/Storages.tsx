import { Card, CardBody, CardTitle, Label, Progress } from "@patternfly/react-core";
import { Table, Tbody, Td, Th, Thead, Tr } from "@patternfly/react-table";
import type { Storage } from "../agent/records";
import { load, type Row, worst } from "../drives";
import { Name } from "../shared/Name";
import { StateLabel } from "../shared/StateLabel";
import { duration, NONE, percent, rate } from "../shared/words";

/** The storages: load, latency against its target, promises against what can be kept. */
export function Storages({ storages, rows }: { storages: readonly Storage[]; rows: readonly Row[] }) {
    return (
        <Card>
            <CardTitle component="h2">Storages</CardTitle>
            <CardBody>
                <Table
                    aria-label="Storages"
                    variant="compact"
                    gridBreakPoint="grid-lg"
                    className="iokeel-dense"
                >
                    <Thead>
                        <Tr>
                            <Th modifier="nowrap">Name</Th>
                            <Th modifier="nowrap">Drives</Th>
                            <Th modifier="nowrap">Load</Th>
                            <Th modifier="nowrap">Capacity</Th>
                            <Th modifier="nowrap">Latency / target</Th>
                            <Th modifier="nowrap">Promised</Th>
                            <Th modifier="nowrap">Drives' state</Th>
                        </Tr>
                    </Thead>
                    <Tbody>
                        {storages.map((storage) => (
                            <OneStorage key={storage.storage} storage={storage} rows={rows} />
                        ))}
                    </Tbody>
                </Table>
            </CardBody>
        </Card>
    );
}

function OneStorage({ storage, rows }: { storage: Storage; rows: readonly Row[] }) {
    const part = load(storage);
    const name = storage.storage;
    const target = storage.latency_target_s === null ? "" : ` / ${duration(storage.latency_target_s)}`;
    return (
        <Tr>
            <Td dataLabel="Name">
                <Name text={name} />
            </Td>
            <Td dataLabel="Drives">{storage.drives}</Td>
            <Td dataLabel="Load">
                {part === null ? (
                    `${rate(storage.normalized_iops)} iops`
                ) : (
                    <Progress
                        aria-label="Load"
                        size="sm"
                        value={Math.min(100, 100 * part)}
                        className="iokeel-load"
                        label={`${rate(storage.normalized_iops)} iops`}
                        valueText={percent(part)}
                    />
                )}
            </Td>
            <Td dataLabel="Capacity">{capacity(storage)}</Td>
            <Td dataLabel="Latency / target">
                {duration(storage.latency_s)}
                {target}
            </Td>
            <Td dataLabel="Promised">
                <Promised storage={storage} />
            </Td>
            <Td dataLabel="Drives' state">
                <StateLabel state={worst(rows.filter(({ drive }) => drive.storage === name))} />
            </Td>
        </Tr>
    );
}

function capacity({ capacity_iops, usable_iops }: Storage): string {
    if (capacity_iops === null) return "unknown";
    const now = usable_iops === null ? NONE : rate(usable_iops);
    return usable_iops === capacity_iops ? `${now} iops` : `${now} now, of ${rate(capacity_iops)} iops`;
}

function Promised({ storage }: { storage: Storage }) {
    if (!storage.reserved_iops) return NONE;
    const words = `${rate(storage.reserved_iops)} iops`;
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
