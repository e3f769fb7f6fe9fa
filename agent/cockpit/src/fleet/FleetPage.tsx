import { Card, CardBody, CardTitle, EmptyState, EmptyStateBody, PageSection, Stack, StackItem } from "@patternfly/react-core";
import { UsersIcon } from "@patternfly/react-icons";
import type { ReactNode } from "react";
import type { Live } from "../agent/live";
import type { HostNow } from "../agent/questions";
import type { Fleet, FleetBudget } from "../agent/records";
import { fleetProblems } from "../host/findProblems";
import { ProblemList } from "../host/Problems";
import { type DenseRow, DenseTable } from "../shared/DenseTable";
import { Link } from "../shared/Link";
import { Name } from "../shared/Name";
import { Stale, Waiting } from "../shared/Trouble";
import { NONE, rate } from "../shared/words";
import { Shares } from "./Shares";
import { sharesOf } from "./whoHas";

/** The fleet as this host knows it: who has how much of tenants' limits and of shared storages. */
export function FleetPage({ live }: { live: Live<HostNow> }) {
    if (!live.answer) {
        return (
            <PageSection hasBodyWrapper={false}>
                <Waiting error={live.error} />
            </PageSection>
        );
    }
    const { fleet } = live.answer;
    return (
        <PageSection hasBodyWrapper={false}>
            <Stack hasGutter>
                <Stale live={live} />
                {fleet ? <InFleet fleet={fleet} /> : <NoFleet />}
            </Stack>
        </PageSection>
    );
}

function InFleet({ fleet }: { fleet: Fleet }) {
    return (
        <>
            <ProblemList problems={fleetProblems(fleet)} />
            <StackItem>
                <Card>
                    <CardTitle component="h2">
                        Tenants of the fleet with drives on <Name text={fleet.host} />
                    </CardTitle>
                    <CardBody>
                        {fleet.tenants.length ? (
                            <DenseTable
                                label="The fleet's tenants"
                                columns={["Tenant", "Limit over all hosts", ...COLUMNS]}
                                rows={fleet.tenants.map((tenant) => tenantRow(tenant, fleet.host))}
                            />
                        ) : (
                            "No drive here is of a tenant that has a limit in the fleet."
                        )}
                    </CardBody>
                </Card>
            </StackItem>
            {fleet.storages.length > 0 && (
                <StackItem>
                    <Card>
                        <CardTitle component="h2">Storages that other hosts use too</CardTitle>
                        <CardBody>
                            <DenseTable
                                label="The fleet's storages"
                                columns={["Storage", "Capacity", "Usable", ...COLUMNS]}
                                rows={fleet.storages.map((storage) => storageRow(storage, fleet.host))}
                            />
                        </CardBody>
                    </Card>
                </StackItem>
            )}
        </>
    );
}

const COLUMNS = ["Allowed here", "Floor here", "Who is charged", "Coordinator"];

function tenantRow(tenant: FleetBudget, host: string): DenseRow {
    const name = (
        <Link to={["tenants", "of", tenant.name]}>
            <Name text={tenant.name} />
        </Link>
    );
    return { key: tenant.name, cells: [name, rate(tenant.limit_iops), ...shared(tenant, host)] };
}

function storageRow(storage: FleetBudget, host: string): DenseRow {
    const name = <Name text={storage.name} />;
    const cells = [name, rate(storage.set_iops), rate(storage.limit_iops), ...shared(storage, host)];
    return { key: storage.name, cells };
}

function shared(budget: FleetBudget, host: string): ReactNode[] {
    return [
        budget.allowed_iops === null ? "not known yet" : rate(budget.allowed_iops),
        rate(budget.floor_iops),
        <Shares shares={sharesOf(budget, host)} />,
        budget.coordinator === null ? NONE : <Name text={budget.coordinator} />,
    ];
}

function NoFleet() {
    return (
        <EmptyState titleText="This host is in no fleet" headingLevel="h2" icon={UsersIcon}>
            <EmptyStateBody>With [fleet] in its configuration, it shares tenants' limits and storages with other hosts.</EmptyStateBody>
        </EmptyState>
    );
}
