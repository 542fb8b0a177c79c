"""The stage functions of the examples: pure functions on Spark DataFrames, as a user of Weir writes them."""
