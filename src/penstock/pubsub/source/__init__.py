"""The streaming source's driver side: offsets, the ledger of deliveries, the coordinator."""
