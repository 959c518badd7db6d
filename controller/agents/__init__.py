"""Finding the agents and keeping one supervised stream to each."""
