"""What every process needs whatever it does: settings, errors, logs, files, sockets, running a daemon."""
