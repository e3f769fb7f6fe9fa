import {
    ActionGroup,
    Alert,
    Button,
    Card,
    CardBody,
    CardTitle,
    Checkbox,
    Form,
    FormGroup,
    FormHelperText,
    HelperText,
    HelperTextItem,
    PageSection,
    Progress,
    Stack,
    StackItem,
    TextInput,
} from "@patternfly/react-core";
import { useState } from "react";
import { useAdmin } from "../location";
import { visible } from "../shared/words";
import { ResultCards } from "./ResultCards";
import type { Calibration } from "./useCalibration";

/** Measures a storage, and gives the configuration to take over. */
export function CalibratePage({ calibration }: { calibration: Calibration }) {
    const admin = useAdmin();
    const [storage, setStorage] = useState("");
    const [quick, setQuick] = useState(true);
    const [size, setSize] = useState("");
    const [seconds, setSeconds] = useState("");
    const { running, progress, result, error } = calibration;

    return (
        <PageSection hasBodyWrapper={false}>
            <Stack hasGutter>
                {admin === false && (
                    <Alert
                        component="h2"
                        variant="info"
                        isInline
                        title="Measuring a storage takes administrative access."
                    />
                )}
                <StackItem>
                    <Card>
                        <CardTitle component="h2">Measure what a storage serves</CardTitle>
                        <CardBody>
                            <Form
                                isWidthLimited
                                onSubmit={(event) => {
                                    event.preventDefault();
                                    calibration.start({ storage, quick, size, seconds });
                                }}
                            >
                                <FormGroup label="Storage" fieldId="calibrate-storage" isRequired>
                                    <TextInput
                                        id="calibrate-storage"
                                        value={storage}
                                        isRequired
                                        isDisabled={running}
                                        placeholder="/dev/sdb or /var/lib/libvirt/images"
                                        onChange={(_, text) => setStorage(text.trim())}
                                    />
                                    <FormHelperText>
                                        <HelperText>
                                            <HelperTextItem>
                                                A device is only read. A folder is measured in a temporary
                                                file. A storage in use is refused.
                                            </HelperTextItem>
                                        </HelperText>
                                    </FormHelperText>
                                </FormGroup>
                                <FormGroup label="How much of it" fieldId="calibrate-size">
                                    <TextInput
                                        id="calibrate-size"
                                        value={size}
                                        isDisabled={running}
                                        placeholder="4g in a folder, else all"
                                        onChange={(_, text) => setSize(text.trim())}
                                    />
                                </FormGroup>
                                <FormGroup label="Seconds per run" fieldId="calibrate-seconds">
                                    <TextInput
                                        id="calibrate-seconds"
                                        value={seconds}
                                        inputMode="decimal"
                                        isDisabled={running}
                                        placeholder={quick ? "1" : "3"}
                                        onChange={(_, text) => setSeconds(text.trim())}
                                    />
                                </FormGroup>
                                <Checkbox
                                    id="calibrate-quick"
                                    label="Quick: fewer sizes, two minutes instead of ten"
                                    isChecked={quick}
                                    isDisabled={running}
                                    onChange={(_, on) => setQuick(on)}
                                />
                                <ActionGroup>
                                    <Button type="submit" isDisabled={running || !storage || !admin}>
                                        Measure
                                    </Button>
                                    {running && (
                                        <Button variant="secondary" onClick={calibration.stop}>
                                            Stop
                                        </Button>
                                    )}
                                </ActionGroup>
                            </Form>
                        </CardBody>
                    </Card>
                </StackItem>
                {running && (
                    <StackItem>
                        <Progress
                            title={progress ? visible(progress.doing) : "checking the storage"}
                            value={progress?.total ? (100 * progress.done) / progress.total : 0}
                            helperText={progress?.last ? `before: ${progress.last}` : " "}
                        />
                    </StackItem>
                )}
                {error && (
                    <Alert component="h2" variant="danger" isInline role="alert" title={visible(error)} />
                )}
                {result && <ResultCards result={result} />}
            </Stack>
        </PageSection>
    );
}
