import { Card, CardBody, CardTitle, Progress, ProgressMeasureLocation } from "@patternfly/react-core";
import type { Drive } from "../agent/records";
import { percent, plural, rate, size } from "../shared/words";

/** What a drive's requests are: their sizes if QEMU counts them, else their mean size. */
export function Mix({ drive }: { drive: Drive }) {
    return (
        <Card isFullHeight>
            <CardTitle component="h2">Its requests</CardTitle>
            <CardBody>
                <Direction
                    word="reads"
                    raw={drive.raw_read_iops}
                    bytes={drive.mean_read_bytes}
                    throttle={drive.read}
                />
                <Direction
                    word="writes"
                    raw={drive.raw_write_iops}
                    bytes={drive.mean_write_bytes}
                    throttle={drive.write}
                />
            </CardBody>
        </Card>
    );
}

function Direction({
    word,
    raw,
    bytes,
    throttle,
}: {
    word: string;
    raw: number | null;
    bytes: number | null;
    throttle: Drive["read"];
}) {
    if (!raw) return <p>{raw === null ? `Its ${word} are not known yet.` : `No ${word} now.`}</p>;
    const sizes = Object.entries(throttle?.recent_sizes ?? {}).filter(([, count]) => count > 0);
    const all = sizes.reduce((sum, [, count]) => sum + count, 0);
    return (
        <>
            <p>
                {rate(raw)} {word} a second of {size(bytes)} on average
                {throttle?.waiting ? `; ${plural(throttle.waiting, "request")} wait now` : ""}
            </p>
            {sizes.map(([least, count]) => (
                <Progress
                    key={least}
                    size="sm"
                    title={`${word} of ${size(Number(least))} to ${size(2 * Number(least))}`}
                    value={(100 * count) / all}
                    label={percent(count / all)}
                    measureLocation={ProgressMeasureLocation.outside}
                />
            ))}
        </>
    );
}
