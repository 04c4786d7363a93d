"""API documentation page. Its script and style are in the package, so it works offline.

static/ holds swagger-ui-dist 5.35.0 (Apache-2.0) and our own start.js. In swagger-ui-dist only the
reference to its source map was changed.
"""
