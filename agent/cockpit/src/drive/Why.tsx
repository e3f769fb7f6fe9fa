import { Card, CardBody, CardTitle } from "@patternfly/react-core";
import { visible } from "../shared/words";

/** The last decision, step by step. */
export function Why({ steps }: { steps: readonly string[] }) {
    return (
        <Card isFullHeight>
            <CardTitle component="h2">Why</CardTitle>
            <CardBody>
                <ol className="iokeel-why" aria-label="The last decision, step by step">
                    {steps.map((step, number) => (
                        <li key={number}>{visible(step)}</li>
                    ))}
                </ol>
            </CardBody>
        </Card>
    );
}
