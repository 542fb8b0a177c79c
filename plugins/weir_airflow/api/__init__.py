"""The plugin's endpoint on Airflow's api-server, and how tasks reach it."""
