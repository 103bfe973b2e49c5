"""Google Cloud Pub/Sub: the data source, its wire layer and its client."""
