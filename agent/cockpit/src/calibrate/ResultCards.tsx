import {
    Alert,
    Button,
    Card,
    CardBody,
    CardTitle,
    CodeBlock,
    CodeBlockAction,
    CodeBlockCode,
    Gallery,
} from "@patternfly/react-core";
import { Table, Tbody, Td, Th, Thead, Tr } from "@patternfly/react-table";
import { useState } from "react";
import { duration, NONE, rate, size, visible } from "../shared/words";
import { Costs } from "./Costs";
import type { Result } from "./records";

/** A calibration's result: the plot of its costs, its runs, and the configuration to take over. */
export function ResultCards({ result }: { result: Result }) {
    const [copied, setCopied] = useState(false);
    const copy = () => {
        void navigator.clipboard.writeText(result.config).then(() => setCopied(true));
    };
    return (
        <>
            {result.warnings.length > 0 && (
                <Alert component="h2" variant="warning" isInline title="Mind this before you use it">
                    <ul>
                        {result.warnings.map((warning) => (
                            <li key={warning}>{visible(warning)}</li>
                        ))}
                    </ul>
                </Alert>
            )}
            <Gallery hasGutter minWidths={{ default: "100%", lg: "calc(50% - 1rem)" }}>
                <Card>
                    <CardTitle component="h2">Cost of a request by its size</CardTitle>
                    <CardBody>
                        <Costs result={result} />
                    </CardBody>
                </Card>
                <Card>
                    <CardTitle component="h2">Configuration</CardTitle>
                    <CardBody>
                        <p>
                            It serves {rate(result.capacity)} iops. Put this into /etc/iokeel/agent.toml, then:
                            systemctl reload iokeel
                        </p>
                        <CodeBlock
                            actions={
                                <CodeBlockAction>
                                    <Button variant="link" isInline onClick={copy}>
                                        {copied ? "Copied" : "Copy"}
                                    </Button>
                                </CodeBlockAction>
                            }
                        >
                            <CodeBlockCode aria-label="The configuration">{result.config}</CodeBlockCode>
                        </CodeBlock>
                    </CardBody>
                </Card>
            </Gallery>
            <Card>
                <CardTitle component="h2">Runs</CardTitle>
                <CardBody>
                    <Table aria-label="Runs" variant="compact" gridBreakPoint="grid-lg">
                        <Thead>
                            <Tr>
                                {COLUMNS.map((word) => (
                                    <Th key={word}>{word}</Th>
                                ))}
                            </Tr>
                        </Thead>
                        <Tbody>
                            {result.series.map((one) => (
                                <Tr key={`${one.kind} ${one.order} ${one.size_bytes}`}>
                                    <Td dataLabel="Kind">
                                        {one.order} {one.kind}
                                    </Td>
                                    <Td dataLabel="Size">{size(one.size_bytes)}</Td>
                                    <Td dataLabel="Rate">{rate(one.raw_iops)} a second</Td>
                                    <Td dataLabel="Depth">{one.saturation_depth}</Td>
                                    <Td dataLabel="p99">{duration(one.latency_p99_s)}</Td>
                                    <Td dataLabel="Cost">{one.fit_error_ratio === null ? NONE : rate(one.cost)}</Td>
                                </Tr>
                            ))}
                        </Tbody>
                    </Table>
                </CardBody>
            </Card>
        </>
    );
}

const COLUMNS = ["Kind", "Size", "Rate", "Depth", "p99", "Cost"];
