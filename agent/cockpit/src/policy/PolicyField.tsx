import {
    FormGroup,
    FormHelperText,
    FormSelect,
    FormSelectOption,
    HelperText,
    HelperTextItem,
    InputGroup,
    InputGroupItem,
    InputGroupText,
    TextInput,
} from "@patternfly/react-core";
import type { Curves, Promised, Settings } from "../agent/records";
import { visible } from "../shared/words";
import type { Field } from "./attributes";
import { meaning } from "./meaning";

const WHOLE = /^[0-9]{1,12}$/;

/**
 * One attribute, and what its number means. text: null until it is known. byClass: what it is without.
 * curves: those of its storage.
 */
export function PolicyField({
    field: { attribute, word, kind },
    text,
    byClass,
    settings,
    curves,
    onChange,
}: {
    field: Field;
    text: string | null;
    byClass: Promised | null;
    settings: Settings;
    curves: Curves;
    onChange: (text: string) => void;
}) {
    const id = attribute.replace(".", "-");
    const shared = { id, value: text ?? "", isDisabled: text === null };
    if (kind.is === "class" || kind.is === "choice") {
        const choices =
            kind.is === "choice"
                ? Object.entries(kind.choices)
                : [["", kind.none] as const, ...Object.keys(settings.classes).map((name) => [name, name] as const)];
        const known = choices.some(([value]) => value === text);
        return (
            <FormGroup label={word} fieldId={id}>
                <FormSelect {...shared} onChange={(_, chosen) => onChange(chosen)}>
                    {[...choices, ...(known || !text ? [] : [[text, text] as const])].map(([value, label]) => (
                        <FormSelectOption key={value} value={value} label={visible(label)} />
                    ))}
                </FormSelect>
            </FormGroup>
        );
    }
    const unit = kind.is === "number" ? kind.unit : "";
    const otherwise = kind.is === "number" && byClass ? (kind.otherwise?.(byClass) ?? null) : null;
    const iops = WHOLE.test(text ?? "") ? Number(text) : text ? null : otherwise;
    return (
        <FormGroup label={word} fieldId={id}>
            <InputGroup>
                <InputGroupItem isFill>
                    <TextInput
                        {...shared}
                        inputMode={kind.is === "number" ? "decimal" : "text"}
                        placeholder={otherwise === null ? "" : `${otherwise} by its class`}
                        onChange={(_, typed) => onChange(typed.trim())}
                    />
                </InputGroupItem>
                {unit && <InputGroupText>{unit}</InputGroupText>}
            </InputGroup>
            {unit === "iops" && iops !== null && (
                <FormHelperText>
                    <HelperText>
                        <HelperTextItem>{meaning(iops, curves)}</HelperTextItem>
                    </HelperText>
                </FormHelperText>
            )}
        </FormGroup>
    );
}
