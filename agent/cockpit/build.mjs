// Bundle the page: node build.mjs [FOLDER]; the default is dist. Fails if it would be too large.

import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import path from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const MOST_BYTES = 1_000_000;
const to = path.resolve(process.argv[2] ?? "dist");

rmSync(to, { recursive: true, force: true });
mkdirSync(to, { recursive: true });
await build({
    entryPoints: ["src/index.tsx"],
    outdir: to,
    bundle: true,
    minify: true,
    legalComments: "linked",
    target: "es2022",
    jsx: "automatic",
    loader: { ".woff2": "file", ".ttf": "file", ".svg": "file" },
    assetNames: "assets/[name]",
    define: { "process.env.NODE_ENV": '"production"' },
    logLevel: "warning",
});
cpSync("src/index.html", path.join(to, "index.html"));
cpSync("manifest.json", path.join(to, "manifest.json"));

const files = readdirSync(to, { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
const sizes = files.map((file) => {
    const name = path.join(file.parentPath ?? file.path, file.name);
    return [path.relative(to, name), gzipSync(readFileSync(name)).length];
});
const all = sizes.reduce((sum, [, size]) => sum + size, 0);
console.log(`${to}: ${sizes.length} files, ${Math.round(all / 1000)} KB compressed`);
if (all > MOST_BYTES) {
    const largest = sizes.sort((a, b) => b[1] - a[1]).slice(0, 5);
    console.error(`more than ${MOST_BYTES / 1000} KB: the largest are ${largest.join("; ")}`);
    process.exit(1);
}
