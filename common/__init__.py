"""What agent and controller both need and no library gives."""
