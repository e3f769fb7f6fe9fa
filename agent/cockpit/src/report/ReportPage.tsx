import {
    Alert,
    Card,
    CardBody,
    CardTitle,
    EmptyState,
    EmptyStateBody,
    PageSection,
    Stack,
    StackItem,
} from "@patternfly/react-core";
import type { ReactNode } from "react";
import { useLive } from "../agent/live";
import { report } from "../agent/questions";
import type { Report, Section } from "../agent/records";
import { DenseTable } from "../shared/DenseTable";
import { Name } from "../shared/Name";
import { Stale, Waiting } from "../shared/Trouble";
import { visible } from "../shared/words";
import { StoragePlot } from "./StoragePlot";

const EVERY_MS = 3_600_000;

/** What people should know of the last week, as `iokeel report` tells it. */
export function ReportPage() {
    const live = useLive("report", EVERY_MS, report);
    return (
        <PageSection hasBodyWrapper={false}>
            <Stack hasGutter>
                <Stale live={live} />
                {live.answer ? (
                    <Found found={live.answer} />
                ) : live.error?.trouble === "refused" ? (
                    <NoHistory>{visible(live.error.message)}</NoHistory>
                ) : (
                    <Waiting error={live.error} />
                )}
            </Stack>
        </PageSection>
    );
}

function Found({ found }: { found: Report }) {
    if (!found.sections.length) return <NoHistory>{found.notes.join(" ")}</NoHistory>;
    return (
        <>
            {found.notes.map((note) => (
                <Alert key={note} component="h2" variant="info" isInline title={visible(note)} />
            ))}
            {found.sections.map((section) => (
                <StackItem key={section.title}>
                    <Card>
                        <CardTitle component="h2">{section.title}</CardTitle>
                        <CardBody>
                            <p className="iokeel-said">{visible(section.finding)}</p>
                            {section.rows.length > 0 && <SectionTable section={section} />}
                            {section.title === "Storages" &&
                                found.plots.map((plot) => (
                                    <StoragePlot key={plot.storage} plot={plot} since={found.since_s} until={found.until_s} />
                                ))}
                        </CardBody>
                    </Card>
                </StackItem>
            ))}
            <p>Rates are normalized: in 4 KiB reads a second. {visible(found.span)}</p>
        </>
    );
}

function SectionTable({ section: { title, headings, rows } }: { section: Section }) {
    return (
        <DenseTable
            label={title}
            columns={headings}
            rows={rows.map((row, number) => ({
                key: `${number}`,
                cells: row.map((cell) => <Name text={cell} />),
            }))}
        />
    );
}

function NoHistory({ children }: { children: ReactNode }) {
    return (
        <EmptyState titleText="There is no history" headingLevel="h2">
            <EmptyStateBody>{children}</EmptyStateBody>
        </EmptyState>
    );
}
