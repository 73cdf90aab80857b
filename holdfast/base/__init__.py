"""What every process needs whatever it does: settings, errors, logs, files, sockets, the life of a daemon."""
