"""TrendProbe: streams msProbe's tensor statistics into SQLite shards."""
