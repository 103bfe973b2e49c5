"""PostgreSQL change data capture: `spark.readStream.format("postgres_cdc")`."""
