"""Reading the results of any run, in a notebook or a program: `weir.open`."""
