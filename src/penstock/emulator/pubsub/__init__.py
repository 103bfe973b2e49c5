"""The Pub/Sub gRPC API in one process.

How it differs from the service: one region, no quotas, no push delivery (push configurations are
kept, not acted on), no ingestion, BigQuery or Cloud Storage subscriptions, and IAM grants
everything that was not denied through the admin API.
"""
