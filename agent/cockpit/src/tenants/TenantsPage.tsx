import {
    Card,
    CardBody,
    CardTitle,
    EmptyState,
    EmptyStateBody,
    PageSection,
    Stack,
    StackItem,
} from "@patternfly/react-core";
import { UsersIcon } from "@patternfly/react-icons";
import type { Live } from "../agent/live";
import type { HostNow } from "../agent/questions";
import type { Promised } from "../agent/records";
import { useSettings } from "../agent/useSettings";
import { rowsOf, worst } from "../drives";
import { Drives } from "../host/Drives";
import type { Trends } from "../host/trends";
import { type DenseRow, DenseTable } from "../shared/DenseTable";
import { Link } from "../shared/Link";
import { Name } from "../shared/Name";
import { StateLabel } from "../shared/StateLabel";
import { Stale, Waiting } from "../shared/Trouble";
import { NONE, percent, rate } from "../shared/words";
import { type Sums, tenants } from "./sums";

/**
 * The tenants, and the drives of one that was chosen.
 *
 * chosen: its name; null: the drives without a tenant; undefined: none was chosen.
 */
export function TenantsPage({
    live,
    trends,
    chosen,
}: {
    live: Live<HostNow>;
    trends: Trends;
    chosen: string | null | undefined;
}) {
    const settings = useSettings();
    if (!live.answer) {
        return (
            <PageSection hasBodyWrapper={false}>
                <Waiting error={live.error} />
            </PageSection>
        );
    }
    const found = tenants(rowsOf(live.answer));
    const one = found.find(({ tenant }) => tenant === chosen);
    return (
        <PageSection hasBodyWrapper={false}>
            <Stack hasGutter>
                <Stale live={live} />
                <StackItem>
                    {found.length ? (
                        <TenantTable found={found} promised={settings?.tenants ?? {}} />
                    ) : (
                        <NoTenants />
                    )}
                </StackItem>
                {one && (
                    <StackItem>
                        <Drives rows={one.rows} trends={trends} of={one.tenant ?? "no tenant"} />
                    </StackItem>
                )}
            </Stack>
        </PageSection>
    );
}

/** Returns the tenant that a path names: "none" stands for null, because no part may be empty. */
export function chosenIn([, which, name]: string[]): string | null | undefined {
    return which === "none" ? null : which === "of" ? name : undefined;
}

const COLUMNS = ["Tenant", "VMs", "Drives", "Rate", "Allowed", "Used", "Limit", "Reservation", "Held", "State"];

function TenantTable({ found, promised }: { found: Sums[]; promised: Record<string, Promised> }) {
    return (
        <Card>
            <CardTitle component="h2">Tenants</CardTitle>
            <CardBody>
                <DenseTable
                    label="Tenants"
                    columns={COLUMNS}
                    rows={found.map((sums) => row(sums, promised[sums.tenant ?? ""]))}
                />
            </CardBody>
        </Card>
    );
}

function row(sums: Sums, promised: Promised | undefined): DenseRow {
    const { tenant, allowed } = sums;
    const used = sums.rate === null || !allowed ? null : sums.rate / allowed;
    const cells = [
        <Link to={tenant === null ? ["tenants", "none"] : ["tenants", "of", tenant]}>
            {tenant === null ? "no tenant" : <Name text={tenant} />}
        </Link>,
        sums.vms,
        sums.rows.length,
        rate(sums.rate),
        rate(allowed),
        percent(used),
        rate(promised?.limit_iops ?? null),
        promised?.reservation_iops ? rate(promised.reservation_iops) : NONE,
        sums.held,
        <StateLabel state={worst(sums.rows)} />,
    ];
    return { key: tenant ?? "", cells };
}

function NoTenants() {
    return (
        <EmptyState titleText="No guest runs here" headingLevel="h2" icon={UsersIcon}>
            <EmptyStateBody>A guest's policy names its tenant.</EmptyStateBody>
        </EmptyState>
    );
}
