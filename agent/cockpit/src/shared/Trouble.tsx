import { Alert, EmptyState, EmptyStateBody, Spinner } from "@patternfly/react-core";
import { DisconnectedIcon, ExclamationCircleIcon, LockIcon, PluggedIcon } from "@patternfly/react-icons";
import type { AgentError, Trouble } from "../agent/client";
import type { Live } from "../agent/live";
import { time, visible } from "./words";

interface Words {
    title: string;
    body: string;
    icon: typeof LockIcon;
}

const WORDS: Record<Trouble, Words> = {
    stopped: {
        title: "The agent doesn't run",
        body: "Limits that were in force stay in force. Start it by: systemctl start iokeel",
        icon: DisconnectedIcon,
    },
    silent: {
        title: "The agent doesn't answer",
        body: "Limits that were in force stay in force. See its log by: journalctl -u iokeel",
        icon: DisconnectedIcon,
    },
    denied: {
        title: "You may not see the agent",
        body: "Turn on administrative access above, or have root add you to the group iokeel.",
        icon: LockIcon,
    },
    version: {
        title: "The agent is of another version than this page",
        body: "After an upgrade, restart it by: systemctl restart iokeel. Then reload the page.",
        icon: PluggedIcon,
    },
    refused: {
        title: "There is no such drive",
        body: "Its guest has stopped, or the drive was unplugged.",
        icon: DisconnectedIcon,
    },
    fault: {
        title: "The agent has a fault",
        body: "Limits that were in force stay in force. See its log by: journalctl -u iokeel",
        icon: ExclamationCircleIcon,
    },
};

/** What stands in for a view that has had no answer yet: that it waits, or why there is none. */
export function Waiting({ error }: { error: AgentError | null }) {
    if (!error) {
        return (
            <EmptyState titleText="Asking the agent" headingLevel="h2" icon={Spinner}>
                <EmptyStateBody />
            </EmptyState>
        );
    }
    const { title, icon } = WORDS[error.trouble];
    return (
        <EmptyState titleText={title} headingLevel="h2" icon={icon} role="alert">
            <EmptyStateBody>
                <Said error={error} />
            </EmptyStateBody>
        </EmptyState>
    );
}

/** The line above a view whose last answer is old. */
export function Stale<T>({ live }: { live: Live<T> }) {
    if (!live.error || !live.at) return null;
    const { title } = WORDS[live.error.trouble];
    const when = `What is shown is from ${time(live.at)}.`;
    return (
        <Alert component="h2" variant="warning" isInline title={`${title}. ${when}`} role="alert">
            <Said error={live.error} />
        </Alert>
    );
}

/** What to do, and the agent's own words. */
function Said({ error }: { error: AgentError }) {
    return (
        <>
            <p>{WORDS[error.trouble].body}</p>
            <p className="iokeel-said">{visible(error.message)}</p>
        </>
    );
}
