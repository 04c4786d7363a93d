// Ours. A file, as the page's policy lets no inline script run.
//
// Addresses are relative to the page's, so that a proxy may put a path before all of them.
const base = new URL(".", window.location.href).href.replace(/\/$/, "");
const options = {
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
  layout: "BaseLayout",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
};
fetch("openapi.json")
  .then((answer) => answer.json())
  // Calls go where the page came from.
  .then((spec) => SwaggerUIBundle({ ...options, spec: { ...spec, servers: [{ url: base }] } }))
  // It shows what went wrong.
  .catch(() => SwaggerUIBundle({ ...options, url: "openapi.json" }));
