"""What changes a worker group while the driver holds it: other workers, new rank facts, a restart after deaths."""
