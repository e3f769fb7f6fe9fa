import { Alert, Button } from "@patternfly/react-core";
import { useState } from "react";
import type { Fleet, Storage, Vm } from "../agent/records";
import { useSettings } from "../agent/useSettings";
import { useAdmin } from "../location";
import { PolicyForm } from "./PolicyForm";

/** Opens the form for a drive's policy, or says why it can't be changed here. */
export function PolicyButton({
    vm,
    target,
    storage,
    fleet,
}: {
    vm: Vm;
    target: string;
    storage: Storage | null;
    fleet: Fleet | null;
}) {
    const admin = useAdmin();
    const settings = useSettings();
    const [open, setOpen] = useState(false);
    const [saved, setSaved] = useState(false);

    if (admin === false) return <span>Read only: changing a policy takes administrative access.</span>;
    if (!settings || admin === null) return null;
    const uri = settings.libvirt_uri;
    if (uri === null || !vm.from_libvirt) return <span>Read only: its policy is in the agent's configuration.</span>;
    return (
        <>
            <Button variant="secondary" onClick={() => setOpen(true)}>
                Change its policy
            </Button>
            {saved && <Alert component="h2" variant="success" isInline isPlain title="The policy is saved." />}
            {open && (
                <PolicyForm
                    vm={vm}
                    target={target}
                    storage={storage}
                    fleet={fleet}
                    settings={settings}
                    uri={uri}
                    onClose={(done) => {
                        setOpen(false);
                        setSaved(done);
                    }}
                />
            )}
        </>
    );
}
