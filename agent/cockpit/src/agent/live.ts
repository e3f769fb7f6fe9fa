/** Answers that are asked for again and again while somebody looks. */

import { useEffect, useRef, useState } from "react";
import { AgentError } from "./client";

/** The last answer and when it came, and why there is no newer one. */
export interface Live<T> {
    answer: T | null;
    at: Date | null;
    error: AgentError | null;
}

/**
 * Asks at once, and again every `everyMs` while the page is visible.
 *
 * It asks when the clock is a multiple of that. So several people's pages ask at the same moment,
 * and the agent makes one answer for all of them.
 *
 * key: what is asked for; another one begins anew. An answer stays while later questions fail.
 */
export function useLive<T>(key: string, everyMs: number, question: () => Promise<T>): Live<T> {
    const [live, setLive] = useState<Live<T> & { key: string }>({ key, ...NOTHING });
    const latest = useRef(question);
    latest.current = question;

    useEffect(() => {
        let asked = 0;
        let timer = 0;
        // If the page was hidden and shown while it asked, only the later question goes on.
        const tick = async () => {
            const own = ++asked;
            try {
                const answer = await latest.current();
                if (own === asked) setLive({ key, answer, at: new Date(), error: null });
            } catch (error) {
                if (!(error instanceof AgentError)) throw error;
                if (own === asked) setLive((before) => ({ ...(before.key === key ? before : NOTHING), key, error }));
            }
            const pauseMs = everyMs - (Date.now() % everyMs);
            if (own === asked && !document.hidden) timer = window.setTimeout(() => void tick(), pauseMs);
        };
        const shown = () => {
            window.clearTimeout(timer);
            if (!document.hidden) void tick();
        };
        document.addEventListener("visibilitychange", shown);
        void tick();
        return () => {
            asked = 0; // no answer counts any more
            window.clearTimeout(timer);
            document.removeEventListener("visibilitychange", shown);
        };
    }, [key, everyMs]);

    return live.key === key ? live : NOTHING;
}

const NOTHING = { answer: null, at: null, error: null };
