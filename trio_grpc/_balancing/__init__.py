"""Which connection a call goes to: names, connection attempts, backoff. Private: rooms are imported by their names."""
