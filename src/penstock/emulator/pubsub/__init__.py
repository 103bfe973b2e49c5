"""The Pub/Sub gRPC API in one process.

How it differs from the service: one region, no quotas, no push delivery (push configurations are
kept, not acted on), no ingestion, BigQuery or Cloud Storage subscriptions, no transforms, and IAM
grants everything that was not denied through the admin API. A seek takes effect at once.

With PUBSUB_EMULATOR_HOST the official clients open channels with gRPC's default limits. Responses
therefore stay below 4 MiB (a single larger message needs a channel made for it), and an error that
refuses many ack ids names about 25 of them.
"""
