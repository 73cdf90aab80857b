"""What commands share: options, output, the client of the HTTP API."""
