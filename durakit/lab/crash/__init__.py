"""A crash to look at: moments of a run, its line of time, and the controls over them."""
