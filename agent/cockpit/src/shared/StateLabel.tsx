import { Label } from "@patternfly/react-core";
import {
    BoltIcon,
    ExclamationCircleIcon,
    ExclamationTriangleIcon,
    MinusCircleIcon,
} from "@patternfly/react-icons";
import type { State } from "../drives";

const LOOKS = {
    error: { color: "red", icon: <ExclamationCircleIcon /> },
    suffers: { color: "orange", icon: <ExclamationTriangleIcon /> },
    bursts: { color: "blue", icon: <BoltIcon /> },
    held: { color: "purple", icon: <MinusCircleIcon /> },
} as const;

/** What each state means, for those who ask. */
export const MEANINGS: Record<State, string> = {
    error: "Its policy or its limits have an error. The last good limits hold",
    suffers: "It is above its latency target",
    bursts: "It spends burst credit above its limit",
    held: "It uses all that it may",
    free: "Nothing holds it",
};

/** A drive's state, readable without colour. */
export function StateLabel({ state }: { state: State }) {
    if (state === "free") return <span title={MEANINGS.free}>free</span>;
    const { color, icon } = LOOKS[state];
    return (
        <Label isCompact color={color} icon={icon} title={MEANINGS[state]}>
            {state}
        </Label>
    );
}
