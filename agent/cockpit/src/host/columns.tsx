/** The columns of the drives' table. */

import type { ReactNode } from "react";
import { latency, type Row, STATES, used, wait } from "../drives";
import { Link } from "../shared/Link";
import { Name } from "../shared/Name";
import { StateLabel } from "../shared/StateLabel";
import { duration, NONE, percent, rate } from "../shared/words";

/** value: what rows are sorted by. falls: figures begin with the largest. minor: the first to go. */
export interface Column {
    word: string;
    falls: boolean;
    minor?: boolean;
    value: (row: Row) => string | number | null;
    cell: (row: Row) => ReactNode;
}

function figure(word: string, value: (row: Row) => number | null, text: (n: number | null) => string) {
    return { word, falls: true, value, cell: (row: Row) => text(value(row)) };
}

function name(word: string, value: (row: Row) => string | null): Column {
    const cell = (row: Row) => {
        const text = value(row);
        return text === null ? NONE : <Name text={text} />;
    };
    return { word, falls: false, value, cell };
}

export const DRIVE: Column = {
    word: "Drive",
    falls: false,
    value: (row) => row.key,
    cell: ({ drive }) => (
        <Link to={["drive", drive.domain, drive.target]}>
            <Name text={drive.domain} /> <Name text={drive.target} />
        </Link>
    ),
};

const STATE: Column = {
    word: "State",
    falls: false,
    value: (row) => STATES.indexOf(row.state),
    cell: (row) => <StateLabel state={row.state} />,
};

export const RATE: Column = figure("Rate", ({ drive }) => drive.normalized_iops, rate);

export const COLUMNS: readonly Column[] = [
    DRIVE,
    STATE,
    RATE,
    figure("Allowed", ({ drive }) => drive.allowed_iops, rate),
    figure("Used", ({ drive }) => used(drive), percent),
    figure("Latency", ({ drive }) => latency(drive), duration),
    { ...figure("Wait", ({ drive }) => wait(drive), duration), minor: true },
    { ...figure("Credit", ({ drive }) => credit(drive), duration), minor: true },
    name("Tenant", ({ drive }) => drive.tenant),
    name("Storage", ({ drive }) => drive.storage),
];

function credit(drive: Row["drive"]): number | null {
    return drive.limit_iops && (drive.credit_s || drive.burst_open) ? Math.floor(drive.credit_s) : null;
}

/** Returns rows in the order of a column. What isn't known comes last either way. */
export function sorted(rows: readonly Row[], column: Column, rising: boolean): Row[] {
    const sign = rising ? 1 : -1;
    return [...rows].sort((one, other) => {
        const a = column.value(one);
        const b = column.value(other);
        if (a === null || b === null) return a === b ? byKey(one, other) : a === null ? 1 : -1;
        if (a === b) return byKey(one, other);
        return (a < b ? -1 : 1) * sign;
    });
}

function byKey(one: Row, other: Row): number {
    return one.key < other.key ? -1 : 1;
}
