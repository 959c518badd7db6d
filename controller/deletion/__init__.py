"""What becomes of a VM's snapshots when its pod is deleted: kept or purged, nothing missed, nobody held up."""
