/** Asks the agent on its unix socket, through Cockpit's bridge. */

import * as v from "valibot";
import { type Fault, Refusal } from "./records";

const DEFAULT_SOCKET = "/run/iokeel/agent.sock";
const TIMEOUT_MS = 10_000;

/** Where the agent's socket is: /etc/cockpit/iokeel.override.json may name another. */
export const SOCKET = cockpit.manifests["iokeel"]?.config?.socket ?? DEFAULT_SOCKET;

/**
 * Why there is no answer.
 *
 * stopped: nobody serves the socket. silent: nothing came in time. denied: the user may not open it.
 * version: the answer isn't one of this version's. refused: the agent says what is wrong with the
 * question. fault: it failed to answer.
 */
export type Trouble = "stopped" | "silent" | "denied" | "version" | "refused" | "fault";

export class AgentError extends Error {
    constructor(
        readonly trouble: Trouble,
        readonly fault: Fault,
    ) {
        super(said(fault));
    }
}

/** An error in the words of the agent's own command. */
export function said(fault: Fault): string {
    return `${fault.where}: ${fault.what}` + (fault.mend ? `; ${fault.mend}` : "");
}

const agent = cockpit.http(SOCKET, { superuser: "try" });

/** Returns the answer at a path, which may take so long. Throws AgentError. */
export async function ask<T>(
    path: string,
    query: readonly (readonly [string, string])[],
    schema: v.GenericSchema<unknown, T>,
    body?: string,
    timeoutMs = TIMEOUT_MS,
): Promise<T> {
    const words = new URLSearchParams(query.map(([name, value]) => [name, value])).toString();
    const request = agent.request({
        method: body === undefined ? "GET" : "POST",
        path: words ? `${path}?${words}` : path,
        body: body ?? "",
    });
    const timer = setTimeout(() => request.close("timeout"), timeoutMs);
    try {
        return decoded(await answered(request), schema);
    } finally {
        clearTimeout(timer);
    }
}

/** Cockpit gives the body of a refusal beside the error, which a native promise would lose. */
function answered(request: CockpitHttpRequest): Promise<string> {
    return new Promise((resolve, reject) => {
        request.then(resolve, (error, body) => reject(failure(error, body)));
    });
}

function decoded<T>(text: string, schema: v.GenericSchema<unknown, T>): T {
    try {
        const found = v.safeParse(schema, JSON.parse(text), { abortEarly: true });
        if (found.success) return found.output;
    } catch {
        // not JSON
    }
    throw otherVersion();
}

function failure(error: CockpitFailure, body: string): AgentError {
    if (error.status !== undefined) return refusal(error.status, body);
    switch (error.problem) {
        case "access-denied":
            return trouble("denied", "permission denied");
        case "timeout":
            return trouble("silent", "the agent doesn't answer");
        case "protocol-error":
            return otherVersion();
        default:
            return trouble("stopped", "nobody serves it");
    }
}

function refusal(status: number, body: string): AgentError {
    const kind = status >= 500 ? "fault" : "refused";
    try {
        const found = v.safeParse(Refusal, JSON.parse(body));
        if (found.success) return new AgentError(kind, found.output.error);
    } catch {
        // not JSON: a path that this agent doesn't have, or a fault outside of its handlers
    }
    return kind === "fault" ? trouble(kind, `the answer has status ${status}`) : otherVersion();
}

function otherVersion(): AgentError {
    return trouble("version", "the answer is not from an agent of this version");
}

function trouble(kind: Trouble, what: string): AgentError {
    return new AgentError(kind, { where: SOCKET, what, mend: "" });
}
