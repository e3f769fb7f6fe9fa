import { Name } from "../shared/Name";
import { rate } from "../shared/words";
import type { Share } from "./whoHas";

const WIDTH = 240;
const HEIGHT = 8;
const WORDS: Record<Share["kind"], string> = {
    here: ", this host",
    other: "",
    silent: ", doesn't report",
    nobody: "",
};

/** Who is charged how much of a limit: a bar, and the same in words. */
export function Shares({ shares }: { shares: readonly Share[] }) {
    const all = shares.reduce((sum, { iops }) => sum + iops, 0);
    let from = 0;
    return (
        <>
            <svg
                className="iokeel-shares"
                viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
                preserveAspectRatio="none"
                aria-hidden="true"
            >
                {shares.map(({ host, kind, iops }) => {
                    const width = all ? (WIDTH * iops) / all : 0;
                    from += width;
                    return (
                        <rect
                            key={host}
                            className={`iokeel-share-${kind}`}
                            x={from - width}
                            width={width}
                            height={HEIGHT}
                        />
                    );
                })}
            </svg>
            <ul>
                {shares.map(({ host, kind, iops }) => (
                    <li key={`${kind} ${host}`}>
                        <Name text={host} />
                        {WORDS[kind]}: {rate(iops)}
                    </li>
                ))}
            </ul>
        </>
    );
}
