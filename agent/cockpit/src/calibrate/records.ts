/** What `iokeel calibrate` writes: agent/src/iokeel/calibrate/output.py describes it. */

import * as v from "valibot";

const Points = v.array(v.tuple([v.number(), v.number()]));

export const Result = v.object({
    capacity: v.number(),
    latency_target_ms: v.number(),
    curve_read: Points,
    curve_write: v.nullable(Points),
    warnings: v.array(v.string()),
    series: v.array(
        v.object({
            kind: v.string(),
            order: v.string(),
            size_bytes: v.number(),
            saturation_depth: v.number(),
            raw_iops: v.number(),
            latency_p99_s: v.number(),
            cost: v.number(),
            fit_error_ratio: v.nullable(v.number()),
        }),
    ),
    config: v.string(),
});
export type Result = v.InferOutput<typeof Result>;

export const Progress = v.object({
    doing: v.string(),
    done: v.number(),
    total: v.number(),
    last: v.string(),
});
export type Progress = v.InferOutput<typeof Progress>;
