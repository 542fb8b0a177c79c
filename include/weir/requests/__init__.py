"""Requests of people: what Airflow's pages ask for, and a worker carries out."""
