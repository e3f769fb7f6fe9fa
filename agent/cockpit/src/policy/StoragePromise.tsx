import { Alert } from "@patternfly/react-core";
import type { Checked, Fleet, Settings, Storage, Vm } from "../agent/records";
import { tellsWhatItKeeps } from "../drives";
import { rate, visible } from "../shared/words";

/** What a storage would promise by a VM's policy as it is edited, and whether it could keep that. */
export function StoragePromise({
    storage,
    fleet,
    vm,
    checked,
    settings,
}: {
    storage: Storage;
    fleet: Fleet | null;
    vm: Vm;
    checked: Checked;
    settings: Settings;
}) {
    const { before, after, atMost } = reserved(storage, vm, checked, settings);
    const sum = Math.max(0, storage.reserved_iops - before) + after;
    const name = visible(storage.storage);
    const most = atMost ? "at most " : "";
    if (!tellsWhatItKeeps(storage, fleet)) {
        if (!sum) return null;
        const title = `${name} then promises ${most}${rate(sum)} iops to the drives of this host.`;
        return <Alert component="h2" variant="info" isInline title={title} />;
    }
    if (storage.usable_iops === null) {
        if (!after) return null;
        const title = `The reservation is not guaranteed, because the capacity of ${name} is not known.`;
        return <Alert component="h2" variant="warning" isInline title={title} />;
    }
    const kept = sum <= storage.usable_iops;
    const words = `${name} then promises ${most}${rate(sum)} of the ${rate(storage.usable_iops)} iops that it can serve.`;
    return (
        <Alert
            component="h2"
            variant={kept ? "info" : "warning"}
            isInline
            title={kept ? words : `${words} While all ask, each gets a part of its reservation.`}
        />
    );
}

/**
 * The iops that a VM has reserved on a storage, now and by a policy: the larger of what is reserved
 * for its drives there and for all of them together.
 *
 * atMost: the figures may be too high, because the VM is on several storages, or its tenant has a
 * reservation that its drives share.
 */
function reserved(storage: Storage, vm: Vm, checked: Checked, settings: Settings) {
    const here = vm.drives.filter((drive) => drive.storage === storage.storage);
    const sum = (figures: number[]) => figures.reduce((all, figure) => all + figure, 0);
    const now = sum(here.map((drive) => drive.reservation_iops));
    const then = sum(here.map((drive) => checked.drives[drive.target]?.reservation_iops ?? 0));
    const together = [vm.reservation_iops, checked.vm?.reservation_iops ?? 0] as const;
    const spread = here.length < vm.drives.length && together.some((iops) => iops > 0);
    const tenants = [vm.tenant, checked.tenant].map((name) => settings.tenants[name ?? ""]);
    return {
        before: Math.max(now, together[0]),
        after: Math.max(then, together[1]),
        atMost: spread || tenants.some((tenant) => tenant && tenant.reservation_iops > 0),
    };
}
