"""Tables of the result files of each experiment."""
