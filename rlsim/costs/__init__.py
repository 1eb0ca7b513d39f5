"""Work (FLOPs, bytes) and the seconds it takes; knows nothing of time passing."""
