"""What a task does, step by step: begin, commit, fail, close, settle. Outer layer: ledger and store, but no Airflow."""
