import { visible } from "./words";

/** A name from outside: never run, with its own direction, and cut by the page's width. */
export function Name({ text }: { text: string }) {
    const shown = visible(text);
    return (
        <bdi className="iokeel-name" title={shown}>
            {shown}
        </bdi>
    );
}
