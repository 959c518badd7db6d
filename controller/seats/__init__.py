"""The seat of a suspended VM: freed when its snapshot is safe, and taken again when it wakes."""
