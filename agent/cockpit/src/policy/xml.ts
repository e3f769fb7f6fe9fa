/** The attributes of a policy's elements, as libvirt gives its XML. */

import { type Attribute, ATTRIBUTES, nameOf, type Values } from "./attributes";

const EMPTY = "<policy/>";

/** Returns the attributes of a drive and of its policy. Throws PolicyUnreadable. */
export function valuesOf(xml: string, target: string): Values {
    const policy = parsed(xml);
    const drive = driveIn(policy, target);
    const text = (attribute: Attribute) => {
        const element = attribute.startsWith("drive.") ? drive : policy;
        return element?.getAttribute(nameOf(attribute)) ?? "";
    };
    return Object.fromEntries(ATTRIBUTES.map((attribute) => [attribute, text(attribute)]));
}

/** Returns the serial of a policy; 0 for none. Throws PolicyUnreadable. */
export function serialOf(xml: string): number {
    return Number(parsed(xml).getAttribute("serial") ?? 0) || 0;
}

/**
 * Returns a policy with some attributes changed, and all else as it was. "" removes one.
 *
 * serial: its new one; 0 for none.
 */
export function edited(xml: string, target: string, edits: Values, serial = 0): string {
    const policy = parsed(xml);
    if (serial) policy.setAttribute("serial", `${serial}`);
    let drive = driveIn(policy, target);
    for (const attribute of ATTRIBUTES) {
        const value = edits[attribute];
        if (value === undefined) continue;
        if (attribute.startsWith("policy.")) {
            put(policy, attribute, value);
        } else if (value || drive) {
            drive ??= added(policy, target);
            put(drive, attribute, value);
        }
    }
    return new XMLSerializer().serializeToString(policy);
}

/** The policy isn't XML, so that a form can't show it. */
export class PolicyUnreadable extends Error {}

function parsed(xml: string): Element {
    const found = new DOMParser().parseFromString(xml.trim() || EMPTY, "application/xml");
    if (found.querySelector("parsererror")) throw new PolicyUnreadable(xml);
    return found.documentElement;
}

function driveIn(policy: Element, target: string): Element | undefined {
    return [...policy.children].find(
        (element) => element.localName === "drive" && element.getAttribute("target") === target,
    );
}

function added(policy: Element, target: string): Element {
    const drive = policy.ownerDocument.createElementNS(policy.namespaceURI, "drive");
    drive.setAttribute("target", target);
    policy.append(drive);
    return drive;
}

function put(element: Element, attribute: Attribute, value: string): void {
    if (value) element.setAttribute(nameOf(attribute), value);
    else element.removeAttribute(nameOf(attribute));
}
