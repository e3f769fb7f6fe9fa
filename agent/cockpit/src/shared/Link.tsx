import type { ReactNode } from "react";
import { hrefOf } from "../location";

/** A link to a place in this page, by the parts of its path. */
export function Link({ to, children }: { to: readonly string[]; children: ReactNode }) {
    return <a href={hrefOf(to)}>{children}</a>;
}
