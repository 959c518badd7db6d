"""End to end: real agents, the real controller, a real control plane."""
