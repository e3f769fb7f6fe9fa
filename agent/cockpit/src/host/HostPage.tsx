import { EmptyState, EmptyStateBody, PageSection, Stack, StackItem } from "@patternfly/react-core";
import { CubesIcon } from "@patternfly/react-icons";
import { useMemo } from "react";
import type { Live } from "../agent/live";
import type { HostNow } from "../agent/questions";
import { rowsOf } from "../drives";
import { Stale, Waiting } from "../shared/Trouble";
import { Drives } from "./Drives";
import { Problems } from "./Problems";
import { Storages } from "./Storages";
import type { Trends } from "./trends";

/** The host: what is wrong, its storages, its drives. */
export function HostPage({ live, trends }: { live: Live<HostNow>; trends: Trends }) {
    const now = live.answer;
    const rows = useMemo(() => (now ? rowsOf(now) : []), [now]);
    if (!now) {
        return (
            <PageSection>
                <Waiting error={live.error} />
            </PageSection>
        );
    }
    return (
        <PageSection hasBodyWrapper={false}>
            <Stack hasGutter>
                <Stale live={live} />
                <Problems now={now} rows={rows} />
                {now.storages.length > 0 && (
                    <StackItem>
                        <Storages now={now} rows={rows} />
                    </StackItem>
                )}
                <StackItem>
                    {rows.length ? <Drives rows={rows} trends={trends} /> : <NoDrives />}
                </StackItem>
            </Stack>
        </PageSection>
    );
}

function NoDrives() {
    return (
        <EmptyState titleText="No guest runs here" headingLevel="h2" icon={CubesIcon}>
            <EmptyStateBody>Its drives are shown here as soon as one has started.</EmptyStateBody>
        </EmptyState>
    );
}
