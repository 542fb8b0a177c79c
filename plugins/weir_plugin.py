"""The only file that Airflow scans in this folder; everything else is the installed package `weir_airflow`."""

from weir_airflow.plugin import WeirPlugin

__all__ = ["WeirPlugin"]
