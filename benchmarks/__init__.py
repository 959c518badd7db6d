"""Numbers the project promises, measured against something comparable in the same run."""
