"""Where snapshots lie: stores behind one contract (`contract.py`), held to it by one conformance suite."""
