import {
    Alert,
    Breadcrumb,
    BreadcrumbItem,
    Card,
    CardBody,
    Flex,
    Gallery,
    PageSection,
    Stack,
    StackItem,
    Title,
} from "@patternfly/react-core";
import { said } from "../agent/client";
import type { Live } from "../agent/live";
import { useLive } from "../agent/live";
import { type HostNow, history, why } from "../agent/questions";
import { rowsOf } from "../drives";
import { hrefOf } from "../location";
import { PolicyButton } from "../policy/PolicyButton";
import { Name } from "../shared/Name";
import { StateLabel } from "../shared/StateLabel";
import { Stale, Waiting } from "../shared/Trouble";
import { visible } from "../shared/words";
import { Charts } from "./Charts";
import { Figures } from "./Figures";
import { Mix } from "./Mix";
import { Why } from "./Why";

const EVERY_MS = 2000;
const SPAN_S = 300;

/** A drive: its figures, its last minutes, and why it may do what it may. */
export function DrivePage({
    domain,
    target,
    host,
}: {
    domain: string;
    target: string;
    host: Live<HostNow>;
}) {
    const live = useLive(`${domain}/${target}`, EVERY_MS, async () => {
        const [past, steps] = await Promise.all([
            history(domain, target, SPAN_S),
            why(domain, target),
        ]);
        return { past, steps, at: Date.now() };
    });
    const rows = host.answer ? rowsOf(host.answer) : [];
    const row = rows.find(({ drive }) => drive.domain === domain && drive.target === target);
    const vm = host.answer?.vms.find((one) => one.domain === domain);
    if (!live.answer || !vm || !row) {
        return (
            <PageSection hasBodyWrapper={false}>
                <Where domain={domain} target={target} />
                <Heading domain={domain} target={target} />
                <Waiting error={live.error ?? host.error} />
            </PageSection>
        );
    }
    const { past, steps, at } = live.answer;
    const storage = host.answer?.storages.find((one) => one.storage === row.drive.storage) ?? null;
    const fleet = host.answer?.fleet ?? null;
    return (
        <PageSection hasBodyWrapper={false}>
            <Stack hasGutter>
                <Where domain={domain} target={target} />
                <Flex>
                    <Heading domain={domain} target={target} />
                    <StateLabel state={row.state} />
                    <PolicyButton vm={vm} target={target} storage={storage} fleet={fleet} />
                </Flex>
                <Stale live={live} />
                {row.fault && <Alert component="h2" variant="danger" isInline title={visible(said(row.fault))} />}
                <StackItem>
                    <Card>
                        <CardBody>
                            <Figures row={row} />
                        </CardBody>
                    </Card>
                </StackItem>
                <StackItem>
                    <Charts history={past} at={at} />
                </StackItem>
                <StackItem>
                    <Gallery hasGutter minWidths={{ default: "100%", lg: "calc(50% - 1rem)" }}>
                        <Why steps={steps} />
                        <Mix drive={row.drive} />
                    </Gallery>
                </StackItem>
            </Stack>
        </PageSection>
    );
}

function Heading({ domain, target }: { domain: string; target: string }) {
    return (
        <Title headingLevel="h1">
            <Name text={domain} /> <Name text={target} />
        </Title>
    );
}

function Where({ domain, target }: { domain: string; target: string }) {
    return (
        <Breadcrumb>
            <BreadcrumbItem to={hrefOf([])}>Host</BreadcrumbItem>
            <BreadcrumbItem isActive>
                <Name text={`${domain}/${target}`} />
            </BreadcrumbItem>
        </Breadcrumb>
    );
}
