/** Figures and times as the person's own locale writes them: the browser's. */

const language = undefined;
const wholes = new Intl.NumberFormat(language, { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
const hundredth = new Intl.NumberFormat(language, { maximumFractionDigits: 2 });
const part = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(language, { timeStyle: "medium" });
const shortTime = new Intl.DateTimeFormat(language, { timeStyle: "short" });
const dayAndTime = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
const listed = new Intl.ListFormat(language, { type: "unit" });

export const NONE = "–";

export function rate(iops: number | null): string {
    if (iops === null) return NONE;
    return (iops < 10 ? tenth : wholes).format(iops);
}

export function whole(count: number): string {
    return wholes.format(count);
}

export function percent(ratio: number | null): string {
    return ratio === null ? NONE : part.format(ratio);
}

/** A time in milliseconds, or in seconds from one on. */
export function duration(seconds: number | null): string {
    if (seconds === null) return NONE;
    if (seconds >= 1) return `${tenth.format(seconds)} s`;
    return `${(seconds < 0.001 ? hundredth : tenth).format(1000 * seconds)} ms`;
}

/** A size: 4K, 64K, 1M. */
export function size(bytes: number | null): string {
    if (bytes === null) return NONE;
    if (bytes < 1024) return `${wholes.format(bytes)} B`;
    return bytes < 1 << 20 ? `${tenth.format(bytes / 1024)}K` : `${tenth.format(bytes / (1 << 20))}M`;
}

export function time(at: Date): string {
    return clock.format(at);
}

/** A time to the minute, for an axis. */
export function minute(at: Date): string {
    return shortTime.format(at);
}

/** A time to the hour, with its day. */
export function hour(at: Date): string {
    return dayAndTime.format(at);
}

export function list(words: readonly string[]): string {
    return listed.format(words);
}

export function plural(count: number, one: string): string {
    return `${wholes.format(count)} ${one}${count === 1 ? "" : "s"}`;
}

// What changes the direction of what follows, and what isn't seen: also blanks at the ends, blanks
// that a browser would join, and blanks of another width.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}|^ | $| (?= )/gu;

/** A name or message from outside, with an escape for each character that would act on the text. */
export function visible(text: string): string {
    return text.replace(UNSEEN, (found) => {
        const code = found.codePointAt(0) ?? 0;
        const digits = code.toString(16);
        if (code < 0x100) return `\\x${digits.padStart(2, "0")}`;
        return code < 0x10000 ? `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`;
    });
}
