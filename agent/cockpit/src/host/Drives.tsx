import {
    Card,
    CardBody,
    CardTitle,
    Pagination,
    SearchInput,
    ToggleGroup,
    ToggleGroupItem,
    Toolbar,
    ToolbarContent,
    ToolbarItem,
} from "@patternfly/react-core";
import { Table, Tbody, Td, Th, Thead, Tr } from "@patternfly/react-table";
import { useDeferredValue, useState } from "react";
import { type Row, type State, STATES } from "../drives";
import { Name } from "../shared/Name";
import { Sparkline } from "../shared/Sparkline";
import { MEANINGS } from "../shared/StateLabel";
import { type Column, COLUMNS, RATE, sorted } from "./columns";
import { SPAN_S, type Trends } from "./trends";

const PER_PAGE = 25;

/** The drives: sorted by any column, filtered as one types, with their last two minutes. */
export function Drives({
    rows,
    trends,
    of,
}: {
    rows: readonly Row[];
    trends: Trends;
    /** Whose they are, if they aren't all. */
    of?: string;
}) {
    const [column, setColumn] = useState(RATE);
    const [rising, setRising] = useState(false);
    const [typed, setTyped] = useState("");
    const [state, setState] = useState<State | null>(null);
    const [page, setPage] = useState(1);
    const [perPage, setPerPage] = useState(PER_PAGE);
    const words = useDeferredValue(typed).toLowerCase();

    const found = rows.filter((row) => (!state || row.state === state) && matches(row, words));
    const pages = Math.max(1, Math.ceil(found.length / perPage));
    const first = (Math.min(page, pages) - 1) * perPage;
    const shown = sorted(found, column, rising).slice(first, first + perPage);

    const pagination = (
        <Pagination
            isCompact
            itemCount={found.length}
            page={Math.min(page, pages)}
            perPage={perPage}
            onSetPage={(_, number) => setPage(number)}
            onPerPageSelect={(_, count) => setPerPage(count)}
        />
    );
    return (
        <Card>
            <CardTitle component="h2">{of === undefined ? "Drives" : <>Drives of <Name text={of} /></>}</CardTitle>
            <CardBody>
                <Toolbar>
                    <ToolbarContent>
                        <ToolbarItem>
                            <SearchInput
                                aria-label="Filter by VM, drive, tenant or storage"
                                placeholder="VM, drive, tenant, storage"
                                value={typed}
                                onChange={(_, text) => {
                                    setTyped(text);
                                    setPage(1);
                                }}
                                onClear={() => setTyped("")}
                            />
                        </ToolbarItem>
                        <ToolbarItem>
                            <ToggleGroup aria-label="Filter by state" isCompact>
                                {STATES.map((each) => (
                                    <ToggleGroupItem
                                        key={each}
                                        text={`${each} ${count(rows, each)}`}
                                        title={MEANINGS[each]}
                                        isSelected={state === each}
                                        onChange={(_, on) => {
                                            setState(on ? each : null);
                                            setPage(1);
                                        }}
                                    />
                                ))}
                            </ToggleGroup>
                        </ToolbarItem>
                        <ToolbarItem align={{ default: "alignEnd" }}>{pagination}</ToolbarItem>
                    </ToolbarContent>
                </Toolbar>
                <Table
                    aria-label="Drives"
                    variant="compact"
                    gridBreakPoint="grid-lg"
                    className="iokeel-dense"
                >
                    <Thead>
                        <Tr>
                            {COLUMNS.map((each, index) => (
                                <Th
                                    key={each.word}
                                    modifier="nowrap"
                                    className={look(each)}
                                    sort={{
                                        columnIndex: index,
                                        sortBy: {
                                            index: COLUMNS.indexOf(column),
                                            direction: rising ? "asc" : "desc",
                                        },
                                        onSort: () => {
                                            setRising(each === column ? !rising : !each.falls);
                                            setColumn(each);
                                        },
                                    }}
                                >
                                    {each.word}
                                </Th>
                            ))}
                            <Th modifier="nowrap">2 min</Th>
                        </Tr>
                    </Thead>
                    <Tbody>
                        {shown.map((row) => (
                            <Tr key={row.key}>
                                {COLUMNS.map((each) => (
                                    <Td key={each.word} dataLabel={each.word} className={look(each)}>
                                        {each.cell(row)}
                                    </Td>
                                ))}
                                <Td dataLabel="2 min">
                                    <Sparkline
                                        points={trends.get(row.key) ?? []}
                                        allowed={row.drive.allowed_iops}
                                        spanS={SPAN_S}
                                    />
                                </Td>
                            </Tr>
                        ))}
                        {!shown.length && (
                            <Tr>
                                <Td colSpan={COLUMNS.length + 1}>No drive fits the filter.</Td>
                            </Tr>
                        )}
                    </Tbody>
                </Table>
            </CardBody>
        </Card>
    );
}

function look(column: Column): string {
    return column.minor ? "iokeel-minor" : "";
}

function count(rows: readonly Row[], state: State): number {
    return rows.filter((row) => row.state === state).length;
}

function matches({ drive }: Row, words: string): boolean {
    const names = [drive.domain, drive.target, drive.tenant ?? "", drive.storage ?? ""];
    return !words || names.some((name) => name.toLowerCase().includes(words));
}

