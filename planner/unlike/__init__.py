"""Jobs over unlike NICs: groups that stay within one type, layers by speed, and a transport for each group."""
