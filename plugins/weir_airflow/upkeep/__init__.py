"""Weir's own DAGs: a file in the DAGs folder imports them."""
