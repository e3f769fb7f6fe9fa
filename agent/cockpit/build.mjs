// Bundle the page: node build.mjs [FOLDER]; the default is dist. Fails if it would be too large.

import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const MOST_BYTES = 1_000_000;
const to = path.resolve(process.argv[2] ?? "dist");

rmSync(to, { recursive: true, force: true });
mkdirSync(to, { recursive: true });
const { metafile } = await build({
    metafile: true,
    entryPoints: ["src/index.tsx"],
    outdir: to,
    bundle: true,
    minify: true,
    legalComments: "none",
    target: "es2022",
    jsx: "automatic",
    loader: { ".woff2": "file", ".ttf": "file", ".svg": "file" },
    assetNames: "assets/[name]",
    define: { "process.env.NODE_ENV": '"production"' },
    logLevel: "warning",
});
writeFileSync(path.join(to, "LICENSES.txt"), licences(Object.keys(metafile.inputs)));
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

/** Returns the licences of the packages that a bundle has files of. */
function licences(inputs) {
    const found = inputs.map((input) => input.match(/^node_modules\/(?:@[^/]+\/)?[^/]+/)?.[0]);
    return [...new Set(found.filter(Boolean))]
        .sort()
        .map((folder) => {
            const { name, version, license } = JSON.parse(readFileSync(path.join(folder, "package.json")));
            const file = ["LICENSE", "LICENSE.txt", "LICENSE.md"]
                .map((each) => path.join(folder, each))
                .find(existsSync);
            const text = file ? readFileSync(file, "utf8") : "";
            return `${name} ${version}: ${license}\n\n${text}`;
        })
        .join(`\n${"-".repeat(72)}\n\n`);
}
