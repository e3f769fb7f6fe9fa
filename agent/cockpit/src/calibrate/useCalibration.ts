import { useEffect, useRef, useState } from "react";
import * as v from "valibot";
import { Progress, Result } from "./records";

/** What is measured: a device or folder, only read, or written in a temporary file. */
export interface Request {
    storage: string;
    quick: boolean;
    size: string;
    seconds: string;
}

/** A calibration: not begun, running, done, or failed with the command's own words. */
export interface Calibration {
    running: boolean;
    progress: Progress | null;
    result: Result | null;
    error: string | null;
    start: (request: Request) => void;
    stop: () => void;
}

/** Runs `iokeel calibrate`, which ends with the page. */
export function useCalibration(): Calibration {
    const [running, setRunning] = useState(false);
    const [progress, setProgress] = useState<Progress | null>(null);
    const [result, setResult] = useState<Result | null>(null);
    const [error, setError] = useState<string | null>(null);
    const process = useRef<CockpitProcess | null>(null);
    const stop = () => process.current?.close("terminated");
    useEffect(() => stop, []);

    const start = (request: Request) => {
        let rest = "";
        let out = "";
        const take = (data: string) => {
            const lines = (rest + data).split("\n");
            rest = lines.pop() ?? "";
            for (const line of lines) {
                const told = progressOf(line);
                if (told) setProgress(told);
                else out += `${line}\n`;
            }
        };
        setRunning(true);
        setProgress(null);
        setResult(null);
        setError(null);
        const spawned = cockpit.spawn(words(request), { superuser: "require", err: "out" });
        process.current = spawned;
        spawned.stream(take);
        spawned
            .then(
                () => setResult(resultOf(out + rest)),
                (failed: CockpitFailure) =>
                    setError((out + rest).trim() || failed.message || failed.problem || "stopped"),
            )
            .catch(() => setError("its result is not from an agent of this version"))
            .finally(() => setRunning(false));
    };
    return { running, progress, result, error, start, stop };
}

function words({ storage, quick, size, seconds }: Request): string[] {
    const options = ["--json", "--progress"];
    if (quick) options.push("--quick");
    if (size) options.push("--size", size);
    if (seconds) options.push("--seconds", seconds);
    return ["iokeel", "calibrate", ...options, "--", storage];
}

function progressOf(line: string): Progress | null {
    if (!line.startsWith("{")) return null;
    try {
        const found = v.safeParse(Progress, JSON.parse(line));
        return found.success ? found.output : null;
    } catch {
        return null; // the first line of the result
    }
}

function resultOf(text: string): Result {
    return v.parse(Result, JSON.parse(text));
}
