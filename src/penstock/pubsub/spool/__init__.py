"""The spool of the exactly-once mode: what each task of a batch has got, in an object store."""
