"""What is deployed: images, manifests, units, alerts, and the rights they ask for."""
