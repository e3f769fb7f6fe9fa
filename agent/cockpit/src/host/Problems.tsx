import { Alert, AlertGroup, Button, StackItem } from "@patternfly/react-core";
import { useState } from "react";
import type { HostNow } from "../agent/questions";
import type { Row } from "../drives";
import { Link } from "../shared/Link";
import { plural, visible } from "../shared/words";
import { type Problem, problems } from "./findProblems";

const AT_FIRST = 5;

/** What is wrong, or that nothing is. */
export function Problems({ now, rows }: { now: HostNow; rows: readonly Row[] }) {
    const found = problems(now, rows);
    if (!found.length) {
        const held = rows.filter((row) => row.state === "held").length;
        const words = held ? `${plural(held, "drive")} at the limit.` : "No drive is at its limit.";
        return (
            <StackItem>
                <Alert component="h2" variant="success" isInline isPlain title={`Nothing is wrong. ${words}`} />
            </StackItem>
        );
    }
    return <ProblemList problems={found} />;
}

/** What is wrong, the first few of it at first. */
export function ProblemList({ problems: found }: { problems: readonly Problem[] }) {
    const [all, setAll] = useState(false);
    if (!found.length) return null;
    const shown = all ? found : found.slice(0, AT_FIRST);
    return (
        <StackItem>
            <AlertGroup aria-label="What is wrong">
                {shown.map(({ key, severity, text, drive }) => (
                    <Alert component="h2"
                        key={key}
                        variant={severity}
                        isInline
                        className="iokeel-problem"
                        title={visible(text)}
                        actionLinks={drive && <Link to={["drive", ...drive]}>Look at the drive</Link>}
                    />
                ))}
            </AlertGroup>
            {found.length > AT_FIRST && (
                <Button variant="link" onClick={() => setAll(!all)}>
                    {all ? "Show fewer" : `Show ${found.length - AT_FIRST} more`}
                </Button>
            )}
        </StackItem>
    );
}
