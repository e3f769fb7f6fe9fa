import { useCallback, useEffect, useState } from "react";
import { said } from "../agent/client";
import { checked } from "../agent/questions";
import type { Checked } from "../agent/records";
import { type Attribute, ATTRIBUTES, type Values } from "./attributes";
import { Changed, type Policies, read, write } from "./metadata";
import { edited, PolicyUnreadable, serialOf, valuesOf } from "./xml";

/** Another person's change of an attribute, while the form was open. */
export interface Theirs {
    attribute: Attribute;
    before: string;
    now: string;
}

/**
 * A drive's policy as it is written, as it is edited, and what the agent says of it.
 *
 * apart: the next start has another policy. transient: there is no next start. theirs: what
 * somebody else has changed of what the form has; empty if it is another part; null if nobody has.
 * promised: by the policy as it is edited; null after an error.
 */
export interface PolicyEdit {
    values: Values | null;
    edits: Values;
    apart: boolean;
    transient: boolean;
    theirs: readonly Theirs[] | null;
    promised: Checked | null;
    error: string | null;
    busy: boolean;
    edit: (attribute: Attribute, text: string) => void;
    save: () => Promise<boolean>;
}

const PAUSE_MS = 300;
const MOST_SERIAL = 999_999_999_999; // by the schema

/** Edits the policy of one drive, and of its VM. uri: the agent's connection to libvirt. */
export function usePolicy(uri: string, domain: string, target: string): PolicyEdit {
    const [was, setWas] = useState<Policies | null>(null);
    const [edits, setEdits] = useState<Values>({});
    const [theirs, setTheirs] = useState<readonly Theirs[] | null>(null);
    const [promised, setPromised] = useState<Checked | null>(null);
    const [error, setError] = useState<string | null>(null);
    const [busy, setBusy] = useState(false);

    const failed = useCallback((problem: unknown) => setError(worded(problem)), []);
    useEffect(() => {
        read(uri, domain).then(setWas, failed);
    }, [uri, domain, failed]);

    // What the agent says of the policy as it is edited now.
    useEffect(() => {
        if (!was) return undefined;
        let ended = false;
        const timer = window.setTimeout(() => {
            ask(domain, was, target, edits).then((told) => {
                if (ended) return;
                setPromised(told.promised);
                setError(told.error);
            }, failed);
        }, PAUSE_MS);
        return () => {
            ended = true;
            window.clearTimeout(timer);
        };
    }, [domain, target, was, edits, failed]);

    const values = was && quiet(() => valuesOf(was.live, target));
    const reread = async (before: Policies) => {
        const now = await read(uri, domain);
        setTheirs(differences(valuesOf(before.live, target), valuesOf(now.live, target)));
        setWas(now);
    };
    const save = async () => {
        if (!was) return false;
        setBusy(true);
        try {
            const told = await ask(domain, was, target, edits);
            if (told.error) {
                setError(told.error);
                return false;
            }
            await write(uri, domain, was, changed(was, target, edits));
            return true;
        } catch (problem) {
            if (problem instanceof Changed) await reread(was).catch(failed);
            else failed(problem);
            return false;
        } finally {
            setBusy(false);
        }
    };
    return {
        values,
        edits,
        apart: was !== null && was.next !== null && was.next !== was.live,
        transient: was !== null && was.next === null,
        theirs,
        promised,
        error,
        busy,
        edit: (attribute, text) => setEdits((before) => ({ ...before, [attribute]: text })),
        save,
    };
}

/** Each policy gets the same changes, and the next serial if one has any; what else is in it stays. */
function changed(was: Policies, target: string, edits: Values): Policies {
    const last = Math.max(serialOf(was.live), serialOf(was.next ?? ""));
    const serial = last && Math.min(last + 1, MOST_SERIAL);
    return {
        live: edited(was.live, target, edits, serial),
        next: was.next === null ? null : edited(was.next, target, edits, serial),
    };
}

async function ask(domain: string, was: Policies, target: string, edits: Values) {
    const now = changed(was, target, edits);
    const promised = await checked(domain, now.live);
    if (promised.error) return { promised: null, error: said(promised.error) };
    if (now.next === null || now.next === now.live) return { promised, error: null };
    const later = await checked(domain, now.next);
    const error = later.error && `after the guest's next start: ${said(later.error)}`;
    return { promised, error };
}

function differences(before: Values, now: Values): Theirs[] {
    return ATTRIBUTES.filter((attribute) => before[attribute] !== now[attribute]).map((attribute) => ({
        attribute,
        before: before[attribute] ?? "",
        now: now[attribute] ?? "",
    }));
}

function quiet(make: () => Values): Values | null {
    try {
        return make();
    } catch (error) {
        if (error instanceof PolicyUnreadable) return null;
        throw error;
    }
}

function worded(problem: unknown): string {
    if (problem instanceof PolicyUnreadable) {
        return "Its policy is not XML that a form can show; see it by: virsh metadata";
    }
    return problem instanceof Error ? problem.message : (problem as CockpitFailure).message;
}
