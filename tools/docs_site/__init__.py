"""The documentation as a site, which Zensical builds. Needs only Python's standard library."""
