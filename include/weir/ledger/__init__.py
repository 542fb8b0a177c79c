"""The ledger: who runs, who committed, who read what, what is owed. A database of its own, never Airflow's tables."""
