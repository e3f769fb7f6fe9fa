import { useEffect, useState } from "react";
import { AgentError } from "./client";
import { settings } from "./questions";
import type { Settings } from "./records";

/** The agent's settings, once they are there. The page's other questions tell what is wrong. */
export function useSettings(): Settings | null {
    const [found, setFound] = useState<Settings | null>(null);
    useEffect(() => {
        settings().then(setFound, (error: unknown) => {
            if (!(error instanceof AgentError)) throw error;
        });
    }, []);
    return found;
}
