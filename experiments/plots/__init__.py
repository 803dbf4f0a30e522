"""How a result file of each experiment is drawn."""
