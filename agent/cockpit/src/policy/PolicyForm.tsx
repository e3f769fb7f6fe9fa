import {
    Alert,
    Button,
    Form,
    FormGroup,
    FormHelperText,
    FormSelect,
    FormSelectOption,
    HelperText,
    HelperTextItem,
    InputGroup,
    InputGroupItem,
    InputGroupText,
    Modal,
    ModalBody,
    ModalFooter,
    ModalHeader,
    TextInput,
} from "@patternfly/react-core";
import type { Drive, Settings, Storage } from "../agent/records";
import { Name } from "../shared/Name";
import { visible } from "../shared/words";
import { type Attribute, NUMBERS } from "./attributes";
import { meaning } from "./meaning";
import { Notes } from "./Notes";
import { StoragePromise } from "./StoragePromise";
import { usePolicy } from "./usePolicy";

const WHOLE = /^[0-9]{1,12}$/;

/** The form for a drive's policy. onClose: called with whether it was saved. */
export function PolicyForm({
    drive,
    storage,
    settings,
    uri,
    onClose,
}: {
    drive: Drive;
    storage: Storage | null;
    settings: Settings;
    uri: string;
    onClose: (saved: boolean) => void;
}) {
    const policy = usePolicy(uri, drive.domain, drive.target);
    const { values, edits, promised } = policy;
    const text = (name: Attribute) => edits[name] ?? values?.[name] ?? "";
    const chosen = settings.classes[text("class")];
    const classes = Object.keys(settings.classes);
    const unknown = text("class") && !chosen ? [text("class")] : [];
    const save = async () => {
        if (await policy.save()) onClose(true);
    };

    return (
        <Modal variant="medium" isOpen onClose={() => onClose(false)} aria-labelledby="policy-title">
            <ModalHeader
                labelId="policy-title"
                title={
                    <>
                        Policy of <Name text={drive.domain} /> <Name text={drive.target} />
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
                    <FormGroup label="Class" fieldId="policy-class">
                        <FormSelect
                            id="policy-class"
                            value={text("class")}
                            isDisabled={!values}
                            onChange={(_, name) => policy.edit("class", name)}
                        >
                            <FormSelectOption value="" label="that of its VM, or none" />
                            {[...classes, ...unknown].map((name) => (
                                <FormSelectOption key={name} value={name} label={visible(name)} />
                            ))}
                        </FormSelect>
                    </FormGroup>
                    {Object.entries(NUMBERS).map(([key, kind]) => {
                        const name = key as keyof typeof NUMBERS;
                        const given = text(name);
                        const otherwise = chosen ? kind.otherwise(chosen) : null;
                        const iops = WHOLE.test(given) ? Number(given) : given ? null : otherwise;
                        return (
                            <FormGroup key={name} label={kind.word} fieldId={`policy-${name}`}>
                                <InputGroup>
                                    <InputGroupItem isFill>
                                        <TextInput
                                            id={`policy-${name}`}
                                            value={given}
                                            inputMode="decimal"
                                            isDisabled={!values}
                                            placeholder={otherwise === null ? "" : `${otherwise} by its class`}
                                            onChange={(_, typed) => policy.edit(name, typed.trim())}
                                        />
                                    </InputGroupItem>
                                    {kind.unit && <InputGroupText>{kind.unit}</InputGroupText>}
                                </InputGroup>
                                {kind.unit === "iops" && iops !== null && (
                                    <FormHelperText>
                                        <HelperText>
                                            <HelperTextItem>{meaning(iops, settings)}</HelperTextItem>
                                        </HelperText>
                                    </FormHelperText>
                                )}
                            </FormGroup>
                        );
                    })}
                    {promised && storage && (
                        <StoragePromise
                            storage={storage}
                            before={drive.reservation_iops}
                            after={promised.reservation_iops}
                        />
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
