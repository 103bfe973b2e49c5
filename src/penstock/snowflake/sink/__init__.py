"""The sink: offset tokens, channels, the task and the writers."""
