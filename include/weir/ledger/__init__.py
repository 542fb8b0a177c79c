"""The ledger: who runs, who committed, who read what, and what is still owed. Its own database, never Airflow's tables."""
