"""What survives the controller: the journal, and recordings that can be run again."""
