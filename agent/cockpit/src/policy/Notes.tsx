import { Alert } from "@patternfly/react-core";
import { visible } from "../shared/words";
import { type Attribute, nameOf } from "./attributes";
import type { Theirs } from "./usePolicy";

/** What a person has to know before saving: that others changed the policy, or where it goes. */
export function Notes({
    theirs,
    apart,
    transient,
}: {
    theirs: readonly Theirs[] | null;
    apart: boolean;
    transient: boolean;
}) {
    return (
        <>
            {theirs && (
                <Alert
                    component="h2"
                    variant="warning"
                    isInline
                    role="alert"
                    title="Somebody else has changed this policy. Nothing is saved yet."
                >
                    {theirs.length > 0 && (
                        <ul>
                            {theirs.map(({ attribute, before, now }) => (
                                <li key={attribute}>
                                    {whose(attribute)}: {visible(before) || "not given"} before, {visible(now) || "not given"}{" "}
                                    now
                                </li>
                            ))}
                        </ul>
                    )}
                    {theirs.length ? "" : "It is another part of it, which stays. "}
                    What you have typed is still in the form. Save again to write it as it is shown.
                </Alert>
            )}
            {apart && (
                <Alert
                    component="h2"
                    variant="info"
                    isInline
                    title="Another policy is written for the guest's next start. Your changes go into both."
                />
            )}
            {transient && (
                <Alert component="h2" variant="info" isInline title="libvirt forgets this domain, and its policy, once it stops." />
            )}
        </>
    );
}

function whose(attribute: Attribute): string {
    const name = nameOf(attribute);
    return attribute.startsWith("policy.") ? `${name} of the VM` : name;
}
