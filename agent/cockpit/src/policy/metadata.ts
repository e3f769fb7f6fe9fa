/** A domain's policy in libvirt's metadata: of the guest that runs, and of its next start. */

const NAMESPACE = "urn:iokeel:policy:1";
const ENVIRONMENT = { environ: ["LC_ALL=C.UTF-8"] };
const CHANGED = 3;
const ABSENT = "Requested metadata element is not present";
const TRANSIENT = "transient domain";
const UUID_LENGTH = 36;
// For others, virsh would run a command, or go to another host, as root.
const LOCAL = /^qemu(\+unix)?:\/\/\/(system|session)(\?socket=[\w./%-]+)?$/;

/** The two policies as XML; "": none. next: null if the domain is gone after its guest. */
export interface Policies {
    live: string;
    next: string | null;
}

/** Somebody else has changed the policy since it was read. */
export class Changed extends Error {}

/** Reads the policies of a domain. Throws an Error with virsh's words. */
export async function read(uri: string, domain: string): Promise<Policies> {
    const uuid = await uuidOf(uri, domain);
    const get = async (which: string) => {
        const text = await virsh(uri, ["metadata", "--domain", uuid, "--uri", NAMESPACE, which]);
        return text.replace(/\n+$/, "");
    };
    const live = await get("--live").catch(noneIf(ABSENT, ""));
    const next = await get("--config")
        .catch(noneIf(ABSENT, ""))
        .catch(noneIf(TRANSIENT, null));
    return { live, next };
}

/**
 * Writes the policies of a domain, unless they aren't any more as they were read.
 *
 * Throws Changed, or an Error with virsh's words.
 */
export async function write(uri: string, domain: string, was: Policies, now: Policies) {
    const words = [NAMESPACE, uri, await uuidOf(uri, domain), was.live, now.live];
    if (was.next !== null && now.next !== null) words.push(was.next, now.next);
    try {
        await cockpit.script(WRITE, words, { superuser: "require", err: "message", ...ENVIRONMENT });
    } catch (error) {
        const failed = error as CockpitFailure;
        throw failed.exit_status === CHANGED ? new Changed() : new Error(failed.message);
    }
}

/**
 * Returns the UUID of the domain that has exactly this name: `db1 ` may be another tenant's guest.
 *
 * virsh takes a name of digits for the number of another guest, so it is asked by UUID.
 */
async function uuidOf(uri: string, domain: string): Promise<string> {
    const rows = (await virsh(uri, ["list", "--all", "--uuid", "--name"])).split("\n");
    const found = rows.find((row) => row.slice(UUID_LENGTH) === ` ${domain}`);
    if (!found) throw new Error(`${domain}: libvirt has no such domain`);
    return found.slice(0, UUID_LENGTH);
}

async function virsh(uri: string, words: string[]): Promise<string> {
    if (!LOCAL.test(uri)) {
        throw new Error(`${uri}: not this host's QEMU by libvirt; give [libvirt] uri = "qemu:///system" to the agent`);
    }
    const options = { superuser: "require", err: "message", ...ENVIRONMENT } as const;
    return cockpit.spawn(["virsh", "--connect", uri, "--quiet", ...words], options);
}

// The lock keeps two pages apart between comparing and writing.
const WRITE = `
set -eu
namespace=$1 uri=$2 domain=$3
shift 3
exec 9>/run/cockpit-iokeel.lock
flock 9
metadata() {
    virsh --connect "$uri" --quiet metadata --domain "$domain" --uri "$namespace" "$@"
}
compare() {
    found=$(metadata "$1" 2>&1) || case $found in
        *"${ABSENT}"*) found= ;;
        *"${TRANSIENT}"*) exit ${CHANGED} ;;
        *) printf '%s\\n' "$found" >&2; exit 1 ;;
    esac
    [ "$found" = "$2" ] || exit ${CHANGED}
}
compare --live "$1"
[ $# -eq 2 ] || compare --config "$3"
metadata --live --key iokeel --set "$2" >/dev/null
[ $# -eq 2 ] || metadata --config --key iokeel --set "$4" >/dev/null
`;

function noneIf<T>(words: string, none: T): (error: CockpitFailure | Error) => T {
    return (error) => {
        if (error.message.includes(words)) return none;
        throw error instanceof Error ? error : new Error(error.message);
    };
}
