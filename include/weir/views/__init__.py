"""Read models: a query gives rows of a typed value, which commands print and pages show. They change nothing."""
