import { Table, Tbody, Td, Th, Thead, Tr } from "@patternfly/react-table";
import type { Checked, Promised } from "../agent/records";
import { Name } from "../shared/Name";
import { duration, NONE, rate, whole } from "../shared/words";

const COLUMNS = ["Drive", "Limit", "Burst", "Credit", "Reservation", "Weight", "Latency target", "Reads and writes"];

/** What a policy promises each drive of a VM, and all of them together. */
export function Promises({ checked }: { checked: Checked }) {
    const rows: [string, Promised | null][] = Object.entries(checked.drives);
    return (
        <Table aria-label="What is then promised" variant="compact" gridBreakPoint="grid-lg" className="iokeel-dense">
            <Thead>
                <Tr>
                    {COLUMNS.map((word) => (
                        <Th key={word} modifier="nowrap">
                            {word}
                        </Th>
                    ))}
                </Tr>
            </Thead>
            <Tbody>
                {rows.map(([target, promised]) => (
                    <Row key={target} name={target} promised={promised} />
                ))}
                {checked.vm && <Row name="all together" promised={checked.vm} />}
            </Tbody>
        </Table>
    );
}

function Row({ name, promised }: { name: string; promised: Promised | null }) {
    const cells = promised === null ? ["no policy"] : figures(promised);
    return (
        <Tr>
            <Td dataLabel="Drive">
                <Name text={name} />
            </Td>
            {COLUMNS.slice(1).map((word, number) => (
                <Td key={word} dataLabel={word}>
                    {cells[number] ?? NONE}
                </Td>
            ))}
        </Tr>
    );
}

/** A VM has no weight, no latency target and no budgets. */
function figures(promised: Promised): string[] {
    const { limit_iops, burst_iops, burst_seconds, reservation_iops, weight, latency_target_ms } = promised;
    return [
        limit_iops === null ? "no limit" : rate(limit_iops),
        rate(burst_iops),
        burst_iops === null || burst_seconds === null ? NONE : duration(burst_seconds),
        reservation_iops ? rate(reservation_iops) : NONE,
        weight === null ? NONE : whole(weight),
        latency_target_ms === null ? NONE : duration(latency_target_ms / 1000),
        weight === null ? NONE : promised.separate_budgets ? "each" : "together",
    ];
}
