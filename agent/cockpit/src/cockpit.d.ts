// The part of Cockpit's own API that the page uses. base1/cockpit.js, which Cockpit serves, has it.

type Superuser = "try" | "require";

/** How a request, a program or a channel fails. `problem` is Cockpit's word for it. */
interface CockpitFailure {
    problem: string | null;
    message: string;
    status?: number;
    exit_status?: number | null;
}

interface CockpitProcess extends Promise<string> {
    stream(callback: (data: string) => void): CockpitProcess;
    input(data: string): CockpitProcess;
    close(problem?: string): void;
}

interface CockpitHttpRequest {
    then(answered: (body: string) => void, failed: (error: CockpitFailure, body: string) => void): void;
    /** Ends the request; its promise is rejected. */
    close(problem?: string): void;
}

interface CockpitHttp {
    request(options: {
        method: string;
        path: string;
        body: string;
        headers?: Record<string, string>;
    }): CockpitHttpRequest;
}

interface CockpitEvents {
    addEventListener(name: string, listener: () => void): void;
    removeEventListener(name: string, listener: () => void): void;
}

interface CockpitPermission extends CockpitEvents {
    /** null: not known yet. */
    allowed: boolean | null;
    close(): void;
}

interface CockpitLocation {
    path: string[];
    encode(path: string[]): string;
}

interface Cockpit extends CockpitEvents {
    location: CockpitLocation;
    manifests: Record<string, { config?: { socket?: string } } | undefined>;
    http(endpoint: string, options: { superuser: Superuser }): CockpitHttp;
    spawn(
        words: string[],
        options: { superuser: Superuser; err: "message" | "out"; environ?: string[] },
    ): CockpitProcess;
    script(
        text: string,
        words: string[],
        options: { superuser: Superuser; err: "message"; environ?: string[] },
    ): CockpitProcess;
    permission(options: { admin: boolean }): CockpitPermission;
}

declare const cockpit: Cockpit;
