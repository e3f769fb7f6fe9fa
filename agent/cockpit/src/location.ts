import { useEffect, useState } from "react";

/** The parts of the path after the address's #. */
export function useLocation(): string[] {
    const [path, setPath] = useState(cockpit.location.path);
    useEffect(() => {
        const changed = () => setPath(cockpit.location.path);
        cockpit.addEventListener("locationchanged", changed);
        return () => cockpit.removeEventListener("locationchanged", changed);
    }, []);
    return path;
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
