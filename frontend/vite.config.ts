import { defineConfig } from "vite";

export default defineConfig({
  // The server puts the folder that it serves below in front: addresses are relative until then.
  base: "./",
  build: {
    outDir: "../stoker/server/console/static",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    // Nothing is inlined: the content security policy takes scripts and styles as files alone.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    // Modules that are needed together are one file, which compresses better than several.
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: "console", tags: ["$initial"] },
            { name: "views", test: /playground.views/ },
            { name: "lists", test: /ui.(table|paged|thumbnail|deployment-link|devices)|lib.save/ },
            { name: "agents", test: /pages.agent/ },
          ],
        },
      },
    },
  },
});
