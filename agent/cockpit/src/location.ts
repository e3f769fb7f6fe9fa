import { useEffect, useState } from "react";

/**
 * The address of a place in this page, by the parts of its path, of which none is empty.
 *
 * Each part is encoded once more than by Cockpit: its own encoding (287) leaves a # as it is, and
 * its decoding resolves "." and "..".
 */
export function hrefOf(path: readonly string[]): string {
    const parts = path.map((part) => encodeURIComponent(part).replace(/^\./, "%2E"));
    return `#${cockpit.location.encode(parts)}`;
}

/** The parts of the path of this place. */
export function useLocation(): string[] {
    const [path, setPath] = useState(cockpit.location.path);
    useEffect(() => {
        const changed = () => setPath(cockpit.location.path);
        cockpit.addEventListener("locationchanged", changed);
        return () => cockpit.removeEventListener("locationchanged", changed);
    }, []);
    return path.map(decoded);
}

function decoded(part: string): string {
    try {
        return decodeURIComponent(part);
    } catch {
        return part; // typed by a person
    }
}

/** Whether the person may change things as an administrator; null: not known yet. */
export function useAdmin(): boolean | null {
    const [allowed, setAllowed] = useState<boolean | null>(null);
    useEffect(() => {
        const permission = cockpit.permission({ admin: true });
        const changed = () => setAllowed(permission.allowed);
        permission.addEventListener("changed", changed);
        changed();
        return () => permission.close();
    }, []);
    return allowed;
}
