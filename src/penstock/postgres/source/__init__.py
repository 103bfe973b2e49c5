"""The streaming source and the snapshot: planning on the driver, reading in tasks."""
