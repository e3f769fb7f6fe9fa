import { Card, CardBody, CardTitle, EmptyState, EmptyStateBody, PageSection, Stack, StackItem } from "@patternfly/react-core";
import { UsersIcon } from "@patternfly/react-icons";
import { Table, Tbody, Td, Th, Thead, Tr } from "@patternfly/react-table";
import type { Live } from "../agent/live";
import type { HostNow } from "../agent/questions";
import type { Fleet, FleetTenant } from "../agent/records";
import { fleetProblems } from "../host/findProblems";
import { ProblemList } from "../host/Problems";
import { Link } from "../shared/Link";
import { Name } from "../shared/Name";
import { Stale, Waiting } from "../shared/Trouble";
import { NONE, rate } from "../shared/words";
import { Shares } from "./Shares";
import { sharesOf } from "./whoHas";

/** The fleet as this host knows it: who has how much of the tenants' limits over all hosts. */
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
                            <TenantTable fleet={fleet} />
                        ) : (
                            "No drive here is of a tenant that has a limit in the fleet."
                        )}
                    </CardBody>
                </Card>
            </StackItem>
        </>
    );
}

const COLUMNS = ["Tenant", "Limit over all hosts", "Allowed here", "Floor here", "Who is charged", "Coordinator"];

function TenantTable({ fleet }: { fleet: Fleet }) {
    return (
        <Table aria-label="The fleet's tenants" variant="compact" gridBreakPoint="grid-lg" className="iokeel-dense">
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
                {fleet.tenants.map((tenant) => (
                    <OneTenant key={tenant.tenant} tenant={tenant} host={fleet.host} />
                ))}
            </Tbody>
        </Table>
    );
}

function OneTenant({ tenant, host }: { tenant: FleetTenant; host: string }) {
    const cells = [
        <Link to={["tenants", tenant.tenant]}>
            <Name text={tenant.tenant} />
        </Link>,
        rate(tenant.limit_iops),
        tenant.allowed_iops === null ? "not known yet" : rate(tenant.allowed_iops),
        rate(tenant.floor_iops),
        <Shares shares={sharesOf(tenant, host)} />,
        tenant.coordinator === null ? NONE : <Name text={tenant.coordinator} />,
    ];
    return (
        <Tr>
            {COLUMNS.map((word, number) => (
                <Td key={word} dataLabel={word}>
                    {cells[number]}
                </Td>
            ))}
        </Tr>
    );
}

function NoFleet() {
    return (
        <EmptyState titleText="This host is in no fleet" headingLevel="h2" icon={UsersIcon}>
            <EmptyStateBody>With [fleet] in its configuration, it shares tenants' limits with other hosts.</EmptyStateBody>
        </EmptyState>
    );
}
