import type { ReactNode } from "react";

/** A link to a place in this page, by the parts of its path. */
export function Link({ to, children }: { to: string[]; children: ReactNode }) {
    return <a href={`#${cockpit.location.encode(to)}`}>{children}</a>;
}
