/** Two minutes of rates a drive: from the agent's own history at first, then as they are seen. */

import { useEffect, useRef, useState } from "react";
import { AgentError } from "../agent/client";
import { type HostNow, rates } from "../agent/questions";
import { keyOf } from "../drives";

export const SPAN_S = 120;

export interface Point {
    at: number;
    iops: number | null;
}
export type Trends = ReadonlyMap<string, readonly Point[]>;

export function useTrends(now: HostNow | null): Trends {
    const trends = useRef(new Map<string, Point[]>());
    const [, setLoaded] = useState(false);

    useEffect(() => {
        let ended = false;
        rates(SPAN_S).then(
            (history) => {
                if (ended) return;
                const from = Date.now();
                for (const drive of history.drives) {
                    const key = keyOf(drive);
                    const past = (drive.series["normalized_iops"] ?? []).map((iops, i) => ({
                        at: from - 1000 * (history.ages_s[i] ?? 0),
                        iops,
                    }));
                    const seen = trends.current.get(key) ?? [];
                    const first = seen[0]?.at ?? Infinity;
                    trends.current.set(key, [...past.filter((point) => point.at < first), ...seen]);
                }
                setLoaded(true);
            },
            (error: unknown) => {
                // Without a history the trend begins now; the host's answers tell what is wrong.
                if (!(error instanceof AgentError)) throw error;
            },
        );
        return () => {
            ended = true;
        };
    }, []);

    useEffect(() => {
        if (!now) return;
        const found = new Map<string, Point[]>();
        for (const drive of now.vms.flatMap((vm) => vm.drives)) {
            const key = keyOf(drive);
            const before = (trends.current.get(key) ?? []).filter(
                (point) => point.at >= now.at - 1000 * SPAN_S,
            );
            found.set(key, [...before, { at: now.at, iops: drive.normalized_iops }]);
        }
        trends.current = found;
    }, [now]);

    return trends.current;
}
