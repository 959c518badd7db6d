"""How the agent answers: server, limits, error mapping, health, reflection, metrics, who may call."""
