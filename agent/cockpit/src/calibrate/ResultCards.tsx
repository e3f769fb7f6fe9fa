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
import { duration, rate, size, visible } from "../shared/words";
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
                                    <Td dataLabel="Depth">{one.depth}</Td>
                                    <Td dataLabel="p99">{duration(one.latency_p99_s)}</Td>
                                    <Td dataLabel="Cost">{rate(one.cost)}</Td>
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
const WIDTH = 480;
const HEIGHT = 220;
const LEFT = 40;
const BOTTOM = 24;

/** The fitted curves as lines and the measured costs as points, both axes logarithmic. */
function Costs({ result }: { result: Result }) {
    const measured = result.series.filter((one) => one.fit_error_ratio !== null);
    const curves = [result.curve_read, ...(result.curve_write ? [result.curve_write] : [])];
    const points = [...curves.flat(), ...measured.map((one) => [one.size_bytes, one.cost] as const)];
    const sizes = points.map(([bytes]) => Math.log2(bytes));
    const costs = points.map(([, cost]) => Math.log2(cost));
    const scale = (value: number, all: number[], from: number, to: number) => {
        const least = Math.min(...all);
        return from + ((value - least) / (Math.max(...all) - least || 1)) * (to - from);
    };
    const x = (bytes: number) => scale(Math.log2(bytes), sizes, LEFT, WIDTH - 20);
    const y = (cost: number) => scale(Math.log2(cost), costs, HEIGHT - BOTTOM, 10);
    const ticks = [...new Set(measured.map((one) => one.size_bytes))].sort((a, b) => a - b);
    const words = curves.map((curve, number) => {
        const [last, cost] = curve.at(-1) ?? [0, 0];
        return `a ${size(last)} ${number ? "write" : "read"} costs ${rate(cost)}`;
    });
    return (
        <svg
            viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
            role="img"
            aria-label={`Cost of a request by its size: ${words.join(", ")}`}
            className="iokeel-costs"
        >
            {ticks.map((bytes) => (
                <text key={bytes} x={x(bytes)} y={HEIGHT - 6} textAnchor="middle">
                    {size(bytes)}
                </text>
            ))}
            {[Math.min(...costs), Math.max(...costs)].map((log) => (
                <text key={log} x={LEFT - 8} y={y(2 ** log) + 4} textAnchor="end">
                    {rate(2 ** log)}
                </text>
            ))}
            {curves.map((curve, number) => (
                <path
                    key={number}
                    className={number ? "iokeel-allowed" : "iokeel-rate"}
                    fill="none"
                    d={curve.map(([bytes, cost], i) => `${i ? "L" : "M"}${x(bytes)} ${y(cost)}`).join("")}
                />
            ))}
            {measured.map((one) => (
                <circle
                    key={`${one.kind}${one.size_bytes}`}
                    cx={x(one.size_bytes)}
                    cy={y(one.cost)}
                    r="3"
                    className="iokeel-point"
                />
            ))}
        </svg>
    );
}
