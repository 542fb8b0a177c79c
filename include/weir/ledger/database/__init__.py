"""The databases of the ledger: SQLite and PostgreSQL, the tables, and their migrations."""
