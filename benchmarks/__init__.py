"""What it costs: figures with their goals, measured side by side in one run (``python -m benchmarks``).

Goals are mostly ratios, to floors or peers measured in the same run on the same disk, since machines differ and are
busy. A *floor* is the same rows written without any of the package. A *peer* is another implementation, measured in an
environment of its own (``--peers``).
"""
