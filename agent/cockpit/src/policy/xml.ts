/** A drive's attributes in the XML of a policy, as libvirt gives it. */

import { type Attribute, ATTRIBUTES, type Edits, type Values } from "./attributes";

const EMPTY = "<policy/>";

/** Returns a drive's attributes. Throws PolicyUnreadable. */
export function valuesOf(xml: string, target: string): Values {
    const drive = driveIn(parsed(xml), target);
    const text = (name: Attribute) => drive?.getAttribute(name) ?? "";
    return Object.fromEntries(ATTRIBUTES.map((name) => [name, text(name)])) as Record<Attribute, string>;
}

/** Returns a policy with a drive's attributes changed, and all else as it was. "" removes one. */
export function edited(xml: string, target: string, edits: Edits): string {
    const policy = parsed(xml);
    let drive = driveIn(policy, target);
    if (!drive) {
        drive = policy.ownerDocument.createElementNS(policy.namespaceURI, "drive");
        drive.setAttribute("target", target);
        policy.append(drive);
    }
    for (const name of ATTRIBUTES) {
        const value = edits[name];
        if (value) drive.setAttribute(name, value);
        else if (value === "") drive.removeAttribute(name);
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
