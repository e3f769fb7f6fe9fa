import { Table, Tbody, Td, Th, Thead, Tr } from "@patternfly/react-table";
import type { ReactNode } from "react";

/** cells: in the order of the columns. */
export interface DenseRow {
    key: string;
    cells: readonly ReactNode[];
}

/** A table of a few rows, in their order; on a narrow page, each row becomes a list. */
export function DenseTable({
    label,
    columns,
    rows,
}: {
    label: string;
    columns: readonly string[];
    rows: readonly DenseRow[];
}) {
    return (
        <Table aria-label={label} variant="compact" gridBreakPoint="grid-lg" className="iokeel-dense">
            <Thead>
                <Tr>
                    {columns.map((word) => (
                        <Th key={word} modifier="nowrap">
                            {word}
                        </Th>
                    ))}
                </Tr>
            </Thead>
            <Tbody>
                {rows.map(({ key, cells }) => (
                    <Tr key={key}>
                        {columns.map((word, number) => (
                            <Td key={word} dataLabel={word}>
                                {cells[number]}
                            </Td>
                        ))}
                    </Tr>
                ))}
            </Tbody>
        </Table>
    );
}
