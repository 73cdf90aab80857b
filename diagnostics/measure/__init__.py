"""What measures: hardware as sysfs shows it, movers of bytes, measured collectives."""
