"""Where checkpoints lie: folders, HDFS by two protocols, within limits of rate and time."""
