// esbuild puts what these import into index.css.
declare module "*.css";
