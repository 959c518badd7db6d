"""From an agent's report to the Node in the API: what to write, who writes it, the lease and the conditions."""
