"""What a cluster is: devices, links, and the domains that share them; read from a file or from what agents report."""
