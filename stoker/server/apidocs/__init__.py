"""The API's description as a page, with its script and style in the package: it works offline.

static/ is swagger-ui-dist 5.35.0 (Apache-2.0), unchanged but for the reference to its source map,
and start.js, which is ours.
"""
