import {
    Alert,
    Button,
    Form,
    FormSection,
    Grid,
    GridItem,
    Modal,
    ModalBody,
    ModalFooter,
    ModalHeader,
} from "@patternfly/react-core";
import { said } from "../agent/client";
import type { Fleet, Settings, Storage, Vm } from "../agent/records";
import { Name } from "../shared/Name";
import { visible } from "../shared/words";
import { type Attribute, FIELDS, type Part } from "./attributes";
import { Notes } from "./Notes";
import { PolicyField } from "./PolicyField";
import { Promises } from "./Promises";
import { StoragePromise } from "./StoragePromise";
import { usePolicy } from "./usePolicy";

/** The form for the policy of a drive and of its VM. onClose: called with whether it was saved. */
export function PolicyForm({
    vm,
    target,
    storage,
    fleet,
    settings,
    uri,
    onClose,
}: {
    vm: Vm;
    target: string;
    storage: Storage | null;
    fleet: Fleet | null;
    settings: Settings;
    uri: string;
    onClose: (saved: boolean) => void;
}) {
    const policy = usePolicy(uri, vm.domain, target);
    const { values, edits, promised } = policy;
    const text = (attribute: Attribute) => values && (edits[attribute] ?? values[attribute] ?? "");
    const byClass = settings.classes[text("drive.class") || text("policy.class") || ""] ?? null;
    const curves = settings.storages[storage?.storage ?? ""] ?? settings;
    const save = async () => {
        if (await policy.save()) onClose(true);
    };
    const fields = (part: Part) =>
        FIELDS[part].map((field) => (
            <PolicyField
                key={field.attribute}
                field={field}
                text={text(field.attribute)}
                byClass={byClass}
                settings={settings}
                curves={curves}
                onChange={(typed) => policy.edit(field.attribute, typed)}
            />
        ));

    return (
        <Modal variant="large" isOpen onClose={() => onClose(false)} aria-labelledby="policy-title">
            <ModalHeader
                labelId="policy-title"
                title={
                    <>
                        Policy of <Name text={vm.domain} /> <Name text={target} />
                    </>
                }
                description="A rate in iops counts 4K reads. Larger requests cost more."
            />
            <ModalBody tabIndex={0}>
                <Form
                    id="policy"
                    onSubmit={(event) => {
                        event.preventDefault();
                        void save();
                    }}
                >
                    <Notes theirs={policy.theirs} apart={policy.apart} transient={policy.transient} />
                    {policy.error && (
                        <Alert component="h2" variant="danger" isInline role="alert" title={visible(policy.error)} />
                    )}
                    {promised?.warning && (
                        <Alert component="h2" variant="warning" isInline title={visible(said(promised.warning))}>
                            Drives that it doesn't name keep the policies that they have.
                        </Alert>
                    )}
                    {promised?.long_waits.map((said) => (
                        <Alert key={said} component="h2" variant="warning" isInline title={visible(said[0]?.toUpperCase() + said.slice(1))} />
                    ))}
                    <Grid hasGutter md={6}>
                        <GridItem>
                            <FormSection title="This drive" titleElement="h2">
                                {fields("drive")}
                            </FormSection>
                        </GridItem>
                        <GridItem>
                            <FormSection title="All drives of its VM" titleElement="h2">
                                {fields("policy")}
                            </FormSection>
                        </GridItem>
                    </Grid>
                    {promised && storage && (
                        <StoragePromise
                            storage={storage}
                            fleet={fleet}
                            vm={vm}
                            checked={promised}
                            settings={settings}
                        />
                    )}
                    {promised && (
                        <FormSection title="What is then promised" titleElement="h2">
                            <Promises checked={promised} />
                        </FormSection>
                    )}
                </Form>
            </ModalBody>
            <ModalFooter>
                <Button
                    type="submit"
                    form="policy"
                    isDisabled={!values || !Object.keys(edits).length || policy.busy}
                    isLoading={policy.busy}
                >
                    Save
                </Button>
                <Button variant="link" onClick={() => onClose(false)}>
                    Cancel
                </Button>
            </ModalFooter>
        </Modal>
    );
}
