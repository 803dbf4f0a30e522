"""What quantised optimizers do to training, measured: ``python -m experiments.NAME``.

A module that makes its parser with ``common.parser`` is an experiment: it can be run with
``--smoke`` on two cores in seconds, and writes ``experiments/results/NAME-MACHINE.json``. Nothing
here draws while it measures: ``experiments/plots/NAME.py`` draws such a file
(``python -m experiments.plot``), and ``experiments/tables/NAME.py`` makes tables of it for
documents (``python -m experiments.render``).
"""
