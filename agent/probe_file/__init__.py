"""The file through which a worker tells its agent what it does, and hears which fault to bring on."""
