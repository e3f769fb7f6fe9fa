/** Light or dark, as it is chosen in Cockpit's own menu. */

const DARK = window.matchMedia("(prefers-color-scheme: dark)");

export function followTheme(): void {
    apply(null);
    window.addEventListener("storage", (event) => {
        if (event.key === "shell:style") apply(null);
    });
    // The shell tells its own frames by this event.
    window.addEventListener("cockpit-style", (event) => {
        if (event instanceof CustomEvent) apply((event.detail as { style: string }).style);
    });
    DARK.addEventListener("change", () => apply(null));
}

function apply(chosen: string | null): void {
    const style = chosen ?? localStorage.getItem("shell:style") ?? "auto";
    const dark = style === "dark" || (style === "auto" && DARK.matches);
    document.documentElement.classList.toggle("pf-v6-theme-dark", dark);
}
