import { Alert } from "@patternfly/react-core";
import type { Storage } from "../agent/records";
import { rate, visible } from "../shared/words";

/** What a storage would promise if a drive's reservation changed. Rates in iops. */
export function StoragePromise({
    storage,
    before,
    after,
}: {
    storage: Storage;
    before: number;
    after: number;
}) {
    const sum = Math.max(0, storage.reserved_iops - before) + after;
    const name = visible(storage.storage);
    if (storage.usable_iops === null) {
        if (!after) return null;
        const title = `The reservation is not guaranteed, because the capacity of ${name} is not known.`;
        return <Alert component="h2" variant="warning" isInline title={title} />;
    }
    const kept = sum <= storage.usable_iops;
    const words = `${name} then promises ${rate(sum)} of the ${rate(storage.usable_iops)} iops that it can serve.`;
    return (
        <Alert component="h2"
            variant={kept ? "info" : "warning"}
            isInline
            title={kept ? words : `${words} While all ask, each gets a part of its reservation.`}
        />
    );
}
