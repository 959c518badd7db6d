"""The version both programs report.

A constant, not package metadata: reading metadata costs start-up time and fails in a checkout that is not installed.
"""

VERSION = "0.1.0"
